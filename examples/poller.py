"""Ask for the state of a slow export again and again, with pauses that grow to an hour. On a virtual clock, hours take
no time.

python examples/poller.py
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace

from workflow_sdk import Break, Context, Continue, open_driver, run_workflow, workflow
from workflow_sdk.testing import VirtualClock


@dataclass(frozen=True)
class Watch:
    """The state of the loop: stored, so that it goes on where it was."""

    job: str
    asked: int = 0
    pause: float = 60.0


@dataclass(frozen=True)
class Export:
    url: str
    asked: int


async def is_ready(job: str, asked: int) -> bool:
    """Stands for a call to a slow service."""
    return asked >= 12


async def ask(ctx: Context, watch: Watch) -> Continue[Watch] | Break[Export]:
    if await ctx.step(is_ready, watch.job, watch.asked):
        return Break(Export(f"https://example.org/{watch.job}.csv", watch.asked))
    await ctx.sleep("pause", watch.pause)
    return Continue(replace(watch, asked=watch.asked + 1, pause=min(watch.pause * 2, 3600.0)))


@workflow
async def export(ctx: Context, job: str) -> str:
    begun = ctx.now()
    done = await ctx.loop("watch", ask, Watch(job))
    hours = (ctx.now() - begun).total_seconds() / 3600
    return f"{done.url} after {done.asked} questions in {hours:.0f} hours"


async def main() -> None:
    async with aclosing(await open_driver("memory://")) as driver:
        result = await run_workflow(
            export, "invoices", driver=driver, instance_id="export-1", mode="live", clock=VirtualClock()
        )
        print(f"{result.status}: {result.output}")


if __name__ == "__main__":
    asyncio.run(main())
