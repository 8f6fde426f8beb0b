"""Drivers that stand before another one: `FaultyDriver` fails where it is told to; `OverseenDriver` serves the clock.

A virtual clock does not jump while an answer is on its way. A call that reads or writes will be answered, however slow
the store is, and the clock waits for it. A call of `changed` may wait for ever. But if the value has changed already,
it is about to return, and the clock waits for that. Only the store can tell, so the clock asks it: for every watch that
is new, or whose key was written to since it was last asked.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from random import Random
from threading import Lock
from time import monotonic
from typing import Any, TypeAlias, TypeVar, cast

import anyio

from workflow_sdk.driver import Batch, Driver, ProcessDied, Transacting, Waiters, Write, transacting
from workflow_sdk.errors import ConflictError, StorageError

__all__ = ["FaultyDriver", "SimulatedCrash"]

_log = logging.getLogger("workflow_sdk.testing")

PATIENT_SECONDS = 5.0
"""After so much real time without an answer, a warning says what the clock waits for."""

T = TypeVar("T")

When: TypeAlias = "Collection[int] | int | float | Callable[[int, Batch], bool] | None"
"""Which commits: by number, by probability (a float), or by a function of the number and of what is written."""


class SimulatedCrash(ProcessDied):
    """The process has died, as far as the store can tell.

    Not an Exception, so that no `except Exception`, of an author or of the engine, lives on after its own death. A task
    group hands it on inside a BaseExceptionGroup: `except* SimulatedCrash` finds it there.
    """


class FaultyDriver:
    """A driver that hands everything on to `driver`, except the commits that it is to fail. They are numbered from 1.

    - `fail_at`: these raise StorageError; nothing is written.
    - `conflict_at`: these raise ConflictError; nothing is written.
    - `crash_before`, `crash_after`: from this commit on, every call raises SimulatedCrash; with `crash_after`, this one
      is still written.
    - `latency`: seconds that commits take longer, half of them before they are written and half after, so that they
      can be cancelled on either side; however few, they give way to other tasks. With a `seed`, a random share of them.
    - `slow_at`: only these take longer.

    Commits are told by number, by several numbers, by a probability (a `float`; chance is that of `seed`, and the same
    for the same seed), or by a function that is given the number and the batch: true if this is one. The batch of a
    `transact` is not known beforehand, and empty.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        fail_at: When = (),
        crash_before: When = None,
        crash_after: When = None,
        conflict_at: When = (),
        latency: float = 0.0,
        slow_at: When = 1.0,
        seed: int | None = None,
    ) -> None:
        self.driver = driver
        self.commits: int = 0
        """How many commits were begun, including those that failed."""
        self.crashed: bool = False
        self._random = Random(seed)
        self._fails = self._chosen(fail_at)
        self._conflicts = self._chosen(conflict_at)
        self._crashes_before = self._chosen(crash_before)
        self._crashes_after = self._chosen(crash_after)
        self._slow = self._chosen(slow_at)
        self._latency = latency
        self._shares = seed is not None
        self._crashed_at = 0

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None."""
        self._check_alive()
        value = await self.driver.get(key)
        self._check_alive()
        return value

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it."""
        self._check_alive()
        rows = await self.driver.scan(begin, end, limit=limit, reverse=reverse)
        self._check_alive()
        return rows

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch, or fail as it was told to."""
        await self._commit(batch, lambda: self.driver.commit(batch))

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value of `key` differs from `since`."""
        self._check_alive()
        await self.driver.changed(key, since)
        self._check_alive()

    async def aclose(self) -> None:
        """Close the driver inside. After a crash as well, and quietly, so that no test leaves it open."""
        with suppress(StorageError) if self.crashed else nullcontext():
            await self.driver.aclose()

    def crash(self) -> None:
        """Die now: from now on every call raises SimulatedCrash, and so does this one."""
        self.crashed = True
        self._crashed_at = self._crashed_at or self.commits
        self._check_alive()

    def __getattr__(self, name: str) -> Any:
        # Not every driver transacts, and this one only if the one inside does.
        if name == "transact" and transacting(self.driver) is not None:
            return self._transact
        raise AttributeError(name)

    async def _transact(self, fn: Callable[[Any], T], finish: Callable[[T], Batch], /) -> None:
        driver = cast("Transacting", self.driver)
        await self._commit(Batch(), lambda: driver.transact(fn, finish))

    async def _commit(self, batch: Batch, apply: Callable[[], Awaitable[None]]) -> None:
        self._check_alive()
        self.commits += 1
        number = self.commits
        if self._crashes_before(number, batch):
            self.crash()
        pause = self._pause(number, batch)
        await _sleep(pause)
        self._check_alive()
        if self._fails(number, batch):
            raise StorageError(f"commit {number} was told to fail")
        if self._conflicts(number, batch):
            raise ConflictError(f"commit {number} was told to meet a conflict")
        if self._crashes_after(number, batch):
            with suppress(StorageError, ConflictError):  # if it is refused, nobody lives to see that
                await apply()
            self.crash()
        await apply()
        await _sleep(pause)
        self._check_alive()

    def _chosen(self, when: When) -> Callable[[int, Batch], bool]:
        if when is None:
            return lambda number, batch: False
        if callable(when):
            return when
        if isinstance(when, float):
            return lambda number, batch: when >= 1 or self._random.random() < when
        numbers = frozenset([when] if isinstance(when, int) else when)
        return lambda number, batch: number in numbers

    def _check_alive(self) -> None:
        if self.crashed:
            raise SimulatedCrash(f"the process has crashed at commit {self._crashed_at}")

    def _pause(self, number: int, batch: Batch) -> float | None:
        if self._latency <= 0 or not self._slow(number, batch):
            return None
        return self._latency * (self._random.random() if self._shares else 1.0) / 2


async def _sleep(seconds: float | None) -> None:
    if seconds is not None:
        await anyio.sleep(seconds)


# What a virtual clock is told.


@dataclass(eq=False, slots=True)
class _Call:
    """A call that a store has not answered yet."""

    what: str
    began: float = field(default_factory=monotonic)
    is_over: bool = False
    is_told: bool = False
    """Whether a warning was logged."""


@dataclass(eq=False, slots=True)
class Watch:
    """A call of `changed` that has not returned."""

    driver: Driver
    key: bytes
    since: bytes | None
    doubts: int = 0
    """Counts the commits that may have changed the value."""
    word: _Call | None = None
    """If the value has changed, what the clock waits for: this call is about to return."""


class Stores:
    """What is asked of stores on one clock. `on_answer` is called with every answer."""

    def __init__(self, on_answer: Callable[[], None]) -> None:
        self._on_answer = on_answer
        self._lock = Lock()
        """Guards what the thread of a transaction changes."""
        self._calls: set[_Call] = set()
        self._watches = Waiters[Watch]()
        self.doubtful: set[Watch] = set()
        """The watches whose values may have changed."""
        self._asked = 0.0
        """For how many seconds answers were awaited, up to the last time when none was."""
        self._asked_since: float | None = None
        self.commits: int = 0
        """How many commits have succeeded."""
        self.events: int = 0
        """Changes with everything that is asked or answered."""

    @property
    def has_late(self) -> bool:
        """Whether a watch is about to return."""
        return any(watch.word for watch in self.doubtful)

    @property
    def owe(self) -> bool:
        """Whether an answer is to come, or a watch is about to return."""
        return bool(self._calls) or self.has_late

    @property
    def settled(self) -> bool:
        """Whether no answer is to come, and everybody has heard of every change."""
        return not (self._calls or self.doubtful)

    def asked(self) -> float:
        """For how many seconds an answer has been awaited so far, in all."""
        with self._lock:
            since = self._asked_since
            return self._asked if since is None else self._asked + monotonic() - since

    async def look_at(self, watch: Watch) -> None:
        """Find out whether the value has changed of which a watch may not have heard."""
        doubts = watch.doubts
        with self.asking("get"):
            try:
                value = await watch.driver.get(watch.key)
            except (Exception, SimulatedCrash):  # noqa: BLE001  # nobody hears of a change from a store that fails
                value = watch.since
        if watch not in self.doubtful:
            return  # it has returned meanwhile
        if value != watch.since:
            watch.word = watch.word or _Call(f"word of a change of {watch.key!r:.100}")
        elif doubts == watch.doubts:
            watch.word = None
            self.doubtful.discard(watch)

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

    @contextmanager
    def elsewhere(self, call: _Call) -> Generator[None]:
        """A context: a call is not with the store, but in the function of the author."""
        self._end(call)
        try:
            yield
        finally:
            self._begin(call)

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
    def watching(self, watch: Watch) -> Generator[None]:
        """A context: somebody waits for a change."""
        self._watches.add(watch.key, watch)
        self.doubtful.add(watch)  # what it has seen may be old already
        self.events += 1
        try:
            yield
        finally:
            self._watches.discard(watch.key, watch)
            self.doubtful.discard(watch)
            self.events += 1
            self._on_answer()

    def wrote(self, writes: Iterable[Write]) -> None:
        """Note that a commit may have been made, of which watches may not have heard."""
        for key in self._watches.touched(writes) if self._watches.by_key else ():
            for watch in self._watches.by_key[key]:
                watch.doubts += 1
                self.doubtful.add(watch)

    def complain(self) -> None:
        """Log a warning for every answer that the clock has waited for long."""
        now = monotonic()
        with self._lock:
            calls = [*self._calls, *(watch.word for watch in self.doubtful if watch.word)]
        for call in calls:
            if not call.is_told and now - call.began >= PATIENT_SECONDS:
                call.is_told = True
                _log.warning(
                    "the virtual clock waits for a store, and jumps to no timer before it has answered: "
                    "%s has taken %.3g s of real time so far",
                    call.what,
                    now - call.began,
                )


class OverseenDriver:
    """A driver that hands everything on to another one, and tells the clock of it."""

    def __init__(self, driver: Driver, stores: Stores) -> None:
        self.driver = driver
        self.unseen = driver
        self.stores = stores

    async def get(self, key: bytes, /) -> bytes | None:
        with self.stores.asking("get"):
            return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        with self.stores.asking("scan"):
            return await self.driver.scan(begin, end, limit=limit, reverse=reverse)

    async def commit(self, batch: Batch, /) -> None:
        with self.stores.asking("commit"):
            try:
                await self.driver.commit(batch)
                self.stores.commits += 1
            finally:
                self.stores.wrote(batch.writes)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        with self.stores.watching(Watch(self.driver, key, since)):
            await self.driver.changed(key, since)

    async def aclose(self) -> None:
        with self.stores.asking("aclose"):
            await self.driver.aclose()

    def __getattr__(self, name: str) -> Any:
        # Not every driver transacts, and this one only if the one inside does.
        if name == "transact" and transacting(self.driver) is not None:
            return self._transact
        return getattr(self.driver, name)

    async def _transact(self, fn: Callable[[Any], T], finish: Callable[[T], Batch], /) -> None:
        batches = list[Batch]()

        def call_fn(transaction: Any) -> T:
            with self.stores.elsewhere(call):
                return fn(transaction)

        def call_finish(value: T) -> Batch:
            batches.append(finish(value))
            return batches[-1]

        with self.stores.asking("transact") as call:
            try:
                await cast("Transacting", self.driver).transact(call_fn, call_finish)
                self.stores.commits += 1
            finally:
                for batch in batches:
                    self.stores.wrote(batch.writes)
