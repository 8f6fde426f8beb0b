"""A driver in which something else happens between two calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import anyio

from workflow_sdk import Batch, Driver

__all__ = ["Interleaved"]

T = TypeVar("T")

Deed = Callable[[], Awaitable[object]]


class Interleaved:
    """Hands everything on to a driver. Right before the call of a number, its deed is done; or right after it.

    Calls are numbered from 1. What a deed does to the driver inside is not counted.
    """

    def __init__(self, driver: Driver, deeds: Mapping[int, Deed], *, after: bool = False) -> None:
        self.driver: Driver = driver
        self.left: dict[int, Deed] = dict(deeds)
        self.calls: int = 0
        self._after = after

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        deed = self._next()
        if not self._after:
            await self._do(deed)
        try:
            return await call()
        finally:
            if self._after:
                await self._do(deed)

    def _next(self) -> Deed | None:
        self.calls += 1
        return self.left.pop(self.calls, None)

    @staticmethod
    async def _do(deed: Deed | None) -> None:
        # Somebody else does it: it is not cancelled with whoever calls.
        if deed is not None:
            with anyio.CancelScope(shield=True):
                await deed()

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
        await self._do(self._next())
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        """As the driver."""
        await self.driver.aclose()
