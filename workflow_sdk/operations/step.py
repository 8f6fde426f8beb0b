"""`ctx.step`: run a function once, durably."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from contextlib import closing
from functools import partial
from hashlib import blake2b
from inspect import CO_COROUTINE, isawaitable, iscoroutine, iscoroutinefunction
from types import FunctionType
from typing import Any, TypeVar

import anyio.lowlevel

from workflow_sdk.core.entries import Entry, EntryTrouble, RetryData
from workflow_sdk.core.failures import describe, pack_error_info
from workflow_sdk.core.hints import has_parameter, return_hint
from workflow_sdk.core.retry import RetryAt, decide, seconds
from workflow_sdk.core.status import EntryStatus, Kind
from workflow_sdk.core.times import AHEAD_SECONDS
from workflow_sdk.definitions import Step, StepOptions
from workflow_sdk.errors import (
    CodecError,
    CriticalError,
    RollbackError,
    StepCriticalError,
    StepError,
    StepExhaustedError,
    StepTimeoutError,
)
from workflow_sdk.operations.cancelling import contained, is_failure
from workflow_sdk.operations.engine import Engine, Wait
from workflow_sdk.operations.outcome import about, pack_error, unpack_error
from workflow_sdk.operations.place import BREATH, COMMIT_BYTES_SOFT_MAX, Place, register
from workflow_sdk.operations.rollback import check_handler, register_handler
from workflow_sdk.operations.scope import Scope, current_scope

KEY = "idempotency_key"
"""A parameter of this name is given the key."""

RIDING_MAX = 500
"""So many records of repeatable steps wait for a commit to ride with, and no more."""

__all__ = [
    "KEY",
    "TimedOut",
    "attempt",
    "failed",
    "is_async",
    "is_final",
    "replay",
    "settle",
    "start_step",
    "wait_for_retry",
    "warily",
    "watched",
    "with_key",
]


T = TypeVar("T")


def start_step(
    scope: Scope, name: str, fn: Callable[..., Any], args: tuple[Any, ...], options: StepOptions, *, derived: bool
) -> Coroutine[Any, Any, Any]:
    """Register a step; its coroutine runs it."""
    place = register(scope, Kind.STEP, name, derived=derived)
    if derived:
        place.arguments = args if type(fn) is FunctionType else (*_arguments_in(fn), *args)
    if options.rollback is not None:
        check_handler(place, options.rollback)
    return scope.start(_step(place, fn, args, options))


async def _step(place: Place, fn: Callable[..., Any], args: tuple[Any, ...], options: StepOptions) -> Any:
    scope = place.scope
    engine = scope.engine
    try:
        if not place.open():
            await engine.never()
        entry = place.entry
        hint = return_hint(fn)
        if entry is not None:
            if entry.is_final:
                await place.breathe()
                return replay(place, entry, hint, options)
            if engine.walking:
                await engine.never()
            await wait_for_retry(place, entry, options)
        else:
            entry = place.new_entry()
        while True:
            failure: BaseException
            if not options.repeatable and engine.journal.riding != engine.journal.settled:
                await settle(place)
            try:
                if engine.wary:
                    value = await warily(engine, place.location, place.path, attempt(engine, place, fn, args, options))
                else:
                    value = await attempt(engine, place, fn, args, options)
                raw, value = engine.codec.roundtrip(value, hint)
            except CodecError as error:
                failure = about(f"the value of {place.what}", error)
            except BaseException as error:
                # Whatever the author's function raises is the step's failure.
                if not is_failure(error):
                    raise
                failure = error
            else:
                if engine.journal.weight > COMMIT_BYTES_SOFT_MAX:
                    await place.make_room()
                entry.complete(raw, engine.now())
                if options.rollback is not None:
                    register_handler(place, options.rollback, value, hint)
                place.put(entry)
                if options.repeatable:
                    await _ride(place)
                else:
                    await place.flush()
                place.close(entry)
                return value
            await failed(place, entry, failure, options)
    finally:
        place.release()


async def _ride(place: Place) -> None:
    """The record of a repeatable step goes with the next commit. There are not too many of them in one."""
    journal = place.scope.engine.journal
    journal.riding += 1
    if not journal.riding % BREATH:
        # It may be one of thousands, none of which waits for anything.
        await anyio.lowlevel.checkpoint()
    if journal.riding - journal.settled >= RIDING_MAX:
        await settle(place)


async def settle(place: Place) -> None:
    """Return once the records of repeatable steps are stored. What they gave may be handed to code that is not."""
    engine = place.scope.engine
    journal = engine.journal
    riding = journal.riding
    await place.flush()
    journal.settled = max(journal.settled, riding)
    if engine.halted or engine.draining or place.scope.fate.lost:
        # Meanwhile: nothing new begins.
        await engine.never()


def replay(place: Place, entry: Entry, hint: object, options: StepOptions) -> Any:
    """The recorded outcome."""
    engine = place.scope.engine
    place.close(entry)
    if options.rollback is not None and not place.scope.in_loop:
        engine.remember_handler(place.location, options.rollback, hint)
    if entry.error is not None:
        raise place.failure(entry.error)
    assert entry.value is not None, "a completed step has a value"
    return place.decode(entry.value, hint)


def _arguments_in(fn: object) -> list[object]:
    """What a function has been given already: by `partial`, or as a method of a value."""
    found: list[object] = []
    while isinstance(fn, (partial, Step)):
        if isinstance(fn, partial):
            found[:0] = [*fn.args, *sorted(fn.keywords.items())]
            fn = fn.func
        else:
            fn = fn.fn
    owner = getattr(fn, "__self__", None)
    # What may be a member of a set by its value. Of other objects, such as services, what they hold may change.
    if isinstance(owner, Hashable) and type(owner).__hash__ is not object.__hash__ and owner is not None:
        found.insert(0, owner)
    return found


async def warily(engine: Engine, location: bytes, path: str, attempted: Coroutine[Any, Any, T]) -> T:
    """Do what workers may have died of: that it is begun is stored before."""
    try:
        with closing(attempted):  # it may never begin
            await engine.note_try(location, path)
            return await attempted
    finally:
        engine.survived(location)


class TimedOut(Exception):
    """An attempt took longer than the step's timeout."""


async def attempt(
    engine: Engine, place: Place | None, fn: Callable[..., Any], args: tuple[Any, ...], options: StepOptions
) -> Any:
    """Call an author's function once, in the time that it has."""
    if engine.watched is not None and place is not None:
        await watched(engine, place.path)
    if place is not None and has_parameter(fn, KEY, len(args)):
        fn = with_key(engine, place.path, fn)
    token = current_scope.set(place)
    try:
        if options.timeout is None:
            return await call(engine, fn, args)
        limit = seconds(options.timeout, "timeout")
        # The time of an attempt begins when it has the thread that it runs in.
        run = None if is_async(fn) else await engine.thread_for(unwrapped(fn), args)
        with engine.time_limit(limit) as timing:
            try:
                return await call(engine, fn, args) if run is None else await _awaited(await run())
            except BaseException as error:
                if timing.cancel_called and is_failure(error, lambda: True):
                    # The function made an error of its own of being cancelled.
                    raise TimedOut(f"an attempt took longer than {limit:g} s") from error
                raise
        assert timing.cancelled_caught, "only a timeout comes here"
        raise TimedOut(f"an attempt took longer than {limit:g} s")
    finally:
        current_scope.reset(token)


def with_key(engine: Engine, path: str, fn: Callable[..., Any], *, undoes: bool = False) -> Callable[..., Any]:
    """The function with its idempotency key: the same for every attempt of an operation, and for no other one.

    What was undone and happens again is another one: whoever knows the key by now would do nothing.
    """
    fn = unwrapped(fn)
    salt = b"undo" if undoes else b""
    restarts = engine.facts.restarts
    what = f"{restarts}\0{path}" if restarts else path
    digest = blake2b(what.encode(), key=engine.facts.seed, person=KEY.encode(), salt=salt, digest_size=16).hexdigest()
    return partial(fn, **{KEY: digest})


async def watched(engine: Engine, path: str) -> None:
    """Tell the test that watches; it may not want anything to be called."""
    if engine.watched is not None:
        if engine.watched.dry:
            await engine.never()
        engine.watched.calls(path, engine.facts.generation)


async def call(engine: Engine, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call an author's function: a coroutine function here, a plain one in a worker thread."""
    fn = unwrapped(fn)
    if type(fn) is FunctionType and fn.__code__.co_flags & CO_COROUTINE:
        return await contained(fn(*args))
    return await _awaited(fn(*args) if is_async(fn) else await (await engine.thread_for(fn, args))())


def unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, without its options as a step."""
    while isinstance(fn, Step):
        fn = fn.fn
    return fn


async def _awaited(value: Any) -> Any:
    """What was returned. A lambda around a coroutine function is a plain function that returns a coroutine."""
    if iscoroutine(value):
        return await contained(value)
    return await value if isawaitable(value) else value


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine, as far as can be seen."""
    while isinstance(fn, (partial, Step)):
        fn = fn.func if isinstance(fn, partial) else fn.fn
    return iscoroutinefunction(fn) or iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004  # the method itself is wanted, not whether there is one


def is_final(failure: BaseException, options: StepOptions) -> bool:
    """Whether another attempt would not mend it."""
    if isinstance(failure, TimedOut):
        return not options.retry_on_timeout
    return not isinstance(failure, Exception) or isinstance(failure, (CriticalError, CodecError, options.no_retry))


async def failed(place: Place, entry: Entry, failure: BaseException, options: StepOptions) -> None:
    """Record a failed attempt, and wait for the next; raise what the author sees if there is none."""
    engine = place.scope.engine
    now = engine.now()
    timed_out = isinstance(failure, TimedOut)
    final = isinstance(failure, RollbackError) or is_final(failure, options)
    decision = decide(
        attempts=entry.attempts,
        retries=options.retries,
        final=final,
        backoff=options.backoff,
        now=now,
        chance=engine.chance(),
    )
    info = describe(TimeoutError(str(failure)) if timed_out else failure, engine.codec)
    if isinstance(decision, RetryAt):
        entry.wait(RetryData(decision.when))
        engine.journal.trouble(
            place.location, EntryTrouble(place.path, entry.attempts, now, pack_error_info(info, engine.codec))
        )
        place.put(entry)
        if decision.when <= now:
            # There is no wait that would store it: without this, a worker that dies in the next attempt is forgotten.
            await place.flush()
        await wait_for_retry(place, entry, options)
        return
    outcome: Exception
    if isinstance(failure, RollbackError):
        outcome = failure
    else:
        kind: type[StepError] = StepTimeoutError if timed_out else StepCriticalError if final else StepExhaustedError
        outcome = kind(place.name, place.path, entry.attempts, info)
    raw = pack_error(outcome, engine.codec)
    entry.data = None
    entry.fail(raw, now)
    place.put(entry)
    await place.flush()
    place.close(entry)
    raise unpack_error(raw, engine.codec)


async def wait_for_retry(place: Place, entry: Entry, options: StepOptions) -> None:
    """Park until the next attempt is due, and count it."""
    scope = place.scope
    engine = scope.engine
    if isinstance(entry.data, RetryData):
        due = entry.data.retry_at
        if due > (latest := engine.now() + options.backoff.longest) + AHEAD_SECONDS:
            # A clock that is ahead of ours has said when it is due.
            due = latest
        while engine.now() < due:
            await engine.park(Wait(place.location, "retry", place.name, place.path, due, entry=entry))
        entry.data = None
        entry.status = EntryStatus.RUNNING
        entry.attempts += 1
