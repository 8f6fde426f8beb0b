"""Cancelling a call at each of the moments at which it is suspended, one after the other.

A call is run in a task of its own. Every time that this task, or one that comes of it, gives way to the event loop, is
a moment: whatever it awaits there, an event, a driver's future or a thread. The call is cancelled at one of them; and
it is called again for each of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import anyio
from anyio.lowlevel import current_token

from tests.patience import PATIENCE

__all__ = ["HOWS", "Cancelled", "How", "cancelled_at"]

Call = Callable[[], Awaitable[object]]

STILL_SECONDS = 0.05
"""Where what the call awaits does not come, it is cancelled after so long."""


class How(Enum):
    """Who cancels, and when."""

    SCOPE = "scope"
    """A cancel scope around the call, before what it awaits has come."""
    TASK = "task"
    """Somebody who cancels the task, as the end of an event loop of asyncio does it, and its timeouts."""
    TASK_LATE = "task late"
    """The same, when what the call awaits has just come."""


HOWS = tuple(How)


@dataclass
class Cancelled:
    """What became of a call."""

    has_come: bool
    """Whether the call has come to the moment at all."""
    moments: int
    was_cancelled: bool = False
    """Else it has come to its end all the same."""
    value: object = None
    error: BaseException | None = None
    tasks: list[asyncio.Task[Any]] = field(default_factory=list[asyncio.Task[Any]])
    """The tasks of the call, where somebody has to look after them."""

    @property
    def left(self) -> list[str]:
        """Tasks that have outlived the call."""
        return [repr(task) for task in self.tasks if not task.done()]


async def cancelled_at(moment: int, how: How, call: Call) -> Cancelled:
    """Call, and cancel the call at one of its moments; they are counted from 1."""
    if hasattr(current_token().native_token, "run_sync_soon"):
        from tests.laws.cancelling.moments_in_trio import cancelled_in_trio  # only where there is trio

        return await cancelled_in_trio(moment, call)
    return await _Moments(moment, how).run(call)


_current: ContextVar[_Moments | None] = ContextVar("_current", default=None)


class _Moments:
    """The moments of one call, on asyncio."""

    def __init__(self, moment: int, how: How) -> None:
        self._moment = moment
        self._how = how
        self._count = 0
        self._task: asyncio.Task[object] | None = None
        self._scope: anyio.CancelScope | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._has_come = False
        self._is_cancelled = False

    async def run(self, call: Call) -> Cancelled:
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        context = copy_context()
        context.run(_current.set, self)
        loop.set_task_factory(self._factory)
        try:
            self._task = loop.create_task(self._call(call), context=context)
            done, _ = await asyncio.wait([self._task], timeout=PATIENCE)
            assert done, f"cancelled at moment {self._moment} of {self._count}, it does not end"
        finally:
            loop.set_task_factory(before)
        for _ in range(5):
            await asyncio.sleep(0)
        found = Cancelled(self._has_come, self._count, self._task.cancelled(), tasks=self._tasks)
        if not found.was_cancelled:
            found.error = self._task.exception()
            found.value = None if found.error is not None else self._task.result()
        return found

    async def _call(self, call: Call) -> object:
        if self._how is not How.SCOPE:
            return await call()
        value: object = None
        with anyio.CancelScope() as self._scope:
            value = await call()
        if self._scope.cancelled_caught:
            raise asyncio.CancelledError
        return value

    def _factory(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        context: Context | None = options.get("context")
        current = _current.get() if context is None else context.get(_current)
        if current is not self:
            return asyncio.Task(coro, loop=loop, **options)
        task: asyncio.Task[Any] = asyncio.Task(_Counted(coro, self), loop=loop, **options)
        self._tasks.append(task)
        return task

    def suspended(self, awaited: object) -> None:
        """A task of the call gives way."""
        if self._has_come or (self._task is not None and self._task.done()):
            return
        self._count += 1
        if self._count != self._moment:
            return
        self._has_come = True
        loop = asyncio.get_running_loop()
        if self._how is How.TASK_LATE and isinstance(awaited, asyncio.Future):
            # Before the task itself is told of it.
            awaited.add_done_callback(self._cancel)
            loop.call_later(STILL_SECONDS, self._cancel)
        else:
            loop.call_soon(self._cancel)

    def _cancel(self, _: object = None) -> None:
        if self._is_cancelled or self._task is None:
            return
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()
        else:
            self._task.cancel()


class _Counted(Coroutine[Any, Any, Any]):
    """A coroutine that is told of when it gives way. Everything else is that of the coroutine."""

    def __init__(self, coro: Coroutine[Any, Any, Any], moments: _Moments) -> None:
        self._coro = coro
        self._moments = moments

    def send(self, value: Any) -> Any:
        """Go on."""
        awaited = self._coro.send(value)
        self._moments.suspended(awaited)
        return awaited

    def throw(self, *error: Any) -> Any:
        """Go on with an error."""
        awaited = self._coro.throw(*error)
        self._moments.suspended(awaited)
        return awaited

    def close(self) -> None:
        """End it."""
        self._coro.close()

    def __await__(self) -> Any:
        return self._coro.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)
