"""What is measured of workflows that wait: how soon they answer, and what memory they take."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles

from tests.benchmarks.peers.measuring import Figures, Setting, costs, spent

__all__ = ["asked", "parked"]

WARM_UP, PARKED = 100, 900  # together as many as Temporal's worker keeps, and Restate's server serves, by default
ASKS_MAX, ASKS_SECONDS = 500, 8.0


async def asked(setting: Setting, ask: Callable[[int], Awaitable[object]]) -> Figures:
    """How long answers take, one after the other: for a while, or until there are enough."""
    await ask(0)
    took: list[float] = []
    began, cpu = spent(setting)
    while len(took) < ASKS_MAX and time.perf_counter() - began < ASKS_SECONDS:
        asked_at = time.perf_counter()
        await ask(1 + len(took))
        took.append((time.perf_counter() - asked_at) * 1e3)
    ended, cpu_after = spent(setting)
    cuts = quantiles(took, n=100, method="inclusive")
    figures = costs(len(took), [(ended - began, cpu_after - cpu)])
    return {**figures, "p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)}


def _resident_bytes() -> int:
    """What this process has in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def parked(start: Callable[[int], Awaitable[None]]) -> Figures:
    """What this process needs for workflows that wait; *start* returns when the one of that number is about to."""
    for number in range(0, WARM_UP, 50):
        await asyncio.gather(*[start(number + each) for each in range(50)])
    await asyncio.sleep(1)
    before = _resident_bytes()
    for number in range(WARM_UP, WARM_UP + PARKED, 50):
        await asyncio.gather(*[start(number + each) for each in range(50)])
    await asyncio.sleep(1)
    grown = _resident_bytes() - before
    return {"operations": PARKED, "runs": 1, "memory_mb_per_1000": round(grown / PARKED * 1000 / 1e6, 2)}
