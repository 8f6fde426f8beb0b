"""Times, which are stored as seconds since 1970, as the `datetime` that is shown of them.

A `datetime` has whole microseconds, and a stored time may lie between two of them. What has happened is shown as the
nearest. A deadline is shown as the next one: at the time that is shown, it is reached.

What is due at once has no time of its own: whoever says so may have a clock that is wrong. Its alarm comes before every
time there is, so that it is due by any clock. Among themselves, such alarms are in the order in which they were set, as
far as the clocks of those who set them agree.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from workflow_sdk.core.wire import MOMENT_MIN

__all__ = ["AHEAD_SECONDS", "DUE_AT_ONCE_MAX", "deadline_of", "due_at_once", "due_since", "time_of"]

_LATEST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

AHEAD_SECONDS = 1.0
"""What was recorded so much later than now was recorded by a clock that is ahead of ours."""

_AGE = 60_000_000_000.0
"""Seconds, from 1970 on: nineteen centuries, by which what is due at once lies in the past."""
DUE_AT_ONCE_MAX = MOMENT_MIN + _AGE
"""Alarms before this one are of what is due at once; all others are times."""


def time_of(at: float) -> datetime:
    """The `datetime` that is nearest to a time at which something has happened."""
    return _LATEST if at >= _LATEST.timestamp() else datetime.fromtimestamp(at, UTC)


def deadline_of(at: float) -> datetime:
    """A deadline as a `datetime` that is not before it: whoever comes back then finds it reached."""
    when = time_of(at)
    return when if when is _LATEST or when.timestamp() >= at else when + _MICROSECOND


def due_at_once(now: float) -> float:
    """The alarm of what is due at once; `now`, by whatever clock, only says who comes first."""
    return MOMENT_MIN + min(max(now, 0.0), _AGE - 1.0)


def due_since(alarm: float) -> float:
    """When an alarm says that something is due; for what is due at once, when it was set."""
    return alarm - MOMENT_MIN if alarm < DUE_AT_ONCE_MAX else alarm
