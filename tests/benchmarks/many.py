"""What is measured of a runtime: many instances, messages there and back, what waiting costs, how soon it is there.

Unlike the scenarios, these have figures of their own, and some run in fresh processes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median, quantiles

from tests.benchmarks.cells import cells_1, cells_1000, effects_1000, wake_cell
from tests.benchmarks.child import echoing
from tests.benchmarks.expressions import expression
from tests.benchmarks.graphs import dag_10000, dag_100000, firings_100000
from tests.benchmarks.scenarios import sequential
from tests.benchmarks.stores import FOUNDATIONDB, MEMORY, SQLITE_FULL, SQLITE_NORMAL, STORES, Store
from tests.benchmarks.waking import growth, wake_evicted, wake_resident
from workflow_sdk import Client, Context, ContinueAsNew, Handle, Runtime, Workflow, workflow

__all__ = ["MEASUREMENTS", "Measurement"]

CONCURRENT, STEPS = 500, 5
CHILDREN, CHAIN, GENERATIONS = 1000, 200, 1000
ASKS = 1000
PAUSED_ASKS, PAUSE_SECONDS = 20, 0.5
RESIDENT, EVICTED = 3000, (1000, 5000, 20_000)
STARTS = 5

Figures = dict[str, object]


@dataclass(frozen=True)
class Measurement:
    """Something to measure, on a store of its own."""

    name: str
    measure: Callable[[str], Awaitable[Figures]]
    stores: Sequence[Store] = STORES


async def concurrent(url: str) -> Figures:
    """Instances that are started all at once, until the last one has ended."""
    rates: list[float] = []
    async with Runtime(url, workflows=[sequential]) as runtime:
        for _ in range(4):
            began = time.perf_counter()
            await asyncio.gather(*[runtime.run(sequential, STEPS) for _ in range(CONCURRENT)])
            rates.append(CONCURRENT * STEPS / (time.perf_counter() - began))
    # The first time warms up.
    return {"workflows": CONCURRENT, "steps_each": STEPS, "runs": 3, "steps_per_s": round(median(rates[1:]))}


@workflow
async def leaf(ctx: Context, number: int) -> int:
    """A child that does nothing."""
    return number


@workflow
async def parent(ctx: Context, count: int) -> int:
    """Children side by side."""

    async def one(ctx: Context, number: int) -> int:
        return await ctx.child("child", leaf, number)

    return sum(await ctx.map("children", one, range(count)))


@workflow
async def chained(ctx: Context, depth: int) -> int:
    """A child that has a child."""
    return 1 + await ctx.child("child", chained, depth - 1) if depth else 0


@workflow
async def again(ctx: Context, left: int) -> int | ContinueAsNew:
    """One that starts over and over."""
    return ContinueAsNew(left - 1) if left else 7


async def family(url: str) -> Figures:
    """What a child costs among many, and in a chain; and what it costs to start over."""
    flows: list[tuple[Workflow[int, int], int]] = [(parent, CHILDREN), (chained, CHAIN), (again, GENERATIONS)]
    figures: Figures = {}
    async with Runtime(url, workflows=[leaf, *(flow for flow, _ in flows)]) as runtime:
        for flow, count in flows:
            # The first time warms up.
            await runtime.run(flow, 10)
            wall, cpu = time.perf_counter(), time.process_time()
            await runtime.run(flow, count)
            figures[f"{flow.name}_wall_us"] = round((time.perf_counter() - wall) / count * 1e6)
            figures[f"{flow.name}_cpu_us"] = round((time.process_time() - cpu) / count * 1e6)
    return figures


async def _ask(handle: Handle[None], count: int, pause: float = 0.0) -> list[float]:
    """How many milliseconds each of the answers took."""
    took: list[float] = []
    for number in range(count):
        await asyncio.sleep(pause)
        began = time.perf_counter()
        assert await handle.ask("ping", number, timeout=30) == number
        took.append((time.perf_counter() - began) * 1e3)
    return took


async def _round_trips(client: Client) -> Figures:
    handle = await client.start(echoing)
    await _ask(handle, 50)
    cuts = quantiles(await _ask(handle, ASKS), n=100)
    paused = await _ask(handle, PAUSED_ASKS, PAUSE_SECONDS)
    await handle.ask("stop")
    await handle.result()
    return {
        "asks": ASKS,
        "p50_ms": round(cuts[49], 2),
        "p99_ms": round(cuts[98], 2),
        # Each after a while in which nothing happened.
        "p50_ms_after_a_pause": round(median(paused), 2),
    }


async def round_trip(url: str) -> Figures:
    """Ask and answer in one process."""
    async with Runtime(url, workflows=[echoing]) as runtime:
        return await _round_trips(runtime)


@asynccontextmanager
async def _child(*arguments: str) -> AsyncGenerator[asyncio.StreamReader]:
    """A process of its own; what it prints."""
    command = [sys.executable, "-m", "tests.benchmarks.child", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None, "it is a pipe"
    try:
        yield process.stdout
    finally:
        if not process.stdout.at_eof():
            process.terminate()
        await process.wait()


async def round_trip_across(url: str) -> Figures:
    """Ask in one process, and answer in another."""
    async with _child("serve", url) as output:
        await output.readline()
        async with Client(url) as client:
            return await _round_trips(client)


async def parked_resident(url: str) -> Figures:
    """Instances that wait in memory. With `memory://`, what the store keeps of them is in the same memory."""
    async with _child("parked", url, str(RESIDENT)) as output:
        found = json.loads(await output.read())
    per_1000 = found["memory_bytes"] / RESIDENT * 1000
    return {"instances": RESIDENT, "memory_mb_per_1000": round(per_1000 / 1e6, 2)}


async def parked_away(url: str) -> Figures:
    """Instances that wait in the store: how large the process is that has put them there."""
    async with _child("evict", url, *map(str, EVICTED)) as output:
        figures: Figures = json.loads(await output.read())
    return figures


async def _seconds(*command: str) -> float:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    await process.communicate()
    assert process.returncode == 0, command
    return time.perf_counter() - began


async def cold_start(url: str) -> Figures:
    """From the start of a process: the interpreter alone, with the import, until its first workflow is done."""
    bare = [await _seconds("-c", "pass") for _ in range(STARTS)]
    imported = [await _seconds("-c", "import workflow_sdk") for _ in range(STARTS)]
    first: list[float] = []
    for _ in range(STARTS):
        began = time.perf_counter()
        async with _child("first", url) as output:
            assert await output.readline() == b"done\n"
            first.append(time.perf_counter() - began)
            await output.read()  # until it has ended, by itself
    return {
        "runs": STARTS,
        "interpreter_s": round(median(bare), 3),
        "import_s": round(median(imported) - median(bare), 3),
        "first_workflow_s": round(median(first), 3),
    }


MEASUREMENTS = [
    Measurement("concurrent", concurrent),
    Measurement("family", family, stores=(MEMORY, SQLITE_FULL)),
    Measurement("round_trip", round_trip),
    Measurement("round_trip_across", round_trip_across, stores=(SQLITE_FULL, SQLITE_NORMAL, FOUNDATIONDB)),
    Measurement("wake_resident", wake_resident),
    Measurement("wake_evicted", wake_evicted),
    Measurement("growth", growth),
    Measurement("parked", parked_resident, stores=(MEMORY, SQLITE_FULL)),
    Measurement("parked_in_store", parked_away, stores=(MEMORY, SQLITE_FULL)),
    Measurement("cold_start", cold_start, stores=(MEMORY, SQLITE_FULL)),
    Measurement("expression", expression, stores=(MEMORY,)),
    Measurement("graph_firings_100000", firings_100000, stores=(MEMORY, SQLITE_FULL, SQLITE_NORMAL)),
    Measurement("graph_dag_10000", dag_10000, stores=(MEMORY, SQLITE_FULL)),
    Measurement("graph_dag_100000", dag_100000, stores=(MEMORY,)),
    Measurement("cells_1", cells_1),
    Measurement("cells_1000", cells_1000),
    Measurement("effects_1000", effects_1000),
    Measurement("wake_cell", wake_cell, stores=(MEMORY, SQLITE_FULL, FOUNDATIONDB)),
]
