"""`ctx.attempt`: a named scope whose failure is data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from workflow_sdk.errors import (
    ChildFailedError,
    GraphFailedError,
    JoinError,
    ListenTimeoutError,
    RaceError,
    StepError,
)
from workflow_sdk.operations.calling import (
    as_exception,
    cancellations,
    is_failure_of_scope,
    take_back_cancellations,
)
from workflow_sdk.operations.engine import Engine, Reader
from workflow_sdk.operations.place import Place, pack_error, register
from workflow_sdk.operations.public_state import fold
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.template import enter
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.location import escape
from workflow_sdk.rows.status import Kind
from workflow_sdk.values.hints import return_hint

T_co = TypeVar("T_co", covariant=True)

_AS_DATA = (StepError, JoinError, RaceError, ListenTimeoutError, ChildFailedError, GraphFailedError)


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
    return scope.start(enter(place, _Attempt(place, return_hint(fn), run)))


class _Attempt:
    """A function in a scope of its own."""

    __slots__ = ("_hint", "_place", "_run")

    def __init__(self, place: Place, hint: object, run: Callable[[Scope], Awaitable[Any]]) -> None:
        self._place = place
        self._hint = hint
        self._run = run

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        entry = self._place.new_entry()
        self._place.put(entry)
        return self.resume(engine, entry)

    async def resume(self, engine: Engine, entry: Entry) -> Entry:
        place = self._place
        value, error = await self._call(engine)
        if error is None:
            entry.complete(place.encode(value, self._hint), engine.clock.time())
        else:
            entry.fail(pack_error(error, engine.codec), engine.clock.time())
        fold(place.scope, place.location)
        return await place.store(engine, entry)

    async def recall(self, reader: Reader, entry: Entry) -> None:
        """Do nothing: the whole outcome is in the entry."""

    async def walk(self, walker: Reader, entry: Entry) -> None:
        await self._call(walker)

    async def _call(self, engine: Reader) -> tuple[Any, Exception | None]:
        """Call the function; return its value, or its failure."""
        place, outer = self._place, self._place.scope
        scope = Scope(engine, place.location, outer.now, parent=outer, label=escape(place.name))
        token = current_scope.set(scope)
        value: Any = None
        error: Exception | None = None
        before = cancellations()
        try:
            value = await self._run(scope)
        except BaseException as failure:
            # Anything that the function raises is recorded; what an author can't get as data is raised again.
            if not is_failure_of_scope(failure, engine.life):
                scope.forgotten()
                raise
            error = as_exception(failure, place.what)
            # A cancellation that is not delivered yet would be raised by the commit that records this, and hide it.
            await take_back_cancellations(engine.life, before)
        finally:
            current_scope.reset(token)
        if not scope.end(error):
            await engine.life.never()
        return value, error

    def outcome(self, entry: Entry) -> Success[Any] | Failure:
        if entry.error is None:
            assert entry.value is not None, "an attempt that did not fail has a value"
            return Success(self._place.decode(entry.value, self._hint))
        failure = self._place.failure(entry.error)
        if isinstance(failure, _AS_DATA):
            return Failure(failure)
        raise failure
