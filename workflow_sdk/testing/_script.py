"""What `crash_everywhere` is given: workflows, a script, and at how many commits it crashes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias, cast

from workflow_sdk import RunResult, Workflow
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs import Graph
from workflow_sdk.graphs.data import node_to_data
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.operations.types import GRAPH_MESSAGE
from workflow_sdk.rows.wire import shown

__all__ = ["Script", "Witness", "as_message", "flows_by_name", "is_told_to_graph", "messages_of", "spread"]

SEED: Final = bytes(range(16))
Script: TypeAlias = Sequence["str | tuple[str, Any]"]
"""Messages: a name, or a name and a payload. The next is sent whenever the instance waits for a message; if it is the
name of an open task of the instance, that is completed with the payload. What a graph is told stands there as well:
`("patch", {...})` changes its context, `("submit", [...])` adds steps, as soon as all that is under way waits."""


def messages_of(script: Script | None) -> list[tuple[str, Any]]:
    """The messages of a script, each with its payload. DefinitionError, if it is no script."""
    if isinstance(script, str) or not isinstance(script, Sequence | None):
        raise DefinitionError(f"a script is a list of messages, not {shown(script)}")
    return [(message, None) if isinstance(message, str) else message for message in script or ()]


def is_told_to_graph(workflow: Workflow[Any, Any], name: str, result: RunResult[Any]) -> bool:
    """Whether the next of a script is no message, but changes a graph from outside."""
    return as_graph(workflow) is not None and name in ("patch", "submit") and name not in result.waiting_for


def as_graph(workflow: object) -> Graph | None:
    """A workflow that is a graph."""
    return workflow if isinstance(workflow, Graph) else None


def as_message(workflow: object, known: KnownHandlers, name: str, payload: Any) -> tuple[str, Any]:
    """The message by which a graph is told to change."""
    graph = as_graph(workflow)
    assert graph is not None, "only graphs are told so"
    name_of = graph.names.name_of
    if name == "submit":
        return GRAPH_MESSAGE, {"submit": [node_to_data(one, lambda fn: name_of(fn, known)) for one in payload]}
    if not isinstance(payload, dict):
        raise DefinitionError(f'a script patches a graph with ("patch", {{...}}), not with {shown(payload)}')
    return GRAPH_MESSAGE, {"patch": cast("dict[str, Any]", payload)}


def flows_by_name(workflow: Workflow[Any, Any], others: Iterable[Workflow[Any, Any]]) -> dict[str, Workflow[Any, Any]]:
    """A workflow and others, by name; DefinitionError, if one of them is none."""
    found = {workflow.name: workflow}
    for other in others:
        if not isinstance(other, Workflow):
            raise DefinitionError(f"workflows are functions decorated with @workflow, not {shown(other)}")
        found[other.name] = other
    return found


class Witness:
    """Notes every call of the code of a step, a transaction or a handler."""

    dry = False
    seed: bytes | None = SEED

    def __init__(self) -> None:
        self.called: list[tuple[int, str]] = []
        """The generation of the instance, and the path of the operation."""

    def calls(self, path: str, generation: int) -> None:
        self.called.append((generation, path))


def spread(commits: int, most: int | None) -> list[int]:
    """The numbers of the commits at which to crash: all, or so many of them."""
    if most is None or commits <= most:
        return list(range(1, commits + 1))
    if most <= 1:
        return [commits]
    return sorted({1 + number * (commits - 1) // (most - 1) for number in range(most)})
