"""The row of a schedule, and the decision about what is done with its ticks.

A tick is a time at which the schedule is to begin an instance. Each tick is decided on once: it begins an instance, it
waits until the last instance has ended, or it is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from workflow_sdk.errors import CodecError
from workflow_sdk.rows.keys import ROOT
from workflow_sdk.rows.location import pack, unpack
from workflow_sdk.rows.wire import Moment, Row, damaged

# The keys of schedules.


SCHEDULES: bytes = ROOT + pack((14, 1))
SCHEDULES_DUE: bytes = ROOT + pack((14, 2))
"""The prefix of the rows of next ticks; a time and an id follow."""
SCHEDULES_SIGNAL: bytes = ROOT + pack((14, 3))
SCHEDULES_WAITING: bytes = ROOT + pack((14, 4))


def schedule_key(schedule_id: str) -> bytes:
    """The key of a schedule."""
    return SCHEDULES + pack((schedule_id,))


def due_schedule(when: float, schedule_id: str) -> bytes:
    """The row of a schedule's next tick: they sort by their time."""
    return SCHEDULES_DUE + pack((when, schedule_id))


def waiting_schedule(schedule_id: str) -> bytes:
    """The key of the row that a schedule has as long as ticks of it wait."""
    return SCHEDULES_WAITING + pack((schedule_id,))


def scheduled(due: bytes) -> tuple[float, str]:
    """The time and the schedule of the row of a tick."""
    parts = unpack(due[len(ROOT) :])
    when, id = parts[2:] if len(parts) == 4 else (None, None)
    if type(when) is not float or type(id) is not str:
        raise CodecError(f"a key in the store is not of this library's making: {due!r:.100}")
    return when, id


Overlap = Literal["skip", "queue", "allow"]
CatchUp = Literal["last", "all", "none"]
After: TypeAlias = Callable[[float], float | None]
"""Gives the first tick after a time, or None if there are no more ticks."""

OVERLAPS = ("skip", "queue", "allow")
CATCH_UPS = ("last", "all", "none")

WAITING_MAX = 100
"""How many ticks of one schedule may wait. They are part of its row."""
STARTS_MAX = 20
"""How many instances one commit begins at most."""
LATE_SECONDS_MAX = 60.0
"""How many seconds late a tick may be decided on with `catch_up="none"`, and still start an instance."""


class ScheduleRow(Row, frozen=True):
    """A schedule as it is stored: its definition, and how far its ticks are decided on."""

    WHAT: ClassVar[str] = "a schedule"

    workflow: str
    input: bytes
    """The encoded input of its instances."""
    cron: str | None
    every: int | None
    """The time between ticks in microseconds. It is a whole number, as it is added up again and again."""
    timezone: str
    overlap: Overlap
    catch_up: CatchUp
    paused: bool
    created_at: Moment
    since: Moment
    """When it got this definition. `every` counts from then."""
    next_at: Moment | None
    """The first tick that is not decided on yet; None while the schedule is paused, or if there are no more ticks."""
    last_at: Moment | None
    """The last tick that began an instance."""
    last_instance: str | None
    waiting: tuple[Moment, ...]
    """The ticks that wait until `last_instance` has ended, in order."""

    @classmethod
    def unpack(cls, raw: bytes) -> ScheduleRow:
        """The schedule in the bytes; CodecError, if they hold none."""
        row = super().unpack(raw)
        if (row.cron is None) == (row.every is None) or (row.every is not None and row.every <= 0):
            raise damaged("a schedule")
        return row

    @property
    def definition(self) -> tuple[object, ...]:
        """The definition without the input, which can't be compared: equal values may have different bytes."""
        return (self.workflow, self.cron, self.every, self.timezone, self.overlap, self.catch_up)


# Deciding about ticks.


class Plan(Struct, frozen=True):
    """What is to be done about the ticks of a schedule now."""

    starts: tuple[float, ...]
    """The ticks that begin an instance, in order."""
    waiting: tuple[float, ...]
    next_at: float | None
    is_full: bool = False
    """Whether ticks are left out because too many wait."""

    def applied(self, row: ScheduleRow) -> ScheduleRow:
        """The row once this is done, except for the name of the instance that was begun."""
        last_at = self.starts[-1] if self.starts else row.last_at
        return replace(row, next_at=self.next_at, waiting=self.waiting, last_at=last_at)


def decide(row: ScheduleRow, now: float, after: After, *, is_busy: bool) -> Plan:
    """What to do about the ticks that are due or wait. `is_busy` says that the last instance has not ended."""
    due, next_at = _due(row, now, after)
    if row.overlap == "allow":
        return Plan(due, (), next_at)
    if row.overlap == "skip" and (is_busy or row.waiting):
        # These ticks came before the last instance had ended. With `skip` they are dropped, but ticks that already wait
        # are ones that were missed, and are still caught up on.
        due = ()
    line = (*row.waiting, *due)
    starts = () if is_busy else line[:1]
    waiting = line[len(starts) :]
    return Plan(starts, waiting[:WAITING_MAX], next_at, is_full=len(waiting) > WAITING_MAX)


def _due(row: ScheduleRow, now: float, after: After) -> tuple[tuple[float, ...], float | None]:
    """The ticks that have come and may begin an instance, and the first tick after them."""
    first = row.next_at
    if first is None or first > now:
        return (), first
    if row.catch_up == "all":
        return _all_due(first, now, after, allows=row.overlap == "allow")
    last = latest(first, now, after)
    is_missed = row.catch_up == "none" and now - last > LATE_SECONDS_MAX
    return () if is_missed else (last,), after(last)


def _all_due(first: float, now: float, after: After, *, allows: bool) -> tuple[tuple[float, ...], float | None]:
    """The ticks from `first` on that have come, as many as can be used, and the next one to decide on."""
    # If ticks wait for each other, collect one more than there is room for, to notice that some are left out.
    most = STARTS_MAX if allows else WAITING_MAX + 2
    ticks, following = [first], after(first)
    while following is not None and following <= now and len(ticks) < most:
        ticks.append(following)
        following = after(following)
    if following is not None and following <= now and not allows:
        # There is no room for the ticks in between: they are left out.
        following = after(latest(following, now, after))
    return tuple(ticks), following


def latest(tick: float, now: float, after: After) -> float:
    """The last tick that is not after `now`; `tick` is one of them.

    There may be millions between the two, so the time is halved again and again.
    """
    low, high = tick, now  # a tick, and a time after which none has come
    while (following := after(low)) is not None and following <= high:
        low = following
        middle = low + (high - low) / 2
        found = after(middle)
        if found is None or found > high:
            high = middle
        else:
            low = found
    return low
