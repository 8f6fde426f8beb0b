"""`ctx.step`."""

from __future__ import annotations

from tests.support import World
from workflow_sdk import Context, Status, workflow


async def test_a_step_runs_once_and_gives_its_value(world: World) -> None:
    ran: list[int] = []

    async def charge(amount: int) -> int:
        ran.append(amount)
        return amount * 2

    @workflow
    async def pay(ctx: Context, amount: int) -> int:
        first = await ctx.step("charge", charge, amount)
        await ctx.sleep("pause", 60)
        return first

    result = await world.run(pay, 21)
    assert (result.status, result.output) == (Status.COMPLETED, 42)
    assert ran == [21]
