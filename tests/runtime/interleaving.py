"""A driver in which something else happens between two calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from workflow_sdk import Batch, Driver

__all__ = ["Interleaved"]

T = TypeVar("T")

Deed = Callable[[], Awaitable[object]]


class Interleaved:
    """Hands everything on to a driver. Right before the call of a number, its deed is done; or right after it.

    Calls are numbered from 1. What a deed does to the driver inside is not counted.
    """

    def __init__(self, driver: Driver, deeds: Mapping[int, Deed], *, after: bool = False) -> None:
        self.driver = driver
        self.left = dict(deeds)
        self.calls = 0
        self._after = after

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        self.calls += 1
        deed = self.left.pop(self.calls, None)
        if deed is not None and not self._after:
            await deed()
        result = await call()
        if deed is not None and self._after:
            await deed()
        return result

    async def get(self, key: bytes, /) -> bytes | None:
        """As the driver."""
        return await self._call(lambda: self.driver.get(key))

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """As the driver."""
        return await self._call(lambda: self.driver.scan(begin, end, limit=limit, reverse=reverse))

    async def commit(self, batch: Batch, /) -> None:
        """As the driver."""
        await self._call(lambda: self.driver.commit(batch))

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """As the driver. A deed comes before it: afterwards is when it was woken."""
        self.calls += 1
        deed = self.left.pop(self.calls, None)
        if deed is not None:
            await deed()
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        """As the driver."""
        await self.driver.aclose()
