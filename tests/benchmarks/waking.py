"""What it costs to go on after a wait, and what a step costs, whatever has happened before."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from tests.benchmarks.scenarios import nothing
from workflow_sdk import Context, Driver, Handle, Runtime, open_driver, run_workflow, workflow

__all__ = ["growth", "wake_evicted", "wake_resident"]

Figures = dict[str, object]

HISTORIES = (100, 5_000)
WAKES = 200
WAKES_FROM_STORE = 9
GROWN_TO = {100: 30, 1_000: 5, 10_000: 3, 100_000: 1}
"""How often each is measured: the short ones are over before the machine is warm."""

ended: list[float] = []
"""When steps ended, in this process."""


class Woken:
    """When a workflow went on after its wait, in this process."""

    at = 0.0
    event = asyncio.Event()

    @classmethod
    def goes_on(cls) -> None:
        """It does so now."""
        cls.at = time.perf_counter()
        cls.event.set()


@workflow
async def waking(ctx: Context, steps: int) -> None:
    """A history, and then waits."""
    for number in range(steps):
        await ctx.step(f"step-{number}", nothing)
    number = 0
    while await ctx.listen(f"go-{number}", "go"):
        Woken.goes_on()
        number += 1


@workflow
async def growing(ctx: Context, steps: int) -> None:
    """Steps, and the time after each."""
    for number in range(steps):
        await ctx.step(f"step-{number}", nothing)
        ended.append(time.perf_counter())


async def _until_waiting(handle: Handle[None], wake: str) -> None:
    async for info in handle.watch():
        if any(wait.name == wake for wait in info.waits):
            return


async def _took(handle: Handle[None], number: int, *, evict: bool) -> tuple[float, float]:
    """Until the workflow goes on with a message, in milliseconds: since it was sent, and since it was stored."""
    await _until_waiting(handle, f"go-{number}")
    if evict:
        await handle.evict()
        await asyncio.sleep(0.05)
    Woken.event = asyncio.Event()
    sent = time.perf_counter()
    await handle.send("go", True)
    stored = time.perf_counter()
    await Woken.event.wait()
    return (Woken.at - sent) * 1e3, (Woken.at - stored) * 1e3


async def _wakes(url: str, count: int, *, evict: bool) -> Figures:
    figures: Figures = {"runs": count}
    async with Runtime(url, workflows=[waking]) as runtime:
        for steps in HISTORIES:
            handle = await runtime.start(waking, steps)
            took = [await _took(handle, number, evict=evict) for number in range(count)]
            figures[f"p50_ms_after_{steps}"] = round(median(stored for _, stored in took), 3)
            figures[f"p50_ms_after_{steps}_with_sending"] = round(median(sent for sent, _ in took), 3)
            await handle.cancel()
    return figures


async def wake_resident(url: str) -> Figures:
    """From a message that is stored, to an instance that waits in memory, until its code goes on with it."""
    return await _wakes(url, WAKES, evict=False)


async def wake_evicted(url: str) -> Figures:
    """The same for one that waits in the store: claimed, loaded, and replayed."""
    return await _wakes(url, WAKES_FROM_STORE, evict=True)


async def growth(url: str) -> Figures:
    """The cost of a step when the history is so long already."""
    driver: Driver = await open_driver(url)
    try:
        marks: dict[int, list[float]] = {mark: [] for mark in GROWN_TO}
        for mark, runs in GROWN_TO.items():
            # A tenth to each side of the mark is its cost: that has the store's own housekeeping in it.
            first, last = mark - mark // 10, mark + mark // 10
            for _ in range(runs):
                ended.clear()
                await run_workflow(growing, last + 1, driver=driver)
                marks[mark].append((ended[last] - ended[first]) / (last - first) * 1e6)
        return {"us_per_step": {str(mark): round(median(found), 1) for mark, found in marks.items()}}
    finally:
        await driver.aclose()
