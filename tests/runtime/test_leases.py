"""Two runtimes on one store: one dies, or looks away for too long, and the other goes on."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.counting import Counting
from tests.runtime.mortal import TTL, Mortal
from tests.runtime.parts import Log, Rows, Stop, doubles, naps, until_status
from tests.runtime.polling import until
from tests.runtime.shifted import ByHand
from workflow_sdk import (
    Client,
    Context,
    DefinitionError,
    Driver,
    EntryStatus,
    Handle,
    Runtime,
    Status,
    Workflow,
    run_workflow,
    workflow,
)
from workflow_sdk.changes.workers import Heartbeat
from workflow_sdk.instance.clock import Clock
from workflow_sdk.rows.keys import WorkerKeys
from workflow_sdk.testing import FaultyDriver, VirtualClock

pytestmark = [pytest.mark.law(10), pytest.mark.every_host]

log = Log()
stop = [Stop()]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    stop[0] = Stop()


@workflow
async def works(ctx: Context) -> list[str]:
    """Three steps; the second stops until it is told to go on."""

    async def middle() -> str:
        log.append("b")
        await stop[0].here()
        return "b"

    first = await ctx.step("a", log.note, "a")
    return [first, await ctx.step("b", middle), await ctx.step("c", log.note, "c")]


@workflow
async def listens(ctx: Context) -> Any:
    """Waits for a message."""
    return await ctx.listen("m")


FLOWS: list[Workflow[Any, Any]] = [works, listens, naps, doubles]


async def first_owner(
    driver: Driver, group: anyio.abc.TaskGroup, flow: Any, *args: Any, clock: Clock | None = None
) -> tuple[Mortal, Handle[Any]]:
    """A runtime that is mortal and has the instance."""
    mortal = Mortal(driver, FLOWS, clock)
    group.start_soon(mortal.live)
    await mortal.is_open.wait()
    handle = await mortal.runtime.start(flow, *args, id="i")
    if flow is works:
        with anyio.fail_after(PATIENCE):
            await stop[0].reached.wait()
    else:
        await until_status(handle, Status.WAITING, Status.SLEEPING)
    return mortal, handle


def still_while_steps_hang() -> VirtualClock:
    """A clock that jumps to the next try, or to the end of a lease, but not while a step waits to be told to go on."""
    return VirtualClock(quiet=PATIENCE)


async def test_the_dead_are_inherited(driver: Driver) -> None:
    async with Client(driver) as client, anyio.create_task_group() as group:
        clock = still_while_steps_hang()
        mortal, _ = await first_owner(driver, group, works, clock=clock)
        mortal.die()
        stop[0] = Stop()
        stop[0].go_on.set()
        async with Runtime(driver, workflows=FLOWS, clock=clock):
            assert await client.handle(works, "i").result(timeout=PATIENCE) == ["a", "b", "c"]
    assert log == ["a", "b", "b", "c"], "what was recorded does not run again"
    rows = await Rows.of(driver)
    assert (rows.leases, rows.alarms, rows.workers) == ([], [], []), "the dead one is buried"


async def test_they_are_inherited_when_their_lease_is_over(driver: Driver) -> None:
    """No sooner, and no later."""
    clock = ByHand()
    async with Client(driver) as client, anyio.create_task_group() as group:
        mortal, _ = await first_owner(driver, group, works, clock=clock)
        mortal.die()
        stop[0] = Stop()
        stop[0].go_on.set()
        counting = Counting(driver)
        # It counts from when it has first seen the last heartbeat. It looks for what was left every third of its own
        # lease, of which the first is over before the other's lease is, and the second comes only after it is.
        async with Runtime(counting, workflows=FLOWS, lease_ttl=2 * TTL, clock=clock):
            await counting.until_quiet()
            scans = counting.scans
            for offset in (TTL / 3, TTL * 0.67, TTL - 0.01):
                clock.offset = offset
                await counting.until_quiet()
            assert counting.scans > scans, "it has looked for what was left"
            assert log == ["a", "b"]
            clock.offset = TTL + 0.01
            assert await client.handle(works, "i").result(timeout=PATIENCE) == ["a", "b", "c"]
    assert log == ["a", "b", "b", "c"]


@pytest.mark.parametrize("flow", [listens, naps])
async def test_a_waiting_instance_is_inherited(driver: Driver, flow: Any) -> None:
    clock = ByHand()
    async with Client(driver) as client, anyio.create_task_group() as group:
        mortal, _ = await first_owner(driver, group, flow, *([] if flow is listens else [600]), clock=clock)
        mortal.die()
        handle = client.handle(flow, "i")
        if flow is listens:
            await handle.send("m", "signal to a dead worker")
        async with Runtime(driver, workflows=FLOWS, lease_ttl=TTL, clock=clock):
            clock.offset = 601
            await clock.go_on(2 * TTL, TTL / 3, driver)
            assert await handle.result(timeout=PATIENCE) == ("awake" if flow is naps else "signal to a dead worker")


@pytest.mark.law(20)
async def test_the_living_keep_what_they_have(driver: Driver) -> None:
    clock = ByHand()
    async with Runtime(driver, workflows=FLOWS, lease_ttl=30, clock=clock) as one:
        handle = await one.start(works, id="i")
        await stop[0].reached.wait()
        async with Runtime(driver, workflows=FLOWS, lease_ttl=30, clock=clock):

            async def have_beaten() -> bool:
                beats = [raw for _, raw in await driver.scan(*WorkerKeys.heartbeats())]
                until_when = [beat.at + beat.ttl for beat in map(Heartbeat.unpack, beats)]
                return until_when == [clock.time() + 30] * 2 and clock.between_beats == 2

            await until(have_beaten)
            for _ in range(10):
                clock.offset += 11
                await until(have_beaten)
            assert log == ["a", "b"]
            stop[0].go_on.set()
            assert await handle.result(timeout=PATIENCE) == ["a", "b", "c"]
    assert log == ["a", "b", "c"]


async def test_what_a_shut_down_worker_had_is_taken_at_once(driver: Driver) -> None:
    """Also when it comes later than the first alarm that the other one knew of."""
    clock = ByHand()
    async with Runtime(driver, workflows=FLOWS, clock=clock) as two:
        async with Runtime(driver, workflows=FLOWS, clock=clock) as one:
            first = await one.start(naps, 5, id="i")
            second = await two.start(listens, id="j")
            await until_status(first, Status.SLEEPING)
            await until_status(second, Status.WAITING)
        await two.handle(listens, "j").send("m", 1)
        clock.offset = 6
        assert await two.handle(naps, "i").result(timeout=PATIENCE) == "awake"
        assert await two.handle(listens, "j").result(timeout=PATIENCE) == 1


async def test_who_has_lost_an_instance_lets_go(driver: Driver) -> None:
    """A run without a runtime takes it over; the runtime's own run writes nothing any more."""
    async with Runtime(driver, workflows=FLOWS, lease_ttl=TTL) as runtime:
        handle = await runtime.start(works, id="i")
        await stop[0].reached.wait()
        older, stop[0] = stop[0], Stop()
        stop[0].go_on.set()
        assert (await run_workflow(works, driver=driver, instance_id="i")).output == ["a", "b", "c"]
        before = {key: value for key, value in await driver.scan(b"", b"\xff") if b"\x15\x06\x02" not in key}
        older.go_on.set()

        async def gone() -> bool:
            return runtime.resident == 0

        await until(gone)
        after = {key: value for key, value in await driver.scan(b"", b"\xff") if b"\x15\x06\x02" not in key}
        assert after == before
        assert await handle.result() == ["a", "b", "c"]
    assert log == ["a", "b", "b", "c"]


async def test_a_zombie_does_not_stand_in_the_way(driver: Driver) -> None:
    """What was taken over while it waited here, and given back, can be run here again."""
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(listens, id="i")
        await until_status(handle, Status.WAITING)
        assert (await run_workflow(listens, driver=driver, instance_id="i")).status is Status.WAITING
        await handle.send("m", "after all")
        assert await handle.result(timeout=PATIENCE) == "after all"


async def test_an_alarm_that_a_stranger_sets_is_seen(driver: Driver) -> None:
    clock = ByHand()
    counting = Counting(driver)
    async with Runtime(counting, workflows=FLOWS, clock=clock) as runtime:
        await counting.until_quiet()
        assert (await run_workflow(naps, 5, driver=driver, instance_id="i", clock=clock)).status is Status.SLEEPING
        clock.offset = 6
        assert await runtime.handle(naps, "i").result(timeout=PATIENCE) == "awake"


class Flaky:
    """A driver that can't be reached for a while."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.is_down = False
        self.refused: int = 0
        """How often somebody wanted something while it was down."""

    def __getattr__(self, name: str) -> Any:
        if self.is_down and name in ("get", "scan", "commit", "changed"):
            self.refused += 1
            raise ConnectionError("the store is down")
        return getattr(self.driver, name)


async def test_a_store_that_is_away_for_a_while(driver: Driver) -> None:
    """Longer than a run can wait for it, to give its instance back; shorter than others would wait."""
    flaky: Any = Flaky(driver)
    async with Runtime(flaky, workflows=FLOWS, clock=still_while_steps_hang()) as runtime:
        handle = await runtime.start(works, id="i")
        await stop[0].reached.wait()
        older, stop[0] = stop[0], Stop()
        stop[0].go_on.set()
        flaky.is_down = True
        older.go_on.set()

        async def is_given_up() -> bool:
            return runtime.resident == 0 and flaky.refused > 20

        await until(is_given_up)
        flaky.is_down = False
        assert await handle.result(timeout=PATIENCE) == ["a", "b", "c"]
        assert await runtime.run(doubles, 2) == 4
    assert log == ["a", "b", "b", "c"]


@pytest.mark.parametrize("number", range(1, 12))
async def test_one_commit_that_fails(driver: Driver, number: int) -> None:
    stop[0].go_on.set()
    async with Client(driver) as client:
        handle = await client.start(works, id="i")
        faulty = FaultyDriver(driver, fail_at=[number + 1])
        async with Runtime(faulty, workflows=FLOWS, clock=still_while_steps_hang()):
            assert await handle.result(timeout=PATIENCE) == ["a", "b", "c"]
        history = await handle.history()
        assert [entry.status for entry in history] == [EntryStatus.COMPLETED] * 3
    assert [log.count(what) <= 2 for what in "abc"] == [True] * 3
    rows = await Rows.of(driver)
    assert (rows.leases, rows.alarms) == ([], [])


@pytest.mark.parametrize("seconds", [0, 0.29, -1, float("nan")])
async def test_a_lease_that_is_too_short_is_refused(driver: Driver, seconds: float) -> None:
    with pytest.raises(DefinitionError, match="lease_ttl"):
        Runtime(driver, workflows=FLOWS, lease_ttl=seconds)
    Runtime(driver, workflows=FLOWS, lease_ttl=0.3)
