"""How long a graph takes to lay out and to draw; no store has to do with it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

from workflow_sdk.graphs.drawing import Drawing, Line, Shape, layout, to_svg

__all__ = ["draw_graphs"]

SIZES = (200, 1000, 10_000)
WIDTH, RUNS = 10, 5


def graph_of(size: int) -> Drawing:
    """Rows of ten, half as many lines again as nodes: most from row to row, the others over up to four of them."""
    names = [f"step_{number}" for number in range(size)]
    # Numbers that look like chance and are the same everywhere.
    above = [number - WIDTH - number * 7919 % WIDTH for number in range(2 * WIDTH, size)]
    lines = [Line(names[source], name) for source, name in zip(above, names[2 * WIDTH :], strict=True)]
    for number in range(size // 2):
        source = number * 6151 % (size - 5 * WIDTH)
        target = (source // WIDTH + 1) * WIDTH + number * 3571 % (4 * WIDTH)
        lines.append(Line(names[source], names[target], "output.score > 0.5" if number % 4 == 0 else ""))
    return Drawing(tuple(map(Shape, names)), tuple(lines), f"{size} nodes")


def _median_ms(call: Callable[[Drawing], object], drawing: Drawing) -> float:
    took: list[float] = []
    for _ in range(RUNS):
        gc.collect()
        began = time.perf_counter()
        call(drawing)
        took.append((time.perf_counter() - began) * 1e3)
    return round(median(took), 1)


def draw_graphs() -> list[dict[str, object]]:
    """Milliseconds of a layout, and of the whole picture; a line for each size."""
    return [
        {
            "scenario": f"draw_graph_{size}",
            "nodes": size,
            "lines": len(drawing.lines),
            "runs": RUNS,
            "layout_ms": _median_ms(layout, drawing),
            "svg_ms": _median_ms(to_svg, drawing),
        }
        for size in SIZES
        for drawing in [graph_of(size)]
    ]
