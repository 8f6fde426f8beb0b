"""Calling functions of the author: coroutine functions in the event loop, plain ones in threads; and retrying."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from inspect import CO_COROUTINE, isawaitable, iscoroutine, iscoroutinefunction
from types import FunctionType, coroutine
from typing import Any, Protocol, TypeVar, cast

import anyio

from workflow_sdk.definitions import Step, StepOptions
from workflow_sdk.driver import ProcessDied
from workflow_sdk.errors import CodecError, CriticalError
from workflow_sdk.operations.engine import Calling, Engine, Life
from workflow_sdk.operations.types import Unwound
from workflow_sdk.rows.retry import Duration, RetryAt, decide, seconds
from workflow_sdk.values.exceptions import message_of

# What an author's function raises is either a failure of it, or something that only passes through it.
#
# A cancellation by the engine passes through, and so do KeyboardInterrupt and GeneratorExit. Anything else is a failure
# of the function, whether or not it is an `Exception`: the `SystemExit` of a command line, the panic of an extension,
# or a cancellation that comes from neither a scope around the function nor its task.


T = TypeVar("T")

_NEVER = -float("inf")
_PASS = (KeyboardInterrupt, GeneratorExit, Unwound, ProcessDied)


def is_cancelled() -> bool:
    """Whether the code that is running has been cancelled: by a scope around it, or by someone who cancelled its task.

    If not, a cancellation that comes out of an author's function is a failure of that function: it awaited something
    that was cancelled.
    """
    if anyio.current_effective_deadline() == _NEVER:
        return True
    task = asyncio_task()
    return task is not None and task.cancelling() > 0


def is_failure(error: BaseException, cancelled: Callable[[], bool] = is_cancelled) -> bool:
    """Whether it is a failure of the function that it came out of. `cancelled` tells whether we are being cancelled.

    Of a function that was given a ctx, `is_failure_of_scope` tells.
    """
    if isinstance(error, Exception):
        return True
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(is_failure(one, cancelled) for one in group.exceptions)
    if isinstance(error, _PASS):
        return False
    return not (isinstance(error, anyio.get_cancelled_exc_class()) and cancelled())


def is_failure_of_scope(error: BaseException, life: Life, *, is_own_task: bool = False) -> bool:
    """The same, of a function that was given a ctx: what operations raise passes through it, too.

    `is_own_task`: no code of the author's is around the function that could have cancelled it.
    """
    if isinstance(error, Exception):
        return True
    return not life.is_broken and is_failure(error, life.is_cancelled if is_own_task else is_cancelled)


def as_exception(error: BaseException, what: str) -> Exception:
    """A failure of a part of a workflow as an `Exception`, which an author may catch and a group may hold."""
    if isinstance(error, Exception):
        return error
    said = message_of(error)
    failure = CriticalError(f"{what} raised {type(error).__name__}" + (f": {said}" if said else ""))
    failure.__cause__ = error
    return failure


def asyncio_task() -> asyncio.Task[Any] | None:
    """The task that runs, if the event loop is asyncio's; None otherwise, where only scopes cancel."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


async def contained(called: Coroutine[Any, Any, T]) -> T:
    """What the coroutine of a step returns. If it cancels the task it runs in, that is over when the step is over.

    Otherwise such a cancellation could not be told from one of ours, and would end whatever the task does next.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None:
        return await called
    try:
        yielded = called.send(None)
    except StopIteration as end:
        # The fast path: a step that ends without having waited.
        if count := task.cancelling():
            await _all_taken_back(task, count)
        value: T = end.value
        return value
    except BaseException:
        if count := task.cancelling():
            await _all_taken_back(task, count)
        raise
    return cast("T", await _contain(called, task, yielded))


@coroutine
def _contain(called: Any, task: asyncio.Task[Any], yielded: Any) -> Generator[Any, Any, Any]:
    """Run the rest of a coroutine, and count the cancellations of its task that happen while its own code runs."""
    before = own = others = 0
    try:
        while True:
            if (now := task.cancelling()) != before:
                own, others = _add(own, others, now - before)
                before = now
            thrown: BaseException | None = None
            sent: Any = None
            try:
                sent = yield yielded
            except BaseException as error:  # noqa: BLE001  # it is handed on to the coroutine, whatever it is
                thrown = error
            if (now := task.cancelling()) != before:
                others += now - before
                before = now
            yielded = called.send(sent) if thrown is None else called.throw(thrown)
    except StopIteration as end:
        return end.value
    finally:
        if (now := task.cancelling()) != before:
            own, others = _add(own, others, now - before)
        if own > 0:
            yield from _take_back(task, own)


def _add(own: int, others: int, change: int) -> tuple[int, int]:
    """The counts after the code has cancelled its task (`change` > 0), or has caught a cancellation and said so."""
    if change > 0:
        return own + change, others
    caught = min(others, -change)
    return max(own + change + caught, 0), others - caught


def _take_back(task: asyncio.Task[Any], count: int) -> Generator[Any, Any, None]:
    for _ in range(count):
        task.uncancel()
    # Before Python 3.13, one that was not delivered yet would be, with the next await.
    if not task.cancelling() and getattr(task, "_must_cancel", False):
        with suppress(asyncio.CancelledError):
            yield


def cancellations() -> int:
    """How often the task that runs was cancelled, minus what `uncancel` has taken back."""
    task = asyncio_task()
    return 0 if task is None else task.cancelling()


async def take_back_cancellations(life: Life, since: int = 0) -> None:
    """An author's function is over: what it has cancelled of its own task ends with it, unless we are cancelled.

    `since`: as often it was cancelled before.
    """
    task = asyncio_task()
    if task is not None and (count := task.cancelling() - since) > 0 and not life.is_cancelled():
        await _all_taken_back(task, count)


@coroutine
def _all_taken_back(task: asyncio.Task[Any], count: int) -> Generator[Any, Any, None]:
    yield from _take_back(task, count)


CANCELLATIONS_MAX = 100
"""After how many cancellations `come_what_may` gives up."""


async def come_what_may(fn: Callable[[], Awaitable[object]]) -> BaseException | None:
    """Call `fn` until it ends, whoever cancels; return the cancellation that came meanwhile, for the caller to raise.

    A shield keeps off cancel scopes. It does not keep off a cancellation of the asyncio task, by `asyncio.timeout`, a
    task group of asyncio or the end of the event loop. After such a cancellation `fn` is called again, so it must be
    able to begin anew.
    """
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        for _ in range(CANCELLATIONS_MAX):
            try:
                await fn()
            except anyio.get_cancelled_exc_class() as error:
                if not is_cancelled():
                    raise  # something that `fn` awaited was cancelled, and not we
                cancelled = error
            else:
                break
    return cancelled


async def until_set(event: anyio.Event) -> BaseException | None:
    """Wait for an event, whoever cancels; return the cancellation. Without one, this needs no scope of its own."""
    try:
        await event.wait()
    except anyio.get_cancelled_exc_class() as cancelled:
        return await come_what_may(event.wait) or cancelled
    return None


KEY = "idempotency_key"
"""A parameter of this name is given the key."""


class TimedOut(Exception):
    """An attempt took longer than the step's timeout."""


def call(calls: Calling, fn: Callable[..., Any], args: tuple[Any, ...], timeout: Duration | None) -> Awaitable[Any]:
    """Call an author's function once, in the time that it has. To be awaited at once."""
    if type(fn) is not FunctionType:
        fn = _unwrapped(fn)
    if timeout is not None:
        return _in_time(calls, fn, args, seconds(timeout, "timeout"))
    if type(fn) is FunctionType and fn.__code__.co_flags & CO_COROUTINE:
        return contained(fn(*args))
    return _elsewhere(calls, fn, args)


async def _in_time(calls: Calling, fn: Callable[..., Any], args: tuple[Any, ...], limit: float) -> Any:
    # The time of an attempt begins when it has the thread that it runs in.
    run = None if is_async(fn) else await calls.thread_for(fn, args)
    with calls.time_limit(limit) as timing:
        try:
            return await (call(calls, fn, args, None) if run is None else _awaited(await run()))
        except BaseException as error:
            if timing.cancel_called and is_failure(error, lambda: True):
                # The timeout has cancelled the function, which has raised another error for that.
                raise TimedOut(f"an attempt took longer than {limit:g} s") from error
            raise
    assert timing.cancelled_caught, "only a timeout comes here"
    raise TimedOut(f"an attempt took longer than {limit:g} s")


async def _elsewhere(calls: Calling, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call something that is no plain coroutine function: in a thread, unless calling it gives a coroutine."""
    return await _awaited(fn(*args) if is_async(fn) else await (await calls.thread_for(fn, args))())


async def _awaited(value: Any) -> Any:
    """What was returned. A lambda around a coroutine function is a plain function that returns a coroutine."""
    if iscoroutine(value):
        return await contained(value)
    return await value if isawaitable(value) else value


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling this gives a coroutine, as far as can be known without calling it."""
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
    """The arguments that a function has already, from `partial` or as a method of a value."""
    found: list[object] = []
    while isinstance(fn, (partial, Step)):
        if isinstance(fn, partial):
            found[:0] = [*fn.args, *sorted(fn.keywords.items())]
            fn = fn.func
        else:
            fn = fn.fn
    owner = getattr(fn, "__self__", None)
    # Only values that are hashable by value count. Other objects, such as services, may change what they hold.
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
    """Something that is called until it succeeds or has no attempt left, and that records its attempts."""

    @property
    def options(self) -> StepOptions:
        """The retries and the backoff."""
        ...

    @property
    def attempts(self) -> int:
        """How many attempts there were, with the one that has just ended."""
        ...

    @property
    def record(self) -> R_co:
        """The record of it, as it is by now."""
        ...

    def is_final(self, failure: BaseException) -> bool:
        """Whether another attempt would not mend a failure."""
        ...

    def attempt(self, engine: Engine) -> Awaitable[BaseException | None]:
        """Make one attempt. Return None once its success is stored, or the failure."""
        ...

    async def again(self, engine: Engine, failure: BaseException, when: float) -> None:
        """Record that it has failed, and return when the time for the next attempt has come."""
        ...

    async def give_up(self, engine: Engine, failure: BaseException) -> None:
        """Record that it has failed, and is not tried again."""
        ...


async def retried(engine: Engine, work: Retried[R_co]) -> R_co:
    """Make attempts until one succeeds or none is left; return the record."""
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
