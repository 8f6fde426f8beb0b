"""Trying another manifest on a copy of a store's cells, in memory. Nothing is stored, and no executor is called."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

from anyio.lowlevel import checkpoint

from workflow_sdk.changes.deliver import Delivery
from workflow_sdk.client.access import Access
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.machines import canonical
from workflow_sdk.machines.applying import PAGE, look, machines_of
from workflow_sdk.machines.cell import CellData, CellMessage, CellStatus, Pending
from workflow_sdk.machines.kernel import CellId, Kernel, OpenIntent
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.manifest import Manifest
from workflow_sdk.machines.rows import ACTIVE, ActiveRow, IntentRow, StoredCell, all_intents, key_of
from workflow_sdk.machines.stepping import EventData
from workflow_sdk.machines.views import Intent, intent_of
from workflow_sdk.rows.cells import SequenceRow, sequence_key
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import INBOX, InstanceKeys, all_by_workflow, last_of
from workflow_sdk.rows.wire import shown
from workflow_sdk.values import Codec

TRANSITIONS_MAX: Final = 100_000
"""How many messages cells take before it is ended: machines may send each other events for ever."""
AT_ONCE: Final = 64
"""How many of these are taken before others have their turn."""

ReadRows: TypeAlias = Callable[[InstanceKeys], Awaitable[tuple[InstanceRows, StoredCell] | None]]


class Difference(NamedTuple):
    """The state of a cell before and after, as plain data; None, if there is no cell."""

    before: Any
    after: Any


@dataclass(frozen=True)
class Refusal:
    """Something that was refused."""

    what: str
    """An event, or the id of a cell, or the name of a machine."""
    reason: str


@dataclass(frozen=True)
class Horizon:
    """How far a trial has looked. As a text, it says so in a sentence."""

    events: int
    """How many events were given."""
    taken: int
    """How many messages cells have taken: of these events, of what was queued, and of what cells tell each other."""
    is_cut: bool = False
    """Whether it was ended although cells had more to take."""

    def __str__(self) -> str:
        end = "; it was ended there, although there was more to take" if self.is_cut else ""
        return (
            f"{self.events} events were looked at, and {self.taken} messages taken{end}. What comes after that was not "
            "looked at, such as what follows from the receipts of effects"
        )


@dataclass(frozen=True)
class ShadowReport:
    """What another manifest would have done, as far as it was looked at. Cells are named by the ids of instances."""

    effects: list[Intent]
    """What cells have asked for in the trial, in order."""
    pending: list[Intent]
    """All effects that are not settled at its end, with those that are in flight in the store."""
    statuses: Mapping[str, CellStatus]
    """The status of every cell at its end."""
    allowlists: Mapping[str, list[str]]
    """By the name of each machine: the effects that it may ask for."""
    differences: Mapping[str, Difference]
    """The cells whose state is another one at its end."""
    refused: list[Refusal]
    """Events that don't fit or that no cell takes, cells that are stuck or have failed, machines that are missing."""
    horizon: Horizon
    """How far it has looked."""


class Shadow:
    """A copy of the cells of a store, run under another manifest."""

    def __init__(self, access: Access, read_rows: ReadRows, manifest: Manifest) -> None:
        if not isinstance(manifest, Manifest):
            raise DefinitionError(f"what is tried is a Manifest, not {shown(manifest)}")
        self._driver: Driver = access.looking
        self._codec: Codec = access.codec
        self._read_rows = read_rows
        self._manifest = manifest
        self._kernel = Kernel(manifest)
        self._now = self._kernel.now = access.clock.time()
        self._refused: list[Refusal] = []
        self._asked: list[OpenIntent] = []
        self._known: set[str] = set()
        """The ids of the intents that were seen."""
        self._taken = 0

    async def report(self, events: Iterable[object]) -> ShadowReport:
        """Copy the cells, have them take what is queued and these events, and tell what has become of it."""
        given = list(events)
        await self._copy()
        before = dict(self._kernel.cells)
        await self._run()
        for event in given:
            self._accept(event)
            await self._run()
        return self._told(before, len(given))

    # The copy.

    async def _copy(self) -> None:
        """Read all cells of the machines of the manifest, and say which ones have no place in it."""
        intents: dict[str, list[tuple[str, IntentRow]]] = {}
        async with aclosing(self._rows(*all_intents())) as rows:
            async for key, raw in rows:
                row = IntentRow.unpack(raw)
                intents.setdefault(row.instance, []).append((last_of(key), row))
        for machine in self._manifest.machines.values():
            async with aclosing(self._rows(*all_by_workflow(machine.name))) as rows:
                async for key, _ in rows:
                    id = last_of(key)
                    await self._copy_cell(machine, InstanceKeys(id), intents.get(id, []))
        self._known.update(self._kernel.intents)
        active = await self._driver.get(ACTIVE)
        declared = [] if active is None else machines_of(ActiveRow.unpack(active))
        gone = set(declared) - self._manifest.machines.keys()
        for name, count in (await look(self._driver, gone)).cells.items():
            self._refused.append(Refusal(name, f"it is not in the manifest, and {count} of its cells have not ended"))

    async def _copy_cell(self, machine: Machine[Any], keys: InstanceKeys, open: list[tuple[str, IntentRow]]) -> None:
        found = await self._read_rows(keys)
        if found is None:
            return
        about, stored = found
        codec, id = self._codec, keys.instance_id
        key = key_of(machine, about, codec)
        if (problem := _misfit(machine, key, id)) is not None:
            self._refused.append(Refusal(id, problem))
            return
        raw = None if about.cell is not None else await self._driver.get(sequence_key(keys))
        data = stored.data(key, about, codec, 0 if raw is None else SequenceRow.unpack(raw).sequence)
        if data.status is CellStatus.RUNNING:
            data = replace(data, status=CellStatus.WAITING)
        messages: list[CellMessage] = []
        (begin, end), start = keys.range(INBOX), len(keys.space) + len(INBOX)
        async with aclosing(self._rows(begin, end)) as rows:
            async for place, message in rows:
                one = InboxMessage.unpack(place[start:], message)
                messages.append(CellMessage(EventData(str(one.name), codec.unseal(one.payload)), one.sent_at))
        self._kernel.load(machine.name, data, [_pending(id, row, codec) for id, row in open], messages)

    async def _rows(self, begin: bytes, end: bytes) -> AsyncGenerator[tuple[bytes, bytes]]:
        while rows := await self._driver.scan(begin, end, limit=PAGE):
            for row in rows:
                yield row
            if len(rows) < PAGE:
                return
            begin = rows[-1][0] + b"\x00"

    # The trial.

    def _accept(self, event: object) -> None:
        try:
            delivered = self._kernel.accept(event, self._now)
        except CodecError as error:
            self._refused.append(Refusal(f"{event!r:.200}", str(error)))
            return
        if not delivered:
            self._refused.append(Refusal(f"{event!r:.200}", "no route leads from it"))
        elif Delivery.CLOSED in delivered:
            self._refused.append(Refusal(f"{event!r:.200}", "a cell that it reaches has ended"))

    async def _run(self) -> None:
        kernel = self._kernel
        while self._taken < TRANSITIONS_MAX:
            if kernel.step():
                self._taken += 1
                self._note()
                if self._taken % AT_ONCE == 0:
                    await checkpoint()
            elif (due := kernel.next_due()) is not None and due <= self._now:
                # One after the other: what a timer brings about may set another one, which is due before the next.
                kernel.fire(due)
            else:
                return

    def _note(self) -> None:
        """Note what the last transition has asked for."""
        new: list[OpenIntent] = []
        for id, one in reversed(self._kernel.intents.items()):
            if id in self._known:
                break
            self._known.add(id)
            new.append(one)
        self._asked += reversed(new)

    # What has become of it.

    def _told(self, before: Mapping[CellId, CellData], events: int) -> ShadowReport:
        kernel, machines = self._kernel, self._manifest.machines
        after = kernel.cells
        is_cut = not kernel.is_idle
        problems = [Refusal(self._id(id), reason) for id, reason in kernel.problems.items()]
        return ShadowReport(
            [self._view(one) for one in self._asked],
            [self._view(one) for one in kernel.intents.values()],
            {self._id(id): cell.status for id, cell in after.items() if self._is_there(id, cell)},
            {name: sorted(machine.effects) for name, machine in machines.items()},
            {
                self._id(id): Difference(_plain(before.get(id)), _plain(cell))
                for id, cell in after.items()
                if _state(before.get(id)) != cell.state
            },
            [*self._refused, *problems],
            Horizon(events, self._taken, is_cut),
        )

    def _is_there(self, id: CellId, cell: CellData) -> bool:
        return cell.status.is_terminal or self._kernel.is_there(*id)

    def _id(self, id: CellId) -> str:
        machine, key = id
        return self._manifest.machines[machine].cell_id(key)

    def _view(self, one: OpenIntent) -> Intent:
        key, effects = self._manifest.machines[one.machine].key_of(one.key), self._manifest.effects
        try:
            return intent_of(effects, one.machine, key, one.pending)
        except CodecError:
            # It was asked for with other parameters than the effect has now.
            return intent_of({}, one.machine, key, one.pending)


def _misfit(machine: Machine[Any], key: bytes | None, id: str) -> str | None:
    """Why a cell has no place in a machine; None, if it has one."""
    try:
        machine.key_of(key)
        is_same = machine.cell_id(key) == id
    except CodecError as error:
        return f"its key does not fit: {error}"
    return None if is_same else "its key does not fit: the machine has other keys, or none"


def _pending(id: str, row: IntentRow, codec: Codec) -> Pending:
    return Pending(id, row.effect, codec.unseal(row.params), row.issuer, row.sequence, row.at)


def _state(cell: CellData | None) -> bytes | None:
    return None if cell is None else cell.state


def _plain(cell: CellData | None) -> Any:
    state = _state(cell)
    return None if state is None else canonical.restored(state)
