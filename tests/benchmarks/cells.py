"""What is measured of machines: transitions, effects with their receipts, and waking a cell that has made many."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from workflow_sdk import Runtime
from workflow_sdk.machines import EffectReceipt, Manifest, Transition, effect, executor, machine, route

__all__ = ["cells_1", "cells_1000", "effects_1000", "wake_cell"]

Figures = dict[str, object]

CELLS, EACH = 1000, 5
IN_A_ROW = 1000
EFFECTS = 1000
TRANSITIONS = (100, 5_000)
"""After how many a cell is woken."""
RUNS = 3


@dataclass(frozen=True)
class Tick:
    """Counts up the cell of its key."""

    key: str


@dataclass(frozen=True)
class Ask:
    """Has an effect of the cell of its key."""

    key: str


nothing = effect("nothing@1", params=None, receipt=int)


@machine("counter", state=int, event=Tick, key=str, effects=[])
def counter(state: int | None, event: Any, ctx: Any) -> Transition[int]:
    """Counts its events."""
    return Transition((state or 0) + 1)


@machine("asker", state=int, event=Ask | EffectReceipt, key=str, effects=[nothing])
def asker(state: int | None, event: Any, ctx: Any) -> Transition[int]:
    """Asks for an effect, and hears of it."""
    return Transition((state or 0) + 1, effects=[nothing()] if isinstance(event, Ask) else [])


@executor(nothing)
async def do_nothing(params: None, intent: Any) -> int:
    """Does nothing."""
    return 1


manifest = Manifest(
    machines=[counter, asker],
    routes=[route(Tick, counter, key_field="key"), route(Ask, asker, key_field="key")],
)


async def _until(runtime: Runtime, of: Any, cells: int, revision: int) -> None:
    """Return once every cell has made so many transitions."""
    for number in range(cells):
        await _revision(runtime, of, str(number), revision)


async def _transitions(url: str, cells: int, each: int) -> Figures:
    """Events are emitted one after the other for each cell, and side by side for several; until all are taken."""
    rates: list[float] = []
    async with Runtime(url, machines=manifest) as runtime:
        await asyncio.gather(*[runtime.emit(Tick(str(number))) for number in range(cells)])
        await _until(runtime, counter, cells, 1)

        async def one(number: int) -> None:
            for _ in range(each):
                await runtime.emit(Tick(str(number)))

        for run in range(RUNS):
            began = time.perf_counter()
            await asyncio.gather(*[one(number) for number in range(cells)])
            await _until(runtime, counter, cells, 1 + each * (run + 1))
            rates.append(cells * each / (time.perf_counter() - began))
    return {"cells": cells, "events_each": each, "runs": RUNS, "transitions_per_s": round(median(rates))}


async def cells_1(url: str) -> Figures:
    """One cell, and one event after the other."""
    return await _transitions(url, 1, IN_A_ROW)


async def cells_1000(url: str) -> Figures:
    """Many cells at once."""
    return await _transitions(url, CELLS, EACH)


async def effects_1000(url: str) -> Figures:
    """Effects of many cells at once: asked for, begun, answered, heard of."""
    rates: list[float] = []
    async with Runtime(url, machines=manifest, executors=[do_nothing]) as runtime:
        for run in range(RUNS + 1):
            began = time.perf_counter()
            await asyncio.gather(*[runtime.emit(Ask(str(number))) for number in range(EFFECTS)])
            await _until(runtime, asker, EFFECTS, 2 * (run + 1))
            rates.append(EFFECTS / (time.perf_counter() - began))
    # The first time, the cells begin.
    return {"effects": EFFECTS, "runs": RUNS, "effects_per_s": round(median(rates[1:]))}


async def wake_cell(url: str) -> Figures:
    """The first event of a process to a cell that has made few transitions, or many."""
    figures: Figures = {}
    for number, count in enumerate(TRANSITIONS):
        key = str(number)
        async with Runtime(url, machines=manifest, inbox_max=2 * max(TRANSITIONS)) as runtime:
            for first in range(0, count, 500):
                await asyncio.gather(*[runtime.emit(Tick(key)) for _ in range(first, min(first + 500, count))])
            await _revision(runtime, counter, key, count)
        waits: list[float] = []
        for run in range(RUNS):
            async with Runtime(url, machines=manifest) as runtime:
                began = time.perf_counter()
                await runtime.emit(Tick(key))
                await _revision(runtime, counter, key, count + run + 1)
                waits.append((time.perf_counter() - began) * 1000)
        figures[f"ms_after_{count}"] = round(median(waits), 1)
    return {**figures, "runs": RUNS}


async def _revision(runtime: Runtime, of: Any, key: str, revision: int) -> None:
    while (await runtime.cell(of, key)).revision < revision:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
