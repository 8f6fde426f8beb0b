"""A thousand children, a hundred at a time, and a progress that everybody can see.

Each child is an instance of its own: you can look at it, cancel it and mend it by itself, and it runs on any worker
that has room. Branches of a `map` without children cost less; they are all in one instance, with one history.

python examples/thousand_children.py
"""

from __future__ import annotations

import asyncio
import time

from workflow_sdk import Context, Runtime, workflow

EMAILS = 1000
AT_ONCE = 100


async def deliver(address: int) -> bool:
    return address % 100 != 7  # some bounce


@workflow
async def email(ctx: Context, address: int) -> bool:
    return await ctx.step(deliver, address)


async def send(ctx: Context, address: int) -> bool:
    return await ctx.child("email", email, address)


@workflow
async def campaign(ctx: Context, emails: int) -> str:
    delivered = 0
    for first in range(0, emails, AT_ONCE):
        batch = range(first, min(first + AT_ONCE, emails))
        delivered += sum(await ctx.map(f"emails from {first}", send, batch))
        ctx.progress(batch.stop, emails, "sent")
    return f"{delivered} delivered, {emails - delivered} bounced"


async def main() -> None:
    async with Runtime("memory://", workflows=[campaign, email]) as runtime:
        began = time.monotonic()
        handle = await runtime.start(campaign, EMAILS, id="spring")
        seen = None
        async for info in handle.watch():  # whenever something has changed
            if info.progress not in (None, seen):
                seen = info.progress
                print(f"  {seen.done} of {seen.total} {seen.note}")
        print(await handle.result())
        print(f"{EMAILS / (time.monotonic() - began):.0f} children per second")
        child = runtime.handle(email, "spring/emails from 700/7/email")
        print(f"{child.id}: {(await child.info()).status}")


if __name__ == "__main__":
    asyncio.run(main())
