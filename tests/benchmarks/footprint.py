"""`python -m tests.benchmarks.footprint`: bytes of an instance in memory, and of an entry, as tables in Markdown.

Counted by `tracemalloc`: what Python has allocated and not freed, by whose code asked for it. A process has some more,
which the allocator keeps for later.
"""

from __future__ import annotations

import asyncio
import gc
import re
import tempfile
import tracemalloc
from collections import Counter

from tests.benchmarks.child import start_waiting, waiting
from tests.benchmarks.scenarios import nothing
from workflow_sdk import Context, Runtime, Status, open_driver, run_workflow, workflow

__all__ = ["entries", "residents"]

RESIDENT = 2000
ENTRIES = 10_000

OWNERS = (
    ("cancel scopes and task states of anyio", r"/anyio/"),
    ("the task, its frame and context", r"/asyncio/|worker/hosting\.py|weakref|_weakrefset"),
    (
        "frames and parts of the run",
        r"worker/residents\.py|instance/(run|execution|life|session|flushing|calls|outside)\.py",
    ),
    ("the wait: frames, place, entry", r"/operations/|instance/(parking|waits|messages|inbox_reader)\.py"),
    ("records, encoded", r"rows/wire\.py|/values/|drivers/"),
    ("keys, names, journal", r"/workflow_sdk/(rows|journal)/|/fdb/"),
    ("claim and lease", r"worker/(claim\w*|lease)\.py|changes/|doors/(client|runtime)\.py"),
)
"""Whose code asked for it, by its file: the first that fits."""


def _by_owner(found: tracemalloc.Snapshot, before: tracemalloc.Snapshot) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for item in found.compare_to(before, "filename"):
        file = item.traceback[0].filename
        owner = next((name for name, pattern in OWNERS if re.search(pattern, file)), "the rest")
        sizes[owner] += item.size_diff
    return sizes


async def residents(url: str) -> dict[str, float]:
    """Bytes of an instance that has done a step and waits, by whose they are."""
    async with Runtime(url, workflows=[waiting], max_resident=10 * RESIDENT) as runtime:
        await start_waiting(runtime, RESIDENT, RESIDENT)  # what is there once
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.take_snapshot()
        await start_waiting(runtime, RESIDENT, 2 * RESIDENT)
        gc.collect()
        found = _by_owner(tracemalloc.take_snapshot(), before)
        tracemalloc.stop()
    return {name: size / RESIDENT for name, size in found.most_common()}


sizes: list[int] = []
"""What had been allocated, as a workflow saw it."""


@workflow
async def long(ctx: Context, count: int) -> None:
    """Many steps, and then a wait."""
    sizes.append(tracemalloc.get_traced_memory()[0])
    for number in range(count):
        await ctx.step(f"step-{number}", nothing)
    gc.collect()
    sizes.append(tracemalloc.get_traced_memory()[0])
    await ctx.sleep("pause", 3600)


async def entries(url: str) -> dict[str, float]:
    """Bytes of an entry: while the run goes on that made it, when it was just loaded, and when it was replayed."""
    driver, began = await open_driver(url), 0
    for count in (10, ENTRIES):
        sizes.clear()
        tracemalloc.start()
        began = tracemalloc.get_traced_memory()[0]
        made = await run_workflow(long, count, driver=driver, instance_id=f"long-{count}")
        again = await run_workflow(long, count, driver=driver, instance_id=f"long-{count}")
        tracemalloc.stop()
        assert made.status is again.status is Status.SLEEPING
    await driver.aclose()
    return {
        "in the run that made it: its name, and that it is taken": (sizes[1] - sizes[0]) / ENTRIES,
        "loaded, and not come to yet: with its record": (sizes[2] - began) / ENTRIES,
        "loaded, and replayed": (sizes[3] - began) / ENTRIES,
    }


def _table(title: str, rows: dict[str, float]) -> None:
    print(f"| {title} | bytes |\n|---|---:|")
    for name, size in rows.items():
        print(f"| {name} | {size:,.0f} |")
    print()


async def main() -> None:
    """Print it all."""
    with tempfile.TemporaryDirectory() as directory:
        found = await residents(f"sqlite:///{directory}/residents.db")
        _table("an instance that waits in memory", {**found, "**all**": sum(found.values())})
        _table("an entry of a history", await entries(f"sqlite:///{directory}/entries.db"))


if __name__ == "__main__":
    asyncio.run(main())
