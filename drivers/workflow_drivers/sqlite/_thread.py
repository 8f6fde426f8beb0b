"""A thread that owns an SQLite connection, and ways to wait for what is done there."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, cast

import aiosqlite
import anyio

P = ParamSpec("P")
T = TypeVar("T")


class ConnectionThread(aiosqlite.Connection):
    """An `aiosqlite` connection whose thread runs whole functions.

    Each call of `aiosqlite` goes to its thread and back, which takes some 20 us, and a transaction needs five calls or
    more. Its public interface has no way to run a function in the thread. So this class, and nothing outside it, uses
    what lies under that interface: `_execute`, `_thread`, and `_tx`, which is the thread's queue of futures and
    functions (without a future, nobody waits).
    """

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        # A program that forgot to close its store is to end all the same. SQLite keeps the file whole whenever it does.
        self._thread.daemon = True

    async def open(self) -> None:
        """Start the thread and connect. If that raises, the thread has ended."""
        try:
            await self
        except Exception:
            self._thread.join()
            raise

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` in the thread. If the caller is cancelled, it still runs, and its result is lost."""
        run: Callable[..., Awaitable[T]] = cast("Any", self)._execute  # noqa: SLF001  # our base class's, without types
        return await run(function, *args, **kwargs)

    def post(self, function: Callable[[], object]) -> None:
        """Have the thread run `function` after all that it was given before. It must not raise: nobody waits for it."""
        self._tx.put_nowait((None, function))  # pyright: ignore[reportUnknownMemberType]  # of futures without a type

    async def close(self) -> None:
        """Close the connection after all that the thread was given before, and wait for the end of the thread."""
        try:
            await super().close()
        finally:
            self._thread.join()  # at most the few instructions after its last report


async def finished(task: asyncio.Task[T]) -> T:
    """Wait for the end of `task`, and return its result. A cancellation of the caller is raised after that."""
    cancelled: asyncio.CancelledError | None = None
    # The scope keeps off cancellations by anyio. Those of asyncio's own come through it, any number of times.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as caught:
                cancelled = caught
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # asyncio would log an exception that nobody has asked for
        raise cancelled
    return task.result()
