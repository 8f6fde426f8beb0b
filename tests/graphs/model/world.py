"""A plain model of a run of a graph: everything is worked out anew from the list of what has happened.

It knows no rows and remembers nothing between two events. What may still happen is found by walking on from every
token and every firing, as far as anything could go.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.graphs.model.shape import Shape
from workflow_sdk.graphs.model import Limits, Node

Stack = tuple[tuple[str, int], ...]
"""The fork instances that a token is in, from the outermost to the innermost: the fork and a number."""
NEW = -1
"""The number of a fork instance that may be opened some time."""


def shown(node: Node) -> str:
    """A step in one line, with what is special about it."""
    arcs = " ".join(f"->{one.step}({one.on}{', guarded' if one.when else ''})" for one in node.next)
    needs = f" needs {node.join} of {node.needs}" if node.needs else ""
    admit = f" admit {node.details['level']} {node.on_deny}" if node.admit else ""
    return f"{node.name}: {node.mode} {arcs}{needs}{admit} {node.trust} {node.access}"


@dataclass(frozen=True, repr=False)
class Given:
    """The graph, and what is set for the whole of it."""

    nodes: tuple[Node, ...]
    entry: str | None = None
    limits: Limits = field(default_factory=Limits)
    status: str = "strict"
    when_blocked: str = "wait"
    final: str | None = None
    final_failure: str = "fail"
    level: int = 0
    """What stands in the context in the beginning. A step with `admit` asks that it is high enough."""

    def __repr__(self) -> str:
        told = f"{self.status}, {self.when_blocked}, {self.limits}, {self.final_failure}, level={self.level}"
        return "\n".join(["A graph:", told, *map(shown, self.nodes)])


@dataclass(frozen=True)
class End:
    """A firing has ended."""

    number: int
    ok: bool = True
    follows: frozenset[int] = frozenset()
    """The numbers that stand in its output: a guarded arc is taken if its own is among them."""
    level: int | None = None
    """What it patched the context with."""
    unanswered: bool = False
    """Its output is such that a guard has no answer."""


@dataclass(frozen=True)
class Patch:
    """The context was changed from outside."""

    level: int


@dataclass(frozen=True, repr=False)
class Submit:
    """Steps were added, by a firing that is under way or from outside."""

    nodes: tuple[Node, ...]
    by: int | None = None

    def __repr__(self) -> str:
        return f"Submit(by {self.by}: {'; '.join(map(shown, self.nodes))})"


Event = End | Patch | Submit


@dataclass
class Token:
    """Control at a step."""

    step: str
    stack: Stack
    status: str = "ready"
    """ready, pending, taken, denied, discarded, blocked (the graph did not wait for it) or cancelled."""


@dataclass
class Firing:
    """A step that took a token, or a join that fired."""

    number: int
    step: str
    stack: Stack
    status: str = "running"
    """running, done, failed or cancelled."""
    handled: bool = False
    """Of one that has failed: an arc was followed."""


@dataclass
class World:
    """How things stand after some events."""

    given: Given
    nodes: dict[str, Node]
    level: int
    shape: Shape
    """The arcs and needs as they are now."""
    depth: dict[str, int] = field(default_factory=dict[str, int])
    tokens: list[Token] = field(default_factory=list[Token])
    """In the order of their turns."""
    firings: list[Firing] = field(default_factory=list[Firing])
    forks: int = 0
    """How many fork instances were opened."""
    joins: dict[tuple[str, Stack], str] = field(default_factory=dict[tuple[str, Stack], str])
    """What became of a join in a fork instance: fired or skipped. Else it waits."""
    came_to: dict[str, str] = field(default_factory=dict[str, str])
    """What a step has come to."""
    first: tuple[str, ...] = ()
    """The steps that a run begins with."""
    stopped: bool = False
    """By the first failure of a graph that fails fast."""
