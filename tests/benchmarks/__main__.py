"""`python -m tests.benchmarks [scenario ...]`: measure, and print one line of JSON per scenario and store.

Every scenario runs a few times, each on an instance of its own; the line tells the median. CPU time is that of the
whole process, the store's threads included; of the measurements in `many.py`, also that of the processes they start.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.benchmarks.many import MEASUREMENTS, measured
from tests.benchmarks.scenarios import SCENARIOS, Scenario
from workflow_sdk import Driver, open_driver

RUNS = 5


async def measure(scenario: Scenario, store: str, driver: Driver) -> dict[str, object]:
    """What the scenario costs on a store: microseconds per operation."""
    wall: list[float] = []
    cpu: list[float] = []
    for number in range(RUNS + 1):
        instance_id = f"{scenario.name}-{number}"
        if scenario.prepare is not None:
            await scenario.prepare(driver, instance_id)
        gc.collect()
        wall_began, cpu_began = time.perf_counter(), time.process_time()
        await scenario.run(driver, instance_id)
        cpu.append((time.process_time() - cpu_began) / scenario.operations * 1e6)
        wall.append((time.perf_counter() - wall_began) / scenario.operations * 1e6)
    # The first run warms up: imports, caches, the file.
    return {
        "scenario": scenario.name,
        "store": store,
        "operations": scenario.operations,
        "runs": RUNS,
        "wall_us_per_operation": round(median(wall[1:]), 1),
        "cpu_us_per_operation": round(median(cpu[1:]), 1),
    }


async def main(wanted: list[str]) -> None:
    """Measure what is wanted, or all."""
    with tempfile.TemporaryDirectory() as directory:
        for scenario in SCENARIOS:
            if wanted and scenario.name not in wanted:
                continue
            for store, url in (("memory", "memory://"), ("sqlite", f"sqlite:///{Path(directory)}/{scenario.name}.db")):
                driver = await open_driver(url)
                try:
                    print(json.dumps(await measure(scenario, store, driver)), flush=True)
                finally:
                    await driver.aclose()
        for measurement in MEASUREMENTS:
            if wanted and measurement.name not in wanted:
                continue
            urls = {"memory": "memory://", "sqlite": f"sqlite:///{Path(directory)}/{measurement.name}.db"}
            for store in measurement.stores:
                print(json.dumps(await measured(measurement, store, urls[store])), flush=True)


asyncio.run(main(sys.argv[1:]))
