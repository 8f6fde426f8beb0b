"""The statements of a store, and how batches become statements in a transaction that was begun.

Many batches are written as one: what becomes of them, one after the other, is worked out in memory, so that the file
is asked once for all checks, and written once with all rows. With every statement, SQLite lets other threads run and
then has to wait for them, so that a statement for every row takes several times as long as one for all.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import chain
from typing import TypeVar

from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Set, Write, unmet_check
from workflow_sdk.errors import ConflictError

T = TypeVar("T")

# Without `main`, an author's temporary table of the same name would be meant.
GET = "SELECT value FROM main.entry WHERE key = ?"
SCAN = "SELECT key, value FROM main.entry WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
SCAN_REVERSE = "SELECT key, value FROM main.entry WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"

# Not REPLACE: that deletes and inserts, which takes twice as long where the key exists.
UPDATE = "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
WRITE: dict[type[Write], str] = {
    Set: f"INSERT INTO main.entry VALUES (?, ?) {UPDATE}",
    Clear: "DELETE FROM main.entry WHERE key = ?",
    ClearRange: "DELETE FROM main.entry WHERE key >= ? AND key < ?",
}

# For many rows.
# A left join is made in the order in which it is written: from the few rows that are asked for.
COUNT_UNMET = (
    "WITH asked (key, value) AS (VALUES {}) SELECT count(*) FROM asked LEFT JOIN main.entry "
    "ON entry.key = asked.key WHERE entry.value IS NOT asked.value"
)
SELECT_MANY = "SELECT key, value FROM main.entry WHERE key IN (VALUES {})"
SET_MANY = f"INSERT INTO main.entry VALUES {{}} {UPDATE}"
CLEAR_MANY = "DELETE FROM main.entry WHERE key IN (VALUES {})"
SIZES = (128, 32, 8, 2, 1)
"""How many rows a statement can be for. These are few enough texts for SQLite to keep all of them prepared."""

WRITES_MERGED = 16
"""With fewer writes, a batch that is alone is written as it stands."""


def write(cursor: sqlite3.Cursor, batches: Sequence[Batch]) -> Sequence[Exception | None]:
    """Write the batches one after the other and commit; return for each None, or the error of that batch alone.

    If this raises, nothing of any of them was written.
    """
    try:
        outcomes = apply(cursor, batches)
        cursor.execute("COMMIT")
    except BaseException:
        cursor.connection.rollback()
        raise
    return outcomes


def apply(cursor: sqlite3.Cursor, batches: Sequence[Batch]) -> Sequence[Exception | None]:
    """Do the same, but for the commit. If this raises, the transaction has to be rolled back."""
    transaction = _Transaction(cursor)
    if len(batches) == 1 and len(batches[0].writes) < WRITES_MERGED:
        outcomes: Sequence[Exception | None] = (transaction.write(batches[0]),)
    else:
        outcomes = transaction.write_merged(batches)
    transaction.store_appended()
    return outcomes


class _Transaction:
    """Writes batches in a transaction that was begun, and numbers what they append."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._execute = cursor.execute
        self._appended: int | None = None
        """The number of the last append. None: it has not been read yet."""
        self._stored: dict[bytes, bytes | None] = {}
        """Of batches that are merged: what the keys that are checked hold after those that were added."""
        self._checked: list[bytes] = []
        """Those keys in order, once a range is cleared."""
        self._rows: dict[bytes, bytes | None] = {}
        """What is still to be written of them (None: cleared)."""

    def write(self, batch: Batch) -> ConflictError | None:
        """Write a batch as it stands, if its checks hold."""
        execute = self._execute
        for key, expected in batch.checks:
            row = execute(GET, (key,)).fetchone()
            if (None if row is None else row[0]) != expected:
                return unmet_check(key)
        # One by one: `executemany` saves a tenth at most, and only where many writes of a kind follow each other.
        for write in batch.writes:
            if type(write) is Append:
                execute(WRITE[Set], (self._next_key(write.prefix), write.value))
            else:
                execute(WRITE[type(write)], write)
        return None

    def write_merged(self, batches: Sequence[Batch]) -> Sequence[Exception | None]:
        """Write the batches as one. If a row can't be written, write each by itself, so that its batch fails alone."""
        outcomes = self._whole(partial(self._merged, batches))
        if not isinstance(outcomes, sqlite3.Error):
            return outcomes
        self._appended = None  # the numbers that were taken are free again
        return [self._whole(partial(self.write, batch)) for batch in batches]

    def _whole(self, write: Callable[[], T]) -> T | sqlite3.Error:
        """What `write` returns; if it fails, undo what it wrote and nothing else, and return why."""
        self._execute("SAVEPOINT whole")
        try:
            outcome: T | sqlite3.Error = write()
        except sqlite3.Error as error:
            if not self._cursor.connection.in_transaction:  # SQLite has rolled back everything: a full disk
                raise
            self._execute("ROLLBACK TO whole")
            outcome = error
        self._execute("RELEASE whole")
        return outcome

    def _merged(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        self._read_checked(batches)
        outcomes = [self._add(batch) for batch in batches]
        self._write_rows()
        return outcomes

    def _read_checked(self, batches: Sequence[Batch]) -> None:
        # Mostly the keys hold what is expected, so that is asked first: the answer is one number.
        stored = self._stored
        for batch in batches:
            for key, expected in batch.checks:
                stored.setdefault(key, expected)
        for rows in _chunks([*stored.items()]):
            if self._execute(_many(COUNT_UNMET, 2, len(rows)), [*chain.from_iterable(rows)]).fetchone()[0]:
                keys = [key for key, _ in rows]
                stored.update(dict.fromkeys(keys))
                stored.update(self._execute(_many(SELECT_MANY, 1, len(keys)), keys).fetchall())

    def _add(self, batch: Batch) -> ConflictError | None:
        stored, rows = self._stored, self._rows
        for key, expected in batch.checks:
            if stored[key] != expected:
                return unmet_check(key)
        for write in batch.writes:
            kind = type(write)
            if kind is ClearRange:
                self._clear_range(write[0], write[-1])
                continue
            key = self._next_key(write[0]) if kind is Append else write[0]
            rows[key] = None if kind is Clear else write[-1]
            if key in stored:
                stored[key] = rows[key]
        return None

    def _clear_range(self, begin: bytes, end: bytes) -> None:
        self._write_rows()
        self._execute(WRITE[ClearRange], (begin, end))
        keys = self._checked = self._checked or sorted(self._stored)
        for key in keys[bisect_left(keys, begin) : bisect_left(keys, end)]:
            self._stored[key] = None

    def _write_rows(self) -> None:
        for rows in _chunks([row for row in self._rows.items() if row[1] is not None]):
            self._execute(_many(SET_MANY, 2, len(rows)), [*chain.from_iterable(rows)])
        for keys in _chunks([key for key, value in self._rows.items() if value is None]):
            self._execute(_many(CLEAR_MANY, 1, len(keys)), keys)
        self._rows.clear()

    def _next_key(self, prefix: bytes) -> bytes:
        # Read once in a transaction, since other processes append too, and stored once at its end. The number that an
        # append of a rolled back batch has taken is left out, which harms nobody.
        if self._appended is None:
            self._appended = int(self._execute("SELECT value FROM main.meta WHERE name = 'appended'").fetchone()[0])
        self._appended += 1
        # 0x33 and 12 bytes: what `fdb.tuple` reads as a complete versionstamp.
        return prefix + b"\x33" + self._appended.to_bytes(12, "big")

    def store_appended(self) -> None:
        """Store the number of the last append, if there was one."""
        if self._appended is not None:
            self._execute("UPDATE main.meta SET value = ? WHERE name = 'appended'", (self._appended,))


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items in pieces, each as long as one of the sizes."""
    at = 0
    for size in SIZES:
        while len(items) - at >= size:
            yield items[at : at + size]
            at += size


@cache
def _many(sql: str, columns: int, rows: int) -> str:
    """The statement for so many rows."""
    row = f"({', '.join('?' * columns)})"
    return sql.format(", ".join([row] * rows))
