"""Clocks that are not the others' clock, and can be set while somebody waits for them."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

import anyio
from anyio.lowlevel import checkpoint

from tests.runtime.polling import settle
from workflow_sdk import Driver
from workflow_sdk.instance.clock import Activity, Timeout

__all__ = ["ByHand", "Shifted"]


class Shifted:
    """The clock on the wall, but for an offset. Whoever waits notices at once when the offset is set."""

    def __init__(self, offset: float = 0.0) -> None:
        self._offset = offset
        self._next_set: anyio.Event | None = None

    @property
    def offset(self) -> float:
        """Seconds by which this clock is ahead."""
        return self._offset

    @offset.setter
    def offset(self, offset: float) -> None:
        self._offset = offset
        if self._next_set is not None:
            self._next_set.set()
            self._next_set = None

    def _when_set(self) -> anyio.Event:
        """Set when the offset is set from now on. To be asked for before the time is looked at."""
        if self._next_set is None:
            self._next_set = anyio.Event()
        return self._next_set

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time() + self.offset

    def monotonic(self) -> float:
        """Seconds, whatever the offset is."""
        return time.monotonic()

    def real_seconds(self, seconds: float) -> float:
        """How much real time passes until it is so much later, if nobody sets the clock."""
        return seconds

    async def wait(
        self,
        event: anyio.Event,
        until: float | None,
        activity: Callable[[], Activity],
        *,
        by: float | None = None,
        lazily: float | None = None,
    ) -> None:
        """Return when the event is set, or when it is `until`, on this clock as it is set then."""
        passed = min((time for time in (by, lazily) if time is not None), default=math.inf)
        due = math.inf if until is None else until
        if due <= self.time() or passed <= self.monotonic():
            await checkpoint()
        while not event.is_set():
            is_set = self._when_set()
            seconds = min(due - self.time(), passed - self.monotonic())
            if seconds <= 0:
                break
            with anyio.move_on_after(self.real_seconds(seconds)):
                await _until_either(event, is_set)

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


async def _until_either(one: anyio.Event, other: anyio.Event) -> None:
    """Return when one of them is set."""
    async with anyio.create_task_group() as group:

        async def end() -> None:
            await other.wait()
            group.cancel_scope.cancel()

        group.start_soon(end)
        await one.wait()
        group.cancel_scope.cancel()


class ByHand(Shifted):
    """A clock that stands still until its offset is changed; heartbeats go by it, too."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.time()
        self.between_beats: int = 0
        """How many workers wait for the time of their next heartbeat."""

    def time(self) -> float:
        """Seconds since 1970."""
        return self._began + self.offset

    def monotonic(self) -> float:
        """It counts everything: whatever takes its time takes it on this clock."""
        return self.time()

    async def go_on(self, seconds: float, stride: float, driver: Driver) -> None:
        """Let time pass in strides, after each of which whoever watches something gets to look.

        A worker that looks only once in all that time takes nobody for dead: it may have stood still itself.
        """
        end = self.offset + seconds
        while self.offset < end:
            self.offset = min(end, self.offset + stride)
            await settle(driver)

    def real_seconds(self, seconds: float) -> float:
        """It stands still."""
        return math.inf

    async def beat(self, seconds: float, fn: Callable[[], Awaitable[None]]) -> NoReturn:
        """Call `fn` so often, on this clock."""
        while True:
            due = self.time() + seconds
            self.between_beats += 1
            try:
                while self.time() < due:
                    await self._when_set().wait()
            finally:
                self.between_beats -= 1
            await fn()
