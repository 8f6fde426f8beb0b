"""What a parked branch waits for in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import anyio
import anyio.lowlevel

__all__ = ["Bell"]


class Bell:
    """Rings once, for the one who waits. A fifth of the memory of an event, of which thousands may be waited for."""

    __slots__ = ("_rung", "_waiter")

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | anyio.Event | None = None

    def ring(self) -> None:
        """Let whoever waits go on, now or later."""
        self._rung = True
        waiter = self._waiter
        if isinstance(waiter, anyio.Event):
            waiter.set()
        elif waiter is not None and not waiter.done():
            waiter.set_result(None)

    def until_rung(self) -> Awaitable[None]:
        """To be awaited at once: it returns once the bell has rung. Without a frame of its own, where that can be."""
        if self._rung:
            return anyio.lowlevel.checkpoint()
        try:
            waiter = self._waiter = asyncio.get_running_loop().create_future()
        except RuntimeError:
            event = self._waiter = anyio.Event()
            return event.wait()
        return waiter
