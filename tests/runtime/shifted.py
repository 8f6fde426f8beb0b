"""Clocks that are not the others' clock, and can be set while somebody waits for them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

import anyio

from workflow_sdk.execution.clock import Activity, Timeout

__all__ = ["ByHand", "Shifted"]


class Shifted:
    """The clock on the wall, but for an offset."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset: float = offset

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time() + self.offset

    async def wait(
        self,
        event: anyio.Event,
        until: float | None,
        activity: Callable[[], Activity],
        *,
        lazily: float | None = None,
    ) -> None:
        """Return when the event is set, or when it is `until`, on this clock as it is set then."""
        due = min((time for time in (until, lazily) if time is not None), default=float("inf"))
        while not event.is_set() and due > self.time():
            with anyio.move_on_after(0.01):
                await event.wait()

    async def beat(self, seconds: float, fn: Callable[[], Awaitable[None]]) -> NoReturn:
        """Call `fn` so often."""
        while True:
            await anyio.sleep(seconds)
            await fn()

    def life(self, worker: str) -> AbstractContextManager[None]:
        """Time goes on by itself."""
        return nullcontext()

    def is_alive(self, worker: str) -> bool:
        """Heartbeats tell."""
        return False

    def timeout(self, seconds: float) -> AbstractContextManager[Timeout]:
        """Cancel what runs inside once it has taken this long."""
        return anyio.move_on_after(seconds)


class ByHand(Shifted):
    """A clock that stands still until its offset is changed; heartbeats go by it, too."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.time()

    def time(self) -> float:
        """Seconds since 1970."""
        return self._began + self.offset

    async def beat(self, seconds: float, fn: Callable[[], Awaitable[None]]) -> NoReturn:
        """Call `fn` so often, on this clock."""
        while True:
            due = self.time() + seconds
            while self.time() < due:  # noqa: ASYNC110  # setting it sets no event
                await anyio.sleep(0.005)
            await fn()
