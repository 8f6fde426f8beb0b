"""What a runtime has in memory, and how it gives everything back."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.patience import PATIENCE
from tests.runtime.parts import Log, Rows, Stop, doubles, naps, opened, until_status
from tests.runtime.polling import settle, until
from tests.runtime.shifted import ByHand
from workflow_sdk import Client, Context, Driver, Handle, Runtime, Status, Workflow, workflow

pytestmark = pytest.mark.every_host


ROOT = Path(__file__).parents[2]

log = Log()
stop = [Stop()]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    stop[0] = Stop()


@workflow
async def listens(ctx: Context) -> Any:
    """Notes each time its code is run, and waits for two messages."""
    log.append(ctx.instance_id)
    return [await ctx.listen("m"), await ctx.listen("n", "m")]


@workflow
async def works(ctx: Context) -> str:
    """A step that takes as long as it is told to; and another."""

    async def work() -> str:
        log.append("begins")
        await stop[0].here()
        return "worked"

    await ctx.step("work", work)
    return str(await ctx.step("then", log.note, "then"))


FLOWS: list[Workflow[Any, Any]] = [listens, works, naps, doubles]


async def residents(runtime: Runtime, count: int) -> None:
    """Return once it has so many in memory."""

    async def reached() -> bool:
        return runtime.resident == count

    await until(reached)


async def test_the_longest_idle_goes_first(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS, max_resident=3) as runtime:
        handles: list[Handle[Any]] = []
        for number in range(3):
            handles.append(await runtime.start(listens, id=str(number)))
            await until_status(handles[-1], Status.WAITING)
        await handles[0].send("m", "a sign of life")

        async def moved_on() -> bool:
            return [wait.name for wait in (await handles[0].info()).waits] == ["n"]

        await until(moved_on)
        late = await runtime.start(listens, id="late")
        await until_status(late, Status.WAITING)
        await residents(runtime, 3)
        leases = sorted(id for (id,) in (await Rows.of(driver)).leases)
        assert leases == ["0", "2", "late"], "1 has been idle for longest; and it alone goes"
        assert (await handles[1].info()).status is Status.WAITING, "nobody can tell from outside"
        for handle in (*handles, late):
            await handle.send("m", 1)
            await handle.send("m", 2)
        assert await handles[0].result(timeout=PATIENCE) == ["a sign of life", 1]
        assert [await handle.result(timeout=PATIENCE) for handle in (handles[1], late)] == [[1, 2]] * 2
    assert sorted(log) == ["0", "1", "1", "2", "late"], "waking a resident runs nothing again"


@pytest.mark.parametrize("max_resident", [0, 1, 5])
async def test_never_more_than_that(driver: Driver, max_resident: int) -> None:
    async with Runtime(driver, workflows=FLOWS, max_resident=max_resident, concurrency=4) as runtime:
        handles = [await runtime.start(listens, id=str(number)) for number in range(20)]
        for handle in handles:
            await until_status(handle, Status.WAITING)
        await residents(runtime, max_resident)
        assert len((await Rows.of(driver)).leases) == max_resident
        for handle in handles:
            await handle.send("m", handle.id)
            await handle.send("m", handle.id)
        assert [await handle.result(timeout=PATIENCE) for handle in handles] == [[str(n), str(n)] for n in range(20)]


async def test_no_more_run_at_once_than_that(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS, concurrency=2) as runtime:
        handles = [await runtime.start(works, id=str(number)) for number in range(5)]
        await stop[0].reached.wait()
        await settle(driver)
        assert log == ["begins"] * 2
        stop[0].go_on.set()
        assert [await handle.result(timeout=PATIENCE) for handle in handles] == ["then"] * 5


async def test_sleepers_do_not_count_as_running(driver: Driver) -> None:
    clock = ByHand()
    async with Runtime(driver, workflows=FLOWS, concurrency=2, clock=clock) as runtime:
        handles = [await runtime.start(naps, 60) for _ in range(20)]
        for handle in handles:
            await until_status(handle, Status.SLEEPING)
        clock.offset = 61
        assert [await handle.result(timeout=PATIENCE) for handle in handles] == ["awake"] * 20


async def test_shutting_down_puts_everything_away(driver: Driver) -> None:
    with anyio.fail_after(PATIENCE):
        async with Runtime(driver, workflows=FLOWS, grace=3600) as runtime:
            waiting = [await runtime.start(listens, id=str(number)) for number in range(5)]
            sleeping = await runtime.start(naps, 600, id="nap")
            for handle in (*waiting, sleeping):
                await until_status(handle, Status.WAITING, Status.SLEEPING)
    rows = await Rows.of(driver)
    assert (rows.leases, rows.workers, [id for _, id in rows.alarms]) == ([], [], ["nap"])
    async with Client(driver) as client:
        infos = (await client.list()).items
        assert [info.status for info in infos] == [*([Status.WAITING] * 5), Status.SLEEPING]


async def test_a_running_step_may_end(driver: Driver) -> None:
    async with Client(driver) as client:
        async with Runtime(driver, workflows=FLOWS, grace=PATIENCE) as runtime, anyio.create_task_group() as group:
            handle = await runtime.start(works, id="i")
            await stop[0].reached.wait()

            async def later() -> None:
                await settle(driver)
                stop[0].go_on.set()

            group.start_soon(later)
            group.cancel_scope.shield = True
        handle = client.handle(works, "i")
        assert (await handle.history())["work"].value == "worked"
        async with Runtime(driver, workflows=FLOWS):
            assert await handle.result(timeout=PATIENCE) == "then"
    assert log == ["begins", "then"], "nothing is lost or run twice"


async def test_a_step_that_takes_too_long_runs_again(driver: Driver) -> None:
    async with Client(driver) as client:
        with anyio.fail_after(PATIENCE):
            async with Runtime(driver, workflows=FLOWS, grace=0.01) as runtime:
                await runtime.start(works, id="i")
                await stop[0].reached.wait()
        rows = await Rows.of(driver)
        assert (rows.leases, rows.workers, [id for _, id in rows.alarms]) == ([], [], ["i"])
        stop[0].go_on.set()
        async with Runtime(driver, workflows=FLOWS):
            assert await client.handle(works, "i").result(timeout=PATIENCE) == "then"
            assert (await client.handle(works, "i").info()).attempts == {}
    assert log == ["begins", "begins", "then"]


async def test_shutting_down_in_the_middle_of_starts(driver: Driver) -> None:
    """Whatever is being claimed at that moment is given back, too."""
    async with Client(driver) as client:
        handles = [await client.start(doubles, number) for number in range(60)]
        for number in range(12):
            with anyio.fail_after(PATIENCE):  # it does not wait for the grace period to be over
                async with Runtime(driver, workflows=FLOWS, concurrency=4, grace=3600):
                    for _ in range(4 * number):
                        await checkpoint()
            rows = await Rows.of(driver)
            assert (rows.leases, rows.workers) == ([], [])
        async with Runtime(driver, workflows=FLOWS):
            assert [await handle.result(timeout=PATIENCE) for handle in handles] == [2 * number for number in range(60)]


async def test_a_runtime_that_is_cancelled(driver: Driver) -> None:
    """It gives everything back all the same, only without grace."""
    with anyio.CancelScope() as scope:
        async with Runtime(driver, workflows=FLOWS) as runtime:
            await runtime.start(works, id="i")
            await stop[0].reached.wait()
            scope.cancel()
            await anyio.sleep_forever()
    rows = await Rows.of(driver)
    assert (rows.leases, rows.workers, [id for _, id in rows.alarms]) == ([], [], ["i"])


def start_worker(url: str) -> subprocess.Popen[bytes]:
    """A process with a runtime that serves."""
    return subprocess.Popen([sys.executable, "-m", "tests.runtime.worker", url, "0.5"], cwd=ROOT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_ends_with_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    process = start_worker(url)
    try:
        async with opened(url) as driver, Client(driver) as client:
            napping, slow = await client.start("naps", 600, id="nap"), await client.start("slow", 0.3, id="slow")
            await until_status(napping, Status.SLEEPING)
            await until_status(slow, Status.RUNNING)
            process.send_signal(number)
            assert process.wait(timeout=PATIENCE) == 0
            assert (await slow.info()).status in (Status.COMPLETED, Status.RUNNING)
            rows = await Rows.of(driver)
            assert (rows.leases, rows.workers) == ([], [])
            assert (await slow.history())["work"].value == 0.3, "the running step has ended"
    finally:
        process.kill()
        process.wait(timeout=PATIENCE)
