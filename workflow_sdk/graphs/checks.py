"""What can be seen to be wrong with a graph before it is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol

from workflow_sdk.graphs.model import Node, Problem, Quorum
from workflow_sdk.graphs.plan import Plan, required


class Declared(Protocol):
    """A graph, as it is declared."""

    settings: dict[str, Any]

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Its steps."""
        ...


def problems_of(graph: Declared) -> list[Problem]:
    """Everything that is wrong with a graph."""
    nodes = graph.nodes
    if not nodes:
        return [Problem("", "it has no steps")]
    unknown = [*_unknown_names(nodes), *_unknown_settings(graph)]
    if unknown:
        # What leads nowhere can't be followed.
        return unknown
    circles = list(_circles(nodes))
    plan = Plan(nodes.values(), **graph.settings)
    return [*circles, *_unreachable(plan), *([] if circles else _impossible(plan))]


def _unknown_names(nodes: Mapping[str, Node]) -> Iterator[Problem]:
    for node in nodes.values():
        for need in node.needs:
            if need not in nodes:
                yield Problem(node.name, f"it needs {need!r}, which is no step of the graph")
        for arc in node.next:
            if arc.step not in nodes:
                yield Problem(node.name, f"it leads to {arc.step!r}, which is no step of the graph")
        if isinstance(node.join, Quorum) and node.join.count > len(node.needs):
            yield Problem(node.name, f"its quorum is {node.join.count}, and it needs only {len(node.needs)} steps")


def _unknown_settings(graph: Declared) -> Iterator[Problem]:
    for name in ("entry", "final"):
        step = graph.settings[name]
        if step is not None and step not in graph.nodes:
            yield Problem("", f"its {name} is {step!r}, which is no step of the graph")
    final = graph.nodes.get(graph.settings["final"] or "")
    if final is not None and final.needs:
        yield Problem(final.name, "it is the final step, which is run when all else is over, and can't need others")


def _circles(nodes: Mapping[str, Node]) -> Iterator[Problem]:
    try:
        TopologicalSorter({name: node.needs for name, node in nodes.items()}).prepare()
    except CycleError as error:
        circle = [str(name) for name in error.args[1]]
        yield Problem(circle[0], f"steps need each other in a circle: {' -> '.join(circle)}")


def _unreachable(plan: Plan) -> Iterator[Problem]:
    found: set[str] = set()
    todo = [*plan.roots, *([plan.final] if plan.final is not None else [])]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += plan.after(name)
    for name in plan.nodes:
        if name not in found:
            yield Problem(name, "no token can come to it: nothing leads there")


def _impossible(plan: Plan) -> Iterator[Problem]:
    """Joins of which it is certain that they never have all that they need."""
    for node in plan.nodes.values():
        if not node.needs or required(node) < len(node.needs):
            continue
        for other in plan.nodes.values():
            if other.mode != "exclusive" or len(other.next) < 2:
                continue
            apart = _apart(plan, other, node)
            if apart is not None:
                first, second = apart
                yield Problem(
                    node.name,
                    f"it needs {first!r} and {second!r}, of which step {other.name!r} takes one at most; "
                    'let it fire with what is there (join="alive"), or make the step inclusive',
                )
                break


def _apart(plan: Plan, fork: Node, join: Node) -> tuple[str, str] | None:
    """Two needs of a join that are only reached by different arcs of one exclusive step."""
    sides = [_reached(plan, arc.step, without=fork.name) for arc in fork.next]
    free = {name for root in plan.roots for name in _reached(plan, root, without=fork.name)}
    by_side = [[need for need in join.needs if need in side and need not in free] for side in sides]
    for at, own in enumerate(by_side):
        for need in own:
            others = [other for other in join.needs if other != need]
            for other in others:
                at_other = [number for number, side in enumerate(by_side) if other in side]
                at_need = [number for number, side in enumerate(by_side) if need in side]
                if at_need == [at] and at_other and at not in at_other:
                    return need, other
    return None


def _reached(plan: Plan, start: str, *, without: str) -> set[str]:
    """The steps that can be reached from one, without going through another."""
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in found and name != without:
            found.add(name)
            todo += plan.after(name)
    return found
