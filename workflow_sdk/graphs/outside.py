"""Reaching a graph from outside: steps that are submitted to its instance, and a start that goes on from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from workflow_sdk.changes.deliver import NewMessage
from workflow_sdk.changes.instances import Snapshot, read_snapshot
from workflow_sdk.client.access import Access
from workflow_sdk.client.asking import ask, deliver_after, encode_payload
from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import CodecError, DefinitionError, InstanceNotFoundError, InstanceStateError
from workflow_sdk.graphs.data import names_from_data, node_to_data
from workflow_sdk.graphs.growing import added_names, refusal, taken_apart
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.model import Limits, Node
from workflow_sdk.graphs.names import own_name
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.rows import Outline
from workflow_sdk.instance.loading import HistoryCursor, load_history
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.journal.journal import Journal
from workflow_sdk.operations.types import GRAPH_MESSAGE
from workflow_sdk.rows.keys import HISTORY, INBOX, InstanceKeys, marking_of
from workflow_sdk.rows.status import Kind, Status
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
    keys, verdict = InstanceKeys(instance_id), None
    while verdict is None:
        seen = await read_snapshot(access.driver, keys)
        if not seen.about:
            raise InstanceNotFoundError(f"there is no instance {instance_id!r}")
        verdict = await _submit_once(access, seen, nodes)
    return verdict


async def _submit_once(access: Access, seen: Snapshot, nodes: Any) -> Verdict | None:
    """Add steps to an instance that was seen like this; None if it has changed meanwhile, and nothing was done."""
    id = seen.keys.instance_id
    if seen.status.is_terminal:
        return Verdict.deny(f"instance {id!r} is {seen.status.value}", "definition")
    try:
        data = batch_to_data(nodes)
        refused = await _refusal(access, seen, taken_apart(nodes)[0])
    except DefinitionError as error:
        return Verdict.deny(str(error), "definition")
    if refused is not None:
        return refused
    if not data:
        return Verdict.allow
    raw = encode_payload(access.codec, id, GRAPH_MESSAGE, {"submit": data})
    if seen.lease is None:
        # Nobody runs it who could answer. Whoever does finds what the store says now, and this message after others.
        delivered = await deliver_after(access, seen, NewMessage(GRAPH_MESSAGE, raw))
        return None if delivered is None else Verdict.allow
    try:
        answer = await ask(access, id, GRAPH_MESSAGE, raw)
    except InstanceStateError as error:
        return Verdict.deny(str(error), "definition")
    verdict: Verdict = access.codec.decode(answer, Verdict)
    return verdict


async def _refusal(access: Access, seen: Snapshot, nodes: list[Any]) -> Verdict | None:
    """Why steps can't be added, as far as the store tells; None if nothing is known against it."""
    driver, keys = access.driver, seen.keys
    graphs, has_begun = await _graphs_under_way(access, keys)
    # Without any record, a worker may just have begun with it.
    if not graphs and seen.status is not Status.PENDING and has_begun:
        return Verdict.deny(f"instance {keys.instance_id!r} runs no graph", "definition")
    marking = Marking()
    known: set[str] = set()
    if graphs:
        begin = keys.space + marking_of(graphs[0])
        rows = await driver.scan(begin, begin + b"\xff")
        added = marking.load((key[len(begin) :], raw) for key, raw in rows)
        known.update(marking.outline.steps)
        for batch in added.values():
            known |= added_names(access.codec.decode(batch, plain=True))
    return await _refusal_by(access, seen, marking.outline if graphs else None, known, nodes)


async def _graphs_under_way(access: Access, keys: InstanceKeys) -> tuple[list[bytes], bool]:
    """Where the graphs are recorded that an instance runs now; and whether anything is recorded."""
    journal = Journal(keys)
    await load_history(access.driver, HistoryCursor(journal, HISTORY))
    graphs = [
        scope + segment
        for scope, entries in journal.history.loaded.items()
        for segment, entry in entries.items()
        if entry.kind is Kind.GRAPH and not entry.is_final
    ]
    return graphs, bool(journal.history.loaded)


async def _refusal_by(
    access: Access, seen: Snapshot, outline: Outline | None, known: set[str], nodes: list[Any]
) -> Verdict | None:
    """Why steps can't be added to a graph that has these, and gets those that were sent before and not yet taken.

    `outline`: None before the first run, when nobody but its worker knows the graph. Then every name may be a step's.
    """
    most = Limits() if outline is None else Limits(nodes=outline.nodes, depth=outline.depth)
    final = None if outline is None else outline.final
    for batch in await _waiting(access, seen):
        if refusal(known | _meant(batch, outline), most, batch, 1, final) is None:
            known |= {one.name for one in batch}
    return refusal(known | _meant(nodes, outline), most, nodes, 1, final)


def _meant(nodes: list[Any], outline: Outline | None) -> set[str]:
    """The steps that a batch takes to be there, if nobody can tell whether they are."""
    if outline is not None:
        return set()
    steps = [one for one in nodes if isinstance(one, Node)]
    meant = {name for one in steps for name in (*one.needs, *(arc.step for arc in one.next))}
    return meant - {one.name for one in steps}


async def _waiting(access: Access, seen: Snapshot) -> list[list[Node]]:
    """The batches that were sent before and not yet taken, in order; of each step its name and what it names."""
    begin, end = seen.keys.range(INBOX)
    found: list[list[Node]] = []
    for key, raw in await access.driver.scan(begin, end):
        message = InboxMessage.unpack(key[len(seen.keys.space) + len(INBOX) :], raw)
        if message.name == GRAPH_MESSAGE:
            said: Any = access.codec.decode(message.payload, plain=True)
            found.append([names_from_data(one) for one in said.get("submit", ())])
    return found


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
    submissions: Sequence[Sequence[Any]],
) -> bytes:
    """The input of a run that another system has begun."""
    plan = getattr(graph, "plan", None)
    if graph is None or not isinstance(plan, Plan):
        raise DefinitionError("`completed` and `submissions` are for a graph, and this is none")
    known = set(plan.nodes)
    for batch in submissions:
        nodes = taken_apart(batch)[0]
        if (refused := refusal(known, plan.limits, nodes, 1, plan.final)) is not None:
            raise DefinitionError(f"a submission to graph {graph.name!r} is refused: {refused.reason}")
        known |= {one.name for one in nodes}
    if unknown := sorted(set(completed or {}) - known):
        raise DefinitionError(f"graph {graph.name!r} has no step {unknown[0]!r}, which is said to be completed")
    codec.encode_checked(workload, graph.input_hint)
    batches = [batch_to_data(batch) for batch in submissions]
    plain = codec.decode(codec.encode(workload, graph.input_hint), plain=True)
    return codec.encode({_BEGUN: {"workload": plain, "completed": dict(completed or {}), "submissions": batches}})


def read_begun(codec: Codec, raw: bytes, hint: object) -> Any:
    """The input of a run: the workload, or what another system has begun with it."""
    try:
        found: Any = codec.decode(raw, plain=True)
    except CodecError:
        found = None
    if not isinstance(found, dict) or cast("dict[str, Any]", found).keys() != {_BEGUN}:
        return codec.decode_checked(raw, hint)
    begun: dict[str, Any] = cast("dict[str, Any]", found)[_BEGUN]
    workload = codec.decode_checked(codec.encode(begun["workload"]), hint)
    return Begun(workload, begun["completed"], begun["submissions"])
