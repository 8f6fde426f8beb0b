"""Times, which are stored as seconds since 1970, as the `datetime` that is shown of them.

A `datetime` has whole microseconds, and a stored time may lie between two of them. What has happened is shown as the
nearest. A deadline is shown as the next one: at the time that is shown, it is reached.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["deadline_of", "time_of"]

_LATEST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def time_of(at: float) -> datetime:
    """The `datetime` that is nearest to a time at which something has happened."""
    return _LATEST if at >= _LATEST.timestamp() else datetime.fromtimestamp(at, UTC)


def deadline_of(at: float) -> datetime:
    """A deadline as a `datetime` that is not before it: whoever comes back then finds it reached."""
    when = time_of(at)
    return when if when is _LATEST or when.timestamp() >= at else when + _MICROSECOND
