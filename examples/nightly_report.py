"""A report every night at three. A night without a runtime is made up for. On a virtual clock, nights take no time.

python examples/nightly_report.py
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from workflow_sdk import Client, Context, Runtime, workflow
from workflow_sdk.testing import VirtualClock

clock = VirtualClock(datetime(2026, 3, 27, 12, tzinfo=UTC))  # without one, a program uses the real time
emails: asyncio.Queue[str] = asyncio.Queue()


async def total(of: str) -> int:
    """Stands for a slow query."""
    return 4990


async def email(text: str) -> None:
    await emails.put(f"{clock.now():%d %B, %H:%M} UTC: {text}")
    await emails.join()  # somebody reads it before the next night comes


@workflow
async def report(ctx: Context, of: str) -> None:
    cents = await ctx.step(total, of)
    text = f"{of} of the night, {cents / 100:.2f}, by {ctx.instance_id}"
    await ctx.step(email, text)


async def work(store: str, nights: int) -> None:
    """Serve for some nights. Any number of processes may do this."""
    async with Runtime(store, workflows=[report], clock=clock) as runtime:
        # Every process may call this when it starts: the same schedule again changes nothing.
        await runtime.schedule("nightly", report, "sales", cron="0 3 * * *", timezone="Europe/Berlin")
        for left in reversed(range(nights)):
            print(" ", await emails.get())
            if not left:
                await runtime.schedules.pause("nightly")  # a clock that jumps would not wait until we leave
            emails.task_done()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder, 'reports.db')}"
        print("two nights; in the second one, the clocks are put forward")
        await work(store, 2)
        async with Client(store, clock=clock) as client:
            print("paused, and resumed:", (await client.schedules.resume("nightly")).paused)
            print("nobody is there for two nights and a morning")
            clock.advance(timedelta(days=2, hours=6))
            print("somebody is there again")
            await work(store, 2)
            print("listed:", [schedule.id for schedule in await client.schedules.list()])


if __name__ == "__main__":
    asyncio.run(main())
