"""A schedule as it is stored, and what becomes of its ticks: a pure decision.

A tick is a time at which the schedule says that an instance is to begin. Each is decided on once: it begins an
instance, or it waits for the one before to end, or it is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from workflow_sdk.core.wire import MOMENT_MAX, MOMENT_MIN, NOTHING, NUMBERS, damaged, pack_record, shapes, unpack_record

__all__ = [
    "CATCH_UPS",
    "LATE_SECONDS_MAX",
    "OVERLAPS",
    "STARTS_MAX",
    "WAITING_MAX",
    "After",
    "CatchUp",
    "Overlap",
    "Plan",
    "ScheduleRow",
    "decide",
    "latest",
]

Overlap = Literal["skip", "queue", "allow"]
CatchUp = Literal["last", "all", "none"]
After: TypeAlias = Callable[[float], float | None]
"""The first tick after a time, or None if there is none any more."""

OVERLAPS = ("skip", "queue", "allow")
CATCH_UPS = ("last", "all", "none")

WAITING_MAX = 100
"""Ticks of one schedule that may wait. They are part of its row."""
STARTS_MAX = 20
"""Instances that one commit begins."""
LATE_SECONDS_MAX = 60.0
"""With `none`: a tick that is later than this is missed."""

_ROW = shapes(
    *((str,), (bytes,), (str, NOTHING), (int, NOTHING), (str,), (str,), (str,), (bool,)),
    *(NUMBERS, NUMBERS, (*NUMBERS, NOTHING), (*NUMBERS, NOTHING), (str, NOTHING), (list,)),
)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule: what was asked for, and where it stands."""

    workflow: str
    input: bytes
    """As the codec gives it."""
    cron: str | None
    every: int | None
    """Microseconds: what is added up again and again is whole."""
    timezone: str
    overlap: str
    catch_up: str
    paused: bool
    created_at: float
    since: float
    """When it was given this definition: what `every` counts from."""
    next_at: float | None
    """The first tick that is not decided on; None while it is paused, and if none will come."""
    last_at: float | None
    """The last tick that began an instance."""
    last_instance: str | None
    waiting: tuple[float, ...]
    """Ticks that wait for the end of that instance, in order."""

    def pack(self) -> bytes:
        """As bytes."""
        return pack_record(
            [
                *(self.workflow, self.input, self.cron, self.every, self.timezone, self.overlap, self.catch_up),
                *(self.paused, self.created_at, self.since, self.next_at, self.last_at, self.last_instance),
                list(self.waiting),
            ]
        )

    @classmethod
    def unpack(cls, raw: bytes) -> ScheduleRow:
        """From its bytes; CodecError, if they can't be a schedule."""
        parts: list[Any] = unpack_record(raw)
        if tuple(map(type, parts)) not in _ROW:
            raise damaged("a schedule")
        parts[-1] = tuple(parts[-1])
        row = cls(*parts)
        if (
            (row.cron is None) == (row.every is None)
            or (row.every is not None and row.every <= 0)
            or row.overlap not in OVERLAPS
            or row.catch_up not in CATCH_UPS
            or not all(map(_is_time, (row.created_at, row.since, *row.waiting)))
            or not all(when is None or _is_time(when) for when in (row.next_at, row.last_at))
        ):
            raise damaged("a schedule")
        return row

    @property
    def definition(self) -> tuple[object, ...]:
        """What was asked for, but for the input: there is more than one way to write the same value."""
        return (self.workflow, self.cron, self.every, self.timezone, self.overlap, self.catch_up)


def _is_time(value: object) -> bool:
    return type(value) in NUMBERS and isinstance(value, (int, float)) and MOMENT_MIN <= value <= MOMENT_MAX


# -- What becomes of the ticks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done now."""

    starts: tuple[float, ...]
    """The ticks that begin an instance, in order."""
    waiting: tuple[float, ...]
    next_at: float | None
    is_full: bool = False
    """Whether ticks are left out because too many wait."""

    def applied(self, row: ScheduleRow) -> ScheduleRow:
        """The schedule, once this is done; but for the instance that was begun."""
        last_at = self.starts[-1] if self.starts else row.last_at
        return replace(row, next_at=self.next_at, waiting=self.waiting, last_at=last_at)


def decide(row: ScheduleRow, now: float, after: After, *, is_busy: bool) -> Plan:
    """What to do about the ticks that are due, and those that wait. `is_busy`: the last instance has not ended."""
    due, next_at = _due(row, now, after)
    if row.overlap == "allow":
        return Plan(due, (), next_at)
    if row.overlap == "skip" and (is_busy or row.waiting):
        # They have come before the last instance has ended. What waits with `skip` was missed, and is made up for.
        due = ()
    line = (*row.waiting, *due)
    starts = () if is_busy else line[:1]
    waiting = line[len(starts) :]
    return Plan(starts, waiting[:WAITING_MAX], next_at, is_full=len(waiting) > WAITING_MAX)


def _due(row: ScheduleRow, now: float, after: After) -> tuple[tuple[float, ...], float | None]:
    """The ticks that have come and are to be decided on, and the first one after them."""
    first = row.next_at
    if first is None or first > now:
        return (), first
    if row.catch_up == "all":
        allows = row.overlap == "allow"
        # Where they wait for each other, one more than there is room for: so that it is noticed.
        most = STARTS_MAX if allows else WAITING_MAX + 2
        ticks, following = [first], after(first)
        while following is not None and following <= now and len(ticks) < most:
            ticks.append(following)
            following = after(following)
        if following is not None and following <= now and not allows:
            following = after(latest(following, now, after))
        return tuple(ticks), following
    last = latest(first, now, after)
    is_missed = row.catch_up == "none" and now - last > LATE_SECONDS_MAX
    return () if is_missed else (last,), after(last)


def latest(tick: float, now: float, after: After) -> float:
    """The last tick up to `now`, of which there is one: `tick`.

    Without going through all between them, of which there may be millions: by halves.
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
