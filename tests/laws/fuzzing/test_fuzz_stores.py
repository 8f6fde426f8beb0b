"""What drivers read: rows of FoundationDB, and files that are said to be a store."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.fuzzing.hostile import bounded, mutated
from tests.patience import PATIENCE
from workflow_drivers.foundationdb._keys import ROW_BYTES_MAX, Blob, Large, holds, read, row_of
from workflow_sdk import Batch, StorageError, open_driver

pytestmark = pytest.mark.law(17)

LARGE = row_of(b"x" * (ROW_BYTES_MAX + 1))
assert isinstance(LARGE, Blob)
ROWS = [b"\x00", b"\x00value", LARGE.about.row]


@given(st.binary(max_size=70) | mutated(ROWS), st.none() | st.binary(max_size=8))
@examples(300)
def test_a_row_of_another_making_is_a_clear_error(row: bytes, value: bytes | None) -> None:
    with suppress(StorageError):
        assert isinstance(read(row), bytes | Large)
    with suppress(StorageError):
        assert holds(row, value) in (True, False)


@given(mutated([LARGE.about.row]))
@examples(100)
def test_a_size_that_is_too_large_takes_no_memory(row: bytes) -> None:
    with bounded(bytes_max=1_000_000), suppress(StorageError):
        found = read(row)
        if isinstance(found, Large):
            assert found.count >= 0
            assert not found.is_of(b"x")


async def use(path: Path) -> None:
    """Open a file, and do everything there is."""
    with anyio.fail_after(PATIENCE):
        driver = await open_driver(f"sqlite:///{path}?busy_timeout=0.2&synchronous=normal")
        try:
            await driver.get(b"a")
            await driver.scan(b"", b"\xff")
            batch = Batch()
            batch.set(b"a", b"1")
            batch.append(b"p", b"2")
            await driver.commit(batch)
        finally:
            await driver.aclose()


def store(folder: Path) -> bytes:
    """The file of a store with something in it."""
    path = folder / "whole.db"

    async def make() -> None:
        driver = await open_driver(f"sqlite:///{path}?synchronous=normal")
        batch = Batch()
        for number in range(200):
            batch.set(b"key %d" % number, b"value" * 40)
        await driver.commit(batch)
        await driver.aclose()

    anyio.run(make)
    return path.read_bytes()


def opened(path: Path, content: bytes) -> None:
    """Use a file with that content; it may be refused."""
    for beside in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    path.write_bytes(content)
    with suppress(StorageError):
        anyio.run(use, path)


def test_a_file_of_random_bytes_is_a_clear_error(tmp_path: Path) -> None:
    # A file of one byte is an empty one to SQLite.
    @given(st.binary(min_size=2, max_size=2000))
    @examples(15)
    def check(content: bytes) -> None:
        path = tmp_path / "random.db"
        path.write_bytes(content)
        with pytest.raises(StorageError, match=r"random\.db"):
            anyio.run(use, path)

    check()


def test_a_store_that_was_damaged_is_a_clear_error(tmp_path: Path) -> None:
    whole = store(tmp_path)

    @given(st.data())
    @examples(25)
    def check(data: st.DataObject) -> None:
        raw = bytearray(whole)
        if data.draw(st.booleans()):
            raw = raw[: data.draw(st.integers(0, len(raw)))]
        # The header of the file, and those of its pages, are where one byte says most.
        heads = st.integers(0, 120) | st.integers(0, len(whole) // 4096 - 1).map(lambda page: page * 4096)
        for at in data.draw(st.lists(heads | st.integers(0, len(whole) - 1), max_size=6)):
            if at < len(raw):
                raw[at] = data.draw(st.integers(0, 255))
        opened(tmp_path / "damaged.db", bytes(raw))

    check()


@pytest.mark.parametrize("pages", [0.1, 0.5, 0.9])
def test_a_store_that_was_cut_off_is_a_clear_error(tmp_path: Path, pages: float) -> None:
    whole = store(tmp_path)
    path = tmp_path / "cut.db"
    path.write_bytes(whole[: int(len(whole) * pages)])
    with pytest.raises(StorageError, match=r"cut\.db"):
        anyio.run(use, path)


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TABLE entry (key TEXT, value TEXT)",
        "CREATE TABLE orders (id INTEGER)",
        "PRAGMA user_version = 3",
        "PRAGMA application_id = 7",
        "PRAGMA application_id = 2003202916",
        "PRAGMA application_id = 2003202916; PRAGMA user_version = 999",
        "PRAGMA application_id = 2003202916; PRAGMA user_version = 1; CREATE VIEW entry AS SELECT 1 AS key, 2 AS value",
    ],
)
def test_a_database_of_another_program_is_a_clear_error(tmp_path: Path, statements: str) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.executescript(statements)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"other\.db"):
        anyio.run(use, path)
    if "2003202916" not in statements:
        assert path.read_bytes() == before


def test_a_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        anyio.run(use, tmp_path)
