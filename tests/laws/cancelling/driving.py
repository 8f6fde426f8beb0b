"""The five methods of a driver, cancelled, and how one is opened and closed."""

from __future__ import annotations

import sqlite3
from typing import Any

import anyio

from tests.laws.cancelling.stage import Case, Stage
from tests.support import open_store
from workflow_sdk.driver import Batch, transacting

__all__ = ["DRIVING"]

ROWS = [(b"a%02d" % number, b"x" * number) for number in range(20)]


async def _fill(stage: Stage) -> None:
    batch = Batch()
    for row in ROWS:
        batch.set(*row)
    await stage.driver.commit(batch)


async def _same(stage: Stage) -> None:
    assert list((await stage.rows()).items()) == ROWS


def _batch() -> Batch:
    batch = Batch()
    batch.check(b"a01", b"x")
    batch.clear_range(b"a", b"b")
    batch.append(b"c", b"1")
    batch.set(b"d", b"2")
    return batch


async def _once(stage: Stage) -> None:
    rows = await stage.rows()
    assert await stage.rows() == rows, "it is decided when it returns"
    if list(rows.items()) != ROWS:
        assert [value for _, value in sorted(rows.items())] == [b"1", b"2"], "all or nothing"
    else:
        assert stage.outcome.was_cancelled


async def _commit_several(stage: Stage) -> object:
    async with anyio.create_task_group() as group:
        for number in range(5):
            batch = Batch()
            batch.check(b"a%02d" % number, b"x" * number)
            batch.set(b"a%02d" % number, b"done")
            batch.append(b"b%d" % number, b"done")
            group.start_soon(stage.driver.commit, batch)
    return None


async def _each_once(stage: Stage) -> None:
    rows = await stage.rows()
    for number in range(5):
        done = rows[b"a%02d" % number] == b"done"
        assert sum(key.startswith(b"b%d" % number) for key in rows) == done


async def _transact(stage: Stage) -> object:
    driver = transacting(stage.driver)
    assert driver is not None, "these stores transact"

    def insert(transaction: Any) -> None:
        if isinstance(transaction, sqlite3.Connection):
            transaction.execute("CREATE TABLE IF NOT EXISTS mine (name TEXT)")
            transaction.execute("INSERT INTO mine VALUES ('one')")
        else:
            transaction[b"mine"] = b"one"

    await driver.transact(insert, lambda _: _batch())
    return None


async def _changes(stage: Stage) -> None:
    await anyio.sleep(0.02)
    batch = Batch()
    batch.set(b"a05", b"other")
    await stage.driver.commit(batch)


async def _open(stage: Stage) -> object:
    driver = await open_store(stage.store, stage.directory)
    try:
        return await driver.get(b"a05")
    finally:
        await driver.aclose()


async def _opened(stage: Stage) -> None:
    await _same(stage)
    # It can be opened as if nobody had begun to.
    driver = await open_store(stage.store, stage.directory)
    await driver.scan(b"a", b"b")
    await driver.aclose()


async def _nothing(stage: Stage) -> None:
    """Whatever it has read, there is nothing to look at."""


DRIVING = [
    Case("get", lambda stage: stage.driver.get(b"a05"), _same, _fill),
    Case("scan", lambda stage: stage.driver.scan(b"a", b"b", limit=15, reverse=True), _same, _fill),
    Case("commit", lambda stage: stage.driver.commit(_batch()), _once, _fill),
    Case("commits", _commit_several, _each_once, _fill),
    Case("transact", _transact, _once, _fill, stores=("sqlite", "fdb")),
    Case("changed", lambda stage: stage.driver.changed(b"a05", b"xxxxx"), _nothing, _fill, _changes),
    Case("open", _open, _opened, _fill),
]
