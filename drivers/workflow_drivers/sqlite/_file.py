"""Everything that is SQL: the shape of the file, reads, and a group of batches as one transaction.

It blocks, and runs in the threads of the connections; it knows nothing of the event loop.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from random import random
from threading import Lock
from time import monotonic, sleep
from typing import Any, TypeVar
from urllib.parse import quote
from weakref import WeakSet

from workflow_drivers.sqlite._merge import Merged, chunks, expectations
from workflow_drivers.sqlite._url import Settings
from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Set, Write
from workflow_sdk.errors import ConflictError, StorageError, WorkflowSDKError

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

# Not REPLACE: that deletes and inserts, which takes twice as long where the key exists.
UPDATE = "ON CONFLICT (key) DO UPDATE SET value = excluded.value"

WRITE: dict[type[Write], str] = {
    Set: f"INSERT INTO entry VALUES (?, ?) {UPDATE}",
    Clear: "DELETE FROM entry WHERE key = ?",
    ClearRange: "DELETE FROM entry WHERE key >= ? AND key < ?",
}

# A cross join is made in the order in which it is written: from the few rows that are asked for.
COUNT_EQUAL = (
    "WITH asked (key, value) AS (VALUES {}) SELECT count(*) FROM asked CROSS JOIN entry "
    "ON entry.key = asked.key AND entry.value = asked.value"
)
SET_MANY = f"INSERT INTO entry VALUES {{}} {UPDATE}"
CLEAR_MANY = "DELETE FROM entry WHERE key IN (VALUES {})"
COUNT_PRESENT = "SELECT count(*) FROM entry WHERE key IN (VALUES {})"
SELECT_MANY = "SELECT key, value FROM entry WHERE key IN (VALUES {})"

LOOK_SECONDS = 0.005
"""Between two looks at whether the files are still the ones that were opened."""

WRITES_MERGED = 16
"""With fewer writes, a batch that is alone is written as it stands."""

PAUSE_SECONDS_MIN = 0.0005
# Another process that commits without a break leaves the file free for moments only. Asking often (it costs some 10 us)
# is what gives everyone a turn, since SQLite keeps no queue.
PAUSE_SECONDS_MAX = 0.005

UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What a file that is damaged ends in: SQLite may name things of it that are no text."""

SYNCHRONOUS_NAMES = ("off", "normal", "full", "extra")
"""What SQLite answers is a number."""

FILES = ("", "-wal", "-shm")
"""What SQLite adds to the name of the file: the file itself, its write-ahead log, and the index of that."""

WAL_PAGES = 1000
"""With so many in the write-ahead log, a commit goes on to copy them into the database. SQLite's own default."""

WAL_BYTES_KEPT = 64 << 20
"""What a write-ahead log that had to grow is cut back to, once its pages are in the database."""


def is_busy(error: BaseException) -> bool:
    """Whether another process was in the way, and trying again makes sense."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def patiently(attempt: Callable[[], T], go_on: Callable[[], bool]) -> T:
    """Make the attempt again while other processes are in the way and `go_on()` holds."""
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
    """For `patiently`: to go on until then."""
    return lambda: monotonic() < deadline


_open_sessions: WeakSet[_Session] = WeakSet()
"""Of this process. Within a process SQLite shares the index of a file's log, also one that was deleted since: whoever
opens new files beside it would ruin them."""
_opening = Lock()


class _Session:
    """One connection, opened and used in its thread."""

    def __init__(self, settings: Settings, first: _Session | None = None) -> None:
        self.settings = settings
        self._first = first
        """The connection before it, if it is to have the same files."""
        self.abandoned = False
        """Set from outside: nobody waits for `connect` any more."""
        self._paths = tuple(f"{settings.path}{name}" for name in FILES)
        self.files: tuple[tuple[int, int] | None, ...] = ()
        """Which files they are, while they are open."""

    def connect(self) -> sqlite3.Connection:
        """Open the file, waiting for other processes if needed. StorageError says why it can't be."""
        path, deadline = self.settings.path, monotonic() + self.settings.busy_timeout
        if self._first is not None:
            self._first.look_at_files("open")
        try:
            if not path.parent.is_dir():
                raise StorageError(f"can't open {str(path)!r}: there is no directory {str(path.parent)!r}")
            if not self.settings.creates and not path.exists():
                raise StorageError(f"can't open {str(path)!r}: there is no such file")
        except OSError as error:  # a directory above it can't be entered
            raise StorageError(f"can't open {str(path)!r}: {error.strerror}") from error
        # As a URI, so that SQLite holds to the mode also if the file goes away just now.
        uri = f"file://{quote(os.fsencode(path))}?mode={self.settings.mode}"
        try:
            # No transactions but our own, and no waiting inside SQLite, where nothing could stop it. What is used by
            # one thread at a time may be used by several.
            connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self.failure("open", error) from error
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
            self._come()
        except BaseException:
            self.leave()
            connection.close()
            raise
        return connection

    def _come(self) -> None:
        """StorageError if this process has other files of the same name open still, which were deleted since."""
        with _opening:
            if any(other.files[0] == self.files[0] and other.files != self.files for other in _open_sessions):
                raise self._changed("open", self._paths[0])
            _open_sessions.add(self)

    _looked = float("-inf")

    def check_files(self, verb: str) -> None:
        """StorageError if one of the files was deleted or replaced since it was opened.

        SQLite would go on with what it has open, and neither see nor lock out those who open what is there now: what
        is written then is lost, or ruins the file. Asking for the files can take as long as a small transaction, so it
        is not done for every one of many.
        """
        if monotonic() - self._looked >= LOOK_SECONDS:
            self.look_at_files(verb)

    def look_at_files(self, verb: str) -> None:
        """The same, however short ago that was done."""
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
        """What comes before closing, after which nothing may be done with the connection.

        The last to close has SQLite copy the log into the database. Where the files are not the ones that were opened,
        others have written there since: theirs stays. Where they are only gone, nobody has, and nothing is lost.
        """
        with _opening:
            _open_sessions.discard(self)
        for path, file in zip(self._paths, self.files, strict=True):
            if _identity(path) not in (None, file) and _size(path):
                self.connection.interrupt()  # of what is next: the copying

    def _prepare(self, connection: sqlite3.Connection) -> None:
        raise NotImplementedError

    def failure(self, verb: str, error: BaseException) -> StorageError:
        """What the caller is told when SQLite could not `verb` the file."""
        path = str(self.settings.path)
        if isinstance(error, StorageError):
            return StorageError(str(error))  # it says all of this; one for everybody who is told
        if is_busy(error):
            return StorageError(f"can't {verb} {path!r}: busy with other processes for {self.settings.busy_timeout} s")
        return StorageError(f"can't {verb} {path!r}: {error}")


class ReadSession(_Session):
    """The connection that answers `get` and `scan`, each with the state of the last commit."""

    _data_version: int | None = None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT 1 FROM entry LIMIT 1").fetchall()

    def get(self, key: bytes, *, patient: bool = True) -> bytes | None:
        """The value of `key`. If not `patient`, a lock that is met is an error at once."""
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
        """The values of `keys`; none if no one, in any process, has committed since the last time."""
        self.check_files("read")
        version: int = self._query("PRAGMA data_version", ())[0][0]
        if version == self._data_version:
            return []
        # A commit between the two statements is seen now and changes the version for the next time: never too late.
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
        """The rows, which in a damaged file may be of anything."""
        for row in rows:
            if type(row[0]) is not bytes or type(row[-1]) is not bytes:
                raise StorageError(f"can't read {str(self.settings.path)!r}: it holds a row that is not of bytes")
        return rows


class WriteSession(_Session):
    """A connection that writes, a group of batches at a time."""

    transactions = 0
    """How many were committed: what group commit saves can be seen from it."""

    _appended: int | None = None
    _appended_before: int | None = None
    _copies = True
    """Whether a commit may go on to copy the log."""

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "BEGIN"
        )  # one state for all that is asked: another process may be making the tables just now
        try:
            new = self._is_new(connection)
        finally:
            _roll_back(connection)
        if new and not self.settings.creates:
            raise StorageError(f"can't open {str(self.settings.path)!r}: the file is empty, and no store yet")
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise StorageError(f"{str(self.settings.path)!r} is where SQLite can't keep a write-ahead log")
        connection.execute(f"PRAGMA synchronous = {self.settings.synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        if not new:
            self._check_size(connection)
            # The first read is what makes the log and its index. Where the file kept none until now (a copy made by
            # `VACUUM INTO` does not), they have to be there before `files` says which they are.
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            if self._is_new(connection):  # no other process came first
                for statement in SCHEMA:
                    connection.execute(statement)
            connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise

    def _check_size(self, connection: sqlite3.Connection) -> None:
        # To SQLite, what is missing of the last page is zero. A crash can leave it like that, but then the log has it.
        path, log, _ = self._paths
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        if not _size(log) and _size(path) % page_size:
            raise StorageError(f"can't open {path!r}: it was cut short, and ends in the middle of a page")

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        """Whether the file is still empty; StorageError if it isn't one of ours."""
        path = str(self.settings.path)
        identity = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if identity == APPLICATION_ID:
            if version > FORMAT:
                raise StorageError(
                    f"{path!r} was written by a newer version (its format is {version}, this one knows {FORMAT})"
                )
            return False
        # Its tables would not be in the way. But its `user_version` would, by which many programs number their own
        # migrations; and switching it to a write-ahead log is not ours to decide.
        if identity or version or connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise StorageError(f"{path!r} is the database of another program; give the store a file of its own")
        return True

    def describe(self) -> dict[str, str]:
        """The file as it is: not what was asked for, but what SQLite answers."""
        try:
            mode, number, pages, page = (
                # With a cursor of its own: a commit may be under way in another thread.
                self.connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("journal_mode", "synchronous", "page_count", "page_size")
            )
        except sqlite3.Error as error:
            raise self.failure("read", error) from error
        path = self.settings.path
        log = path.with_name(f"{path.name}-wal")
        logged = f", and {log.stat().st_size:,} in the log" if log.exists() else ""
        return {
            "file": str(path),
            "journal": f"{mode}, synchronous {SYNCHRONOUS_NAMES[number]}",
            "size": f"{pages * page:,} bytes{logged}",
        }

    def begin(self, *, copies: bool = True) -> None:
        """Start the transaction with the lock for writing held, so that nothing it reads can change under it.

        `copies`: its commit may go on to copy the log into the database, which takes far longer than itself.
        """
        _roll_back(self.connection)  # only if even the rollback of the one before has failed
        if copies is not self._copies:
            self.cursor.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES if copies else 0}")
            self._copies = copies
        self.cursor.execute("BEGIN IMMEDIATE")
        try:
            self.check_files("write")
        except StorageError:
            _roll_back(self.connection)
            raise
        self._appended = self._appended_before = None

    def write(self, batches: Sequence[Batch]) -> list[WorkflowSDKError | None]:
        """Write the batches one after the other and commit. For each None, or the error that it alone has met.

        Raises if nothing of any of them was written.
        """
        try:
            if len(batches) == 1 and len(batches[0].writes) < WRITES_MERGED:
                outcome = self._check(batches[0])
                if outcome is None:
                    self._write(batches[0].writes)
                outcomes: list[WorkflowSDKError | None] = [outcome]
            else:
                outcomes = self._write_merged(batches) or [self._write_among_others(batch) for batch in batches]
            if self._appended != self._appended_before:
                self.cursor.execute("UPDATE meta SET value = ? WHERE name = 'appended'", (self._appended,))
            self.cursor.execute("COMMIT")
        except BaseException:
            _roll_back(self.connection)
            raise
        self.transactions += 1
        return outcomes

    def write_alone(self, batch: Batch) -> None:
        """Write the batch with what others have written in the transaction, and commit; or raise, and nothing of it is.

        Whoever catches that has to close the connection.
        """
        conflict = self._check(batch)
        if conflict is not None:
            raise conflict
        (error,) = self.write([batch])
        if error is not None:
            raise error

    def _write_merged(self, batches: Sequence[Batch]) -> list[WorkflowSDKError | None] | None:
        """Write the batches as one; None if a row can't be written: then they are to be taken apart."""
        execute = self.cursor.execute
        merged = Merged(self._stored(expectations(batches)), self._next_key)
        conflicts = [merged.add(batch) for batch in batches]
        values = [row for row in merged.rows.items() if row[1] is not None]
        cleared = [key for key, value in merged.rows.items() if value is None]
        execute("SAVEPOINT merged")
        try:
            for cleared_range in merged.ranges:
                execute(WRITE[ClearRange], cleared_range)
            for rows in chunks(values):
                execute(_many(SET_MANY, 2, len(rows)), [*chain.from_iterable(rows)])
            for keys in chunks(cleared):
                execute(_many(CLEAR_MANY, 1, len(keys)), keys)
        except sqlite3.Error:
            if not self.connection.in_transaction:  # so grave that SQLite has rolled back everything: a full disk
                raise
            execute("ROLLBACK TO merged")
            execute("RELEASE merged")
            self._appended = self._appended_before = None
            return None
        execute("RELEASE merged")
        return [None if key is None else _conflict(key) for key in conflicts]

    def _stored(self, expected: dict[bytes, bytes | None]) -> dict[bytes, bytes | None]:
        """What the keys hold. That it is what is expected is asked first, which takes one answer instead of many."""
        execute = self.cursor.execute
        absent = [key for key, value in expected.items() if value is None]
        present = [row for row in expected.items() if row[1] is not None]
        count = 0
        for rows in chunks(present):
            count += execute(_many(COUNT_EQUAL, 2, len(rows)), [*chain.from_iterable(rows)]).fetchone()[0]
        for keys in chunks(absent):
            count -= execute(_many(COUNT_PRESENT, 1, len(keys)), keys).fetchone()[0]
        if count == len(present):
            return expected
        stored: dict[bytes, bytes | None] = dict.fromkeys(expected)
        for keys in chunks(list(expected)):
            stored.update(execute(_many(SELECT_MANY, 1, len(keys)), keys).fetchall())
        return stored

    def _write_among_others(self, batch: Batch) -> WorkflowSDKError | None:
        # The checks read what the batches before it have written, and need no savepoint: they leave nothing behind.
        conflict = self._check(batch)
        if conflict is not None:
            return conflict
        self.cursor.execute("SAVEPOINT batch")
        try:
            self._write(batch.writes)
        except sqlite3.Error as error:
            if not self.connection.in_transaction:  # so grave that SQLite has rolled back everything: a full disk
                raise
            self.cursor.execute("ROLLBACK TO batch")
            self.cursor.execute("RELEASE batch")
            failure = self.failure("write", error)
            failure.__cause__ = error
            return failure
        self.cursor.execute("RELEASE batch")
        return None

    def _check(self, batch: Batch) -> ConflictError | None:
        for key, expected in batch.checks:
            row = self.cursor.execute(GET, (key,)).fetchone()
            if (None if row is None else row[0]) != expected:
                return _conflict(key)
        return None

    def _write(self, writes: Sequence[Write]) -> None:
        # One by one: `executemany` saves a tenth at most, and only where many writes of a kind follow each other.
        execute = self.cursor.execute
        for write in writes:
            if type(write) is Append:
                execute(WRITE[Set], (self._next_key(write.prefix), write.value))
            else:
                execute(WRITE[type(write)], write)

    def _next_key(self, prefix: bytes) -> bytes:
        # Read once in a transaction, since other processes append too, and stored once at its end. A number that a
        # rolled back batch has taken is left out, which harms nobody.
        if self._appended is None:
            row = self.cursor.execute("SELECT value FROM meta WHERE name = 'appended'").fetchone()
            self._appended = self._appended_before = int(row[0])
        self._appended += 1
        # 0x33 and 12 bytes: what `fdb.tuple` reads as a complete versionstamp.
        return prefix + b"\x33" + self._appended.to_bytes(12, "big")


def _identity(path: str) -> tuple[int, int] | None:
    """Which file it is, whatever its name; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: str) -> int:
    """How long the file is; nothing if there is none."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _conflict(key: bytes) -> ConflictError:
    return ConflictError(f"the key {key!r:.200} does not have the value that the batch was to find")


@cache
def _many(sql: str, columns: int, rows: int) -> str:
    """The statement for so many rows."""
    row = f"({', '.join('?' * columns)})"
    return sql.format(", ".join([row] * rows))


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
