"""A driver that counts what is asked of it."""

from __future__ import annotations

import anyio

from workflow_sdk import Batch, Driver

__all__ = ["Counting"]

QUIET_SECONDS = 0.1


class Counting:
    """Hands everything on to a driver, and counts the calls."""

    def __init__(self, driver: Driver) -> None:
        self.driver: Driver = driver
        self.gets: int = 0
        self.scans: int = 0
        self.rows: int = 0
        """How many rows the scans have brought."""
        self.commits: int = 0
        self.watches: int = 0

    @property
    def calls(self) -> int:
        """All of them."""
        return self.gets + self.scans + self.commits + self.watches

    async def until_quiet(self) -> None:
        """Return once nothing more is asked. A store that is some milliseconds away takes its time to answer."""
        before = -1
        while before != self.calls:
            before = self.calls
            await anyio.sleep(QUIET_SECONDS)

    async def get(self, key: bytes, /) -> bytes | None:
        """As the driver."""
        self.gets += 1
        return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """As the driver."""
        self.scans += 1
        rows = await self.driver.scan(begin, end, limit=limit, reverse=reverse)
        self.rows += len(rows)
        return rows

    async def commit(self, batch: Batch, /) -> None:
        """As the driver."""
        self.commits += 1
        await self.driver.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """As the driver."""
        self.watches += 1
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        """As the driver."""
        await self.driver.aclose()
