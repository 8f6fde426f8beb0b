"""Registering what undoes a step, and `ctx.checkpoint`, after which nothing before it is undone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from workflow_sdk.core.compensation import Compensation, HandlerRef
from workflow_sdk.core.status import Kind
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.operations.handlers import REMEDY
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope

__all__ = ["check_handler", "compensation_of", "register_handler", "start_checkpoint"]


def check_handler(place: Place, handler: Callable[..., Any]) -> None:
    """A handler inside a loop must be known by name: turns are pruned, and the code can't be walked over them."""
    engine = place.scope.engine
    if place.scope.in_loop and HandlerRef.of(handler, engine.codec, engine.known.name_of) is None:
        place.release()
        raise engine.slip(
            DefinitionError(
                f"the rollback of {place.what} is inside a loop, so it must be importable by name, and known to this "
                f"process: {REMEDY}. It may be a functools.partial of such a function, with arguments that can be "
                "encoded"
            )
        )


def register_handler(place: Place, handler: Callable[..., Any], value: object, hint: object) -> None:
    """Have a step undone if the workflow fails, from the commit on that completes the step."""
    place.scope.engine.journal.register(compensation_of(place, handler, value, hint))


def compensation_of(
    place: Place, handler: Callable[..., Any], value: object, hint: object, sequence: int | None = None
) -> Compensation:
    """What is recorded, for a step to be undone. Without a `sequence`, it is the newest."""
    engine = place.scope.engine
    try:
        result, tagged = engine.codec.encode(value), True
    except CodecError:
        result, tagged = engine.codec.encode(value, hint), False
    ref = HandlerRef.of(handler, engine.codec, engine.known.name_of)
    if ref is None:
        engine.remember_handler(place.location, handler, hint)
    return Compensation(
        engine.journal.new_sequence() if sequence is None else sequence, place.location, place.path, ref, result, tagged
    )


def start_checkpoint(scope: Scope, name: str) -> Coroutine[Any, Any, None]:
    """Register a checkpoint; its coroutine takes it."""
    return scope.start(_checkpoint(register(scope, Kind.CHECKPOINT, name)))


async def _checkpoint(place: Place) -> None:
    engine = place.scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        if entry is None:
            entry = place.new_entry()
            entry.complete(None, engine.now())
            engine.journal.forget_compensations()
            place.put(entry)
            await place.flush()
        place.close(entry)
    finally:
        place.release()
