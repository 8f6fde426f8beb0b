"""Reading the rows of an instance, creating them, and changing its status."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from workflow_sdk.changes.change import Assume, Hold, Scan, Signal, Steps, Writing, change, scan
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Clear, Driver, Set
from workflow_sdk.errors import AlreadyExistsError, CodecError, InstanceNotFoundError, InstanceStateError
from workflow_sdk.rows.instance import Birth, Head, InstanceRows, Lease, Result, Tally, unpack
from workflow_sdk.rows.keys import (
    FIELDS,
    INBOX_STAMP,
    LEASE,
    Field,
    InstanceKeys,
    all_spaces,
    field_key,
    listed,
    listed_by_status,
    listed_by_workflow,
    purge_key,
    worker_keys,
)
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import DUE_AT_ONCE_MAX, before_release, due_at_once, is_of_before_release

ROWS_MAX = 128
"""An instance with at least so many rows is not read whole in one read."""

_FIELDS = {field_key(field): field for field in Field}
"""The fields, by the ends of their keys."""


class Snapshot(Struct):
    """The rows of an instance, as one read found them."""

    keys: InstanceKeys
    about: InstanceRows
    """The rows beside the history; they are false if there is no such instance."""
    lease: Lease | None
    stamp: bytes | None
    rows: StoredRows | None = None
    """All rows of the instance; None if only those beside the history were read."""
    sent: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """The rows that count the messages sent to the instance."""

    @property
    def status(self) -> Status:
        """The status of the instance, which has to exist."""
        return self.about.status


class StoredRows:
    """Rows that were read, and that can be scanned like the store."""

    __slots__ = ("_keys", "_rows")

    def __init__(self, rows: list[tuple[bytes, bytes]]) -> None:
        self._rows = rows
        self._keys = [key for key, _ in rows]

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Scan the rows as `Driver.scan` does."""
        found = self.between(begin, end)
        if reverse:
            found.reverse()
        return found if limit is None else found[:limit]

    def between(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it."""
        return self._rows[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]


@change
def check_form() -> Steps[None]:
    """Raise CodecError if the store was written before the first release. One row of any instance shows that."""
    for _, raw in (yield from scan(*all_spaces(), limit=1)):
        if is_of_before_release(raw):
            raise before_release("this store")


def find(keys: InstanceKeys) -> Steps[Snapshot]:
    """Read an instance in a change. The change has to `Get` the rows on which it depends: that costs no second read."""
    return parse(keys, (yield Scan(*keys.range(FIELDS))), None)


def find_all(keys: InstanceKeys) -> Steps[Snapshot]:
    """Read an instance with its history if it has few rows; otherwise without, as `find` does."""
    rows = yield from scan(*keys.all(), limit=ROWS_MAX)
    if len(rows) == ROWS_MAX:
        return (yield from find(keys))
    stored = StoredRows(rows)
    return parse(keys, stored.between(*keys.range(FIELDS)), stored)


async def read_snapshot(driver: Driver, keys: InstanceKeys) -> Snapshot:
    """Read the rows of an instance beside its history, its lease among them."""
    return parse(keys, await driver.scan(*keys.range(FIELDS)), None)


async def read_about(driver: Driver, keys: InstanceKeys) -> InstanceRows:
    """Read the rows of an instance beside its history. They are false if there is no such instance."""
    return (await read_snapshot(driver, keys)).about


async def read_output(driver: Driver, keys: InstanceKeys, about: InstanceRows) -> bytes | None:
    """The output of an instance, whether it is stored as one value or in parts.

    InstanceStateError if the instance is not as `about` says any more, and its output can't be read as a whole.
    """
    output = await join_output(driver, keys, about.result)
    # Whoever restarts or deletes the instance meanwhile clears the parts, and this row in the same commit.
    if about.result.parts is not None and await driver.get(keys.field(Field.RESULT)) != about.raw[Field.RESULT]:
        raise InstanceStateError(f"instance {keys.instance_id!r} was restarted or deleted while its result was read")
    return output


async def join_output(driver: Driver, keys: InstanceKeys, result: Result) -> bytes | None:
    """Like `read_output`, of an instance that nobody changes meanwhile."""
    if result.parts is None:
        return result.output
    begin = keys.space + result.parts
    return b"".join(raw for _, raw in await driver.scan(begin, begin + b"\xff"))


async def find_unreadable(driver: Driver, keys: InstanceKeys) -> tuple[bytes, bytes | None]:
    """Find the first row that makes an instance unreadable, and return its key and value."""
    for key, raw in await driver.scan(*keys.range(FIELDS)):
        try:
            field = _FIELDS.get(key[len(keys.space) :])
            if field is not None:
                unpack(field, raw)
            elif key == keys.lease:
                Lease.unpack(raw)
        except CodecError:
            return key, raw
    # A row is missing. Whoever writes it changes the head, too.
    head = keys.field(Field.HEAD)
    return head, await driver.get(head)


def parse(keys: InstanceKeys, rows: list[tuple[bytes, bytes]], stored: StoredRows | None = None) -> Snapshot:
    """Make a snapshot of an instance from its rows beside its history."""
    start = len(keys.space)
    fields: dict[Field, bytes] = {}
    lease = stamp = None
    sent: dict[bytes, bytes] = {}
    for key, raw in rows:
        place = key[start:]
        if place in _FIELDS:
            fields[_FIELDS[place]] = raw
        elif place == LEASE:
            lease = raw
        elif place == INBOX_STAMP:
            stamp = raw
        elif place.startswith(INBOX_STAMP):
            sent[key] = raw
    return Snapshot(keys, InstanceRows(fields), None if lease is None else Lease.unpack(lease), stamp, stored, sent)


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

    `seed`: the bytes from which its ids and random numbers are made. `retention`: used if the workflow gives none.
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
    """The writes that bring the rows of an instance, and the rows by which it is found, from `before` to `after`.

    Only rows that differ are written: a worker that runs the instance may write the others meanwhile.
    """
    changed = [field for field, raw in after.raw.items() if before.raw.get(field) != raw]
    return [
        *(Clear(keys.field(field)) for field in before.raw.keys() - after.raw.keys()),
        *(Set(keys.field(field), after.raw[field]) for field in changed),
        *index(keys, before.head if before else None, after.head),
    ]


def index(keys: InstanceKeys, before: Head | None, after: Head) -> list[Writing]:
    """The writes that keep the rows by which an instance is found in step with its head. A new one has no `before`."""
    id, created_at = keys.instance_id, after.created_at
    writes: list[Writing] = []
    if before is None:
        writes += Set(listed(created_at, id), b""), Set(listed_by_workflow(after.workflow, created_at, id), b"")
    elif before.status is not after.status:
        writes.append(Clear(listed_by_status(before.status.value, created_at, id)))
    if before is None or before.status is not after.status:
        writes.append(Set(listed_by_status(after.status.value, created_at, id), b""))
    alarm, purge_at = (None, None) if before is None else (before.alarm, before.purge_at)
    if alarm != after.alarm:
        writes += _move(keys.alarm, alarm, after.alarm)
        if after.alarm is not None:
            # Workers wait until the first alarm that they know. This one may be earlier.
            writes.append(Signal(keys.shard_signal))
    if purge_at != after.purge_at:
        writes += _move(lambda at: purge_key(at, id), purge_at, after.purge_at)
    return writes


def _move(place: Callable[[float], bytes], before: float | None, after: float | None) -> list[Writing]:
    """The writes that move a row from one time to another. `place` gives the key for a time."""
    writes: list[Writing] = []
    if before is not None:
        writes.append(Clear(place(before)))
    if after is not None:
        writes.append(Set(place(after), b""))
    return writes


def unlist(keys: InstanceKeys, head: Head) -> list[Writing]:
    """The writes that clear the rows by which an instance is found."""
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
    """Store a new instance; False if there is one with this id. If its head has an alarm, any worker may run it."""
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
    """Read an instance, and `hold` it. InstanceNotFoundError if there is none."""
    found = yield from find(InstanceKeys(instance_id))
    if not found.about:
        raise InstanceNotFoundError(f"there is no instance {instance_id!r}")
    yield from hold(found)
    return found


def hold(found: Snapshot) -> Steps[None]:
    """Make the commit fail if anybody claims, parks or ends the instance meanwhile, or begins to wait for its end."""
    keys = found.keys
    # An instance that begins to wait for the end of this one changes only the last of these rows.
    yield Hold((keys.lease, keys.field(Field.HEAD), keys.field(Field.WATCHERS)))


def make_due(keys: InstanceKeys, head: Head, now: float) -> list[Writing]:
    """The writes that have any worker run an instance at once. Nobody may have the instance."""
    return make_due_at(keys, head, due_at_once(now))


def make_due_at(keys: InstanceKeys, head: Head, alarm: float) -> list[Writing]:
    """The writes that have any worker run an instance at the time of an alarm. Nobody may have the instance."""
    if head.alarm is not None and head.alarm < DUE_AT_ONCE_MAX:
        # It is due at once already, and no time is earlier.
        return []
    after = replace(head, alarm=alarm)
    return [Set(keys.field(Field.HEAD), after.pack()), *index(keys, head, after)]


def count_up(rows: InstanceRows) -> None:
    """Count one more commit that changes the instance."""
    rows.set(Field.TALLY, replace(rows.tally, commits=rows.tally.commits + 1))


def check_workflow(workflow: Workflow[Any, Any], id: str, name: str) -> Workflow[Any, Any]:
    """Return the workflow if it is the one that the instance runs; otherwise raise AlreadyExistsError."""
    if name != workflow.name:
        raise AlreadyExistsError(
            f"instance {id!r} runs workflow {name!r}, not {workflow.name!r}; "
            "give this one another id, or run it with the workflow it was started with"
        )
    return workflow
