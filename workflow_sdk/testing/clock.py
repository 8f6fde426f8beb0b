"""A clock for tests: it stands still while something happens, and jumps when everybody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from time import monotonic

import anyio
import anyio.lowlevel

from workflow_sdk.core.retry import Duration, seconds
from workflow_sdk.errors import DefinitionError
from workflow_sdk.execution.clock import Activity, Timeout

__all__ = ["VirtualClock"]

QUIET_SECONDS = 0.1
"""Real time that a step may be quiet before the clock takes it to be waiting for a virtual time."""

SLICES = 10
"""That moment is looked at in so many parts."""

_START = datetime(2030, 1, 1, tzinfo=UTC)


class _Waiting:
    __slots__ = ("activity", "event", "until")

    def __init__(self, until: float | None, activity: Callable[[], Activity]) -> None:
        self.until = until
        self.activity = activity
        self.event = anyio.Event()


class VirtualClock:
    """Jumps to the next timer whenever everything is idle, so that a 30-day sleep takes no time.

    Timeouts of steps are timers, too. While a step runs, the clock jumps only after the step has been quiet for a
    moment of real time, and never while a plain function runs in its worker thread.
    """

    def __init__(self, start: datetime | None = None) -> None:
        if start is not None and start.utcoffset() is None:
            raise DefinitionError(f"the clock starts at an aware datetime, not {start!r}")
        self._now = (start or _START).timestamp()
        self._waiting: list[_Waiting] = []
        self._limits: list[tuple[float, anyio.CancelScope]] = []
        self._version = 0
        """Changes with everything that happens here: two equal ones have been a quiet time."""

    def now(self) -> float:
        """Seconds since 1970, as far as this clock is concerned."""
        return self._now

    def advance(self, duration: Duration) -> None:
        """Let time pass; what is due by then is woken."""
        self._go_to(self._now + seconds(duration, "the duration"))

    def _go_to(self, when: float) -> None:
        self._now = max(self._now, when)
        self._version += 1
        for waiting in self._waiting:
            if waiting.until is not None and waiting.until <= self._now:
                waiting.event.set()
        for until, scope in self._limits:
            if until <= self._now:
                scope.cancel()

    async def wait(self, event: anyio.Event, until: float | None, activity: Callable[[], Activity]) -> None:
        """Return when the event is set, or when it is `until`, which comes at once if nothing else is under way."""
        waiting = _Waiting(until, activity)
        self._waiting.append(waiting)
        self._version += 1
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._either, event, waiting)
                await self._drive(waiting)
                group.cancel_scope.cancel()
        finally:
            self._waiting.remove(waiting)
            self._version += 1

    @staticmethod
    async def _either(event: anyio.Event, waiting: _Waiting) -> None:
        await event.wait()
        waiting.event.set()

    async def _drive(self, mine: _Waiting) -> None:
        """Move the clock on when nobody has anything else to do."""
        while not mine.event.is_set() and (mine.until is None or mine.until > self._now):
            if all(waiting.activity() is Activity.NONE for waiting in self._waiting):
                quiet = await self._is_quiet(mine, 0)
            else:
                quiet = await self._is_quiet(mine, QUIET_SECONDS)
            when = self._next()
            if quiet and when is not None:
                self._go_to(when)
            elif quiet:
                with anyio.move_on_after(QUIET_SECONDS):
                    await mine.event.wait()

    async def _is_quiet(self, mine: _Waiting, real_seconds: float) -> bool:
        before = self._version
        if real_seconds:
            part = real_seconds / SLICES
            for _ in range(SLICES):
                began = monotonic()
                with anyio.move_on_after(part):
                    await mine.event.wait()
                    return False
                if monotonic() - began > 2 * part:
                    # Somebody computes, and keeps the event loop from us: that is not quiet.
                    return False
        else:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
        return before == self._version and not any(waiting.activity() is Activity.THREAD for waiting in self._waiting)

    def _next(self) -> float | None:
        times = [waiting.until for waiting in self._waiting if waiting.until is not None]
        times += [until for until, scope in self._limits if not scope.cancel_called]
        return min(times, default=None)

    def timeout(self, seconds: float) -> AbstractContextManager[Timeout]:
        """Cancel what runs inside once it has taken this long."""
        return self._timeout(seconds)

    @contextmanager
    def _timeout(self, seconds: float) -> Generator[Timeout]:
        scope = anyio.CancelScope()
        limit = (self._now + seconds, scope)
        self._limits.append(limit)
        self._version += 1
        try:
            with scope:
                yield scope
        finally:
            self._limits.remove(limit)
            self._version += 1
