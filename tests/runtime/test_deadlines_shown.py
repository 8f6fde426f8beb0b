"""What is shown of a deadline is not before it, so that nobody comes back too early."""

from __future__ import annotations

from typing import Any

from workflow_drivers.memory import MemoryDriver
from workflow_sdk import Backoff, Client, Context, run_workflow, workflow
from workflow_sdk.testing import VirtualClock

SECONDS = 1 / 3
"""From the clock's start, a time that is more than its nearest microsecond."""


async def fails() -> None:
    raise OSError("not yet")


@workflow
async def naps(ctx: Context) -> None:
    await ctx.sleep("nap", SECONDS)


@workflow
async def listens(ctx: Context) -> Any:
    return await ctx.listen("m", timeout=SECONDS, default=None)


@workflow
async def asks(ctx: Context) -> Any:
    return (await ctx.task("approve", assignee="clerk", timeout=SECONDS)).value


@workflow
async def retries(ctx: Context) -> None:
    await ctx.step("fails", fails, backoff=Backoff(initial=SECONDS, jitter=0))


@workflow(retention=SECONDS)
async def ends(ctx: Context) -> None:
    return


async def test_no_deadline_is_shown_before_it() -> None:
    driver = MemoryDriver()
    clock = VirtualClock()
    deadline = clock.time() + SECONDS
    async with Client(driver, clock=clock) as client:
        for flow in (naps, listens, asks, retries):
            await run_workflow(flow, driver=driver, instance_id=flow.name, clock=clock)
            info = await client.handle(flow, flow.name).info()
            (wait,) = info.waits
            assert info.wake_at is not None, flow.name
            assert wait.until is not None, flow.name
            assert info.wake_at.timestamp() >= deadline, flow.name
            assert wait.until.timestamp() >= deadline, flow.name
        (task,) = (await client.tasks.list()).items
        assert task.until is not None
        assert task.until.timestamp() >= deadline
        await run_workflow(ends, driver=driver, instance_id="ends", clock=clock)
        purge_at = (await client.handle(ends, "ends").info()).purge_at
        assert purge_at is not None
        assert purge_at.timestamp() >= deadline
