"""A driver that fails where it is told to: for tests of what happens when the store, or the process, gives out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from random import Random
from typing import Any, TypeVar, cast

import anyio

from workflow_sdk.driver import Batch, Driver, Transacting, transacting
from workflow_sdk.errors import ConflictError, StorageError

__all__ = ["FaultyDriver", "SimulatedCrash"]


T = TypeVar("T")


class SimulatedCrash(BaseException):
    """The process has died, as far as the store can tell.

    Not an Exception, so that no `except Exception`, of an author or of the engine, lives on after its own death. A task
    group hands it on inside a BaseExceptionGroup: `except* SimulatedCrash` finds it there.
    """


class FaultyDriver:
    """Hands everything on to `driver`, but for the commits that it was told about. They are numbered from 1.

    - `fail_at`: these raise StorageError; nothing is written.
    - `conflict_at`: these raise ConflictError; nothing is written.
    - `crash_before`, `crash_after`: from this commit on, every call raises SimulatedCrash; with `crash_after`, this one
      is still written.
    - `latency`: seconds that every commit takes longer, half of them before it is written and half after, so that it
      can be cancelled on either side; however few, they give way to other tasks. With a `seed`, a random share of them.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        fail_at: Collection[int] = (),
        crash_before: int | None = None,
        crash_after: int | None = None,
        conflict_at: Collection[int] = (),
        latency: float = 0.0,
        seed: int | None = None,
    ) -> None:
        self.driver = driver
        self.commits: int = 0
        """How many commits were begun, the ones that failed among them."""
        self.crashed: bool = False
        self._fail_at = frozenset(fail_at)
        self._conflict_at = frozenset(conflict_at)
        self._crash_before = crash_before
        self._crash_after = crash_after
        self._latency = latency
        self._random = None if seed is None else Random(seed)

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
        await self._commit(lambda: self.driver.commit(batch))

    async def _commit(self, apply: Callable[[], Awaitable[None]]) -> None:
        self._check_alive()
        self.commits += 1
        number = self.commits
        if number == self._crash_before:
            self._crash()
        pause = self._pause()
        await self._sleep(pause)
        self._check_alive()
        if number in self._fail_at:
            raise StorageError(f"commit {number} was told to fail")
        if number in self._conflict_at:
            raise ConflictError(f"commit {number} was told to meet a conflict")
        if number == self._crash_after:
            with suppress(StorageError, ConflictError):  # had it been refused, nobody would have lived to see it
                await apply()
            self._crash()
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
        await self._commit(lambda: driver.transact(fn, finish))

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

    def _crash(self) -> None:
        self.crashed = True
        self._check_alive()

    def _check_alive(self) -> None:
        if self.crashed:
            raise SimulatedCrash(f"the process has crashed at commit {self._crash_before or self._crash_after}")

    def _pause(self) -> float:
        share = 1.0 if self._random is None else self._random.random()
        return self._latency * share / 2

    async def _sleep(self, seconds: float) -> None:
        if self._latency > 0:
            await anyio.sleep(seconds)
