"""Clocks are hints: one that is ahead, behind, jumps or stands still delays nothing, strands nothing, loses nothing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.mortal import TTL, Mortal
from tests.runtime.parts import Log, until_status
from tests.runtime.polling import until
from workflow_sdk import (
    Backoff,
    Client,
    Context,
    Delivery,
    Driver,
    InstanceNotFoundError,
    Runtime,
    Status,
    TaskResult,
    Workflow,
    run_workflow,
    workflow,
)
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import Change, Steps
from workflow_sdk.changes.decide import TAKEN_AWAY_SECONDS, take_away
from workflow_sdk.changes.instances import find_to_decide
from workflow_sdk.rows.instance import Head
from workflow_sdk.rows.keys import Field, InstanceKeys, WorkerKeys

DAY = 86_400.0
HOUR = 3600.0

log = Log()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()


class Wrong:
    """A clock that is ahead by some seconds, and can be set. It knows the time, and nothing else."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time() + self.ahead


class Still:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        """Seconds since 1970."""
        return self.now


@workflow
async def quick(ctx: Context) -> str:
    """Ends at once."""
    return str(await ctx.step("note", log.note, ctx.instance_id))


@workflow
async def naps(ctx: Context, seconds: float) -> str:
    """Sleeps from the time on that it sees."""
    await ctx.sleep_until("nap", ctx.now() + timedelta(seconds=seconds))
    return "awake"


@workflow
async def sleeps(ctx: Context, seconds: float) -> str:
    """Sleeps for some time."""
    await ctx.sleep("nap", seconds)
    return "awake"


@workflow
async def notes_awaking(ctx: Context, seconds: float) -> None:
    """Sleeps, and says when it is over."""
    await ctx.sleep("nap", seconds)
    await ctx.step("note", log.note, ctx.instance_id)


@workflow
async def listens(ctx: Context, timeout: float) -> Any:
    """Waits for a message, but not for ever."""
    return await ctx.listen("m", timeout=timeout, default="late")


@workflow
async def asks(ctx: Context, timeout: float) -> Any:
    """Asks a person, but not for ever."""
    done: TaskResult[Any] = await ctx.task("task", timeout=timeout)
    return done.value


@workflow
async def tries(ctx: Context, seconds: float) -> str:
    """Fails until something is mended, and is tried again so much later."""

    async def mended() -> str:
        if "mended" not in log:
            raise ValueError("not yet")
        return "done"

    return await ctx.step("try", mended, retries=1000, backoff=Backoff(initial=seconds, maximum=seconds, jitter=0))


@workflow(retention=0.2)
async def forgotten(ctx: Context) -> str:
    """Ends at once, and is forgotten soon."""
    return "done"


FLOWS: list[Workflow[Any, Any]] = [quick, naps, sleeps, notes_awaking, listens, asks, tries, forgotten]


# A client whose clock is wrong.


@pytest.mark.parametrize("ahead", [DAY, -DAY])
async def test_what_a_client_starts_and_sends_is_run_at_once(driver: Driver, ahead: float) -> None:
    async with Runtime(driver, workflows=FLOWS, max_resident=0), Client(driver, clock=Wrong(ahead)) as client:
        assert await (await client.start(quick, id="started")).result(timeout=PATIENCE) == "started"
        # It waits for less than the clocks differ by, and is evicted meanwhile.
        handle = await client.start(listens, HOUR, id="waits")
        await until_status(handle, Status.WAITING)
        assert await handle.send("m", "heard") is Delivery.ACCEPTED
        assert await handle.result(timeout=PATIENCE) == "heard"


async def test_a_timer_does_not_wait_for_all_that_is_due_at_once(driver: Driver) -> None:
    """What has no time comes before every time; but not all of it before the first timer."""
    await run_workflow(notes_awaking, 1, driver=driver, instance_id="timer", clock=Wrong(-HOUR))
    async with Client(driver) as client:
        for number in range(200):
            await client.start(quick, id=f"i{number:03}")
        async with Runtime(driver, workflows=FLOWS, concurrency=1):
            await client.handle(quick, "i199").result(timeout=PATIENCE)
    assert "timer" in log[:150]


async def test_an_instance_sees_the_time_of_who_runs_it(driver: Driver) -> None:
    """Also at its beginning: not that of who started it, which may be still to come."""
    async with Client(driver, clock=Wrong(DAY)) as client:
        await client.start(naps, 0.01, id="i")
        with anyio.fail_after(PATIENCE):
            result = await run_workflow(naps, 0.01, driver=driver, instance_id="i", mode="live")
            assert (result.status, result.output) == (Status.COMPLETED, "awake")


async def test_each_replay_sees_the_same_beginning(driver: Driver) -> None:
    seen: list[datetime] = []

    @workflow
    async def looks(ctx: Context) -> None:
        seen.append(ctx.now())
        await ctx.listen("m")

    async with Client(driver, clock=Wrong(DAY)) as client:
        await client.start(looks, id="i")
    for _ in range(3):
        await run_workflow(looks, driver=driver, instance_id="i")
    assert len(set(seen)) == 1
    assert seen[0].timestamp() <= time.time()


async def test_whether_a_wait_is_over_is_not_for_a_client_to_say(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime, Client(driver, clock=Wrong(DAY)) as client:
        waiting = await runtime.start(listens, HOUR, id="waits")
        asking = await runtime.start(asks, HOUR, id="asks")
        await until_status(waiting, Status.WAITING)
        await until_status(asking, Status.WAITING)
        (wait,) = (await client.handle(listens, "waits").info()).waits
        assert wait.token is not None
        assert await client.handle(listens, "waits").send("m", 1, token=wait.token) is Delivery.ACCEPTED
        (task,) = await client.tasks.list()
        await client.tasks.complete(task.id, 2, by="ann")
        assert [await handle.result(timeout=PATIENCE) for handle in (waiting, asking)] == [1, 2]


async def test_what_a_client_that_is_behind_cancels_is_kept_for_as_long_as_it_is_to_be(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS, retention=HOUR) as runtime:
        await until_status(await runtime.start(listens, HOUR, id="i"), Status.WAITING)
        async with Client(driver, clock=Wrong(-DAY)) as client:
            await client.handle(listens, "i").cancel()
        info = await runtime.handle(listens, "i").info()
        assert info.status is Status.CANCELLED
        assert info.purge_at is not None
        assert info.purge_at.timestamp() > time.time() + HOUR / 2


@pytest.mark.parametrize("ahead", [DAY, -DAY])
async def test_what_a_client_takes_away_and_leaves_goes_on(driver: Driver, ahead: float) -> None:
    """It is to be due a few seconds later by the clocks of those who would run it."""
    async with Runtime(driver, workflows=FLOWS) as runtime:
        await until_status(await runtime.start(listens, HOUR, id="i"), Status.WAITING)

        def stand_still() -> Steps[None]:
            yield from take_away((yield from find_to_decide("i")), time.time() + ahead)

        await apply(driver, Change(stand_still))
        raw = await driver.get(InstanceKeys("i").field(Field.HEAD))
    assert raw is not None
    alarm = Head.unpack(raw).alarm
    assert alarm is not None
    assert abs(alarm - TAKEN_AWAY_SECONDS - time.time()) < PATIENCE


# A clock that jumps.


@pytest.mark.parametrize("max_resident", [100, 0], ids=["resident", "evicted"])
async def test_timers_are_due_when_the_clock_has_jumped(driver: Driver, max_resident: int) -> None:
    """After a long sleep of the machine, or because it was set."""
    clock = Wrong()
    async with Runtime(driver, workflows=FLOWS, clock=clock, max_resident=max_resident) as runtime:
        sleeping = await runtime.start(naps, DAY, id="sleeps")
        waiting = await runtime.start(listens, DAY, id="waits")
        trying = await runtime.start(tries, DAY, id="tries")
        await runtime.schedule("daily", quick, every=DAY)
        for handle in (sleeping, waiting, trying):
            await until_status(handle, Status.SLEEPING, Status.WAITING)
        log.append("mended")
        clock.ahead += DAY + 1
        assert await sleeping.result(timeout=PATIENCE) == "awake"
        assert await waiting.result(timeout=PATIENCE) == "late"
        assert await trying.result(timeout=PATIENCE) == "done"
        await until(lambda: _has(lambda: any(entry.startswith("daily/") for entry in log)))


async def _has(holds: Callable[[], bool]) -> bool:
    return holds()


async def test_a_run_alone_notices_that_the_clock_has_jumped(driver: Driver) -> None:
    clock = Wrong()

    async def jump() -> None:
        async with Client(driver) as client:
            await until_status(client.handle(naps, "i"), Status.SLEEPING)
        clock.ahead += DAY

    async with anyio.create_task_group() as group:
        group.start_soon(_until_there, driver, jump)
        with anyio.fail_after(PATIENCE):
            result = await run_workflow(naps, DAY, driver=driver, instance_id="i", mode="live", clock=clock)
            assert result.output == "awake"


async def _until_there(driver: Driver, then: Callable[[], Awaitable[None]]) -> None:
    async def is_there() -> bool:
        return await driver.get(InstanceKeys("i").field(Field.HEAD)) is not None

    await until(is_there)
    await then()


# Who is dead.


@pytest.mark.law(10)
@pytest.mark.parametrize("ahead", [-DAY, DAY])
async def test_the_dead_are_inherited_however_the_clock_is_set(driver: Driver, ahead: float) -> None:
    clock = Wrong()
    async with Client(driver) as client, anyio.create_task_group() as group:
        mortal = Mortal(driver, FLOWS, clock)
        group.start_soon(mortal.live)
        await mortal.is_open.wait()
        handle = await mortal.runtime.start(listens, 100 * DAY, id="i")
        await until_status(handle, Status.WAITING)
        mortal.die()
        clock.ahead += ahead
        async with Runtime(driver, workflows=FLOWS, lease_ttl=TTL, clock=clock):
            await mortal.until_forgotten(driver)
            await client.handle(listens, "i").send("m", "heard")
            assert await client.handle(listens, "i").result(timeout=PATIENCE) == "heard"


@pytest.mark.law(10)
async def test_a_clock_that_is_set_back_while_others_die_is_no_reason_to_wait(driver: Driver) -> None:
    clock = Wrong()
    async with Client(driver) as client, anyio.create_task_group() as group:
        mortal = Mortal(driver, FLOWS)
        group.start_soon(mortal.live)
        await mortal.is_open.wait()
        await until_status(await mortal.runtime.start(listens, 100 * DAY, id="i"), Status.WAITING)
        async with Runtime(driver, workflows=FLOWS, lease_ttl=TTL, clock=clock):
            clock.ahead -= DAY
            mortal.die()
            await mortal.until_forgotten(driver)
            await client.handle(listens, "i").send("m", "heard")
            assert await client.handle(listens, "i").result(timeout=PATIENCE) == "heard"


@pytest.mark.law(10)
async def test_who_has_a_clock_that_stands_still_is_alive(driver: Driver) -> None:
    """Each heartbeat is another one."""
    async with Runtime(driver, workflows=FLOWS, lease_ttl=TTL, clock=Still()):
        beats: set[bytes] = set()

        async def has_beaten_often() -> bool:
            beats.update(raw for _, raw in await driver.scan(*WorkerKeys.heartbeats()))
            return len(beats) > 3

        await until(has_beaten_often)


@pytest.mark.parametrize("flow", [sleeps, listens, tries])
async def test_who_goes_on_for_a_worker_whose_clock_was_ahead_does_not_wait_for_it(driver: Driver, flow: Any) -> None:
    """What waits for a span of time begins to wait anew, by the clock of who goes on."""
    async with anyio.create_task_group() as group:
        mortal = Mortal(driver, FLOWS, Wrong(DAY))
        group.start_soon(mortal.live)
        await mortal.is_open.wait()
        handle = await mortal.runtime.start(flow, 0.5, id="i")
        await until_status(handle, Status.SLEEPING, Status.WAITING)
        mortal.die()
    log.append("mended")
    with anyio.fail_after(PATIENCE):
        result = await run_workflow(flow, driver=driver, instance_id="i", mode="live")
        assert result.output == {"sleeps": "awake", "listens": "late", "tries": "done"}[flow.name]


# What can't be taken back.


async def test_a_worker_whose_clock_is_ahead_forgets_nothing_that_is_to_be_kept(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS, retention=HOUR, lease_ttl=60) as runtime:
        assert await runtime.run(quick, id="kept") == "kept"
        async with Runtime(driver, workflows=FLOWS, clock=Wrong(DAY)) as ahead:
            for number in range(3):
                # What it has ended itself is forgotten by its clock: it has looked for what is over.
                handle = await ahead.start(forgotten, id=f"forgotten {number}")
                await handle.result(timeout=PATIENCE)
                await until(partial(_is_gone, ahead, handle.id))
            assert (await runtime.handle(quick, "kept").info()).status is Status.COMPLETED


async def _is_gone(client: Client, id: str) -> bool:
    try:
        await client.handle(quick.name, id).info()
    except InstanceNotFoundError:
        return True
    return False


async def test_a_worker_whose_clock_is_ahead_moves_no_schedule_ahead(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    async with Runtime(driver, workflows=[], lease_ttl=60), Client(driver) as client:
        await client.schedule("hourly", quick, every=HOUR)
        before = (await client.schedules.get("hourly")).next_at
        async with Runtime(driver, workflows=FLOWS, clock=Wrong(DAY)) as ahead:
            # What it has been given by a clock like its own ticks: it looks at schedules. Not so soon that the tick may
            # be over when it is stored, on a machine that is busy.
            await ahead.schedule("own", quick, every=0.6)
            await until(lambda: _has(lambda: len(log) > 1))
            assert all(entry.startswith("own/") for entry in log)
            assert (await ahead.schedules.get("hourly")).next_at == before
    assert "the clock of this worker is 86" in caplog.text
