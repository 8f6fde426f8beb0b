"""The file: where it is, what makes it a store, and connections that have it open, each in a thread of its own.

A session blocks. Nothing in it knows of an event loop: `ConnectionThread` is what connects the two.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import random
from threading import Event, Lock
from time import monotonic, sleep
from typing import Any, ParamSpec, TypeVar, cast
from urllib.parse import quote
from weakref import WeakSet

import aiosqlite
import anyio

from workflow_sdk.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")

APPLICATION_ID = 0x77_66_73_64  # "wfsd"; what `file` and every other program know the file by
FORMAT = 1
"""The version of the tables, kept as `user_version`. Files with a higher one are refused."""

SCHEMA = (
    "CREATE TABLE entry (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    # Kept apart from the rows: an appended key must sort after those that have been cleared since, too.
    "INSERT INTO meta VALUES ('appended', 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)

LOOK_SECONDS = 0.005
"""How long it is taken for granted that the files are still the ones that were opened."""

PAUSE_SECONDS_MIN = 0.0005
# Another process that commits without a break leaves the file free for moments only. Asking often (it costs some 10 us)
# is what gives everyone a turn, since SQLite keeps no queue.
PAUSE_SECONDS_MAX = 0.005

UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What reading a damaged file raises. SQLite may quote bytes of it that are no text."""

FILES = ("", "-wal", "-shm")
"""The endings of the three files of a store: the database, its write-ahead log, and the index of that log."""

WAL_PAGES = 1000
"""With so many in the write-ahead log, a commit goes on to copy them into the database. SQLite's own default."""
WAL_BYTES_KEPT = 64 << 20
"""What a write-ahead log that had to grow is cut back to, once its pages are in the database."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Which file, and how it is used."""

    path: Path
    synchronous: str
    busy_timeout: float
    """How many seconds another process may keep the file locked before it is an error."""
    mode: str
    """As in SQLite's own URIs: `rw` is to read and write, `rwc` also to create the file."""
    inline: bool
    """Whether reads and commits may be made in the event loop if they are short."""


def is_busy(error: BaseException) -> bool:
    """Whether the error says that another process has the file locked, so that trying again makes sense."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def patiently(attempt: Callable[[], T], go_on: Callable[[], bool]) -> T:
    """Return what `attempt` returns, and try it again while other processes are in the way and `go_on()` is true."""
    pause = PAUSE_SECONDS_MIN
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or not go_on():
                raise
        sleep(pause * (0.5 + random()))
        pause = min(2 * pause, PAUSE_SECONDS_MAX)


_open_sessions: WeakSet[Session] = WeakSet()
"""The open connections of this process.

Within a process, SQLite shares the index of a log by the name of its file, also after that file was deleted. A process
that opened a new file of the same name beside the old one would ruin the new one.
"""
_opening = Lock()


class Session:
    """One connection to the file, opened in a thread. It is used by one at a time: that thread or the event loop."""

    def __init__(
        self,
        settings: Settings,
        prepare: Callable[[sqlite3.Connection, Settings], None],
        first: Session | None = None,
    ) -> None:
        self.settings = settings
        self._prepare = prepare
        """Sets up a connection that was just opened. Done again while the file is busy."""
        self._first = first
        """The connection whose files this one has to find, if it is not the first."""
        self.abandoned: Event = Event() if first is None else first.abandoned
        """Set by another thread when nobody waits for `connect` any more."""
        self._paths = tuple(f"{settings.path}{name}" for name in FILES)
        self.files: tuple[tuple[int, int] | None, ...] = ()
        """The identities of the three files that were opened."""
        self._looked = float("-inf")
        self._copies = True
        """Whether a commit may go on to copy the log into the database."""

    def connect(self) -> sqlite3.Connection:
        """Open the file, waiting for other processes if needed. StorageError says why it can't be."""
        settings = self.settings
        if self._first is not None:
            self._first.look_at_files("open")
        self._check_place()
        # As a URI, so that SQLite holds to the mode also if the file goes away just now.
        uri = f"file://{quote(os.fsencode(settings.path))}?mode={settings.mode}"
        try:
            # No transactions but our own, and no waiting inside SQLite, where nothing could stop it. The checks of the
            # thread are off because a connection is also used by the event loop, never by two threads at once.
            connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self.failure("open", error) from error
        self.connection = connection
        try:
            self.patiently("open", lambda: self._prepare(connection, settings))
            self.cursor = connection.cursor()
            self.files = tuple(map(_identity, self._paths)) if self._first is None else self._first.files
            self.look_at_files("open")
            self._register()
        except BaseException:
            self.leave()
            connection.close()
            raise
        return connection

    def patiently(self, verb: str, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns, and try it again until the busy timeout is over or nobody waits any more."""
        deadline = monotonic() + self.settings.busy_timeout
        try:
            return patiently(attempt, lambda: monotonic() < deadline and not self.abandoned.is_set())
        except UNREADABLE as error:
            raise self.failure(verb, error) from error

    def _check_place(self) -> None:
        """Raise StorageError if there can be no store at this path, or if there has to be one and is none."""
        path = self.settings.path
        try:
            if not path.parent.is_dir():
                raise StorageError(f"can't open {str(path)!r}: there is no directory {str(path.parent)!r}")
            if self.settings.mode == "rw" and not path.exists():
                raise StorageError(f"can't open {str(path)!r}: there is no such file")
        except OSError as error:  # a directory above it can't be entered
            raise StorageError(f"can't open {str(path)!r}: {error.strerror}") from error

    def _register(self) -> None:
        """Raise StorageError if this process still has files open that were deleted and had the same name."""
        with _opening:
            if any(other.files[0] == self.files[0] and other.files != self.files for other in _open_sessions):
                raise self._changed("open", self._paths[0])
            _open_sessions.add(self)

    def check_files(self, verb: str) -> None:
        """Raise StorageError if one of the files was deleted or replaced since it was opened.

        SQLite would go on with the files that it has open. It would neither see the new ones nor lock out those who
        open them, so that what it writes is lost or ruins the new file. Looking at the files can take as long as a
        small transaction, so it is done at most every few milliseconds.
        """
        if monotonic() - self._looked >= LOOK_SECONDS:
            self.look_at_files(verb)

    def look_at_files(self, verb: str) -> None:
        """Do as `check_files` does, however short ago the last look was."""
        now = monotonic()
        for path, file in zip(self._paths, self.files, strict=True):
            if _identity(path) != file:
                raise self._changed(verb, path)
        self._looked = now

    def _changed(self, verb: str, path: str) -> StorageError:
        return StorageError(
            f"can't {verb} {self._paths[0]!r}: {path!r} was deleted or replaced while it was open; end every "
            "process that has it open, and start again"
        )

    def begin(self, *, copies: bool = True) -> None:
        """Begin a transaction that holds the lock for writing, so that nothing it reads can change under it.

        With `copies`, its commit may go on to copy the log into the database, which takes far longer than the commit.
        """
        self.connection.rollback()  # there is a transaction only if the rollback of the one before has failed
        if copies is not self._copies:
            self.cursor.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES if copies else 0}")
            self._copies = copies
        self.cursor.execute("BEGIN IMMEDIATE")
        try:
            self.check_files("write")
        except StorageError:
            self.connection.rollback()
            raise

    def read(self, sql: str, parameters: tuple[object, ...]) -> list[Any]:
        """The rows that a statement finds."""
        self.check_files("read")
        return self.cursor.execute(sql, parameters).fetchall()

    def leave(self) -> None:
        """Prepare the connection to be closed. Nothing else may be done with it after this.

        When the last connection is closed, SQLite copies the log into the database. If the files were replaced, others
        have written to the new ones, and the copying is prevented. If they were only deleted, it can do no harm.
        """
        with _opening:
            _open_sessions.discard(self)
        for path, file in zip(self._paths, self.files, strict=False):  # no files, if it was not opened
            if _identity(path) not in (None, file) and _size(path):
                self.connection.interrupt()  # which ends the copying that closing begins

    def failure(self, verb: str, error: BaseException) -> StorageError:
        """The error for callers when SQLite could not `verb` the file. Each caller gets an exception of its own."""
        if isinstance(error, StorageError):  # one of ours says it all already
            reason = str(error)
        elif is_busy(error):
            reason = f"can't {verb} {self._paths[0]!r}: busy with other processes for {self.settings.busy_timeout} s"
        else:
            reason = f"can't {verb} {self._paths[0]!r}: {error}"
        failure = StorageError(reason)
        failure.__cause__ = error
        return failure


# How a session prepares its connection.


def prepare_to_read(connection: sqlite3.Connection, settings: Settings) -> None:
    """Set up a connection that reads a store."""
    connection.execute("PRAGMA query_only = ON")
    connection.execute("SELECT 1 FROM entry LIMIT 1").fetchall()


def prepare_to_write(connection: sqlite3.Connection, settings: Settings) -> None:
    """Make an empty file a store, or see that the file is one, and set up how the connection writes."""
    path = str(settings.path)
    connection.execute("BEGIN")  # all answers of one state: another process may be making the tables just now
    try:
        is_new = _is_new(connection, path)
    finally:
        connection.rollback()
    if is_new and settings.mode == "rw":
        raise StorageError(f"can't open {path!r}: the file is empty, and no store yet")
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise StorageError(f"{path!r} is where SQLite can't keep a write-ahead log")
    connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    if not is_new:
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        # SQLite would read the rest of a page as zeros. A crash can leave a file like that, but then the missing part
        # is in the log.
        if not _size(f"{path}-wal") and _size(path) % page_size:
            raise StorageError(f"can't open {path!r}: it was cut short, and ends in the middle of a page")
        # The first read is what makes the log and its index. Where the file kept none until now (a copy made by
        # `VACUUM INTO` does not), they have to be there before `files` says which they are.
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_new(connection, path):  # no other process came first
            for statement in SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _is_new(connection: sqlite3.Connection, path: str) -> bool:
    """Whether the file is still empty. Raises StorageError if it holds anything but a store of ours."""
    identity = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if identity == APPLICATION_ID:
        if version > FORMAT:
            raise StorageError(
                f"{path!r} was written by a newer version (its format is {version}, this one knows {FORMAT})"
            )
        return False
    # The tables of another program would not be in the way. But many programs number their own migrations by
    # `user_version`, which we would overwrite; and switching its file to a write-ahead log is not ours to decide.
    if identity or version or connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise StorageError(f"{path!r} is the database of another program; give the store a file of its own")
    return True


def _identity(path: str) -> tuple[int, int] | None:
    """What tells this file from every other one, whatever its name; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


class ConnectionThread(aiosqlite.Connection):
    """A session, and the thread of an `aiosqlite` connection, which runs whole functions.

    Each call of `aiosqlite` goes to its thread and back, which takes some 20 us, and a transaction needs five calls or
    more. Its public interface has no way to run a function in the thread. So this class, and nothing outside it, uses
    what lies under that interface: `_execute`, `_thread`, and `_tx`, which is the thread's queue of futures and
    functions (without a future, nobody waits).
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session.connect, iter_chunk_size=64)
        self.session = session
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
        self.post(self.session.leave)
        try:
            await super().close()
        finally:
            self._thread.join()  # at most the few instructions after its last report


async def finished(future: asyncio.Future[T]) -> T:
    """Wait for the end of `future`, and return its result. A cancellation of the caller is raised after that."""
    cancelled: asyncio.CancelledError | None = None
    # The scope keeps off cancellations by anyio. Those of asyncio's own come through it, any number of times.
    with anyio.CancelScope(shield=True):
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as caught:
                cancelled = caught
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # asyncio would log an exception that nobody has asked for
        raise cancelled
    return future.result()
