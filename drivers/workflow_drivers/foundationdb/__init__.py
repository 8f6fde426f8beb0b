"""The store in a FoundationDB cluster: for any number of machines.

`fdb:///etc/foundationdb/fdb.cluster?prefix=shop`, or `fdb://` for the cluster file that FoundationDB's client finds by
itself. Options: `prefix` (all keys lie under it; `workflow_sdk`), `api_version` (`730`), `timeout` (seconds until an
operation is an error; `10`), `automatic_idempotency` (`no`).

`_binding.py` reads the URL and is all that is used of the `foundationdb` package. `_keys.py` says where things lie and
how. `_session.py` waits for the cluster, tries again what can be, and reads. `_plan.py` turns a batch into what is to
be written, and `_commit.py` applies that exactly once. `_watch.py` knows who waits for which key, and `_user.py` is
what authors write with in transactions of their own. Here is the driver, and what is done when a store is opened.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.to_thread

from workflow_drivers.foundationdb._binding import Binding, Settings, Transaction, load, parse
from workflow_drivers.foundationdb._commit import STAGED_OLD_SECONDS, Committer, unstage
from workflow_drivers.foundationdb._keys import end_of, holds, is_old, space_of
from workflow_drivers.foundationdb._session import Counts, Session, get_row, result
from workflow_drivers.foundationdb._user import UserTransaction
from workflow_drivers.foundationdb._watch import Watches
from workflow_sdk.driver import Batch
from workflow_sdk.errors import StorageError

__all__ = ["FoundationDBDriver", "UserTransaction", "open"]

T = TypeVar("T")

logger = logging.getLogger("workflow_drivers.foundationdb")

FORMAT = b"1"  # the version of how things lie under the prefix
SWEPT_MAX = 1_000  # how many leftovers of each kind are looked at when a store is opened; the rest is for the next time
SLOTS_OLD_SECONDS = 86_400.0
CLOSING_SECONDS = 2.0  # all that closing does is to clear slots that would be cleared later


class FoundationDBDriver:
    """A store in a FoundationDB cluster, for any number of event loops and threads. Made by `open`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._committer = Committer(session)
        self._watches = Watches(session)
        self._closed = False

    @property
    def counts(self) -> Counts:
        """What happened since the driver was opened."""
        return self._session.counts

    @property
    def conflicts(self) -> int:
        """Transactions that lost against another one and were tried again."""
        return self.counts.conflicts

    @property
    def retries(self) -> int:
        """Transactions that were tried again, for any reason."""
        return self.counts.retries

    @property
    def unknown_results(self) -> int:
        """Commits that ended without an answer. It was found out whether they were applied, or callers were told."""
        return self.counts.unknown_results

    async def describe(self) -> dict[str, str]:
        """The settings and the state of the store, for people who look after it."""
        self._check_open()
        settings = self._session.settings
        return {
            "store": "FoundationDB",
            "cluster file": settings.cluster_file or "(default)",
            "prefix": settings.prefix,
            "api version": str(settings.api_version),
            "timeout": f"{settings.timeout:g} s",
            "commits": str(self.counts.commits),
            "watched keys": str(self._watches.count),
        }

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None."""
        self._check_open()
        session = self._session
        return await session.run("read", lambda transaction: session.get_value(transaction.snapshot, key))

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it, in byte order (or its reverse), of one state.

        All pages are read in one transaction. After five seconds that becomes too old, and all is read again.
        """
        self._check_open()
        session = self._session
        return await session.run(
            "scan", lambda transaction: session.scan_values(transaction.snapshot, begin, end, limit, reverse)
        )

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch, whole and durably, or raise: ConflictError if a check did not hold.

        If this is cancelled before the commit is sent off, nothing is applied. Later, it returns when that is decided.
        """
        self._check_open()
        await self._committer.commit(batch)

    async def transact(self, fn: Callable[[UserTransaction], T], finish: Callable[[T], Batch], /) -> None:
        """Call `fn` with a transaction, and apply the batch that `finish` makes of it in the same one.

        `fn` runs in a worker thread, where it may wait for what it reads. Both are called again after conflicts and
        other errors that pass, with a new transaction.
        """
        self._check_open()

        async def make(transaction: Transaction) -> Batch:
            user = UserTransaction(transaction, self._session.space.user)
            # In a list: trio refuses to take an awaitable out of a thread, and `fn` may return one.
            (value,) = await anyio.to_thread.run_sync(lambda: [fn(user)], abandon_on_cancel=True)
            return finish(value)

        await self._committer.transact(make)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value of `key` differs from `since`, whichever process changed it."""
        self._check_open()
        place = self._session.space.row(key)

        async def body(transaction: Transaction) -> tuple[Transaction, bytes | None]:
            return transaction, await get_row(transaction.snapshot, place)

        looks = 0
        while True:
            transaction, row = await self._session.run("look for a change", body)
            if not holds(row, since):
                return
            await self._watches.wait(transaction, place, row, looks)
            self._check_open()
            looks += 1

    async def sibling(self) -> FoundationDBDriver:
        """Another handle of the same store, for another thread."""
        self._check_open()
        return FoundationDBDriver(self._session)

    async def aclose(self) -> None:
        """Let go of the store. The connection to the cluster is the process's, and stays."""
        if self._closed:
            return
        self._closed = True
        self._watches.close()
        with suppress(StorageError):
            await self._committer.forget_slots(min(CLOSING_SECONDS, self._session.settings.timeout))

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"the store {self._session.settings} has been closed")


async def open(url: str) -> FoundationDBDriver:
    """Open the store that `url` names. The cluster is asked whether it is there."""
    return await connect(*load(parse(url)))


async def connect(binding: Binding, settings: Settings) -> FoundationDBDriver:
    """Open the store in the cluster that the binding leads to."""
    try:
        # Without an event model: those of the binding block, or need what asyncio has no longer.
        database = binding.open(settings.cluster_file)
    except binding.FDBError as error:
        raise StorageError(f"the cluster file {settings.cluster_file or '(default)'} can't be used: {error}") from error
    session = Session(binding, database, settings, space_of(settings.prefix))
    await _check_format(session)
    driver = FoundationDBDriver(session)
    try:
        await _sweep_slots(session)
        await _sweep_staged(session)
    except StorageError:
        logger.warning("what crashed processes have left in %s could not be cleared", settings, exc_info=True)
    return driver


async def _check_format(session: Session) -> None:
    """Write the format into a new store. Raises StorageError if the store has another format."""
    place = session.space.format

    async def body(transaction: Transaction) -> bytes:
        found = await get_row(transaction, place)
        if found is not None:
            return found
        transaction.set(place, FORMAT)
        await result(transaction.commit())
        return FORMAT

    found = await session.run("open the store", body)
    if found != FORMAT:
        raise StorageError(
            f"{session.settings} was written by a newer version: its format is {found!r:.40}, not {FORMAT!r}"
        )


async def _sweep_slots(session: Session) -> None:
    """Clear the slots that crashed processes have left behind long ago."""
    begin, end = session.space.tokens, end_of(session.space.tokens)

    async def body(transaction: Transaction) -> None:
        # From the snapshot, or every commit of others would conflict with this. From a random place on, since there may
        # be more slots in use than are looked at, and the next opening has to get to others.
        middle = begin + os.urandom(1)
        rows = await session.scan_rows(transaction.snapshot, middle, end, SWEPT_MAX)
        rows += await session.scan_rows(transaction.snapshot, begin, middle, SWEPT_MAX)
        old = [key for key, value in rows if is_old(value, SLOTS_OLD_SECONDS)]
        for key in old:
            # If its driver lives after all, and writes to it now, this fails, and the slot stays.
            transaction.add_read_conflict_key(key)
            transaction.clear(key)
        if old:
            await result(transaction.commit())

    await session.run("sweep", body)


async def _sweep_staged(session: Session) -> None:
    """Clear the chunks that crashed processes have written ahead long ago."""
    begin, end = session.space.staged, end_of(session.space.staged)
    rows = await session.run(
        "sweep", lambda transaction: session.scan_rows(transaction.snapshot, begin, end, SWEPT_MAX)
    )
    for key, value in rows:
        if is_old(value, STAGED_OLD_SECONDS):
            await unstage(session, key.removeprefix(begin))
