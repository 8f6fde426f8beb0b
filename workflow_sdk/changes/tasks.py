"""Changes of the tasks that workflows give to people. Each is one commit, which also adds to the log of the task."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from workflow_sdk.changes.change import Steps, Writing, change, read, scan
from workflow_sdk.changes.deliver import NewMessage, Posted, deliver
from workflow_sdk.changes.instances import find
from workflow_sdk.changes.workers import time_of_workers
from workflow_sdk.driver import Append, Clear, ClearRange, Set
from workflow_sdk.errors import InstanceNotFoundError, NotAuthorizedError, StaleError
from workflow_sdk.rows.entries import read_token
from workflow_sdk.rows.keys import OUTSIDE, InstanceKeys, last_of
from workflow_sdk.rows.location import subtree
from workflow_sdk.rows.outside import (
    Hanging,
    TaskDone,
    TaskEvent,
    TaskRow,
    TaskStatus,
    all_tasks_of,
    ended_tasks_of,
    task_key,
    task_log,
)
from workflow_sdk.rows.wire import deadline_of

ENDED_MAX = 100
"""How many ended tasks of an instance are kept, the last ones, as long as the instance is."""
AT_ONCE = 20
"""How many of the older ones are deleted in one commit."""


def read_task(id: str) -> Steps[TaskRow]:
    """Read a task; InstanceNotFoundError if there is none."""
    row = yield from read(TaskRow, task_key(id))
    if row is None:
        raise InstanceNotFoundError(f"there is no task {id!r}")
    return row


def _read_open(id: str) -> Steps[TaskRow]:
    """Read a task that is open; StaleError if it is not any more."""
    row = yield from read_task(id)
    if row.status is not TaskStatus.OPEN:
        who = "" if row.by is None else f" by {row.by!r}"
        raise StaleError(f"task {row.name!r} ({id}) is {row.status.value}{who}")
    return row


@change
def assign(id: str, what: str, by: str | None, to: str | None, now: float) -> Steps[None]:
    """Give a task to somebody, or to nobody. `what`: the word for that in its log."""
    row = yield from _read_open(id)
    yield _store(row, replace(row, assignee=to), TaskEvent(what, by, now, to))


@change
def complete(
    id: str, value: bytes, by: str, roles: AbstractSet[str], now: float, is_here: Callable[[str], bool]
) -> Steps[tuple[str, Posted]]:
    """Complete a task, and send its result to the instance; return the id of the instance and the delivery."""
    row = yield from _read_open(id)
    if row.roles and roles.isdisjoint(row.roles):
        wanted = " or ".join(map(repr, row.roles))
        raise NotAuthorizedError(f"task {row.name!r} ({id}) is for {wanted}; {by!r} has none of these roles")
    if row.until is not None and now >= row.until and (yield from time_of_workers(now)) >= row.until:
        raise StaleError(f"the time for task {row.name!r} ({id}) was over at {deadline_of(row.until).isoformat()}")
    keys = InstanceKeys(row.instance)
    found = yield from find(keys)
    if not found.about:
        raise StaleError(f"instance {row.instance!r}, which waited for task {id!r}, is not there any more")
    if found.status.is_terminal:
        raise StaleError(f"instance {row.instance!r}, which waited for task {id!r}, has ended")
    # The instance has this row as long as it waits, and the read makes the commit check it.
    hanging = yield from read(Hanging, keys.space + OUTSIDE + read_token(row.token)[1])
    if hanging is None or hanging.id != id:
        raise StaleError(f"instance {row.instance!r} does not wait for task {id!r} any more")
    new = NewMessage(row.token, TaskDone(value, by, now).pack())
    posted = yield from deliver(keys, new, now, is_here, found)
    done = replace(row, status=TaskStatus.COMPLETED, by=by, ended_at=now, result=value)
    yield from _forget_oldest(row.instance)
    yield _store(row, done, TaskEvent("completed", by, now))
    return row.instance, posted


def end_task(id: str, status: TaskStatus, now: float) -> Steps[None]:
    """End an open task, for which nobody waits any more. One that is not open is left as it is."""
    row = yield from read(TaskRow, task_key(id))
    if row is not None and row.status is TaskStatus.OPEN:
        yield from _forget_oldest(row.instance)
        yield _store(row, replace(row, status=status, ended_at=now), TaskEvent(status.value, None, now))


def expire(id: str, now: float) -> Steps[bool]:
    """End a task whose time is over; False if it was completed before."""
    row = yield from read(TaskRow, task_key(id))
    if row is not None and row.status is TaskStatus.COMPLETED:
        return False
    if row is not None:
        after = replace(row, status=TaskStatus.EXPIRED, ended_at=now)
        yield from _forget_oldest(row.instance)
        yield _store(row, after, TaskEvent("expired", None, now))
    return True


def reopen(id: str, now: float) -> Steps[None]:
    """Open a task again whose result does not fit the wait of its instance."""
    row = yield from read(TaskRow, task_key(id))
    if row is not None and row.status is TaskStatus.COMPLETED:
        after = replace(row, status=TaskStatus.OPEN, by=None, ended_at=None, result=None)
        yield _store(row, after, TaskEvent("reopened", None, now))


def _store(before: TaskRow, after: TaskRow, event: TaskEvent) -> list[Writing]:
    """The writes that store a task, the rows by which it is found, and one more event in its log."""
    writes: list[Writing] = []
    gone = set(before.places())
    if after.status is TaskStatus.OPEN:
        for place in after.places():
            gone.discard(place)
            writes.append(Set(place, b""))
    if before.ended_place is not None:
        gone.add(before.ended_place)
    if after.ended_place is not None:
        gone.discard(after.ended_place)
        writes.append(Set(after.ended_place, after.own_place))
    writes += map(Clear, sorted(gone))
    return [*writes, Set(task_key(after.id), after.pack()), Append(task_log(after.id), event.pack())]


def _forget_oldest(instance_id: str) -> Steps[None]:
    """Delete the oldest ended tasks of an instance, to make room for one that ends now.

    Call this before that one is written: otherwise that one might be deleted if it ended by a clock that is behind.
    """
    begin, end = subtree(ended_tasks_of(instance_id))
    rows = yield from scan(begin, end, limit=ENDED_MAX + AT_ONCE)
    # No checks are needed: ended tasks do not change, and two commits that delete the same one do no harm.
    for place, own_place in rows[: max(0, len(rows) - ENDED_MAX + 1)]:
        yield _forget(last_of(place))
        yield Clear(own_place)
        yield Clear(place)


def _forget(id: str) -> list[Writing]:
    return [Clear(task_key(id)), ClearRange(*subtree(task_log(id)))]


def forget_tasks(instance_id: str) -> Steps[None]:
    """Delete all tasks of an instance that has ended."""
    for place, _ in (yield from scan(*subtree(all_tasks_of(instance_id)))):
        id = last_of(place)
        row = yield from read(TaskRow, task_key(id))
        for open_place in () if row is None else row.places():
            yield Clear(open_place)
        yield _forget(id)
        yield Clear(place)
    yield ClearRange(*subtree(ended_tasks_of(instance_id)))
