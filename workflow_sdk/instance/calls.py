"""Calling the functions of the author: in the event loop, in threads, in transactions of the store."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from workflow_sdk.changes.decide import tries_in
from workflow_sdk.driver import StorageLimitError, transacting
from workflow_sdk.instance.clock import Timeout
from workflow_sdk.instance.loading import Scannable
from workflow_sdk.instance.parking import RunParking
from workflow_sdk.instance.session import Session
from workflow_sdk.instance.threads import Call, Threads
from workflow_sdk.journal.journal import Journal
from workflow_sdk.operations.place import Place
from workflow_sdk.operations.scope import current_scope
from workflow_sdk.operations.types import Wait
from workflow_sdk.rows.instance import Try
from workflow_sdk.rows.keys import TRIES

T = TypeVar("T")
S = TypeVar("S")

_log = logging.getLogger("workflow_sdk.runtime")

WAITS_UNSEEN_SECONDS = 1.0
"""How long a step waits for a thread before its wait is stored, so that everybody can see it."""


class RunCalls:
    """Calls the functions of the author for one run."""

    __slots__ = ("_deaths", "_parking", "_session", "in_threads")

    def __init__(self, session: Session, parking: RunParking) -> None:
        self._session = session
        self._parking = parking
        self._deaths: _Deaths | None = None
        self.in_threads: int = 0
        """How many calls are in threads, or wait for one."""

    # What is noted of a call.

    async def tell(self, path: str, location: bytes | None = None) -> None:
        """Note that the code of an operation is about to be called; with a location, store it if workers have died."""
        if self._session.life.deaths is not None and self._deaths is not None and location is not None:
            self._deaths.note(location, path)
            await self._parking.flush(stay=True)
        watched = self._session.life.watched
        if watched is not None:
            if watched.dry:
                await self._session.life.never()
            watched.calls(path, self._session.facts.generation)

    def survived(self, location: bytes) -> None:
        """Note that the code of an operation was called and this worker is still alive."""
        if self._session.life.deaths is not None and self._deaths is not None:
            self._deaths.survived(location)
            if self._parking.waits.active == 1:
                # No other branch is active, so the instance has got past all that workers died of.
                self._session.life.get_past_deaths()

    async def beware(self, store: Scannable, journal: Journal, lease: str) -> None:
        """Note every call from now on, since workers have died under the instance."""
        tries = tries_in(journal.keys, await store.scan(*journal.keys.range(TRIES)))
        self._deaths = self._session.life.deaths = _Deaths(journal, lease, tries)
        self._session.life.are_told = True

    # Calls.

    def chance(self) -> float:
        """A random number from 0 to 1, for jitter."""
        watched = self._session.life.watched
        if watched is not None and watched.seed is not None:
            return 0.5  # two runs of a test must not differ by chance
        return random.random()

    def time_limit(self, seconds: float) -> AbstractContextManager[Timeout]:
        """Cancel the block once it has taken this long."""
        return self._session.clock.timeout(seconds)

    async def thread_for(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Awaitable[Any]]:
        """Take a worker thread for a plain function; return what runs it there, which has to be called."""
        threads, call = self._session.host.threads, Call(fn, args)
        await anyio.lowlevel.checkpoint_if_cancelled()
        if not threads.take(call):
            self.in_threads += 1
            try:
                await self._wait_for_thread(threads, call)
            finally:
                self.in_threads -= 1
        return partial(self._in_thread, threads, call)

    async def _in_thread(self, threads: Threads, call: Call) -> Any:
        self.in_threads += 1
        try:
            return await threads.run(call)
        finally:
            self.in_threads -= 1

    async def _wait_for_thread(self, threads: Threads, call: Call) -> None:
        """Wait until a thread is free. If that takes long, the wait is stored, so that everybody can see it."""
        with anyio.move_on_after(WAITS_UNSEEN_SECONDS) as brief:
            await threads.wait(call)
        if brief.cancelled_caught:
            await self._wait_visibly(threads, call)
        if self._session.life.draining:
            # The instance is being evicted, so nothing new begins. The function is called when it is run again.
            threads.give_back(call)
            await self._session.life.never()

    async def _wait_visibly(self, threads: Threads, call: Call) -> None:
        step = current_scope.get()
        if not isinstance(step, Place):
            await threads.wait(call)
            return
        _log.warning(
            "%s of instance %s waits for a thread: all %d are taken by plain functions that have not returned",
            step.what,
            self._session.facts.instance_id,
            threads.most,
        )
        wait = Wait(step, "thread")
        self._parking.waits.show(wait)
        try:
            await self._parking.flush(stay=True)
            await threads.wait(call)
        finally:
            self._parking.waits.hide(wait)

    # Transactions of the store.

    @property
    def transacts(self) -> bool:
        """Whether the store lets authors write in its transactions, or this is a dry run, which calls nothing."""
        return self._session.life.is_dry or transacting(self._session.driver) is not None

    async def transact(
        self, fn: Callable[[Any], T], rows: Callable[[T], list[tuple[bytes, bytes]]], goes_on: Callable[[], bool]
    ) -> None:
        """Call `fn` with a transaction of the store, and store the `rows` of its value in the same transaction."""
        raised: list[Exception] = []

        def call(transaction: object) -> T:
            return _note(raised, fn, transaction)

        def outcome(value: T) -> list[tuple[bytes, bytes]]:
            return _note(raised, rows, value)

        await self._session.flusher.until_landed()
        if self._session.life.halted or not goes_on():
            await self._session.life.never()
        self.in_threads += 1
        try:
            error = await self._session.flusher.transact(call, outcome)
        finally:
            self.in_threads -= 1
        if error is None:
            return
        if isinstance(error, _Carried):
            raise error.raised
        if error in raised or isinstance(error, StorageLimitError):
            raise error
        self._session.life.storage_failed(error)
        await self._session.life.never()


class _Deaths:
    """Notes which operations are called after a worker has died under an instance; see `Try`."""

    __slots__ = ("_journal", "_lease", "_tries", "_unknown")

    def __init__(self, journal: Journal, lease: str, tries: dict[bytes, Try]) -> None:
        deaths = journal.about.deaths.deaths
        dead = {death.lease for death in deaths}
        self._journal = journal
        self._lease = lease
        self._unknown = tuple(death.lease for death in deaths if not death.noted)
        """The leases of deaths without a note: their cause may be any operation that begins now."""
        self._tries = {
            location: Try(tried.path, tuple(name for name in tried.leases if name in dead))
            for location, tried in tries.items()
        }

    def note(self, location: bytes, path: str) -> None:
        """Note that the code of an operation is about to be called."""
        before = self._tries.get(location)
        leases = dict.fromkeys((*(before.leases if before is not None else ()), *self._unknown, self._lease))
        tried = self._tries[location] = Try(path, tuple(leases))
        self._journal.note_try(location, tried.pack())

    def survived(self, location: bytes) -> None:
        """Note that the code of an operation was called and this worker is still alive."""
        if self._tries.pop(location, None) is not None:
            self._journal.note_try(location, None)

    def forget(self) -> None:
        """Forget the deaths, since the instance has got past the operations under which they happened."""
        self._journal.forget_deaths()


class _Carried(Exception):
    """Carries something that an author's function raised, and that is no `Exception`, through the code of the store."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(raised)
        self.raised = raised


def _note(raised: list[Exception], fn: Callable[[S], T], value: S) -> T:
    """Return what `fn` returns; note what it raises, to tell that from errors of the store."""
    try:
        return fn(value)
    except Exception as error:
        raised[:] = [error]
        raise
    except BaseException as error:  # noqa: BLE001  # `transact` raises it again
        # Anything else would end the thread of the store, or leave its transaction open.
        raise _Carried(error) from None
