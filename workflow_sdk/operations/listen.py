"""`ctx.listen`, `ctx.listen_message` and `ctx.listen_many`: take messages out of the inbox.

A message leaves the inbox in the commit that records who took it. A waiting branch is only told that there may be
something for it: it takes the message itself, in one go with recording it, so that no message is ever between the two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from msgspec.structs import replace

from workflow_sdk.core.codec import SealedError, is_sealed
from workflow_sdk.core.entries import Entry, ListenData, Taken, token_of
from workflow_sdk.core.inbox import UNREAD, Fit, InboxMessage
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.retry import Duration
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Kind
from workflow_sdk.core.wire import COUNT_MAX
from workflow_sdk.errors import CodecError, ListenTimeoutError
from workflow_sdk.operations.effect import Recorded
from workflow_sdk.operations.engine import Wait
from workflow_sdk.operations.outcome import about, pack_error
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.sleep import begins_anew, deadline

_log = logging.getLogger("workflow_sdk.operations")

__all__ = ["NO_DEFAULT", "Listening", "Message", "NoDefault", "Want", "start_listen"]

T = TypeVar("T")


class NoDefault(Enum):
    """The type of `NO_DEFAULT`."""

    NO_DEFAULT = "no default"


NO_DEFAULT: Final = NoDefault.NO_DEFAULT
"""No default was given: the deadline is a `ListenTimeoutError`."""


class Want(Enum):
    """What the author is given."""

    PAYLOAD = 1
    MESSAGE = 2
    LIST = 3


@dataclass(frozen=True, slots=True)
class Listening:
    """How to listen."""

    messages: str | Sequence[str] | None
    type: Any
    timeout: Duration | None
    until: datetime | None
    want: Want
    count: int = 1
    default: Any = NO_DEFAULT


class Message(Generic[T]):
    """A message that was taken."""

    __slots__ = ("_entry", "_place", "id", "name", "payload", "sent_at")

    def __init__(self, place: Place, entry: Entry, taken: Taken, payload: T) -> None:
        self._place = place
        self._entry = entry
        self.id: str = taken.id.hex()
        self.name: str = taken.name
        self.payload: T = payload
        self.sent_at: datetime = datetime.fromtimestamp(taken.sent_at, UTC)

    async def reply(self, value: object) -> None:
        """Answer the one who asked. Who did not ask is not disturbed; the first answer is the one that counts."""
        data = self._entry.data
        assert isinstance(data, ListenData), "a listen knows what it took"
        (taken,) = data.taken
        reply_to = taken.reply_to
        engine = self._place.scope.engine
        if reply_to is None or engine.walking or engine.halted or self._place.scope.fate.lost:
            return
        try:
            raw = engine.codec.encode(value)
        except CodecError as error:
            raise engine.slip(about(f"the reply to {self._place.what}", error)) from None
        # Recorded with the answer that it was given: there is none to be given any more.
        self._entry.data = replace(data, taken=(replace(taken, reply_to=None),))
        if not self._place.is_forgotten:
            self._place.put(self._entry)
        await engine.answer(reply_to, raw)

    def __repr__(self) -> str:
        return f"Message(name={self.name!r}, payload={self.payload!r}, sent_at={self.sent_at.isoformat()})"


def start_listen(scope: Scope, name: str, how: Listening) -> Coroutine[Any, Any, Any]:
    """Register a wait for messages; its coroutine takes them."""
    place = register(scope, Kind.LISTEN, name)
    wanted = name if how.messages is None else how.messages
    if not isinstance(wanted, Iterable):
        raise place.slip(f"{place.what}: messages are a name or a sequence of names, not {shown(wanted)}")
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if not names:
        raise place.slip(f"{place.what} listens to no message; leave `messages` out to listen to {name!r}")
    for message in names:
        if (problem := name_problem(message)) is not None:
            raise place.slip(f"{place.what}: a message can't be called {shown(message)}: {problem}")
    if isinstance(how.count, bool) or not isinstance(how.count, int) or not 1 <= how.count <= COUNT_MAX:
        raise place.slip(f"{place.what} takes a count of 1 or more, up to {COUNT_MAX:,}, not {shown(how.count)}")
    until = deadline(place, how.timeout, how.until)
    return scope.start(_listen(place, ListenData(tuple(dict.fromkeys(names)), until, how.count), how))


async def _listen(place: Place, data: ListenData, how: Listening) -> Any:
    engine = place.scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        if entry is None:
            entry = place.new_entry()
            entry.wait(data)
        elif how.timeout is not None and isinstance(entry.data, ListenData) and begins_anew(place, entry):
            # What the code has asked for counts from now on.
            entry.data = replace(entry.data, until=data.until)
        if not entry.is_final:
            if engine.walking:
                await engine.never()
            entry = await _wait(place, entry, how)
        else:
            await place.breathe()
        place.close(entry)
        return _result(place, entry, how)
    finally:
        place.release()


async def _wait(place: Place, entry: Entry, how: Listening) -> Entry:
    """Park until the messages are there or the deadline is past; record which."""
    scope = place.scope
    engine = scope.engine
    data = entry.data
    assert isinstance(data, ListenData), "a listen knows what it listens to"
    recorded = place.entry is not None
    refreshed = False
    fit = Fit(_judge(place, how))
    engine.will_listen(data.names, how.type)
    while True:
        found = engine.journal.inbox.find(data.names, data.count, token_of(place.location, entry), fit)
        if fit.refused and engine.active == 1 and await engine.set_aside(fit):
            continue
        if engine.lacks_mail(data.names, found, data.count):
            await engine.read_mail(data.names)
            continue
        due = data.until is not None and engine.now() >= data.until
        if len(found) >= data.count:
            break
        if due and refreshed:
            if found or not entry.since:
                break
            late = await _expire(place, entry, how)
            if late is not None:
                return late
            refreshed = False
        if due:
            # What came before the deadline wins, and the store may know of something that we don't.
            await engine.refresh_inbox()
            refreshed = True
            continue
        if not recorded:
            place.put(entry)
            recorded = True
        wait = Wait(place.location, "message", place.name, place.path, data.until, data.names, data.count, entry, fit)
        await engine.park(wait)
        refreshed = False
    _take(place, entry, data, found, how)
    place.put(entry)
    await place.flush()
    return entry


async def _expire(place: Place, entry: Entry, how: Listening) -> Entry | None:
    """Record that nothing came in time; None if something has come just now, which may be for this wait only."""
    engine = place.scope.engine
    begun = entry.data
    assert isinstance(begun, ListenData), "a listen knows what it listens to"

    def record(late: Entry, outcome: str) -> None:
        late.data = replace(begun, timed_out=True)
        _end(place, late, how)

    effect = Recorded(place, entry, record)
    return effect.entry if await engine.expire(effect) else None


def _judge(place: Place, how: Listening) -> Callable[[InboxMessage], str | None]:
    """What says why a message does not fit."""
    codec = place.scope.engine.codec

    def problem(message: InboxMessage) -> str | None:
        try:
            codec.decode_checked(message.payload, how.type)
        except SealedError as error:
            if is_sealed(message.payload):
                _log.error(
                    "message %r to %r is left where it is: %s", message.name, place.engine.facts.instance_id, error
                )
                return UNREAD
            return f"it is not what {place.what} takes: {error}"
        except CodecError as error:
            return f"it is not what {place.what} takes: {error}"
        return None

    return problem


def _take(place: Place, entry: Entry, data: ListenData, found: list[InboxMessage], how: Listening) -> None:
    engine = place.scope.engine
    for number, message in enumerate(found):
        engine.journal.take_message(message)
        if place.scope.in_race:
            engine.journal.keep_taking(place.location, number, message)
    taken = tuple(Taken(m.id, str(m.name), float(m.sent_at), m.payload, m.reply_to) for m in found)
    entry.data = replace(data, taken=taken, timed_out=len(found) < data.count)
    _end(place, entry, how)


def _end(place: Place, entry: Entry, how: Listening) -> None:
    """The entry has its outcome, in time or not."""
    engine, data = place.scope.engine, entry.data
    assert isinstance(data, ListenData), "a listen knows what it took"
    now = engine.now()
    if data.timed_out and how.want is not Want.LIST and how.default is NO_DEFAULT:
        names = " or ".join(repr(name) for name in data.names)
        late = ListenTimeoutError(f"{place.what}: no message {names} came in time")
        late.path = place.path
        entry.fail(pack_error(late, engine.codec), now)
        return
    value: bytes | None = None
    if data.timed_out and how.want is not Want.LIST:
        # What can't be encoded is an object of the code (a sentinel), which is the same in every replay by itself.
        with suppress(CodecError):
            value = engine.codec.encode(how.default)
    entry.complete(value, now)


def _result(place: Place, entry: Entry, how: Listening) -> Any:
    data = entry.data
    assert isinstance(data, ListenData), "a listen knows what it took"
    if entry.error is not None:
        raise place.failure(entry.error)
    if data.timed_out and how.want is not Want.LIST:
        if entry.value is not None:
            return place.decode(entry.value, Any)
        if how.default is NO_DEFAULT:
            raise ListenTimeoutError(f"{place.what}: no message came in time, and the code has no default any more")
        return how.default
    values = [place.decode(taken.payload, how.type, checked=True) for taken in data.taken]
    if how.want is Want.LIST:
        return values
    if how.want is Want.PAYLOAD:
        return values[0]
    return Message(place, entry, data.taken[0], values[0])
