"""Others' writes in the transaction of a batch, through a connection that is for this alone.

An author's function may do with it what it likes, but for what would take the transaction apart or touch the tables of
the store: that SQLite refuses. Whatever it leaves set on the connection goes with the connection, which is closed then.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TypeVar

import anyio

from workflow_drivers.sqlite._file import WriteSession, is_busy, patiently, until
from workflow_drivers.sqlite._finished import finished
from workflow_drivers.sqlite._thread import ConnectionThread
from workflow_sdk.driver import Batch, check_limits
from workflow_sdk.errors import StorageError

T = TypeVar("T")

TABLES = frozenset({"entry", "meta"})
_WRITES = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_SHAPES = frozenset({sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_TRIGGER})
_WHOLE = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
_PRAGMAS = frozenset(
    {
        "data_version",
        "database_list",
        "defer_foreign_keys",
        "foreign_key_check",
        "foreign_key_list",
        "foreign_keys",
        "index_info",
        "index_list",
        "table_info",
        "table_list",
        "table_xinfo",
    }
)
"""Those that only tell, or that are of the transaction."""


class Transactions:
    """The connection, opened when it is first needed, and lent to one transaction at a time."""

    def __init__(self, first: WriteSession, written: Callable[[Sequence[Batch]], None]) -> None:
        self._first = first
        self._written = written
        self._lock = anyio.Lock()
        self._open: tuple[WriteSession, ConnectionThread] | None = None

    async def transact(self, fn: Callable[[sqlite3.Connection], T], finish: Callable[[T], Batch]) -> None:
        """As the driver promises it."""
        async with self._lock:
            # What was begun is ended: a cancelled caller could not know what is stored.
            await finished(asyncio.create_task(self._transact(fn, finish)))

    async def _transact(self, fn: Callable[[sqlite3.Connection], T], finish: Callable[[T], Batch]) -> None:
        session, thread = await self._connected()
        try:
            value = await thread.call(_begin, session, fn)
            batch = finish(value)
            check_limits(batch)
            await thread.call(_end, session, batch)
        except BaseException:
            await self._drop()
            raise
        self._written([batch])

    async def _connected(self) -> tuple[WriteSession, ConnectionThread]:
        if self._open is None:
            session = WriteSession(self._first.settings, self._first)
            thread = ConnectionThread(session.connect)
            await thread.open()
            self._open = session, thread
        return self._open

    async def _drop(self) -> None:
        # Closing rolls back. It is also how a connection ends that was left in a state that nobody knows.
        if self._open is not None:
            session, thread = self._open
            self._open = None
            thread.post(session.leave)
            await thread.close()

    async def close(self) -> None:
        """Close the connection, after the transaction that has it."""
        async with self._lock:
            await self._drop()


# In the thread of the connection.


def _begin(session: WriteSession, fn: Callable[[sqlite3.Connection], T]) -> T:
    connection = session.connection
    deadline = until(monotonic() + session.settings.busy_timeout)
    try:
        patiently(session.begin, deadline)
    except sqlite3.Error as error:
        raise session.failure("write", error) from error
    factories = connection.row_factory, connection.text_factory
    connection.set_authorizer(_authorize)
    try:
        return fn(connection)
    except StopIteration as error:
        # No future takes it, and whoever waits for this one would wait for ever, with the file locked.
        raise RuntimeError("the function raised StopIteration") from error
    except sqlite3.Error as error:
        # So grave that SQLite has rolled back everything: not the author's mistake, but a full disk, or a broken one.
        if _is_lost(connection) or is_busy(error):
            raise session.failure("write", error) from error
        raise
    finally:
        if not _is_closed(connection):
            connection.set_authorizer(None)
            connection.row_factory, connection.text_factory = factories


def _end(session: WriteSession, batch: Batch) -> None:
    if _is_closed(session.connection):
        raise StorageError("the connection of the transaction was closed inside it; nothing was written")
    if not session.connection.in_transaction:
        raise StorageError("the transaction was ended inside it; nothing of the record was written")
    try:
        session.write_alone(batch)
    except sqlite3.Error as error:
        raise session.failure("write", error) from error


def _authorize(action: int, what: str | None, detail: str | None, *_: str | None) -> int:
    """What SQLite asks before it prepares a statement."""
    refused = (
        action in _WHOLE
        or (action in _WRITES and what in TABLES)
        or (action in _SHAPES and (what in TABLES or detail in TABLES))
        or (action == sqlite3.SQLITE_ALTER_TABLE and detail in TABLES)
        or (action == sqlite3.SQLITE_PRAGMA and what is not None and what.lower() not in _PRAGMAS)
    )
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def _is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018  # what a closed connection refuses
    except sqlite3.ProgrammingError:
        return True
    return False


def _is_lost(connection: sqlite3.Connection) -> bool:
    return not _is_closed(connection) and not connection.in_transaction
