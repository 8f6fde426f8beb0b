"""What clients ask of machines: to send events, to look at cells, to settle effects from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.deliver import Delivery, NewMessage
from workflow_sdk.changes.instances import parse
from workflow_sdk.client.access import Access
from workflow_sdk.client.directory import Merged
from workflow_sdk.client.info import Page, after_cursor
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, DefinitionError, InstanceNotFoundError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.applying import apply as apply_manifest
from workflow_sdk.machines.blobs import collect, set_pin
from workflow_sdk.machines.cell import Answer, CellData
from workflow_sdk.machines.describing import PlainEvent, event_of, read_manifest
from workflow_sdk.machines.effects import STATUSES, Effect, ReceiptStatus
from workflow_sdk.machines.emitting import OtherManifestError, Told, begin_manifest, unmarked
from workflow_sdk.machines.emitting import emit as emit_change
from workflow_sdk.machines.index import Replay
from workflow_sdk.machines.journal import JournalEntry, read_journal, trace
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.manifest import Manifest
from workflow_sdk.machines.rows import FrameRow, IntentRow, StoredCell, all_pending, intent_key, key_of
from workflow_sdk.machines.schemas import plain
from workflow_sdk.machines.settling import settle as settle_change
from workflow_sdk.machines.shadowing import Shadow, ShadowReport
from workflow_sdk.machines.snapshots import StoredSnapshot, take_snapshot, verify
from workflow_sdk.machines.stepping import event_data
from workflow_sdk.machines.stored import ids_of, stored_machine
from workflow_sdk.machines.surroundings import address_of
from workflow_sdk.machines.views import Cell, Intent
from workflow_sdk.rows.cells import SequenceRow, cell_key, frames_of, sequence_key
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import DIRECTORY, FIELDS, InstanceKeys, last_of, shards_of
from workflow_sdk.rows.location import pack, subtree
from workflow_sdk.rows.wire import shown, time_of

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class Frame:
    """Something that an executor has sent while it runs."""

    cursor: str
    """For `client.frames(..., after=)`."""
    value: Any
    """Plain data."""
    attempt: int
    at: datetime


class Machines:
    """The machines of one open store."""

    def __init__(
        self, access: Callable[[], Access], manifest: Manifest | None, retention: Callable[[], float | None]
    ) -> None:
        if manifest is not None and not isinstance(manifest, Manifest):
            raise DefinitionError(f"machines=... takes a Manifest, not {shown(manifest)}")
        self._open = access
        self._manifest = manifest
        self._retention = retention
        self._active: tuple[Access, bytes] | None = None
        """The row of the active manifest, in the store that was open then."""

    @property
    def _access(self) -> Access:
        return self._open()

    def _of(self, machine: Machine[StateT] | str) -> Machine[StateT]:
        if isinstance(machine, Machine):
            return machine
        found = self._declared.machines.get(machine)
        if found is None:
            raise DefinitionError(f"the manifest has no machine {shown(machine)}")
        return found

    @property
    def _declared(self) -> Manifest:
        if self._manifest is None:
            raise DefinitionError("this needs to know the machines: give Client or Runtime `machines=manifest`")
        return self._manifest

    async def emit(self, event: Any, id: str | None) -> list[Delivery]:
        """Deliver an event to the cells that it is routed to."""
        if not isinstance(event, PlainEvent):
            return await self._emit(self._declared, event, id)
        if self._manifest is not None:
            return await self._emit(self._manifest, event_of(self._manifest, event), id)
        stored, raw = await read_manifest(self._access.looking)
        return await self._emit(stored, event_of(stored, event), id, unmarked(raw)[1])

    async def _emit(
        self, manifest: Manifest, event: Any, id: str | None, active: bytes | None = None
    ) -> list[Delivery]:
        access = self._access
        try:
            data = event_data(event)
            targets = manifest.targets(data)
        except CodecError as error:
            raise DefinitionError(f"the event can't be sent: {error}") from error
        if id is not None and (not isinstance(id, str) or not id):
            raise DefinitionError(f"the id of an event is a text, not {shown(id)}")
        new = NewMessage(data.schema, access.codec.seal(data.value), is_event=True)
        now = access.clock.time()
        active = active or await self._begin(access, manifest)
        to = [address_of(target, access.codec, self._retention()) for target in targets]
        here = access.here
        is_here = _nobody if here is None else here.is_worker
        try:
            told = await apply(access.driver, emit_change(active, to, new, id, now, is_here), self._tell)
        except OtherManifestError:
            self._active = None  # the next call looks which one is active
            raise
        return [each.delivery for each in told]

    async def apply(self, manifest: Manifest, *, allow_idle: bool, allow_timers: bool) -> None:
        """Make another manifest the active one."""
        access = self._access
        now = access.clock.time()
        await apply_manifest(access.driver, manifest, now, allow_idle=allow_idle, allow_timers=allow_timers)

    async def shadow(self, manifest: Manifest, events: Iterable[object]) -> ShadowReport:
        """Try another manifest in memory."""
        if isinstance(events, (str, bytes)) or not isinstance(events, Iterable):
            raise DefinitionError(f"events=[...] takes a list of events, not {shown(events)}")
        return await Shadow(self._access, self._rows, manifest).report(events)

    async def _begin(self, access: Access, manifest: Manifest) -> bytes:
        """The row of the active manifest, which is this one."""
        if self._active is None or self._active[0] is not access:
            self._active = access, await begin_manifest(access.driver, manifest, access.clock.time())
        return self._active[1]

    def _tell(self, told: list[Told]) -> None:
        here = self._access.here
        for each in told if here is not None else ():
            assert here is not None, "it was looked at"
            if not each.posted.is_stored:
                continue
            if each.posted.worker is not None and here.is_worker(each.posted.worker):
                here.message_came(each.id)
            else:
                here.is_due(each.id)

    async def cell(self, machine: Machine[StateT] | str, key: Any) -> Cell[StateT]:
        """A cell, as it is stored now."""
        one = await self._seen(machine)
        ids = [one.instance_id(key)] if self._knows(machine) else list(ids_of(one, key))
        for id in ids:
            found = await self._read(one, InstanceKeys(id))
            if found is not None:
                return found
        what = f"no cell {key!r:.100}" if one.is_keyed else "no cell yet"
        raise InstanceNotFoundError(f"machine {one.name!r} has {what}")

    def _knows(self, machine: Machine[Any] | str) -> bool:
        return self._manifest is not None or isinstance(machine, Machine)

    async def _seen(self, machine: Machine[Any] | str) -> Machine[Any]:
        """A machine to look at: without a manifest, what the store knows of it."""
        if self._knows(machine):
            return self._of(machine)
        return await stored_machine(self._access.looking, str(machine))

    async def cells(self, machine: Machine[StateT] | str, limit: int, cursor: str | None) -> Page[Cell[StateT]]:
        """The cells of a machine, oldest first."""
        one = await self._seen(machine)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 1000:
            raise DefinitionError(f"limit is a number of cells from 1 to 1000, not {shown(limit)}")
        part = pack((3, one.name))
        begin = b"" if cursor is None else after_cursor(cursor, part)
        rows = Merged(self._access.looking, shards_of(DIRECTORY + part), begin, b"\xff", page=max(8, limit // 8))
        items: list[Cell[StateT]] = []
        while (found := await rows.next()) is not None:
            key, suffix = found
            cell = await self._read(one, InstanceKeys(last_of(key)))
            if cell is not None:
                items.append(cell)
                if len(items) == limit:
                    return Page(items, (part + suffix).hex())
        return Page(items, None)

    async def _read(self, machine: Machine[StateT], keys: InstanceKeys) -> Cell[StateT] | None:
        codec = self._access.codec
        found = await self._rows(keys)
        if found is None or found[0].head.workflow != machine.name:
            return None
        about, stored = found
        raw = None if about.cell is not None else await self._access.looking.get(sequence_key(keys))
        sequence = 0 if raw is None else SequenceRow.unpack(raw).sequence
        data = stored.data(key_of(machine, about, codec), about, codec, sequence)
        key = machine.key_of(data.key)
        inflight = await self._inflight(data, machine, key)
        state: Any = None if data.state is None else machine.state.decode(data.state)
        return Cell(key, state, data.status, inflight, data.sequence, data.revision)

    async def _rows(self, keys: InstanceKeys) -> tuple[InstanceRows, StoredCell] | None:
        """The rows of a cell, as they were at one moment; None if there are none."""
        # One read, so that the counts are those of the state: a cell has no rows between the two but a few.
        rows = await self._access.looking.scan(keys.range(FIELDS)[0], all_pending(keys)[1])
        about = parse(keys, rows).about
        return (about, StoredCell.of(keys, [row for row in rows if row[0] >= cell_key(keys)])) if about else None

    async def _inflight(self, data: CellData, machine: Machine[Any], key: Any) -> dict[str, Intent]:
        raws = {id: await self._access.looking.get(intent_key(id)) for id in data.inflight}
        rows = {id: IntentRow.unpack(raw) for id, raw in raws.items() if raw is not None}
        return {
            id: _intent(id, row, self._access.codec.unseal(row.params), machine.effects, key)
            for id, row in rows.items()
        }

    async def journal(
        self, machine: Machine[Any] | str, limit: int, cursor: str | None, *, newest_first: bool
    ) -> Page[JournalEntry]:
        """A page of what the cells of a machine have taken."""
        access = self._access
        name = machine.name if isinstance(machine, Machine) else machine
        return await read_journal(access.looking, access.codec, name, limit, cursor, newest_first=newest_first)

    async def trace(self, intent_id: str) -> list[JournalEntry]:
        """What the journals have of an effect."""
        if not isinstance(intent_id, str):
            raise DefinitionError(f"the id of an intent is a text, not {shown(intent_id)}")
        return await trace(self._access.looking, self._access.codec, intent_id)

    async def snapshot(self, machine: Machine[Any] | str) -> StoredSnapshot:
        """Store the cells of a machine."""
        return await take_snapshot(self._access, self._of(machine))

    async def verify_replay(self, snapshot: StoredSnapshot, journal: Iterable[JournalEntry] | None) -> Replay:
        """Compare what a journal leads to with the cells that there are."""
        if not isinstance(snapshot, StoredSnapshot):
            raise DefinitionError(f"snapshot is what `client.snapshot(machine)` returns, not {shown(snapshot)}")
        return await verify(self._access, self._of(snapshot.machine), snapshot, journal, self._declared.hash)

    async def pin(self, root: str, *, pinned: bool) -> None:
        """Keep a snapshot, or not any more."""
        await apply(self._access.driver, set_pin(root, pinned=pinned))

    async def gc(self) -> int:
        """Delete the parts of snapshots that nobody needs."""
        return await collect(self._access.driver, self._access.codec)

    async def settle(self, intent_id: str, payload: Any, status: ReceiptStatus) -> Delivery:
        """Settle an effect from outside."""
        if status not in STATUSES:
            raise DefinitionError(f"the status of a receipt is one of {', '.join(STATUSES)}, not {shown(status)}")
        if not isinstance(intent_id, str):
            raise DefinitionError(f"the id of an intent is a text, not {shown(intent_id)}")
        access = self._access
        try:
            data = plain(payload)
            canonical.bare(data)
        except CodecError as error:
            raise DefinitionError(f"the receipt can't be sent: {error}") from error
        is_here = _nobody if access.here is None else access.here.is_worker
        settling = settle_change(intent_id, Answer(status, data), access.codec, access.clock.time(), is_here)
        told = await apply(access.driver, settling, lambda told: self._tell([told]))
        return told.delivery

    async def frames(self, intent_id: str, after: str | None) -> list[Frame]:
        """What the executor of an effect has sent, in order."""
        driver: Driver = self._access.looking
        prefix = frames_of(intent_id)
        begin, end = subtree(prefix)
        if after is not None:
            try:
                begin = prefix + bytes.fromhex(after) + b"\x00"
            except (ValueError, TypeError):
                raise DefinitionError(f"after is the cursor of a frame, not {shown(after)}") from None
        rows = [(key[len(prefix) :].hex(), FrameRow.unpack(raw)) for key, raw in await driver.scan(begin, end)]
        codec = self._access.codec
        return [
            Frame(cursor, canonical.restored(codec.unseal(row.value)), row.attempt, time_of(row.at))
            for cursor, row in rows
        ]


def _intent(id: str, row: IntentRow, params: bytes, effects: Mapping[str, Effect], key: Any) -> Intent:
    effect = effects.get(row.effect)
    value = canonical.restored(params) if effect is None else effect.params.decode(params)
    at = time_of(row.at)
    return Intent(id, row.effect, value, row.machine, key, row.issuer, row.sequence, row.attempt, recorded_at=at)


def _nobody(worker: str) -> bool:
    return False
