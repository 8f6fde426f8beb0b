"""The task group of a runtime, which another task may close than the one that has opened it.

A task group of anyio belongs to the task that it was entered in. But a runtime may be opened at the start of a test or
of a server and closed at its end, by a fixture or a hook that has got a task of its own each time. On asyncio the group
therefore lives in a task of its own. What makes it worth having stays: nothing in it outlives it, and an error that it
lets out ends the block around which it was opened. On trio it is the group itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import current_token

_log = logging.getLogger("workflow_sdk.runtime")


class Hosting(Protocol):
    """A task group, opened and closed."""

    async def open(self) -> TaskGroup:
        """Open it."""
        ...

    async def close(self) -> None:
        """Cancel what is in it, return once that has ended, and raise what it has let out."""
        ...


def new_hosting() -> Hosting:
    """One that is not open yet."""
    native = current_token().native_token
    return _AsyncioHosting() if isinstance(native, asyncio.AbstractEventLoop) else _GroupHosting()


class _GroupHosting:
    """The group itself."""

    def __init__(self) -> None:
        self._group = anyio.create_task_group()

    async def open(self) -> TaskGroup:
        return await self._group.__aenter__()

    async def close(self) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)


class _AsyncioHosting:
    """A group in a task of its own."""

    def __init__(self) -> None:
        self._owner = asyncio.current_task()
        self._group = anyio.create_task_group()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._has_cancelled = False
        """The group has failed, and its owner was told so."""

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
            # Whoever has opened it may be over, as the task of a fixture is, and is then told only when it is closed.
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
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as error:
                    cancelled = error
        if self._has_cancelled and self._owner is not None and self._owner is asyncio.current_task():
            self._owner.uncancel()
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure
        if cancelled is not None:
            raise cancelled
