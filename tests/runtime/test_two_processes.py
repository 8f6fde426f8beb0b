"""One store, several processes: some are killed, some only sleep too long."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.laws.processes.parts import pause
from tests.patience import PATIENCE
from tests.runtime.parts import Rows, opened
from tests.runtime.polling import until
from tests.runtime.worker import pongs, tells
from workflow_sdk import Client, EntryStatus, Handle, Runtime, Status

pytestmark = pytest.mark.law(10)

ROOT = Path(__file__).parents[2]
TTL = 5
STEPS = 25


class Workers:
    """Processes on one store."""

    def __init__(self, directory: Path) -> None:
        self.database = directory / "app.db"
        self.url = f"sqlite:///{self.database}?synchronous=normal"
        self.log = directory / "log"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """One more."""
        command = [sys.executable, "-m", "tests.runtime.worker", self.url, str(TTL)]
        self.processes.append(subprocess.Popen(command, cwd=ROOT))
        return self.processes[-1]

    def told(self) -> list[int]:
        """The steps that ran so far."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    async def until_told(self, count: int) -> None:
        """Return once so many steps have run."""

        async def reached() -> bool:
            return len(self.told()) >= count

        await until(reached)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    found = Workers(tmp_path)
    yield found
    for process in found.processes:
        process.kill()
        process.wait(timeout=PATIENCE)


async def expect_all(handle: Handle[Any], workers: Workers, again: int) -> None:
    """It ends as it should, and hardly any step ran twice."""
    assert await handle.result(timeout=PATIENCE) == [str(number) for number in range(STEPS)]
    counts = Counter(workers.told())
    assert sorted(counts) == list(range(STEPS))
    assert sum(counts.values()) <= STEPS + again
    history = await handle.history()
    assert {entry.status for entry in history} == {EntryStatus.COMPLETED}
    assert len(history) == 2 * STEPS


async def test_a_worker_and_a_client(workers: Workers) -> None:
    worker = workers.start()
    async with Client(workers.url) as client:
        handle = await client.start(tells, (str(workers.log), STEPS), id="i")
        await expect_all(handle, workers, 0)
        worker.send_signal(signal.SIGTERM)
        with anyio.fail_after(PATIENCE):
            assert await anyio.to_thread.run_sync(worker.wait) == 0
    async with opened(workers.url) as driver:
        assert (await Rows.of(driver)).workers == []


async def test_a_worker_is_killed(workers: Workers) -> None:
    async with Client(workers.url) as client:
        handle = await client.start(tells, (str(workers.log), STEPS), id="i")
        first = workers.start()
        await workers.until_told(5)
        workers.start()
        await workers.until_told(10)
        first.kill()
        await expect_all(handle, workers, 1)


async def test_a_worker_sleeps_past_its_lease(workers: Workers) -> None:
    async with Client(workers.url) as client:
        handle = await client.start(tells, (str(workers.log), STEPS), id="i")
        first = workers.start()
        await workers.until_told(5)
        await pause(workers.database, first)
        stopped_at = len(workers.told())
        workers.start()
        await workers.until_told(min(stopped_at + 3, STEPS))
        first.send_signal(signal.SIGCONT)
        await expect_all(handle, workers, 2)
        assert (await handle.info()).status is Status.COMPLETED
        # It goes on with other things.
        for process in workers.processes[1:]:
            process.send_signal(signal.SIGTERM)
            assert await anyio.to_thread.run_sync(process.wait) == 0
        other = await client.start(pongs, 1)
        assert await other.ask("ping", "x", timeout=PATIENCE) == ["x", 0]


async def test_thousands_of_ping_pongs(workers: Workers) -> None:
    """Between this process, which sends, and two that answer; ten at a time."""
    each, pairs = 100, 30
    workers.start()
    workers.start()
    async with Client(workers.url) as client:
        handles = [await client.start(pongs, each) for _ in range(pairs)]

        async def talk(handle: Handle[int]) -> None:
            for number in range(each):
                assert await handle.ask("ping", number, timeout=PATIENCE) == [number, number]

        with anyio.fail_after(5 * PATIENCE):
            async with anyio.create_task_group() as group:
                for handle in handles:
                    group.start_soon(talk, handle)
            assert [await handle.result() for handle in handles] == [each] * pairs


async def test_two_runtimes_here_and_one_there(workers: Workers) -> None:
    """All of them put everything away at once, so that every message is a claim."""
    workers.start()
    async with (
        Runtime(workers.url, workflows=[pongs], max_resident=0) as one,
        Runtime(workers.url, workflows=[pongs], max_resident=0),
    ):
        handles = [await one.start(pongs, 10) for _ in range(5)]
        for number in range(10):
            for handle in handles:
                assert await handle.ask("ping", number, timeout=PATIENCE) == [number, number]
        assert [await handle.result(timeout=PATIENCE) for handle in handles] == [10] * 5
