"""Law 11: a handler that only the code knows sees what the instance saw, and no shield keeps it from being found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from tests.laws import undoing
from tests.laws.test_law_11_walking import run_over_two_processes
from tests.support import World
from workflow_sdk import Break, Context, Continue, ContinueAsNew, Status, Workflow, workflow
from workflow_sdk.client import handle as control
from workflow_sdk.values import Codec


async def undo_after_putting_away(world: World, job: Workflow[Any, Any], input: Any = None) -> Status:
    """Run an instance until it listens, cancel it then, and undo what it did in a run that has not seen it happen."""
    while not (result := await world.once(job, input, mode="yield")).waiting_for:
        assert result.wake_at is not None
        world.clock.advance(result.wake_at.timestamp() - world.clock.time())
    await control.cancel(world.driver, "i", Codec(), world.clock.time(), rollback=True)
    return (await world.run(job, input)).status


async def fail_after_putting_away(world: World, job: Workflow[Any, Any], input: Any = None) -> Status:
    """Run an instance to its failure, which is undone by another process."""
    await run_over_two_processes(world, job, input)
    return Status.CANCELLED


Undo = Callable[[World, Workflow[Any, Any]], Awaitable[Status]]
ways = pytest.mark.parametrize("undo_it", [undo_after_putting_away, fail_after_putting_away])

Assign = Callable[[Context], Awaitable[None]]


async def in_the_open(ctx: Context) -> None:
    ctx.state["charged"] += 50


async def in_a_loop(ctx: Context) -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
        ctx.state["charged"] += 10
        await ctx.step("turn", undoing.name, "turn")
        return Continue(number + 1) if number < 4 else Break()

    await ctx.loop("loop", turn, 0, commit_interval=2)


async def in_an_attempt(ctx: Context) -> None:
    async def inside(ctx: Context) -> None:
        ctx.state["charged"] += 20
        await in_a_loop(ctx)
        ctx.state["charged"] -= 20

    await ctx.attempt("attempt", inside)


async def in_branches(ctx: Context) -> None:
    async def branch(ctx: Context, number: int) -> None:
        await ctx.sleep("in turn", 9 - number)
        ctx.state["charged"] = 10 * ctx.state["charged"] + number

    await ctx.map("map", branch, range(3))
    assert ctx.state["charged"] == 210
    ctx.state["charged"] = 50


async def in_a_race(ctx: Context) -> None:
    async def loses(ctx: Context) -> None:
        ctx.state["charged"] = 1_000_000
        await ctx.step("done", undoing.name, "loser", rollback=lambda name: undoing.undone.append(name))
        await ctx.sleep("long", 10**7)

    async def wins(ctx: Context) -> None:
        await ctx.sleep("short", 5)

    await ctx.race("race", {"loses": loses, "wins": wins})
    ctx.state["charged"] += 50


async def before_starting_over(ctx: Context) -> None:
    ctx.state["charged"] += 50
    await ctx.step("work", undoing.name, "work")


PLACES = [in_the_open, in_a_loop, in_an_attempt, in_branches, in_a_race]


@ways
@pytest.mark.parametrize("assign", PLACES)
async def test_a_walked_handler_sees_the_state(world: World, undo_it: Undo, assign: Assign) -> None:
    """The state decides what is refunded, and by what: both are as they were before the process died."""
    undoing.undone.clear()

    @workflow
    async def charges(ctx: Context) -> None:
        ctx.state.update(charged=0)
        ctx.state["details"] = {"way": "none"}
        details = ctx.state["details"]

        async def refund(name: str) -> None:
            undoing.undone.append((name, ctx.state["charged"], details["way"], ctx.reference, ctx.progress))

        await ctx.step("before", undoing.name, "before", rollback=refund)
        await assign(ctx)
        if ctx.state["charged"] == 50:
            await ctx.step("after", undoing.name, "after", rollback=refund)
        ctx.state["details"]["way"] = "card"
        ctx.reference = "order 7"
        await ctx.listen("go", timeout=100, default=None)
        raise ValueError("no")

    assert await undo_it(world, charges) is Status.CANCELLED
    seen = [entry[:4] for entry in undoing.undone if entry != "loser"]
    assert seen == [("after", 50, "card", "order 7"), ("before", 50, "card", "order 7")]


@ways
async def test_a_walked_handler_sees_the_state_from_before_a_new_start(world: World, undo_it: Undo) -> None:
    undoing.undone.clear()

    @workflow
    async def charges(ctx: Context, number: int) -> ContinueAsNew | None:
        if number == 0:
            ctx.state["charged"] = 50
            return ContinueAsNew(1)

        async def refund(name: str) -> None:
            undoing.undone.append((name, ctx.state["charged"]))

        if ctx.state["charged"] == 50:
            await ctx.step("after", undoing.name, "after", rollback=refund)
        await ctx.listen("go", timeout=100, default=None)
        raise ValueError("no")

    assert await undo_it(world, charges, 0) is Status.CANCELLED  # type: ignore[call-arg]
    assert undoing.undone == [("after", 50)]


async def shield_of_anyio(wait: Callable[[], Awaitable[object]]) -> None:
    with anyio.CancelScope(shield=True):
        await wait()


async def shield_in_a_task_group(wait: Callable[[], Awaitable[object]]) -> None:
    async with anyio.create_task_group():
        with anyio.CancelScope(shield=True):
            await wait()


async def shield_while_cleaning_up(wait: Callable[[], Awaitable[object]]) -> None:
    try:
        raise ValueError("to be cleaned up")
    except ValueError:
        with anyio.CancelScope(shield=True):
            await wait()
        raise


SHIELDS = [shield_of_anyio, shield_in_a_task_group, shield_while_cleaning_up]


@pytest.mark.parametrize("shield", SHIELDS)
@pytest.mark.parametrize("is_inside", ["nothing", "attempt", "branch"])
async def test_an_instance_that_waits_in_a_shield_is_undone(world: World, shield: Any, is_inside: str) -> None:
    undoing.undone.clear()

    @workflow
    async def shielded(ctx: Context) -> None:
        await ctx.step("one", undoing.name, "one", rollback=lambda name: undoing.undone.append(name))

        async def inside(ctx: Context) -> None:
            await ctx.step("two", undoing.name, "two", rollback=lambda name: undoing.undone.append(name))
            await shield(lambda: ctx.listen("long", timeout=1000))

        if is_inside == "attempt":
            await ctx.attempt("attempt", inside)
        elif is_inside == "branch":
            await ctx.join("join", {"a": inside})
        else:
            await inside(ctx)

    assert await undo_after_putting_away(world, shielded) is Status.CANCELLED
    assert undoing.undone == ["two", "one"]


@pytest.mark.settings(loop=("asyncio", "uvloop"))
async def test_an_instance_that_waits_in_a_shield_of_asyncio_is_undone(world: World) -> None:
    undoing.undone.clear()

    @workflow
    async def shielded(ctx: Context) -> None:
        await ctx.step("one", undoing.name, "one", rollback=lambda name: undoing.undone.append(name))
        await asyncio.shield(asyncio.ensure_future(ctx.listen("long", timeout=1000)))

    assert await undo_after_putting_away(world, shielded) is Status.CANCELLED
    assert undoing.undone == ["one"]
