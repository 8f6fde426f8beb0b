"""The one way to wait: for a time, for messages, or for whichever comes first."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from datetime import datetime

from msgspec import Struct

from workflow_sdk.errors import DefinitionError
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import perform
from workflow_sdk.operations.types import Wait
from workflow_sdk.rows.entries import Entry, SleepData
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.status import Kind
from workflow_sdk.rows.wire import AHEAD_SECONDS, shown


class Arrived(Struct, frozen=True):
    """The outcome of a wait whose messages have all come."""

    messages: list[InboxMessage]


class Expired(Struct, frozen=True):
    """The outcome of a wait whose time is over before all messages have come."""

    messages: list[InboxMessage]


async def wait_for(engine: Engine, wait: Wait) -> Arrived | Expired:
    """Return once the messages of a wait are there, or its time is over.

    What came in time wins: when the time is over, the store is asked once more. A message may come after that, so
    whoever records that none has come does so under the condition that it is still true.
    """
    inbox = engine.journal.inbox
    asked = parked = False
    found: list[InboxMessage] = []
    while True:
        if wait.messages:
            found = inbox.find(wait.messages, wait.count, wait.at, wait.fit)
            if await _has_changed(engine, wait, found):
                continue
            if len(found) >= wait.count:
                return Arrived(found)
        if wait.until is None or engine.clock.time() < wait.until:
            if parked:
                wait = wait.anew()
            await engine.parking.park(wait)
            parked, asked = True, False
        elif asked or not wait.messages:
            return Expired(found)
        else:
            await engine.messages.refresh()
            if engine.life.halted:
                await engine.life.never()
            asked = True


async def _has_changed(engine: Engine, wait: Wait, found: list[InboxMessage]) -> bool:
    """Read messages that a wait may need; return whether the wait is to look at its messages again."""
    messages = engine.messages
    is_new = False
    if wait.fit is not None and wait.fit.refused and engine.parking.waits.active == 1:
        # No other branch is active, so none can be about to listen to a message that this wait has refused.
        is_new = await messages.set_aside(wait.fit)
    if not is_new and messages.lacks(wait.messages, found, wait.count):
        await messages.read_on(wait.messages)
        is_new = True
    if is_new and engine.life.halted:
        await engine.life.never()
    return is_new


def duration_of(place: Place, duration: Duration) -> float:
    """A span of time that the author has given, in seconds."""
    try:
        return seconds(duration, f"the duration of {place.what}")
    except DefinitionError as error:
        raise place.mistake(str(error)) from None


def deadline(place: Place, timeout: Duration | None, until: datetime | None) -> float | None:
    """When a wait ends, from the two ways to say it; relative to now."""
    if timeout is not None and until is not None:
        raise place.mistake(f"{place.what} has a `timeout` or an `until`, not both")
    if timeout is not None:
        return place.engine.clock.time() + duration_of(place, timeout)
    if until is None:
        return None
    if not isinstance(until, datetime) or until.utcoffset() is None:
        raise place.mistake(f"{place.what} takes an aware datetime (`datetime.now(UTC)`), not {shown(until)}")
    return until.timestamp()


def begins_anew(place: Place, engine: Engine, entry: Entry) -> bool:
    """Whether a wait for a span of time begins anew, since a clock that is ahead of ours has said when it began.

    Who had that clock is not who runs the instance now: by ours, it would be over much too late.
    """
    if entry.created_at <= engine.clock.time() + AHEAD_SECONDS:
        return False
    entry.created_at = engine.clock.time()
    place.put(entry)
    return True


# `ctx.sleep` and `ctx.sleep_until`: durable timers.


def start_sleep(scope: Scope, name: str, duration: Duration) -> Coroutine[None, None, None]:
    """Register a timer; its coroutine waits for it."""
    place = register(scope, Kind.SLEEP, name)
    return scope.start(perform(place, _Sleep(place, duration_of(place, duration), 0.0)))


def start_sleep_until(scope: Scope, name: str, when: datetime) -> Coroutine[None, None, None]:
    """Register a timer that ends at a time; its coroutine waits for it."""
    if not isinstance(when, datetime):
        raise scope.engine.life.mistake(DefinitionError(f"sleep_until {name!r} takes a datetime, not {shown(when)}"))
    place = register(scope, Kind.SLEEP, name)
    until = deadline(place, None, when)
    assert until is not None, "a time was given"
    return scope.start(perform(place, _Sleep(place, None, until)))


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
