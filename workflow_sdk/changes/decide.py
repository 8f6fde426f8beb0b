"""Decisions about an instance from outside, such as to cancel it: most of them take it away from its worker.

The worker need not cooperate. The commit clears the lease, so that the store refuses the commits that the worker still
sends. It also sets a signal, so that the worker soon drops the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from secrets import token_bytes

from msgspec.structs import replace

from workflow_sdk.changes.change import Draw, Get, Retries, Signal, Steps, change, read, scan
from workflow_sdk.changes.deliver import ending_of, purge_time, tell_watchers
from workflow_sdk.changes.instances import (
    Snapshot,
    count_up,
    find,
    find_to_decide,
    hold,
    make_due,
    make_due_at,
    store,
    unlist,
)
from workflow_sdk.changes.tasks import end_task, forget_tasks
from workflow_sdk.changes.waits import is_awaited
from workflow_sdk.changes.workers import tell_owner, time_of_workers
from workflow_sdk.driver import Clear, ClearRange, Set
from workflow_sdk.errors import InstanceNotFoundError, InstanceStateError
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.rows.cells import SequenceRow, frames_of, sequence_key
from workflow_sdk.rows.instance import Deaths, InstanceRows, Result, Try, worst
from workflow_sdk.rows.keys import (
    CELL,
    CLEANUPS,
    COMPENSATIONS,
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
from workflow_sdk.rows.location import pack, pack_segment, subtree
from workflow_sdk.rows.outside import Cleanup, Hanging, TaskStatus
from workflow_sdk.rows.status import Status

TAKEN_AWAY_SECONDS = 5.0
"""After how long an instance that was taken away goes on by itself, in case whoever took it away has died."""

INBOX_PAGE = 64
"""How many messages are read at once: few, since they may be large."""
PATIENCE = 20
"""How often a cancel is made again because a message came meanwhile, before it ignores new messages."""


def changing(found: Snapshot) -> Steps[InstanceRows]:
    """A copy of the rows of an instance, with one more commit counted.

    If a worker has the instance, the change checks that it does not commit meanwhile: both commits would get the same
    number.
    """
    after = found.about.copy()
    count_up(after)
    if found.lease is not None:
        yield Get(found.keys.field(Field.TALLY))
    return after


def set_deaths(found: Snapshot, after: InstanceRows, deaths: Deaths | None) -> Steps[None]:
    """Store the deaths that count against an instance. None also deletes the notes of what was being executed."""
    after.set(Field.DEATHS, deaths)
    if deaths is None:
        yield ClearRange(*found.keys.range(TRIES))


def set_status(found: Snapshot, after: InstanceRows, status: Status, now: float) -> Steps[InstanceRows]:
    """Store `after` as the rows of an instance, with this status, and take the instance from the worker that has it."""
    keys, head = found.keys, after.head
    # Our clock may be behind that of the last writer, but times of one instance do not go back.
    now = max(float(now), head.changed_at)
    purge_at = purge_time(after, now) if status.is_terminal else None
    head = replace(head, status=status, changes=head.changes + 1, changed_at=now, alarm=None, purge_at=purge_at)
    after.set(Field.HEAD, head)
    yield store(keys, found.about, after)
    yield ClearRange(*keys.range(WAITS))
    if status.is_terminal:
        yield ClearRange(*keys.range(CELL))
    if found.lease is not None:
        yield Clear(keys.lease)
        yield Clear(worker_keys(found.lease.worker).claimed(keys.instance_id))
        yield tell_owner(found.lease, keys.instance_id)
    # A run without a runtime reads no signals. It watches the inbox stamp, and then looks at its lease.
    yield Signal(keys.stamp)
    return after


def go_on(found: Snapshot, now: float, deaths: Deaths | None = None) -> Steps[None]:
    """Have a failed or stuck instance run again. If it was rolling back, it goes on with that."""
    original = found.about.result.original
    after = yield from changing(found)
    after.set(Field.RESULT, None if original is None else Result(error=original))
    yield from set_deaths(found, after, deaths)
    status = Status.RUNNING if original is None else Status.ROLLING_BACK
    rows = yield from set_status(found, after, status, now)
    yield make_due(found.keys, rows.head, now)


def take_away(found: Snapshot, now: float) -> Steps[None]:
    """Take an instance from the worker that has it, so that it stands still and can be read and changed next.

    Nobody has the instance then. If this process dies before it makes its change, the alarm has others run the instance
    after a while.
    """
    rows = yield from set_status(found, found.about.copy(), found.status, now)
    # Alarms are compared with the clocks of the workers, and ours may be wrong.
    now = yield from time_of_workers(now)
    yield make_due_at(found.keys, rows.head, now + TAKEN_AWAY_SECONDS)


def refuse(found: Snapshot, what: str) -> InstanceStateError:
    """The error that says that the status of an instance does not allow a decision, and why."""
    return InstanceStateError(f"instance {found.keys.instance_id!r} is {found.status.value}: {what}")


def add_cleanups(cleanups: Iterable[Cleanup]) -> Steps[list[bytes]]:
    """Write cleanups, which are to be run after the commit; return their keys."""
    keys: list[bytes] = []
    for cleanup in cleanups:
        number: int = yield Draw(1 << 128)
        keys.append(_cleanup_key(number.to_bytes(16, "big")))
        yield Set(keys[-1], cleanup.pack())
    return keys


def new_cleanup_key() -> bytes:
    """Make a key for a new cleanup, outside of a change."""
    return _cleanup_key(token_bytes(16))


def _cleanup_key(name: bytes) -> bytes:
    return CLEANUPS + pack((name,))


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
    """End an instance, and return the keys of the cleanups to run after that.

    None means that the instance was only taken away from its worker, and that the change is to be made again. A
    rollback that is under way is carried on to its end. `tries`: how often the instance was taken away before.
    """
    keys, head, retries = found.keys, found.about.head, tries + (yield Retries())
    if found.status is Status.CANCELLED or head.cancelled:
        return []
    if found.status.is_terminal:
        raise refuse(found, "it has ended, and can't be cancelled")
    if found.lease is not None and retries:
        # The instance changed while this was decided, and may do so again and again. So it is taken away first, which
        # makes it stand still: a cancel must come to an end.
        yield from take_away(found, now)
        return None
    undoes = found.status is Status.ROLLING_BACK
    if rollback and not undoes:
        undoes = bool((yield from scan(*keys.range(COMPENSATIONS), limit=1)))
    # If messages come all the time, they must not hold up the cancel. An inbox row that is overlooked does no harm.
    cleanups = yield from _abandon_outside(found, rollback=rollback, patient=retries < PATIENCE)
    after = yield from changing(found)
    after.set(Field.RESULT, result)
    if undoes:
        after.set(Field.HEAD, replace(head, cancelled=True))
        rows = yield from set_status(found, after, Status.ROLLING_BACK, now)
        yield make_due(keys, rows.head, now)
    else:
        rows = yield from set_status(found, after, Status.CANCELLED, now)
        yield from tell_watchers(keys.instance_id, ending_of(rows), rows.watchers, now)
    return cleanups


def _abandon_outside(found: Snapshot, *, rollback: bool, patient: bool) -> Steps[list[bytes]]:
    """End the waits of an instance for children and tasks; return the keys of the cleanups that end these, too."""
    keys = found.keys
    start = len(keys.space) + len(OUTSIDE)
    ended: list[Cleanup] = []
    rows = yield from scan(*keys.range(OUTSIDE))
    for key, raw in rows:
        yield Clear(key)
        what, location = Hanging.unpack(raw), key[start:]
        if what.ends:
            ended.append(Cleanup(what.kind, what.id, keys.instance_id, pack_segment(what.since) + location, rollback))
    cleanups = yield from add_cleanups(ended)
    if not rows:
        return cleanups
    if patient:
        # A child or task may end just now, and put that into the inbox: the check of the stamp finds out.
        yield Get(keys.stamp)
    begin, end = keys.range(INBOX)
    while page := (yield from scan(begin, end, limit=INBOX_PAGE)):
        for key, raw in page:
            if isinstance(InboxMessage.unpack(b"", raw).name, bytes):
                # The end of a child or a task, for which nobody waits any more.
                yield Clear(key)
        begin = page[-1][0] + b"\x00"
    return cleanups


@change
def evict(instance_id: str) -> Steps[None]:
    """Have the worker that has an instance evict it. If nobody has it, nothing is done."""
    found = yield from find_to_decide(instance_id)
    keys, lease = found.keys, found.lease
    if lease is not None:
        yield tell_owner(lease, instance_id, evict=True)
        # A run without a runtime reads no signals. It watches the inbox stamp, and finds this beside it.
        yield Set(keys.evicted, lease.pack())
        yield Signal(keys.stamp)


@change
def wake(instance_id: str, now: float) -> Steps[None]:
    """Have an instance run now. Timers that are not due go on waiting."""
    found = yield from find_to_decide(instance_id)
    if found.status.is_terminal:
        raise refuse(found, "it has ended, and can't be woken")
    if found.status is Status.STUCK:
        raise refuse(found, "`recover` has it run again")
    if found.lease is not None:
        yield tell_owner(found.lease, instance_id)
        yield Signal(found.keys.stamp)
    else:
        yield make_due(found.keys, found.about.head, now)


@change
def give_back_stalled(instance_id: str, worker: str, now: float) -> Steps[None]:
    """Take an instance from this worker, which is stalled, and have others run it."""
    found = yield from find_to_decide(instance_id)
    if found.lease is not None and found.lease.worker == worker:
        rows = yield from set_status(found, found.about.copy(), found.status, now)
        yield make_due(found.keys, rows.head, now)


@change
def delete(instance_id: str) -> Steps[None]:
    """Delete an instance that has ended, with everything about it."""
    found = yield from find_to_decide(instance_id)
    if not found.status.is_terminal:
        raise refuse(found, "only one that has ended can be deleted")
    yield from forget(found)


@change
def forget_if(instance_id: str, status: Status, before: float) -> Steps[bool]:
    """Delete an instance if it ended with this status, and earlier than `before`; return whether it was deleted."""
    found = yield from find_to_decide(instance_id)
    if found.status is not status or found.about.head.changed_at >= before:
        return False
    yield from forget(found)
    return True


@change
def purge(key: bytes, instance_id: str) -> Steps[None]:
    """Delete an instance whose retention is over. `key`: the key of the purge row by which it was found.

    If that row is out of date, since the instance was restarted or deleted, only the row is cleared.
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
    """Delete everything about an instance that has ended."""
    keys, id, head = found.keys, found.keys.instance_id, found.about.head
    if (cell := found.about.cell) is not None:
        yield Set(sequence_key(keys), SequenceRow(cell.sequence).pack())
        if cell.settled is not None:
            yield ClearRange(*subtree(frames_of(cell.settled)))
    yield ClearRange(*keys.all())
    yield ClearRange(*subtree(answers_of(id)))
    yield unlist(keys, head)
    if (reference := found.about.shown.reference) is not None:
        yield Clear(listed_by_reference(reference, head.created_at, id))
    yield from forget_tasks(id)


# The deaths of workers under an instance: what was executed then, and how a worker that is alive takes its death back.


DEATHS_MAX = 5
"""After how many deaths in a row, all while the same operation was executed, an instance becomes stuck."""


def read_tries(keys: InstanceKeys) -> Steps[dict[bytes, Try]]:
    """Read the operations that were noted as being executed, by their locations."""
    return tries_in(keys, (yield from scan(*keys.range(TRIES))))


def tries_in(keys: InstanceKeys, rows: Iterable[tuple[bytes, bytes]]) -> dict[bytes, Try]:
    """The operations that were noted as being executed, by their locations, from their rows."""
    start = len(keys.space) + len(TRIES)
    return {key[start:]: Try.unpack(raw) for key, raw in rows}


@change
def take_back_death(instance_id: str, lease: str, now: float) -> Steps[None]:
    """Delete the death of a worker that is alive after all. `lease`: the name of the lease under which it was counted.

    If the instance is stuck because of deaths, and too few are left, it goes on.
    """
    try:
        found = yield from find_to_decide(instance_id)
    except InstanceNotFoundError:
        return
    keys, deaths = found.keys, found.about.deaths.deaths
    left = tuple(death for death in deaths if death.lease != lease)
    if len(left) == len(deaths):
        return
    yield Get(keys.field(Field.DEATHS))
    after = Deaths(left) if left else None
    blame = worst(left, (yield from read_tries(keys)))
    if found.status is Status.STUCK and len(blame.leases) < DEATHS_MAX:
        yield from go_on(found, now, after)
    elif after is None:
        yield Clear(keys.field(Field.DEATHS))
    else:
        yield Set(keys.field(Field.DEATHS), after.pack())


# Cleanups: ending children and tasks for which nobody waits any more, since the wait was cancelled or lost a race.
#
# A cleanup is a row that names a child or a task to be ended. It is written in the commit that ends the wait. The
# process that made this commit runs the cleanup at once; if it dies before that, any runtime that finds the row runs
# it. One commit ends the child or task and clears the row, so it does no harm to run a cleanup twice.


@change
def run_cleanup(key: bytes, cancelled: Result, now: float, tries: int = 0) -> Steps[list[bytes] | None]:
    """Run the cleanup in this row, if it is there, and return the keys of the cleanups to run after that.

    None means that the child was only taken away from its worker, and that the change is to be made again.
    `cancelled`: the result that a cancelled child gets. `tries`: how often the child was taken away before.
    """
    cleanup = yield from read(Cleanup, key)
    if cleanup is None:
        return []
    cleanups: list[bytes] | None = []
    if cleanup.kind == "task":
        yield from end_task(cleanup.id, TaskStatus.CANCELLED, now)
    elif (found := (yield from _child(cleanup))) is not None:
        cleanups = yield from cancel_found(found, cancelled, now, rollback=cleanup.rollback, tries=tries)
    if cleanups is not None:
        yield Clear(key)
    return cleanups


def _child(cleanup: Cleanup) -> Steps[Snapshot | None]:
    """The child that is to be ended; None if it was deleted, has ended, or others still wait for it."""
    try:
        found = yield from find_to_decide(cleanup.id)
    except InstanceNotFoundError:
        return None
    watchers, ours = found.about.watchers, (cleanup.owner, cleanup.token)
    if found.status.is_terminal or ours not in watchers:
        return None
    for watcher in watchers:
        if watcher != ours and (yield from is_awaited(watcher[0], cleanup.id, watcher[1])):
            return None
    return found
