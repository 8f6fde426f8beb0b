"""Authors' writes in the transaction of a batch, through a connection that is used for nothing else.

An author's function may do what it likes with the connection, except end the transaction or touch the tables of the
store: SQLite refuses that. After an error, the connection is closed, since nobody knows what was left set on it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TypeAlias, TypeVar

import anyio

from workflow_drivers.sqlite._file import is_busy, patiently, until
from workflow_drivers.sqlite._thread import ConnectionThread, finished
from workflow_drivers.sqlite._writing import WriteSession
from workflow_sdk.driver import Batch, check_limits
from workflow_sdk.errors import StorageError

T = TypeVar("T")

TABLES = frozenset({"entry", "meta"})
"""The tables of the store."""
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
"""The pragmas that only tell something, or whose effect ends with the transaction."""

_Refuses: TypeAlias = "Callable[[str | None, str | None], bool]"
"""Whether an action is refused, from the two texts that SQLite gives of it: mostly a table, and something beside it."""


def _of_ours(what: str | None, detail: str | None) -> bool:
    return what in TABLES


def _near_ours(what: str | None, detail: str | None) -> bool:
    return what in TABLES or detail in TABLES


_REFUSED: dict[int, _Refuses] = {
    # What would end the transaction, or reach beyond the file.
    sqlite3.SQLITE_TRANSACTION: lambda what, detail: True,
    sqlite3.SQLITE_ATTACH: lambda what, detail: True,
    sqlite3.SQLITE_DETACH: lambda what, detail: True,
    # What would change rows of the store.
    sqlite3.SQLITE_INSERT: _of_ours,
    sqlite3.SQLITE_UPDATE: _of_ours,
    sqlite3.SQLITE_DELETE: _of_ours,
    # What would change its tables. Which of the two texts is the table is another one for each action.
    sqlite3.SQLITE_DROP_TABLE: _near_ours,
    sqlite3.SQLITE_CREATE_INDEX: _near_ours,
    sqlite3.SQLITE_CREATE_TRIGGER: _near_ours,
    sqlite3.SQLITE_ALTER_TABLE: lambda what, detail: detail in TABLES,
    sqlite3.SQLITE_PRAGMA: lambda what, detail: what is not None and what.lower() not in _PRAGMAS,
}


class Transactions:
    """The connection for transactions of authors: opened when it is first needed, and used by one at a time."""

    def __init__(self, first: WriteSession, written: Callable[[Sequence[Batch]], None]) -> None:
        self._first = first
        self._written = written
        self._lock = anyio.Lock()
        self._open: tuple[WriteSession, ConnectionThread] | None = None

    async def transact(self, fn: Callable[[sqlite3.Connection], T], finish: Callable[[T], Batch]) -> None:
        """Do what the driver promises of its method of that name."""
        async with self._lock:
            # A caller that is cancelled waits for the end all the same: it could not know what is stored.
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
        # Closing rolls back, and ends a connection of which nobody knows what was left set on it.
        if self._open is not None:
            session, thread = self._open
            self._open = None
            thread.post(session.leave)
            await thread.close()

    async def close(self) -> None:
        """Close the connection, after the transaction that has it."""
        async with self._lock:
            await self._drop()


# What follows runs in the thread of the connection.


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
        # A future refuses a StopIteration, so that the caller would wait for ever, and the file would stay locked.
        raise RuntimeError("the function raised StopIteration") from error
    except sqlite3.Error as error:
        # If SQLite has rolled back everything, that is no mistake of the author's, but a full disk or a broken one.
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
    """Answer SQLite, which asks this for every action of a statement before it prepares it."""
    refuses = _REFUSED.get(action)
    refused = refuses is not None and refuses(what, detail)
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def _is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018  # what a closed connection refuses
    except sqlite3.ProgrammingError:
        return True
    return False


def _is_lost(connection: sqlite3.Connection) -> bool:
    return not _is_closed(connection) and not connection.in_transaction
