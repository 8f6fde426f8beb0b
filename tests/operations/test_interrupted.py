"""Operations that the author's own code cancels."""

from __future__ import annotations

import anyio
import pytest

from tests.hasty_clock import hasty_clock
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Context, Status, workflow

pytestmark = pytest.mark.law(15)


async def test_an_operation_under_a_timeout_of_ones_own_is_a_mistake(world: World) -> None:
    ran: list[str] = []

    async def effect() -> None:
        ran.append("effect")

    async def blocked(scope: anyio.CancelScope) -> None:
        scope.deadline = anyio.current_time()
        await anyio.sleep_forever()

    @workflow
    async def impatient(ctx: Context) -> None:
        with anyio.move_on_after(PATIENCE) as scope:
            await ctx.step("slow", blocked, scope)
        await ctx.step("after", effect)

    result = await world.run(impatient)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert "step 'slow' was cancelled by a timeout or scope of the code's own" in result.error.message
    assert "`timeout`" in result.error.message
    assert ran == []


async def test_it_is_found_at_the_end_of_the_scope_too(world: World) -> None:
    async def blocked(scope: anyio.CancelScope) -> None:
        scope.deadline = anyio.current_time()
        await anyio.sleep_forever()

    @workflow
    async def impatient(ctx: Context) -> str:
        async def branch(ctx: Context) -> None:
            with anyio.move_on_after(PATIENCE) as scope:
                await ctx.step("slow", blocked, scope)

        await ctx.join("both", {"a": branch, "b": branch})
        return "done"

    result = await world.run(impatient)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert "both/a/slow" in result.error.message or "both/b/slow" in result.error.message


async def test_a_lost_branch_is_not_interrupted(world: World) -> None:
    world.clock = hasty_clock()

    async def blocked() -> None:
        await anyio.sleep_forever()

    @workflow
    async def race(ctx: Context) -> str:
        async def slow(ctx: Context) -> str:
            await ctx.step("slow", blocked)
            return "slow"

        async def quick(ctx: Context) -> str:
            await ctx.sleep("nap", 1)
            return "quick"

        return (await ctx.race("race", {"slow": slow, "quick": quick})).value

    result = await world.run(race)
    assert (result.status, result.output) == (Status.COMPLETED, "quick")
