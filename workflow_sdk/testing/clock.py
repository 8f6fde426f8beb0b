"""A clock for tests: it stands still while something happens, and jumps when everybody waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from threading import get_ident
from time import monotonic
from typing import NoReturn

import anyio
import anyio.from_thread
import anyio.lowlevel

from workflow_sdk.core.retry import Duration, seconds
from workflow_sdk.errors import DefinitionError
from workflow_sdk.execution.clock import Activity, Timeout

__all__ = ["VirtualClock"]

QUIET_SECONDS = 1.0
"""Real time that a step may be quiet before the clock takes it to be waiting for a virtual time."""

SHORT_SECONDS = 0.05
"""Code that takes no longer than this in real time takes none on this clock: tests can count on its times."""

GLANCE_SECONDS = 0.01
"""Real time between two looks at what steps do."""

IDLE_TURNS = 20
"""Turns of the event loop in which nothing happens. Word of a commit takes a few of them to get from one to another."""

_START = datetime(2030, 1, 1, tzinfo=UTC)


class _Waiting:
    __slots__ = ("activity", "event", "lazily", "told", "until")

    def __init__(
        self, told: anyio.Event, until: float | None, lazily: float | None, activity: Callable[[], Activity]
    ) -> None:
        self.told = told
        self.until = until
        self.lazily = lazily
        self.activity = activity
        self.event = anyio.Event()

    def is_due(self, now: float) -> bool:
        return (self.until is not None and self.until <= now) or (self.lazily is not None and self.lazily <= now)


class VirtualClock:
    """Jumps to the next timer whenever everything is idle, so that a 30-day sleep takes no time.

    Timeouts of steps and the waits before retries are timers, too. Workers on this clock are alive as long as they run,
    however far it jumps: no lease runs out but that of a worker that has gone. While a step's code runs, time
    passes as on the wall; the clock jumps only after the step has been quiet for `quiet` seconds of real time, and
    never while a plain function runs in its thread.
    """

    def __init__(self, start: datetime | None = None, *, quiet: float = QUIET_SECONDS) -> None:
        if start is not None and start.utcoffset() is None:
            raise DefinitionError(f"the clock starts at an aware datetime, not {start!r}")
        self._now = (start or _START).timestamp()
        self._quiet = quiet
        self._glanced = 0.0
        self._in_thread = 0.0
        """For how long a plain function has been running."""
        self._waiting: list[_Waiting] = []
        self._workers: set[str] = set()
        self._limits: list[tuple[float, anyio.CancelScope]] = []
        self._thread: int | None = None
        """In which the waiting is done."""
        self._version = 0
        """Changes with everything that happens here: two equal ones have been a quiet time."""

    def now(self) -> datetime:
        """What time it is on this clock."""
        return datetime.fromtimestamp(self._now, UTC)

    def time(self) -> float:
        """The same in seconds since 1970: what the engine counts with."""
        return self._now

    def advance(self, duration: Duration) -> None:
        """Let time pass; what is due by then is woken. A plain function may do this in its thread, too."""
        passed = seconds(duration, "the duration")
        if self._thread in (None, get_ident()):
            self._go_to(self._now + passed)
        else:
            anyio.from_thread.run_sync(lambda: self._go_to(self._now + passed))

    def _go_to(self, when: float) -> None:
        self._now = max(self._now, when)
        self._version += 1
        for waiting in self._waiting:
            if waiting.is_due(self._now):
                waiting.event.set()
        for until, scope in self._limits:
            if until <= self._now:
                scope.cancel()

    async def beat(self, seconds: float, fn: Callable[[], Awaitable[None]]) -> NoReturn:
        """Nothing: who is alive on this clock is known without heartbeats."""
        await anyio.sleep_forever()
        raise AssertionError("for ever has an end")

    @contextmanager
    def life(self, worker: str) -> Generator[None]:
        """A worker is alive as long as this lasts."""
        self._workers.add(worker)
        try:
            yield
        finally:
            self._workers.discard(worker)
            self._version += 1
            for waiting in self._waiting:
                # Whoever looks for what the dead have left is among those who wait like this.
                if waiting.lazily is not None:
                    waiting.event.set()

    def is_alive(self, worker: str) -> bool:
        """Whether the worker is alive on this clock."""
        return worker in self._workers

    async def wait(
        self,
        event: anyio.Event,
        until: float | None,
        activity: Callable[[], Activity],
        *,
        lazily: float | None = None,
    ) -> None:
        """Return when the event is set, or when it is `until`, which comes at once if nothing else is under way."""
        self._thread = get_ident()
        waiting = _Waiting(event, until, lazily, activity)
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
        if mine.is_due(self._now):
            return
        quiet = 0.0
        while not mine.event.is_set():
            if self._is_active():
                quiet = await self._glance(mine, quiet)
                jump = quiet >= self._quiet
            else:
                jump = await self._is_idle()
            when = self._next()
            if jump and when is not None:
                self._go_to(when)
                quiet = 0.0
            elif jump:
                with anyio.move_on_after(self._quiet):
                    await mine.event.wait()

    async def _is_idle(self) -> bool:
        """Whether nothing happens here in a few turns of the event loop, not even for one of them."""
        before, quiet = self._version, True
        for _ in range(IDLE_TURNS):
            await anyio.lowlevel.checkpoint()
            quiet = quiet and before == self._version and not self._is_woken() and not self._is_active()
        # Only now, even if it is not: most of what happens is over by then, and needs no glance, which takes real time.
        return quiet

    def _is_active(self) -> bool:
        """Whether something is under way."""
        return any(waiting.activity() is not Activity.NONE for waiting in self._waiting)

    def _is_woken(self) -> bool:
        """Whether somebody has something to go on with, and has not come round to it yet."""
        return any(waiting.event.is_set() or waiting.told.is_set() for waiting in self._waiting)

    async def _glance(self, mine: _Waiting, quiet: float) -> float:
        """Let a little real time pass, here too; return for how long it has been quiet."""
        before, began = self._version, monotonic()
        with anyio.move_on_after(GLANCE_SECONDS):
            await mine.event.wait()
        now = monotonic()
        # Of several who wait, each adds what has passed since the last of them looked.
        passed = now - max(self._glanced, began)
        in_thread = any(waiting.activity() is Activity.THREAD for waiting in self._waiting)
        # A machine that stands still for a while is no function that takes long.
        passes = min(passed, 2 * GLANCE_SECONDS)
        self._in_thread = self._in_thread + passes if in_thread else 0.0
        if max(quiet, self._in_thread) >= SHORT_SECONDS:
            self._pass(passes)
        self._glanced = now
        computes = now - began > 2 * GLANCE_SECONDS  # somebody keeps the event loop from us: that is not quiet
        return 0.0 if computes or in_thread or before != self._version else quiet + now - began

    def _pass(self, duration: float) -> None:
        when, due = self._now + max(0.0, duration), self._next()
        if due is not None and due <= when:
            self._go_to(when)
        else:
            self._now = when

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
