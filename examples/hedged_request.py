"""Ask a second service when the first one is slow, and take the answer that comes first. The other is cancelled.

python examples/hedged_request.py
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from workflow_sdk import Context, open_driver, run_workflow, workflow

SECONDS = {"primary": 30.0, "backup": 0.01}


async def ask(service: str) -> str:
    print(f"  asking {service}")
    try:
        await asyncio.sleep(SECONDS[service])
    except asyncio.CancelledError:
        print(f"  {service} was cancelled")
        raise
    return f"the answer of {service}"


async def primary(ctx: Context) -> str:
    return await ctx.step("ask", ask, "primary")


async def backup(ctx: Context) -> str:
    await ctx.sleep("head start", 0.1)
    return await ctx.step("ask", ask, "backup")


@workflow
async def quote(ctx: Context) -> str:
    first = await ctx.race("hedge", {"primary": primary, "backup": backup})
    return f"{first.winner} won: {first.value}"


async def main() -> None:
    async with aclosing(await open_driver("memory://")) as driver:
        for start in ("first run", "second run, from the record"):
            print(start)
            result = await run_workflow(quote, driver=driver, instance_id="quote-1", mode="live")
            print(f"  {result.status}: {result.output}")


if __name__ == "__main__":
    asyncio.run(main())
