"""A thousand children, a hundred at a time, and how far it is, for whoever looks.

Each child is an instance of its own: it can be looked at, cancelled and mended by itself, and runs wherever there is
room. Branches of a `map` without children cost less; they are all in one instance, with one history.

python examples/thousand_children.py
"""

from __future__ import annotations

import asyncio
import time

from workflow_sdk import Context, Runtime, workflow

MAILS = 1000
AT_ONCE = 100


async def deliver(address: int) -> bool:
    return address % 100 != 7  # some bounce


@workflow
async def mail(ctx: Context, address: int) -> bool:
    return await ctx.step(deliver, address)


async def send(ctx: Context, address: int) -> bool:
    return await ctx.child("mail", mail, address)


@workflow
async def campaign(ctx: Context, mails: int) -> str:
    delivered = 0
    for first in range(0, mails, AT_ONCE):
        batch = range(first, min(first + AT_ONCE, mails))
        delivered += sum(await ctx.map(f"mails from {first}", send, batch))
        ctx.progress(batch.stop, mails, "sent")
    return f"{delivered} delivered, {mails - delivered} bounced"


async def main() -> None:
    async with Runtime("memory://", workflows=[campaign, mail]) as runtime:
        began = time.monotonic()
        handle = await runtime.start(campaign, MAILS, id="spring")
        seen = None
        async for info in handle.watch():  # whenever something has changed
            if info.progress not in (None, seen):
                seen = info.progress
                print(f"  {seen.done} of {seen.total} {seen.note}")
        print(await handle.result())
        print(f"{MAILS / (time.monotonic() - began):.0f} children per second")
        child = runtime.handle(mail, "spring/mails from 700/7/mail")
        print(f"{child.id}: {(await child.info()).status}")


if __name__ == "__main__":
    asyncio.run(main())
