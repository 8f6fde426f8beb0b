"""Two plots of what was measured: what a step costs, and what it costs as a history grows."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from math import floor, log10
from pathlib import Path
from typing import Any

from tests.benchmarks.report import OURS, Measured, figures_of

__all__ = ["bars", "curves", "growth_plot", "steps_plot"]

# Told apart in greys and by the colour-blind too; ours is the strong one.
OUR_COLOUR, THEIR_COLOURS = "#00497a", ("#b35900", "#6b6b6b", "#8a3d8f", "#1b7f5c", "#a63446", "#806600", "#3f6fb5")
SALT = "workflow_sdk"

Curve = tuple[str, list[tuple[int, float]]]


def _label(line: Any) -> str:
    return f"{line['subject']}, {line['store']}"


def bars(measured: Measured) -> list[tuple[str, dict[str, float]]]:
    """Microseconds of wall time per step, by subject and scenario; the cheapest first."""
    found: dict[str, dict[str, float]] = {}
    for scenario in ("sequential", "concurrent"):
        for line in measured.of(scenario):
            figures = figures_of(line)
            if "wall_us_per_operation" in figures:
                found.setdefault(_label(line), {})[scenario] = figures["wall_us_per_operation"]
            elif "steps_per_s" in figures:
                found.setdefault(_label(line), {})[scenario] = 1e6 / figures["steps_per_s"]
    return sorted(found.items(), key=lambda each: min(each[1].values()))


def curves(measured: Measured) -> list[Curve]:
    """Microseconds per step, by the length of the history."""
    found: list[Curve] = []
    for line in measured.of("growth"):
        points = sorted((int(at), float(cost)) for at, cost in line.get("us_per_step", {}).items())
        if points:
            found.append((_label(line), points))
    return found


def _pyplot() -> Any:
    """Set up to write text as text, and the same bytes each time."""
    # Not among what tests need, and untyped.
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": SALT,
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.facecolor": "white",
            "axes.facecolor": "white",
        }
    )
    return import_module("matplotlib.pyplot")


def _save(figure: Any, path: Path, title: str) -> None:
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Title": title})


def _plain_ticks(axis: Any) -> None:
    """Numbers as one says them, without powers of ten, and only the round ones."""
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_minor_formatter(lambda *_: "")


def _plainly(value: float) -> str:
    """With the unit that reads best."""
    return f"{value / 1000:,.3g} ms" if value >= 1000 else f"{value:,.0f} µs"


def steps_plot(measured: Measured, path: Path) -> None:
    """Bars for a step in a workflow that is alone, and in one of many; nothing, if neither was measured."""
    rows = bars(measured)
    if not rows:
        return
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.55 * len(rows)))
    for offset, scenario, hatch in ((-0.2, "sequential", ""), (0.2, "concurrent", "///")):
        for row, (label, costs) in enumerate(rows):
            if scenario not in costs:
                continue
            colour = OUR_COLOUR if label.startswith(OURS[0]) else THEIR_COLOURS[1]
            axes.barh(row + offset, costs[scenario], 0.36, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
            axes.text(
                costs[scenario] * 1.08, row + offset, f"{_plainly(costs[scenario])} {scenario}", va="center", size=8
            )
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis)
    axes.set_xlabel("wall time per step, µs (log scale; shorter is better)")
    axes.set_title("What a step costs: one after the other, and in 500 workflows at once", loc="left")
    axes.margins(x=0.25)
    _save(figure, path, "Wall time per step")
    pyplot.close(figure)


def growth_plot(measured: Measured, path: Path) -> None:
    """A line for each subject, with its name at its end; nothing, if none was measured."""
    found = curves(measured)
    if not found:
        return
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 5))
    ends = _spread([points[-1][1] for _, points in found])
    theirs = 0
    for (label, points), end in zip(found, ends, strict=True):
        ours = label.startswith(OURS[0])
        colour = OUR_COLOUR if ours else THEIR_COLOURS[theirs % len(THEIR_COLOURS)]
        theirs += not ours
        at, costs = zip(*points, strict=True)
        axes.plot(at, costs, color=colour, marker="o", linewidth=2.5 if ours else 1.5)
        axes.annotate(
            label, (at[-1], costs[-1]), (at[-1] * 1.15, end), color=colour, va="center", size=9, annotation_clip=False
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    # Whole decades: otherwise few of the ticks are round.
    axes.set_ylim(*_decades([cost for _, points in found for _, cost in points]))
    _plain_ticks(axes.xaxis)
    _plain_ticks(axes.yaxis)
    axes.set_xlabel("steps in the history")
    axes.set_ylabel("wall time of the next step, µs (log scale)")
    axes.set_title("What a step costs as its history grows", loc="left")
    axes.grid(visible=True, which="major", axis="y", color="#dddddd", linewidth=0.6)
    _save(figure, path, "Cost per step against the length of the history")
    pyplot.close(figure)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around the values."""
    return 10.0 ** floor(log10(min(values))), 10.0 ** (floor(log10(max(values))) + 1)


def _spread(values: Sequence[float], factor: float = 1.4) -> list[float]:
    """Heights for labels near the values, far enough from each other on a log scale."""
    placed: dict[int, float] = {}
    lowest = 0.0
    for index in sorted(range(len(values)), key=values.__getitem__):
        lowest = max(values[index], lowest * factor)
        placed[index] = lowest
    return [placed[index] for index in range(len(values))]
