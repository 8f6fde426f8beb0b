"""One store, several processes, which go by the clock on the wall.

What happens when one of them is killed, or stopped for longer than its lease, is shown in `tests/laws/processes`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Rows, opened
from tests.runtime.worker import pongs, tells
from workflow_sdk import Client, EntryStatus, Handle, Runtime

pytestmark = [pytest.mark.law(10), pytest.mark.every_host]

ROOT = Path(__file__).parents[2]
TTL = 5
"""Seconds; long enough that nobody who is slow is taken for dead."""

STEPS = 5


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


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    found = Workers(tmp_path)
    yield found
    for process in found.processes:
        process.kill()
        process.wait(timeout=PATIENCE)


async def test_a_worker_and_a_client(workers: Workers) -> None:
    worker = workers.start()
    async with Client(workers.url) as client:
        handle = await client.start(tells, (str(workers.log), STEPS), id="i")
        assert await handle.result(timeout=PATIENCE) == [str(number) for number in range(STEPS)]
        assert workers.told() == [*range(STEPS)], "each ran once"
        assert [entry.status for entry in await handle.history()] == [EntryStatus.COMPLETED] * STEPS
        worker.send_signal(signal.SIGTERM)
        with anyio.fail_after(PATIENCE):
            assert await anyio.to_thread.run_sync(worker.wait) == 0
    async with opened(workers.url) as driver:
        assert (await Rows.of(driver)).workers == []


async def test_hundreds_of_ping_pongs(workers: Workers) -> None:
    """Between this process, which sends, and two that answer; ten at a time."""
    each, pairs = 40, 15
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
    """All of them evict everything at once, so that every message is a claim."""
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
