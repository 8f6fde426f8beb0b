"""`ctx.listen`, `ctx.listen_message` and `ctx.listen_many`: take messages out of the inbox.

A message leaves the inbox in the commit that records who took it. A waiting branch is only told that there may be
something for it: it takes the message itself, in one go with recording it, so that no message is ever between the two.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from workflow_sdk.errors import CodecError, ListenTimeoutError
from workflow_sdk.journal.inbox import UNREAD, Fit, InboxMessage
from workflow_sdk.journal.names import name_problem
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, Recorded, about, pack_error, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import perform
from workflow_sdk.operations.types import Wait
from workflow_sdk.operations.waiting import Arrived, begins_anew, deadline, wait_for
from workflow_sdk.rows.entries import Entry, ListenData, Taken
from workflow_sdk.rows.retry import Duration
from workflow_sdk.rows.status import Kind
from workflow_sdk.rows.wire import COUNT_MAX, shown
from workflow_sdk.values import SealedError, is_sealed

_log = logging.getLogger("workflow_sdk.operations")

T = TypeVar("T")


class NoDefault(Enum):
    """The type of `NO_DEFAULT`."""

    NO_DEFAULT = "no default"


NO_DEFAULT: Final = NoDefault.NO_DEFAULT
"""Says that no default was given, so that the deadline raises `ListenTimeoutError`."""


class Want(Enum):
    """What a listen returns to the author."""

    PAYLOAD = 1
    MESSAGE = 2
    LIST = 3


class Listening(Struct, frozen=True):
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
        """Answer the sender, if it waits for an answer. Only the first answer counts."""
        data = self._entry.data
        assert isinstance(data, ListenData), "a listen knows what it took"
        (taken,) = data.taken
        place, reply_to = self._place, taken.reply_to
        if reply_to is None or not place.acts:
            return
        try:
            raw = place.engine.codec.encode(value)
        except CodecError as error:
            raise place.engine.life.mistake(about(f"the reply to {place.what}", error)) from None
        # The entry records that the answer was given, so that a replay does not give it again.
        self._entry.data = replace(data, taken=(replace(taken, reply_to=None),))
        # The entry may be gone, since its turn was pruned or the instance has started over: then don't write it.
        if not place.scope.names.has_forgotten(place.location, place.engine.journal.names):
            place.put(self._entry)
        await place.engine.answer(reply_to, raw)

    def __repr__(self) -> str:
        return f"Message(name={self.name!r}, payload={self.payload!r}, sent_at={self.sent_at.isoformat()})"


def start_listen(scope: Scope, name: str, how: Listening) -> Coroutine[Any, Any, Any]:
    """Register a wait for messages; its coroutine takes them."""
    place = register(scope, Kind.LISTEN, name)
    wanted = name if how.messages is None else how.messages
    if not isinstance(wanted, Iterable):
        raise place.mistake(f"{place.what}: messages are a name or a sequence of names, not {shown(wanted)}")
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if not names:
        raise place.mistake(f"{place.what} listens to no message; leave `messages` out to listen to {name!r}")
    for message in names:
        if (problem := name_problem(message)) is not None:
            raise place.mistake(f"{place.what}: a message can't be called {shown(message)}: {problem}")
    if isinstance(how.count, bool) or not isinstance(how.count, int) or not 1 <= how.count <= COUNT_MAX:
        raise place.mistake(f"{place.what} takes a count of 1 or more, up to {COUNT_MAX:,}, not {shown(how.count)}")
    until = deadline(place, how.timeout, how.until)
    data = ListenData(tuple(dict.fromkeys(names)), until, how.count)
    return scope.start(perform(place, _Listen(place, data, how)))


class _Listen:
    """A wait for messages."""

    __slots__ = ("_asked", "_how", "_place")

    def __init__(self, place: Place, asked: ListenData, how: Listening) -> None:
        self._place = place
        self._asked = asked
        self._how = how

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        entry = self._place.new_entry()
        entry.wait(self._asked)
        self._place.put(entry)
        return self._listen(engine, entry)

    def resume(self, engine: Engine, entry: Entry) -> Awaitable[Entry]:
        if self._how.timeout is not None and begins_anew(self._place, engine, entry):
            # What the code has asked for counts from now on.
            entry.data = replace(_data_of(entry), until=self._asked.until)
        return self._listen(engine, entry)

    async def _listen(self, engine: Engine, entry: Entry) -> Entry:
        """Wait until the messages are there or the deadline is over, and record which of the two."""
        place, data = self._place, _data_of(entry)
        fit = Fit(self._judge)
        engine.messages.will_listen(data.names, self._how.type)
        wait = Wait(place, "message", data.until, data.names, data.count, entry, fit)
        while True:
            came = await wait_for(engine, wait)
            # A message addressed to this wait names its token, which nobody knows before the wait is stored.
            if isinstance(came, Arrived) or came.messages or not entry.since:
                self._take(engine, entry, data, came.messages)
                return await place.store(engine, entry)
            late = await self._expire(engine, entry)
            if late is not None:
                return late
            wait = wait.anew()

    async def _expire(self, engine: Engine, entry: Entry) -> Entry | None:
        """Record that nothing came in time; None if a message has come just now, which may be for this wait only."""
        begun = _data_of(entry)

        def record(late: Entry, outcome: str) -> None:
            late.data = ended = replace(begun, timed_out=True)
            self._end(engine, late, ended)

        effect = Recorded(self._place, engine, entry, record)
        return effect.entry if await engine.outside.expire(effect) else None

    def _judge(self, message: InboxMessage) -> str | None:
        """Why a message does not fit this wait; None if it does."""
        place = self._place
        try:
            place.engine.codec.decode_checked(message.payload, self._how.type)
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

    def _take(self, engine: Engine, entry: Entry, data: ListenData, found: list[InboxMessage]) -> None:
        journal, place = engine.journal, self._place
        for number, message in enumerate(found):
            journal.takings.take(message)
            if place.scope.in_race:
                journal.takings.keep(place.location, number, message)
        taken = tuple([Taken(m.id, str(m.name), float(m.sent_at), m.payload, m.reply_to) for m in found])
        entry.data = data = replace(data, taken=taken, timed_out=len(found) < data.count)
        self._end(engine, entry, data)

    def _end(self, engine: Engine, entry: Entry, data: ListenData) -> None:
        """Give the entry its outcome: messages, or that the time is over."""
        place, how, now = self._place, self._how, engine.clock.time()
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

    def outcome(self, entry: Entry) -> Any:
        place, how, data = self._place, self._how, _data_of(entry)
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


def _data_of(entry: Entry) -> ListenData:
    assert isinstance(entry.data, ListenData), "a listen knows what it listens to"
    return entry.data
