"""The firings that a run has begun, for whoever has to undo what they did: those that have ended, and all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.arguments import digests_of
from workflow_sdk.graphs.bodies import unwrapped
from workflow_sdk.graphs.data import node_from_data
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.model import GraphResult, Node, Outcome
from workflow_sdk.graphs.rebuilding import recorded
from workflow_sdk.graphs.results import outcome_of
from workflow_sdk.graphs.rows import Firing
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.operations.engine import Engine, Walker
from workflow_sdk.operations.types import GRAPH_MESSAGE
from workflow_sdk.rows.entries import Entry, FiringData, ListenData, SubmitData
from workflow_sdk.rows.keys import ARCHIVE, HISTORY, marking_of
from workflow_sdk.rows.location import pack_pair, segments
from workflow_sdk.rows.status import Kind
from workflow_sdk.values.hints import return_hint


class Begun(Struct, frozen=True):
    """A firing that has begun."""

    number: int
    segment: bytes
    """Where it is recorded, under the graph."""
    step: str
    args: bytes
    """Empty, if they are not stored with it."""
    began: int
    """The event that has started it."""
    given: tuple[tuple[str, bytes], ...] = ()
    """Digests of arguments that are not stored with it."""


def keep_begun(engine: Engine, marking: Marking, location: bytes, number: int, firing: Firing) -> None:
    """Keep what a firing was called with: handlers without a name are found by calling its code again.

    It may be cancelled, with its graph or alone, and then there is no other record of it.
    """
    entry = Entry(Kind.FIRING, number, firing.at)
    entry.data = FiringData(firing.args, firing.began, 0, firing.depth, given=digests_of(marking, firing))
    engine.journal.history.keep_in_archive([(location, entry.pack())])


async def keep_taken(engine: Engine, location: bytes) -> None:
    """Note the messages that a firing has taken, to be given back: nobody knew then that it might be cancelled."""
    await engine.parking.flush()
    for at, raw in await engine.stored.read(HISTORY + location):
        data = Entry.unpack(raw).data
        for number, one in enumerate(data.taken if isinstance(data, ListenData) else ()):
            if one.name != GRAPH_MESSAGE:
                message = InboxMessage(one.id, one.name, one.payload, one.sent_at, one.reply_to)
                engine.journal.takings.keep(location + at, number, message)


async def begun_firings(walker: Walker, graph: bytes) -> list[Begun]:
    """The firings of the graph at a location, in the order in which they began."""
    names = walker.journal.names.texts
    found: dict[bytes, Begun] = {}
    for segment, entry in walker.journal.history.loaded.pop(graph, {}).items():
        first = next(segments(segment), None)
        if isinstance(entry.data, FiringData) and isinstance(first, tuple):
            data, step = entry.data, names.get(first[0], "")
            found[segment] = Begun(entry.ordinal, segment, step, data.args, data.began, data.given)
    marking, numbers = Marking(), {text: number for number, text in names.items()}
    marking.load(await walker.stored.read(marking_of(graph)))
    for number, firing in marking.firings.items():
        # One whose step has no number has recorded nothing.
        if firing.step in numbers:
            segment = pack_pair(numbers[firing.step], firing.count)
            given = digests_of(marking, firing)
            found[segment] = Begun(number, segment, firing.step, firing.args, firing.began, given)
    return sorted(found.values(), key=lambda one: one.number)


async def submitted_nodes(walker: Walker, graph: bytes, find: Callable[[str], object]) -> dict[str, Node]:
    """The steps that were submitted to the graph at a location, by name, without those whose functions are gone."""
    rows = [*await walker.stored.read(ARCHIVE + graph), *await walker.stored.read(HISTORY + graph)]
    found: dict[str, Node] = {}
    for one in recorded(rows, walker.journal.names.texts):
        for data in _batch_of(walker, one.entry):
            with suppress(DefinitionError):
                node = node_from_data(data, find)
                found.setdefault(node.name, node)
    return found


def _batch_of(walker: Walker, entry: Entry) -> Iterator[dict[str, Any]]:
    match entry.data:
        case SubmitData(nodes=raw):
            yield from walker.codec.decode(raw, plain=True)[0]
        case ListenData(taken=(taken, *_)):
            said: dict[str, Any] = walker.codec.decode(taken.payload, plain=True)
            yield from said.get("submit", [])
        case _:
            pass


async def known_outcomes(
    walker: Walker, graph: bytes, nodes: Mapping[str, Node], result: bytes | None
) -> dict[str, Outcome]:
    """What the steps of a graph have come to, by its result or else its marking; empty if it has neither."""
    if result is not None:
        found: GraphResult = walker.codec.decode(result, GraphResult)
        return found.outcomes
    marking = Marking()
    marking.load(await walker.stored.read(marking_of(graph)))
    return {name: outcome_of(node, marking.steps.get(name)) for name, node in nodes.items() if marking.steps}


def remember_parts(walker: Walker, node: Node, location: bytes) -> None:
    """Keep what undoes the items, turns or tasks of the firing at a location."""
    handlers = _handlers_of_parts(node)
    names, loaded = walker.journal.names.texts, walker.journal.history.loaded
    for scope in list(loaded.irange(location, location + b"\xff")) if handlers else ():
        for segment in loaded[scope]:
            first = next(segments(segment), None)
            # What is run again has the number of the run in its name.
            label = names.get(first, "").partition(":")[0] if isinstance(first, int) else ""
            if label in handlers:
                walker.remember_handler(scope + segment, *handlers[label])


def _handlers_of_parts(node: Node) -> dict[str, tuple[Callable[..., Any], object]]:
    """What undoes the parts of a step, by their names; and what it is given."""
    parts = [(task.label, task.fn, task.options) for task in node.details.get("tasks", ())]
    if node.kind in ("each", "repeat") and node.fn is not None:
        parts.append(("item" if node.kind == "each" else "turn", node.fn, node.options))
    found: dict[str, tuple[Callable[..., Any], object]] = {}
    for label, fn, options in parts:
        if options.rollback is not None:
            found[label] = options.rollback, return_hint(unwrapped(fn))
    return found
