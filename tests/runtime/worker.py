"""A process that runs workflows: `python -m tests.runtime.worker STORE LEASE_TTL`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import anyio

from tests.runtime.parts import naps
from workflow_sdk import Context, Runtime, workflow

__all__ = ["pongs", "slow", "tells"]


@workflow
async def slow(ctx: Context, seconds: float) -> float:
    """A step that takes its time, in a thread."""

    def work() -> float:
        time.sleep(seconds)
        return seconds

    return await ctx.step("work", work)


@workflow
async def pongs(ctx: Context, turns: int) -> int:
    """Answers so many pings, each with its number."""
    for number in range(turns):
        message = await ctx.listen_message(f"ping {number}", "ping")
        await message.reply([message.payload, number])
    return turns


def tell(path: str, what: str) -> str:
    """Leaves a trace of having run."""
    with Path(path).open("a") as file:
        file.write(what + "\n")
    return what


@workflow
async def tells(ctx: Context, given: tuple[str, int]) -> list[Any]:
    """So many steps, each leaving a trace."""
    path, count = given
    return [await ctx.step(f"step {number}", tell, path, str(number)) for number in range(count)]


async def main(url: str, ttl: float) -> None:
    """Until a signal comes."""
    async with Runtime(url, workflows=[slow, pongs, tells, naps], lease_ttl=ttl) as runtime:
        await runtime.serve()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], float(sys.argv[2]))
