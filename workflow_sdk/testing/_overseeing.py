"""What stores are asked on a virtual clock, so that the clock does not jump while an answer is on its way.

A call that reads or writes will be answered, however slow the store is, and the clock waits for it. A call of `changed`
may wait for ever. But if the value has changed already, it is about to return, and the clock waits for that. Only the
store can tell, so the clock asks it: for every watch that is new, or whose key was written to since it was last asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from threading import Lock
from time import monotonic
from typing import Any, TypeVar, cast

import anyio

from workflow_sdk.driver import Batch, Driver, Transacting, Waiters, Write, transacting
from workflow_sdk.testing.faulty import SimulatedCrash

_log = logging.getLogger("workflow_sdk.testing")

PATIENT_SECONDS = 5.0
"""After so much real time without an answer, a warning says what the clock waits for."""

T = TypeVar("T")


class _Call:
    """A call that a store has not answered yet."""

    __slots__ = ("began", "is_over", "is_told", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.began = monotonic()
        self.is_over = False
        self.is_told = False


class Watch:
    """A call of `changed` that has not returned."""

    __slots__ = ("doubts", "driver", "key", "since")

    def __init__(self, driver: Driver, key: bytes, since: bytes | None) -> None:
        self.driver = driver
        self.key = key
        self.since = since
        self.doubts = 0
        """Counts the commits that may have changed the value."""


class Stores:
    """What is asked of stores on one clock. `on_answer` is called with every answer."""

    def __init__(self, on_answer: Callable[[], None]) -> None:
        self._on_answer = on_answer
        self._lock = Lock()
        """Guards what the thread of a transaction changes."""
        self._calls: set[_Call] = set()
        self._watches = Waiters[Watch]()
        self._doubtful: set[Watch] = set()
        """The watches whose values may have changed."""
        self._late: dict[Watch, _Call] = {}
        """The watches whose values have changed, and which are about to return."""
        self._asked = 0.0
        """For how many seconds answers were awaited, up to the last time when none was."""
        self._asked_since: float | None = None
        self.commits: int = 0
        """How many commits have succeeded."""
        self.events: int = 0
        """Changes with everything that is asked or answered."""

    @property
    def owe(self) -> bool:
        """Whether an answer is to come, or a watch is about to return."""
        return bool(self._calls or self._late)

    @property
    def has_late(self) -> bool:
        """Whether a watch is about to return."""
        return bool(self._late)

    @property
    def settled(self) -> bool:
        """Whether no answer is to come, and everybody has heard of every change."""
        return not (self._calls or self._doubtful)

    async def look(self) -> None:
        """Find out whether everybody has heard of every change."""
        async with anyio.create_task_group() as group:
            for watch in list(self._doubtful):
                group.start_soon(self._look_at, watch)

    async def _look_at(self, watch: Watch) -> None:
        doubts = watch.doubts
        with self.asking("get"):
            try:
                value = await watch.driver.get(watch.key)
            except (Exception, SimulatedCrash):  # noqa: BLE001  # nobody hears of a change from a store that fails
                value = watch.since
        if watch not in self._doubtful:
            return  # it has returned meanwhile
        if value != watch.since:
            self._late.setdefault(watch, _Call(f"word of a change of {watch.key!r:.100}"))
        elif doubts == watch.doubts:
            self._doubtful.discard(watch)
            self._late.pop(watch, None)

    def asked(self) -> float:
        """For how many seconds an answer has been awaited so far, in all."""
        with self._lock:
            since = self._asked_since
            return self._asked if since is None else self._asked + monotonic() - since

    @contextmanager
    def asking(self, what: str) -> Generator[_Call]:
        """A context: a store is asked for something."""
        call = _Call(what)
        self._begin(call)
        try:
            yield call
        finally:
            call.is_over = True
            self._end(call)

    def _begin(self, call: _Call) -> None:
        with self._lock:
            self.events += 1
            if call.is_over:
                return  # nobody waits for the answer any more
            if not self._calls:
                self._asked_since = monotonic()
            self._calls.add(call)

    def _end(self, call: _Call) -> None:
        with self._lock:
            self._calls.discard(call)
            self.events += 1
            if not self._calls and self._asked_since is not None:
                self._asked += monotonic() - self._asked_since
                self._asked_since = None
        self._on_answer()

    @contextmanager
    def elsewhere(self, call: _Call) -> Generator[None]:
        """A context: a call is not with the store, but in the function of the author."""
        self._end(call)
        try:
            yield
        finally:
            self._begin(call)

    @contextmanager
    def watching(self, watch: Watch) -> Generator[None]:
        """A context: somebody waits for a change."""
        self._watches.add(watch.key, watch)
        self._doubtful.add(watch)  # what it has seen may be old already
        self.events += 1
        try:
            yield
        finally:
            self._watches.discard(watch.key, watch)
            self._doubtful.discard(watch)
            self._late.pop(watch, None)
            self.events += 1
            self._on_answer()

    def wrote(self, writes: Iterable[Write]) -> None:
        """Note that a commit may have been made, of which watches may not have heard."""
        for key in self._watches.touched(writes) if self._watches.by_key else ():
            for watch in self._watches.by_key[key]:
                watch.doubts += 1
                self._doubtful.add(watch)

    def complain(self) -> None:
        """Log a warning for every answer that the clock has waited for long."""
        now = monotonic()
        with self._lock:
            calls = [*self._calls, *self._late.values()]
        for call in calls:
            if not call.is_told and now - call.began >= PATIENT_SECONDS:
                call.is_told = True
                _log.warning(
                    "the virtual clock waits for a store, and jumps to no timer before it has answered: "
                    "%s has taken %.3g s of real time so far",
                    call.what,
                    now - call.began,
                )

    def warn_of_no_commit(self, looks: int) -> None:
        """Log a warning that the clock slows down."""
        _log.warning(
            "the virtual clock slows down: it has looked %d times for the next timer, and nothing was committed "
            "meanwhile, so that something probably fails again and again",
            looks,
        )


class OverseenDriver:
    """A driver that hands everything on to another one, and tells the clock of it."""

    def __init__(self, driver: Driver, stores: Stores) -> None:
        self.driver = driver
        self.unseen = driver
        self.stores = stores

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None."""
        with self.stores.asking("get"):
            return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it."""
        with self.stores.asking("scan"):
            return await self.driver.scan(begin, end, limit=limit, reverse=reverse)

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch, whole, or raise."""
        with self.stores.asking("commit"):
            try:
                await self.driver.commit(batch)
                self.stores.commits += 1
            finally:
                self.stores.wrote(batch.writes)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value of `key` differs from `since`."""
        with self.stores.watching(Watch(self.driver, key, since)):
            await self.driver.changed(key, since)

    async def aclose(self) -> None:
        """Close the driver inside."""
        with self.stores.asking("aclose"):
            await self.driver.aclose()

    def __getattr__(self, name: str) -> Any:
        # Not every driver transacts, and this one only if the one inside does.
        if name == "transact" and transacting(self.driver) is not None:
            return self._transact
        return getattr(self.driver, name)

    async def _transact(self, fn: Callable[[Any], T], finish: Callable[[T], Batch], /) -> None:
        stores, batches = self.stores, list[Batch]()

        def call_fn(transaction: Any) -> T:
            with stores.elsewhere(call):
                return fn(transaction)

        def call_finish(value: T) -> Batch:
            batches.append(finish(value))
            return batches[-1]

        with stores.asking("transact") as call:
            driver = cast("Transacting", self.driver)
            try:
                await driver.transact(call_fn, call_finish)
                stores.commits += 1
            finally:
                for batch in batches:
                    stores.wrote(batch.writes)
