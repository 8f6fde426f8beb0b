"""A schedule as it is stored, and what becomes of its ticks: a pure decision.

A tick is a time at which the schedule says that an instance is to begin. Each is decided on once: it begins an
instance, or it waits for the one before to end, or it is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from msgspec.structs import replace

from workflow_sdk.core.wire import Moment, Row, damaged

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


class ScheduleRow(Row, frozen=True):
    """A schedule: what was asked for, and where it stands."""

    WHAT: ClassVar[str] = "a schedule"

    workflow: str
    input: bytes
    """As the codec gives it."""
    cron: str | None
    every: int | None
    """Microseconds: what is added up again and again is whole."""
    timezone: str
    overlap: Overlap
    catch_up: CatchUp
    paused: bool
    created_at: Moment
    since: Moment
    """When it was given this definition: what `every` counts from."""
    next_at: Moment | None
    """The first tick that is not decided on; None while it is paused, and if none will come."""
    last_at: Moment | None
    """The last tick that began an instance."""
    last_instance: str | None
    waiting: tuple[Moment, ...]
    """Ticks that wait for the end of that instance, in order."""

    @classmethod
    def unpack(cls, raw: bytes) -> ScheduleRow:
        """From its bytes; CodecError, if they can't be a schedule."""
        row = super().unpack(raw)
        if (row.cron is None) == (row.every is None) or (row.every is not None and row.every <= 0):
            raise damaged("a schedule")
        return row

    @property
    def definition(self) -> tuple[object, ...]:
        """What was asked for, but for the input: there is more than one way to write the same value."""
        return (self.workflow, self.cron, self.every, self.timezone, self.overlap, self.catch_up)


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
