"""A driver that fails where it is told to, for tests of what happens when the store fails or the process dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from random import Random
from typing import Any, TypeAlias, TypeVar, cast

import anyio

from workflow_sdk.driver import Batch, Driver, ProcessDied, Transacting, transacting
from workflow_sdk.errors import ConflictError, StorageError

__all__ = ["FaultyDriver", "SimulatedCrash"]


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

    async def _commit(self, batch: Batch, apply: Callable[[], Awaitable[None]]) -> None:
        self._check_alive()
        self.commits += 1
        number = self.commits
        if self._crashes_before(number, batch):
            self.crash()
        pause = self._pause(number, batch)
        await self._sleep(pause)
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
        await self._sleep(pause)
        self._check_alive()

    def __getattr__(self, name: str) -> Any:
        # Not every driver transacts, and this one only if the one inside does.
        if name == "transact" and transacting(self.driver) is not None:
            return self._transact
        raise AttributeError(name)

    async def _transact(self, fn: Callable[[Any], T], finish: Callable[[T], Batch], /) -> None:
        driver = cast("Transacting", self.driver)
        await self._commit(Batch(), lambda: driver.transact(fn, finish))

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value of `key` differs from `since`."""
        self._check_alive()
        await self.driver.changed(key, since)
        self._check_alive()

    async def aclose(self) -> None:
        """Close the driver inside. After a crash as well, and quietly, so that no test leaves it open."""
        if self.crashed:
            with suppress(StorageError):
                await self.driver.aclose()
        else:
            await self.driver.aclose()

    def _chosen(self, when: When) -> Callable[[int, Batch], bool]:
        if when is None:
            return lambda number, batch: False
        if callable(when):
            return when
        if isinstance(when, float):
            return lambda number, batch: when >= 1 or self._random.random() < when
        numbers = frozenset([when] if isinstance(when, int) else when)
        return lambda number, batch: number in numbers

    def crash(self) -> None:
        """Die now: from now on every call raises SimulatedCrash, and so does this one."""
        self.crashed = True
        self._crashed_at = self._crashed_at or self.commits
        self._check_alive()

    def _check_alive(self) -> None:
        if self.crashed:
            raise SimulatedCrash(f"the process has crashed at commit {self._crashed_at}")

    def _pause(self, number: int, batch: Batch) -> float | None:
        if self._latency <= 0 or not self._slow(number, batch):
            return None
        return self._latency * (self._random.random() if self._shares else 1.0) / 2

    async def _sleep(self, seconds: float | None) -> None:
        if seconds is not None:
            await anyio.sleep(seconds)
