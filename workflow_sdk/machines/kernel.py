"""Machines in memory: their cells, what is queued for them, and the effects that are open. No store, no clock.

It decides what a store-backed runtime decides, in an order that is always the same. Tests of machines run on it, and
what a changed manifest would do is tried on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, Final, Literal, TypeAlias

from workflow_sdk.changes.deliver import Delivery
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.cell import (
    Answer,
    CellData,
    CellMessage,
    CellStatus,
    Decision,
    Pending,
    decide,
    receipt_message,
)
from workflow_sdk.machines.manifest import Manifest, Target
from workflow_sdk.machines.stepping import EventData, RefusedError, event_data

CellId: TypeAlias = tuple[str, bytes | None]
"""The name of a machine, and the key of the cell as canonical bytes."""

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A message that a cell has taken."""

    machine: str
    key: bytes | None
    kind: Literal["event", "receipt"]
    schema: str
    value: bytes
    """Canonical, without the tag."""
    at: float
    """When it was accepted."""
    intent_id: str | None
    """Of a receipt: the effect that it ends."""
    sequence: int
    """How many transitions the cell had made before."""
    begins: bool = False
    """Whether it is known that the cell had no state before."""


@dataclass(frozen=True, slots=True)
class OpenIntent:
    """An effect that is not settled. The cell that asked for it may have ended since."""

    machine: str
    key: bytes | None
    pending: Pending


class Kernel:
    """The cells of the machines of a manifest, in memory."""

    def __init__(self, manifest: Manifest, cells: Iterable[tuple[str, CellData]] = ()) -> None:
        self.manifest = manifest
        self.cells: dict[CellId, CellData] = {}
        """Also those that were deleted: without a state, they count on."""
        self.queues: dict[CellId, deque[CellMessage]] = {}
        self.ready: deque[CellId] = deque()
        """Whose turn it is: cells that have a message and are not stuck, each once."""
        self.intents: dict[str, OpenIntent] = {}
        """In the order in which they were asked for."""
        self.journal: list[Entry] = []
        self.problems: dict[CellId, str] = {}
        """Why cells are stuck or have failed."""
        self.now: float = 0.0
        """The latest time that it was told. What happens in it happens then."""
        self._used: set[str] = set()
        self._opened = 0
        self._timers: list[tuple[float, int, str]] = []
        """When each is due, in which order they were asked for, and their ids; some may be settled."""
        for machine, data in cells:
            self.load(machine, data, data.inflight.values())

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do before something comes from outside, or a timer is due."""
        return not self.ready

    def load(
        self, machine: str, data: CellData, intents: Iterable[Pending], messages: Iterable[CellMessage] = ()
    ) -> None:
        """Take over a cell as it is stored, with its effects that are not settled, and what it has not taken yet.

        If it is stuck, it takes the first message again. DefinitionError: the manifest lacks its machine.
        """
        self._check_machine(machine)
        id = (machine, data.key)
        self.cells[id] = data
        self._open(machine, data.key, intents)
        queue = deque(messages)
        if queue and not data.status.is_terminal:
            self.cells[id] = replace(data, status=CellStatus.WAITING)
            self.queues[id] = queue
            self.ready.append(id)

    def accept(self, event: object, now: float, id: str | None = None) -> list[Delivery]:
        """Route an event to the cells that it reaches; an `id` counts once. CodecError: it does not fit, and was not
        accepted by any of them."""
        data = event_data(event)
        targets = self.manifest.targets(data)
        self.fire(now)
        if id is not None:
            if id in self._used:
                return [Delivery.DUPLICATE] * len(targets)
            self._used.add(id)
        return [self._deliver(target, data) for target in targets]

    def settle(self, intent_id: str, answer: Answer, now: float) -> Delivery:
        """End an effect, and tell the cell that asked for it. `STALE`: there is no such effect, or none any more;
        `CLOSED`: the cell has ended."""
        self.fire(now)
        return self._settle(intent_id, answer, now)

    def fire(self, now: float) -> int:
        """Settle the timers that are due by now, the earliest first; return how many they are."""
        fired = 0
        while (due := self.next_due()) is not None and due <= now:
            self.now = max(self.now, due)
            _, _, id = heappop(self._timers)
            self._settle(id, Answer("ok"), max(due, self.intents[id].pending.at))
            fired += 1
        self.now = max(self.now, now)
        return fired

    def next_due(self) -> float | None:
        """When the next timer is due."""
        while self._timers and self._timers[0][2] not in self.intents:
            heappop(self._timers)  # it was settled by somebody
        return self._timers[0][0] if self._timers else None

    def step(self) -> bool:
        """Have the next cell take its first message; False, if no cell has one that it can take.

        The cells take turns. If a transition is refused, nothing of it is kept, its message stays first, and the cell
        is stuck.
        """
        if not self.ready:
            return False
        id = self.ready.popleft()
        message, before = self.queues[id][0], self.cells[id]
        machine = self.manifest.machines[id[0]]
        try:
            decision = decide(machine, before, message, self.now, self.manifest.hash)
            told = [(event, target) for event in decision.events for target in self._targets(event)]
        except RefusedError as error:
            self.cells[id] = replace(before, status=CellStatus.STUCK)
            self.problems[id] = str(error)
            return True
        self._take(id, before, message, decision)
        for event, target in told:
            self._deliver(target, event)
        return True

    def retry(self, machine: str, key: bytes | None = None) -> bool:
        """Have a stuck cell take its first message again; False, if it is not stuck."""
        id = (machine, key)
        cell = self.cells.get(id)
        if cell is None or cell.status is not CellStatus.STUCK:
            return False
        self.cells[id] = replace(cell, status=CellStatus.WAITING)
        self.problems.pop(id, None)
        self.ready.append(id)
        return True

    def is_there(self, machine: str, key: bytes | None) -> bool:
        """Whether there is such a cell: it has a state, or something has come for it that it has not taken."""
        cell = self.cells.get((machine, key))
        return cell is not None and (cell.state is not None or bool(self.queues.get((machine, key))))

    # What a message changes.

    def _targets(self, event: EventData) -> list[Target]:
        try:
            return self.manifest.targets(event)
        except CodecError as error:
            raise RefusedError(f"an event that it emits, {event.schema}, can't be routed: {error}") from error

    def _take(self, id: CellId, before: CellData, message: CellMessage, decision: Decision) -> None:
        machine, key = id
        queue, after = self.queues[id], decision.cell
        queue.popleft()
        if after is not before:
            intent = _intent_of(message)
            kind: Literal["event", "receipt"] = "event" if intent is None else "receipt"
            event = message.event
            self.journal.append(
                Entry(machine, key, kind, event.schema, event.value, message.at, intent, before.sequence)
            )
        self.cells[id] = after
        self._open(machine, key, decision.begun)
        if decision.reason is not None:
            self.problems[id] = decision.reason
        if after.status.is_terminal:
            queue.clear()
        if queue:
            self.ready.append(id)
        else:
            del self.queues[id]

    def _open(self, machine: str, key: bytes | None, begun: Iterable[Pending]) -> None:
        for one in begun:
            self.intents[one.id] = OpenIntent(machine, key, one)
            self._opened += 1
            if (due := one.due) is not None:
                heappush(self._timers, (due, self._opened, one.id))

    def _deliver(self, target: Target, event: EventData) -> Delivery:
        return self._put((target.machine.name, target.key), CellMessage(event, self.now))

    def _put(self, id: CellId, message: CellMessage) -> Delivery:
        cell = self.cells.get(id)
        if cell is None:
            cell = self.cells[id] = CellData(id[1])
        if cell.status.is_terminal:
            return Delivery.CLOSED
        queue = self.queues.setdefault(id, deque())
        queue.append(message)
        if cell.status is CellStatus.STUCK:
            return Delivery.QUEUED
        if len(queue) == 1:
            self.ready.append(id)
        return Delivery.ACCEPTED

    def _settle(self, intent_id: str, answer: Answer, at: float) -> Delivery:
        found = self.intents.get(intent_id)
        if found is None:
            return Delivery.STALE
        id = (found.machine, found.key)
        message = receipt_message(found.machine, found.key, found.pending, answer, at)
        del self.intents[intent_id]
        if intent_id not in self.cells[id].inflight:
            return Delivery.CLOSED
        self._put(id, message)
        return Delivery.ACCEPTED

    # As bytes.

    def stored(self) -> bytes:
        """All of it, as bytes."""
        return canonical.bare(
            {
                "format": _FORMAT,
                "now": self.now,
                "cells": [[*id, *_packed_cell(cell)] for id, cell in self.cells.items()],
                "queues": [
                    [*id, [[*message.event, message.at] for message in queue]] for id, queue in self.queues.items()
                ],
                "ready": [list(id) for id in self.ready],
                "intents": [[one.machine, one.key, _packed(one.pending)] for one in self.intents.values()],
                "journal": [
                    [one.machine, one.key, one.kind, one.schema, one.value, one.at, one.intent_id, one.sequence]
                    for one in self.journal
                ],
                "problems": [[*id, problem] for id, problem in self.problems.items()],
                "used": sorted(self._used),
            }
        )

    @classmethod
    def restored(cls, manifest: Manifest, data: bytes) -> Kernel:
        """What `stored` has made bytes of. The manifest may have changed; DefinitionError, if it lacks a machine."""
        found: dict[str, Any] = canonical.restored(data)
        if found.get("format") != _FORMAT:
            raise CodecError(f"the bytes have format {found.get('format')!r}; {_FORMAT} is known")
        kernel = cls(manifest)
        for machine, key, *fields in found["cells"]:
            kernel._check_machine(machine)
            kernel.cells[machine, key] = _unpacked_cell(key, fields)
        for machine, key, messages in found["queues"]:
            queue = (CellMessage(EventData(schema, value), at) for schema, value, at in messages)
            kernel.queues[machine, key] = deque(queue)
        kernel.ready.extend((machine, key) for machine, key in found["ready"])
        for machine, key, pending in found["intents"]:
            kernel._open(machine, key, [Pending(*pending)])
        kernel.journal.extend(Entry(*fields) for fields in found["journal"])
        kernel.problems.update({(machine, key): problem for machine, key, problem in found["problems"]})
        kernel.now = found["now"]
        kernel._used.update(found["used"])
        return kernel

    def _check_machine(self, name: str) -> None:
        if name not in self.manifest.machines:
            raise DefinitionError(f"there are cells of machine {name!r}, which is not in the manifest")


def _intent_of(message: CellMessage) -> str | None:
    """The effect that a message ends; None, if it is no receipt."""
    return str(canonical.restored(message.event.value)["intent_id"]) if message.is_receipt else None


def _packed(pending: Pending) -> list[object]:
    return [pending.id, pending.effect, pending.params, pending.issuer, pending.sequence, pending.at]


def _packed_cell(cell: CellData) -> list[object]:
    inflight = [_packed(one) for one in cell.inflight.values()]
    return [cell.state, cell.status.value, inflight, cell.sequence, cell.revision, cell.changed_at]


def _unpacked_cell(key: bytes | None, fields: list[Any]) -> CellData:
    state, status, inflight, sequence, revision, changed_at = fields
    pending = {one.id: one for one in (Pending(*each) for each in inflight)}
    return CellData(key, state, CellStatus(status), pending, sequence, revision, changed_at)
