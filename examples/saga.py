"""Book a trip, or none of it: what was booked is cancelled, newest first, when a later booking fails.

python examples/saga.py
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from workflow_sdk import Context, CriticalError, open_driver, run_workflow, workflow


async def book(what: str) -> str:
    if what == "car":
        raise CriticalError("no car is left")  # another attempt would not help
    print(f"  booked the {what}")
    return f"booking of the {what}"


async def cancel(booking: str) -> None:  # gets what the step returned
    print(f"  cancelled the {booking}")


@workflow
async def trip(ctx: Context, parts: list[str]) -> list[str]:
    return [await ctx.step(part, book, part, rollback=cancel) for part in parts]


async def main() -> None:
    async with aclosing(await open_driver("memory://")) as driver:
        for instance_id, parts in {"by-train": ["flight", "hotel"], "by-car": ["flight", "hotel", "car"]}.items():
            print(instance_id)
            result = await run_workflow(trip, parts, driver=driver, instance_id=instance_id)
            print(f"  {result.status}: {result.output or result.error}")


if __name__ == "__main__":
    asyncio.run(main())
