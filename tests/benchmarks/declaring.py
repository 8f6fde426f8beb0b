"""How long it takes to declare a graph, to check it, to make data of it, and to draw it; no store has to do with it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

from workflow_sdk import Context
from workflow_sdk.graphs import E, Graph, arc

__all__ = ["declare_graph"]

SIZE, WIDTH, RUNS = 1000, 10, 5


async def score(ctx: Context, args: dict[str, float]) -> dict[str, float]:
    """What each of the steps does."""
    return args


def declared() -> Graph:
    """Rows of ten: a guard leads on to the row below, and another way to the step beside that."""
    graph = Graph("validated", functions=[score])
    rows = range(0, SIZE, WIDTH)
    graph.step("begin", score, mode="inclusive", next=[f"step-{column}" for column in range(WIDTH)])
    for row in rows:
        for column in range(WIDTH):
            below = [row + WIDTH + column, row + WIDTH + (column + 1) % WIDTH] if row + WIDTH < SIZE else []
            when = [E.output.score > 0.5, None]
            arcs = [
                arc(f"step-{number}", when=guard, args={"score": E.output.score})
                for number, guard in zip(below, when, strict=False)
            ]
            graph.step(f"step-{row + column}", score, next=arcs)
    graph.step("end", score, needs=[f"step-{SIZE - WIDTH + column}" for column in range(WIDTH)], join="alive")
    return graph


def _ms(call: Callable[[Graph], object]) -> float:
    """Milliseconds of a call, each time for a graph that has not been looked at."""
    took: list[float] = []
    for _ in range(RUNS):
        graph = declared()
        gc.collect()
        began = time.perf_counter()
        call(graph)
        took.append((time.perf_counter() - began) * 1e3)
    return round(median(took), 1)


def declare_graph() -> list[dict[str, object]]:
    """Milliseconds of each; a call that has to check the graph first has that in its time."""
    assert not declared().validate()
    data = declared().to_data()
    return [
        {
            "scenario": "graph_validate_1000",
            "nodes": len(declared().nodes),
            "runs": RUNS,
            "declare_ms": _ms(lambda _: declared()),
            "validate_ms": _ms(Graph.validate),
            "to_data_ms": _ms(Graph.to_data),
            "from_data_ms": _ms(lambda _: Graph.from_data(data, functions=[score])),
            "hash_ms": _ms(lambda graph: graph.hash),
            "layout_ms": _ms(Graph.layout),
            "svg_ms": _ms(Graph.to_svg),
        }
    ]
