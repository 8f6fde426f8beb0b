"""Storing what a message has made of a cell: in one commit, with everything that goes out of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from workflow_sdk.changes.change import Assume, Get, Signal, Steps, Writing, change, pages
from workflow_sdk.changes.deliver import NewMessage
from workflow_sdk.changes.instances import count_up, store, unlist
from workflow_sdk.driver import Append, Clear, ClearRange, Set
from workflow_sdk.errors import LeaseLostError
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.machines import canonical
from workflow_sdk.machines.cell import RECEIPT, CellStatus, Decision, Pending
from workflow_sdk.machines.emitting import Address, Told, deliver_all, under
from workflow_sdk.machines.rows import (
    IntentRow,
    PendingRow,
    all_pending,
    executed_key,
    intent_key,
    pending_key,
    queued_row,
    signal_key,
)
from workflow_sdk.machines.surroundings import Surroundings
from workflow_sdk.rows.cells import CellState, SequenceRow, cell_key, frames_of, sequence_key
from workflow_sdk.rows.instance import InstanceRows, Lease, Result
from workflow_sdk.rows.keys import INBOX, Field, InstanceKeys, answers_of, worker_keys
from workflow_sdk.rows.location import subtree
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import ErrorRow
from workflow_sdk.values import Codec

PAGE: Final = 64
"""How many messages are read at once."""


class Begun(NamedTuple):
    """An effect as it is asked for in the store."""

    id: str
    row: IntentRow


class Recording(NamedTuple):
    """What one commit of a cell stores."""

    keys: InstanceKeys
    lease: Lease
    before: InstanceRows
    after: InstanceRows
    message: InboxMessage | None
    """The message that it takes; None if it only settles down."""
    has_state: bool = False
    """Whether it has another state afterwards."""
    state: bytes | None = None
    """That state, as the codec stores it; None, if it has none."""
    begun: tuple[Begun, ...] = ()
    settled: str | None = None
    """The intent that is not in flight any more."""
    forgotten: tuple[str, ...] = ()
    """Intents that were settled: what their executors have sent is forgotten."""
    is_first: bool = False
    """Whether it is the first transition of the cell since it was deleted, or since it began."""
    ends: bool = False
    deletes: bool = False
    """Whether the cell is deleted or, if more has come for it, begins again."""
    told: tuple[tuple[Address, NewMessage], ...] = ()
    """The events that go out, and the cells that they go to."""
    entry: Append | None = None
    """What the journal gets, if there is one."""


@change
def record(what: Recording, around: Surroundings, now: float) -> Steps[list[Told] | None]:
    """Store it; None if the message is gone. LeaseLostError, if the cell is not ours any more."""
    yield from _ours(what.keys, what.lease)
    yield from under(around.active)
    if what.message is not None:
        place, raw = what.keys.space + INBOX + what.message.id, what.message.pack()
        if (yield Assume(place, raw)) != raw:
            return None
        yield Clear(place)
    told = yield from deliver_all(what.told, now, around.is_here)
    if what.ends:
        yield from _drop_messages(what.keys, around)
    yield _rows_of(what)
    return told


def _drop_messages(keys: InstanceKeys, around: Surroundings) -> Steps[None]:
    """Clear the inbox of a cell that ends, and what executors have sent whose receipts lie there."""
    # Who sends meanwhile changes the stamp, and who sends later finds that it has ended.
    yield Get(keys.stamp)
    begin, end = keys.range(INBOX)
    start = len(keys.space) + len(INBOX)
    rows = yield from pages(begin, end, PAGE)
    intents = [intent_of(InboxMessage.unpack(key[start:], raw), around.codec) for key, raw in rows]
    yield [ClearRange(*subtree(frames_of(id))) for id in intents if id is not None]
    yield ClearRange(begin, end)


def intent_of(message: InboxMessage, codec: Codec) -> str | None:
    """The effect that a message is the answer to; None, if it is an event."""
    if message.name != RECEIPT:
        return None
    data: dict[str, Any] = canonical.restored(codec.unseal(message.payload))
    return str(data["intent_id"])


def _ours(keys: InstanceKeys, lease: Lease) -> Steps[None]:
    raw = lease.pack()
    if (yield Assume(keys.lease, raw)) != raw:
        raise LeaseLostError(f"another worker has taken over cell {keys.instance_id!r}; nothing was written")


def _rows_of(what: Recording) -> list[Writing]:
    keys = what.keys
    writes: list[Writing] = [*store(keys, what.before, what.after)]
    if what.has_state:
        place = cell_key(keys)
        writes.append(Clear(place) if what.state is None else Set(place, CellState(what.state).pack()))
    if what.is_first:
        writes.append(Clear(sequence_key(keys)))
    writes += [ClearRange(*subtree(frames_of(id))) for id in what.forgotten]
    if what.ends or what.deletes:
        writes.append(ClearRange(*all_pending(keys)))
    else:
        writes += [
            Set(pending_key(keys, id), PendingRow(row.effect, row.sequence, row.at, row.issuer).pack())
            for id, row in what.begun
        ]
        if what.settled is not None:
            writes.append(Clear(pending_key(keys, what.settled)))
    writes += asked_for(what.begun)
    if what.entry is not None:
        writes.append(what.entry)
    if what.ends:
        writes += [Clear(keys.lease), Clear(worker_keys(what.lease.worker).claimed(keys.instance_id))]
    return writes


def asked_for(begun: Iterable[Begun]) -> list[Writing]:
    """The writes that hand effects to executors."""
    writes: list[Writing] = []
    for id, row in begun:
        writes.append(Set(intent_key(id), row.pack()))
        if row.worker is not None:
            writes.append(Set(executed_key(row.worker, id), b""))
        else:
            writes += queued_row(id, row), Signal(signal_key(row.effect))
    return writes


@change
def stick(what: Recording, around: Surroundings) -> Steps[None]:
    """Store a cell as stuck, and release it."""
    keys = what.keys
    yield from _ours(keys, what.lease)
    yield from under(around.active)
    yield store(keys, what.before, what.after)
    yield [Clear(keys.lease), Clear(worker_keys(what.lease.worker).claimed(keys.instance_id))]


@change
def delete_cell(what: Recording, around: Surroundings, stamp: bytes | None, now: float) -> Steps[list[Told] | None]:
    """Store a last transition, if there is one, and delete the cell with all its rows; None if more has come for it.

    What stays is its count, so that a cell that comes again with this key asks for no intent twice.
    """
    keys = what.keys
    if (yield Get(keys.stamp)) != stamp:
        return None
    told = yield from record(what, around, now)
    if told is None:
        return None
    if (cell := what.after.cell) is not None:
        yield Set(sequence_key(keys), SequenceRow(cell.sequence).pack())
    yield [
        ClearRange(*keys.all()),
        ClearRange(*subtree(answers_of(keys.instance_id))),
        Clear(worker_keys(what.lease.worker).claimed(keys.instance_id)),
        *unlist(keys, what.after.head),
    ]
    return told


@change
def release(
    keys: InstanceKeys, lease: Lease, before: InstanceRows, after: InstanceRows, stamp: bytes | None
) -> Steps[bool]:
    """Release a cell that has nothing to do; False if something has come."""
    yield from _ours(keys, lease)
    if (yield Get(keys.stamp)) != stamp:
        return False
    yield store(keys, before, after)
    yield [Clear(keys.lease), Clear(worker_keys(lease.worker).claimed(keys.instance_id))]
    return True


def changed(about: InstanceRows, status: Status, now: float, *, takes: bool, purge_at: float | None) -> InstanceRows:
    """The rows of a cell's instance after a commit. It has got past whatever workers have died of under it."""
    after = about.copy()
    count_up(after)
    after.set(Field.DEATHS, None)
    if takes:
        after.set(Field.TALLY, replace(after.tally, taken=after.tally.taken + 1))
    head = after.head
    if head.status is not status:
        at = max(float(now), head.changed_at)
        head = replace(head, status=status, changes=head.changes + 1, changed_at=at, alarm=None, purge_at=purge_at)
        after.set(Field.HEAD, head)
    return after


def with_result(about: InstanceRows, output: bytes | None, error: ErrorRow | None) -> InstanceRows:
    """The rows with what the cell has come to."""
    about.set(Field.RESULT, Result(output, error))
    return about


def status_of(decision: Decision) -> Status:
    """The status of the instance after a message."""
    return {CellStatus.COMPLETED: Status.COMPLETED, CellStatus.FAILED: Status.FAILED}.get(
        decision.cell.status, Status.WAITING
    )


def begun_of(
    pending: Pending, machine: str, keys: InstanceKeys, key: bytes | None, params: bytes, worker: str | None
) -> Begun:
    """An effect as it is stored; `worker`, if that runs it at once."""
    return Begun(
        pending.id,
        IntentRow(
            machine,
            keys.instance_id,
            key,
            pending.effect,
            params,
            pending.sequence,
            float(pending.at),
            pending.issuer,
            pending.due,
            worker,
            0 if worker is None else 1,
        ),
    )
