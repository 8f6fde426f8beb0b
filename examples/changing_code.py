"""Change a workflow while instances of it are asleep: say what was removed, and what is new.

The three functions stand for three releases of the same file.

python examples/changing_code.py
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta

from workflow_sdk import Context, Driver, Workflow, open_driver, run_workflow, workflow
from workflow_sdk.testing import VirtualClock

TRIAL = timedelta(days=14)


async def tell(user: str, what: str) -> None:
    print(f"  {user}: {what}")


@workflow(name="onboarding")
async def release_1(ctx: Context, user: str) -> str:
    await ctx.step("account", tell, user, "your account is ready")
    await ctx.step("fax", tell, user, "we have sent you a fax")
    await ctx.sleep("trial", TRIAL)
    await ctx.step("ask", tell, user, "how was it?")
    return "done"


@workflow(name="onboarding")
async def careless_release(ctx: Context, user: str) -> str:
    await ctx.step("account", tell, user, "your account is ready")
    await ctx.step("tour", tell, user, "come on a tour")  # where the history says "fax"
    await ctx.sleep("trial", TRIAL)
    await ctx.step("ask", tell, user, "how was it?")
    return "done"


@workflow(name="onboarding")
async def release_2(ctx: Context, user: str) -> str:
    await ctx.step("account", tell, user, "your account is ready")
    await ctx.removed("fax", "step")
    if await ctx.version("with tour", 2) >= 2:  # 1 for instances that passed this point before there was a tour
        await ctx.step("tour", tell, user, "come on a tour")
    await ctx.sleep("trial", TRIAL)
    await ctx.step("ask", tell, user, "how was it?")
    return "done"


async def main() -> None:
    clock = VirtualClock()
    async with aclosing(await open_driver("memory://")) as driver:
        print("release 1")
        await run(release_1, "old-user", driver, clock)
        clock.advance(TRIAL)
        print("a careless release: nothing is run, nothing is lost")
        await run(careless_release, "old-user", driver, clock)
        print("release 2: the old user goes on, a new one takes the tour")
        await run(release_2, "old-user", driver, clock)
        await run(release_2, "new-user", driver, clock)


async def run(release: Workflow[str, str], user: str, driver: Driver, clock: VirtualClock) -> None:
    result = await run_workflow(release, user, driver=driver, instance_id=user, clock=clock)
    print(f"  {user} is {result.status}" + (f": {result.error.message}" if result.error else ""))


if __name__ == "__main__":
    asyncio.run(main())
