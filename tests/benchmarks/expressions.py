"""What it costs to build an expression and to evaluate it."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from workflow_sdk.graphs.expressions import parse

__all__ = ["expression"]

TEXT = "output.kind == 'bug' and output.score > 0.5 and 'urgent' in output.tags"
SCOPE = {"output": {"kind": "bug", "score": 0.7, "tags": ["small", "urgent"]}}
TURNS = "sum(item.price * item.count for item in output.items if item.count > 0)"
ITEMS = {"output": {"items": [{"price": number, "count": number % 3} for number in range(100)]}}
RUNS = 7


def _each(run: Callable[[], object], times: int) -> float:
    """Microseconds of one call, the median of some runs."""
    took: list[float] = []
    for _ in range(RUNS):
        began = time.perf_counter()
        for _ in range(times):
            run()
        took.append((time.perf_counter() - began) / times * 1e6)
    return median(took)


async def expression(url: str) -> dict[str, object]:
    """A guard as graphs have them, steps counted; and a comprehension. No store has a part in it."""
    guard, turns = parse(TEXT), parse(TURNS)
    assert guard.test(SCOPE)
    return {
        "runs": RUNS,
        "us_to_parse": round(_each(lambda: parse(TEXT), 500), 1),
        "us_per_guard": round(_each(lambda: guard.test(SCOPE), 20_000), 2),
        "us_per_100_items": round(_each(lambda: turns.evaluate(ITEMS), 500), 1),
    }
