"""Reads: in the event loop if reads have been short of late, and else in the thread of their connection.

Mostly, a workflow asks for few rows, which are in the memory of the process already. Reading them takes less time than
waking a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import ParamSpec, TypeVar

from workflow_drivers.sqlite._file import ReadSession
from workflow_drivers.sqlite._pace import Pace
from workflow_drivers.sqlite._thread import ConnectionThread

P = ParamSpec("P")
T = TypeVar("T")

SHORT_SECONDS = 0.0001
"""How long a read may hold up the event loop."""
HERE_ROWS_MAX = 64
"""A scan of more rows than this is made in the thread."""

Peeked = Callable[[Sequence[tuple[bytes, "bytes | None"]], "Exception | None", float], None]


class Reader:
    """Reads through one connection. Each sees the state of the last commit."""

    def __init__(self, session: ReadSession, thread: ConnectionThread) -> None:
        self._session = session
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(SHORT_SECONDS, possible=session.settings.inline)
        # How many reads the thread was given, and how many it has done. While they differ, the thread may be using the
        # connection. Each is counted by one thread only, so no lock is needed. A read that is cancelled is still done.
        self._given = 0
        self._done = 0

    async def get(self, key: bytes) -> bytes | None:
        """The value of `key`."""
        if self._may_be_here():
            try:
                value = self._timed(partial(self._session.get, key, patient=False), here=True)
            except Exception:  # noqa: BLE001  # it is tried again in the thread, which has the time to wait
                pass
            else:
                await asyncio.sleep(0)
                return value
        return await self._in_thread(self._session.get, key)

    async def scan(self, begin: bytes, end: bytes, limit: int | None, reverse: bool) -> list[tuple[bytes, bytes]]:
        """The rows from `begin` up to `end`, at most `limit` of them."""
        if self._may_be_here():
            is_small = limit is not None and limit <= HERE_ROWS_MAX
            most = limit if is_small else HERE_ROWS_MAX + 1
            try:
                rows = self._timed(partial(self._session.scan, begin, end, most, reverse, patient=False), here=True)
            except Exception:  # noqa: BLE001  # as above
                rows = None
            if rows is not None and (is_small or len(rows) <= HERE_ROWS_MAX):
                await asyncio.sleep(0)
                return rows
        return await self._in_thread(self._session.scan, begin, end, limit, reverse)

    def peek(self, keys: Sequence[bytes], peeked: Peeked) -> None:
        """Have `peeked` called in the event loop with the values of those keys, if anything was committed."""
        self._given += 1
        self._thread.post(partial(self._peek, keys, peeked))

    def _peek(self, keys: Sequence[bytes], peeked: Peeked) -> None:
        """In the thread."""
        began = monotonic()
        values: list[tuple[bytes, bytes | None]] = []
        error: Exception | None = None
        try:
            values = self._session.peek(keys)
        except Exception as caught:  # noqa: BLE001  # whatever it is, those who wait must hear of it
            error = caught
        self._done += 1
        self._loop.call_soon_threadsafe(peeked, values, error, monotonic() - began)

    async def close(self) -> None:
        """Close the connection, after what the thread was given before."""
        self._thread.post(self._session.leave)
        await self._thread.close()

    def _may_be_here(self) -> bool:
        return self._pace.is_short and self._given == self._done

    async def _in_thread(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._given += 1
        return await self._thread.call(self._counted, partial(read, *args, **kwargs))

    def _counted(self, read: Callable[[], T]) -> T:
        """In the thread."""
        try:
            return self._timed(read, here=False)
        finally:
            self._done += 1

    def _timed(self, read: Callable[[], T], *, here: bool) -> T:
        began = monotonic()
        try:
            return read()
        finally:
            self._pace.note(monotonic() - began, here=here)
