"""Law 11: whatever ends a workflow compensates, and a RollbackError ends it from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.laws import undoing
from tests.laws.undoing import undo, undone
from tests.support import World
from workflow_sdk import Context, CriticalError, RollbackError, Status, workflow


@pytest.fixture(autouse=True)
def nothing_undone() -> Iterator[None]:
    """Every test begins with nothing undone."""
    undone.clear()
    yield
    undone.clear()


class OddError(Exception):
    """Can't be made without its arguments."""

    def __init__(self, one: int, *, two: object) -> None:
        super().__init__()
        self.one, self.two = one, two


def raises(error: Exception) -> Any:
    async def fail(ctx: Context) -> None:
        raise error

    return fail


async def fail_in_join(ctx: Context) -> None:
    await ctx.join("join", {"a": raises(KeyError("a"))})


async def fail_in_race(ctx: Context) -> None:
    await ctx.race("race", {"a": raises(KeyError("a"))})


async def fail_in_listen(ctx: Context) -> None:
    await ctx.listen("never", timeout=1)


async def fail_in_step(ctx: Context) -> None:
    await ctx.step("refuse", undoing.refuse)


async def fail_in_loop(ctx: Context) -> None:
    async def turn(ctx: Context, state: object) -> None:
        raise KeyError("a")

    await ctx.loop("loop", turn)


async def fail_in_cancellation(ctx: Context) -> None:
    import asyncio

    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.parametrize(
    "fail",
    [
        raises(ValueError("no")),
        raises(OddError(1, two=object())),
        raises(ExceptionGroup("several", [KeyError("a"), OSError(2, "b")])),
        raises(RollbackError("undo it")),
        raises(CriticalError("no")),
        raises(StopIteration()),
        raises(TimeoutError()),
        fail_in_join,
        fail_in_race,
        fail_in_listen,
        fail_in_step,
        fail_in_loop,
        fail_in_cancellation,
    ],
)
async def test_any_uncaught_exception_compensates(world: World, fail: Any) -> None:
    if fail is fail_in_cancellation and world.setting.backend == "trio":
        pytest.skip("in trio nothing but a cancelled scope cancels")

    @workflow
    async def trip(ctx: Context) -> None:
        await ctx.step("book", undoing.name, "hotel", rollback=undo)
        await fail(ctx)

    result = await world.run(trip)
    assert result.status is Status.ROLLED_BACK
    assert result.error is not None
    assert undone == ["hotel"]


@pytest.mark.parametrize("inside", ["attempt", "join", "race", "map", "loop"])
async def test_a_rollback_error_passes_through_every_scope(world: World, inside: str) -> None:
    after: list[str] = []

    async def give_up() -> None:
        raise RollbackError("give up")

    @workflow
    async def trip(ctx: Context) -> None:
        async def part(ctx: Context, state: object = None) -> None:
            await ctx.step("give up", give_up)

        async def other(ctx: Context) -> None:
            await ctx.sleep("nap", 1)

        await ctx.step("book", undoing.name, "hotel", rollback=undo)
        if inside == "attempt":
            await ctx.attempt("part", part)
        elif inside == "join":
            await ctx.join("part", {"a": part, "b": other})
        elif inside == "race":
            await ctx.race("part", {"a": part, "b": other})
        elif inside == "map":
            await ctx.map("part", part, [1])
        else:
            await ctx.loop("part", part)
        after.append(inside)

    result = await world.run(trip)
    assert result.status is Status.ROLLED_BACK
    assert result.error is not None
    assert result.error.type == "workflow_sdk.errors.RollbackError"
    assert (after, undone) == ([], ["hotel"])


@pytest.mark.parametrize("inside", ["step", "attempt", "join", "race"])
async def test_an_author_can_stop_a_rollback_error(world: World, inside: str) -> None:
    tried: list[str] = []

    async def give_up() -> None:
        tried.append("give up")
        raise RollbackError("give up")

    @workflow
    async def trip(ctx: Context) -> str:
        async def part(ctx: Context) -> None:
            await ctx.step("give up", give_up)

        await ctx.step("book", undoing.name, "hotel", rollback=undo)
        try:
            if inside == "step":
                await ctx.step("give up", give_up)
            elif inside == "attempt":
                await ctx.attempt("part", part)
            elif inside == "join":
                await ctx.join("part", {"a": part})
            else:
                await ctx.race("part", {"a": part})
        except RollbackError as error:
            await ctx.sleep("nap", 5)
            return str(error)
        return "nothing happened"

    result = await world.run(trip)
    assert (result.status, result.output) == (Status.COMPLETED, "give up")
    # It is not retried.
    assert (tried, undone) == (["give up"], [])
