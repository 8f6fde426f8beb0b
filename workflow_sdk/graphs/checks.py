"""What can be seen to be wrong with a graph before it is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import Any, Protocol

from workflow_sdk.graphs.expressions import Expression, Native, Template
from workflow_sdk.graphs.impossible import impossible_joins
from workflow_sdk.graphs.linting import Lint, Written
from workflow_sdk.graphs.model import Arc, Node, Problem, Quorum
from workflow_sdk.graphs.names import Names
from workflow_sdk.graphs.narrowing import is_dict, is_sequence
from workflow_sdk.graphs.plan import Plan

_CIRCLES_MAX = 20
"""So many circles are told of."""


class Declared(Protocol):
    """A graph, as it is declared."""

    settings: dict[str, Any]
    workload: Any
    names: Names

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Its steps."""
        ...


def problems_of(graph: Declared) -> list[Problem]:
    """Everything that is wrong with a graph."""
    nodes = graph.nodes
    if not nodes:
        return [Problem("", "it has no steps")]
    expressions = list(_wrong_expressions(graph))
    unknown = [*_unknown_names(nodes), *_unknown_settings(graph)]
    circles = list(_circles(nodes))
    if unknown:
        # What leads nowhere can't be followed: joins behind it are not looked at.
        return [*unknown, *circles, *_unreachable_beside(graph), *expressions]
    plan = Plan(nodes.values(), **graph.settings)
    return [*circles, *_unreachable(plan), *([] if circles else impossible_joins(plan)), *expressions]


# Names.


def _unknown_names(nodes: Mapping[str, Node]) -> Iterator[Problem]:
    for node in nodes.values():
        for need in node.needs:
            if need not in nodes:
                yield Problem(node.name, f"it needs {need!r}, which is no step of the graph")
        for arc in node.next:
            if arc.step not in nodes:
                yield Problem(node.name, f"it leads to {arc.step!r}, which is no step of the graph")
        if isinstance(node.join, Quorum) and node.join.count > len(set(node.needs)):
            yield Problem(node.name, f"its quorum is {node.join.count}, and it needs only {len(set(node.needs))} steps")


def _unknown_settings(graph: Declared) -> Iterator[Problem]:
    for name in ("entry", "final"):
        step = graph.settings[name]
        if step is not None and step not in graph.nodes:
            yield Problem("", f"its {name} is {step!r}, which is no step of the graph")
    final = graph.nodes.get(graph.settings["final"] or "")
    if final is not None:
        yield from _wrong_about(final, graph)


def _wrong_about(final: Node, graph: Declared) -> Iterator[Problem]:
    """The final step is run once, when all else is over: nothing leads to it, and it leads nowhere."""
    if final.name == graph.settings["entry"]:
        yield Problem("", f"its entry is {final.name!r}, the final step, which is run when all else is over")
    if final.needs:
        yield Problem(final.name, "it is the final step, which is run when all else is over, and can't need others")
    if final.next:
        yield Problem(final.name, "it is the final step, after which nothing is run, and can't lead to others")
    for node in graph.nodes.values():
        if final.name in node.needs:
            yield Problem(node.name, f"it needs {final.name!r}, the final step, which is run when all else is over")
        if node is not final and any(arc.step == final.name for arc in node.next):
            yield Problem(node.name, f"it leads to {final.name!r}, the final step, which is run when all else is over")


def _circles(nodes: Mapping[str, Node]) -> Iterator[Problem]:
    left = {name: node.needs for name, node in nodes.items()}
    for _ in range(_CIRCLES_MAX):
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle = [str(name) for name in error.args[1]]
        else:
            return
        yield Problem(circle[0], f"steps need each other in a circle: {' -> '.join(circle)}")
        # Without these, those that there are beside it are found.
        left = {name: needs for name, needs in left.items() if name not in circle}


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


def _unreachable_beside(graph: Declared) -> Iterator[Problem]:
    """Steps that nothing leads to, in a graph that has names of steps that there are not."""
    nodes, final = graph.nodes, graph.settings["final"]
    entry = graph.settings["entry"] or _first_of(nodes, final)
    if entry is not None and entry not in nodes:
        return  # where it begins is not known
    known = [_with_known(node, nodes) for node in nodes.values()]
    for problem in _unreachable(Plan(known, entry=entry, final=final if final in nodes else None)):
        # Of a step that needs what there is not, that is enough to say.
        if nodes.keys() >= set(nodes[problem.where].needs):
            yield problem


def _first_of(nodes: Mapping[str, Node], final: str | None) -> str | None:
    """The step that a graph with arcs begins at, if nothing else is said."""
    has_arcs = any(node.next for node in nodes.values())
    return next((name for name in nodes if name != final), None) if has_arcs else None


def _with_known(node: Node, nodes: Mapping[str, Node]) -> Node:
    """A step, without arcs to steps that there are not, and without such needs."""
    arcs = [arc for arc in node.next if arc.step in nodes]
    return node.but(next=tuple(arcs), needs=tuple(need for need in node.needs if need in nodes), join="all")


# Expressions.


def _wrong_expressions(graph: Declared) -> Iterator[Problem]:
    """Functions that are not known, and paths that lead to nothing."""
    lint = Lint(graph.workload, graph.nodes)
    for node in graph.nodes.values():
        for what, written, sees_output in _expressions_of(node):
            for name in sorted(written.functions - graph.names.callable.keys()):
                yield Problem(
                    node.name,
                    f"{what} calls {name}(), which is no function of the graph; give it in `functions`",
                )
            yield from (Problem(node.name, f"{what} {text}") for text in lint.wrong_in(written, node, sees_output))


def called_in(nodes: Mapping[str, Node]) -> set[str]:
    """The functions of authors that expressions of these steps call."""
    return {name for node in nodes.values() for _, written, _ in _expressions_of(node) for name in written.functions}


def _expressions_of(node: Node) -> Iterator[tuple[str, Written, bool]]:
    """The expressions of a step, what to call each, and whether it reads the output of the step."""
    for arc in node.next:
        yield from _of_arc(arc)
    for rule in node.admit:
        if rule.when is not None:
            yield "its admission", rule.when, False
    if node.args is not None:
        yield "its arguments", node.args, False
    for key, value in node.details.items():
        for one in _inside(value):
            yield f"its `{key}`", one, isinstance(one, Expression)


def _of_arc(arc: Arc) -> Iterator[tuple[str, Written, bool]]:
    if arc.when is not None:
        yield f"the guard of its arc to {arc.step!r}", arc.when, True
    if arc.args is not None:
        yield f"the `args` of its arc to {arc.step!r}", arc.args, True


def _inside(value: Any) -> Iterator[Written]:
    """The expressions in a detail of a step."""
    if isinstance(value, (Expression, Native, Template)):
        yield value
    elif isinstance(value, Arc):
        yield from (one for _, one, _ in _of_arc(value))
    elif is_dict(value):
        yield from chain.from_iterable(map(_inside, value.values()))
    elif is_sequence(value):
        yield from chain.from_iterable(map(_inside, value))
