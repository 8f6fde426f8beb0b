"""A connection in a transaction of the store's: what may be done with it, and what may not."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import pytest

from tests.drivers.until import some_turns
from tests.ledger import Gate, add, read
from workflow_drivers.sqlite import SqliteDriver
from workflow_sdk import open_driver
from workflow_sdk.driver import Batch
from workflow_sdk.errors import StorageError


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[SqliteDriver]:
    driver = cast("SqliteDriver", await open_driver(f"sqlite:///{folder}/a.db?busy_timeout=0.3"))
    try:
        yield driver
    finally:
        await driver.aclose()


def recording(_: object) -> Batch:
    batch = Batch()
    batch.set(b"record", b"1")
    return batch


def executing(sql: str) -> Callable[[sqlite3.Connection], object]:
    def fn(connection: sqlite3.Connection) -> object:
        add(connection, "a")
        return connection.execute(sql).fetchall()

    return fn


def committing(connection: sqlite3.Connection) -> None:
    add(connection, "a")
    connection.commit()


def as_a_context(connection: sqlite3.Connection) -> None:
    with connection:
        add(connection, "a")


def scripting(connection: sqlite3.Connection) -> None:
    add(connection, "a")
    connection.executescript("CREATE TABLE t (x)")


def without_isolation(connection: sqlite3.Connection) -> None:
    add(connection, "a")
    connection.isolation_level = "DEFERRED"
    connection.isolation_level = None
    connection.execute("COMMIT")


@pytest.mark.parametrize(
    "fn",
    [
        committing,
        as_a_context,
        scripting,
        without_isolation,
        executing("COMMIT"),
        executing("ROLLBACK"),
        executing("END"),
        executing("DELETE FROM entry"),
        executing("UPDATE meta SET value = 0"),
        executing("INSERT INTO entry VALUES (x'00', x'00')"),
        executing("DROP TABLE entry"),
        executing("ALTER TABLE entry RENAME TO other"),
        executing("CREATE INDEX i ON entry (value)"),
        executing("CREATE TRIGGER t AFTER INSERT ON entry BEGIN DELETE FROM ledger; END"),
        executing("CREATE TEMP TRIGGER t AFTER INSERT ON main.entry BEGIN DELETE FROM entry; END"),
        executing("ATTACH ':memory:' AS other"),
        executing("PRAGMA synchronous = OFF"),
        executing("PRAGMA writable_schema = ON"),
        executing("PRAGMA user_version = 7"),
    ],
)
async def test_what_is_not_for_authors_is_refused(tmp_path: Path, fn: Callable[[sqlite3.Connection], object]) -> None:
    async with opened(tmp_path) as driver:
        await driver.transact(lambda connection: add(connection, "a"), recording)
        with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
            await driver.transact(fn, recording)
        assert await read(driver, "a") == 1
        assert await driver.get(b"record") == b"1"


def test_a_trigger_can_not_do_what_its_author_can_not(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def main() -> None:
        driver = cast("SqliteDriver", await open_driver(f"sqlite:///{path}"))

        def trap(connection: sqlite3.Connection) -> None:
            connection.execute("CREATE TABLE mine (x)")
            connection.execute("CREATE TRIGGER t AFTER INSERT ON mine BEGIN DELETE FROM entry; END")
            connection.execute("INSERT INTO mine VALUES (1)")

        with pytest.raises(sqlite3.DatabaseError):
            await driver.transact(trap, recording)
        await driver.aclose()

    anyio.run(main)


async def test_what_is_for_authors_works(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:

        def all_of_it(connection: sqlite3.Connection) -> list[tuple[str, int]]:
            connection.execute("CREATE TABLE parts (name TEXT PRIMARY KEY, amount INTEGER)")
            connection.execute("CREATE INDEX by_amount ON parts (amount)")
            connection.executemany("INSERT INTO parts VALUES (?, ?)", [("a", 1), ("b", 2)])
            connection.execute("SAVEPOINT s")
            connection.execute("DELETE FROM parts")
            connection.execute("ROLLBACK TO s")
            connection.execute("RELEASE s")
            connection.execute("ALTER TABLE parts ADD COLUMN note TEXT")
            connection.execute("PRAGMA table_info(parts)")
            connection.row_factory = sqlite3.Row
            rows = connection.execute("SELECT name, amount FROM parts ORDER BY name").fetchall()
            return [(row["name"], row["amount"]) for row in rows]

        found: list[list[tuple[str, int]]] = []

        def keep(rows: list[tuple[str, int]]) -> Batch:
            found.append(rows)
            return recording(rows)

        await driver.transact(all_of_it, keep)
        assert found == [[("a", 1), ("b", 2)]]
        plain: list[object] = []
        await driver.transact(lambda connection: plain.append(connection.execute("SELECT 1").fetchone()), recording)
        assert plain == [(1,)], "what one sets on the connection is not there for the next"


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TEMP TABLE Entry (key BLOB PRIMARY KEY, value)",
        "CREATE TEMP TABLE meta (name, value)",
        "CREATE TEMP VIEW entry AS SELECT 1",
        "CREATE TEMP TABLE mine (key BLOB PRIMARY KEY, value); ALTER TABLE mine RENAME TO entry",
    ],
)
async def test_temporary_tables_may_have_any_name(tmp_path: Path, sql: str) -> None:
    """The record goes to the table of the store, not to the author's."""

    def creates(connection: sqlite3.Connection) -> None:
        for statement in sql.split(";"):
            connection.execute(statement)

    def recording_and_appending(_: object) -> Batch:
        batch = recording(None)
        batch.check(b"record", None)
        batch.append(b"q", b"message")
        return batch

    async with opened(tmp_path) as driver:
        await driver.transact(creates, recording_and_appending)
        assert await driver.get(b"record") == b"1"
        assert [value for _, value in await driver.scan(b"q", b"r")] == [b"message"]


async def test_others_read_the_state_before_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        gate = Gate()

        def waits(connection: sqlite3.Connection) -> int:
            number = add(connection, "a")
            gate.wait()
            return number

        async with anyio.create_task_group() as group:
            group.start_soon(driver.transact, waits, recording)
            await gate.reached()
            assert await driver.get(b"record") is None
            gate.open()
        assert await driver.get(b"record") == b"1"


async def test_a_closed_connection_is_no_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:

        def closing(connection: sqlite3.Connection) -> None:
            add(connection, "a")
            connection.close()

        with pytest.raises(StorageError, match="closed inside"):
            await driver.transact(closing, recording)
        await driver.transact(lambda connection: add(connection, "a"), recording)
        assert await read(driver, "a") == 1


async def test_a_busy_file_is_an_error_in_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="busy"):
            await driver.transact(lambda connection: add(connection, "a"), recording)
        other.execute("ROLLBACK")
        other.close()
        await driver.transact(lambda connection: add(connection, "a"), recording)


async def test_closing_waits_for_it(tmp_path: Path) -> None:
    driver = cast("SqliteDriver", await open_driver(f"sqlite:///{tmp_path}/b.db"))
    gate = Gate()

    def waits(connection: sqlite3.Connection) -> int:
        gate.wait()
        return add(connection, "a")

    async with anyio.create_task_group() as group:
        group.start_soon(driver.transact, waits, recording)
        await gate.reached()
        group.start_soon(driver.aclose)
        await some_turns()
        gate.open()
    again = cast("SqliteDriver", await open_driver(f"sqlite:///{tmp_path}/b.db"))
    assert await read(again, "a") == 1
    await again.aclose()


async def test_a_record_that_can_not_be_written_takes_back_the_rest(tmp_path: Path) -> None:
    async with opened(tmp_path) as driver:
        refuse = "CREATE TRIGGER t BEFORE INSERT ON entry WHEN NEW.key = x'626164' BEGIN SELECT RAISE(ABORT, 'no'); END"
        await driver._writer.call(lambda: driver._writer.session.cursor.execute(refuse))

        def recording_many(_: object) -> Batch:
            batch = recording(None)
            for number in range(20):
                batch.set(b"%d" % number, b"")
            batch.set(b"bad", b"")
            return batch

        await driver.transact(lambda connection: add(connection, "a"), recording)
        with pytest.raises(StorageError, match="no"):
            await driver.transact(lambda connection: add(connection, "a"), recording_many)
        assert await read(driver, "a") == 1
