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
    if unknown:
        # What leads nowhere can't be followed.
        return [*unknown, *expressions]
    circles = list(_circles(nodes))
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
    if final is None:
        return
    if final.needs:
        yield Problem(final.name, "it is the final step, which is run when all else is over, and can't need others")
    for node in graph.nodes.values():
        if final.name in node.needs:
            yield Problem(node.name, f"it needs {final.name!r}, the final step, which is run when all else is over")


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


# Expressions.


def _wrong_expressions(graph: Declared) -> Iterator[Problem]:
    """Functions that are not known, and paths that lead to nothing."""
    lint = Lint(graph.workload, graph.nodes)
    for node in graph.nodes.values():
        for what, written, sees_output in _expressions_of(node):
            for name in sorted(written.functions - graph.names.functions.keys()):
                yield Problem(
                    node.name, f"{what} calls {name}(), which is no function of the graph; give it in `functions`"
                )
            yield from (Problem(node.name, f"{what} {text}") for text in lint.wrong_in(written, node, sees_output))


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
