"""Stores that answer late: after a random time, or when they are told to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio

from tests.support import open_store
from workflow_sdk import Batch, Driver

__all__ = ["SHORT", "HeldDriver", "SlowDriver", "slow_stores"]

SHORT = 0.001, 0.03
"""Seconds that every way to a store and back may take: many times what a clock of these tests calls quiet."""


class SlowDriver:
    """Hands everything on late. Its answers are late, too, and so is word of a change."""

    def __init__(self, driver: Driver, seconds: tuple[float, float] = SHORT, seed: int = 0) -> None:
        self.driver = driver
        self._seconds = seconds
        self._random = Random(seed)

    async def _wait(self) -> None:
        await anyio.sleep(self._random.uniform(*self._seconds))

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None."""
        await self._wait()
        value = await self.driver.get(key)
        await self._wait()
        return value

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it."""
        await self._wait()
        rows = await self.driver.scan(begin, end, limit=limit, reverse=reverse)
        await self._wait()
        return rows

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch."""
        await self._wait()
        await self.driver.commit(batch)
        await self._wait()

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value of `key` differs from `since`."""
        await self._wait()
        await self.driver.changed(key, since)
        await self._wait()

    async def aclose(self) -> None:
        """Close the driver inside."""
        await self.driver.aclose()


@asynccontextmanager
async def slow_stores(kind: str, directory: Path, count: int, seed: int = 0) -> AsyncGenerator[list[SlowDriver]]:
    """So many handles of one store of that kind, each of them slow."""
    # A store in memory has as many users as there are, of one handle.
    drivers = [await open_store(kind, directory) for _ in range(1 if kind == "memory" else count)]
    try:
        yield [SlowDriver(drivers[number % len(drivers)], seed=seed + number) for number in range(count)]
    finally:
        for driver in drivers:
            await driver.aclose()


class HeldDriver:
    """Hands everything on; answers to `get`, and word of a change, are held back until they are let go."""

    def __init__(self, driver: Driver, *, answers: bool = False, word: bool = False) -> None:
        self.driver = driver
        self.answers = anyio.Event()
        self.word = anyio.Event()
        if not answers:
            self.answers.set()
        if not word:
            self.word.set()

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None."""
        value = await self.driver.get(key)
        await self.answers.wait()
        return value

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it."""
        return await self.driver.scan(begin, end, limit=limit, reverse=reverse)

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch."""
        await self.driver.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value of `key` differs from `since`, and that may be known."""
        while True:
            await self.driver.changed(key, since)
            await self.word.wait()
            if await self.driver.get(key) != since:
                return

    async def aclose(self) -> None:
        """Close the driver inside."""
        await self.driver.aclose()
