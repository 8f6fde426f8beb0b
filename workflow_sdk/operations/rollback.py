"""Registering the handler of a step, and `ctx.checkpoint`: steps before a checkpoint are not undone any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from workflow_sdk.errors import CodecError
from workflow_sdk.journal.compensation import Compensation, HandlerRef
from workflow_sdk.operations.engine import Engine, Reader
from workflow_sdk.operations.handlers import REMEDY
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import perform
from workflow_sdk.operations.types import Waiter
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.status import Kind


def check_handler(place: Place, handler: Callable[..., Any]) -> None:
    """A handler inside a loop must be known by name: turns are pruned, and the code can't be walked over them."""
    engine = place.engine
    if place.scope.in_loop and HandlerRef.of(handler, engine.codec, engine.known.name_of) is None:
        raise place.mistake(
            f"the rollback of {place.what} is inside a loop, so it must be importable by name, and known to this "
            f"process: {REMEDY}. It may be a functools.partial of such a function, with arguments that can be "
            "encoded"
        )


class Undone(Waiter, Protocol):
    """What a handler undoes."""

    @property
    def scope(self) -> Scope | None:
        """The scope that it is in."""
        ...


def register_handler(place: Undone, engine: Engine, handler: Callable[..., Any], value: object, hint: object) -> None:
    """Register the handler of a step, to be stored by the commit that completes the step."""
    engine.journal.compensations.register(compensation_of(place, engine, handler, value, hint))


def compensation_of(
    place: Undone, engine: Reader, handler: Callable[..., Any], value: object, hint: object, sequence: int | None = None
) -> Compensation:
    """Make the compensation of a step. Without a `sequence`, it is the newest."""
    try:
        result, tagged = engine.codec.encode(value), True
    except CodecError:
        result, tagged = engine.codec.encode(value, hint), False
    ref = HandlerRef.of(handler, engine.codec, engine.known.name_of)
    if ref is None:
        engine.remember_handler(place.location, handler, hint)
        if place.scope is not None and place.scope.firing is not None:
            place.scope.firing.keep_begun()
    return Compensation(
        engine.journal.compensations.new_sequence() if sequence is None else sequence,
        place.location,
        place.path,
        ref,
        result,
        tagged,
    )


def start_checkpoint(scope: Scope, name: str) -> Coroutine[Any, Any, None]:
    """Register a checkpoint; its coroutine takes it."""
    place = register(scope, Kind.CHECKPOINT, name)
    return scope.start(perform(place, _Checkpoint(place)))


class _Checkpoint:
    """A point of no return."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        entry = self._place.new_entry()
        entry.complete(None, engine.clock.time())
        engine.journal.compensations.forget()
        return self._place.store(engine, entry)

    def resume(self, engine: Engine, entry: Entry) -> Awaitable[Entry]:
        raise AssertionError("a checkpoint is complete when it is recorded")

    def outcome(self, entry: Entry) -> None:
        """There is no value."""
