"""Time, as the engine sees it. Nothing else in the engine reads a clock or waits for one.

A clock is a hint: it may be wrong, it may be set while somebody waits for it, and it may stand still. So a time is only
compared with the clock of the one who has to act on it, and what is about a span of time is counted by `monotonic`,
which nobody can set. Which times are stored, and who compares them with what:

    what                      written by                compared by
    due at once               anybody, without a time   nobody: it comes before every time (`rows.wire`)
    alarm, deadline, retry    who runs the instance     who runs it, or is free to: is it this late by my clock?
    heartbeat                 its worker                the others: has it changed within a lease's length? They count
                                                        by `monotonic`. The time that stands in it only shows whose
                                                        clock is wrong (`runtime.watching`)
    time of a purge, a tick   who ended the instance,   each worker, by its clock; but not if that is ahead of the
                              or put the schedule       clocks of the others (`runtime.watching`)
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
"""How often those who wait for a time look at the clock: it may have been set since."""
SET_SECONDS = 1.0
"""A clock that is ahead by so much more than it was, was set."""


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


class TimeSource(Protocol):
    """Any object that knows what time it is: all that a user has to give."""

    def time(self) -> float:
        """Seconds since 1970."""
        ...


class Clock(TimeSource, Protocol):
    """What time it is, and how to wait."""

    def monotonic(self) -> float:
        """Seconds since some moment. They go on, and are never set."""
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
        """Return when the event is set, or when it is `until`. `activity` tells what is under way meanwhile.

        Also when `monotonic` has come to `by`, or to `lazily`; but no clock that jumps does so for the sake of the
        latter. Who waits lazily is told as well when the clock was set ahead: more may be due than there was.
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


def clock_of(given: TimeSource | None) -> Clock:
    """The clock that a user has given: none, any object that knows the time, or one that can be waited for."""
    if given is None:
        return SystemClock()
    if callable(getattr(given, "wait", None)) and callable(getattr(given, "monotonic", None)):
        return cast("Clock", given)
    if not callable(getattr(given, "time", None)):
        raise DefinitionError(f"a clock is an object with `time() -> float`, not {given!r:.100}")
    return SystemClock(given.time)


class SystemClock:
    """The clock on the wall, or another one that goes by itself."""

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
                    # Others go on, however often somebody waits for what is over.
                    await anyio.lowlevel.checkpoint()
                return
            first = False
            # The clock can be set while we sleep, and then it may be later than it seems.
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
