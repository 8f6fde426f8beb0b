"""Writing an instance: its rows beside its history, and the rows by which it is found.

The head says what an instance is doing. Whoever writes a head writes with it the directory, the alarm and the time of
the purge: that is done here, so that they never differ.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from workflow_sdk.changes.change import Assume, Hold, Signal, Steps, Writing, change
from workflow_sdk.changes.snapshot import Snapshot, find
from workflow_sdk.core.instance import Birth, Head, InstanceRows, Lease, Tally
from workflow_sdk.core.keys import (
    Field,
    InstanceKeys,
    listed,
    listed_by_status,
    listed_by_workflow,
    purge_key,
    worker_keys,
)
from workflow_sdk.core.status import Status
from workflow_sdk.core.times import DUE_AT_ONCE_MAX, due_at_once
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Clear, Set
from workflow_sdk.errors import InstanceNotFoundError

__all__ = [
    "count_up",
    "create",
    "create_claimed",
    "find_to_decide",
    "hold",
    "make_due",
    "make_due_at",
    "new_rows",
    "store",
    "unlist",
]


def new_rows(
    workflow: Workflow[Any, Any] | str,
    status: Status,
    raw_input: bytes,
    now: float,
    seed: bytes,
    retention: float | None = None,
    alarm: float | None = None,
) -> InstanceRows:
    """The rows of an instance that begins now. A workflow that is not known here is given by its name.

    `seed`: of its uuids and random numbers. `retention`: where the workflow says nothing of it.
    """
    now = float(now)
    if isinstance(workflow, str):
        head = Head(workflow, 0, "", now, status, 1, now, alarm)
    else:
        head = Head(workflow.name, workflow.version, workflow.fingerprint, now, status, 1, now, alarm)
        retention = retention if workflow.retention is None else workflow.retention
    rows = InstanceRows()
    rows.set(Field.HEAD, head)
    rows.set(Field.BIRTH, Birth(raw_input, seed, None if retention is None else float(retention)))
    rows.set(Field.TALLY, Tally(1))
    return rows


def store(keys: InstanceKeys, before: InstanceRows, after: InstanceRows) -> list[Writing]:
    """Bring the rows of an instance, and those by which it is found, from what they were to what they are to be.

    Whoever runs it writes rows of its own: what is not changed here is left as it is there.
    """
    changed = [field for field, raw in after.raw.items() if before.raw.get(field) != raw]
    return [
        *(Clear(keys.field(field)) for field in before.raw.keys() - after.raw.keys()),
        *(Set(keys.field(field), after.raw[field]) for field in changed),
        *index(keys, before.head if before else None, after.head),
    ]


def index(keys: InstanceKeys, before: Head | None, after: Head) -> list[Writing]:
    """Keep the rows by which an instance is found in step with its head. `before` is None for a new one."""
    writes: list[Writing] = []
    id, created_at = keys.instance_id, after.created_at
    if before is None:
        writes += Set(listed(created_at, id), b""), Set(listed_by_workflow(after.workflow, created_at, id), b"")
    elif before.status is not after.status:
        writes.append(Clear(listed_by_status(before.status.value, created_at, id)))
    if before is None or before.status is not after.status:
        writes.append(Set(listed_by_status(after.status.value, created_at, id), b""))
    alarm, purge_at = (None, None) if before is None else (before.alarm, before.purge_at)
    if alarm != after.alarm:
        if alarm is not None:
            writes.append(Clear(keys.alarm(alarm)))
        if after.alarm is not None:
            # Others wait for the first alarm they know of; this one may come before it.
            writes += Set(keys.alarm(after.alarm), b""), Signal(keys.due_bell)
    if purge_at != after.purge_at:
        if purge_at is not None:
            writes.append(Clear(purge_key(purge_at, id)))
        if after.purge_at is not None:
            writes.append(Set(purge_key(after.purge_at, id), b""))
    return writes


def unlist(keys: InstanceKeys, head: Head) -> list[Writing]:
    """Clear the rows by which an instance is found."""
    id, created_at = keys.instance_id, head.created_at
    writes: list[Writing] = [
        Clear(listed(created_at, id)),
        Clear(listed_by_status(head.status.value, created_at, id)),
        Clear(listed_by_workflow(head.workflow, created_at, id)),
    ]
    if head.alarm is not None:
        writes.append(Clear(keys.alarm(head.alarm)))
    if head.purge_at is not None:
        writes.append(Clear(purge_key(head.purge_at, id)))
    return writes


@change
def create(keys: InstanceKeys, rows: InstanceRows) -> Steps[bool]:
    """Store a new instance; False if there is one with this id. If its head has an alarm, whoever is free runs it."""
    is_new = (yield Assume(keys.field(Field.HEAD), None)) is None
    if is_new:
        yield store(keys, InstanceRows(), rows)
    return is_new


@change
def create_claimed(keys: InstanceKeys, rows: InstanceRows, lease: Lease) -> Steps[bool]:
    """Store a new instance that its worker runs at once; False if there is one with this id."""
    is_new = (yield Assume(keys.field(Field.HEAD), None)) is None
    if is_new:
        claimed = worker_keys(lease.worker).claimed(keys.instance_id)
        yield [*store(keys, InstanceRows(), rows), Set(keys.lease, lease.pack()), Set(claimed, b"")]
    return is_new


def find_to_decide(instance_id: str) -> Steps[Snapshot]:
    """An instance that something is decided about: see `hold`. InstanceNotFoundError, if there is none."""
    found = yield from find(InstanceKeys(instance_id))
    if not found.about:
        raise InstanceNotFoundError(f"there is no instance {instance_id!r}")
    yield from hold(found)
    return found


def hold(found: Snapshot) -> Steps[None]:
    """Have the commit hold only if nobody claims, parks or ends the instance, or begins to wait for its end."""
    keys = found.keys
    # Whoever begins to wait for its end changes no head.
    yield Hold((keys.lease, keys.field(Field.HEAD), keys.field(Field.WATCHERS)))


def make_due(keys: InstanceKeys, head: Head, now: float) -> list[Writing]:
    """Have whoever is free run an instance at once. Nobody has it."""
    return make_due_at(keys, head, due_at_once(now))


def make_due_at(keys: InstanceKeys, head: Head, alarm: float) -> list[Writing]:
    """Have whoever is free run an instance once the time of the alarm has come. Nobody has it."""
    if head.alarm is not None and head.alarm < DUE_AT_ONCE_MAX:
        return []
    after = replace(head, alarm=alarm)
    return [Set(keys.field(Field.HEAD), after.pack()), *index(keys, head, after)]


def count_up(rows: InstanceRows) -> None:
    """Count one more commit that changes the instance."""
    rows.set(Field.TALLY, replace(rows.tally, commits=rows.tally.commits + 1))
