"""A driver that counts what is asked of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from tests.patience import PATIENCE
from tests.runtime.polling import settle
from workflow_sdk import Batch, Driver

__all__ = ["Counting"]


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
        self.under_way: int = 0
        """Of the calls that come back by themselves."""

    @property
    def calls(self) -> int:
        """All of them."""
        return self.gets + self.scans + self.commits + self.watches

    @contextmanager
    def _goes_on(self) -> Generator[None]:
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    async def until_quiet(self) -> None:
        """Return once nobody calls any more."""
        before = -1
        with anyio.fail_after(PATIENCE):
            while self.calls != before or self.under_way:
                before = self.calls
                await settle(self.driver)

    async def get(self, key: bytes, /) -> bytes | None:
        """As the driver."""
        self.gets += 1
        with self._goes_on():
            return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """As the driver."""
        self.scans += 1
        with self._goes_on():
            rows = await self.driver.scan(begin, end, limit=limit, reverse=reverse)
        self.rows += len(rows)
        return rows

    async def commit(self, batch: Batch, /) -> None:
        """As the driver."""
        self.commits += 1
        with self._goes_on():
            await self.driver.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """As the driver."""
        self.watches += 1
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        """As the driver."""
        await self.driver.aclose()
