"""`ctx.send`: a message to another instance, in the commit that records that it was sent."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from workflow_sdk.core.entries import Entry
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Kind
from workflow_sdk.errors import CodecError, InboxFullError, InstanceNotFoundError
from workflow_sdk.operations.effect import Recorded
from workflow_sdk.operations.outcome import about, pack_error
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.step import watched

__all__ = ["start_send"]


def start_send(scope: Scope, name: str, target: object, message: str, payload: object) -> Coroutine[Any, Any, str]:
    """Register a message; its coroutine sends it. It returns what became of it."""
    place = register(scope, Kind.SEND, name)
    id = target if isinstance(target, str) else getattr(target, "id", None)
    if not isinstance(id, str) or name_problem(id) is not None:
        raise place.slip(f"{place.what}: the target is the id of an instance or a handle, not {shown(target)}")
    if not isinstance(message, str) or name_problem(message) is not None:
        raise place.slip(f"{place.what}: a message can't be called {shown(message)}")
    try:
        raw = scope.engine.codec.encode(payload)
    except CodecError as error:
        place.release()
        raise scope.engine.slip(about(f"the payload of {place.what}", error)) from None
    return scope.start(_send(place, id, message, raw))


async def _send(place: Place, target: str, message: str, payload: bytes) -> str:
    engine = place.scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        if entry is None:
            entry = await _dispatch(place, target, message, payload)
        place.close(entry)
        if entry.error is not None:
            raise place.failure(entry.error)
        assert entry.value is not None, "a message that was sent is recorded with what became of it"
        return str(place.decode(entry.value, str))
    finally:
        place.release()


async def _dispatch(place: Place, target: str, message: str, payload: bytes) -> Entry:
    engine = place.scope.engine

    def record(entry: Entry, outcome: str) -> None:
        entry.complete(engine.codec.encode(outcome), engine.now())

    await watched(engine, place.path)
    effect = Recorded(place, place.new_entry(), record)
    try:
        await engine.post(target, message, payload, effect)
    except (InboxFullError, InstanceNotFoundError) as error:
        error.path = place.path
        entry = place.new_entry()
        entry.fail(pack_error(error, engine.codec), engine.now())
        place.put(entry)
        await place.flush()
        return entry
    return effect.entry
