"""Time for the engine. No other module of the engine reads a clock or waits for one.

A clock is only a hint: it may be wrong, be set while somebody waits for it, or stand still. So a time is compared only
with the clock of the process that has to act on it, and spans of time are counted by `monotonic`, which nobody can set.
Which times are stored, and who compares them with what:

    what                      written by                compared by
    due at once               anybody, without a time   nobody: it comes before every time (`rows.wire`)
    alarm, deadline, retry    who runs the instance     who runs it, or is free to: is it this late by my clock?
    heartbeat                 its worker                the others: has it changed within a lease's length? They count
                                                        by `monotonic`. The time that stands in it only shows whose
                                                        clock is wrong (`client.watching`)
    time of a purge, a tick   who ended the instance,   each worker, by its clock; but not if that is ahead of the
                              or put the schedule       clocks of the others (`client.watching`)
    started, sent, updated    anybody                   nobody: they are shown, and say who came first
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from math import inf
from typing import NoReturn, Protocol, cast

import anyio
import anyio.lowlevel

from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError

LOOK_SECONDS = 0.5
"""How often a wait for a time looks at the clock, which may have been set since."""
SET_SECONDS = 1.0
"""If a clock has gained this much against `monotonic`, somebody has set it."""


class Timeout(Protocol):
    """The scope in which an attempt with a timeout runs."""

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


class TimeSource(Protocol):
    """Any object that knows what time it is: all that a user has to give."""

    def time(self) -> float:
        """Seconds since 1970."""
        ...


class Clock(TimeSource, Protocol):
    """What time it is, and how to wait."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment. Nobody can set them."""
        ...

    async def wait(
        self,
        event: anyio.Event,
        until: float | None,
        activity: Callable[[], Activity],
        *,
        by: float | None = None,
        lazily: float | None = None,
    ) -> None:
        """Return when the event is set or `time()` has come to `until`. `activity` tells what is under way meanwhile.

        Also return when `monotonic()` has come to `by` or `lazily`; but a clock that jumps does not jump to `lazily`.
        With `lazily`, also return when the clock was set ahead, since more may be due by then.
        """
        ...

    async def beat(self, seconds: float, fn: Callable[[], Awaitable[None]]) -> NoReturn:
        """Call `fn` every so many seconds, for ever: for the heartbeat of a worker."""
        ...

    def life(self, worker: str) -> AbstractContextManager[None]:
        """Count a worker as alive while the block runs."""
        ...

    def is_alive(self, worker: str) -> bool:
        """Whether this clock knows that the worker is alive, whatever its heartbeat says."""
        ...

    def timeout(self, seconds: float) -> AbstractContextManager[Timeout]:
        """Cancel the block once it has taken this long."""
        ...


class Overseer(Protocol):
    """A clock that has to know when the engine waits for the store, as the virtual one does. It is optional."""

    def oversee(self, driver: Driver) -> Driver:
        """Return the driver that the engine is to use instead of this one."""
        ...


def overseen(driver: Driver, clock: object) -> Driver:
    """The driver to use with this clock: one that the clock oversees, if it does so."""
    if callable(getattr(clock, "oversee", None)):
        return cast("Overseer", clock).oversee(driver)
    return driver


def unseen(driver: Driver) -> Driver:
    """The driver behind one that a clock oversees: the clock does not wait for the calls made with it.

    It is for calls that only show what is stored. No run depends on them, and a caller may make them again and again.
    """
    found: Driver = getattr(driver, "unseen", driver)
    return found


def clock_of(given: TimeSource | None) -> Clock:
    """Make a clock of what a user has given: None, an object that knows the time, or a whole clock."""
    if given is None:
        return SystemClock()
    if callable(getattr(given, "wait", None)) and callable(getattr(given, "monotonic", None)):
        return cast("Clock", given)
    if not callable(getattr(given, "time", None)):
        raise DefinitionError(f"a clock is an object with `time() -> float`, not {given!r:.100}")
    return SystemClock(given.time)


class SystemClock:
    """The clock of the system, or a given source of time that runs by itself."""

    def __init__(self, source: Callable[[], float] | None = None) -> None:
        self._source = source

    def time(self) -> float:
        return time.time() if self._source is None else float(self._source())

    def monotonic(self) -> float:
        return time.monotonic()

    async def wait(
        self,
        event: anyio.Event,
        until: float | None,
        activity: Callable[[], Activity],
        *,
        by: float | None = None,
        lazily: float | None = None,
    ) -> None:
        if until is None and by is None and lazily is None:
            await event.wait()
            return
        first = True
        offset = inf if lazily is None else self.time() - time.monotonic()
        while not event.is_set():
            left = min(
                inf if until is None else until - self.time(),
                inf if by is None else by - time.monotonic(),
                inf if lazily is None else lazily - time.monotonic(),
            )
            if left <= 0:
                if first:
                    # Give way once, so that a loop which waits again and again for a time that is over blocks nobody.
                    await anyio.lowlevel.checkpoint()
                return
            first = False
            # The clock may be set while this sleeps, so it is looked at again after a short while.
            with anyio.move_on_after(left if until is None and lazily is None else min(left, LOOK_SECONDS)):
                await event.wait()
            if lazily is not None and self.time() - time.monotonic() > offset + SET_SECONDS:
                return

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
    await clock.wait(anyio.Event(), None, _nothing, by=clock.monotonic() + seconds)


def _nothing() -> Activity:
    return Activity.NONE
