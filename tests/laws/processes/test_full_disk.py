"""No more space: the error says so, nothing is half-written, and with space again everything goes on."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.laws.processes.parts import Workers, is_whole
from tests.laws.processes.worker import stores
from tests.ledger import read
from tests.patience import PATIENCE
from tests.runtime.parts import opened
from workflow_drivers import sqlite
from workflow_sdk import Batch, Client, Driver, EntryStatus, Handle, Status, StorageError

pytestmark = pytest.mark.law(3)

STEPS = 40
VALUE_BYTES = 20_000


async def expect_whole(workers: Workers, handle: Handle[list[int]], ended: bool = False) -> None:
    """Of every step, all that it has written is there, or nothing."""
    history = await handle.history()
    finished = [entry for entry in history if entry.status is EntryStatus.COMPLETED]
    for entry in finished:
        if entry.kind == "step":
            assert entry.value == bytes([int(entry.name.split()[1])]) * VALUE_BYTES
    if not ended:
        assert 0 < len(finished) < 2 * STEPS
    async with opened(workers.url) as driver:
        assert await read(driver, "stored") == sum(entry.kind == "transact" for entry in finished)
    assert is_whole(workers.database)


async def expect_end(workers: Workers, handle: Handle[list[int]]) -> None:
    """It ends as it should, and only what could not be recorded ran again."""
    assert await handle.result(timeout=PATIENCE) == [*range(1, STEPS + 1)]
    counts = Counter(workers.lines())
    assert set(counts) == set(map(str, range(STEPS)))
    assert sum(count > 1 for count in counts.values()) <= 1
    await expect_whole(workers, handle, ended=True)


async def test_a_file_that_may_not_grow(workers: Workers) -> None:
    async with Client(workers.url) as client:
        handle = await client.start(stores, (workers.log, STEPS, VALUE_BYTES), id="i")
        worker = workers.start(STEPS * VALUE_BYTES // 2)
        await workers.until_said(worker, f"StorageError: can't write '{workers.database}': ")
        await expect_whole(workers, handle)
        assert (await handle.info()).status is Status.RUNNING
        assert worker.poll() is None, "it waits for better times"
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await expect_end(workers, handle)
        assert await workers.terminate(worker) == 0


async def test_killed_with_no_space(workers: Workers) -> None:
    async with Client(workers.url) as client:
        handle = await client.start(stores, (workers.log, STEPS, VALUE_BYTES), id="i")
        worker = workers.start(STEPS * VALUE_BYTES // 2)
        await workers.until_said(worker, "StorageError: can't write")
        workers.kill(worker)
        async with workers.finishing():
            await expect_end(workers, handle)


def mount(*arguments: str) -> None:
    """Skip if that is not allowed here."""
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small disk can't be mounted: {error}")


@pytest.fixture
def disk(tmp_path: Path, workers: Workers) -> Iterator[Path]:
    """A disk of 600 kB, on which the store of the workers is."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount("-t", "tmpfs", "-o", "size=600k", "tmpfs", str(directory))
    workers.database = directory / "app.db"
    yield directory
    workers.kill_all()
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


async def test_a_disk_that_becomes_full(workers: Workers, disk: Path) -> None:
    async with Client(workers.url) as client:
        handle = await client.start(stores, (workers.log, STEPS, VALUE_BYTES), id="i")
        worker = workers.start()
        message = f"can't write '{workers.database}': database or disk is full"
        await workers.until_said(worker, f"StorageError: {message}")
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free))
        with pytest.raises(StorageError, match=message):
            await handle.send("m", bytes(100_000))
        await expect_whole(workers, handle)
        mount("-o", "remount,size=16m", str(disk))
        await expect_end(workers, handle)
        assert await workers.terminate(worker) == 0


async def test_a_disk_that_is_full_from_the_start(workers: Workers, disk: Path) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(disk).free))
    worker = workers.start()
    assert await workers.ended(worker) == 1
    assert workers.said(worker).startswith(f"StorageError: can't open '{workers.database}': ")
    assert workers.said(worker).count("\n") == 1
    ballast.unlink()
    async with Client(workers.url) as client:
        worker = workers.start()
        assert await (await client.start(stores, (workers.log, 3, 10), id="i")).result(timeout=PATIENCE) == [1, 2, 3]
        assert await workers.terminate(worker) == 0


async def commit_until_full(driver: Driver) -> int:
    """Commit batches of many keys and one number; the number of the last one that could be."""
    for number in range(1000):
        batch = Batch()
        for key in range(20):
            batch.set(b"k%02d" % key, b"%03d" % number * 500)
        batch.append(b"q", b"%03d" % number)
        try:
            await driver.commit(batch)
        except StorageError as error:
            if "disk is full" not in str(error):
                raise
            return number - 1
    raise AssertionError("there is no end of the disk")


async def test_a_batch_that_does_not_fit_leaves_nothing(workers: Workers, disk: Path) -> None:
    driver = await sqlite.open(workers.url)
    try:
        fitting = await commit_until_full(driver)
        for _ in range(2):
            rows = await driver.scan(b"k", b"l")
            assert {value for _, value in rows} == {b"%03d" % fitting * 500}
            assert len(rows) == 20
            assert (await driver.scan(b"q", b"r", limit=1, reverse=True))[0][1] == b"%03d" % fitting
            await driver.aclose()
            mount("-o", "remount,size=16m", str(disk))
            driver = await sqlite.open(workers.url)
        batch = Batch()
        batch.set(b"after", b"")
        await driver.commit(batch)
    finally:
        await driver.aclose()
    assert is_whole(workers.database)
