"""Writing: a group of batches becomes one transaction.

Everything here blocks, and runs where the connection is used at the moment; nothing here knows of an event loop.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain

from workflow_drivers.sqlite._file import GET, WAL_PAGES, Session, make_store, roll_back
from workflow_drivers.sqlite._merge import Merged, chunks, expectations
from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Set, Write, unmet_check
from workflow_sdk.errors import ConflictError, StorageError, WorkflowSDKError

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

WRITES_MERGED = 16
"""With fewer writes, a batch that is alone is written as it stands."""

SYNCHRONOUS_NAMES = ("off", "normal", "full", "extra")
"""What the numbers mean with which SQLite answers `PRAGMA synchronous`."""


class WriteSession(Session):
    """A connection that writes a group of batches at a time."""

    transactions = 0
    """How many transactions were committed: fewer than batches, if commits are grouped."""

    _appended: int | None = None
    """The number of the last append. None: it has not been read yet in this transaction."""
    _appended_before: int | None = None
    """The number that is stored."""
    _copies = True
    """Whether a commit may go on to copy the log into the database."""

    def _prepare(self, connection: sqlite3.Connection) -> None:
        make_store(connection, self.settings)

    def describe(self) -> dict[str, str]:
        """The file as it is: what SQLite answers, not what the settings ask for."""
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
        """Begin a transaction that holds the lock for writing, so that nothing it reads can change under it.

        With `copies`, its commit may go on to copy the log into the database, which takes far longer than the commit.
        """
        roll_back(self.connection)  # there is a transaction only if the rollback of the one before has failed
        if copies is not self._copies:
            self.cursor.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES if copies else 0}")
            self._copies = copies
        self.cursor.execute("BEGIN IMMEDIATE")
        try:
            self.check_files("write")
        except StorageError:
            roll_back(self.connection)
            raise
        self._appended = self._appended_before = None

    def write(self, batches: Sequence[Batch]) -> list[WorkflowSDKError | None]:
        """Write the batches one after the other and commit; return for each None, or the error of that batch alone.

        If this raises, nothing of any of them was written.
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
            roll_back(self.connection)
            raise
        self.transactions += 1
        return outcomes

    def write_alone(self, batch: Batch) -> None:
        """Write the batch in a transaction in which others have written, and commit both, or raise.

        If this raises, the transaction may still be open: close the connection then, which rolls it back.
        """
        conflict = self._check(batch)
        if conflict is not None:
            raise conflict
        (error,) = self.write([batch])
        if error is not None:
            raise error

    def _write_merged(self, batches: Sequence[Batch]) -> list[WorkflowSDKError | None] | None:
        """Write the batches as one. None if a row of one can't be written: then each has to be written by itself."""
        merged = Merged(self._stored(expectations(batches)), self._next_key)
        conflicts = [merged.add(batch) for batch in batches]
        if self._failed("merged", lambda: self._write_rows(merged)) is not None:
            self._appended = self._appended_before = None  # the numbers that were taken are free again
            return None
        return [None if key is None else unmet_check(key) for key in conflicts]

    def _write_rows(self, merged: Merged) -> None:
        execute = self.cursor.execute
        for cleared_range in merged.ranges:
            execute(WRITE[ClearRange], cleared_range)
        for rows in chunks([row for row in merged.rows.items() if row[1] is not None]):
            execute(_many(SET_MANY, 2, len(rows)), [*chain.from_iterable(rows)])
        for keys in chunks([key for key, value in merged.rows.items() if value is None]):
            execute(_many(CLEAR_MANY, 1, len(keys)), keys)

    def _failed(self, savepoint: str, write: Callable[[], None]) -> sqlite3.Error | None:
        """Call `write`; if it fails, undo what it wrote and nothing else, and return why."""
        self.cursor.execute(f"SAVEPOINT {savepoint}")
        failure = None
        try:
            write()
        except sqlite3.Error as error:
            if not self.connection.in_transaction:  # so grave that SQLite has rolled back everything: a full disk
                raise
            self.cursor.execute(f"ROLLBACK TO {savepoint}")
            failure = error
        self.cursor.execute(f"RELEASE {savepoint}")
        return failure

    def _stored(self, expected: dict[bytes, bytes | None]) -> dict[bytes, bytes | None]:
        """What the keys hold. Mostly it is what is expected, so that is counted first, in one answer."""
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
        error = self._failed("batch", lambda: self._write(batch.writes))
        return None if error is None else self.failure("write", error)

    def _check(self, batch: Batch) -> ConflictError | None:
        for key, expected in batch.checks:
            row = self.cursor.execute(GET, (key,)).fetchone()
            if (None if row is None else row[0]) != expected:
                return unmet_check(key)
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
        # Read once in a transaction, since other processes append too, and stored once at its end. The number that an
        # append of a rolled back batch has taken is left out, which harms nobody.
        if self._appended is None:
            row = self.cursor.execute("SELECT value FROM meta WHERE name = 'appended'").fetchone()
            self._appended = self._appended_before = int(row[0])
        self._appended += 1
        # 0x33 and 12 bytes: what `fdb.tuple` reads as a complete versionstamp.
        return prefix + b"\x33" + self._appended.to_bytes(12, "big")


@cache
def _many(sql: str, columns: int, rows: int) -> str:
    """The statement for so many rows."""
    row = f"({', '.join('?' * columns)})"
    return sql.format(", ".join([row] * rows))
