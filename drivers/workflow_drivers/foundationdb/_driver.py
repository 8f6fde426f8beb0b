"""The driver: its methods, and how it is opened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.to_thread

from workflow_drivers.foundationdb._binding import Binding, Transaction, as_chosen, load
from workflow_drivers.foundationdb._commit import Committer
from workflow_drivers.foundationdb._keys import space_of
from workflow_drivers.foundationdb._plan import Plan, plan_of
from workflow_drivers.foundationdb._reading import get_row, get_value, scan_values
from workflow_drivers.foundationdb._session import Counts, Session
from workflow_drivers.foundationdb._upkeep import open_store, sweep
from workflow_drivers.foundationdb._url import Settings, parse
from workflow_drivers.foundationdb._user import UserTransaction
from workflow_drivers.foundationdb._values import holds
from workflow_drivers.foundationdb._watch import Watches
from workflow_sdk.driver import Batch
from workflow_sdk.errors import StorageError

T = TypeVar("T")

logger = logging.getLogger("workflow_drivers.foundationdb")

CLOSING_SECONDS = 2.0
"""How long closing may take, since all it does is to clear slots that would be cleared later."""


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

        async def body(transaction: Transaction) -> bytes | None:
            return await get_value(self._session, transaction.snapshot, key)

        return await self._session.run("read", body)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it, in byte order (or its reverse), of one state.

        All pages are read in one transaction. After five seconds that becomes too old, and all is read again.
        """
        self._check_open()

        async def body(transaction: Transaction) -> list[tuple[bytes, bytes]]:
            return await scan_values(self._session, transaction.snapshot, begin, end, limit, reverse)

        return await self._session.run("scan", body)

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch, whole and durably, or raise: ConflictError if a check did not hold.

        If this is cancelled before the commit is sent off, nothing is applied. Later, it returns when that is decided.
        """
        self._check_open()
        plan = plan_of(batch, self._session.space)
        if batch:
            await self._committer.commit(plan)

    async def transact(self, fn: Callable[[UserTransaction], T], finish: Callable[[T], Batch], /) -> None:
        """Call `fn` with a transaction, and apply the batch that `finish` makes of it in the same one.

        `fn` runs in a worker thread, where it may wait for what it reads. Both are called again after conflicts and
        other errors that pass, with a new transaction.
        """
        self._check_open()
        space = self._session.space

        async def make(transaction: Transaction) -> Plan:
            user = UserTransaction(transaction, space.user)
            # In a list: trio refuses to take an awaitable out of a thread, and `fn` may return one.
            (value,) = await anyio.to_thread.run_sync(lambda: [fn(user)], abandon_on_cancel=True)
            return plan_of(finish(value), space)

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
    settings = as_chosen(parse(url))
    return await connect(load(settings), settings)


async def connect(binding: Binding, settings: Settings) -> FoundationDBDriver:
    """Open the store in the cluster that the binding leads to."""
    try:
        # Without an event model: those of the binding block, or need what asyncio has no longer.
        database = binding.open(settings.cluster_file)
    except binding.FDBError as error:
        raise StorageError(f"the cluster file {settings.cluster_file or '(default)'} can't be used: {error}") from error
    session = Session(binding, database, settings, space_of(settings.prefix))
    await open_store(session)
    driver = FoundationDBDriver(session)
    try:
        await sweep(session)
    except StorageError:
        logger.warning("what crashed processes have left in %s could not be cleared", settings, exc_info=True)
    return driver
