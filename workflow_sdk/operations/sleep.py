"""`ctx.sleep` and `ctx.sleep_until`: durable timers."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime

from workflow_sdk.core.entries import Entry, SleepData
from workflow_sdk.core.retry import Duration, seconds
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Kind
from workflow_sdk.core.times import AHEAD_SECONDS
from workflow_sdk.errors import DefinitionError
from workflow_sdk.operations.engine import Wait
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope

__all__ = ["begins_anew", "deadline", "start_sleep"]


def start_sleep(scope: Scope, name: str, duration: Duration | datetime) -> Coroutine[None, None, None]:
    """Register a timer; its coroutine waits for it."""
    place = register(scope, Kind.SLEEP, name)
    if isinstance(duration, datetime):
        return scope.start(_sleep(place, None, deadline(place, None, duration)))
    return scope.start(_sleep(place, _seconds(place, duration), None))


def _seconds(place: Place, duration: Duration) -> float:
    try:
        return seconds(duration, f"the duration of {place.what}")
    except DefinitionError as error:
        raise place.slip(str(error)) from None


def deadline(place: Place, timeout: Duration | None, until: datetime | None) -> float | None:
    """When a wait ends, from the two ways to say it; relative to now."""
    if timeout is not None and until is not None:
        raise place.slip(f"{place.what} has a `timeout` or an `until`, not both")
    if timeout is not None:
        return place.scope.engine.now() + _seconds(place, timeout)
    if until is None:
        return None
    if not isinstance(until, datetime) or until.utcoffset() is None:
        raise place.slip(f"{place.what} takes an aware datetime (`datetime.now(UTC)`), not {shown(until)}")
    return until.timestamp()


def begins_anew(place: Place, entry: Entry) -> bool:
    """Whether a wait for a span of time begins anew, since a clock that is ahead of ours has said when it began.

    Who had that clock is not who runs the instance now: by ours, it would be over much too late.
    """
    engine = place.scope.engine
    if entry.is_final or engine.walking or entry.created_at <= engine.now() + AHEAD_SECONDS:
        return False
    entry.created_at = engine.now()
    place.put(entry)
    return True


async def _sleep(place: Place, duration: float | None, until: float | None) -> None:
    scope = place.scope
    engine = scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        if entry is None:
            entry = place.new_entry()
            when = entry.created_at + duration if duration is not None else until
            assert when is not None, "a timer has a duration or a time"
            entry.wait(SleepData(when))
        elif duration is not None and begins_anew(place, entry):
            entry.data = SleepData(entry.created_at + duration)
        assert isinstance(entry.data, SleepData), "a sleep knows its time"
        if not entry.is_final:
            if engine.walking:
                await engine.never()
            wait = None
            while engine.now() < entry.data.until:
                if wait is None and place.entry is None:
                    place.put(entry)
                wait = Wait(place.location, "timer", place.name, place.path, entry.data.until, entry=entry)
                await engine.park(wait)
            entry.complete(None, engine.now())
            place.put(entry)
            await place.flush()
        else:
            await place.breathe()
        place.close(entry)
    finally:
        place.release()
