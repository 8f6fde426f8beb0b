"""An event loop that is blocked, by a step or a workflow that does not give way: seen, and lived through.

While the loop is blocked, nothing that runs in it can say that the worker lives. So a thread watches: for as long as
a third of a lease nothing has gone round, it says so in the log, with the stack of the loop's thread, and beats for the
worker, by a handle of the store that is its own. If that lasts too long, it gives back what the worker has. Nobody has
died then, and others run it.

A driver offers such a handle with a method `sibling`; see `workflow_sdk.driver.Sibling`. On one that has none, the
lease runs out, and the worker takes its death back when its loop goes on: see `survivors`.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from threading import Event, Lock, Thread, get_ident
from time import monotonic, monotonic_ns, sleep
from typing import Final

import anyio
import anyio.to_thread

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.decide import give_back_stalled
from workflow_sdk.changes.workers import Heartbeat, beat_while_there
from workflow_sdk.driver import Driver, Sibling, sibling_of
from workflow_sdk.errors import InstanceNotFoundError
from workflow_sdk.instance.clock import Clock
from workflow_sdk.rows.keys import WorkerKeys, last_of

_log = logging.getLogger("workflow_sdk.runtime")

STALL_SECONDS = 60.0
"""How long a worker keeps what it has while its event loop is blocked, where nobody says otherwise."""
PART_OF_LEASE: Final = 3
"""A loop that has not gone round for this part of a lease is blocked."""
TICKS: Final = 10
"""So often it goes round, and is looked at, in that time."""


async def watch_for_stalls(
    driver: Driver, clock: Clock, worker: WorkerKeys, lease_ttl: float, stall_max: float
) -> None:
    """Keep the worker alive while its event loop is blocked. It does not return."""
    async with stalls_watched(driver, clock, worker, lease_ttl, stall_max) as watched:
        await watched.go_round()


@asynccontextmanager
async def stalls_watched(
    driver: Driver, clock: Clock, worker: WorkerKeys, lease_ttl: float, stall_max: float = STALL_SECONDS
) -> AsyncGenerator[Watched]:
    """Keep the worker alive while its event loop is blocked; somebody has to `go_round` meanwhile."""
    watched = Watched(driver, clock, worker, lease_ttl, stall_max)
    if clock.is_alive(worker.worker):
        # Whoever is on this clock knows that without heartbeats.
        yield watched
        return
    _watchdog.add(watched)
    try:
        yield watched
    finally:
        _watchdog.remove(watched)
        watched.goes_on.set()
        holder = watched.holder
        if holder is not None and holder.is_alive():
            # It is closing its handle of the store.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(holder.join)


class Watched:
    """One worker, and when its event loop has gone round last."""

    def __init__(self, driver: Driver, clock: Clock, worker: WorkerKeys, lease_ttl: float, stall_max: float) -> None:
        self.worker = worker
        self.lease_ttl = lease_ttl
        self.stall_max = stall_max
        self.tick: float = lease_ttl / PART_OF_LEASE / TICKS
        self.seen: float = monotonic()
        self.goes_on: Event = Event()
        self.holder: Thread | None = None
        self._driver = driver
        self._clock = clock
        self._thread = get_ident()

    async def go_round(self) -> None:
        """Show that the event loop is not blocked, for ever."""
        if self._clock.is_alive(self.worker.worker):
            return
        while True:
            self.seen = monotonic()
            self.goes_on.set()
            await anyio.sleep(self.tick)

    @property
    def is_blocked(self) -> bool:
        """Whether its loop has not gone round for too long."""
        return monotonic() - self.seen > self.lease_ttl / PART_OF_LEASE

    def look(self) -> None:
        """Begin to live through a stall, if there is one."""
        if not self.is_blocked or (self.holder is not None and self.holder.is_alive()):
            return
        self.goes_on.clear()
        if not self.is_blocked:
            return
        self.holder = Thread(target=self._live_through, name="workflow_sdk stalled worker", daemon=True)
        self.holder.start()

    def _live_through(self) -> None:
        seen = self.seen
        self._tell(seen)
        sibling = sibling_of(self._driver)
        try:
            if sibling is not None:
                anyio.run(self._keep, sibling, seen)
            else:
                self._wait_and_tell(seen)
        except Exception:  # noqa: BLE001  # whatever the store raises: then the lease runs out
            _log.warning("a worker whose event loop is blocked could not say that it lives", exc_info=True)
        if self.goes_on.is_set():
            _log.info("the event loop goes on, after %.1f s", monotonic() - seen)

    def _tell(self, seen: float) -> None:
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # no other way
        stack = "" if frame is None else "".join(traceback.format_stack(frame))
        _log.warning(
            "the event loop has been blocked for %.1f s by a step or workflow that does not give way; "
            "use `await`, or a plain function as a step, which runs in a thread. It is at:\n%s",
            monotonic() - seen,
            stack,
        )

    def _wait_and_tell(self, seen: float) -> None:
        """It is told again each time that twice the time has passed."""
        told = monotonic() - seen
        while not self.goes_on.wait(told):
            told = monotonic() - seen
            self._tell(seen)

    async def _keep(self, sibling: Sibling, seen: float) -> None:
        """Beat, as long as the worker may keep what it has; then give it back."""
        store = await sibling.sibling()
        told = monotonic() - seen
        try:
            while not self.goes_on.is_set():
                if monotonic() - seen >= self.stall_max:
                    await self._give_back(store, seen)
                    self.goes_on.wait()
                    return
                await self._beat(store)
                left = seen + self.stall_max - monotonic()
                self.goes_on.wait(max(0.0, min(self.lease_ttl / PART_OF_LEASE, left)))
                if monotonic() - seen >= 2 * told and not self.goes_on.is_set():
                    told = monotonic() - seen
                    self._tell(seen)
        finally:
            await store.aclose()

    async def _beat(self, store: Driver) -> None:
        heartbeat = Heartbeat(self._clock.time(), self.lease_ttl, monotonic_ns()).pack()
        await apply(store, beat_while_there(self.worker, heartbeat))

    async def _give_back(self, store: Driver, seen: float) -> None:
        """Have others run what the worker has: it lives, but gets nothing done."""
        rows = await store.scan(*self.worker.all_claimed())
        if rows:
            _log.warning(
                "the event loop has been blocked for %.1f s; the %s instances of this worker are given back",
                monotonic() - seen,
                len(rows),
            )
        for key, _ in rows:
            with suppress(InstanceNotFoundError):
                await apply(store, give_back_stalled(last_of(key), self.worker.worker, self._clock.time()))


class _Watchdog:
    """One thread of the process, which looks at all of them. It ends when there is none for a while."""

    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self._lock = Lock()
        self._thread: Thread | None = None

    def add(self, watched: Watched) -> None:
        """Look at this one, too."""
        with self._lock:
            self._watched.append(watched)
            if self._thread is None:
                self._thread = Thread(target=self._look, name="workflow_sdk watchdog", daemon=True)
                self._thread.start()

    def remove(self, watched: Watched) -> None:
        """Not any more."""
        with self._lock:
            self._watched.remove(watched)

    def _look(self) -> None:
        idle = 0
        while True:
            with self._lock:
                idle = 0 if self._watched else idle + 1
                if idle > IDLE_LOOKS:
                    self._thread = None
                    return
                for watched in self._watched:
                    watched.look()
                # A worker that is added while nobody looks is not waited for: it would cost its start more than a look.
                pause = min((watched.tick for watched in self._watched), default=LOOK_SECONDS)
            sleep(min(pause, LOOK_SECONDS))


LOOK_SECONDS = 0.1
"""Between two looks, at most."""
IDLE_LOOKS = 50
"""So often it looks without anything to watch before the thread ends."""

_watchdog = _Watchdog()


def _forget() -> None:
    _watchdog.__init__()  # type: ignore[misc]  # the child of a fork has no such thread, and the lock may be held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
