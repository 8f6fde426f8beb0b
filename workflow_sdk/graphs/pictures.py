"""A graph as a drawing, and what has become of its steps as far as it can be seen from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, cast

from workflow_sdk.client.history import History
from workflow_sdk.client.info import InstanceInfo
from workflow_sdk.definitions import Workflow
from workflow_sdk.graphs.drawing import Drawing, Line, NodeStatus, Shape
from workflow_sdk.graphs.drawing.model import LineKind, ShapeKind
from workflow_sdk.graphs.expressions import Expression, Template
from workflow_sdk.graphs.model import CONTROLLERS, Arc, Condition, GraphResult, Node, Outcome, Quorum
from workflow_sdk.graphs.narrowing import is_dict
from workflow_sdk.graphs.plan import Plan

Seen = InstanceInfo | History | GraphResult | Mapping[str, "NodeStatus | Outcome | str"]
"""What says what has become of the steps of a graph; later ones in a list know better."""

_LINES: Final[Mapping[str, LineKind]] = {"done": "arc", "failed": "failure", "any": "any"}
_KINDS: Final[Mapping[str, ShapeKind]] = {"pipeline": "sequence"}
_WAITS: Final[Mapping[str, str]] = {"admission": "blocked"}


class Drawn(Protocol):
    """A graph, as far as it is drawn."""

    name: str
    settings: dict[str, Any]

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Its steps."""
        ...


def drawing_of(graph: Drawn) -> Drawing:
    """The drawing of a graph, also of one that is not sound: where an arc leads nowhere, there is a question mark."""
    nodes = graph.nodes
    roots = frozenset(Plan(nodes.values(), **graph.settings).roots)
    final = graph.settings["final"]
    lines = [line for node in nodes.values() for line in _lines_of(node)]
    missing = dict.fromkeys(name for line in lines for name in (line.source, line.target) if name not in nodes)
    shapes = [_shape(node, node.name in roots, node.name == final) for node in nodes.values()]
    return Drawing((*shapes, *(Shape(name, "noop", ("?",)) for name in missing)), tuple(lines), graph.name)


def _shape(node: Node, is_entry: bool, is_final: bool) -> Shape:
    kind: Any = _KINDS.get(node.kind, node.kind)
    if node.kind in CONTROLLERS:
        kind = "controller"
    elif is_final:
        kind = "final"
    elif node.kind == "step" and len(node.needs) > 1:
        kind = "join"
    return Shape(node.name, kind, tuple(_about(node)), is_entry, is_final)


def _about(node: Node) -> Iterator[str]:
    """Small texts on what is special to a step."""
    if node.mode == "inclusive" and len(node.next) > 1:
        yield "inclusive"
    if isinstance(node.join, Quorum):
        yield f"{node.join.count} of {len(node.needs)}"
    elif node.join != "all":
        yield node.join
    for rule in node.admit:
        if rule.when is not None:
            yield f"{'if' if rule.allow else 'not if'} {_text(rule.when)}"
    for key in ("message", "duration", "until", "transport", "workflow", "roles", "items", "over", "n"):
        if key in node.details:
            yield f"{key}: {_detail(node.details[key])}"


def _detail(value: Any) -> str:
    if isinstance(value, Template):
        found = "(a function)" if value.is_native else value.to_data()
        return str(found["$"]) if is_dict(found) and list(found) == ["$"] else str(found)
    return value.name if isinstance(value, Workflow) else str(value)


def _text(condition: Condition) -> str:
    return condition.text if isinstance(condition, Expression) else f"{condition.name}()"


def _lines_of(node: Node) -> Iterator[Line]:
    for need in dict.fromkeys(node.needs):
        yield Line(need, node.name, "", "need")
    for arc in node.next:
        yield _line(node, arc)


def _line(node: Node, arc: Arc) -> Line:
    return Line(node.name, arc.step, "" if arc.when is None else _text(arc.when), _LINES[arc.on])


# What has become of the steps.


def statuses_of(
    graph: Drawn, seen: Seen | Iterable[Seen] | None, path: str | None = None
) -> dict[str, NodeStatus] | None:
    """The status of each step, from what is known of a run: an `InstanceInfo`, a `History`, a `GraphResult`, a mapping.

    Several of them are taken in order. `path` is where the run is in its instance; that of the graph itself, if it is
    left out.
    """
    if seen is None:
        return None
    single = isinstance(seen, (Mapping, InstanceInfo, History, GraphResult))
    several = cast("Iterable[Seen]", [seen] if single else seen)
    root = f"{path or graph.name}/"
    return {name: status for one in several for name, status in _statuses(one, root)}


def _statuses(seen: Seen, root: str) -> Iterator[tuple[str, NodeStatus]]:
    if isinstance(seen, InstanceInfo):
        yield from _from_info(seen, root)
    elif isinstance(seen, History):
        yield from _from_history(seen, root)
    elif isinstance(seen, GraphResult):
        yield from ((name, _status(one)) for name, one in seen.outcomes.items())
        yield from ((name, NodeStatus("blocked")) for name in seen.blocked)
    else:
        yield from ((name, _status(one)) for name, one in seen.items())


def _status(given: NodeStatus | Outcome | str) -> NodeStatus:
    if isinstance(given, Outcome):
        return NodeStatus(given.status, given.firings, given.reason)
    return NodeStatus(given) if isinstance(given, str) else given


def _from_info(info: InstanceInfo, root: str) -> Iterator[tuple[str, NodeStatus]]:
    for wait in info.waits:
        if (step := _step_of(wait.path, root)) is not None:
            note = wait.message or wait.name if wait.kind != "admission" else "may not start yet"
            yield step, NodeStatus(_WAITS.get(wait.kind, "waiting"), 0, f"{wait.kind}: {note}")
    yield from _from_output(info.output)


def _from_output(output: Any) -> Iterator[tuple[str, NodeStatus]]:
    """The statuses in a result as plain data; none, if it is something else."""
    outcomes = output.get("outcomes") if is_dict(output) else None
    for name, told in outcomes.items() if is_dict(outcomes) else ():
        if is_dict(told):
            firings = told.get("firings")
            count = firings if isinstance(firings, int) else 0
            yield name, NodeStatus(str(told.get("status")), count, str(told.get("reason") or ""))


def _from_history(history: History, root: str) -> Iterator[tuple[str, NodeStatus]]:
    counts: dict[str, int] = {}
    for entry in history:
        step = _step_of(entry.path, root) if entry.kind.value == "firing" else None
        # A firing, and nothing inside of one.
        if step is not None and "/" not in entry.path[len(root) + len(step) + 1 :]:
            counts[step] = counts.get(step, 0) + 1
            yield step, NodeStatus(entry.status.value, counts[step], str(entry.error or ""))


def _step_of(path: str, root: str) -> str | None:
    """The step that something in the history belongs to."""
    return path[len(root) :].partition("/~")[0] if path.startswith(root) else None
