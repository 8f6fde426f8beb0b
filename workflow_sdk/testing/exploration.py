"""What `explore` has found in a graph, as data and in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Exploration", "Finding", "FindingKind"]

FindingKind = Literal["stall", "unreachable", "waiting_join", "unbounded"]

_WORDS: dict[str, str] = {
    "stall": "the run waits for ever: a token of {node} is not admitted, and nothing in the graph changes that",
    "unreachable": "{node} is never run",
    "waiting_join": "the join {node} never has enough of what it needs",
    "unbounded": "tokens without bound: {node} adds more of them in each pass",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a graph."""

    kind: FindingKind
    node: str
    """The step that it is about."""
    way: tuple[str, ...] = ()
    """What happens on the shortest way there, one event after the other. Empty: it is so on every way."""

    def __str__(self) -> str:
        told = _WORDS[self.kind].format(node=repr(self.node))
        return "\n".join([told, *(f"  {number}. {event}" for number, event in enumerate(self.way, 1))])


@dataclass(frozen=True, slots=True)
class Exploration:
    """What was found on all ways that a run of a graph can take. `str` of it tells each with the way there."""

    graph: str
    findings: list[Finding] = field(default_factory=list[Finding])
    """Empty if the graph is sound."""
    states: int = 0
    """How many different states were seen."""
    is_complete: bool = True
    """Whether every way was walked to its end. If not, steps and joins may have been missed that a longer way reaches:
    then only those are told of which the arcs and needs alone say that they are never run."""

    def __str__(self) -> str:
        seen = f"{self.states} state{'s' * (self.states != 1)}"
        how_far = f"{seen}, every way to its end" if self.is_complete else f"the first {seen}; there are more"
        if not self.findings:
            return f"{self.graph}: nothing found in {how_far}"
        return "\n".join([f"{self.graph}: {len(self.findings)} found in {how_far}", *map(str, self.findings)])
