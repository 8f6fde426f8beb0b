"""`python -m tests.benchmarks.report LINES ... [--out DIRECTORY]`: tables and plots of what was measured.

Reads lines of JSON as the benchmarks print them, and writes a table per scenario between two markers of
`performance.md`, and two plots beside it. The same lines give the same files. With several files of lines, what a later
one has of a scenario replaces what was measured of it before: so a few scenarios can be measured anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "BEGIN",
    "END",
    "OURS",
    "Measured",
    "figures_of",
    "headline",
    "markdown",
    "merged",
    "ratio",
    "read",
    "replaced",
    "table",
]

Line = Mapping[str, Any]

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
OURS = ("workflow_sdk", "SQLite full")
SELF_EVIDENT = {"scenario", "subject", "version", "store", "runs", "operations", "skipped"} | {
    # What the words above the table say, and what the whole measurement took.
    "workflows",
    "steps_each",
    "asks",
    "entries",
    "instances",
    "wall_s",
    "cpu_s",
}

WORDS = {
    "sequential": "1,000 steps of one workflow, one after the other: time per step. Temporal also with local "
    "activities, and with its limit of polls raised.",
    "loop": "10,000 turns of a loop, a step in each: time per turn.",
    "replay_1000": "A workflow comes back to where it was, over 1,000 recorded steps.",
    "replay_10000": "The same over 10,000.",
    "join": "1,000 branches side by side, a step in each.",
    "join_large": "10,000 of them.",
    "value_1kB": "Steps with values of 1 kB.",
    "value_100kB": "Steps with values of 100 kB.",
    "expression": "A guard of a graph, parsed and evaluated; and a comprehension over a list of 100 items.",
    "draw_graph_200": "A graph of 200 steps and half as many arcs again, laid out and drawn.",
    "draw_graph_1000": "The same with 1,000 steps.",
    "draw_graph_10000": "The same with 10,000.",
    "graph_validate_1000": "A graph of 1,002 steps and 2,000 arcs, half of them with a guard and all with "
    "arguments: declared, checked, made data and read again, hashed, laid out, drawn. What has to check the graph "
    "first has that in its time.",
    "graph_firings_1000": "A step of a graph that leads to itself by a guard, 1,000 times: time per firing. "
    "LangGraph is run by `invoke` and by `ainvoke`: the figures are those of the faster, here and below. What keeps "
    "nothing until it has ended is compared with ours in memory.",
    "graph_firings_100000": "The same 100,000 times; and what a firing costs among the first 1,000 and among the "
    "last, in wall time the median.",
    "graph_fan_1000": "1,000 steps of a graph that are declared side by side, and one that needs them all: time "
    "per step.",
    "graph_fan_out_1000": "The same with steps that come to be in the run, one for each item of a list: "
    "`fan_out`, `Send` of LangGraph, `map` of pydantic-graph.",
    "graph_chain_1000": "1,000 steps of a graph, each of which leads to the next.",
    "graph_dag_1000": "1,000 steps of a graph, ten wide: each needs the one above it.",
    "graph_dag_10000": "10,000 of them, at most ten at once; beside `ctx.map` over 10,000 items with a step each,"
    " ten at once.",
    "graph_dag_100000": "100,000 of them.",
    "cells_1": "Events to one cell of a machine, one after the other: from sending the first until the last is taken. "
    "Restate: calls of a virtual object that counts them.",
    "cells_1000": "The same with 1,000 cells at once, five events each.",
    "effects_1000": "1,000 effects of as many cells: asked for, begun after the commit, answered, heard of.",
    "wake_cell": "From sending an event until it is taken, where a new process has the store, and the cell has made so "
    "many transitions.",
    "concurrent": "500 workflows of 5 steps, started at once in one process, until the last has ended.",
    "family": "Time per child of 1,000, per link of a chain of 200 (each a child of the one before), and per "
    "generation of a workflow that starts over 1,000 times.",
    "round_trip": "A question to a workflow that waits, and its answer, in one process. DBOS on SQLite polls; beside "
    "its default, with an interval of 10 ms.",
    "round_trip_across": "The same from another process.",
    "wake_resident": "From a stored message until the workflow goes on with it, while it waits in memory, with 100 and "
    "5,000 entries behind it; with the sending in it, too.",
    "wake_evicted": "The same when it waits in the store: it is claimed, loaded and replayed.",
    "growth": "Time per step when the history is so long already.",
    "parked": "Memory of the worker's process for 1,000 workflows that wait.",
    "parked_in_store": "How large the process is when so many were evicted, and what is stored of each. What is "
    "stored in memory is in the same process.",
    "cold_start": "From the start of a process until its first workflow is done; servers run already.",
}
"""What was measured, for readers of the page."""

TITLES = {
    "wall_us_per_operation": "wall, µs each",
    "cpu_us_per_operation": "CPU, µs each",
    "steps_per_s": "steps/s",
    "transitions_per_s": "transitions/s",
    "effects_per_s": "effects/s",
    "entries": "entries",
    "entries_per_cpu_s": "entries per CPU second",
    "memory_mb_per_1000": "MB per 1,000",
    "stored_bytes_each": "stored, bytes each",
    "import_s": "import, s",
    "first_workflow_s": "first workflow, s",
    "interpreter_s": "interpreter, s",
    "us_to_parse": "to parse it, µs",
    "us_per_guard": "to evaluate it, µs",
    "us_per_100_items": "the comprehension, µs",
    "declare_ms": "declare, ms",
    "validate_ms": "validate, ms",
    "to_data_ms": "to_data, ms",
    "from_data_ms": "from_data, ms",
    "hash_ms": "hash, ms",
    "layout_ms": "layout, ms",
    "svg_ms": "SVG, ms",
    "us_of_the_first_1000": "wall of the first 1,000, µs each",
    "cpu_us_of_the_first_1000": "CPU of the first 1,000, µs each",
    "us_of_the_last_1000": "wall of the last 1,000, µs each",
    "cpu_us_of_the_last_1000": "CPU of the last 1,000, µs each",
    "map_wall_us": "wall of the map, µs each",
    "map_cpu_us": "CPU of the map, µs each",
    "times_the_map": "times the map, wall",
    "times_the_map_in_cpu": "times the map, CPU",
    "to_declare_and_check_s": "to declare and check it, s",
    "wall_us_by_invoke": "wall by `invoke`, µs each",
    "wall_us_by_ainvoke": "wall by `ainvoke`, µs each",
}
GROWING = {"us_per_step": "µs per step", "process_mb": "MB of the process"}
"""What is measured at several sizes."""
# What a scenario is about, the first that it has: from this come the ratios.
HEADLINES = (
    "steps_per_s",
    "entries_per_cpu_s",
    "p50_ms",
    "us_per_step at 1000",
    "memory_mb_per_1000",
    "first_workflow_s",
    "wall_us_per_operation",
)
MORE_IS_BETTER = {"steps_per_s", "entries_per_cpu_s"}


@dataclass(frozen=True)
class Measured:
    """What is in the lines."""

    machine: Mapping[str, Any]
    date: str
    lines: Sequence[Line]
    skipped: Sequence[Line]

    def scenarios(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(line["scenario"] for line in self.lines))

    def of(self, scenario: str) -> list[Line]:
        """Ours first, then in the order in which they were measured."""
        found = [line for line in self.lines if line["scenario"] == scenario]
        return sorted(found, key=lambda line: line["subject"] != OURS[0])


def read(text: str) -> Measured:
    """Sort lines of JSON: what it was measured on, what was measured, what couldn't be."""
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    head: Line = next((line for line in lines if "machine" in line), {})
    rest = [line for line in lines if "machine" not in line]
    return Measured(
        machine=head.get("machine", {}),
        date=str(head.get("date", "")),
        lines=[line for line in rest if "skipped" not in line],
        skipped=[line for line in rest if "skipped" in line],
    )


def merged(runs: Sequence[Measured]) -> Measured:
    """One run of several on one machine: of each scenario, the last one that has it. ValueError for two machines."""
    if any(run.machine != runs[0].machine for run in runs):
        raise ValueError("these were measured on different machines: their figures can't be compared")
    lines: list[Line] = []
    skipped: list[Line] = []
    for run in runs:
        anew = {line["scenario"] for line in (*run.lines, *run.skipped)}
        lines = [line for line in lines if line["scenario"] not in anew] + [*run.lines]
        skipped = [line for line in skipped if line["scenario"] not in anew] + [*run.skipped]
    dates = dict.fromkeys(run.date for run in runs)
    return Measured(runs[0].machine, " and ".join(dates), lines, skipped)


def figures_of(line: Line) -> dict[str, float]:
    """The numbers of a line; those of a mapping one by one."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if name in SELF_EVIDENT:
            continue
        if isinstance(value, Mapping):
            found.update({f"{name} at {at}": float(each) for at, each in value.items()})
        elif isinstance(value, int | float):
            found[name] = float(value)
    return found


def _title(name: str) -> str:
    if name in TITLES:
        return TITLES[name]
    figure, at, number = name.rpartition(" at ")
    if at and figure in GROWING:
        return f"{GROWING[figure]} at {int(number):,}"
    return name.replace("_", " ")


def _number(value: float | None) -> str:
    """Three digits that count, at least; thousands apart; nothing for nothing."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def headline(lines: Sequence[Line], ours: Line | None) -> str | None:
    """What the subjects of a scenario are compared by: something that ours has, and another too."""
    if ours is None:
        return None
    have = [figures_of(line) for line in lines]
    shared = (name for name in HEADLINES if name in figures_of(ours) and sum(name in each for each in have) > 1)
    return next(shared, None)


def ratio(line: Line, ours: Line, name: str) -> float | None:
    """How many times what ours costs: more than one is dearer."""
    mine, theirs = figures_of(ours).get(name), figures_of(line).get(name)
    if not mine or not theirs:
        return None
    return mine / theirs if name in MORE_IS_BETTER else theirs / mine


def table(lines: Sequence[Line]) -> list[str]:
    """The rows of a scenario in Markdown."""
    ours = {str(line.get("store")): line for line in lines if line["subject"] == OURS[0]}
    compared = headline(lines, ours.get(OURS[1]))
    names = list(dict.fromkeys(name for line in lines for name in figures_of(line)))
    titles = ["", "store", *map(_title, names)]
    several = any("beside" in line for line in lines)
    if compared is not None:
        titles.append(f"{_title(compared)}: times ours on {'...' if several else OURS[1]}")
    rows = [_row(titles), "|---|---|" + "--:|" * (len(titles) - 2)]
    for line in lines:
        figures = figures_of(line)
        cells = [_subject(line), str(line.get("store", "")), *(_number(figures.get(name)) for name in names)]
        if compared is not None:
            cells.append(_compared(line, ours, compared, several))
        rows.append(_row(cells))
    return rows


def _compared(line: Line, ours: Mapping[str, Line], name: str, several: bool) -> str:
    """How many times what ours costs on the store that it is compared with, which is named if there are several."""
    store = str(line.get("beside", OURS[1]))
    if line["subject"].startswith(OURS[0]) or store not in ours:
        return ""
    number = _number(ratio(line, ours[store], name))
    return f"{store}: {number}" if several and number else number


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _subject(line: Line) -> str:
    # Of the bare loop, the version is that of the machine's Python.
    return (
        str(line["subject"])
        if line["subject"] == "bare loop"
        else f"{line['subject']} {line.get('version', '')}".strip()
    )


def markdown(measured: Measured) -> str:
    """All the tables, and what they were measured on."""
    parts: list[str] = []
    if measured.machine:
        told = ", ".join(f"{name} {value}" for name, value in measured.machine.items())
        parts += [f"Measured on {measured.date}: {told}.", ""]
    for scenario in measured.scenarios():
        words = [WORDS[scenario], ""] if scenario in WORDS else []
        parts += [f"### {scenario}", "", *words, *table(measured.of(scenario)), ""]
    if measured.skipped:
        parts += ["Not measured:", ""]
        parts += [f"- {_left_out(line)}" for line in measured.skipped]
        parts.append("")
    return "\n".join(parts)


def _left_out(line: Line) -> str:
    what = [_subject(line), str(line.get("store") or ""), str(line.get("scenario") or "")]
    return f"{', '.join(filter(None, what))}: {line['skipped']}"


def replaced(page: str, figures: str) -> str:
    """The page with other figures between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} and {END} on the page")
    return f"{before}{BEGIN}\n\n{figures.strip()}\n\n{END}{after}"


def main(arguments: Iterable[str] | None = None) -> None:
    """Write the tables and the plots."""
    from tests.benchmarks.plots import growth_plot, steps_plot

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.report", description=__doc__)
    parser.add_argument("lines", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    options = parser.parse_args(None if arguments is None else list(arguments))
    measured = merged([read(path.read_text()) for path in options.lines])
    page = options.out / "performance.md"
    text = page.read_text() if page.exists() else f"# Performance\n\n{BEGIN}\n{END}\n"
    page.write_text(replaced(text, markdown(measured)))
    steps_plot(measured, options.out / "performance-steps.svg")
    growth_plot(measured, options.out / "performance-growth.svg")


if __name__ == "__main__":
    main()
