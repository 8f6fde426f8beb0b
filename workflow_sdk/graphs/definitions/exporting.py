"""A graph as a document: plain data that says all that there is to it, but for the code of its functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol, get_origin

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.checks import Declared, problems_of
from workflow_sdk.graphs.data import node_to_data, whole
from workflow_sdk.graphs.definitions.digest import digest
from workflow_sdk.graphs.definitions.format import DOCUMENT, FORMAT
from workflow_sdk.graphs.definitions.plain import written
from workflow_sdk.graphs.definitions.problems import InvalidGraphError
from workflow_sdk.graphs.definitions.schemas import schema_of
from workflow_sdk.graphs.expressions import place_of
from workflow_sdk.graphs.model import Limits, Node, Problem
from workflow_sdk.graphs.names import Names, name_in_data, two_of
from workflow_sdk.rows.wire import shown

_DEFAULTS: Mapping[str, Any] = {
    "entry": None,
    "final": None,
    "limits": Limits(),
    "status": "strict",
    "no_match": "end",
    "when_blocked": "wait",
    "final_failure": "fail",
}


class Exported(Declared, Protocol):
    """A graph, as far as a document tells it."""

    name: str
    version: int
    retention: float | None
    default_input: Any
    workload: Any
    about: Mapping[str, Any]
    context: dict[str, Any]
    names: Names


def document_of(graph: Exported) -> dict[str, Any]:
    """The document of a graph. DefinitionError with all problems, if it is not sound or can't be exported."""
    return exported(graph)[0]


def exported(graph: Exported) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The document of a graph, and what the names in it stand for."""
    problems = problems_of(graph)
    writing = _Writing(graph.names)
    data: dict[str, Any] = {"kind": DOCUMENT, "format": FORMAT, "name": graph.name, "version": graph.version}
    data |= settings_of(graph)
    for key, make in (
        ("about", lambda: written(graph.about)),
        ("context", lambda: written(graph.context)),
        ("workload", lambda: schema_of(graph.workload)),
        ("default", lambda: written(graph.default_input)),
    ):
        try:
            data |= {key: found} if (found := make()) not in (None, {}) else {}
        except DefinitionError as error:
            problems.append(Problem(key, str(error)))
    data["steps"] = [found for node in graph.nodes.values() if (found := writing.step(node)) is not None]
    problems += writing.problems
    if problems:
        raise InvalidGraphError(f"graph {graph.name!r} has no canonical definition", problems)
    return data, writing.given


def settings_of(graph: Exported) -> dict[str, Any]:
    """The settings of a graph that are not the defaults, as documents have them."""
    data = {key: value for key, value in graph.settings.items() if value != _DEFAULTS[key]}
    if "limits" in data:
        data["limits"] = {key: value for key, value in asdict(data["limits"]).items() if value is not None}
    if graph.retention is not None:
        data["retention"] = whole(graph.retention)
    return data


def hash_of(graph: Exported) -> str:
    """The digest of the document of a graph."""
    return digest(document_of(graph))


class _Writing:
    """Writes steps, and gathers what can't be written."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.given: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def step(self, node: Node) -> dict[str, Any] | None:
        try:
            data: dict[str, Any] = written(node_to_data(node, self._name_of))
        except DefinitionError as error:
            self.problems.append(Problem(node.name, str(error)))
            return None
        return data

    def _name_of(self, given: Any) -> str:
        """The name of a function: the one under which it was given, else its own."""
        name = self._names.given_name(given) or name_in_data(given)
        if name == "<lambda>" or (get_origin(given) is not None and self._names.given_name(given) is None):
            what = place_of(given) if name == "<lambda>" else f"{shown(given)}, which is made of other types,"
            raise DefinitionError(f"{what} has no name that leads back to it; give it one: functions={{name: ...}}")
        before = self.given.setdefault(name, self._names.get(name, given))
        if before is not given:
            raise DefinitionError(two_of(name))
        return name
