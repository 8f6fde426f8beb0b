"""What comes out of an author's function: a failure of it, or something that is on its way to someone else.

A cancellation of ours passes through, and so do KeyboardInterrupt and GeneratorExit. Anything else is a failure of the
function, whether or not it is an `Exception`: the `SystemExit` of a command line, the panic of an extension, or a
cancellation that nobody asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any, TypeVar, cast

import anyio

from workflow_sdk.driver import ProcessDied
from workflow_sdk.errors import CriticalError
from workflow_sdk.operations.engine import Life
from workflow_sdk.operations.types import Unwound
from workflow_sdk.values.failures import message_of

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
    """The failure of a part of a workflow as an error that an author may catch, and a group of errors may hold."""
    if isinstance(error, Exception):
        return error
    said = message_of(error)
    failure = CriticalError(f"{what} raised {type(error).__name__}" + (f": {said}" if said else ""))
    failure.__cause__ = error
    return failure


def asyncio_task() -> asyncio.Task[Any] | None:
    """The task that runs, if the event loop is asyncio's. Elsewhere nothing but a scope cancels."""
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
        # Nearly every short step ends like this.
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
    """How often the task that runs was cancelled, as far as nobody has taken that back."""
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
"""After so many, it is not somebody who cancels, but what is called that can't be finished."""


async def come_what_may(fn: Callable[[], Awaitable[object]]) -> BaseException | None:
    """Call `fn`, and let no cancellation end it; the cancellation that came meanwhile, for the caller to raise.

    A shield keeps off cancel scopes. It does not keep off a task of asyncio being cancelled, as `asyncio.timeout`, a
    task group of asyncio or the end of the event loop do it: then `fn` is called again, and has to bear that.
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
