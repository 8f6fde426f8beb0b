"""Calling functions of the author: a coroutine function here, a plain one in a worker thread; and trying again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from hashlib import blake2b
from inspect import CO_COROUTINE, isawaitable, iscoroutine, iscoroutinefunction
from types import FunctionType
from typing import Any, Protocol, TypeVar

from workflow_sdk.definitions import Step, StepOptions
from workflow_sdk.errors import CodecError, CriticalError
from workflow_sdk.operations.cancelling import contained, is_failure
from workflow_sdk.operations.engine import Engine
from workflow_sdk.rows.retry import Duration, RetryAt, decide, seconds

KEY = "idempotency_key"
"""A parameter of this name is given the key."""


class TimedOut(Exception):
    """An attempt took longer than the step's timeout."""


def call(engine: Engine, fn: Callable[..., Any], args: tuple[Any, ...], timeout: Duration | None) -> Awaitable[Any]:
    """Call an author's function once, in the time that it has. To be awaited at once."""
    if type(fn) is not FunctionType:
        fn = _unwrapped(fn)
    if timeout is not None:
        return _in_time(engine, fn, args, seconds(timeout, "timeout"))
    if type(fn) is FunctionType and fn.__code__.co_flags & CO_COROUTINE:
        return contained(fn(*args))
    return _elsewhere(engine, fn, args)


async def _in_time(engine: Engine, fn: Callable[..., Any], args: tuple[Any, ...], limit: float) -> Any:
    # The time of an attempt begins when it has the thread that it runs in.
    run = None if is_async(fn) else await engine.calls.thread_for(fn, args)
    with engine.calls.time_limit(limit) as timing:
        try:
            return await (call(engine, fn, args, None) if run is None else _awaited(await run()))
        except BaseException as error:
            if timing.cancel_called and is_failure(error, lambda: True):
                # The function made an error of its own of being cancelled.
                raise TimedOut(f"an attempt took longer than {limit:g} s") from error
            raise
    assert timing.cancelled_caught, "only a timeout comes here"
    raise TimedOut(f"an attempt took longer than {limit:g} s")


async def _elsewhere(engine: Engine, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call what is no plain coroutine function: in a thread, unless it is something that gives a coroutine."""
    return await _awaited(fn(*args) if is_async(fn) else await (await engine.calls.thread_for(fn, args))())


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


def with_key(engine: Engine, path: str, fn: Callable[..., Any], *, undoes: bool = False) -> Callable[..., Any]:
    """The function with its idempotency key, for which it has a parameter.

    The key is the same for every attempt of an operation, and for no other one. What was undone and happens again is
    another operation: whoever knows the key by now would do nothing.
    """
    salt = b"undo" if undoes else b""
    restarts = engine.facts.restarts
    what = f"{restarts}\0{path}" if restarts else path
    digest = blake2b(what.encode(), key=engine.facts.seed, person=KEY.encode(), salt=salt, digest_size=16).hexdigest()
    return partial(_unwrapped(fn), **{KEY: digest})


def arguments_in(fn: object) -> list[object]:
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


def _unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, without its options as a step."""
    while isinstance(fn, Step):
        fn = fn.fn
    return fn


R_co = TypeVar("R_co", covariant=True)


class Retried(Protocol[R_co]):
    """Something that is called until it succeeds or there is no attempt left, and that records how it goes."""

    @property
    def options(self) -> StepOptions:
        """How often it is tried, and how long after the last time."""
        ...

    @property
    def attempts(self) -> int:
        """How often it was tried, with the attempt that has just ended."""
        ...

    @property
    def record(self) -> R_co:
        """What is recorded of it by now."""
        ...

    def is_final(self, failure: BaseException) -> bool:
        """Whether another attempt would not mend a failure."""
        ...

    def attempt(self, engine: Engine) -> Awaitable[BaseException | None]:
        """Call it once. None once its success is stored, or what it failed with."""
        ...

    async def again(self, engine: Engine, failure: BaseException, when: float) -> None:
        """Record that it has failed, and return when it is to be tried again."""
        ...

    async def give_up(self, engine: Engine, failure: BaseException) -> None:
        """Record that it has failed, and is not tried again."""
        ...


async def retried(engine: Engine, work: Retried[R_co]) -> R_co:
    """Try until it succeeds or there is no attempt left; how that was recorded."""
    while (failure := await work.attempt(engine)) is not None:
        options = work.options
        decision = decide(
            attempts=work.attempts,
            retries=options.retries,
            final=work.is_final(failure),
            backoff=options.backoff,
            now=engine.clock.time(),
            chance=engine.calls.chance(),
        )
        if isinstance(decision, RetryAt):
            await work.again(engine, failure, decision.when)
        else:
            await work.give_up(engine, failure)
            break
    return work.record


def is_final(failure: BaseException, options: StepOptions) -> bool:
    """Whether another attempt of a step would not mend its failure."""
    if isinstance(failure, TimedOut):
        return not options.retry_on_timeout
    return not isinstance(failure, Exception) or isinstance(failure, (CriticalError, CodecError, options.no_retry))
