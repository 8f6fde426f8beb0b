"""The diagrams of docs/design.md that are made from the sources: `python -m tests.diagrams` writes them anew."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from workflow_sdk.rows.status import ENTRY_MOVES, STATUS_MOVES, EntryStatus, Status

__all__ = ["PAGE", "with_diagrams"]

State = TypeVar("State", bound=StrEnum)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "design.md"

WORDS = {
    "cli": "the command line",
    "web": "HTTP",
    "testing": "the testing kit",
    "doors": "Client and Runtime",
    "features": "schedules, retention, checking replays",
    "graphs": "steps and arcs, run by tokens",
    "machines": "cells, events and effects",
    "worker": "runs many instances",
    "client": "starts and reaches them",
    "instance": "one run of one instance",
    "context": "what a workflow is given",
    "operations": "one module for each verb",
    "changes": "decisions that write",
    "definitions": "@workflow and @step",
    "codecs": "encryption",
    "verdicts": "whether something may be done",
    "driver": "the contract of stores",
    "journal": "one instance in memory",
    "values": "authors' values and bytes",
    "rows": "every row of ours",
    "errors": "every exception",
}


def layers() -> str:
    """The layers, as import-linter has them: each imports what is under it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    lines, above = ["flowchart TD"], list[str]()
    for layer in found:
        names = [name.strip(" ()") for name in layer.split("|")]
        # A room that is only planned is not drawn.
        names = [name for name in names if any((ROOT / "workflow_sdk").glob(f"{name}*"))]
        lines += [f'    {name}["{name}<br/>{WORDS[name]}"]' for name in names]
        lines += [f"    {over} --> {name}" for over in above for name in names]
        above = names or above
    return "\n".join(lines)


def states(moves: Mapping[State, frozenset[State]], first: State, together: Mapping[str, set[State]]) -> str:
    """A table of states as a diagram. States that go the same ways are drawn as one."""
    name = {state: label for label, group in together.items() for state in group}
    edges = {
        (name.get(state, state.value), name.get(to, to.value))
        for state, tos in moves.items()
        for to in tos
        if name.get(state, state.value) != name.get(to, to.value)
    }
    ends = [state.value for state, tos in moves.items() if not tos]
    lines = ["stateDiagram-v2", f"    [*] --> {name.get(first, first.value)}"]
    for label, group in together.items():
        lines.append(f'    state "{", ".join(sorted(state.value for state in group))}" as {label}')
    lines += [f"    {state} --> {to}" for state, to in sorted(edges)]
    lines += [f"    {end} --> [*]" for end in sorted(ends)]
    return "\n".join(lines)


def diagrams() -> dict[str, str]:
    """The diagrams, by the names that they have on the page."""
    awake = {Status.RUNNING, Status.SLEEPING, Status.WAITING}
    return {
        "layers": layers(),
        "states of an instance": states(STATUS_MOVES, Status.PENDING, {"awake": awake}),
        "states of an entry": states(ENTRY_MOVES, EntryStatus.RUNNING, {}),
    }


def with_diagrams(page: str) -> str:
    """The page, with the diagrams as they are now."""
    for name, diagram in diagrams().items():
        begin, end = f"<!-- {name}, from the sources -->", f"<!-- end of {name} -->"
        assert begin in page, f"docs/design.md has no place for {name}"
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = f"{before}{begin}\n```mermaid\n{diagram}\n```\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_diagrams(PAGE.read_text()))
    print(f"{PAGE.relative_to(ROOT)} was brought up to date")
