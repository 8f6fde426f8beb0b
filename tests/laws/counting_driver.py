"""A driver that counts what it is asked, and lets a test step in before a commit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.settings import IN_MEMORY
from tests.support import World, open_store
from workflow_sdk import Batch, Driver
from workflow_sdk.rows.keys import NAMES, InstanceKeys

Row = tuple[bytes, bytes]
BeforeCommit = Callable[[int], Awaitable[None]]


async def rows_of(driver: Driver) -> list[Row]:
    """Every row of a store."""
    return await driver.scan(b"", b"\xff")


async def names_of(world: World) -> int:
    """How many names are stored of the instance."""
    return len(await world.driver.scan(*InstanceKeys("i").range(NAMES)))


@asynccontextmanager
async def fresh_world(directory: Path) -> AsyncGenerator[World, None]:
    """An empty store in memory, and a clock."""
    driver = await open_store("memory", directory)
    try:
        yield World(IN_MEMORY, driver, directory)
    finally:
        await driver.aclose()


class WatchedDriver:
    """Hands everything on, and counts it. `before_commit` is called with the number of the commit, from 1."""

    def __init__(self, driver: Driver, before_commit: BeforeCommit | None = None) -> None:
        self.driver = driver
        self.before_commit = before_commit
        self.gets = 0
        self.scans = 0
        self.rows_read = 0
        self.commits: list[int] = []
        """How many keys and ranges each commit wrote."""

    @property
    def asked(self) -> int:
        """How often it was asked for something to read."""
        return self.gets + self.scans

    def reset(self) -> None:
        """Count from zero again."""
        self.gets = self.scans = self.rows_read = 0
        self.commits = []

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`."""
        self.gets += 1
        return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows of a range."""
        self.scans += 1
        rows = await self.driver.scan(begin, end, limit=limit, reverse=reverse)
        self.rows_read += len(rows)
        return rows

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch."""
        self.commits.append(len(batch.writes))
        if self.before_commit is not None:
            await self.before_commit(len(self.commits))
        await self.driver.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value of `key` differs."""
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        """Close the driver inside."""
        await self.driver.aclose()
