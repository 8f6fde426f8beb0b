"""Changes of schedules: to put, change and delete one, and to begin the instances of its ticks."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import replace

from workflow_sdk.changes.change import Look, Signal, Steps, Writing, change, get
from workflow_sdk.changes.instances import create
from workflow_sdk.driver import Clear, Set
from workflow_sdk.errors import CodecError, DefinitionError, ScheduleNotFoundError
from workflow_sdk.features.schedules.rows import (
    SCHEDULES_SIGNAL,
    After,
    Plan,
    ScheduleRow,
    decide,
    due_schedule,
    schedule_key,
    waiting_schedule,
)
from workflow_sdk.rows.instance import Head, InstanceRows
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.wire import MOMENT_MAX, shown

# The times at which a schedule ticks: by a cron expression, or at equal intervals.
#
# Cron expressions are read by `cronsim`, which does as Debian's cron when the clocks change. A time that does not exist
# on a day ticks right after the clocks were put forward, and a time that exists twice ticks only once. That holds if
# the minute and the hour are given. Ticks of every minute or hour (`*`) go on evenly.


if TYPE_CHECKING:
    from cronsim import CronSim

MICROSECONDS = 1_000_000
EVERY_MICROSECONDS_MIN = 1000
"""The shortest time between ticks: their instances' ids contain the time, and each tick costs a commit."""


def ticks_of(row: ScheduleRow) -> After:
    """A function that gives the first tick of a schedule after a time."""
    if row.every is not None:
        return partial(_every_after, row.since, row.every)
    assert row.cron is not None, "a schedule has one of the two"
    return partial(_cron_after, row.cron, time_zone(row.timezone))


def _every_after(since: float, every: int, when: float) -> float | None:
    # In whole microseconds, so that all workers compute the same times, however many ticks there were.
    begin = round(since * MICROSECONDS)
    passed = round(when * MICROSECONDS) - begin
    number = max(1, passed // every + 1)
    found = (begin + number * every) / MICROSECONDS
    if found <= when:  # in some centuries, a float can't tell one microsecond from the next
        found = (begin + (number + 1) * every) / MICROSECONDS
    return found if found <= MOMENT_MAX else None


def _cron_after(cron: str, zone: tzinfo, when: float) -> float | None:
    # In the hour that exists twice, cronsim may give a past time again, which is skipped.
    try:
        for found in _parsed(cron, datetime.fromtimestamp(when, zone)):
            if found.timestamp() > when:
                return found.timestamp()
    except DefinitionError:
        raise
    except (OverflowError, ValueError):
        pass  # the calendar has no later times
    return None


def _parsed(cron: str, begin: datetime) -> CronSim:
    try:
        from cronsim import CronSim  # it comes with an extra
    except ImportError:
        raise DefinitionError("schedules with cron= need `pip install workflow-sdk[cron]`") from None
    try:
        return CronSim(cron, begin)
    except Exception as error:  # cronsim may raise anything for a wrong expression
        raise DefinitionError(
            f"cron is five fields: minute, hour, day of the month, month, day of the week, "
            f'such as "0 3 * * *", not {shown(cron)}: {error}'
        ) from error


def check_cron(cron: object) -> str:
    """Check a cron expression, and return it; DefinitionError if it is wrong."""
    if not isinstance(cron, str):
        raise DefinitionError(f'cron is a text such as "0 3 * * *", not {shown(cron)}')
    _parsed(cron, datetime(2000, 1, 1, tzinfo=UTC))
    return cron


def check_every(every: Duration) -> int:
    """Return a duration in microseconds; DefinitionError if it is not valid, or too short."""
    found = round(seconds(every, "every") * MICROSECONDS)
    if found < EVERY_MICROSECONDS_MIN:
        raise DefinitionError(f"every is a millisecond or more, not {shown(every)}")
    return found


def time_zone(name: object) -> tzinfo:
    """Return the time zone of that name; DefinitionError if there is none."""
    if name == "UTC":
        return UTC  # known without a database
    try:
        if not isinstance(name, str):
            raise TypeError("a time zone is named by a text")
        return ZoneInfo(name)
    except Exception as error:  # KeyError, ValueError, OSError: names are looked for as files
        raise DefinitionError(
            f'there is no time zone {name!r:.100}; they are called as in "Europe/Berlin" '
            "(where the system knows none, `pip install tzdata` does)"
        ) from error


def unpack_schedule(id: str, raw: bytes) -> ScheduleRow:
    """Unpack the row of a schedule; the CodecError, if it can't be read, names the schedule."""
    try:
        return ScheduleRow.unpack(raw)
    except CodecError as error:
        raise CodecError(f"schedule {id!r}: {error}; it can be deleted") from None


def read_schedule(id: str) -> Steps[ScheduleRow]:
    """A schedule; ScheduleNotFoundError, if there is none with this id."""
    raw = yield from get(schedule_key(id))
    if raw is None:
        raise _not_found(id)
    return unpack_schedule(id, raw)


def _not_found(id: str) -> ScheduleNotFoundError:
    return ScheduleNotFoundError(f"there is no schedule {id!r}")


@change
def put(id: str, wanted: ScheduleRow, is_same_input: Callable[[bytes, bytes], bool]) -> Steps[ScheduleRow]:
    """Store a schedule, unless it exists with the same definition; return the stored one.

    If it replaces another one, it is still paused if that was, and ticked last when that did; waiting ticks are gone.
    """
    raw = yield from get(schedule_key(id))
    before = None if raw is None else unpack_schedule(id, raw)
    after = wanted
    if before is not None:
        if before.definition == wanted.definition and is_same_input(before.input, wanted.input):
            return before
        after = replace(
            wanted,
            paused=before.paused,
            created_at=before.created_at,
            next_at=None if before.paused else wanted.next_at,
            last_at=before.last_at,
            last_instance=before.last_instance,
        )
    yield _store(id, before, after)
    return after


@change
def update(id: str, fn: Callable[[ScheduleRow], ScheduleRow]) -> Steps[ScheduleRow]:
    """Change the row of a schedule with `fn`; return the new row."""
    before = yield from read_schedule(id)
    after = fn(before)
    if after != before:
        yield _store(id, before, after)
    return after


@change
def delete(id: str) -> Steps[None]:
    """Delete a schedule. The instances that it started stay as they are."""
    raw = yield from get(schedule_key(id))
    if raw is None:
        raise _not_found(id)
    row: ScheduleRow | None = None
    with suppress(CodecError):  # rows by which it is found are cleared later, when somebody finds it gone
        row = unpack_schedule(id, raw)
    yield _store(id, row, None)


def _store(id: str, before: ScheduleRow | None, after: ScheduleRow | None) -> list[Writing]:
    """The writes that store or delete a schedule, with the rows by which it is found when a tick is due."""
    writes: list[Writing] = []
    if before is not None and before.next_at is not None:
        writes.append(Clear(due_schedule(before.next_at, id)))
    writes.append(Clear(waiting_schedule(id)))
    if after is None:
        writes.append(Clear(schedule_key(id)))
        return writes
    writes.append(Set(schedule_key(id), after.pack()))
    if after.next_at is not None:
        writes.append(Set(due_schedule(after.next_at, id), b""))
    if after.waiting and not after.paused:
        writes.append(Set(waiting_schedule(id), b""))
    writes.append(Signal(SCHEDULES_SIGNAL))
    return writes


# Ticks.


class Kept(Struct, frozen=True):
    """A schedule after its due ticks were handled."""

    row: ScheduleRow
    head_key: bytes | None
    """The row that changes when the instance ends that it began last; None if that makes no difference."""
    head: bytes | None
    begun: tuple[str, ...]
    """The instances that were begun."""
    is_full: bool
    """Whether so many ticks wait that others are left out."""


@change
def keep(
    id: str,
    found_by: Iterable[bytes],
    judge: Callable[[float], float],
    known: Container[str],
    new_rows: Callable[[ScheduleRow, float], InstanceRows],
) -> Steps[Kept | None]:
    """Begin the instances that a schedule is to begin now, and move it on to its next tick.

    None, if it is gone or paused, or its workflow is not known here. `found_by`: the rows by which it was found.
    `judge`: says what time it is, for something due at a time. `known`: names of workflows. `new_rows`: makes the rows
    of an instance that begins now.
    """
    raw = yield from get(schedule_key(id))
    row = None if raw is None else unpack_schedule(id, raw)
    yield from _clear_stale(id, row, found_by)
    if row is None or row.paused or row.workflow not in known:
        return None
    # It may be given another try meanwhile: so whether it is busy still has to be so when this is committed.
    head_key = _watched_head(row)
    head = None if head_key is None else (yield from get(head_key))
    now = judge(row.next_at or 0.0)
    plan = decide(row, now, ticks_of(row), is_busy=head is not None and not Head.unpack(head).status.is_terminal)
    if (plan.starts, plan.waiting, plan.next_at) == ((), row.waiting, row.next_at):
        return Kept(row, head_key, head, (), is_full=False)
    return (yield from _carry_out(id, row, plan, now, new_rows))


def _clear_stale(id: str, row: ScheduleRow | None, found_by: Iterable[bytes]) -> Steps[None]:
    """Clear the rows by which a schedule was found that are not its own any more.

    They are left of a schedule that could not be read when it was deleted; or somebody was faster, and cleared them.
    """
    for key in found_by:
        if (row is None or not _leads_to(key, id, row)) and (yield Look(key)) is not None:
            yield Clear(key)


def _watched_head(row: ScheduleRow) -> bytes | None:
    """The row that changes when the instance ends that a schedule began last; None if that makes no difference."""
    if row.overlap == "allow" or row.last_instance is None:
        return None
    return InstanceKeys(row.last_instance).field(Field.HEAD)


def _carry_out(
    id: str, row: ScheduleRow, plan: Plan, now: float, new_rows: Callable[[ScheduleRow, float], InstanceRows]
) -> Steps[Kept]:
    after, begun = plan.applied(row), list[str]()
    for tick in plan.starts:
        keys = InstanceKeys(instance_of(id, tick))
        after = replace(after, last_instance=keys.instance_id)
        # If it is there, it has begun: the tick of a schedule of this id that was deleted since, or started by hand.
        if (yield from create(keys, new_rows(row, now))):
            begun.append(keys.instance_id)
    yield _store(id, row, after)
    head_key = _watched_head(after)
    head = None if head_key is None else (yield Look(head_key))
    return Kept(after, head_key, head, tuple(begun), plan.is_full)


def _leads_to(key: bytes, id: str, row: ScheduleRow) -> bool:
    """Whether a schedule still has this row by which it is found."""
    if key == waiting_schedule(id):
        return bool(row.waiting) and not row.paused
    return row.next_at is not None and key == due_schedule(row.next_at, id)


def instance_of(id: str, tick: float) -> str:
    """The id of the instance that a tick begins."""
    # From whole microseconds: a float may be a little less than its decimals say.
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(tick * MICROSECONDS))
    return f"{id}/{at.isoformat().removesuffix('+00:00')}Z"
