"""The driver: its methods, and the poll that finds what other processes have changed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from workflow_drivers.sqlite._file import ReadSession
from workflow_drivers.sqlite._queue import CommitQueue
from workflow_drivers.sqlite._reader import Reader
from workflow_drivers.sqlite._thread import ConnectionThread, finished
from workflow_drivers.sqlite._transact import Transactions
from workflow_drivers.sqlite._url import parse
from workflow_drivers.sqlite._watch import Waiter, end_all, notice, notice_writes
from workflow_drivers.sqlite._writing import WriteSession
from workflow_sdk.driver import Batch, Waiters, check_limits
from workflow_sdk.errors import DefinitionError, StorageError

T = TypeVar("T")

# What other processes commit is found by asking: often at first, since an answer tends to come soon, and then seldom.
POLL_SECONDS_MIN = 0.001
POLL_SECONDS_MAX = 0.05
# With many keys to read, a poll takes long. This keeps it to a twentieth of the time of the reader's thread.
POLL_REST = 20


class SqliteDriver:
    """A store in an SQLite file, open in one event loop of asyncio. Made by `open`."""

    def __init__(
        self, reads: ReadSession, reader: ConnectionThread, writes: WriteSession, writer: ConnectionThread
    ) -> None:
        # Two connections, so that reads don't wait for the disk behind commits. A read is a transaction of its own that
        # begins after all commits that have returned, so it sees them.
        self._reader = Reader(reads, reader)
        self._writes = writes
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._queue = CommitQueue(writes, writer, self._committed)
        self._transactions = Transactions(writes, self._committed)
        self._watch = Waiters[Waiter]()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        """When the timer is due."""
        self._polling = False
        self._interval = POLL_SECONDS_MIN
        self._closing: asyncio.Task[None] | None = None

    @property
    def transactions(self) -> int:
        """How many transactions were committed; under load, far fewer than batches."""
        return self._writes.transactions

    async def describe(self) -> dict[str, str]:
        """The file, how it is written, and its size: for people who look after it."""
        self._check_open()
        return await self._writer.call(self._writes.describe)

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None."""
        self._check_open()
        return await self._reader.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it, in byte order (or its reverse), of one state."""
        self._check_open()
        return await self._reader.scan(begin, end, limit, reverse)

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch, whole and durably, or raise: ConflictError if a check did not hold.

        If this is cancelled while the batch waits for its turn, nothing is applied. Later, it returns when decided.
        """
        self._check_open()
        size = check_limits(batch)
        if batch:
            await self._queue.commit(batch, size)

    async def transact(self, fn: Callable[[sqlite3.Connection], T], finish: Callable[[T], Batch], /) -> None:
        """Call `fn` with a connection in a transaction, and apply the batch that `finish` makes of it in the same one.

        `fn` runs in the thread of the connection, which is for this alone. As long as it does, nobody else writes.
        """
        self._check_open()
        await self._transactions.transact(fn, finish)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value of `key` differs from `since`, whichever process changed it."""
        self._check_open()
        waiter = Waiter(since, self._loop.create_future())
        self._watch.add(key, waiter)  # before the look at the value, so that nothing falls between the two
        try:
            if await self._reader.get(key) != since:
                return
            self._poll_soon()
            await waiter.future
        finally:
            self._watch.discard(key, waiter)
        if waiter.error is not None:
            raise waiter.error

    async def sibling(self) -> SqliteDriver:
        """Another handle of the same file, for the event loop of another thread."""
        self._check_open()
        # It has to find the same files: within a process, SQLite shares the index of a log, even of a deleted one.
        writes = WriteSession(self._writes.settings, self._writes)
        return await _open(ReadSession(self._writes.settings, writes), writes)

    async def aclose(self) -> None:
        """Finish what is in flight and close the file. Even if it is cancelled, the file is closed at the end."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await finished(self._closing)

    async def _close(self) -> None:
        end_all(self._watch, self._closed_error())
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._reader.close()
        finally:
            try:
                await self._transactions.close()
            finally:
                self._queue.hand_over()
                self._writer.post(self._writes.leave)
                await self._writer.close()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise self._closed_error()

    def _closed_error(self) -> StorageError:
        return StorageError(f"the store {str(self._writes.settings.path)!r} has been closed")

    def _committed(self, batches: Sequence[Batch]) -> None:
        if self._watch.by_key:
            for batch in batches:
                notice_writes(self._watch, batch.writes)

    # The poll. It is made of callbacks, not a task, so that nothing is left of it when nobody waits or the loop ends.

    def _poll_soon(self) -> None:
        self._interval = POLL_SECONDS_MIN
        if self._polling or self._closing is not None:
            return
        due = self._loop.time() + POLL_SECONDS_MIN
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._poll_at(due)

    def _poll_at(self, due: float) -> None:
        # The time is kept here, because the handle that uvloop returns for a time that is very near has no `when()`.
        self._due = due
        self._timer = self._loop.call_at(due, self._poll)

    def _poll(self) -> None:
        self._timer = None
        if self._watch and self._closing is None:
            self._polling = True
            # A key that somebody begins to wait for from now on is not asked for here, but its waiter reads it first.
            self._reader.peek(list(self._watch.by_key), self._peeked)

    def _peeked(self, values: Sequence[tuple[bytes, bytes | None]], error: Exception | None, took: float) -> None:
        self._polling = False
        if error is not None:
            end_all(self._watch, error)
        found = notice(self._watch, values)
        self._interval = POLL_SECONDS_MIN if found else min(2 * self._interval, POLL_SECONDS_MAX)
        if self._watch and self._closing is None:
            self._poll_at(self._loop.time() + max(self._interval, POLL_REST * took))


async def open(url: str) -> SqliteDriver:
    """Open the store that `url` names, and make the file if there is none."""
    settings = parse(url)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise DefinitionError(f"{url!r} can only be opened in an event loop of asyncio; memory:// is for all") from None
    writes = WriteSession(settings)
    reads = ReadSession(settings, writes)
    opening = asyncio.ensure_future(_open(reads, writes))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        reads.abandoned = writes.abandoned = True
        with suppress(StorageError):
            driver = await finished(opening)
            await driver.aclose()
        raise


async def _open(reads: ReadSession, writes: WriteSession) -> SqliteDriver:
    # The writer first: it makes the tables that the reader looks for.
    writer = ConnectionThread(writes.connect)
    await writer.open()
    try:
        reader = ConnectionThread(reads.connect)
        await reader.open()
    except BaseException:
        writer.post(writes.leave)
        await writer.close()
        raise
    return SqliteDriver(reads, reader, writes, writer)
