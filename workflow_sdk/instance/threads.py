"""Worker threads for steps that are plain functions: a limited number, and none keeps the process from ending.

A plain function can't be stopped. If its caller gives up, after a timeout or when the worker shuts down, the thread
runs on, and counts against the limit until the function returns. On asyncio the threads are therefore our own: those of
anyio would not count any more, and the process could not end before all of them have. On trio, those of anyio will do.
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
    """Mark the current thread as a worker thread of the loop inside the block, so that `anyio.from_thread` works."""
    if _claim is None or _locals is None:
        yield nullcontext
        return
    with _claim(anyio_loop.get_async_backend("asyncio"), loop):
        yield _scoped


@contextmanager
def _scoped(scope: anyio.CancelScope | None) -> Generator[None]:
    """Let a function in the block ask, through anyio, whether this scope is cancelled."""
    _locals.current_cancel_scope = scope
    try:
        yield
    finally:
        del _locals.current_cancel_scope


def forget_the_loop() -> None:
    """Mark the current context, which was copied from a task, as one without an event loop."""
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
"""How many plain functions may run at the same time, by default."""
IDLE_SECONDS = 10.0
"""How long a thread is kept without work. It is ended when another one is taken."""


class Threads:
    """The worker threads of one event loop."""

    def __init__(self, most: int = THREADS_MAX) -> None:
        self.most: int = most
        self._limiter = anyio.CapacityLimiter(most)
        self._idle: deque[tuple[_Worker, float]] = deque()
        self._is_closed = False
        finalize(self, _end_all, self._idle)

    def take(self, call: Call) -> bool:
        """Take a thread for a call; False if none is free."""
        try:
            self._limiter.acquire_on_behalf_of_nowait(call)
        except anyio.WouldBlock:
            return False
        return True

    async def wait(self, call: Call) -> None:
        """Wait for a free thread and take it."""
        await self._limiter.acquire_on_behalf_of(call)

    def give_back(self, call: Call) -> None:
        """Give back the thread of a call."""
        self._limiter.release_on_behalf_of(call)

    async def run(self, call: Call) -> Any:
        """Run the call in its thread; return or raise what the function does. If cancelled, leave it running."""
        native = anyio.lowlevel.current_token().native_token
        try:
            if isinstance(native, asyncio.AbstractEventLoop):
                with anyio.CancelScope() as call.scope:
                    await self._begin(call, native)
            else:
                # On trio, the limiter counts a thread until its function is over, even if nobody waits for it.
                self.give_back(call)
                await anyio.to_thread.run_sync(call.run, abandon_on_cancel=True, limiter=self._limiter)
        except anyio.get_cancelled_exc_class():
            # If the function has just ended, its outcome is recorded even so: the cancellation comes again at the next
            # `await`.
            if not call.has_outcome or anyio.current_effective_deadline() != -float("inf"):
                call.abandon()
                raise
        if not call.has_outcome:
            # The function has asked whether it is cancelled, and ended for that. This task is cancelled, too.
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
        """Take back the thread of a function that has ended. This is called in the event loop."""
        self.give_back(call)
        if not landed.done():
            landed.set_result(None)
        if self._is_closed:
            worker.jobs.put(None)
        else:
            self._idle.append((worker, monotonic()))

    def close(self) -> None:
        """End the idle threads. The others end when their functions return, or with the process."""
        self._is_closed = True
        if left := int(self._limiter.borrowed_tokens):
            _log.warning("%d plain functions have not returned; their threads are left behind", left)
        _end_all(self._idle)


def _end_all(idle: deque[tuple[_Worker, float]]) -> None:
    while idle:
        idle.pop()[0].jobs.put(None)


class Call:
    """One call of a plain function, which has a thread or waits for one, and its outcome."""

    __slots__ = ("_args", "_error", "_fn", "_has_returned", "_is_abandoned", "_value", "scope")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._fn = fn
        self._args = args
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._has_returned = False
        self.scope: anyio.CancelScope | None = None
        """The scope that the function asks about with `anyio.from_thread.check_cancelled`."""

    def run(self) -> None:
        """Call the function, in the thread, and keep its outcome, which futures and trio can't always hand over."""
        try:
            self._value = self._fn(*self._args)
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            self._error = error
        self._has_returned = True
        if self._is_abandoned:
            self._drop()

    @property
    def has_outcome(self) -> bool:
        """Whether the function has ended, and not because it was cancelled."""
        return self._has_returned and not isinstance(self._error, anyio.get_cancelled_exc_class())

    def result(self) -> Any:
        """Return or raise what the function did."""
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    def abandon(self) -> None:
        """Drop the outcome, now or when the function ends, since nobody wants it."""
        self._is_abandoned = True
        if self._has_returned:
            self._drop()

    def _drop(self) -> None:
        value, self._value = self._value, None
        if iscoroutine(value):
            value.close()  # nobody is going to await it


class _Job:
    """A call that is given to a thread, with the context in which it runs."""

    __slots__ = ("_call", "_context", "_landed")

    def __init__(self, call: Call, context: Context, landed: Callable[[_Worker], None]) -> None:
        self._call = call
        self._context = context
        self._landed = landed
        context.run(forget_the_loop)

    @property
    def scope(self) -> anyio.CancelScope | None:
        """The scope that the function asks about."""
        return self._call.scope

    def run(self, worker: _Worker, loop: asyncio.AbstractEventLoop) -> bool:
        """Call the function, and tell the event loop; False if there is no event loop any more."""
        self._context.run(self._call.run)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._landed, worker)
            return True
        return False


class _Worker(Thread):
    """One worker thread. It is a daemon, so the process can end without it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="workflow_sdk step", daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._loop = loop

    def run(self) -> None:
        with in_worker_thread(self._loop) as scoped:
            while (job := self.jobs.get()) is not None:
                with scoped(job.scope):
                    goes_on = job.run(self, self._loop)
                del job  # so that its outcome is not kept in memory while the thread waits
                if not goes_on:
                    return


_threads: anyio.lowlevel.RunVar[Threads] = anyio.lowlevel.RunVar("workflow_sdk_threads")


def threads_of_the_loop() -> Threads:
    """The threads of the current event loop, for runs without a runtime."""
    try:
        return _threads.get()
    except LookupError:
        threads = Threads()
        _threads.set(threads)
        return threads
