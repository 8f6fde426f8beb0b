"""Files of a store that are deleted or replaced: what is there is older and whole, or an error says what is missing."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import pytest

from tests.laws.processes.parts import Workers, is_whole
from tests.laws.processes.worker import stores
from tests.ledger import read
from tests.patience import PATIENCE
from tests.runtime.parts import opened
from workflow_sdk import AlreadyExistsError, Client, Handle, InstanceNotFoundError, StorageError

pytestmark = pytest.mark.law(3)

STEPS = 60
HELD = 50
"""The step before which a worker waits: however slow the test is, it finds the worker in the middle of its work."""
ADDED = [("-wal",), ("-shm",), ("-wal", "-shm")]
GONE = "was deleted or replaced while it was open"


def delete(workers: Workers, names: Sequence[str]) -> None:
    """Delete some of the files of the store."""
    for name in names:
        workers.database.with_name(f"app.db{name}").unlink()


def copy_log(workers: Workers) -> None:
    """Have all that is committed by now in the database itself."""
    with closing(sqlite3.connect(workers.database, timeout=PATIENCE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def expect_end(workers: Workers, handle: Handle[list[int]]) -> None:
    """It ends as if nothing had been."""
    assert await handle.result(timeout=PATIENCE) == [*range(1, STEPS + 1)]
    assert set(workers.lines()) == set(map(str, range(STEPS)))
    async with opened(workers.url) as driver:
        assert await read(driver, "stored") == STEPS
    assert is_whole(workers.database)


@pytest.mark.parametrize("names", ADDED, ids="".join)
async def test_deleted_while_nobody_has_it_open(workers: Workers, names: Sequence[str]) -> None:
    async with Client(workers.url) as client:
        await client.start(stores, (workers.log, STEPS, 10), id="i")
    copied = 20
    workers.hold(copied)
    worker = workers.start()
    await workers.lines.reach(copied)
    copy_log(workers)
    workers.hold(HELD)
    await workers.lines.reach(copied + 10)
    workers.kill(worker)
    workers.let_go()
    lost = "-wal" in names
    delete(workers, names)
    assert is_whole(workers.database)
    async with workers.finishing() as runtime:
        await expect_end(workers, runtime.handle(stores, "i"))
    counts = Counter(workers.lines())
    again = [int(step) for step, count in counts.items() if count > 1]
    assert max(counts.values()) <= 2
    if lost:
        assert min(again) >= copied - 1, "what is not in the log only is not lost with it"
    else:
        assert len(again) <= 1, "the log has everything"


@pytest.mark.parametrize("names", ADDED, ids="".join)
async def test_deleted_while_a_worker_has_it_open(workers: Workers, names: Sequence[str]) -> None:
    async with Client(workers.url) as client:
        await client.start(stores, (workers.log, STEPS, 10), id="i")
    workers.hold(HELD)
    worker = workers.start()
    await workers.lines.reach(10)
    delete(workers, names)
    workers.let_go()
    await workers.until_said(worker, f"StorageError: can't write '{workers.database}': ")
    assert f"'{workers.database}{names[0]}' {GONE}" in workers.said(worker)
    # It had everything open: closing is what saves it.
    assert await workers.terminate(worker) == 0
    assert is_whole(workers.database)
    async with workers.finishing() as runtime:
        await expect_end(workers, runtime.handle(stores, "i"))
    assert len(workers.lines) <= STEPS + 1, "nothing is lost but what was under way"


@pytest.mark.parametrize("names", ADDED[1:], ids="".join)
async def test_deleted_while_a_worker_has_it_open_and_others_come(workers: Workers, names: Sequence[str]) -> None:
    async with Client(workers.url) as client:
        await client.start(stores, (workers.log, STEPS, 10), id="i")
    copy_log(workers)
    workers.hold(HELD)
    first = workers.start()
    await workers.lines.reach(10)
    delete(workers, names)
    workers.let_go()
    await workers.until_said(first, f"'{workers.database}{names[0]}' {GONE}")
    second = workers.start()
    async with Client(workers.url) as client:
        handle = client.handle(stores, "i")
        assert await handle.result(timeout=PATIENCE) == [*range(1, STEPS + 1)]
    assert await workers.terminate(second) == 0
    # The first is the last to close: what it still has is not put over what is newer.
    assert await workers.terminate(first) == 0
    async with Client(workers.url) as client:
        await expect_end(workers, client.handle(stores, "i"))


async def test_a_log_deleted_with_its_index_left_is_refused_by_those_who_come(workers: Workers) -> None:
    async with Client(workers.url) as client:
        await client.start(stores, (workers.log, STEPS, 10), id="i")
    workers.hold(HELD)
    worker = workers.start()
    await workers.lines.reach(10)
    delete(workers, ["-wal"])
    workers.let_go()
    await workers.until_said(worker, GONE)
    with pytest.raises(StorageError, match=f"can't open '{workers.database}': "):
        await Client(workers.url).__aenter__()
    assert await workers.terminate(worker) == 0
    async with workers.finishing() as runtime:
        await expect_end(workers, runtime.handle(stores, "i"))


@pytest.mark.parametrize("names", [("",), ("", "-wal", "-shm")], ids=["database", "all"])
async def test_the_database_is_deleted_under_a_worker(workers: Workers, names: Sequence[str]) -> None:
    async with Client(workers.url) as client:
        handle = await client.start(stores, (workers.log, STEPS, 10), id="i")
        workers.hold(HELD)
        worker = workers.start()
        await workers.lines.reach(10)
        delete(workers, names)
        workers.let_go()
        await workers.until_said(worker, f"'{workers.database}' {GONE}")
        for call in (handle.info, partial(handle.send, "m"), partial(handle.result, timeout=PATIENCE)):
            with pytest.raises(StorageError, match=GONE):
                await call()
        assert await workers.terminate(worker) == 0
    for name in ("-wal", "-shm"):
        workers.database.with_name(f"app.db{name}").unlink(missing_ok=True)
    async with workers.finishing() as runtime:
        with pytest.raises(InstanceNotFoundError):
            await runtime.handle(stores, "i").info()
        workers.lines.path.unlink()
        await expect_end(workers, await runtime.start(stores, (workers.log, STEPS, 10), id="i"))


async def test_the_database_is_replaced_under_a_worker(workers: Workers) -> None:
    """By a copy that was made before, as one restores a backup."""
    backup = workers.directory / "backup.db"
    async with Client(workers.url) as client:
        await client.start(stores, (workers.log, STEPS, 10), id="i")
    backup.write_bytes(workers.database.read_bytes())
    workers.hold(HELD)
    worker = workers.start()
    await workers.lines.reach(10)
    os.replace(backup, workers.database)
    workers.let_go()
    await workers.until_said(worker, f"'{workers.database}' {GONE}")
    assert await workers.terminate(worker) == 0
    for name in ("-wal", "-shm"):
        workers.database.with_name(f"app.db{name}").unlink(missing_ok=True)
    assert is_whole(workers.database)
    async with workers.finishing() as runtime:
        with pytest.raises(AlreadyExistsError):
            await runtime.start(stores, (workers.log, STEPS, 11), id="i")
        await expect_end(workers, runtime.handle(stores, "i"))
