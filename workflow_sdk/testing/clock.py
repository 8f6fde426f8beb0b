"""A clock for tests: it stands still while something happens, and jumps when everybody waits for it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import get_ident
from time import monotonic, thread_time
from typing import NoReturn

import anyio
import anyio.from_thread
import anyio.lowlevel

from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError
from workflow_sdk.instance.clock import Activity, Timeout
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.wire import shown
from workflow_sdk.testing.drivers import OverseenDriver, Stores, Watch

__all__ = ["VirtualClock"]

_log = logging.getLogger("workflow_sdk.testing")

QUIET_SECONDS = 1.0
"""How long in real time a step may be quiet before the clock takes it to be waiting for a virtual time."""

SHORT_SECONDS = 0.05
"""Code that takes less real time than this takes no time on this clock, so that tests can expect exact times."""

GLANCE_SECONDS = 0.01
"""How much real time passes between two looks at what steps do."""

ANSWER_SECONDS = 0.1
"""How much real time passes between two looks at stores that owe an answer."""

IDLE_TURNS = 20
"""How many turns of the event loop nothing must happen in. News takes a few turns to get from task to task."""

LOOKS_MAX = 100
"""How often in a row the clock looks whether it may jump, although nothing is committed, before it slows down."""

REST_SECONDS = 0.05
"""How much real time passes before each further look."""

_START = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(eq=False, slots=True)
class _Waiting:
    """One call of `wait`. One of all calls moves the clock on; the others sleep until their time has come."""

    told: anyio.Event
    until: float | None
    lazily: float | None
    activity: Callable[[], Activity]
    is_woken: bool = False
    """Whether its time has come."""
    _nap: anyio.CancelScope | None = None

    @property
    def is_over(self) -> bool:
        """Whether the call is to return, which it may not have done yet."""
        return self.is_woken or self.told.is_set()

    def is_due(self, now: float) -> bool:
        return (self.until is not None and self.until <= now) or (self.lazily is not None and self.lazily <= now)

    def wake(self) -> None:
        """Have it return."""
        self.is_woken = True
        self.stamp()

    def stamp(self) -> None:
        """End its nap, so that it looks around."""
        if self._nap is not None:
            self._nap.cancel()

    async def nap(self, seconds: float | None = None) -> None:
        """Sleep until the event is set, or somebody calls `wake` or `stamp`, or so much real time has passed."""
        with anyio.move_on_after(seconds) as self._nap:
            await self.told.wait()
        self._nap = None


class _Timers:
    """All that waits for a time of the clock: calls of `wait`, and the timeouts of steps."""

    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
        self.limits: list[tuple[float, anyio.CancelScope]] = []
        """When timeouts come, and what they cancel."""

    def next(self) -> float | None:
        """When the first of them is due."""
        times = [waiting.until for waiting in self.waiting if waiting.until is not None]
        times += [until for until, scope in self.limits if not scope.cancel_called]
        return min(times, default=None)

    def fire(self, now: float) -> None:
        """Wake or cancel all that is due."""
        for waiting in self.waiting:
            if waiting.is_due(now):
                waiting.wake()
        for until, scope in self.limits:
            if until <= now:
                scope.cancel()

    def hand_over(self) -> None:
        """Have another call of `wait` move the clock on."""
        for waiting in self.waiting:
            if not waiting.is_over:
                waiting.stamp()
                break

    def are_active(self) -> bool:
        """Whether something else is under way in one of the runs that wait."""
        return any(waiting.activity() is not Activity.NONE for waiting in self.waiting)


class VirtualClock:
    """Jumps to the next timer whenever everything is idle, so that a 30-day sleep takes no time.

    Timeouts of steps and the waits before retries are timers, too. Workers on this clock are alive as long as they run,
    however far it jumps: no lease runs out but that of a worker that has gone. While a step's code runs, time
    passes as on the wall; the clock jumps only after the step has been quiet for `quiet` seconds of real time, and
    never while a plain function runs in its thread.

    It stands still while a store owes an answer, however slow the store is, and until everybody who watches a store has
    heard of what was committed. That holds for whatever reaches the store on this clock: runtimes, clients and calls
    that were given it.
    """

    def __init__(self, start: datetime | None = None, *, quiet: float = QUIET_SECONDS) -> None:
        if start is not None and (not isinstance(start, datetime) or start.utcoffset() is None):
            raise DefinitionError(f"the clock starts at an aware datetime, not {shown(start)}")
        self._now = (start or _START).timestamp()
        self._quiet = quiet
        self._in_thread = 0.0
        """For how many seconds a plain function has been running in its thread."""
        self._quiet_for = 0.0
        """For how long the steps that run have been quiet."""
        self._timers = _Timers()
        self._driving: _Waiting | None = None
        """The call of `wait` that moves the clock on."""
        self._rests = False
        """Whether it sleeps until something happens on this clock, or a store has answered."""
        self._stores = Stores(self._stir)
        self._commits = 0
        """How many commits there had been at the last look."""
        self._looks = 0
        """How often in a row the clock has looked whether it may jump, and nothing was committed."""
        self._workers: set[str] = set()
        self._thread: int | None = None
        """The thread of the event loop in which `wait` is called."""
        self._version = 0
        """Changes with everything that happens on this clock: if it is the same as before, nothing has happened."""

    def now(self) -> datetime:
        """What time it is on this clock."""
        return datetime.fromtimestamp(self._now, UTC)

    def time(self) -> float:
        """The same in seconds since 1970: what the engine counts with."""
        return self._now

    def monotonic(self) -> float:
        """The same as `time`, since nobody sets this clock back."""
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
        self._timers.fire(self._now)

    async def beat(self, seconds: float, fn: Callable[[], Awaitable[None]]) -> NoReturn:
        """Never call `fn`: who is alive on this clock is known without heartbeats."""
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
            self._changed()
            for waiting in self._timers.waiting:
                # Workers wait like this who look for what dead workers have left.
                if waiting.lazily is not None:
                    waiting.wake()

    def is_alive(self, worker: str) -> bool:
        """Whether the worker is alive on this clock."""
        return worker in self._workers

    def oversee(self, driver: Driver) -> Driver:
        """A driver that tells this clock what it is asked: the engine reaches the store by it."""
        if isinstance(driver, OverseenDriver) and driver.stores is self._stores:
            return driver
        return OverseenDriver(driver, self._stores)

    async def wait(
        self,
        event: anyio.Event,
        until: float | None,
        activity: Callable[[], Activity],
        *,
        by: float | None = None,
        lazily: float | None = None,
    ) -> None:
        """Return when the event is set, or when it is `until`, which comes at once if nothing else is under way."""
        self._thread = get_ident()
        if by is not None:
            until = by if until is None else min(until, by)
        waiting = _Waiting(event, until, lazily, activity)
        if event.is_set() or waiting.is_due(self._now):
            # So that other tasks get their turn even if somebody waits in a loop for what is over.
            await anyio.lowlevel.checkpoint()
            return
        self._timers.waiting.append(waiting)
        self._changed()
        try:
            while not waiting.is_over:
                if self._driving is None:
                    self._driving = waiting
                    await self._drive(waiting)
                else:
                    await waiting.nap()
        finally:
            self._timers.waiting.remove(waiting)
            self._changed()
            if self._driving is waiting:
                self._driving, self._rests = None, False
                self._timers.hand_over()

    def _changed(self) -> None:
        self._version += 1
        if not self._stores.owe:
            self._stir()

    def _stir(self) -> None:
        """Have whoever moves the clock on look around. In the thread of a transaction this does nothing."""
        if self._rests and self._driving is not None and self._thread == get_ident():
            self._driving.stamp()

    async def _rest(self, mine: _Waiting, seconds: float) -> None:
        """Sleep until something happens, or so much real time has passed."""
        self._rests = True
        await mine.nap(seconds)
        self._rests = False

    async def _drive(self, mine: _Waiting) -> None:
        """Move the clock on when nobody has anything else to do, until `mine` is over."""
        self._quiet_for, version = 0.0, self._version
        while not mine.is_over:
            if self._stores.owe:
                await self._until_answer(mine)
                if self._stores.has_late and not mine.is_over:
                    # If a value is again what its watcher has seen, it will hear nothing, and must not be waited for.
                    await self._look_at_stores(mine)
                continue
            if self._version != version:
                self._quiet_for, version = 0.0, self._version
            is_active = self._timers.are_active()
            may_jump = await self._may_jump(mine, is_active)
            if not may_jump and (self._stores.settled or self._timers.next() is None):
                continue
            await self._slow_down(mine)
            # After the last look of `_is_still`, no other task gets a turn before the jump in `_move`.
            if await self._is_still(is_active):
                await self._move(mine, is_active, may_jump)

    async def _slow_down(self, mine: _Waiting) -> None:
        """Let real time pass before another look, if so many have come to nothing."""
        # A task that fails again and again, and waits only for times on this clock, would keep the processor busy.
        if self._commits != self._stores.commits:
            self._commits, self._looks = self._stores.commits, 0
        self._looks += 1
        if self._looks == LOOKS_MAX:
            _log.warning(
                "the virtual clock slows down: it has looked %d times for the next timer, and nothing was committed "
                "meanwhile, so that something probably fails again and again",
                self._looks,
            )
        if self._looks > LOOKS_MAX:
            await mine.nap(REST_SECONDS)

    async def _may_jump(self, mine: _Waiting, is_active: bool) -> bool:
        """Whether nobody runs, or all who run have been quiet for so long that they must be waiting for a time."""
        if is_active and (self._quiet_for < self._quiet or self._timers.next() is None):
            await self._glance(mine)
        return not is_active or self._quiet_for >= self._quiet

    async def _move(self, mine: _Waiting, is_active: bool, may_jump: bool) -> None:
        """Jump to the next timer, or find out what keeps the clock from it."""
        when = self._timers.next()
        if when is None:
            if not is_active:
                await self._rest(mine, self._quiet)
                self._looks = 0
        elif not self._stores.settled:
            await self._look_at_stores(mine)
        elif may_jump:
            self._go_to(when)

    async def _is_still(self, is_active: bool) -> bool:
        """Whether nothing happens here in a few turns of the event loop, not even for one of them."""
        before, still = (self._version, self._stores.events), True
        for _ in range(IDLE_TURNS):
            await anyio.lowlevel.checkpoint()
            still = (
                still
                and before == (self._version, self._stores.events)
                and not any(waiting.is_over for waiting in self._timers.waiting)
                and self._timers.are_active() is is_active
            )
        # All turns are taken even if something happens. Most of it is over then, and a glance would take real time.
        return still and not self._stores.owe

    async def _until_answer(self, mine: _Waiting) -> None:
        """Give stores a little real time to answer, and say so if they have not for long."""
        await self._rest(mine, ANSWER_SECONDS)
        if self._timers.next() is not None:
            self._stores.complain()

    async def _look_at_stores(self, mine: _Waiting) -> None:
        """Find out whether everybody has heard of every change."""
        left = set(self._stores.doubtful)

        async def look_at(watch: Watch) -> None:
            await self._stores.look_at(watch)
            left.discard(watch)
            self._stir()

        async with anyio.create_task_group() as group:
            for watch in list(left):
                group.start_soon(look_at, watch)
            while left and not mine.is_over:
                await self._until_answer(mine)
            group.cancel_scope.cancel()

    async def _glance(self, mine: _Waiting) -> None:
        """Let a little real time pass, on this clock as well, and note for how long it has been quiet."""
        before, began, asked, worked = self._version, monotonic(), self._stores.asked(), thread_time()
        await mine.nap(GLANCE_SECONDS)
        self._looks = 0
        took = monotonic() - began
        # The time that a store has taken is not counted.
        passed = max(0.0, took - (self._stores.asked() - asked))
        in_thread = any(waiting.activity() is Activity.THREAD for waiting in self._timers.waiting)
        # If the machine stood still for a while, that does not mean that a function takes long.
        passes = min(passed, 2 * GLANCE_SECONDS)
        self._in_thread = self._in_thread + passes if in_thread else 0.0
        if max(self._quiet_for, self._in_thread) >= SHORT_SECONDS:
            self._pass(passes)
        is_late = took > 2 * GLANCE_SECONDS
        if in_thread or before != self._version or (is_late and thread_time() - worked > GLANCE_SECONDS):
            # A thread works, something has happened here, or somebody has kept the event loop from us.
            self._quiet_for = 0.0
        elif not is_late:
            self._quiet_for += passed

    def _pass(self, duration: float) -> None:
        when, due = self._now + duration, self._timers.next()
        if due is None or when < due:
            self._now = when
        elif self._stores.settled:
            self._go_to(when)

    @contextmanager
    def timeout(self, seconds: float) -> Generator[Timeout]:
        """Cancel what runs inside once it has taken this long."""
        scope = anyio.CancelScope()
        limit = (self._now + seconds, scope)
        self._timers.limits.append(limit)
        self._changed()
        try:
            with scope:
                yield scope
        finally:
            self._timers.limits.remove(limit)
            self._changed()
