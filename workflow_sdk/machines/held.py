"""One cell that a worker holds: as the store has it, and what messages make of it, each in one commit."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any, Final

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.claim import Claim, give_back
from workflow_sdk.changes.deliver import NewMessage, purge_time
from workflow_sdk.changes.instances import read_about
from workflow_sdk.driver import Append, StorageLimitError
from workflow_sdk.errors import CodecError
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.machines.cell import CellData, CellMessage, Decision, decide
from workflow_sdk.machines.emitting import Address, Told
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.recording import (
    Begun,
    Recording,
    begun_of,
    changed,
    delete_cell,
    intent_of,
    record,
    release,
    status_of,
    stick,
    with_result,
)
from workflow_sdk.machines.room import Placing
from workflow_sdk.machines.rows import JournalRow, StoredCell, all_pending, journal_of, key_of
from workflow_sdk.machines.stepping import EventData, RefusedError
from workflow_sdk.machines.surroundings import Surroundings
from workflow_sdk.rows.cells import SequenceRow, cell_key, sequence_key
from workflow_sdk.rows.instance import CellRow, InstanceRows, Lease
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.rows.status import Status
from workflow_sdk.values import SealedError
from workflow_sdk.values.failures import describe, pack_error_info

_log: Final = logging.getLogger("workflow_sdk.machines")


class Left(Enum):
    """How a message has left a cell."""

    TAKEN = "taken"
    """It is out of the inbox."""
    OVER = "over"
    """It is out of the inbox or, if the cell is stuck, still in it; the cell is not held any more."""


class HeldCell:
    """A cell under the lease of this worker."""

    def __init__(self, machine: Machine[Any], keys: InstanceKeys, claimed: Claim, around: Surroundings) -> None:
        assert claimed.lease is not None, "only a claimed instance is run"
        self.machine = machine
        self.keys = keys
        self.lease: Lease = claimed.lease
        self.about: InstanceRows = claimed.about
        """The rows of its instance, as they are stored."""
        self._around = around
        self._claimed: Claim | None = claimed
        self._cell = CellData(None)

    @property
    def waits(self) -> bool:
        """Whether it is stored that the cell waits."""
        return self.about.status is Status.WAITING

    @property
    def is_empty(self) -> bool:
        """Whether it has no state: it was deleted, or has not begun."""
        return self._cell.state is None

    async def load(self) -> None:
        """Read the cell."""
        claimed, around, keys = self._claimed, self._around, self.keys
        assert claimed is not None, "a cell is loaded once"
        self._claimed = None  # its rows are not to be kept in memory
        begin, end = cell_key(keys), all_pending(keys)[1]
        if claimed.rows is not None:
            rows = claimed.rows.between(begin, end)
        else:
            # The worker that had the cell may have written until the claim was stored, so read again.
            self.about = await read_about(around.driver, keys)
            rows = await around.driver.scan(begin, end)
        stored = StoredCell.of(keys, rows)
        sequence = 0
        if self.about.cell is None and (raw := await around.driver.get(sequence_key(keys))) is not None:
            sequence = SequenceRow.unpack(raw).sequence
        key = key_of(self.machine, self.about, around.codec)
        self._cell = stored.data(key, self.about, around.codec, sequence)

    async def take(self, message: InboxMessage, stamp: bytes | None, *, is_last: bool) -> Left:
        """Take a message. `is_last`: whether no other was there when the inbox stamp was `stamp`."""
        with self._around.room.placing() as place:
            return await self._take(message, stamp, place, is_last=is_last)

    async def _take(self, message: InboxMessage, stamp: bytes | None, place: Placing, *, is_last: bool) -> Left:
        around, now = self._around, self._around.clock.time()
        try:
            decision = self._decide(message, now)
            what = self._recording(message, decision, now, place)
        except RefusedError as error:
            return await self._stick(error)
        told: list[Told] | None = None
        try:
            if is_last and what.deletes and not any(to.keys.space == self.keys.space for to, _ in what.told):
                told = await apply(around.driver, delete_cell(what, around, stamp, now), self._tell)
            is_over = what.ends or told is not None
            if told is None:
                # If more has come for a cell that was to be deleted, it begins again with that.
                told = await apply(around.driver, record(what, around, now), self._tell)
        except StorageLimitError as error:
            return await self._stick(error)
        if told is None:
            return Left.TAKEN  # somebody has discarded the message
        self._begin(what)
        self.about, self._cell = what.after, decision.cell
        return Left.OVER if is_over else Left.TAKEN

    def _decide(self, message: InboxMessage, now: float) -> Decision:
        event = EventData(str(message.name), self._around.codec.unseal(message.payload))
        taken = CellMessage(event, message.sent_at)
        return decide(self.machine, self._cell, taken, now, self._around.manifest.hash)

    def _tell(self, told: list[Told] | None) -> None:
        """Have cells look that a commit has delivered to, or may have: to look once too often does no harm."""
        for each in told or ():
            if each.posted.is_stored:
                self._around.tell(each.id, each.posted.worker)

    def _begin(self, what: Recording) -> None:
        """Have effects begin that are recorded now."""
        for id, row in what.begun:
            if row.worker is not None:
                self._around.begin(id, row)
            else:
                self._around.queued(row.effect)

    def _recording(self, message: InboxMessage, decision: Decision, now: float, place: Placing) -> Recording:
        before, cell, status = self.about, decision.cell, status_of(decision)
        try:
            return Recording(
                self.keys,
                self.lease,
                before,
                self._after(message, decision, status, now),
                message,
                cell.state != self._cell.state,
                None if cell.state is None else self._around.codec.seal(cell.state),
                tuple(self._begun(decision, place)),
                decision.settled,
                self._forgotten(message, decision),
                is_first=before.cell is None,
                ends=status.is_terminal,
                deletes=decision.is_taken and cell.state is None,
                told=tuple(self._told(decision)),
                entry=self._entry(message, decision) if self._around.journal else None,
            )
        except SealedError:
            raise
        except CodecError as error:
            raise RefusedError(f"machine {self.machine.name!r}: {error}") from error

    def _after(self, message: InboxMessage, decision: Decision, status: Status, now: float) -> InstanceRows:
        before, codec = self.about, self._around.codec
        purge_at = purge_time(before, now) if status.is_terminal else None
        after = changed(before, status, now, takes=message.is_counted, purge_at=purge_at)
        cell = decision.cell
        if cell is not self._cell:
            known = None if before.cell is None else before.cell.settled
            row = CellRow(cell.sequence, cell.revision, float(cell.changed_at), decision.settled or known)
            after.set(Field.CELL, row)
        if decision.reason is not None:
            error = describe(CodecError(decision.reason), codec, "definition")
            with_result(after, None, pack_error_info(error, codec))
        elif status.is_terminal and cell.state is not None:
            schema = self.machine.state
            with_result(after, codec.encode(schema.decode(cell.state), schema.hint), None)
        return after

    def _forgotten(self, message: InboxMessage, decision: Decision) -> tuple[str, ...]:
        """Intents of which nobody can see any more what their executors have sent."""
        # That can be read until the cell hears of the next effect, or is deleted.
        known = None if self.about.cell is None else self.about.cell.settled
        over: set[str | None] = {known}
        if decision.settled is None:
            over = {intent_of(message, self._around.codec)}  # nobody waits for it any more
        if decision.is_taken and decision.cell.state is None:
            over |= {known, decision.settled}
        return tuple(sorted(filter(None, over)))

    def _entry(self, message: InboxMessage, decision: Decision) -> Append | None:
        """What the journal gets of a message; None, if it has changed nothing."""
        before, codec = self._cell, self._around.codec
        if decision.cell is before:
            return None
        row = JournalRow(
            None if before.key is None else codec.seal(before.key),
            str(message.name),
            message.payload,
            message.sent_at,
            decision.settled,
            before.sequence,
            before.state is None,
            None if decision.annotations is None else codec.seal(decision.annotations),
        )
        return Append(journal_of(self.machine.name), row.pack())

    def _begun(self, decision: Decision, place: Placing) -> list[Begun]:
        around, key = self._around, decision.cell.key
        sealed = None if key is None else around.codec.seal(key)
        return [
            begun_of(
                one,
                self.machine.name,
                self.keys,
                sealed,
                around.codec.seal(one.params),
                place(one.id, one.effect),
            )
            for one in decision.begun
        ]

    def _told(self, decision: Decision) -> list[tuple[Address, NewMessage]]:
        around = self._around
        found: list[tuple[Address, NewMessage]] = []
        for event in decision.events:
            # What is told in a transition finds room in any inbox: the transition can't wait for others.
            new = NewMessage(event.schema, around.codec.seal(event.value), needs_room=False, is_event=True)
            found += [(around.address(target), new) for target in around.manifest.targets(event)]
        return found

    async def _stick(self, error: Exception) -> Left:
        """Store the cell as stuck. The message stays the first in its inbox."""
        around, now = self._around, self._around.clock.time()
        after = changed(self.about, Status.STUCK, now, takes=False, purge_at=None)
        info = describe(error, around.codec, "definition")
        with_result(after, None, pack_error_info(info, around.codec))
        await apply(around.driver, stick(Recording(self.keys, self.lease, self.about, after, None), around))
        self.about = after
        _log.error("cell %s is stuck: %s", self.keys.instance_id, error)
        return Left.OVER

    async def delete(self, stamp: bytes | None) -> bool:
        """Delete the cell; False if something has come for it, and the inbox stamp is not this one any more."""
        around, now = self._around, self._around.clock.time()
        what = Recording(self.keys, self.lease, self.about, self.about, None, deletes=True)
        return await apply(around.driver, delete_cell(what, around, stamp, now)) is not None

    async def settle_down(self) -> None:
        """Store that the cell waits."""
        around, now = self._around, self._around.clock.time()
        after = changed(self.about, Status.WAITING, now, takes=False, purge_at=None)
        await apply(around.driver, record(Recording(self.keys, self.lease, self.about, after, None), around, now))
        self.about = after

    async def release(self, stamp: bytes | None) -> bool:
        """Release the cell; False if something has come for it, and the inbox stamp is not this one any more."""
        around, now = self._around, self._around.clock.time()
        after = self.about
        if not self.waits:
            after = changed(after, Status.WAITING, now, takes=False, purge_at=None)
        is_released = await apply(around.driver, release(self.keys, self.lease, self.about, after, stamp))
        if is_released:
            self.about = after
        return is_released

    async def give_back(self) -> bool:
        """Release the cell as due, with nothing of what is under way; False if the store failed."""
        around = self._around
        try:
            await apply(around.driver, give_back(self.keys, self.lease, around.clock.time(), forgets_worker=False))
        except Exception:  # noqa: BLE001  # whatever a driver raises
            _log.warning("cell %s could not be released", self.keys.instance_id, exc_info=True)
            return False
        return True
