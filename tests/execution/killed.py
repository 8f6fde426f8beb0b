"""A process to be killed: `python -m tests.execution.killed DATABASE LOG STEPS HANG_AT`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import anyio

from workflow_sdk import Context, open_driver, run_workflow, workflow


def do(log: str, number: int, hang_at: int) -> int:
    """A step: notes that it ran; hangs, if it is the one to be killed in."""
    with Path(log).open("a") as file:
        file.write(f"{number}\n")
    if number == hang_at:
        time.sleep(60)
    return number


@workflow
async def count(ctx: Context, given: tuple[str, int]) -> int:
    log, steps = given
    total = 0
    for number in range(steps):
        total += await ctx.step(f"step {number}", do, log, number, hang_at[0])
    return total


hang_at = [-1]
"""Not of the input: only the process that is to be killed hangs."""


async def main(database: str, log: str, steps: int) -> None:
    driver = await open_driver(f"sqlite:///{database}")
    await run_workflow(count, (log, steps), driver=driver, instance_id="i")
    await driver.aclose()


if __name__ == "__main__":
    hang_at[0] = int(sys.argv[4])
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
