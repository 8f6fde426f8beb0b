"""`ctx.checkpoint`: a point of no return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support import World
from workflow_sdk import Break, Context, Continue, EntryStatus, Kind, Status, workflow
from workflow_sdk.rows.keys import ARCHIVE, COMPENSATIONS, InstanceKeys

pytestmark = pytest.mark.law(11)

UNDONE: list[str] = []


async def undo(name: str) -> None:
    UNDONE.append(name)


@pytest.fixture(autouse=True)
def _clean() -> None:
    UNDONE.clear()


async def do(ctx: Context, name: str) -> None:
    await ctx.step(name, lambda: name, rollback=undo)


async def test_what_was_before_it_is_not_undone(world: World) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        await do(ctx, "a")
        await do(ctx, "b")
        await ctx.checkpoint("done")
        await do(ctx, "c")
        await ctx.sleep("pause", 60)
        await do(ctx, "d")
        raise ValueError("no")

    result = await world.run(fails)
    assert result.status is Status.ROLLED_BACK
    assert UNDONE == ["d", "c"]
    entry = (await world.history())["done"]
    assert (entry.kind, entry.status, entry.value) == (Kind.CHECKPOINT, EntryStatus.COMPLETED, None)


async def test_with_nothing_after_it_there_is_nothing_to_undo(world: World) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        await do(ctx, "a")
        await ctx.checkpoint("done")
        await ctx.sleep("pause", 60)
        raise ValueError("no")

    result = await world.run(fails)
    assert (result.status, UNDONE) == (Status.FAILED, [])


async def test_a_checkpoint_is_passed_once(world: World) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        await ctx.checkpoint("first")
        await do(ctx, "a")
        await ctx.sleep("pause", 60)
        await ctx.listen("go", timeout=10, default=None)
        raise ValueError("no")

    result = await world.run(fails)
    assert (result.status, UNDONE) == (Status.ROLLED_BACK, ["a"])


async def _in_attempt(ctx: Context, inner: Callable[[Context], Awaitable[Any]]) -> None:
    await ctx.attempt("scope", inner)


async def _in_join(ctx: Context, inner: Callable[[Context], Awaitable[Any]]) -> None:
    await ctx.join("scope", {"only": inner})


async def _in_race(ctx: Context, inner: Callable[[Context], Awaitable[Any]]) -> None:
    async def later(ctx: Context) -> None:
        await ctx.listen("never")

    await ctx.race("scope", {"only": inner, "later": later})


async def _in_map(ctx: Context, inner: Callable[[Context], Awaitable[Any]]) -> None:
    async def one(ctx: Context, n: int) -> None:
        await inner(ctx)

    await ctx.map("scope", one, [1])


async def _in_loop(ctx: Context, inner: Callable[[Context], Awaitable[Any]]) -> None:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[None]:
        if n == 1:
            await inner(ctx)
            return Break(None)
        return Continue(1)

    await ctx.loop("scope", turn, 0)


@pytest.mark.parametrize("within", [_in_attempt, _in_join, _in_race, _in_map, _in_loop])
async def test_it_covers_what_finished_before_it_in_all_scopes(
    world: World, within: Callable[[Context, Callable[[Context], Awaitable[Any]]], Awaitable[None]]
) -> None:
    async def inner(ctx: Context) -> None:
        await do(ctx, "inner before")
        await ctx.checkpoint("done")
        await do(ctx, "inner after")

    @workflow
    async def fails(ctx: Context) -> None:
        await do(ctx, "outer before")
        await within(ctx, inner)
        await ctx.sleep("pause", 60)
        await do(ctx, "outer after")
        raise ValueError("no")

    result = await world.run(fails)
    assert (result.status, UNDONE) == (Status.ROLLED_BACK, ["outer after", "inner after"])


async def test_it_covers_finished_branches(world: World) -> None:
    async def branch(ctx: Context) -> None:
        await do(ctx, "in branch")

    @workflow
    async def fails(ctx: Context) -> None:
        await ctx.join("join", {"a": branch, "b": branch})
        await ctx.race("race", {"a": branch, "b": branch})
        await ctx.checkpoint("done")
        await ctx.sleep("pause", 60)
        raise ValueError("no")

    result = await world.run(fails)
    assert (result.status, UNDONE) == (Status.FAILED, [])
    for part in (COMPENSATIONS, ARCHIVE):
        assert await world.driver.scan(*InstanceKeys("i").range(part)) == []


async def test_a_second_checkpoint(world: World) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        for n in range(3):
            await do(ctx, f"step {n}")
            if n < 2:
                await ctx.checkpoint(f"checkpoint {n}")
        raise ValueError("no")

    result = await world.run(fails)
    assert (result.status, UNDONE) == (Status.ROLLED_BACK, ["step 2"])
