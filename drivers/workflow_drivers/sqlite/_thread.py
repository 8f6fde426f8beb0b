"""A thread that owns an SQLite connection, and the ways to have something done there."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, cast

import aiosqlite

P = ParamSpec("P")
T = TypeVar("T")


class ConnectionThread(aiosqlite.Connection):
    """An `aiosqlite` connection that is given whole pieces of work.

    Each call of `aiosqlite` is a hop to its thread and back, some 20 us, and a transaction would be five of them or
    more. Its public interface has no way to run a function there, so this uses what lies under that interface:
    `_execute`, `_tx` (the thread's queue of futures and functions; without a future nobody waits) and `_thread`.
    Nothing outside this class does.
    """

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        # A program that forgot to close its store is to end all the same. SQLite keeps the file whole whenever it does.
        self._thread.daemon = True

    async def open(self) -> None:
        """Start the thread and connect; if that fails, the thread has ended."""
        try:
            await self
        except Exception:
            self._thread.join()
            raise

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns or raises, run in the thread. Cancelled, it runs all the same, unheard."""
        run: Callable[..., Awaitable[T]] = cast("Any", self)._execute  # noqa: SLF001  # our base class's, without types
        return await run(function, *args, **kwargs)

    def post(self, function: Callable[[], object]) -> None:
        """Have `function` run in the thread, after what it was given before. It must report by itself."""
        self._tx.put_nowait((None, function))  # pyright: ignore[reportUnknownMemberType]  # of futures without a type

    async def close(self) -> None:
        """Close the connection after what the thread was given before, and see the thread end."""
        try:
            await super().close()
        finally:
            self._thread.join()  # at most the few instructions after its last report
