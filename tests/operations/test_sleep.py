"""`ctx.sleep` and `ctx.sleep_until`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support import World
from workflow_sdk import Client, Context, EntryStatus, Kind, Status, workflow


def at(world: World) -> datetime:
    return datetime.fromtimestamp(world.clock.time(), UTC)


@pytest.mark.parametrize(("duration", "passes"), [(60, 60), (0.25, 0.25), (timedelta(days=30), 30 * 86_400)])
async def test_a_sleep_takes_its_time(world: World, duration: float | timedelta, passes: float) -> None:
    @workflow
    async def sleeps(ctx: Context) -> str:
        before = ctx.now()
        assert await ctx.sleep("nap", duration) is None  # type: ignore[func-returns-value]
        return str((ctx.now() - before).total_seconds())

    began = world.clock.time()
    result = await world.run(sleeps)
    assert (result.status, result.output) == (Status.COMPLETED, str(float(passes)))
    assert world.clock.time() == began + passes


async def test_an_instance_that_sleeps_says_so(world: World) -> None:
    @workflow
    async def sleeps(ctx: Context) -> None:
        await ctx.sleep("nap", 60)

    result = await world.once(sleeps, mode="yield")
    assert (result.status, result.waiting_for, result.output) == (Status.SLEEPING, [], None)
    assert result.wake_at == at(world) + timedelta(minutes=1)
    history = await world.history()
    assert history.status is Status.SLEEPING
    assert (history["nap"].kind, history["nap"].status) == (Kind.SLEEP, EntryStatus.WAITING)
    assert history["nap"].finished_at is None


async def test_running_it_again_does_not_start_the_timer_anew(world: World) -> None:
    @workflow
    async def sleeps(ctx: Context) -> None:
        await ctx.sleep("nap", 60)

    first = await world.once(sleeps, mode="yield")
    world.clock.advance(59)
    assert await world.once(sleeps, mode="yield") == first
    world.clock.advance(1)
    assert (await world.once(sleeps, mode="yield")).status is Status.COMPLETED


async def test_the_next_sleep_begins_when_the_last_one_ended(world: World) -> None:
    @workflow
    async def sleeps(ctx: Context) -> list[float]:
        began = ctx.now()
        times: list[float] = []
        for n in range(3):
            await ctx.sleep(f"nap {n}", 10)
            times.append((ctx.now() - began).total_seconds())
        return times

    assert (await world.run(sleeps)).output == [10, 20, 30]


async def test_a_late_run_goes_on_at_once(world: World) -> None:
    @workflow
    async def sleeps(ctx: Context) -> float:
        began = ctx.now()
        await ctx.sleep("nap", 60)
        return (ctx.now() - began).total_seconds()

    await world.once(sleeps, mode="yield")
    world.clock.advance(3600)
    assert (await world.once(sleeps)).output == 3600


async def test_sleeping_until_a_time(world: World) -> None:
    when = at(world).astimezone(timezone(timedelta(hours=2))) + timedelta(hours=3)

    @workflow
    async def sleeps(ctx: Context) -> bool:
        await ctx.sleep_until("then", when)
        return ctx.now() == when

    assert (await world.run(sleeps)).output is True


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: ctx.sleep("nap", 0),
        lambda ctx: ctx.sleep("nap", -5),
        lambda ctx: ctx.sleep_until("nap", datetime(1999, 1, 1, tzinfo=UTC)),
    ],
    ids=["0", "negative", "past"],
)
async def test_what_is_past_returns_at_once_and_leaves_an_entry(world: World, call: Callable[[Context], Any]) -> None:
    @workflow
    async def sleeps(ctx: Context) -> str:
        await call(ctx)
        return "awake"

    began = world.clock.time()
    result = await world.run(sleeps)
    assert (result.output, world.runs, world.clock.time()) == ("awake", 1, began)
    entry = (await world.history())["nap"]
    assert (entry.kind, entry.status) == (Kind.SLEEP, EntryStatus.COMPLETED)


@pytest.mark.parametrize("when", [datetime.max.replace(tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)])
async def test_a_sleep_may_last_as_long_as_the_calendar(world: World, when: datetime) -> None:
    @workflow
    async def sleeps(ctx: Context) -> None:
        await ctx.sleep_until("nap", when)

    result = await world.once(sleeps, mode="yield")
    assert (result.status, result.wake_at) == (Status.SLEEPING, when)
    async with Client(world.driver) as client:
        info = await client.handle("sleeps", "i").info()
        assert (info.wake_at, info.waits[0].until) == (when, when)
    assert str(await world.history()).endswith("nap  sleep waiting")
