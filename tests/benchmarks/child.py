"""What benchmarks run in processes of their own: `python -m tests.benchmarks.child COMMAND URL ...`."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path

from workflow_sdk import Break, Context, Continue, Driver, Runtime, open_driver, workflow

__all__ = ["echoing", "one_step", "start_waiting", "waiting"]

WARM_UP = 500


async def nothing() -> int:
    """A step that costs nothing itself."""
    return 1


@workflow
async def one_step(ctx: Context) -> int:
    """As short as a workflow gets."""
    return await ctx.step(nothing)


@workflow
async def echoing(ctx: Context) -> None:
    """Answers what it is asked, until it is told to stop."""

    async def turn(ctx: Context, state: None) -> Continue[None] | Break[None]:
        message = await ctx.listen_message("message", ["ping", "stop"])
        await message.reply(message.payload)
        return Break(None) if message.name == "stop" else Continue(None)

    await ctx.loop("turns", turn)


@workflow
async def waiting(ctx: Context) -> None:
    """A step, and then a long wait."""
    await ctx.step(nothing)
    await ctx.listen("message", timeout=timedelta(days=30))


async def serve(url: str) -> None:
    """A worker."""
    async with Runtime(url, workflows=[echoing, one_step]) as runtime:
        print("ready", flush=True)
        await runtime.serve()


async def first(url: str) -> None:
    """Run one workflow."""
    async with Runtime(url, workflows=[one_step]) as runtime:
        assert await runtime.run(one_step) == 1
        print("done", flush=True)


def _resident_bytes() -> int:
    """What this process has in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _stored_bytes(driver: Driver) -> int:
    """Keys and values; what a store adds of its own is not counted."""
    total, begin = 0, b""
    while rows := await driver.scan(begin, b"\xff", limit=10_000):
        total += sum(len(key) + len(value) for key, value in rows)
        begin = rows[-1][0] + b"\x00"
    return total


async def start_waiting(runtime: Runtime, count: int, total: int) -> None:
    """Start many, and wait until all that were started so far wait."""
    for begin in range(0, count, 500):
        await asyncio.gather(*[runtime.start(waiting) for _ in range(begin, min(begin + 500, count))])
    while True:
        waits = 0
        cursor: str | None = None
        while True:
            page = await runtime.list(status="waiting", limit=1000, cursor=cursor)
            waits, cursor = waits + len(page.items), page.cursor
            if cursor is None:
                break
        if waits == total:
            return
        await asyncio.sleep(0.1)


async def parked(url: str, count: str) -> None:
    """Start many that wait in memory; tell by what this process has grown."""
    async with Runtime(url, workflows=[waiting], max_resident=1_000_000) as runtime:
        await start_waiting(runtime, WARM_UP, WARM_UP)
        before = _resident_bytes()
        await start_waiting(runtime, int(count), WARM_UP + int(count))
        grown = _resident_bytes() - before
        assert runtime.resident == WARM_UP + int(count), runtime.resident
    print(json.dumps({"memory_bytes": grown}), flush=True)


async def evict(url: str, *counts: str) -> None:
    """Start ever more that wait in the store; tell how large the process is at each count, and the store at the end."""
    process: dict[str, float] = {}
    driver = await open_driver(url)
    async with Runtime(driver, workflows=[waiting], max_resident=1) as runtime:
        begun = 0
        for count in counts:
            await start_waiting(runtime, int(count) - begun, int(count))
            begun = int(count)
            while runtime.resident > 1:  # noqa: ASYNC110  # there is nothing to wait for but the figure itself
                await asyncio.sleep(0.1)
            process[count] = round(_resident_bytes() / 1e6, 1)
        stored = await _stored_bytes(driver)
    await driver.aclose()
    print(json.dumps({"process_mb": process, "stored_bytes_each": round(stored / begun)}), flush=True)


COMMANDS: dict[str, Callable[..., Coroutine[None, None, None]]] = {
    "serve": serve,
    "first": first,
    "parked": parked,
    "evict": evict,
}

if __name__ == "__main__":
    asyncio.run(COMMANDS[sys.argv[1]](*sys.argv[2:]))
