"""`ctx.loop`: repeat a body, with state, and a history that does not grow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

import anyio
import anyio.lowlevel

from workflow_sdk.core.bases import Bases
from workflow_sdk.core.entries import Entry, LoopData
from workflow_sdk.core.hints import parameter_hint, return_hint
from workflow_sdk.core.location import escape, pack_pair, segments, split_last
from workflow_sdk.core.names import NameTable
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Kind
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.operations.cancelling import (
    as_exception,
    cancellations,
    is_failure_of_scope,
    take_back_cancellations,
)
from workflow_sdk.operations.outcome import about, pack_error
from workflow_sdk.operations.place import BREATH, Place, register
from workflow_sdk.operations.scope import Scope, current_scope

GIVEN_BACK_TURNS = 20
"""If the loop is in a branch that loses a race, the messages of so many turns are given back, even if their history is
gone. Those of earlier ones are used up, so that they do not pile up.
"""

__all__ = ["Break", "Continue", "LoopSettings", "start_loop"]

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


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How often a loop stores its state, and how many turns of history it keeps."""

    commit_interval: int = 20
    history_keep: int | None = None

    def problem(self) -> str | None:
        """Why the settings can't be, or None."""
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
        raise place.slip(f"{place.what}: {problem}")
    place.check_function(body)
    return scope.start(_loop(place, _Turns(place, body, run, settings), state))


async def _loop(place: Place, turns: _Turns, state: object) -> Any:
    engine = place.scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        if entry is None:
            entry = place.new_entry()
            entry.data = LoopData(0, turns.encode(state, "first state"), place.scope.now)
            place.put(entry)
        if not entry.is_final:
            if engine.walking:
                await engine.never()
            await turns.run(entry)
        place.close(entry)
        if entry.error is not None:
            raise place.failure(entry.error)
        assert entry.value is not None, "a completed loop has a value"
        return place.decode(entry.value, turns.value_hint)
    finally:
        place.release()


class _Turns:
    """The turns of one loop."""

    def __init__(self, place: Place, body: Callable[..., Any], run: Body, settings: LoopSettings) -> None:
        self.place = place
        self.engine = place.scope.engine
        self.body = run
        self.interval = settings.commit_interval
        self.keep = settings.commit_interval if settings.history_keep is None else settings.history_keep
        self.state_hint = parameter_hint(body, 1)
        self.value_hint = _break_hint(return_hint(body))
        self.index: int | None = None
        """That of the loop's name, once it has a place."""

    def encode(self, value: object, what: str, hint: object = None) -> bytes:
        try:
            return self.engine.codec.encode(value, self.state_hint if hint is None else hint)
        except CodecError as error:
            raise self.engine.slip(about(f"the {what} of {self.place.what}", error)) from None

    async def run(self, entry: Entry) -> None:
        """Turn until the loop has its outcome."""
        place, data = self.place, entry.data
        assert isinstance(data, LoopData), "a loop knows its turn"
        turn, raw, at = data.turn, data.state, data.at
        bases = Bases(data, self.keep)
        names = self.engine.journal.names.open(place.location, place.scope.names, turn, max(self.keep, self.interval))
        label = escape(place.name)
        while True:
            names.turn = turn
            where = f"{label}/~{turn}"
            scope = Scope(self.engine, self.turn_location(turn), at, parent=place.scope, label=where, names=names)
            scope.in_loop = True
            state = place.decode(raw, self.state_hint)
            before = cancellations()
            try:
                outcome = await self.one(scope, state)
            except BaseException as failure:
                # The author's body failed, and so does the loop.
                if not is_failure_of_scope(failure, self.engine):
                    raise
                error = as_exception(failure, f"turn {turn} of {place.what}")
                # One that is not delivered yet would come out of the commit that records this, and hide it.
                await take_back_cancellations(self.engine, before)
                if not scope.end(error):
                    await self.engine.never()
                entry.fail(pack_error(error, self.engine.codec), self.engine.now())
                break
            if not scope.end():
                await self.engine.never()
            at = scope.now
            if isinstance(outcome, Break):
                value = cast("Break[object]", outcome).value
                entry.complete(self.encode(value, "value", self.value_hint), self.engine.now())
                turn += 1
                break
            following = self.next_state(outcome, raw, turn)
            turn += 1
            if following != raw:
                raw = following
                bases.change(turn, raw, at)
            if self.engine.world is not None:
                place.scope.note_turn(place.location, self.turn_location(turn))
            if not turn % BREATH:
                await anyio.lowlevel.checkpoint()
            if turn % self.interval == 0:
                self.store(entry, bases, names, turn, raw, at)
                await place.flush()
        self.store(entry, bases, names, turn, raw, at)
        names.end()
        await place.flush()

    async def one(self, scope: Scope, state: object) -> Any:
        token = current_scope.set(scope)
        try:
            return await self.body(scope, state)
        except anyio.get_cancelled_exc_class():
            scope.forgotten()
            raise
        finally:
            current_scope.reset(token)

    def next_state(self, outcome: object, raw: bytes, turn: int) -> bytes:
        if isinstance(outcome, Continue):
            return self.encode(cast("Continue[object]", outcome).state, "state")
        what = f"turn {turn} of {self.place.what} returned"
        if outcome is not None:
            raise self.engine.slip(
                DefinitionError(f"{what} {type(outcome).__name__}; a body returns Continue(state) or Break(value)")
            )
        if self.engine.codec.decode(raw, self.state_hint) is not None:
            raise self.engine.slip(
                DefinitionError(f"{what} None, and the loop has a state; return Continue(state) or Break(value)")
            )
        return raw

    def turn_location(self, turn: int) -> bytes:
        """Where the turn's entries are: (..., loop, (loop, turn))."""
        if self.index is None:
            _, own = split_last(self.place.location)
            (index,) = segments(own)
            assert isinstance(index, int), "a loop has a name"
            self.index = index
        return self.place.location + pack_pair(self.index, turn)

    def store(self, entry: Entry, bases: Bases, names: NameTable, turn: int, state: bytes, at: float) -> None:
        """Store the state, and forget the turns that are over, but for the last few."""
        journal, before = self.engine.journal, entry.data
        assert isinstance(before, LoopData), "a loop knows its turn"
        data, last, row = bases.store(turn, state, at, self.interval)
        entry.data = data
        self.place.put(entry)
        self.place.fold()
        if data.first > before.first:
            first, end = self.turn_location(before.first), self.turn_location(data.first)
            journal.clear_turns(first, end, shown=self.engine.world is not None)
            given_back = min(data.first, turn - GIVEN_BACK_TURNS)
            if journal.takings and given_back > 0:
                journal.settle_turns(self.turn_location(0), self.turn_location(given_back))
            names.prune(data.first)
        if last is not None:
            journal.keep_bases(self.turn_location(last), row)


def _break_hint(hint: object) -> object:
    """T, of a body that returns `Continue[S] | Break[T] | None`; Any if it does not say."""
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Break:
            return get_args(part)[0]
    return Any
