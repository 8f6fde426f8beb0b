"""`ctx.race`: the first branch to return wins."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.hasty_clock import hasty_clock
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Context,
    Kind,
    RaceError,
    RaceResult,
    RollbackError,
    Status,
    StepError,
    run_workflow,
    workflow,
)

pytestmark = pytest.mark.law(7)

Branch = Callable[[Context], Awaitable[Any]]


@dataclass
class Offer:
    price: int


def fail(text: str) -> None:
    raise ValueError(text)


def sleeping(seconds: float, value: Any = None) -> Branch:
    async def branch(ctx: Context) -> Any:
        await ctx.sleep("nap", seconds)
        return value

    return branch


def failing(text: str, after: float = 0) -> Branch:
    async def branch(ctx: Context) -> None:
        await ctx.sleep("before", after)
        await ctx.step("fails", fail, text, retries=0)

    return branch


def racing(branches: dict[str, Branch]) -> Any:
    @workflow
    async def races(ctx: Context) -> Any:
        result = await ctx.race("race", branches)
        assert type(result) is RaceResult
        await ctx.sleep("pause", 60)
        winner, value = result
        assert (winner, value) == (result.winner, result.value)
        return [winner, value]

    return races


async def test_the_first_to_return_wins(world: World) -> None:
    result = await world.run(racing({"slow": sleeping(20, "s"), "quick": sleeping(10, "q"), "third": sleeping(30)}))
    assert result.output == ["quick", "q"]
    history = await world.history()
    assert [entry.path for entry in history] == ["race", "race/quick", "race/quick/nap", "pause"]
    assert (history["race"].kind, history["race"].value) == (Kind.RACE, {"quick": "q"})


@pytest.mark.parametrize("value", [None, Offer(3), (1, (2,)), {"a": [1]}], ids=str)
async def test_the_value_of_the_winner_keeps_its_type(world: World, value: Any) -> None:
    result = await world.run(racing({"a": sleeping(1, value), "b": sleeping(2)}))
    assert result.output == ["a", value]
    assert result.output is not None
    assert type(result.output[1]) is type(value)


@pytest.mark.parametrize("order", [("sleeps", "works", "instant"), ("instant", "sleeps", "works")], ids=" ".join)
async def test_a_branch_without_waits_wins_at_once(world: World, order: tuple[str, ...]) -> None:
    async def instant(ctx: Context) -> int:
        return 1

    async def works(ctx: Context) -> None:
        await ctx.step("hangs", anyio.sleep_forever)

    branches: dict[str, Branch] = {"sleeps": sleeping(100), "works": works, "instant": instant}
    began = world.clock.time()
    result = await world.run(racing({name: branches[name] for name in order}))
    assert result.output == ["instant", 1]
    assert world.clock.time() == began + 60, "the timer of the loser is over"


async def test_losers_are_cancelled_at_once_running_steps_included(world: World) -> None:
    log: list[str] = []
    under_way = anyio.Event()

    async def hangs() -> None:
        log.append("began")
        under_way.set()
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    async def slow(ctx: Context) -> None:
        await ctx.step("hangs", hangs)
        log.append("never")

    async def quick(ctx: Context) -> str:
        await ctx.step("waits", under_way.wait)
        return "quick"

    @workflow
    async def races(ctx: Context) -> Any:
        value = (await ctx.race("race", {"slow": slow, "quick": quick})).value
        log.append("decided")
        return value

    with anyio.fail_after(PATIENCE):
        assert (await world.run(races)).output == "quick"
    assert log == ["began", "cancelled", "decided"]
    assert "race/slow" not in await world.history()


async def test_a_loser_in_a_worker_thread_is_not_waited_for(world: World) -> None:
    go_on = threading.Event()
    began = threading.Event()
    undone: list[str] = []

    async def undo(value: str) -> None:
        undone.append(value)

    def block() -> str:
        began.set()
        go_on.wait(PATIENCE)
        return "too late"

    async def slow(ctx: Context) -> str:
        return await ctx.step("block", block, rollback=undo)

    async def quick(ctx: Context) -> str:
        await ctx.step("meets", began.wait, PATIENCE)
        return "quick"

    @workflow
    async def races(ctx: Context) -> None:
        won.append((await ctx.race("race", {"slow": slow, "quick": quick})).winner)
        await ctx.step("fails", fail, "no", retries=0)

    won: list[str] = []
    try:
        result = await run_workflow(races, driver=world.driver, instance_id="i", mode=world.setting.mode)
    finally:
        go_on.set()
    assert won[0] == "quick"
    assert "race/slow" not in await world.history()
    # What the loser returns later is dropped, so that there is nothing to undo.
    assert (result.status, undone) == (Status.FAILED, [])


async def test_who_fails_is_out(world: World) -> None:
    result = await world.run(racing({"bad": failing("one"), "fine": sleeping(50, "v")}))
    assert result.output == ["fine", "v"]


async def test_all_failing_is_a_race_error(world: World) -> None:
    seen: list[RaceError] = []

    @workflow
    async def races(ctx: Context) -> list[str]:
        try:
            await ctx.race("race", {"a": failing("one"), "b": failing("two", after=10)})
        except RaceError as error:
            seen.append(error)
        await ctx.sleep("pause", 60)
        return list(seen[-1].errors)

    assert (await world.run(races)).output == ["a", "b"]
    assert len(seen) >= (2 if world.setting.mode == "yield" else 1)
    for error in seen:
        assert isinstance(error, ExceptionGroup)
        assert str(error).startswith("race 'race': all branches failed: a, b")
        second = error.errors["b"]
        assert isinstance(second, StepError)
        assert (second.path, second.error.message) == ("race/b/fails", "two")


async def test_a_rollback_error_ends_the_race(world: World) -> None:
    world.clock = hasty_clock()
    ran: list[str] = []

    async def hangs() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append("hangs")

    cancelled: list[str] = []

    async def unwinds(ctx: Context) -> None:
        await ctx.sleep("nap", 10)
        raise RollbackError("enough")

    async def slow(ctx: Context) -> None:
        await ctx.sleep("nap", 20)
        await ctx.step("never", ran.append, "slow")

    async def works(ctx: Context) -> None:
        await ctx.step("hangs", hangs)

    with anyio.fail_after(PATIENCE):
        result = await world.run(racing({"unwinds": unwinds, "slow": slow, "works": works}))
    assert result.status is Status.FAILED
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("workflow_sdk.errors.RollbackError", "enough")
    assert (ran, cancelled) == ([], ["hangs"])


async def test_messages_that_a_loser_took_are_given_back(world: World) -> None:
    async def takes(ctx: Context) -> None:
        await ctx.listen("m")
        await ctx.listen_many("n", count=2)
        await ctx.sleep("nap", 1000)

    @workflow
    async def races(ctx: Context) -> list[Any]:
        await ctx.race("race", {"takes": takes, "wins": sleeping(50, "v")})
        return [await ctx.listen("again", "m"), await ctx.listen_many("more", "n", count=3)]

    await world.once(races, mode="yield")
    for name, payload in [("m", 1), ("n", 2), ("n", 3)]:
        await world.send(name, payload)
    assert (await world.once(races, mode="yield")).status is Status.SLEEPING
    await world.send("n", 4)
    assert (await world.run(races)).output == [1, [2, 3, 4]]


async def test_messages_that_the_winner_took_are_gone(world: World) -> None:
    async def takes(ctx: Context) -> Any:
        return await ctx.listen("m")

    async def slow(ctx: Context) -> Any:
        return await ctx.listen("never")

    @workflow
    async def races(ctx: Context) -> list[Any]:
        won = await ctx.race("race", {"takes": takes, "slow": slow})
        return [won.value, await ctx.listen("again", "m", timeout=5, default="none")]

    assert (await world.run(races, script=[("m", 1)])).output == [1, "none"]


async def test_a_race_in_a_race(world: World) -> None:
    async def inner(ctx: Context) -> str:
        won = await ctx.race("inner", {"a": sleeping(10, "a"), "b": sleeping(20, "b")})
        await ctx.sleep("after", 5)
        return won.winner

    result = await world.run(racing({"inner": inner, "slow": sleeping(16)}))
    assert result.output == ["inner", "a"]


async def test_a_timeout_of_a_listen_loses_to_another_branch(world: World) -> None:
    async def waits(ctx: Context) -> Any:
        return await ctx.listen("m", timeout=10)

    result = await world.run(racing({"waits": waits, "slow": sleeping(30, "late")}))
    assert result.output == ["slow", "late"]
