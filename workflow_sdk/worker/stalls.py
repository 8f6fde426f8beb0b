"""Stalls: a step or a workflow that does not give way blocks the event loop of a worker whose process lives.

While the loop is blocked, no task in it can write the heartbeat. So the watchdog, a thread, looks at the loop. If it
was blocked for a third of the lease, another thread logs the stack of the loop's thread, and writes the heartbeat with
a driver of its own. If the stall lasts too long, that thread releases the worker's instances, so that others run them,
and no death is counted.

Such a driver comes from the method `sibling`; see `workflow_sdk.driver.Sibling`. Without it, the lease runs out, others
take the instances over, and the worker takes its deaths back when its loop goes on: see `take_back_death`.
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
"""How long a worker whose event loop is blocked keeps its instances, by default."""
PART_OF_LEASE: Final = 3
"""A loop counts as blocked if it has not gone round for the length of a lease divided by this."""
TICKS: Final = 10
"""How often in that time the loop is to go round, and is looked at."""


async def watch_for_stalls(
    driver: Driver, clock: Clock, worker: WorkerKeys, lease_ttl: float, stall_max: float
) -> None:
    """Keep the worker alive while its event loop is blocked. Does not return."""
    async with stalls_watched(driver, clock, worker, lease_ttl, stall_max) as watched:
        await watched.go_round()


@asynccontextmanager
async def stalls_watched(
    driver: Driver, clock: Clock, worker: WorkerKeys, lease_ttl: float, stall_max: float = STALL_SECONDS
) -> AsyncGenerator[Watched]:
    """Keep the worker alive while its event loop is blocked. Inside the block, some task has to run `go_round`."""
    watched = Watched(driver, clock, worker, lease_ttl, stall_max)
    if clock.is_alive(worker.worker):
        # The workers on this clock know without heartbeats who is alive.
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
            # The thread is about to close its driver.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(holder.join)


class Watched:
    """One worker, and when its event loop last went round."""

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
        """Show again and again that the event loop is not blocked. Does not return."""
        if self._clock.is_alive(self.worker.worker):
            return
        while True:
            self.seen = monotonic()
            self.goes_on.set()
            await anyio.sleep(self.tick)

    @property
    def is_blocked(self) -> bool:
        """Whether the loop of the worker has not gone round for too long."""
        return monotonic() - self.seen > self.lease_ttl / PART_OF_LEASE

    def look(self) -> None:
        """Start a thread that keeps the worker alive, if its loop is blocked and no such thread runs yet."""
        if not self.is_blocked or (self.holder is not None and self.holder.is_alive()):
            return
        self.goes_on.clear()
        # Looked at once more: the loop may have gone round just before `goes_on` was cleared, and nobody would set it
        # again until it goes round next.
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
        except Exception:  # noqa: BLE001  # whatever the store raises, the lease then runs out
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
        """Log the stall again each time that it has lasted twice as long."""
        told = monotonic() - seen
        while not self.goes_on.wait(told):
            told = monotonic() - seen
            self._tell(seen)

    async def _keep(self, sibling: Sibling, seen: float) -> None:
        """Write heartbeats as long as the worker may keep its instances; then release them."""
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
        """Release the worker's instances, so that others run them: this worker lives, but gets nothing done."""
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
    """One thread for all workers of the process. It looks at each of them, and ends after a while without any."""

    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self._lock = Lock()
        self._thread: Thread | None = None

    def add(self, watched: Watched) -> None:
        """Look at this worker, too."""
        with self._lock:
            self._watched.append(watched)
            if self._thread is None:
                self._thread = Thread(target=self._look, name="workflow_sdk watchdog", daemon=True)
                self._thread.start()

    def remove(self, watched: Watched) -> None:
        """Stop looking at this worker."""
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
                # A worker that is added now does not wake the thread: it is first looked at after this pause at the
                # latest.
                pause = min((watched.tick for watched in self._watched), default=LOOK_SECONDS)
            before, pause = monotonic(), min(pause, LOOK_SECONDS)
            sleep(pause)
            if monotonic() - before > pause + STOOD_STILL_SECONDS:
                # The whole process stood still, as it does on a machine that sleeps. Event loops that are not blocked
                # go round before the next look.
                sleep(pause)


LOOK_SECONDS = 0.1
"""The longest time between two looks."""
STOOD_STILL_SECONDS = 0.5
"""If a pause between two looks takes this much longer than it should, this thread did not run, either."""
IDLE_LOOKS = 50
"""After how many looks without any worker the thread ends."""

_watchdog = _Watchdog()


def _forget() -> None:
    _watchdog.__init__()  # type: ignore[misc]  # a forked child has no such thread, and the lock may be held for ever


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
