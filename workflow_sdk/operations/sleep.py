"""`ctx.sleep` and `ctx.sleep_until`: durable timers."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from datetime import datetime

from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import perform
from workflow_sdk.operations.types import Wait
from workflow_sdk.operations.waiting import begins_anew, deadline, duration_of, wait_for
from workflow_sdk.rows.entries import Entry, SleepData
from workflow_sdk.rows.retry import Duration
from workflow_sdk.rows.status import Kind


def start_sleep(scope: Scope, name: str, duration: Duration | datetime) -> Coroutine[None, None, None]:
    """Register a timer; its coroutine waits for it."""
    place = register(scope, Kind.SLEEP, name)
    if isinstance(duration, datetime):
        until = deadline(place, None, duration)
        assert until is not None, "a time was given"
        return scope.start(perform(place, _Sleep(place, None, until)))
    return scope.start(perform(place, _Sleep(place, duration_of(place, duration), 0.0)))


class _Sleep:
    """A timer: for a span of time, or until a time."""

    __slots__ = ("_duration", "_place", "_until")

    def __init__(self, place: Place, duration: float | None, until: float) -> None:
        self._place = place
        self._duration = duration
        self._until = until

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        entry = self._place.new_entry()
        until = self._until if self._duration is None else entry.created_at + self._duration
        entry.wait(SleepData(until))
        self._place.put(entry)
        return self._sleep(engine, entry, until)

    def resume(self, engine: Engine, entry: Entry) -> Awaitable[Entry]:
        assert isinstance(entry.data, SleepData), "a sleep knows its time"
        until = entry.data.until
        if self._duration is not None and begins_anew(self._place, engine, entry):
            until = entry.created_at + self._duration
            entry.data = SleepData(until)
        return self._sleep(engine, entry, until)

    async def _sleep(self, engine: Engine, entry: Entry, until: float) -> Entry:
        place = self._place
        await wait_for(engine, Wait(place, "timer", until, entry=entry))
        entry.complete(None, engine.clock.time())
        return await place.store(engine, entry)

    def outcome(self, entry: Entry) -> None:
        """There is no value."""
