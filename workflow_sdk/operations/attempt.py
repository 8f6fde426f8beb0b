"""`ctx.attempt`: a named scope whose failure is data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from workflow_sdk.core.entries import Entry
from workflow_sdk.core.hints import return_hint
from workflow_sdk.core.location import escape
from workflow_sdk.core.status import Kind
from workflow_sdk.errors import (
    ChildFailedError,
    CodecError,
    JoinError,
    ListenTimeoutError,
    RaceError,
    StepError,
)
from workflow_sdk.operations.cancelling import (
    as_exception,
    cancellations,
    is_failure_of_scope,
    take_back_cancellations,
)
from workflow_sdk.operations.outcome import about, pack_error
from workflow_sdk.operations.place import Place, register
from workflow_sdk.operations.scope import Scope, current_scope

__all__ = ["Failure", "Success", "start_attempt"]

T_co = TypeVar("T_co", covariant=True)

_AS_DATA = (StepError, JoinError, RaceError, ListenTimeoutError, ChildFailedError)


@dataclass(frozen=True, slots=True)
class Success(Generic[T_co]):
    """The attempt's function returned."""

    value: T_co

    @property
    def ok(self) -> Literal[True]:
        """Whether the attempt succeeded."""
        return True


@dataclass(frozen=True, slots=True)
class Failure:
    """An operation in the attempt failed. `error` is what `try` would have caught."""

    error: Exception

    @property
    def ok(self) -> Literal[False]:
        """Whether the attempt succeeded."""
        return False


def start_attempt(
    scope: Scope, name: str, fn: Callable[..., Any], run: Callable[[Scope], Awaitable[Any]]
) -> Coroutine[Any, Any, Success[Any] | Failure]:
    """Register an attempt; its coroutine makes it. `run` calls `fn` with the scope of the attempt."""
    place = register(scope, Kind.ATTEMPT, name)
    place.check_function(fn)
    return scope.start(_attempt(place, return_hint(fn), run))


async def _attempt(place: Place, hint: object, run: Callable[[Scope], Awaitable[Any]]) -> Success[Any] | Failure:
    engine = place.scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        if entry is None:
            entry = place.new_entry()
            place.put(entry)
        if engine.walking:
            await _run(place, run)
            if not entry.is_final:
                await engine.never()
        if not entry.is_final:
            value, error = await _run(place, run)
            _record(place, entry, value, error, hint)
            place.fold()
            await place.flush()
        place.close(entry)
        if entry.error is None:
            assert entry.value is not None, "an attempt that did not fail has a value"
            return Success(place.decode(entry.value, hint))
        failure = place.failure(entry.error)
        if isinstance(failure, _AS_DATA):
            return Failure(failure)
        raise failure
    finally:
        place.release()


async def _run(place: Place, run: Callable[[Scope], Awaitable[Any]]) -> tuple[Any, Exception | None]:
    outer = place.scope
    scope = Scope(outer.engine, place.location, outer.now, parent=outer, label=escape(place.name))
    token = current_scope.set(scope)
    value: Any = None
    error: Exception | None = None
    before = cancellations()
    try:
        value = await run(scope)
    except BaseException as failure:
        # Whatever ends the attempt is recorded; what is not data is raised again.
        if not is_failure_of_scope(failure, place.engine):
            scope.forgotten()
            raise
        error = as_exception(failure, place.what)
        # One that is not delivered yet would come out of the commit that records this, and hide it.
        await take_back_cancellations(place.engine, before)
    finally:
        current_scope.reset(token)
    if not scope.end(error):
        await outer.engine.never()
    return value, error


def _record(place: Place, entry: Entry, value: Any, error: Exception | None, hint: object) -> None:
    engine = place.scope.engine
    if error is not None:
        entry.fail(pack_error(error, engine.codec), engine.now())
    else:
        try:
            raw = engine.codec.encode(value, hint)
        except CodecError as problem:
            raise engine.slip(about(f"the value of {place.what}", problem)) from None
        entry.complete(raw, engine.now())
    place.put(entry)
