"""Authors' writes in the transaction of a batch, through a connection that is used for nothing else.

An author's function may do what it likes with the connection, except end the transaction or touch the tables of the
store: SQLite refuses that. After an error, the connection is closed, since nobody knows what was left set on it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio

from workflow_drivers.sqlite._file import ConnectionThread, Session, finished, is_busy, prepare_to_write
from workflow_drivers.sqlite._writing import apply
from workflow_sdk.driver import Batch, check_limits
from workflow_sdk.errors import StorageError

T = TypeVar("T")

# What is refused: first, what would end the transaction, or reach beyond the file.
_ENDING = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
# Of the tables of the store: what would change their rows, and what would change them.
_TABLES = frozenset({"entry", "meta"})
_ROWS = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_SHAPES = frozenset(
    {
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_DROP_TABLE,
    }
)
_PRAGMAS = frozenset(
    {
        *("database_list", "foreign_key_list", "index_list", "table_list"),
        *("foreign_key_check", "index_info", "table_info", "table_xinfo", "data_version"),
        *("defer_foreign_keys", "foreign_keys"),
    }
)
"""The pragmas that only tell something, or whose effect ends with the transaction: all others are refused."""


class Transactions:
    """The connection for transactions of authors: opened when it is first needed, and used by one at a time."""

    def __init__(self, first: Session, written: Callable[[Sequence[Batch]], None]) -> None:
        self._first = first
        self._written = written
        self._lock = anyio.Lock()
        self._thread: ConnectionThread | None = None

    async def transact(self, fn: Callable[[sqlite3.Connection], T], finish: Callable[[T], Batch]) -> None:
        """Do what the driver promises of its method of that name."""
        async with self._lock:
            # A caller that is cancelled waits for the end all the same: it could not know what is stored.
            await finished(asyncio.create_task(self._transact(fn, finish)))

    async def _transact(self, fn: Callable[[sqlite3.Connection], T], finish: Callable[[T], Batch]) -> None:
        if self._thread is None:
            thread = ConnectionThread(Session(self._first.settings, prepare_to_write, self._first))
            await thread.open()
            self._thread = thread
        thread = self._thread
        try:
            batch = finish(await thread.call(_begin, thread.session, fn))
            check_limits(batch)
            await thread.call(_end, thread.session, batch)
        except BaseException:
            await self._drop()
            raise
        self._written([batch])

    async def _drop(self) -> None:
        # Closing rolls back, and ends a connection of which nobody knows what was left set on it.
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.close()

    async def close(self) -> None:
        """Close the connection, after the transaction that has it."""
        async with self._lock:
            await self._drop()


# What follows runs in the thread of the connection.


def _begin(session: Session, fn: Callable[[sqlite3.Connection], T]) -> T:
    connection = session.connection
    session.patiently("write", session.begin)
    factories = connection.row_factory, connection.text_factory
    connection.set_authorizer(_authorize)
    try:
        return fn(connection)
    except StopIteration as error:
        # A future refuses a StopIteration, so that the caller would wait for ever, and the file would stay locked.
        raise RuntimeError("the function raised StopIteration") from error
    except sqlite3.Error as error:
        # If SQLite has rolled back everything, that is no mistake of the author's, but a full disk or a broken one.
        if is_busy(error) or (not _is_closed(connection) and not connection.in_transaction):
            raise session.failure("write", error) from error
        raise
    finally:
        if not _is_closed(connection):
            connection.set_authorizer(None)
            connection.row_factory, connection.text_factory = factories


def _end(session: Session, batch: Batch) -> None:
    """Write the batch into the transaction, and commit it. If this raises, the transaction may still be open."""
    if _is_closed(session.connection):
        raise StorageError("the connection of the transaction was closed inside it; nothing was written")
    if not session.connection.in_transaction:
        raise StorageError("the transaction was ended inside it; nothing of the record was written")
    try:
        (error,) = apply(session.cursor, [batch])
        if error is not None:
            raise error
        session.cursor.execute("COMMIT")
    except sqlite3.Error as error:
        raise session.failure("write", error) from error


def _authorize(action: int, what: str | None, detail: str | None, *_: str | None) -> int:
    """Answer SQLite, which asks this for every action of a statement before it prepares it.

    The two texts are mostly a table and something beside it. Which is the table is another one for each action.
    """
    if action == sqlite3.SQLITE_PRAGMA:
        refused = what is not None and what.lower() not in _PRAGMAS
    elif action in _ROWS:
        refused = what in _TABLES  # the other may be a column
    else:
        refused = action in _ENDING or (action in _SHAPES and (what in _TABLES or detail in _TABLES))
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def _is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018  # what a closed connection refuses
    except sqlite3.ProgrammingError:
        return True
    return False
