"""What is measured of graphs: cycles, fans, chains and layers, whose steps do nothing."""

from __future__ import annotations

import gc
import time
from itertools import pairwise
from statistics import median
from typing import Any

from tests.benchmarks.scenarios import Scenario, nothing, to_the_end
from workflow_sdk import Context, Driver, Workflow, open_driver, run_workflow, workflow
from workflow_sdk.graphs import E, Graph, Limits, arc

__all__ = ["GRAPHS", "dag_10000", "dag_100000", "firings_100000"]

Figures = dict[str, object]

WIDTH = 10
EDGE = 1000
"""So many firings are the first ones, and the last ones."""
RUNS = 3

passed: list[tuple[float, float]] = []
"""Wall and CPU time when steps of the cycle were run, in this process."""

cycle = Graph("cycle")


@cycle.step(next=[arc("turn", when=E.output > 0, args=E.output)])
async def turn(ctx: Context, left: int) -> int:
    """Leads to itself, until nothing is left."""
    passed.append((time.perf_counter(), time.process_time()))
    return left - 1


def fan(count: int) -> Graph:
    """Steps side by side, and one that needs them all."""
    graph = Graph(f"fan_{count}")
    names = [f"step-{number}" for number in range(count)]
    for name in names:
        graph.step(name, nothing)
    graph.step("joined", nothing, needs=names)
    return graph


async def of_item(item: int) -> int:
    """A step that costs nothing itself, for one item."""
    return item


fan_out = Graph("fan_out")
fan_out.fan_out("fan", of_item, over=E.workload, then=len)


def chain(count: int) -> Graph:
    """Steps, each of which leads to the next."""
    graph = Graph(f"chain_{count}")
    for number in range(count):
        graph.step(f"step-{number}", nothing, next=[f"step-{number + 1}"] if number + 1 < count else [])
    return graph


def layers(count: int) -> Graph:
    """Steps, ten wide: each needs the one above it."""
    graph = Graph(f"layers_{count}", limits=Limits(running=WIDTH))
    for number in range(count):
        graph.step(f"step-{number}", nothing, needs=[f"step-{number - WIDTH}"] if number >= WIDTH else [])
    return graph


@workflow
async def mapping(ctx: Context, count: int) -> int:
    """The same steps without a graph: ten at once."""

    async def one(ctx: Context, item: int) -> int:
        return await ctx.step("step", nothing)

    return len(await ctx.map("all", one, range(count), limit=WIDTH))


GRAPHS = [
    Scenario("graph_firings_1000", 1000, to_the_end(cycle, 1000)),
    Scenario("graph_fan_1000", 1000, to_the_end(fan(1000), None)),
    Scenario("graph_fan_out_1000", 1000, to_the_end(fan_out, list(range(1000)))),
    Scenario("graph_chain_1000", 1000, to_the_end(chain(1000), None)),
    Scenario("graph_dag_1000", 1000, to_the_end(layers(1000), None)),
]


async def _cost(driver: Driver, flow: Workflow[Any, Any], value: object, count: int) -> tuple[float, float]:
    """Microseconds of wall and CPU time of each of so many steps."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result = await run_workflow(flow, value, driver=driver)
    assert result.status.name == "COMPLETED", result
    each = 1e6 / count
    return (time.perf_counter() - wall) * each, (time.process_time() - cpu) * each


def _gaps(which: str, times: list[tuple[float, float]]) -> Figures:
    """Microseconds from one to the next: the median of wall time, and CPU time."""
    wall = median(after - before for (before, _), (after, _) in pairwise(times))
    cpu = (times[-1][1] - times[0][1]) / (len(times) - 1)
    return {f"us_of_the_{which}_{EDGE}": round(wall * 1e6, 1), f"cpu_us_of_the_{which}_{EDGE}": round(cpu * 1e6, 1)}


async def firings_100000(url: str) -> Figures:
    """A long cycle; and what a firing costs at its beginning and at its end."""
    driver = await open_driver(url)
    try:
        await _cost(driver, cycle, EDGE, EDGE)  # this warms up
        passed.clear()
        wall, cpu = await _cost(driver, cycle, 100_000, 100_000)
    finally:
        await driver.aclose()
    return {
        "wall_us_per_operation": round(wall, 1),
        "cpu_us_per_operation": round(cpu, 1),
        **_gaps("first", passed[: EDGE + 1]),
        **_gaps("last", passed[-EDGE - 1 :]),
    }


async def dag_10000(url: str) -> Figures:
    """Layers of a graph beside a map of as many steps, in turns."""
    graph, count = layers(10_000), 10_000
    driver = await open_driver(url)
    try:
        found = [
            (*await _cost(driver, graph, None, count), *await _cost(driver, mapping, count, count))
            for _ in range(RUNS + 1)
        ]
    finally:
        await driver.aclose()
    # The first time warms up.
    wall, cpu, map_wall, map_cpu = (median(each) for each in zip(*found[1:], strict=True))
    return {
        "runs": RUNS,
        "wall_us_per_operation": round(wall, 1),
        "cpu_us_per_operation": round(cpu, 1),
        "map_wall_us": round(map_wall, 1),
        "map_cpu_us": round(map_cpu, 1),
        "times_the_map": round(wall / map_wall, 2),
        "times_the_map_in_cpu": round(cpu / map_cpu, 2),
    }


async def dag_100000(url: str) -> Figures:
    """A large graph, once."""
    driver = await open_driver(url)
    try:
        await _cost(driver, layers(1000), None, 1000)  # this warms up
        began = time.perf_counter()
        graph = layers(100_000)
        graph.check()
        checked = time.perf_counter() - began
        wall, cpu = await _cost(driver, graph, None, 100_000)
    finally:
        await driver.aclose()
    return {
        "wall_us_per_operation": round(wall, 1),
        "cpu_us_per_operation": round(cpu, 1),
        "to_declare_and_check_s": round(checked, 2),
    }
