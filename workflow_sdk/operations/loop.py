"""`ctx.loop`: repeat a body, with state, and a history that does not grow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

import anyio
import anyio.lowlevel
from msgspec import Struct

from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.journal.loop_states import Bases
from workflow_sdk.journal.names import NameTable
from workflow_sdk.operations.calling import (
    as_exception,
    cancellations,
    is_failure_of_scope,
    take_back_cancellations,
)
from workflow_sdk.operations.engine import Engine, Reader, Walker
from workflow_sdk.operations.place import BREATH, Place, about, pack_error, register
from workflow_sdk.operations.public_state import fold, note_turn
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.template import enter
from workflow_sdk.rows.entries import Entry, LoopData
from workflow_sdk.rows.location import escape, pack_pair, segments, split_last
from workflow_sdk.rows.status import Kind
from workflow_sdk.rows.wire import shown
from workflow_sdk.values.hints import parameter_hint, return_hint

GIVEN_BACK_TURNS = 20
"""If the loop is in a branch that loses a race, the messages of so many turns are given back, even if their history is
gone. Those of earlier ones are used up, so that they do not pile up.
"""

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Continue(Generic[S]):
    """Go on with the next turn, and this state."""

    state: S = None  # type: ignore[assignment]  # `Continue()` is for loops without state


@dataclass(frozen=True, slots=True)
class Break(Generic[T]):
    """End the loop with this value."""

    value: T = None  # type: ignore[assignment]  # `Break()` is for loops without a value


class LoopSettings(Struct, frozen=True):
    """How often a loop stores its state, and how many turns of history it keeps."""

    commit_interval: int = 20
    history_keep: int | None = None

    def problem(self) -> str | None:
        """Why the settings are wrong; None if they are right."""
        keep = self.history_keep
        if (
            isinstance(self.commit_interval, bool)
            or not isinstance(self.commit_interval, int)
            or self.commit_interval < 1
        ):
            return f"commit_interval is a number of turns from 1 on, not {shown(self.commit_interval)}"
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 0):
            return f"history_keep is a number of turns from 0 on, not {shown(keep)}"
        return None


Body = Callable[[Scope, Any], Awaitable[Any]]


def start_loop(
    scope: Scope, name: str, body: Callable[..., Any], run: Body, state: object, settings: LoopSettings
) -> Coroutine[Any, Any, Any]:
    """Register a loop; its coroutine turns. `run` calls `body` with the scope of a turn."""
    place = register(scope, Kind.LOOP, name)
    if (problem := settings.problem()) is not None:
        raise place.mistake(f"{place.what}: {problem}")
    place.check_function(body)
    return scope.start(enter(place, _Loop(place, body, run, state, settings)))


class _Loop:
    """A body that is repeated, each time in a scope of its own, until it breaks or fails."""

    __slots__ = ("_body", "_first", "_index", "_interval", "_keep", "_place", "_state_hint", "_value_hint")

    def __init__(
        self, place: Place, body: Callable[..., Any], run: Body, first: object, settings: LoopSettings
    ) -> None:
        self._place = place
        self._body = run
        self._first = first
        self._interval = settings.commit_interval
        self._keep = settings.commit_interval if settings.history_keep is None else settings.history_keep
        self._state_hint = parameter_hint(body, 1)
        self._value_hint = _break_hint(return_hint(body))
        self._index: int | None = None
        """That of the loop's name, once it has a place."""

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        place = self._place
        entry = place.new_entry()
        entry.data = LoopData(0, self._encode("first state", self._first), place.scope.now)
        place.put(entry)
        return self.resume(engine, entry)

    async def resume(self, engine: Engine, entry: Entry) -> Entry:
        """Turn until the loop has its outcome."""
        place, data = self._place, entry.data
        assert isinstance(data, LoopData), "a loop knows its turn"
        turn, raw, at = data.turn, data.state, data.at
        bases = Bases(data, self._keep)
        names = engine.journal.names.open(place.location, place.scope.names, turn, max(self._keep, self._interval))
        while True:
            names.turn = turn
            scope = self._scope(engine, turn, at, names)
            outcome, error = await self._turn(engine, scope, raw, turn)
            if error is not None:
                entry.fail(pack_error(error, engine.codec), engine.clock.time())
                break
            at = scope.now
            turn += 1
            if isinstance(outcome, Break):
                value = cast("Break[object]", outcome).value
                entry.complete(self._encode("value", value, self._value_hint), engine.clock.time())
                break
            following = self._next_state(engine, outcome, raw, turn - 1)
            if following != raw:
                raw = following
                bases.change(turn, raw, at)
            if engine.state.public is not None or place.scope.firing is not None:
                note_turn(place.scope, place.location, self._location(turn))
            if not turn % BREATH:
                await anyio.lowlevel.checkpoint()
            if turn % self._interval == 0:
                self._store(engine, entry, bases, names, turn, raw, at)
                await engine.parking.flush()
        self._store(engine, entry, bases, names, turn, raw, at)
        names.end()
        await engine.parking.flush()
        return entry

    async def recall(self, reader: Reader, entry: Entry) -> None:
        """Do nothing: the whole outcome is in the entry."""

    async def walk(self, walker: Walker, entry: Entry) -> None:
        """Do nothing: the turns may be pruned, so their handlers are always known by name. See `check_handler`."""

    def outcome(self, entry: Entry) -> Any:
        if entry.error is not None:
            raise self._place.failure(entry.error)
        assert entry.value is not None, "a completed loop has a value"
        return self._place.decode(entry.value, self._value_hint)

    # A turn.

    def _scope(self, engine: Engine, turn: int, at: float, names: NameTable) -> Scope:
        place = self._place
        label = f"{escape(place.name)}/~{turn}"
        scope = Scope(engine, self._location(turn), at, parent=place.scope, label=label, names=names)
        scope.in_loop = True
        return scope

    async def _turn(self, engine: Engine, scope: Scope, raw: bytes, turn: int) -> tuple[Any, Exception | None]:
        """Call the body once; return its value, or its failure."""
        place = self._place
        state = place.decode(raw, self._state_hint)
        before = cancellations()
        token = current_scope.set(scope)
        outcome: Any = None
        error: Exception | None = None
        try:
            outcome = await self._body(scope, state)
        except BaseException as failure:
            # If the body fails, the loop fails.
            if isinstance(failure, anyio.get_cancelled_exc_class()):
                scope.forgotten()
            if not is_failure_of_scope(failure, engine.life):
                raise
            error = as_exception(failure, f"turn {turn} of {place.what}")
        finally:
            current_scope.reset(token)
        if error is not None:
            # A cancellation that is not delivered yet would be raised by the commit that records this, and hide it.
            await take_back_cancellations(engine.life, before)
        if not scope.end(error):
            await engine.life.never()
        return outcome, error

    def _next_state(self, engine: Engine, outcome: object, raw: bytes, turn: int) -> bytes:
        if isinstance(outcome, Continue):
            return self._encode("state", cast("Continue[object]", outcome).state)
        what = f"turn {turn} of {self._place.what} returned"
        if outcome is not None:
            problem = f"{what} {type(outcome).__name__}; a body returns Continue(state) or Break(value)"
            raise engine.life.mistake(DefinitionError(problem))
        if engine.codec.decode(raw, self._state_hint) is not None:
            problem = f"{what} None, and the loop has a state; return Continue(state) or Break(value)"
            raise engine.life.mistake(DefinitionError(problem))
        return raw

    def _encode(self, what: str, value: object, hint: object = None) -> bytes:
        engine = self._place.engine
        try:
            return engine.codec.encode(value, self._state_hint if hint is None else hint)
        except CodecError as error:
            raise engine.life.mistake(about(f"the {what} of {self._place.what}", error)) from None

    def _location(self, turn: int) -> bytes:
        """Where the turn's entries are: (..., loop, (loop, turn))."""
        if self._index is None:
            _, own = split_last(self._place.location)
            (index,) = segments(own)
            assert isinstance(index, int), "a loop has a name"
            self._index = index
        return self._place.location + pack_pair(self._index, turn)

    def _store(
        self, engine: Engine, entry: Entry, bases: Bases, names: NameTable, turn: int, state: bytes, at: float
    ) -> None:
        """Store the state, and prune the turns that are over, except for the last few."""
        place, journal, before = self._place, engine.journal, entry.data
        assert isinstance(before, LoopData), "a loop knows its turn"
        data, last, row = bases.store(turn, state, at, self._interval)
        entry.data = data
        place.put(entry)
        fold(place.scope, place.location)
        if data.first > before.first:
            first, end = self._location(before.first), self._location(data.first)
            journal.history.clear_turns(first, end, shown=engine.state.public is not None)
            given_back = min(data.first, turn - GIVEN_BACK_TURNS)
            if journal.takings and given_back > 0:
                journal.takings.settle_turns(self._location(0), self._location(given_back))
            names.prune(data.first)
        if last is not None:
            journal.history.keep_bases(self._location(last), row)


def _break_hint(hint: object) -> object:
    """T, of a body that returns `Continue[S] | Break[T] | None`; Any if it does not say."""
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Break:
            return get_args(part)[0]
    return Any
