"""A store that can't be written: one line says which, and why."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.laws.processes.parts import Workers, is_whole
from tests.laws.processes.worker import stores
from tests.patience import PATIENCE
from workflow_drivers import sqlite
from workflow_sdk import Client, StorageError

pytestmark = pytest.mark.law(3)

STEPS = 40
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def reachable(workers: Workers) -> Iterator[Path]:
    """A directory for the store that every user can get to."""
    directory = Path(tempfile.mkdtemp())
    workers.database = directory / "app.db"
    yield directory
    workers.kill_all()
    shutil.rmtree(directory)


async def expect_one_line(workers: Workers, *arguments: object) -> str:
    """A worker ends at once, and says why in a line."""
    worker = workers.start(*arguments)
    assert await workers.ended(worker) == 1
    # Where coverage is measured, it has no place for its data there, and says so at the end.
    said = workers.said(worker).partition("Exception ignored in atexit")[0]
    assert said.startswith("StorageError: can't ")
    assert f"'{workers.database}'" in said
    assert said.count("\n") == 1
    return said


async def fill(workers: Workers) -> dict[str, bytes]:
    """Make a store with something in it; the bytes of its files."""
    async with Client(workers.url) as client:
        await client.start(stores, (workers.log, 3, 10), id="i")
    return contents(workers)


def contents(workers: Workers) -> dict[str, bytes]:
    """The bytes of the files of the store."""
    return {path.name: path.read_bytes() for path in workers.database.parent.iterdir()}


@as_root
async def test_a_directory_that_may_not_be_written(workers: Workers, reachable: Path) -> None:
    os.chmod(reachable, 0o555)
    assert "unable to open database file" in await expect_one_line(workers, 0, NOBODY)
    assert not os.listdir(reachable)
    before = await fill(workers)
    workers.database.chmod(0o666)
    await expect_one_line(workers, 0, NOBODY)
    assert contents(workers) == before


@as_root
async def test_a_directory_that_may_not_be_entered(workers: Workers, reachable: Path) -> None:
    before = await fill(workers)
    os.chmod(reachable, 0o600)
    await expect_one_line(workers, 0, NOBODY)
    workers.options = "mode=rw"
    assert "Permission denied" in await expect_one_line(workers, 0, NOBODY)
    assert contents(workers) == before


@as_root
@pytest.mark.parametrize("mode", [0o000, 0o444])
async def test_a_file_that_may_not_be_written(workers: Workers, reachable: Path, mode: int) -> None:
    before = await fill(workers)
    os.chmod(reachable, 0o777)
    workers.database.chmod(mode)
    await expect_one_line(workers, 0, NOBODY)
    assert contents(workers)["app.db"] == before["app.db"]
    workers.database.chmod(0o600)
    async with Client(workers.url) as client:
        worker = workers.start()
        assert await client.handle(stores, "i").result(timeout=PATIENCE) == [1, 2, 3]
        assert await workers.terminate(worker) == 0


Seal = Callable[[bool, Path], None]


def set_sealed(sealed: bool, path: Path) -> None:
    """Whether not even root can change the file."""
    subprocess.run(["chattr", "+i" if sealed else "-i", str(path)], check=True, capture_output=True)


@pytest.fixture
def seal(tmp_path: Path) -> Iterator[Seal]:
    """A way to make files immutable. They are not any more when the test is over."""
    probe = tmp_path / "probe"
    probe.touch()
    try:
        set_sealed(True, probe)
        set_sealed(False, probe)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"files can't be made immutable: {error}")
    yield set_sealed
    for path in (tmp_path, *tmp_path.iterdir()):
        set_sealed(False, path)


async def test_files_that_become_read_only(workers: Workers, seal: Seal) -> None:
    paths = [workers.database.with_name(f"app.db{name}") for name in ("", "-wal")]
    async with Client(workers.url) as client:
        handle = await client.start(stores, (workers.log, STEPS, 10), id="i")
        workers.hold(STEPS // 2)
        worker = workers.start()
        await workers.lines.reach(5)
        for path in paths:
            seal(True, path)
        workers.let_go()
        await workers.until_said(worker, f"StorageError: can't write '{workers.database}': ")
        with pytest.raises(StorageError, match=f"^can't write '{workers.database}': .*$"):
            await handle.send("m")
        assert len(await handle.history()) < 2 * STEPS, "others can read"
        for path in paths:
            seal(False, path)
        assert await handle.result(timeout=PATIENCE) == [*range(1, STEPS + 1)]
        assert await workers.terminate(worker) == 0
    assert len(workers.lines) <= len(set(workers.lines())) + 1
    assert is_whole(workers.database)


async def test_a_file_that_is_immutable_from_the_start(workers: Workers, seal: Seal) -> None:
    before = await fill(workers)
    seal(True, workers.database)
    await expect_one_line(workers)
    seal(False, workers.database)
    assert contents(workers)["app.db"] == before["app.db"]


async def test_a_directory_that_is_immutable_from_the_start(workers: Workers, tmp_path: Path, seal: Seal) -> None:
    workers.database = tmp_path / "inner" / "app.db"
    workers.database.parent.mkdir()
    await fill(workers)
    seal(True, workers.database.parent)
    try:
        await expect_one_line(workers)
        with pytest.raises(StorageError, match=f"can't open '{workers.database}': "):
            await sqlite.open(workers.url)
    finally:
        seal(False, workers.database.parent)
    async with Client(workers.url) as client:
        worker = workers.start()
        assert await client.handle(stores, "i").result(timeout=PATIENCE) == [1, 2, 3]
        assert await workers.terminate(worker) == 0
