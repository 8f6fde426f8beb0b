"""Reaching a graph from outside: steps that are submitted to its instance, and a start that goes on from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from workflow_sdk.changes.instances import read_about
from workflow_sdk.client.access import Access
from workflow_sdk.client.asking import ask, encode_payload
from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import CodecError, DefinitionError, InstanceNotFoundError, InstanceStateError
from workflow_sdk.graphs.data import node_to_data
from workflow_sdk.graphs.growing import taken_apart
from workflow_sdk.graphs.model import Node
from workflow_sdk.graphs.names import own_name
from workflow_sdk.operations.types import GRAPH_MESSAGE
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.rows.wire import shown
from workflow_sdk.values import Codec
from workflow_sdk.verdicts import Verdict

_BEGUN = "$graph"
"""The only key of an input that also says what another system has done."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What a run begins with, if another system has begun it."""

    workload: Any
    completed: dict[str, Any] = field(default_factory=dict[str, Any])
    """The outputs of steps that are done."""
    submissions: list[list[dict[str, Any]]] = field(default_factory=list[list[dict[str, Any]]])
    """Steps that were submitted to it, batch by batch."""


async def submit_to(access: Access, instance_id: str, nodes: Any) -> Verdict:
    """Add steps to the graph that an instance runs: all of them or none."""
    about = await read_about(access.driver, InstanceKeys(instance_id))
    if not about:
        raise InstanceNotFoundError(f"there is no instance {instance_id!r}")
    if about.status.is_terminal:
        return Verdict.deny(f"instance {instance_id!r} is {about.status.value}", "definition")
    try:
        data = batch_to_data(nodes)
    except DefinitionError as error:
        return Verdict.deny(str(error), "definition")
    if not data:
        return Verdict.allow
    raw = encode_payload(access.codec, instance_id, GRAPH_MESSAGE, {"submit": data})
    try:
        answer = await ask(access, instance_id, GRAPH_MESSAGE, raw)
    except InstanceStateError as error:
        return Verdict.deny(str(error), "definition")
    verdict: Verdict = access.codec.decode(answer, Verdict)
    return verdict


def batch_to_data(nodes: Any) -> list[dict[str, Any]]:
    """Steps as plain data, with the names of their functions as every process knows them."""
    found, _ = taken_apart(nodes)
    for one in found:
        if not isinstance(one, Node):
            raise DefinitionError(f"a batch holds steps, made by `node(...)`, not {shown(one)}")
    return [node_to_data(one, own_name) for one in found]


def encode_begun(
    codec: Codec,
    graph: Workflow[Any, Any] | None,
    workload: Any,
    completed: Mapping[str, Any] | None,
    submissions: Iterable[Sequence[Any]],
) -> bytes:
    """The input of a run that another system has begun."""
    nodes = getattr(graph, "nodes", None)
    if graph is None or not isinstance(nodes, Mapping):
        raise DefinitionError("`completed` and `submissions` are for a graph, and this is none")
    if unknown := sorted(set(completed or {}) - set(cast("Mapping[str, Node]", nodes))):
        raise DefinitionError(f"graph {graph.name!r} has no step {unknown[0]!r}, which is said to be completed")
    codec.encode_checked(workload, graph.input_hint)
    batches = [batch_to_data(batch) for batch in submissions]
    plain = codec.decode(codec.encode(workload, graph.input_hint), plain=True)
    return codec.encode({_BEGUN: {"workload": plain, "completed": dict(completed or {}), "submissions": batches}})


def read_begun(codec: Codec, raw: bytes, hint: object) -> Any:
    """The input of a run: the workload, or what another system has begun with it."""
    try:
        found = codec.decode(raw, plain=True)
    except CodecError:
        found = None
    if not isinstance(found, dict) or found.keys() != {_BEGUN}:
        return codec.decode_checked(raw, hint)
    begun = found[_BEGUN]
    workload = codec.decode_checked(codec.encode(begun["workload"]), hint)
    return Begun(workload, begun["completed"], begun["submissions"])
