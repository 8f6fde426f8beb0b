"""The marking of a graph made again from its history, after a part of that was forgotten.

A rewind forgets firings, and with them the marking. What is left happens again in the order in which it happened: each
step takes its token and ends as it did, with the guards as they were. What has no token any more depended on what was
forgotten: it is forgotten, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from workflow_sdk.graphs.evaluating import Evaluated, Remembered
from workflow_sdk.graphs.growing import unpack_batch
from workflow_sdk.graphs.interpreter import Interpreter
from workflow_sdk.graphs.moves import Effects, Ended
from workflow_sdk.graphs.rows import Firing
from workflow_sdk.instance.unwinding import failed_operations_of
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import unpack_error
from workflow_sdk.rows.entries import Entry, FiringData, ListenData, SubmitData
from workflow_sdk.rows.location import segments
from workflow_sdk.values.failures import describe


class Happened(Struct, frozen=True):
    """Something that is recorded of a run."""

    event: int
    ordinal: int
    at: bytes
    """Where, under the graph."""
    entry: Entry


def recorded(rows: list[tuple[bytes, bytes]], texts: Mapping[int, str]) -> list[Happened]:
    """What is recorded under a graph and has changed its marking, in the order in which it happened."""
    found = list(_events(rows, texts))
    return sorted(found, key=lambda one: (one.event, one.ordinal))


def _events(rows: list[tuple[bytes, bytes]], texts: Mapping[int, str]) -> Iterator[Happened]:
    for at, raw in rows:
        entry = Entry.unpack(raw)
        path = list(segments(at))
        match entry.data:
            case FiringData(ended=event) if len(path) == 1:
                yield Happened(event, entry.ordinal, at, entry)
            case SubmitData(event=event, nodes=nodes) if nodes:
                yield Happened(event, 0, at, entry)
            case ListenData() if len(path) == 2 and _is_received(path, texts):
                yield Happened(path[1][1], 0, at, entry)  # type: ignore[index]
            case _:
                pass


def _is_received(path: list[Any], texts: Mapping[int, str]) -> bool:
    return isinstance(path[0], int) and texts.get(path[0]) == "received" and isinstance(path[1], tuple)


Receive = Callable[[Evaluated, Sequence[Mapping[str, Any]]], object]


class Rebuilding:
    """Makes the marking of one run again."""

    def __init__(
        self, engine: Engine, interpreter: Interpreter, find: Callable[[str], object], receive: Receive
    ) -> None:
        """`receive`: adds steps that somebody else has sent."""
        self._engine = engine
        self._interpreter = interpreter
        self._find = find
        self._receive = receive
        self._counts: set[tuple[str, int]] = set()
        """The firings that have happened again: step, and number among those of the step."""
        self.forgotten: list[bytes] = []
        """Where firings are recorded that have not happened again."""

    def rebuild(self, happened: list[Happened], live: Callable[[], Evaluated]) -> Effects:
        """Have all of it happen again after the run has begun; then start what can start."""
        interpreter = self._interpreter
        for one in happened:
            self._happen(one, live)
        head = interpreter.marking.head
        last = max([head.events, *(one.event for one in happened)])
        head.tell(events=last, free=self._free())
        interpreter.is_rebuilt = False
        return interpreter.tick(live())

    def _free(self) -> tuple[tuple[str, int], ...]:
        """The numbers of firings that have not happened again, in order: what goes on has the number that it had."""
        marking = self._interpreter.marking
        begun = self._counts | {(one.step, one.count) for one in marking.firings.values()}
        numbers = ((step, count) for step, fired in marking.fired.items() for count in range(fired))
        return tuple(one for one in numbers if one not in begun)

    def _happen(self, one: Happened, live: Callable[[], Evaluated]) -> None:
        data = one.entry.data
        if isinstance(data, FiringData):
            self._end(one, data)
        elif isinstance(data, SubmitData):
            self._submit(data.nodes, live)
        elif isinstance(data, ListenData):
            said = self._engine.codec.decode(data.taken[0].payload, plain=True)
            if "patch" in said:
                self._interpreter.patch(live(), said["patch"])
            else:
                self._receive(live(), said.get("submit", []))

    def _submit(self, raw: bytes, live: Callable[[], Evaluated]) -> None:
        interpreter, batch = self._interpreter, unpack_batch(raw, self._find, self._engine)
        interpreter.submit(live(), batch.nodes, batch.roots, batch.depth)
        interpreter.marking.add_steps(len(interpreter.plan.nodes), raw)

    def _end(self, one: Happened, data: FiringData) -> None:
        codec, entry = self._engine.codec, one.entry
        (only,) = segments(one.at)
        assert isinstance(only, tuple), "a firing has a number"
        step = self._engine.journal.names.texts[only[0]]
        firing = Firing(step, only[1], data.args, (), data.depth, data.began, entry.created_at)
        made: list[Any] = codec.decode(data.made, plain=True) if data.made else []
        patches = None if data.patches is None else codec.decode(data.patches, plain=True)
        # A firing whose guards have failed was done until then.
        is_done = entry.error is None or entry.value is not None
        ended = Ended(entry.ordinal, is_done, entry.value, self._told(entry), patches, entry.error)
        if ended.error is not None and entry.error is not None:
            ended.operations = tuple(failed_operations_of(unpack_error(entry.error, codec)))
        marking = self._interpreter.marking
        try:
            self._interpreter.again(Remembered(made), firing, ended)
        except LookupError:
            self.forgotten.append(one.at)
            return
        self._counts.add((step, firing.count))
        if marking.head.starts <= entry.ordinal:
            marking.head.tell(starts=entry.ordinal + 1)

    def _told(self, entry: Entry) -> dict[str, Any] | None:
        if entry.error is None or entry.value is not None:
            return None
        error = unpack_error(entry.error, self._engine.codec)
        info = getattr(error, "error", None) or describe(error, self._engine.codec)
        return {"type": info.type, "message": info.message, "kind": info.kind, "attributes": dict(info.attributes)}
