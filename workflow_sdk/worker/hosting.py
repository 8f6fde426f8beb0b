"""The task group of a runtime. One task may open it, and another task may close it.

A task group of anyio belongs to the task that it was entered in. But a runtime may be opened at the start of a test or
of a server and closed at its end, by a fixture or a hook that runs in a new task each time. On asyncio the group
therefore lives in a task of its own. It still does what a task group is for: no task in it outlives it, and an error
that leaves the group ends the block around which it was opened. On trio, the plain group of anyio is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import current_token

# Tasks for what a runtime runs: as in a task group, but with a fraction of its time and memory.
#
# A task group of anyio keeps a record of each task: when it began and ended, and with what. Nobody needs that here, and
# there is a task for every instance. What a task group promises still holds: no task outlives it, cancelling it cancels
# them, shields work, and an error in one task ends them all.


Work = Callable[[], Coroutine[Any, Any, None]]


class Crew(Protocol):
    """A group of tasks."""

    def spawn(self, fn: Work) -> None:
        """Run something in a task of its own."""
        ...

    def cancel(self) -> None:
        """Cancel all tasks, and those that are spawned later."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """Whether all tasks are being cancelled, by `cancel` or by asyncio itself, which knows no cancel scopes."""
        ...


def crew_of(group: TaskGroup) -> Crew:
    """Make a crew whose tasks live as long as this task group is open."""
    native = current_token().native_token
    return _AsyncioCrew(group, native) if isinstance(native, asyncio.AbstractEventLoop) else _GroupCrew(group)


class _GroupCrew:
    """Tasks of the group itself, for event loops other than asyncio's."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group

    def spawn(self, fn: Work) -> None:
        self._group.start_soon(fn)

    def cancel(self) -> None:
        self._group.cancel_scope.cancel()

    @property
    def is_cancelled(self) -> bool:
        return self._group.cancel_scope.cancel_called


class _AsyncioCrew:
    """Plain tasks of asyncio, each in a scope by which it is cancelled with the group.

    One task of the group supervises them all. When a task ends, asyncio calls `_done`, in which nothing of anyio works:
    to anyio, a callback runs in no event loop. So the callback only notes an error, and the supervisor raises it.
    """

    def __init__(self, group: TaskGroup, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._scopes: dict[asyncio.Task[None], anyio.CancelScope | None] = {}
        """The cancel scope of each task; None for a task that has not begun."""
        self._errors: list[BaseException] = []
        self._failed = asyncio.Event()
        self._is_over = False
        self._supervisor: asyncio.Task[Any] | None = None
        self._ends = self._done  # one bound method for all tasks, instead of a new one for each
        group.start_soon(self._supervise)

    def spawn(self, fn: Work) -> None:
        task = self._loop.create_task(self._run(fn))
        self._scopes[task] = None
        task.add_done_callback(self._ends)

    async def _run(self, fn: Work) -> None:
        work = fn()
        del fn  # it may hold large objects, which are not needed while the work runs
        with anyio.CancelScope() as scope:
            task = asyncio.current_task()
            assert task is not None, "this is one"
            self._scopes[task] = scope
            # `cancel` was called before this task had its first turn, and so had a scope.
            if self._is_over:
                scope.cancel()
            await work

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._scopes[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._errors.append(error)
            self._is_over = True
            self._failed.set()

    def cancel(self) -> None:
        self._is_over = True
        for scope in list(self._scopes.values()):
            if scope is not None:
                scope.cancel()

    @property
    def is_cancelled(self) -> bool:
        # An event loop that is closed cancels every task that there is.
        return self._is_over or (self._supervisor is not None and self._supervisor.cancelling() > 0)

    async def _supervise(self) -> None:
        """Wait for the first error or for the end of the group; cancel all tasks; raise what they raised."""
        self._supervisor = asyncio.current_task()
        try:
            await self._failed.wait()
        finally:
            self.cancel()
            # Shielded, since the group is being cancelled now: no task may outlive it. A task may spawn another one.
            with anyio.CancelScope(shield=True):
                while self._scopes:
                    await asyncio.wait(list(self._scopes))
            if len(self._errors) > 1:
                raise BaseExceptionGroup("several tasks failed", self._errors)
            if self._errors:
                raise self._errors[0]


_log = logging.getLogger("workflow_sdk.runtime")


class Hosting(Protocol):
    """Opens and closes one task group."""

    async def open(self) -> TaskGroup:
        """Open the group."""
        ...

    async def close(self) -> None:
        """Cancel the tasks of the group, return once they have ended, and raise the error that left the group."""
        ...


def new_hosting() -> Hosting:
    """Make a hosting for the event loop that runs now. Its group is not open yet."""
    native = current_token().native_token
    return _AsyncioHosting() if isinstance(native, asyncio.AbstractEventLoop) else _GroupHosting()


class _GroupHosting:
    """A plain task group, for event loops other than asyncio's."""

    def __init__(self) -> None:
        self._group = anyio.create_task_group()

    async def open(self) -> TaskGroup:
        return await self._group.__aenter__()

    async def close(self) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)


class _AsyncioHosting:
    """A task group that lives in a task of its own, so that any task may close it."""

    def __init__(self) -> None:
        self._owner = asyncio.current_task()
        self._group = anyio.create_task_group()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._has_cancelled = False
        """Whether the group has failed, and the task that opened it was cancelled for that."""

    async def open(self) -> TaskGroup:
        opened = asyncio.Event()
        self._task = asyncio.create_task(self._host(opened))
        self._task.add_done_callback(self._ended)
        try:
            await opened.wait()
        except BaseException:
            await self.close()
            raise
        return self._group

    async def _host(self, opened: asyncio.Event) -> None:
        async with self._group:
            opened.set()
            if not self._is_closing:
                await anyio.sleep_forever()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._is_closing:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # The task that opened the group may have ended, as that of a fixture does. Then only `close` raises this.
            _log.error("a runtime has stopped, since one of its tasks failed", exc_info=error)
        if self._owner is not None and not self._owner.done():
            self._has_cancelled = True
            self._owner.cancel()

    async def close(self) -> None:
        task = self._task
        assert task is not None, "it was opened"
        self._is_closing = True
        self._group.cancel_scope.cancel()
        cancelled: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):
            # A shield does not keep off a cancellation by asyncio itself. So that is caught, and raised once the group
            # ended.
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as error:
                    cancelled = error
        if self._has_cancelled and self._owner is not None and self._owner is asyncio.current_task():
            # `_ended` has cancelled this task, only to end the block around the group. That block is over.
            self._owner.uncancel()
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure
        if cancelled is not None:
            raise cancelled
