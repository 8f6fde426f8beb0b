"""Time, as the engine sees it. Nothing else in the engine reads a clock or waits for one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import NoReturn, Protocol, cast

import anyio
import anyio.lowlevel

from workflow_sdk.driver import Driver

__all__ = ["Activity", "Clock", "Overseer", "SystemClock", "Timeout", "overseen", "pause", "unseen"]


class Timeout(Protocol):
    """What an attempt with a timeout runs in."""

    @property
    def cancelled_caught(self) -> bool:
        """Whether what ran inside was ended because the time was up."""
        ...

    @property
    def cancel_called(self) -> bool:
        """Whether the time is up."""
        ...


class Activity(Enum):
    """What is under way while a run waits for the clock."""

    NONE = "none"
    CODE = "code"
    THREAD = "thread"
    """A plain function, in a worker thread."""


class Clock(Protocol):
    """What time it is, and how to wait."""

    def time(self) -> float:
        """Seconds since 1970."""
        ...

    async def wait(
        self,
        event: anyio.Event,
        until: float | None,
        activity: Callable[[], Activity],
        *,
        lazily: float | None = None,
    ) -> None:
        """Return when the event is set, or when it is `until`. `activity` tells what is under way meanwhile.

        Also when it is `lazily`; but no clock that jumps does so for the sake of this.
        """
        ...

    async def beat(self, seconds: float, fn: Callable[[], Awaitable[None]]) -> NoReturn:
        """Call `fn` so often, for ever: the heartbeat of a worker."""
        ...

    def life(self, worker: str) -> AbstractContextManager[None]:
        """A worker is alive as long as this lasts."""
        ...

    def is_alive(self, worker: str) -> bool:
        """Whether this clock knows that the worker is alive, whatever its heartbeat says."""
        ...

    def timeout(self, seconds: float) -> AbstractContextManager[Timeout]:
        """Cancel what runs inside once it has taken this long."""
        ...


class Overseer(Protocol):
    """A clock that has to know when the engine waits for its store. No clock has to."""

    def oversee(self, driver: Driver) -> Driver:
        """The driver by which the engine is to reach the store instead."""
        ...


def overseen(driver: Driver, clock: object) -> Driver:
    """The driver by which whoever is on this clock reaches a store."""
    if callable(getattr(clock, "oversee", None)):
        return cast("Overseer", clock).oversee(driver)
    return driver


def unseen(driver: Driver) -> Driver:
    """The driver behind one that a clock oversees.

    It is for calls that only show what is stored. Nothing of what runs depends on them, and whoever makes them may do
    so again and again: no clock waits for them.
    """
    found: Driver = getattr(driver, "unseen", driver)
    return found


class SystemClock:
    """The clock on the wall."""

    def time(self) -> float:
        return time.time()

    async def wait(
        self,
        event: anyio.Event,
        until: float | None,
        activity: Callable[[], Activity],
        *,
        lazily: float | None = None,
    ) -> None:
        if lazily is not None and (until is None or lazily < until):
            until = lazily
        if until is None:
            await event.wait()
            return
        if until <= time.time():
            # Others go on, however often somebody waits for what is over.
            await anyio.lowlevel.checkpoint()
        while (left := until - time.time()) > 0 and not event.is_set():
            # A day at most: the clock on the wall can be set while we sleep.
            with anyio.move_on_after(min(left, 86_400)):
                await event.wait()

    async def beat(self, seconds: float, fn: Callable[[], Awaitable[None]]) -> NoReturn:
        while True:
            await anyio.sleep(seconds)
            await fn()

    def life(self, worker: str) -> AbstractContextManager[None]:
        return nullcontext()

    def is_alive(self, worker: str) -> bool:
        return False

    def timeout(self, seconds: float) -> AbstractContextManager[Timeout]:
        return anyio.move_on_after(seconds)


async def pause(clock: Clock, seconds: float) -> None:
    """Let some time pass."""
    await clock.wait(anyio.Event(), clock.time() + seconds, _nothing)


def _nothing() -> Activity:
    return Activity.NONE
