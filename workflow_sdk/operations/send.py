"""`ctx.send`: a message to another instance, in the commit that records that it was sent."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from workflow_sdk.errors import CodecError, InboxFullError, InstanceNotFoundError
from workflow_sdk.journal.names import name_problem
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, Recorded, about, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import perform
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.status import Kind
from workflow_sdk.rows.wire import shown


def start_send(scope: Scope, name: str, target: object, message: str, payload: object) -> Coroutine[Any, Any, str]:
    """Register a message; its coroutine sends it, and returns the delivery."""
    place = register(scope, Kind.SEND, name)
    id = target if isinstance(target, str) else getattr(target, "id", None)
    if not isinstance(id, str) or name_problem(id) is not None:
        raise place.mistake(f"{place.what}: the target is the id of an instance or a handle, not {shown(target)}")
    if not isinstance(message, str) or name_problem(message) is not None:
        raise place.mistake(f"{place.what}: a message can't be called {shown(message)}")
    try:
        raw = scope.engine.codec.encode(payload)
    except CodecError as error:
        place.release()
        raise scope.engine.life.mistake(about(f"the payload of {place.what}", error)) from None
    return scope.start(perform(place, _Send(place, id, message, raw)))


class _Send:
    """A message to another instance."""

    __slots__ = ("_message", "_payload", "_place", "_target")

    def __init__(self, place: Place, target: str, message: str, payload: bytes) -> None:
        self._place = place
        self._target = target
        self._message = message
        self._payload = payload

    async def begin(self, engine: Engine) -> Entry:
        place = self._place

        def record(entry: Entry, outcome: str) -> None:
            entry.complete(engine.codec.encode(outcome), engine.clock.time())

        await engine.calls.tell(place.path)
        effect = Recorded(place, engine, place.new_entry(), record)
        try:
            await engine.outside.post(self._target, self._message, self._payload, effect)
        except (InboxFullError, InstanceNotFoundError) as error:
            error.path = place.path
            return await place.fail(engine, place.new_entry(), error)
        return effect.entry

    async def resume(self, engine: Engine, entry: Entry) -> Entry:
        raise AssertionError("a message is recorded when it is sent")

    def outcome(self, entry: Entry) -> str:
        if entry.error is not None:
            raise self._place.failure(entry.error)
        assert entry.value is not None, "a message that was sent is recorded with what became of it"
        return str(self._place.decode(entry.value, str))
