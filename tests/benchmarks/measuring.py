"""How long things take: wall and CPU time, of this process and those it started."""

from __future__ import annotations

import gc
import os
import time
from statistics import median

from tests.benchmarks.many import Figures, Measurement
from tests.benchmarks.scenarios import Scenario
from workflow_sdk import open_driver

__all__ = ["measured", "timed"]

RUNS = 5


async def timed(scenario: Scenario, store: str, url: str) -> Figures:
    """The line of a scenario: microseconds per operation, the median of some runs.

    Each is on an instance of its own. CPU time is that of the whole process, the store's threads included.
    """
    wall: list[float] = []
    cpu: list[float] = []
    driver = await open_driver(url)
    try:
        for number in range(RUNS + 1):
            instance_id = f"{scenario.name}-{number}"
            if scenario.prepare is not None:
                await scenario.prepare(driver, instance_id)
            gc.collect()
            wall_began, cpu_began = time.perf_counter(), time.process_time()
            await scenario.run(driver, instance_id)
            cpu.append((time.process_time() - cpu_began) / scenario.operations * 1e6)
            wall.append((time.perf_counter() - wall_began) / scenario.operations * 1e6)
    finally:
        await driver.aclose()
    # The first run warms up: imports, caches, the file.
    figures: Figures = {
        "scenario": scenario.name,
        "store": store,
        "operations": scenario.operations,
        "runs": RUNS,
        "wall_us_per_operation": round(median(wall[1:]), 1),
        "cpu_us_per_operation": round(median(cpu[1:]), 1),
    }
    if scenario.name.startswith("replay"):
        figures["entries_per_cpu_s"] = round(1e6 / median(cpu[1:]))
    return figures


def spent() -> tuple[float, float]:
    """Wall and CPU time so far; the latter with that of processes that have ended."""
    times = os.times()
    return times.elapsed, times.user + times.system + times.children_user + times.children_system


async def measured(measurement: Measurement, store: str, url: str) -> Figures:
    """The line of a measurement."""
    wall, cpu = spent()
    figures = await measurement.measure(url)
    wall_after, cpu_after = spent()
    times = {"wall_s": round(wall_after - wall, 2), "cpu_s": round(cpu_after - cpu, 2)}
    return {"scenario": measurement.name, "store": store, **figures, **times}
