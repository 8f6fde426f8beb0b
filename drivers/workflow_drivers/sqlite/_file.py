"""The file: what makes it a store, the connections that have it open, and reads.

Everything here blocks, and runs in the threads of the connections; nothing here knows of an event loop.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from random import random
from threading import Lock
from time import monotonic, sleep
from typing import Any, TypeVar
from urllib.parse import quote
from weakref import WeakSet

from workflow_drivers.sqlite._url import Settings
from workflow_sdk.errors import StorageError

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

GET = "SELECT value FROM entry WHERE key = ?"
SCAN = "SELECT key, value FROM entry WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
SCAN_REVERSE = "SELECT key, value FROM entry WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"

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


def until(deadline: float) -> Callable[[], bool]:
    """A `go_on` for `patiently` that is true until the deadline."""
    return lambda: monotonic() < deadline


_open_sessions: WeakSet[Session] = WeakSet()
"""The open connections of this process.

Within a process, SQLite shares the index of a log by the name of its file, also after that file was deleted. A process
that opened a new file of the same name beside the old one would ruin the new one.
"""
_opening = Lock()


class Session:
    """One connection to the file, opened and used in its thread."""

    def __init__(self, settings: Settings, first: Session | None = None) -> None:
        self.settings = settings
        self._first = first
        """The connection whose files this one has to find, if it is not the first."""
        self.abandoned = False
        """Set by another thread when nobody waits for `connect` any more."""
        self._paths = tuple(f"{settings.path}{name}" for name in FILES)
        self.files: tuple[tuple[int, int] | None, ...] = ()
        """The identities of the three files that were opened."""

    def connect(self) -> sqlite3.Connection:
        """Open the file, waiting for other processes if needed. StorageError says why it can't be."""
        deadline = monotonic() + self.settings.busy_timeout
        if self._first is not None:
            self._first.look_at_files("open")
        self._check_place()
        connection = self._opened()
        try:
            patiently(lambda: self._prepare(connection), lambda: monotonic() < deadline and not self.abandoned)
        except UNREADABLE as error:
            connection.close()
            raise self.failure("open", error) from error
        except BaseException:
            connection.close()
            raise
        self.connection = connection
        self.cursor = connection.cursor()
        self.files = tuple(map(_identity, self._paths)) if self._first is None else self._first.files
        try:
            self.look_at_files("open")
            self._register()
        except BaseException:
            self.leave()
            connection.close()
            raise
        return connection

    def _check_place(self) -> None:
        """Raise StorageError if there can be no store at this path, or if there has to be one and is none."""
        path = self.settings.path
        try:
            if not path.parent.is_dir():
                raise StorageError(f"can't open {str(path)!r}: there is no directory {str(path.parent)!r}")
            if not self.settings.creates and not path.exists():
                raise StorageError(f"can't open {str(path)!r}: there is no such file")
        except OSError as error:  # a directory above it can't be entered
            raise StorageError(f"can't open {str(path)!r}: {error.strerror}") from error

    def _opened(self) -> sqlite3.Connection:
        # As a URI, so that SQLite holds to the mode also if the file goes away just now.
        uri = f"file://{quote(os.fsencode(self.settings.path))}?mode={self.settings.mode}"
        try:
            # No transactions but our own, and no waiting inside SQLite, where nothing could stop it. The checks of the
            # thread are off because a connection is also used by the event loop, never by two threads at once.
            return sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self.failure("open", error) from error

    def _register(self) -> None:
        """Raise StorageError if this process still has files open that were deleted and had the same name."""
        with _opening:
            if any(other.files[0] == self.files[0] and other.files != self.files for other in _open_sessions):
                raise self._changed("open", self._paths[0])
            _open_sessions.add(self)

    _looked = float("-inf")

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

    def leave(self) -> None:
        """Prepare the connection to be closed. Nothing else may be done with it after this.

        When the last connection is closed, SQLite copies the log into the database. If the files were replaced, others
        have written to the new ones, and the copying is prevented. If they were only deleted, it can do no harm.
        """
        with _opening:
            _open_sessions.discard(self)
        for path, file in zip(self._paths, self.files, strict=True):
            if _identity(path) not in (None, file) and _size(path):
                self.connection.interrupt()  # which ends the copying that closing begins

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Set up a connection that was just opened. Done again while the file is busy."""
        raise NotImplementedError

    def failure(self, verb: str, error: BaseException) -> StorageError:
        """The error for callers when SQLite could not `verb` the file."""
        reason = str(error)
        if is_busy(error):
            reason = f"busy with other processes for {self.settings.busy_timeout} s"
        # An error of ours says it all already. Each caller gets an exception of its own.
        is_ours = isinstance(error, StorageError)
        failure = StorageError(reason if is_ours else f"can't {verb} {str(self.settings.path)!r}: {reason}")
        failure.__cause__ = error
        return failure


class ReadSession(Session):
    """The connection that answers `get` and `scan`, each with the state of the last commit."""

    _data_version: int | None = None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT 1 FROM entry LIMIT 1").fetchall()

    def get(self, key: bytes, *, patient: bool = True) -> bytes | None:
        """The value of `key`. Without `patient`, a locked file is an error at once."""
        self.check_files("read")
        return self._get(key, patient=patient)

    def _get(self, key: bytes, *, patient: bool = True) -> bytes | None:
        rows = self._checked(self._query(GET, (key,), patient=patient))
        return rows[0][0] if rows else None

    def scan(
        self, begin: bytes, end: bytes, limit: int | None, reverse: bool, *, patient: bool = True
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin` up to `end`, at most `limit` of them; `patient` as above."""
        self.check_files("read")
        most = -1 if limit is None else max(limit, 0)  # to SQLite, a negative limit is none
        return self._checked(self._query(SCAN_REVERSE if reverse else SCAN, (begin, end, most), patient=patient))

    def peek(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        """The values of `keys`, or nothing if no process has committed since the last call."""
        self.check_files("read")
        version: int = self._query("PRAGMA data_version", ())[0][0]
        if version == self._data_version:
            return []
        # A commit between the two statements is seen by the second one. It also changes the version, so the next call
        # looks again, which is one time too many but never too late.
        values = [(key, self._get(key)) for key in keys]
        self._data_version = version
        return values

    def _query(self, sql: str, parameters: tuple[object, ...], *, patient: bool = True) -> list[Any]:
        # Readers hardly ever meet a lock: only while another process recovers the log of one that was killed.
        def attempt() -> list[Any]:
            return self.cursor.execute(sql, parameters).fetchall()

        try:
            try:
                return attempt()
            except sqlite3.OperationalError:
                if not patient:
                    raise
                return patiently(attempt, until(monotonic() + self.settings.busy_timeout))
        except UNREADABLE as error:
            raise self.failure("read", error) from error

    def _checked(self, rows: list[tuple[bytes, ...]]) -> list[Any]:
        """The rows, if they are of bytes: in a damaged file they may be of anything."""
        for row in rows:
            if type(row[0]) is not bytes or type(row[-1]) is not bytes:
                raise StorageError(f"can't read {str(self.settings.path)!r}: it holds a row that is not of bytes")
        return rows


def make_store(connection: sqlite3.Connection, settings: Settings) -> None:
    """Make an empty file a store, or see that the file is one, and set up how the connection writes."""
    path = str(settings.path)
    connection.execute("BEGIN")  # all answers of one state: another process may be making the tables just now
    try:
        new = _is_new(connection, path)
    finally:
        roll_back(connection)
    if new and not settings.creates:
        raise StorageError(f"can't open {path!r}: the file is empty, and no store yet")
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise StorageError(f"{path!r} is where SQLite can't keep a write-ahead log")
    connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    if not new:
        _check_size(connection, path)
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
        roll_back(connection)
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


def _check_size(connection: sqlite3.Connection, path: str) -> None:
    """Raise StorageError if the file ends in the middle of a page, of which SQLite would read the rest as zeros."""
    page_size = connection.execute("PRAGMA page_size").fetchone()[0]
    # A crash can leave a file like that, but then the missing part is in the log.
    if not _size(f"{path}-wal") and _size(path) % page_size:
        raise StorageError(f"can't open {path!r}: it was cut short, and ends in the middle of a page")


def roll_back(connection: sqlite3.Connection) -> None:
    """End the transaction, if there is one, without its writes."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _identity(path: str) -> tuple[int, int] | None:
    """What tells this file from every other one, whatever its name; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: str) -> int:
    """The size of the file in bytes; 0 if there is none."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
