"""Worker threads for steps that are plain functions: so many and no more, and none that keeps the process.

A plain function can't be stopped. Whoever waits for it may give up, after a timeout or when the worker shuts down; the
thread runs on, and counts until the function returns. On asyncio the threads are therefore our own: those of anyio
would not count any more, and the process could not end before the last of them has. Those of trio are as ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from functools import partial
from inspect import iscoroutine
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any
from weakref import finalize

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio._core import _eventloop as anyio_loop

Scoped = Callable[[anyio.CancelScope | None], AbstractContextManager[object]]

_claim: Any = getattr(anyio_loop, "claim_worker_thread", None)
_locals: Any = getattr(anyio_loop, "threadlocals", None)
_set_library: Any = getattr(anyio_loop, "set_current_async_library", None)


@contextmanager
def in_worker_thread(loop: asyncio.AbstractEventLoop) -> Generator[Scoped]:
    """While the thread that runs this is a worker thread of the loop."""
    if _claim is None or _locals is None:
        yield nullcontext
        return
    with _claim(anyio_loop.get_async_backend("asyncio"), loop):
        yield _scoped


@contextmanager
def _scoped(scope: anyio.CancelScope | None) -> Generator[None]:
    """While a function runs that may ask whether it is still wanted."""
    _locals.current_cancel_scope = scope
    try:
        yield
    finally:
        del _locals.current_cancel_scope


def forget_the_loop() -> None:
    """In a context that was copied from a task: the thread that will run in it runs no event loop."""
    if _set_library is not None:
        _set_library(None)
        return
    try:
        from sniffio import current_async_library_cvar  # only older versions of anyio need it
    except ImportError:
        return
    current_async_library_cvar.set(None)


_log = logging.getLogger("workflow_sdk.runtime")

THREADS_MAX = 40
"""Steps that are plain functions and run at once, unless a runtime says something else."""
IDLE_SECONDS = 10.0
"""After which a thread that has nothing to do ends, when the next one is needed."""


class Threads:
    """The worker threads of one event loop."""

    def __init__(self, most: int = THREADS_MAX) -> None:
        self.most: int = most
        self._limiter = anyio.CapacityLimiter(most)
        self._idle: deque[tuple[_Worker, float]] = deque()
        self._is_closed = False
        finalize(self, _end_all, self._idle)

    def take(self, call: Call) -> bool:
        """Have a thread at once, if one is free."""
        try:
            self._limiter.acquire_on_behalf_of_nowait(call)
        except anyio.WouldBlock:
            return False
        return True

    async def wait(self, call: Call) -> None:
        """Have a thread when it is our turn."""
        await self._limiter.acquire_on_behalf_of(call)

    def give_back(self, call: Call) -> None:
        """Have no use for it any more."""
        self._limiter.release_on_behalf_of(call)

    async def run(self, call: Call) -> Any:
        """What the function returns or raises, in the thread that it was given. Whoever gives up leaves it there."""
        native = anyio.lowlevel.current_token().native_token
        try:
            if isinstance(native, asyncio.AbstractEventLoop):
                with anyio.CancelScope() as call.scope:
                    await self._begin(call, native)
            else:
                # There a limiter is told when the function is over, whether or not anybody waits for it.
                self.give_back(call)
                await anyio.to_thread.run_sync(call.run, abandon_on_cancel=True, limiter=self._limiter)
        except anyio.get_cancelled_exc_class():
            # What is there is recorded, even if the time is up in the same moment: that cancellation comes again.
            if not call.has_outcome or anyio.current_effective_deadline() != -float("inf"):
                call.abandon()
                raise
        if not call.has_outcome:
            # The function has asked, and was told that it is cancelled; so are we.
            await anyio.lowlevel.checkpoint_if_cancelled()
        return call.result()

    def _begin(self, call: Call, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        landed = loop.create_future()
        self._next(loop).jobs.put(_Job(call, copy_context(), partial(self._landed, call, landed)))
        return landed

    def _next(self, loop: asyncio.AbstractEventLoop) -> _Worker:
        if not self._idle:
            worker = _Worker(loop)
            worker.start()
            return worker
        worker, _ = self._idle.pop()
        now = monotonic()
        while self._idle and self._idle[0][1] + IDLE_SECONDS < now:
            self._idle.popleft()[0].jobs.put(None)
        return worker

    def _landed(self, call: Call, landed: asyncio.Future[None], worker: _Worker) -> None:
        """In the event loop: a function has returned or raised."""
        self.give_back(call)
        if not landed.done():
            landed.set_result(None)
        if self._is_closed:
            worker.jobs.put(None)
        else:
            self._idle.append((worker, monotonic()))

    def close(self) -> None:
        """No more is to be done. Threads that are idle end; the others do when they can, or with the process."""
        self._is_closed = True
        if left := int(self._limiter.borrowed_tokens):
            _log.warning("%d plain functions have not returned; their threads are left behind", left)
        _end_all(self._idle)


def _end_all(idle: deque[tuple[_Worker, float]]) -> None:
    while idle:
        idle.pop()[0].jobs.put(None)


class Call:
    """A plain function, which has a thread or waits for one, and what has come of it."""

    __slots__ = ("_args", "_error", "_fn", "_has_returned", "_is_abandoned", "_value", "scope")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._fn = fn
        self._args = args
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._has_returned = False
        self.scope: anyio.CancelScope | None = None
        """Whose cancellation the function may ask for, by `anyio.from_thread.check_cancelled`."""

    def run(self) -> None:
        """Call it, in the thread, and keep what comes of it: no future takes every exception, and trio no coroutine."""
        try:
            self._value = self._fn(*self._args)
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            self._error = error
        self._has_returned = True
        if self._is_abandoned:
            self._drop()

    @property
    def has_outcome(self) -> bool:
        """Whether the function is over, and not since it was cancelled."""
        return self._has_returned and not isinstance(self._error, anyio.get_cancelled_exc_class())

    def result(self) -> Any:
        """What it returned or raised."""
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    def abandon(self) -> None:
        """Nobody wants the result, if there will be one."""
        self._is_abandoned = True
        if self._has_returned:
            self._drop()

    def _drop(self) -> None:
        value, self._value = self._value, None
        if iscoroutine(value):
            value.close()  # nobody is going to await it


class _Job:
    """A call on its way to a thread and back."""

    __slots__ = ("_call", "_context", "_landed")

    def __init__(self, call: Call, context: Context, landed: Callable[[_Worker], None]) -> None:
        self._call = call
        self._context = context
        self._landed = landed
        context.run(forget_the_loop)

    @property
    def scope(self) -> anyio.CancelScope | None:
        """Whose cancellation the function may ask for."""
        return self._call.scope

    def run(self, worker: _Worker, loop: asyncio.AbstractEventLoop) -> bool:
        """Call the function, and tell the event loop; whether there still is one."""
        self._context.run(self._call.run)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._landed, worker)
            return True
        return False


class _Worker(Thread):
    """A thread of ours. The process ends without asking it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="workflow_sdk step", daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._loop = loop

    def run(self) -> None:
        with in_worker_thread(self._loop) as scoped:
            while (job := self.jobs.get()) is not None:
                with scoped(job.scope):
                    goes_on = job.run(self, self._loop)
                del job  # and what it returned, while there is nothing to do
                if not goes_on:
                    return


_threads: anyio.lowlevel.RunVar[Threads] = anyio.lowlevel.RunVar("workflow_sdk_threads")


def threads_of_the_loop() -> Threads:
    """Those of runs that stand alone, in one event loop."""
    try:
        return _threads.get()
    except LookupError:
        threads = Threads()
        _threads.set(threads)
        return threads
