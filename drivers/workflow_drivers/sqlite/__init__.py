"""The store in an SQLite file: for one machine, any number of processes.

`sqlite:///relative.db`, `sqlite:////absolute/app.db`; options `?synchronous=full` (the default: a commit survives power
loss) or `normal` (it survives the death of the process), and `?busy_timeout=30` (seconds to wait for other processes).

Here are the URL, the methods, and the poll that finds what other processes have changed. `_queue.py` decides whether a
read or a commit is made in the event loop or in a thread, and `_transact.py` lets authors write in the transaction of a
batch. What blocks is below these: `_file.py` has the file and its connections, `_writing.py` the statements.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import TypeVar
from urllib.parse import unquote

from workflow_drivers.sqlite._file import (
    ConnectionThread,
    Session,
    Settings,
    finished,
    prepare_to_read,
    prepare_to_write,
)
from workflow_drivers.sqlite._notice import WriteNotice
from workflow_drivers.sqlite._queue import CommitQueue, Reader
from workflow_drivers.sqlite._transact import Transactions
from workflow_sdk.driver import Append, Batch, Set, Waiters, check_limits, url_options
from workflow_sdk.errors import DefinitionError, StorageError

__all__ = ["SqliteDriver", "open"]

T = TypeVar("T")

SCHEME = "sqlite://"
WORDS = {"inline": ("auto", "no"), "mode": ("rwc", "rw"), "synchronous": ("full", "normal")}
"""The options that are one of some words. The first is what they are if they are not given."""

# What other processes commit is found by asking: often at first, since an answer tends to come soon, and then seldom.
POLL_SECONDS_MIN = 0.001
POLL_SECONDS_MAX = 0.05
# From here on, a write by another process makes the poll come sooner, where the system tells of it.
NOTICE_SECONDS = 0.008
# With many keys to read, a poll takes long. This keeps it to a twentieth of the time of the reader's thread.
POLL_REST = 20

SYNCHRONOUS_NAMES = ("off", "normal", "full", "extra")
"""What the numbers mean with which SQLite answers `PRAGMA synchronous`."""


class SqliteDriver:
    """A store in an SQLite file, open in one event loop of asyncio. Made by `open`."""

    def __init__(self, reader: ConnectionThread, writer: ConnectionThread) -> None:
        # Two connections, so that reads don't wait for the disk behind commits. A read is a transaction of its own that
        # begins after all commits that have returned, so it sees them.
        self._reader = Reader(reader)
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._queue = CommitQueue(writer, self._committed)
        self._transactions = Transactions(writer.session, self._committed)
        self._watch = Waiters[tuple[bytes | None, asyncio.Future[None]]]()
        """The calls of `changed`: the value that each has seen, and the future that ends it."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        """When the timer is due."""
        self._polling = False
        self._interval = POLL_SECONDS_MIN
        path = writer.session.settings.path
        self._writes = WriteNotice(self._loop, path.with_name(f"{path.name}-wal"), self._poll_soon)
        self._closing: asyncio.Task[None] | None = None

    @property
    def transactions(self) -> int:
        """How many transactions were committed; under load, far fewer than batches."""
        return self._queue.transactions

    async def describe(self) -> dict[str, str]:
        """The file, how it is written, and its size: for people who look after it."""
        self._check_open()
        return await self._writer.call(_describe, self._writer.session)

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
        waiter = since, self._loop.create_future()
        self._watch.add(key, waiter)  # before the look at the value, so that nothing falls between the two
        try:
            if await self._reader.get(key) == since:
                self._poll_soon()
                await waiter[1]
        finally:
            self._watch.discard(key, waiter)

    async def sibling(self) -> SqliteDriver:
        """Another handle of the same file, for the event loop of another thread."""
        self._check_open()
        # It has to find the same files: within a process, SQLite shares the index of a log, even of a deleted one.
        first = self._writer.session
        return await _open(Session(first.settings, prepare_to_write, first))

    async def aclose(self) -> None:
        """Finish what is in flight and close the file. Even if it is cancelled, the file is closed at the end."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await finished(self._closing)

    async def _close(self) -> None:
        self._end_waits(self._closed_error())
        if self._timer is not None:
            self._timer.cancel()
        self._writes.close()
        try:
            await self._reader.thread.close()
        finally:
            try:
                await self._transactions.close()
            finally:
                self._queue.hand_over()
                await self._writer.close()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise self._closed_error()

    def _closed_error(self) -> StorageError:
        return StorageError(f"the store {str(self._writer.session.settings.path)!r} has been closed")

    # Who waits for a change hears of it here.

    def _committed(self, batches: Sequence[Batch]) -> None:
        """Tell of our own commits at once. Appends are left to the poll, which knows their keys."""
        if not self._watch.by_key:
            return
        writes = [*chain.from_iterable(batch.writes for batch in batches)]
        if not self._watch.touched(writes):  # as after most commits
            return
        values: dict[bytes, bytes | None] = {}
        for write in writes:
            if type(write) is not Append:
                value = write.value if type(write) is Set else None
                values.update(dict.fromkeys(self._watch.touched([write]), value))
        self._notice(values.items())

    def _notice(self, values: Iterable[tuple[bytes, bytes | None]]) -> bool:
        """End the wait of those who have seen another value of a key, and return whether there were any."""
        found = False
        for key, value in values:
            for since, future in self._watch.by_key.get(key, ()):
                if since != value and not future.done():
                    future.set_result(None)
                    found = True
        return found

    def _end_waits(self, error: Exception) -> None:
        for _, future in chain.from_iterable(self._watch.by_key.values()):
            if not future.done():
                future.set_exception(error)
                future.exception()  # asyncio would log one that nobody asks for, since the caller was cancelled

    # The poll. It is made of callbacks, not a task, so that nothing is left of it when nobody waits or the loop ends.

    def _poll_after(self, seconds: float) -> None:
        """Poll then, or sooner if that is planned already."""
        if self._polling or self._closing is not None:
            return
        due = self._loop.time() + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        # The time is kept here, because the handle that uvloop returns for a time that is very near has no `when()`.
        self._due = due
        self._timer = self._loop.call_at(due, self._poll)

    def _poll_soon(self) -> None:
        """Something may change now, or has changed: ask often for a while."""
        self._interval = POLL_SECONDS_MIN
        if self._watch:
            self._poll_after(self._interval)

    def _poll(self) -> None:
        self._timer = None
        if self._watch and self._closing is None:
            self._polling = True
            # A key that somebody begins to wait for from now on is not asked for here, but its waiter reads it first.
            self._reader.thread.post(partial(self._peek, list(self._watch.by_key)))

    def _peek(self, keys: Sequence[bytes]) -> None:
        """In the thread."""
        began = monotonic()
        values: list[tuple[bytes, bytes | None]] = []
        error: Exception | None = None
        try:
            values = self._reader.peek(keys)
        except Exception as caught:  # noqa: BLE001  # whatever it is, those who wait must hear of it
            error = caught
        self._loop.call_soon_threadsafe(self._peeked, values, error, monotonic() - began)

    def _peeked(self, values: Sequence[tuple[bytes, bytes | None]], error: Exception | None, took: float) -> None:
        self._polling = False
        if error is not None:
            self._end_waits(error)
        found = self._notice(values)
        self._interval = POLL_SECONDS_MIN if found else min(2 * self._interval, POLL_SECONDS_MAX)
        if self._watch:
            if self._interval > NOTICE_SECONDS:
                self._writes.ask()
            self._poll_after(max(self._interval, POLL_REST * took))


async def open(url: str) -> SqliteDriver:
    """Open the store that `url` names, and make the file if there is none."""
    settings = parse(url)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise DefinitionError(f"{url!r} can only be opened in an event loop of asyncio; memory:// is for all") from None
    session = Session(settings, prepare_to_write)
    opening = asyncio.ensure_future(_open(session))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        session.abandoned.set()
        with suppress(StorageError):
            driver = await finished(opening)
            await driver.aclose()
        raise


async def _open(session: Session) -> SqliteDriver:
    # The writer first: it makes the tables that the reader looks for.
    writer = ConnectionThread(session)
    await writer.open()
    try:
        reader = ConnectionThread(Session(session.settings, prepare_to_read, session))
        await reader.open()
    except BaseException:
        await writer.close()
        raise
    return SqliteDriver(reader, writer)


def parse(url: str) -> Settings:
    """The settings in a URL. Raises DefinitionError, which says what is wrong, if it can't be read."""
    location = url.removeprefix(SCHEME).partition("?")[0]
    if not url.startswith(SCHEME) or not location.startswith("/"):
        raise DefinitionError(f"write sqlite:///relative.db or sqlite:////absolute/app.db, not {url!r}")
    name = unquote(location[1:], errors="surrogateescape")
    if name == ":memory:":
        raise DefinitionError(f"{url!r} would be private to one connection; for a store in memory use memory://")
    if not name or name.endswith("/") or "\0" in name:
        raise DefinitionError(f"{url!r} names no file")
    options = url_options(url, ("busy_timeout", *WORDS))
    chosen = {name: options.get(name, words[0]) for name, words in WORDS.items()}
    chosen["synchronous"] = chosen["synchronous"].lower()
    for option, words in WORDS.items():
        if chosen[option] not in words:
            raise DefinitionError(f"{option} is one of {', '.join(words)}, not {options[option]!r}")
    # Absolute from now on: the process may change its directory while the store is open.
    path = Path(name).absolute()
    busy_timeout = _seconds(options.get("busy_timeout", "30"))
    return Settings(path, chosen["synchronous"], busy_timeout, chosen["mode"], chosen["inline"] == "auto")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not isfinite(seconds) or seconds < 0:
        raise DefinitionError(f"busy_timeout is a number of seconds, not {text!r}")
    return seconds


def _describe(session: Session) -> dict[str, str]:
    """The file as it is: what SQLite answers, not what the settings ask for."""
    try:
        mode, number, pages, page = (
            # With a cursor of its own: a commit may be under way in another thread.
            session.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "page_count", "page_size")
        )
    except sqlite3.Error as error:
        raise session.failure("read", error) from error
    path = session.settings.path
    log = path.with_name(f"{path.name}-wal")
    logged = f", and {log.stat().st_size:,} in the log" if log.exists() else ""
    return {
        "file": str(path),
        "journal": f"{mode}, synchronous {SYNCHRONOUS_NAMES[number]}",
        "size": f"{pages * page:,} bytes{logged}",
    }
