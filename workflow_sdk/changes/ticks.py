"""The times at which a schedule ticks: by an expression of cron, or every so often.

Cron is read by `cronsim`, which does as Debian's cron does, also when the clocks are changed: a time that does not
exist on a day comes as soon as the clocks were put forward; one that exists twice comes the first time only. That holds
where the minute and the hour are given. What comes every minute or hour (`*`) goes on evenly.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from workflow_sdk.errors import DefinitionError
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.schedules import After, ScheduleRow
from workflow_sdk.rows.wire import MOMENT_MAX, shown

if TYPE_CHECKING:
    from cronsim import CronSim

MICROSECONDS = 1_000_000
EVERY_MICROSECONDS_MIN = 1000
"""Ids tell ticks apart by their times, and each costs a commit."""


def ticks_of(row: ScheduleRow) -> After:
    """A function that gives the first tick of a schedule after a time."""
    if row.every is not None:
        return partial(_every_after, row.since, row.every)
    assert row.cron is not None, "a schedule has one of the two"
    return partial(_cron_after, row.cron, time_zone(row.timezone))


def _every_after(since: float, every: int, when: float) -> float | None:
    # In whole microseconds: all workers come to the same times, however many ticks there were.
    begin = round(since * MICROSECONDS)
    passed = round(when * MICROSECONDS) - begin
    number = max(1, passed // every + 1)
    found = (begin + number * every) / MICROSECONDS
    if found <= when:  # in some centuries, a float will not tell one microsecond from the next
        found = (begin + (number + 1) * every) / MICROSECONDS
    return found if found <= MOMENT_MAX else None


def _cron_after(cron: str, zone: tzinfo, when: float) -> float | None:
    # In the hour that exists twice, what has been may come again: it is passed over.
    try:
        for found in _parsed(cron, datetime.fromtimestamp(when, zone)):
            if found.timestamp() > when:
                return found.timestamp()
    except DefinitionError:
        raise
    except (OverflowError, ValueError):
        pass  # no calendar goes further
    return None


def _parsed(cron: str, begin: datetime) -> CronSim:
    try:
        from cronsim import CronSim  # it comes with an extra
    except ImportError:
        raise DefinitionError("schedules with cron= need `pip install workflow-sdk[cron]`") from None
    try:
        return CronSim(cron, begin)
    except Exception as error:  # whatever it trips over
        raise DefinitionError(
            f"cron is five fields: minute, hour, day of the month, month, day of the week, "
            f'such as "0 3 * * *", not {shown(cron)}: {error}'
        ) from error


def check_cron(cron: object) -> str:
    """Return an expression of cron; DefinitionError if it is none."""
    if not isinstance(cron, str):
        raise DefinitionError(f'cron is a text such as "0 3 * * *", not {shown(cron)}')
    _parsed(cron, datetime(2000, 1, 1, tzinfo=UTC))
    return cron


def check_every(every: Duration) -> int:
    """Return a duration in microseconds; DefinitionError if it is none, or too short."""
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
