"""One database for several event loops and threads; and processes that end."""

# pyright: reportPrivateUsage=false
# Some promises can only be seen from inside.

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.drivers.fdb_double import Double, Future, Network, failures, network
from tests.drivers.fdb_waiting import all_is_done
from tests.drivers.until import some_turns, until
from tests.environment import clean_environment
from tests.fdb_store import connected
from tests.patience import PATIENCE
from workflow_drivers.foundationdb import FoundationDBDriver
from workflow_drivers.foundationdb._session import Waker, ready, settled
from workflow_sdk.driver import Batch
from workflow_sdk.errors import ConflictError

ROOT = Path(__file__).parents[2]


async def add(driver: FoundationDBDriver, times: int) -> None:
    """Count up, against others who do."""
    for _ in range(times):
        while True:
            seen = await driver.get(b"count")
            batch = Batch()
            batch.check(b"count", seen)
            batch.set(b"count", b"%d" % (int(seen or b"0") + 1))
            batch.append(b"log", b"x")
            with suppress(ConflictError):
                await driver.commit(batch)
                break


@pytest.mark.parametrize("backends", [("asyncio", "asyncio", "asyncio"), ("asyncio", "trio", "trio")])
async def test_one_driver_in_several_threads(backends: tuple[str, ...]) -> None:
    double = Double()
    driver = await connected(double)

    async def rounds() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(add, driver, 5)
            tasks.start_soon(driver.changed, b"done", None)
            await all_is_done()
            batch = Batch()
            batch.set(b"done", b"v")
            await driver.commit(batch)

    async def elsewhere(backend: str) -> None:
        await anyio.to_thread.run_sync(lambda: anyio.run(rounds, backend=backend))

    async with anyio.create_task_group() as tasks:
        for backend in backends:
            tasks.start_soon(elsewhere, backend)
        await rounds()
    assert await driver.get(b"count") == b"%d" % (15 * 4)
    assert len(await driver.scan(b"log", b"loh")) == 15 * 4
    await driver.aclose()
    assert failures == []


async def test_no_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many operations are under way, the only thread is the network's."""
    double = Double()
    driver = await connected(double)
    double.cluster.hang()
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(driver.get, b"%d" % number)
        await all_is_done()
        others = [
            thread for thread in threading.enumerate() if thread.name.startswith(("Any", "ThreadPool", "asyncio"))
        ]
        assert others == []
        assert sum(thread is network.thread for thread in threading.enumerate()) == 1
        double.cluster.answer()
    await driver.aclose()


def test_a_loop_that_is_gone_does_not_disturb_the_network_thread() -> None:
    double = Double()

    async def leave() -> None:
        driver = await connected(double)
        double.cluster.hang()
        asyncio.ensure_future(driver.get(b"k"))  # noqa: RUF006  # nobody waits for it
        asyncio.ensure_future(driver.changed(b"k", None))  # noqa: RUF006
        await all_is_done()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # as when a program ends in the middle
    loop.close()
    double.cluster.answer()
    anyio.run(all_is_done)
    assert failures == []


async def test_a_future_is_cancelled_with_the_wait() -> None:
    future = Future()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ready, future)
        await some_turns()
        tasks.cancel_scope.cancel()
    await until(future.is_ready)  # it is the network thread that cancels it
    with pytest.raises(Exception, match="1101"):
        future.wait()


async def test_a_future_that_is_ready_is_not_waited_for() -> None:
    future = Future()
    future.set(1)
    await ready(future)
    assert await settled(future, anyio.current_time()) is None


async def test_a_future_that_becomes_ready_in_between() -> None:
    """The callback comes at once and in this thread, which the documentation allows."""

    class Late(Future):
        asked = 0

        def is_ready(self) -> bool:
            self.asked += 1
            if self.asked == 1:
                return False
            self.set()
            return super().is_ready()

    late = Late()
    late._ready = False
    network.post(late.set)
    with anyio.fail_after(PATIENCE):
        await ready(late)


async def test_a_waker_can_be_woken_often() -> None:
    waker = Waker()
    for _ in range(3):
        waker.wake()
    with anyio.fail_after(PATIENCE):
        await waker.wait()


def test_the_network_thread_is_started_once() -> None:
    fresh = Network()
    events = [threading.Event() for _ in range(3)]
    for event in events:
        fresh.post(event.set)
    assert all(event.wait(PATIENCE) for event in events)
    assert fresh.thread is not None
    assert fresh.thread.daemon


PROGRAM = """
import asyncio
from tests.drivers.fdb_double import Double
from tests.drivers.fdb_waiting import all_is_done
from tests.fdb_store import connected

async def main():
    driver = await connected(Double())
    waiting = asyncio.ensure_future(driver.changed(b"k", None))
    await all_is_done()
    print("ready", flush=True)

asyncio.run(main())
"""


def test_a_process_ends_though_somebody_waits() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
        env=clean_environment(),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
