"""What an operation costs, in things that can be counted: they are the same on every machine and under any load."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import workflow_sdk
from tests.laws.counting_driver import WatchedDriver
from workflow_sdk import Driver

__all__ = ["Bill", "bill_of"]

OURS = str(Path(workflow_sdk.__file__).parent)
CLOCK = f"{OURS}/testing/"

RUNS = 5

Run = Callable[[Driver, int], Awaitable[None]]


@dataclass
class Bill:
    """What was asked of the store, and how often something was called."""

    commits: float = 0
    writes: float = 0
    """Keys and ranges that were written."""
    reads: float = 0
    """Gets and scans."""
    calls: float = 0
    """Functions of this library that were entered, or a coroutine of it that went on."""
    c_calls: float = 0
    """Calls that they made of functions written in C."""

    def excess(self, budget: Bill) -> dict[str, float]:
        """What is dearer than it may be."""
        allowed = vars(budget)
        return {name: found for name, found in vars(self).items() if found > allowed[name]}

    def minus(self, other: Bill, operations: int) -> Bill:
        """The cost of each of the operations that this one has more than the other."""
        mine, theirs = vars(self), vars(other)
        return Bill(**{name: round((mine[name] - theirs[name]) / operations, 2) for name in mine})


async def bill_of(driver: Driver, run: Run, operations: int = 100) -> Bill:
    """The cost of one operation, of a run that makes as many as it is told: what a run itself costs is not in it."""
    await run(driver, 3)  # what is done once is done by now: imports, caches
    few = await _least(driver, run, operations)
    many = await _least(driver, run, 2 * operations)
    return many.minus(few, operations)


async def _least(driver: Driver, run: Run, operations: int) -> Bill:
    """The least that several such runs cost: whoever waits looks the more often the slower a store is."""
    bills = [vars(await _bill(driver, run, operations)) for _ in range(RUNS)]
    return Bill(**{name: min(bill[name] for bill in bills) for name in bills[0]})


async def _bill(driver: Driver, run: Run, operations: int) -> Bill:
    watched, bill = WatchedDriver(driver), Bill()

    def count(frame: FrameType, event: str, argument: object) -> None:
        # Event loops and stores take turns by the time on the wall; the virtual clock looks round until all is quiet.
        file = frame.f_code.co_filename
        if file.startswith(OURS) and not file.startswith(CLOCK):
            if event == "call":
                bill.calls += 1
            elif event == "c_call":
                bill.c_calls += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        await run(watched, operations)
    finally:
        sys.setprofile(before)
    bill.commits, bill.writes, bill.reads = len(watched.commits), sum(watched.commits), watched.asked
    return bill
