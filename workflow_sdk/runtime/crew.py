"""Tasks for what a runtime runs: as in a task group, with a fraction of its time and memory.

A task group keeps a handle of each task, which says when it has begun, ended, and with what; nobody asks here, and
there is a task for every instance. What makes a group worth having stays: no task outlives it, whoever cancels it
cancels them, shields hold, and an error that a task lets out ends them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import current_token

__all__ = ["Crew", "crew_of"]

Work = Callable[[], Coroutine[Any, Any, None]]


class Crew(Protocol):
    """Who does things side by side."""

    def spawn(self, fn: Work) -> None:
        """Have something done in a task of its own."""
        ...

    def cancel(self) -> None:
        """Cancel all of it, and whatever comes later."""
        ...


def crew_of(group: TaskGroup) -> Crew:
    """The crew that works as long as the group is open."""
    native = current_token().native_token
    return _AsyncioCrew(group, native) if isinstance(native, asyncio.AbstractEventLoop) else _GroupCrew(group)


class _GroupCrew:
    """Where tasks can only be had of a group."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group

    def spawn(self, fn: Work) -> None:
        self._group.start_soon(fn)

    def cancel(self) -> None:
        self._group.cancel_scope.cancel()


class _AsyncioCrew:
    """Plain tasks of asyncio, each in a scope by which it is cancelled with the group."""

    def __init__(self, group: TaskGroup, loop: asyncio.AbstractEventLoop) -> None:
        self._group = group
        self._loop = loop
        self._scopes: dict[asyncio.Task[None], anyio.CancelScope] = {}
        self._is_over = False
        self._ends = self._done  # one for all
        group.start_soon(self._until_cancelled)

    def spawn(self, fn: Work) -> None:
        scope = anyio.CancelScope()
        if self._is_over:
            scope.cancel()
        task = self._loop.create_task(self._run(scope, fn))
        self._scopes[task] = scope
        task.add_done_callback(self._ends)

    @staticmethod
    async def _run(scope: anyio.CancelScope, fn: Work) -> None:
        work = fn()
        del fn  # what it holds is not needed any more
        with scope:
            await work

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._scopes[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._group.start_soon(_raise, error)

    def cancel(self) -> None:
        self._is_over = True
        for scope in list(self._scopes.values()):
            scope.cancel()

    async def _until_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self.cancel()
            with anyio.CancelScope(shield=True):
                while self._scopes:
                    await asyncio.wait(list(self._scopes))


async def _raise(error: BaseException) -> None:
    raise error
