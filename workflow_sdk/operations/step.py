"""`ctx.step`: run a function once, durably."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from types import FunctionType
from typing import Any, cast

import anyio.lowlevel

from workflow_sdk.definitions import StepOptions, StepOverrides, Workflow, as_step_options, function_name, is_function
from workflow_sdk.errors import (
    CodecError,
    DefinitionError,
    RollbackError,
    StepCriticalError,
    StepError,
    StepExhaustedError,
    StepTimeoutError,
)
from workflow_sdk.operations.calling import KEY, TimedOut, arguments_in, call, is_failure, is_final, retried, with_key
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import BREATH, COMMIT_BYTES_SOFT_MAX, Place, about, make_room, register
from workflow_sdk.operations.rollback import check_handler, register_handler
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.template import perform
from workflow_sdk.operations.types import Wait
from workflow_sdk.operations.waiting import wait_for
from workflow_sdk.rows.entries import Entry, EntryTrouble, RetryData
from workflow_sdk.rows.status import EntryStatus, Kind
from workflow_sdk.rows.wire import AHEAD_SECONDS, shown
from workflow_sdk.values.failures import describe, pack_error_info
from workflow_sdk.values.hints import has_parameter, return_hint

# What steps and transactions have in common: both call a function of the author.


_NOTHING = object()
"""Stands for the value of a function that this run has not called: only the recorded one is known."""


class FunctionVerb:
    """An operation that calls a function until it succeeds or has no attempt left."""

    __slots__ = ("_make", "args", "fn", "hint", "options", "place", "record", "value")

    record: Entry

    def __init__(
        self,
        place: Place,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        options: StepOptions,
        make: Callable[[FunctionVerb, Engine], Awaitable[BaseException | None]],
    ) -> None:
        self.place: Place = place
        self.fn: Callable[..., Any] = fn
        self.args: tuple[Any, ...] = args
        self.options: StepOptions = options
        self.hint: object = return_hint(fn)
        self.value: Any = _NOTHING
        """The value that the function has returned in this run, once it is recorded."""
        self._make = make
        """Makes one attempt; returns None once its success is in `record` and stored, or the failure."""

    # As a verb.

    def begin(self, engine: Engine) -> Awaitable[Entry]:
        """Call it for the first time."""
        self.record = self.place.new_entry()
        return retried(engine, self)

    async def resume(self, engine: Engine, entry: Entry) -> Entry:
        """Go on with its attempts."""
        self.record = entry
        await self._until_due(engine)
        return await retried(engine, self)

    def outcome(self, entry: Entry) -> Any:
        """Return the value, as it was the first time, or raise the recorded failure."""
        if self.value is not _NOTHING:
            return self.value
        place, handler = self.place, self.options.rollback
        if handler is not None and not place.scope.in_loop:
            place.engine.remember_handler(place.location, handler, self.hint)
        if entry.error is not None:
            raise place.failure(entry.error)
        assert entry.value is not None, "a completed step has a value"
        return place.decode(entry.value, self.hint)

    # As a `Retried`.

    @property
    def attempts(self) -> int:
        """How often it was tried."""
        return self.record.attempts

    def is_final(self, failure: BaseException) -> bool:
        """Whether another attempt would not mend a failure."""
        return isinstance(failure, RollbackError) or is_final(failure, self.options)

    def attempt(self, engine: Engine) -> Awaitable[BaseException | None]:
        """Call it once."""
        return self._make(self, engine)

    async def again(self, engine: Engine, failure: BaseException, when: float) -> None:
        """Record a failed attempt, and return when it is to be tried again."""
        place, entry, now = self.place, self.record, engine.clock.time()
        entry.wait(RetryData(when))
        error = pack_error_info(_described(failure, engine), engine.codec)
        engine.journal.history.trouble(place.location, EntryTrouble(place.path, entry.attempts, now, error))
        place.put(entry)
        if when <= now:
            # Without a wait before the next attempt, nothing else stores this failure. If the worker then died in that
            # attempt, the count of attempts would be lost.
            await engine.parking.flush()
        await self._until_due(engine)

    async def _until_due(self, engine: Engine) -> None:
        """Park until the next attempt is due, and count it."""
        entry = self.record
        if not isinstance(entry.data, RetryData):
            return
        due = entry.data.retry_at
        if due > (latest := engine.clock.time() + self.options.backoff.longest) + AHEAD_SECONDS:
            # A clock that is ahead of ours has said when it is due.
            due = latest
        await wait_for(engine, Wait(self.place, "retry", due, entry=entry))
        entry.data = None
        entry.status = EntryStatus.RUNNING
        entry.attempts += 1

    async def give_up(self, engine: Engine, failure: BaseException) -> None:
        """Record the failure that the author sees."""
        place, entry = self.place, self.record
        outcome: Exception
        if isinstance(failure, RollbackError):
            outcome = failure
        else:
            kind: type[StepError] = StepCriticalError if self.is_final(failure) else StepExhaustedError
            if isinstance(failure, TimedOut):
                kind = StepTimeoutError
            outcome = kind(place.name, place.path, entry.attempts, _described(failure, engine))
        entry.data = None
        await place.fail(engine, entry, outcome)


async def settle(place: Place, engine: Engine) -> None:
    """Return once the records of repeatable steps are stored. What they gave may be handed to code that is not."""
    journal = engine.journal
    riding = journal.riding
    await engine.parking.flush()
    journal.settled = max(journal.settled, riding)
    if engine.life.draining or not place.acts:
        # Meanwhile: nothing new begins.
        await engine.life.never()


def _described(failure: BaseException, engine: Engine) -> Any:
    """A failure as it is stored and shown. The engine's own timeout is shown as a `TimeoutError`."""
    return describe(TimeoutError(str(failure)) if isinstance(failure, TimedOut) else failure, engine.codec)


RIDING_MAX = 500
"""How many records of repeatable steps may wait for another commit to take them along."""


def start_step(scope: Scope, call: tuple[Any, ...], overrides: StepOverrides) -> Coroutine[Any, Any, Any]:
    """Register a step; its coroutine runs it. `call` is the function and its arguments, maybe with a name before."""
    name, fn, args = _taken_apart(call)
    derived = name is None
    if not is_function(fn):
        raise _no_function(scope, fn, name)
    try:
        options = as_step_options(fn, overrides)
    except DefinitionError as error:
        raise scope.engine.life.mistake(error) from None
    place = register(scope, Kind.STEP, function_name(fn) if derived else name, derived=derived)
    if derived:
        place.arguments = args if type(fn) is FunctionType else (*arguments_in(fn), *args)
    if options.rollback is not None:
        check_handler(place, options.rollback)
    return scope.start(perform(place, FunctionVerb(place, fn, args, options, _attempt)))


def _taken_apart(call: tuple[Any, ...]) -> tuple[Any, Any, tuple[Any, ...]]:
    """The name, None if there is none, the function and its arguments."""
    if call and isinstance(call[0], str):
        return call[0], call[1] if len(call) > 1 else None, call[2:]
    return None, call[0] if call else None, call[1:]


def _no_function(scope: Scope, given: Any, name: str | None) -> BaseException:
    step = "step" if name is None else f"step {scope.path_of(name)!r}"
    remedy = "start it with ctx.child" if isinstance(given, Workflow) else "call ctx.step(name, fn, *args)"
    return scope.engine.life.mistake(
        DefinitionError(f"{step} has no function to run but {shown(cast('object', given))}; {remedy}")
    )


async def _attempt(step: FunctionVerb, engine: Engine) -> BaseException | None:
    """Call the function of a step once, and store its value."""
    place, options, journal = step.place, step.options, engine.journal
    if not options.repeatable and journal.riding != journal.settled:
        await settle(place, engine)
    calls = engine.calls
    is_told = engine.life.are_told
    token = current_scope.set(place)
    try:
        if is_told:
            await calls.tell(place.path, place.location)
        fn = step.fn
        if has_parameter(fn, KEY, len(step.args)):
            fn = with_key(engine, place.path, fn)
        value = await call(engine.calls, fn, step.args, options.timeout)
        raw, value = engine.codec.roundtrip(value, step.hint)
    except CodecError as error:
        return about(f"the value of {place.what}", error)
    except BaseException as error:
        # Anything that the author's function raises is a failure of the step, except what only passes through it.
        if not is_failure(error):
            raise
        return error
    finally:
        current_scope.reset(token)
        if is_told:
            calls.survived(place.location)
    if journal.unwritten.weight > COMMIT_BYTES_SOFT_MAX:
        await make_room(engine)
    step.record.complete(raw, engine.clock.time())
    if options.rollback is not None:
        register_handler(place, engine, options.rollback, value, step.hint)
    journal.history.put(place.location, step.record)
    if options.repeatable:
        await _ride(place, engine)
    else:
        await engine.parking.flush()
    step.value = value
    return None


async def _ride(place: Place, engine: Engine) -> None:
    """Leave the record of a repeatable step to the next commit; flush if too many records wait for that."""
    journal = engine.journal
    journal.riding += 1
    if not journal.riding % BREATH:
        # It may be one of thousands, none of which waits for anything.
        await anyio.lowlevel.checkpoint()
    if journal.riding - journal.settled >= RIDING_MAX:
        await settle(place, engine)
