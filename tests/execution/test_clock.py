"""The clock on the wall, and the one of tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import pytest

from tests.patience import PATIENCE
from workflow_drivers.memory import MemoryDriver
from workflow_sdk import Context, DefinitionError, Status, StepTimeoutError, run_workflow, workflow
from workflow_sdk.instance.clock import Activity, Clock, SystemClock, clock_of, pause
from workflow_sdk.testing import VirtualClock
from workflow_sdk.testing.clock import IDLE_TURNS, SHORT_SECONDS


def doing(activity: Activity) -> Callable[[], Activity]:
    return lambda: activity


IDLE = doing(Activity.NONE)


pytestmark = [pytest.mark.law(20), pytest.mark.usefixtures("host")]


async def test_the_clock_on_the_wall() -> None:
    clock: Clock = SystemClock()
    before = time.time()
    assert before <= clock.time() <= time.time()
    began = time.monotonic()
    await clock.wait(anyio.Event(), clock.time() + 0.05, IDLE)
    assert time.monotonic() - began >= 0.045
    await clock.wait(anyio.Event(), clock.time() - 5, IDLE)
    event = anyio.Event()
    event.set()
    with anyio.fail_after(PATIENCE):
        await clock.wait(event, None, IDLE)
        await clock.wait(event, clock.time() + 100, IDLE)


async def test_a_clock_that_was_set_meanwhile_is_looked_at_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, naps = [1_900_000_000.0], list[float]()
    day, nap = 86_400.0, anyio.move_on_after

    def sleep_and_set_the_clock(seconds: float) -> anyio.CancelScope:
        naps.append(seconds)
        now[0] += 90 * day
        return nap(0)

    module = "workflow_sdk.instance.clock"
    monkeypatch.setattr(f"{module}.anyio", SimpleNamespace(move_on_after=sleep_and_set_the_clock))
    await SystemClock(lambda: now[0]).wait(anyio.Event(), now[0] + 90 * day, IDLE)
    assert len(naps) == 1
    assert naps[0] < 1


async def test_who_waits_for_a_span_of_time_does_not_look_at_the_clock() -> None:
    """However it is set."""
    began, looks = time.monotonic(), list[float]()

    def look() -> float:
        looks.append(-1e9 * len(looks))
        return looks[-1]

    clock = SystemClock(look)
    await clock.wait(anyio.Event(), None, IDLE, by=clock.monotonic() + 0.05)
    await pause(clock, 0.05)
    assert time.monotonic() - began >= 0.09
    assert looks == []


async def test_who_waits_lazily_is_told_that_the_clock_was_set_ahead() -> None:
    ahead = [0.0]
    clock, event = SystemClock(lambda: time.time() + ahead[0]), anyio.Event()

    async def set_ahead() -> None:
        ahead[0] = -5000.0
        await anyio.sleep(0.01)
        ahead[0] = 5000.0

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(set_ahead)
            await clock.wait(event, None, IDLE, lazily=clock.monotonic() + 10 * PATIENCE)
    began = time.monotonic()
    await clock.wait(event, None, IDLE, lazily=clock.monotonic() + 0.05)
    assert time.monotonic() - began >= 0.04


class OnlyTime:
    """All that a user has to give."""

    def time(self) -> int:
        """As some clocks give it."""
        return 1_900_000_000


async def test_any_object_that_knows_the_time_is_a_clock() -> None:
    clock = clock_of(OnlyTime())
    assert clock.time() == 1_900_000_000
    await clock.wait(anyio.Event(), 1_900_000_000.0, IDLE)
    virtual = VirtualClock()
    assert clock_of(virtual) is virtual
    with pytest.raises(DefinitionError, match=r"time\(\) -> float"):
        clock_of(time.time)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_an_event_ends_a_wait_on_the_wall() -> None:
    clock, event = SystemClock(), anyio.Event()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(clock.wait, event, clock.time() + 1000, IDLE)
            await turns(10)
            event.set()
    assert event.is_set()


async def test_a_timeout_on_the_wall() -> None:
    with SystemClock().timeout(0.01) as limit:
        await anyio.sleep_forever()
    assert limit.cancelled_caught
    with SystemClock().timeout(PATIENCE) as limit:
        await anyio.lowlevel.checkpoint()
    assert not limit.cancelled_caught


async def test_a_virtual_clock_starts_where_it_is_told() -> None:
    start = datetime(2001, 2, 3, tzinfo=UTC)
    assert VirtualClock(start).now() == start
    assert VirtualClock().now() == VirtualClock().now()
    with pytest.raises(DefinitionError, match="aware"):
        VirtualClock(datetime(2001, 2, 3))  # noqa: DTZ001  # that is the mistake


async def test_it_stands_still() -> None:
    clock = VirtualClock()
    began = clock.time()
    await turns(3 * IDLE_TURNS)
    assert clock.time() == began
    clock.advance(5)
    clock.advance(timedelta(minutes=1))
    assert clock.time() == began + 65
    with pytest.raises(DefinitionError):
        clock.advance("5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_it_jumps_to_the_first_timer_when_all_is_idle() -> None:
    clock = VirtualClock()
    began = clock.time()
    ended: list[float] = []

    async def wait(seconds: float) -> None:
        await clock.wait(anyio.Event(), began + seconds, IDLE)
        ended.append(clock.time() - began)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for seconds in (3600, 86_400 * 30, 5):
                group.start_soon(wait, seconds)
    assert ended == [5, 3600, 86_400 * 30]


async def test_it_does_not_jump_while_one_has_something_to_do() -> None:
    clock = VirtualClock()
    began = clock.time()
    activity = [Activity.THREAD]
    real = time.monotonic()
    with anyio.fail_after(PATIENCE):
        await clock.wait(anyio.Event(), began + 0.1, lambda: activity[0])
    assert time.monotonic() - real >= 0.1
    assert began + 0.1 <= clock.time() < began + PATIENCE, "it goes on as on the wall"
    activity[0] = Activity.NONE
    with anyio.fail_after(PATIENCE):
        await clock.wait(anyio.Event(), began + 3600, lambda: activity[0])
    assert clock.time() == began + 3600


async def test_a_machine_that_stands_still_takes_no_time() -> None:
    """While a plain function runs that would have ended soon."""
    clock, event = VirtualClock(), anyio.Event()
    began = clock.time()
    activity = [Activity.THREAD]
    async with anyio.create_task_group() as group:
        group.start_soon(clock.wait, event, began + 3600, lambda: activity[0])
        await turns(10)
        time.sleep(3 * SHORT_SECONDS)  # noqa: ASYNC251  # nobody gets anywhere
        await turns(10)
        activity[0] = Activity.NONE
        event.set()
    assert clock.time() == began


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("after", [4, 8, 12, 16])
async def test_it_does_not_jump_past_who_was_woken(after: int) -> None:
    """One that was woken may not have come round to it when another has seen nothing for long enough."""
    clock, event = VirtualClock(), anyio.Event()
    began = clock.time()
    woken: list[float] = []

    async def wakes() -> None:
        await clock.wait(event, None, IDLE)
        woken.append(clock.time() - began)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(clock.wait, anyio.Event(), began + 3600, IDLE)
            group.start_soon(wakes)
            await turns(after)
            event.set()
    assert woken == [0]


@pytest.mark.parametrize("after", [4, 8, 12, 16])
@pytest.mark.parametrize("lasts", [3, IDLE_TURNS, 3 * IDLE_TURNS])
async def test_it_does_not_jump_over_what_begins_while_it_looks(lasts: int, after: int) -> None:
    """Nor over what comes of that some turns later."""
    clock, event = VirtualClock(), anyio.Event()
    began = clock.time()
    activity = [Activity.NONE]
    woken: list[float] = []

    async def wakes() -> None:
        await clock.wait(event, None, IDLE)
        woken.append(clock.time() - began)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(clock.wait, anyio.Event(), began + 3600, lambda: activity[0])
            group.start_soon(wakes)
            await turns(after)
            activity[0] = Activity.CODE
            await turns(lasts)
            activity[0] = Activity.NONE
            await turns(IDLE_TURNS // 2)
            event.set()
    assert woken == [0]


async def test_advance_wakes_what_is_due() -> None:
    clock = VirtualClock()
    began = clock.time()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(clock.wait, anyio.Event(), began + 3600, doing(Activity.THREAD))
            await turns(10)
            clock.advance(3600)
    assert began + 3600 <= clock.time() < began + 3600 + PATIENCE


async def test_an_event_ends_a_virtual_wait() -> None:
    clock, event = VirtualClock(), anyio.Event()
    began = clock.time()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(clock.wait, event, None, IDLE)
            await turns(10)
            event.set()
    assert clock.time() == began


async def test_a_virtual_timeout() -> None:
    clock = VirtualClock()
    began = clock.time()
    with clock.timeout(5) as limit:
        clock.advance(4)
        await anyio.lowlevel.checkpoint()
        clock.advance(1)
        await anyio.lowlevel.checkpoint()
        raise AssertionError("not cancelled")
    assert limit.cancelled_caught
    assert clock.time() == began + 5


async def test_a_step_that_hangs_is_timed_out_after_a_quiet_time() -> None:
    driver_clock = VirtualClock(quiet=0.1)

    @workflow
    async def hangs(ctx: Context) -> str:
        try:
            await ctx.step("hangs", anyio.sleep_forever, timeout=3600, retry_on_timeout=False)
        except StepTimeoutError:
            return str((ctx.now()).timestamp() - began)
        return "no timeout"

    began = driver_clock.time()
    with anyio.fail_after(PATIENCE):
        result = await run_workflow(hangs, driver=MemoryDriver(), clock=driver_clock)
    assert result.output == "3600.0"


async def test_a_plain_function_takes_real_time_only() -> None:
    clock, done = VirtualClock(), threading.Event()

    async def works(ctx: Context) -> None:
        await ctx.step("thread", done.wait, 3 * SHORT_SECONDS, timeout=10)

    async def sleeps(ctx: Context) -> None:
        await ctx.sleep("nap", 5)

    @workflow
    async def both(ctx: Context) -> float:
        began = ctx.now()
        await ctx.join("both", {"works": works, "sleeps": sleeps})
        return (ctx.now() - began).total_seconds()

    result = await run_workflow(both, driver=MemoryDriver(), clock=clock, mode="live")
    assert (result.status, result.output) == (Status.COMPLETED, 5.0)


async def test_it_stands_still_while_what_was_evicted_is_unwound() -> None:
    """Scopes within scopes take a few turns of the event loop to end."""

    async def nested(ctx: Context, depth: int) -> None:
        if depth == 0:
            await ctx.sleep("long", 1000)
            return

        async def inner(ctx: Context) -> None:
            await nested(ctx, depth - 1)

        await ctx.join("both", {"a": inner, "b": inner} if depth % 3 == 0 else {"a": inner})

    @workflow
    async def deep(ctx: Context) -> None:
        await nested(ctx, 6)

    for _ in range(20):
        clock = VirtualClock()
        began = clock.time()
        result = await run_workflow(deep, driver=MemoryDriver(), clock=clock)
        assert (result.status, clock.time()) == (Status.SLEEPING, began)


@pytest.mark.parametrize("turns", range(0, 80, 3))
async def test_who_is_told_of_something_looks_before_it_jumps(turns: int) -> None:
    """Whenever that is; else what it would have begun at this time would come late."""
    clock, event = VirtualClock(), anyio.Event()
    times: list[float] = []

    async def tick() -> None:
        while True:
            await clock.wait(anyio.Event(), clock.time() + 1, IDLE)

    async def tell() -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        times.append(clock.time())
        event.set()

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        group.start_soon(tell)
        await clock.wait(event, None, IDLE)
        times.append(clock.time())
        group.cancel_scope.cancel()
    assert times[0] == times[1]


async def test_word_of_what_has_just_ended_is_heard_before_it_jumps() -> None:
    clock, active = VirtualClock(), [Activity.CODE]
    began = clock.time()

    async def work() -> None:
        for _ in range(10):
            await anyio.sleep(0.001)
        active[0] = Activity.NONE
        for _ in range(15):  # on its way
            await anyio.lowlevel.checkpoint()
        active[0] = Activity.CODE
        heard.append(clock.time())
        active[0] = Activity.NONE

    heard: list[float] = []
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await clock.wait(anyio.Event(), began + 60, lambda: active[0])
    assert heard == [began]
    assert clock.time() == began + 60


async def test_code_that_computes_is_not_quiet() -> None:
    """It keeps the event loop to itself, again and again."""
    clock = VirtualClock(quiet=0.05)
    began = clock.time()
    done = anyio.Event()

    async def compute() -> None:
        for _ in range(10):
            until = time.thread_time() + 0.03
            while time.thread_time() < until:
                pass
            await anyio.lowlevel.checkpoint()
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(compute)
        await clock.wait(done, began + 3600, doing(Activity.CODE))
    assert clock.time() < began + 3600


async def test_a_machine_that_is_busy_with_something_else_keeps_no_clock_from_jumping() -> None:
    """A step hangs, and the event loop gets its turns late: nothing computes in it."""
    clock = VirtualClock(quiet=0.05)
    began = clock.time()

    async def stall() -> None:
        while True:
            time.sleep(0.03)  # noqa: ASYNC251  # as if the process did not get a turn
            await anyio.sleep(0.015)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(stall)
            await clock.wait(anyio.Event(), began + 3600, doing(Activity.CODE))
            group.cancel_scope.cancel()
    assert clock.time() == began + 3600


@pytest.mark.parametrize("how", ["told", "cancelled"])
async def test_when_one_who_waits_has_gone_the_others_still_get_their_time(how: str) -> None:
    """One of them moves the clock on for all."""
    clock = VirtualClock()
    began = clock.time()
    activity = [Activity.THREAD]
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            first, told = anyio.CancelScope(), anyio.Event()

            async def goes() -> None:
                with first:
                    await clock.wait(told, None, lambda: activity[0])

            group.start_soon(goes)
            await turns(3)
            for hours in (2, 1):
                group.start_soon(clock.wait, anyio.Event(), began + hours * 3600, IDLE)
            await turns(3)
            activity[0] = Activity.NONE
            if how == "told":
                told.set()
            else:
                first.cancel()
    assert clock.time() == began + 2 * 3600
