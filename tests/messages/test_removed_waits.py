"""Code that does not ask for a task or a child any more, in instances that wait for one."""

from __future__ import annotations

import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import until_status
from tests.runtime.polling import until
from workflow_sdk import Client, Context, Driver, Runtime, StaleError, Status, workflow


@workflow
async def patient(ctx: Context) -> str:
    return await ctx.listen("never", type=str)


@workflow(name="order")
async def before(ctx: Context) -> str:
    async def asks(ctx: Context) -> None:
        await ctx.task("approve")

    async def delegates(ctx: Context) -> None:
        await ctx.child("help", patient)

    await ctx.join("both", {"asks": asks, "delegates": delegates})
    return "approved"


@workflow(name="order")
async def after(ctx: Context) -> str:
    await ctx.removed("both", "join")
    await ctx.sleep("a moment", 0.01)
    return "simpler"


async def test_nobody_is_asked_any_more(driver: Driver) -> None:
    async with Client(driver) as client:
        async with Runtime(driver, workflows=[before, patient]) as runtime:
            await until_status(await runtime.start(before, id="i"), Status.WAITING)
            (task,) = (await client.tasks.list()).items
            await until_status(client.handle(patient, "i/both/delegates/help"), Status.WAITING)
        async with Runtime(driver, workflows=[after, patient]) as runtime:
            await runtime.handle(after, "i").wake()
            assert await runtime.handle(after, "i").result(timeout=PATIENCE) == "simpler"

            async def is_cancelled() -> bool:
                return (await client.handle(patient, "i/both/delegates/help").info()).status is Status.CANCELLED

            await until(is_cancelled)
        assert (await client.tasks.list()).items == []
        with pytest.raises(StaleError, match="cancelled"):
            await client.tasks.complete(task.id, by="anna")
