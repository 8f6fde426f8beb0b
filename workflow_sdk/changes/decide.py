"""Decisions about an instance from outside: each takes the instance away from whoever runs it.

Nobody is asked to cooperate. The commit clears the lease, so that whatever the worker still has on its way is refused;
and it tells the worker, so that it lets go soon.
"""

from __future__ import annotations

from secrets import token_bytes
from types import EllipsisType

from msgspec.structs import replace

from workflow_sdk.changes.change import Draw, Get, Retries, Signal, Steps, change, scan
from workflow_sdk.changes.ending import ending_of, purge_time, tell_watchers
from workflow_sdk.changes.instances import count_up, find_to_decide, hold, make_due, make_due_at, store, unlist
from workflow_sdk.changes.snapshot import Snapshot, find
from workflow_sdk.changes.tasks import forget_tasks
from workflow_sdk.changes.workers import tell_owner, time_of_workers
from workflow_sdk.core.deaths import Deaths
from workflow_sdk.core.inbox import InboxMessage
from workflow_sdk.core.instance import InstanceRows, Result
from workflow_sdk.core.keys import (
    COMPENSATIONS,
    ERRANDS,
    INBOX,
    OUTSIDE,
    TRIES,
    WAITS,
    Field,
    InstanceKeys,
    answers_of,
    listed_by_reference,
    purge_key,
    worker_keys,
)
from workflow_sdk.core.location import pack_segment, subtree
from workflow_sdk.core.outside import Errand, Hanging
from workflow_sdk.core.status import Status
from workflow_sdk.core.tuples import pack
from workflow_sdk.driver import Clear, ClearRange, Set
from workflow_sdk.errors import InstanceStateError

__all__ = [
    "INBOX_PAGE",
    "cancel",
    "cancel_found",
    "delete",
    "errand_key",
    "evict",
    "forget",
    "forget_if",
    "give_back_stalled",
    "go_on",
    "new_errand_key",
    "purge",
    "refuse",
    "set_status",
    "take_away",
    "wake",
]

TAKEN_AWAY_SECONDS = 5.0
"""How long nobody runs an instance that was taken away to be changed, if that then does not happen."""

INBOX_PAGE = 64
"""Messages may be large, so that not many are read at once."""
PATIENCE = 20
"""How often a cancel begins again because a message has come."""


def set_status(
    found: Snapshot,
    status: Status,
    now: float,
    *,
    counts: bool = True,
    result: Result | EllipsisType | None = ...,
    deaths: Deaths | EllipsisType | None = ...,
    cancelled: bool | None = None,
    again: bool = False,
    untaken: int = 0,
) -> Steps[InstanceRows]:
    """Give an instance a status, and another result and so on where they are given. Nobody has it afterwards.

    `counts`: it is one more commit that changes the instance; whoever runs it must not commit meanwhile. `again`:
    something that was undone is to happen again. `untaken`: so many messages that it had taken are in its inbox again.
    """
    keys, before, after = found.keys, found.about, found.about.copy()
    head = before.head
    # Our clock may be behind. What is over now was not over before it was last written.
    now = max(float(now), head.changed_at)
    if counts:
        count_up(after)
        if found.lease is not None:
            yield Get(keys.field(Field.TALLY))
    if untaken and after.tally.taken:
        after.set(Field.TALLY, replace(after.tally, taken=max(0, after.tally.taken - untaken)))
    if not isinstance(result, EllipsisType):
        after.set(Field.RESULT, result)
    if not isinstance(deaths, EllipsisType):
        after.set(Field.DEATHS, deaths)
        if deaths is None:
            yield ClearRange(*keys.range(TRIES))
    if again:
        after.set(Field.BIRTH, replace(after.birth, restarts=after.birth.restarts + 1))
    head = replace(
        head,
        status=status,
        changes=head.changes + 1,
        changed_at=now,
        alarm=None,
        purge_at=purge_time(after, now) if status.is_terminal else None,
        cancelled=head.cancelled if cancelled is None else cancelled,
    )
    after.set(Field.HEAD, head)
    yield store(keys, before, after)
    yield ClearRange(*keys.range(WAITS))
    if found.lease is not None:
        yield Clear(keys.lease)
        yield Clear(worker_keys(found.lease.worker).claimed(keys.instance_id))
        yield tell_owner(found.lease, keys.instance_id)
    # A run without a runtime watches this.
    yield Signal(keys.nudge)
    return after


def go_on(found: Snapshot, now: float, deaths: Deaths | None = None) -> Steps[None]:
    """Have an instance that failed or is stuck run again: from its code, or on with its rollback."""
    original = found.about.result.original
    if original is None:
        rows = yield from set_status(found, Status.RUNNING, now, result=None, deaths=deaths)
    else:
        rows = yield from set_status(found, Status.ROLLING_BACK, now, result=Result(error=original), deaths=deaths)
    yield make_due(found.keys, rows.head, now)


def take_away(found: Snapshot, now: float) -> Steps[None]:
    """Have an instance stand still that does not: nobody has it then. Should nothing come of it, it goes on."""
    rows = yield from set_status(found, found.status, now, counts=False)
    # By the clocks of those who would run it.
    now = yield from time_of_workers(now)
    yield make_due_at(found.keys, rows.head, now + TAKEN_AWAY_SECONDS)


def refuse(found: Snapshot, what: str) -> InstanceStateError:
    """The error of a decision that the status does not allow."""
    return InstanceStateError(f"instance {found.keys.instance_id!r} is {found.status.value}: {what}")


def errand_key() -> Steps[bytes]:
    """A place for an errand."""
    number: int = yield Draw(1 << 128)
    return _errand_key(number.to_bytes(16, "big"))


def new_errand_key() -> bytes:
    """A place for an errand, outside of a change."""
    return _errand_key(token_bytes(16))


def _errand_key(name: bytes) -> bytes:
    return ERRANDS + pack((name,))


@change
def cancel(
    instance_id: str, result: Result, now: float, *, rollback: bool, tries: int = 0
) -> Steps[list[bytes] | None]:
    """End an instance. With `rollback`, what it did is undone first. See `cancel_found`."""
    found = yield from find_to_decide(instance_id)
    return (yield from cancel_found(found, result, now, rollback=rollback, tries=tries))


def cancel_found(
    found: Snapshot, result: Result, now: float, *, rollback: bool, tries: int = 0
) -> Steps[list[bytes] | None]:
    """End an instance: the keys of the errands that come of it. None, if it was only taken away, to be ended next.

    What is being undone already is undone to the end. `tries`: how often it was taken away before.
    """
    keys, head, retries = found.keys, found.about.head, tries + (yield Retries())
    if found.status is Status.CANCELLED or head.cancelled:
        return []
    if found.status.is_terminal:
        raise refuse(found, "it has ended, and can't be cancelled")
    if found.lease is not None and retries:
        # It does not stand still. Nothing may hold this up: so it is taken away first.
        yield from take_away(found, now)
        return None
    undoes = found.status is Status.ROLLING_BACK
    if rollback and not undoes:
        undoes = bool((yield from scan(*keys.range(COMPENSATIONS), limit=1)))
    # Where messages come all the time, they do not hold this up: what is left in the inbox then does no harm.
    errands = yield from _abandon_outside(found, rollback=rollback, patient=retries < PATIENCE)
    if undoes:
        rows = yield from set_status(found, Status.ROLLING_BACK, now, result=result, cancelled=True)
        yield make_due(keys, rows.head, now)
    else:
        rows = yield from set_status(found, Status.CANCELLED, now, result=result)
        yield from tell_watchers(keys.instance_id, ending_of(rows), rows.watchers, now)
    return errands


def _abandon_outside(found: Snapshot, *, rollback: bool, patient: bool) -> Steps[list[bytes]]:
    """Stop waiting for what lies outside of an instance: the keys of the errands that come of it."""
    keys = found.keys
    start = len(keys.space) + len(OUTSIDE)
    errands: list[bytes] = []
    rows = yield from scan(*keys.range(OUTSIDE))
    for key, raw in rows:
        yield Clear(key)
        what, location = Hanging.unpack(raw), key[start:]
        if what.ends:
            errands.append((yield from errand_key()))
            token = pack_segment(what.since) + location
            yield Set(errands[-1], Errand(what.kind, what.id, keys.instance_id, token, rollback).pack())
    if not rows:
        return errands
    if patient:
        # One of them may end just now.
        yield Get(keys.nudge)
    begin, end = keys.range(INBOX)
    while page := (yield from scan(begin, end, limit=INBOX_PAGE)):
        for key, raw in page:
            if isinstance(InboxMessage.unpack(b"", raw).name, bytes):
                # That one of them has ended is of no use any more.
                yield Clear(key)
        begin = page[-1][0] + b"\x00"
    return errands


@change
def evict(instance_id: str) -> Steps[None]:
    """Have whoever has the instance park it."""
    found = yield from find_to_decide(instance_id)
    keys, lease = found.keys, found.lease
    if lease is not None:
        yield tell_owner(lease, instance_id, evict=True)
        # A run without a runtime reads no letters. It watches the nudge, and finds this beside it.
        yield Set(keys.evicted, lease.pack())
        yield Signal(keys.nudge)


@change
def wake(instance_id: str, now: float) -> Steps[None]:
    """Have an instance looked at now. Timers that are not due go on waiting."""
    found = yield from find_to_decide(instance_id)
    if found.status.is_terminal:
        raise refuse(found, "it has ended, and can't be woken")
    if found.status is Status.STUCK:
        raise refuse(found, "`recover` has it run again")
    if found.lease is not None:
        yield tell_owner(found.lease, instance_id)
        yield Signal(found.keys.nudge)
    else:
        yield make_due(found.keys, found.about.head, now)


@change
def give_back_stalled(instance_id: str, worker: str, now: float) -> Steps[None]:
    """Have others run an instance whose worker lives, but gets nothing done."""
    found = yield from find_to_decide(instance_id)
    if found.lease is not None and found.lease.worker == worker:
        rows = yield from set_status(found, found.status, now, counts=False)
        yield make_due(found.keys, rows.head, now)


@change
def delete(instance_id: str) -> Steps[None]:
    """Forget an instance that has ended, with everything about it."""
    found = yield from find_to_decide(instance_id)
    if not found.status.is_terminal:
        raise refuse(found, "only one that has ended can be deleted")
    yield from forget(found)


@change
def forget_if(instance_id: str, status: Status, before: float) -> Steps[bool]:
    """Forget an instance if it has had this status, an end, since before then; whether it was forgotten."""
    found = yield from find_to_decide(instance_id)
    if found.status is not status or found.about.head.changed_at >= before:
        return False
    yield from forget(found)
    return True


@change
def purge(key: bytes, instance_id: str) -> Steps[None]:
    """Forget an instance that its time is over for, as the row says by which it is found; or that row, if it is none.

    An instance that runs again by now stays.
    """
    keys = InstanceKeys(instance_id)
    found = yield from find(keys)
    yield from hold(found)
    at = found.about.head.purge_at if found.about else None
    if at is not None and key == purge_key(at, instance_id) and found.status.is_terminal:
        yield from forget(found)
    else:
        yield Clear(key)


def forget(found: Snapshot) -> Steps[None]:
    """Forget everything about an instance that has ended."""
    keys, id, head = found.keys, found.keys.instance_id, found.about.head
    yield ClearRange(*keys.all())
    yield ClearRange(*subtree(answers_of(id)))
    yield unlist(keys, head)
    if (reference := found.about.shown.reference) is not None:
        yield Clear(listed_by_reference(reference, head.created_at, id))
    yield from forget_tasks(id)
