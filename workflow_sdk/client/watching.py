"""What a worker learns about the other workers from their heartbeats: who is dead, and whether its own clock is ahead.

To find out who is dead, no two clocks are compared. A worker is dead once its heartbeat has not changed for as long as
the heartbeat itself says, measured by the `monotonic` of whoever watches. Time in which the watching process stood
still does not count.

What can't be taken back (to delete an instance, to begin a tick) is not decided by a clock that is ahead of the others.
Each time this worker sees a heartbeat change, it learns within a few seconds what time it is by the clock of the worker
that wrote it. Of all clocks, its own included, the one in the middle counts; of two, the one that is behind. That holds
only for what has been due for a while. What becomes due while this worker watches is judged by its own clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf

import anyio
from msgspec import Struct

from workflow_sdk.changes.workers import SKEW_SECONDS, Heartbeat
from workflow_sdk.errors import CodecError
from workflow_sdk.instance.clock import Activity, Clock
from workflow_sdk.rows.keys import last_of

_log = logging.getLogger("workflow_sdk.runtime")

STRIDE = 2 / 3
"""The most that one look adds to the silence of a worker, as a part of its lease, however long ago the last look was.
So no single pause of the watching process makes another worker seem dead."""
ROUNDED = 0.001
"""Seconds by which a sum of spans may be too short: floats are rounded, and a clock that stands still adds nothing."""
FRESH_SECONDS = 1.0
"""Something that has been due for no longer than this counts as having become due just now."""


class _Worker(Struct):
    """Another worker, as it was seen at the last look."""

    raw: bytes
    ttl: float
    silent: float
    """Seconds for which its heartbeat has not changed."""
    latest: float
    """The latest time that its clock can show now, if it is alive, minus the `monotonic` of this worker now."""


class Watch:
    """The other workers, as one worker sees them."""

    def __init__(self, clock: Clock, worker: str, lease_ttl: float) -> None:
        self._clock = clock
        self._worker = worker
        self._ttl = lease_ttl
        self._workers: dict[str, _Worker] = {}
        self._last = clock.monotonic()
        self._looked = anyio.Event()
        self._is_ahead = False
        self.dead: set[str] = set()
        """The names of workers that are dead, and whose instances can be taken over."""

    @property
    def others(self) -> int:
        """How many other workers are alive."""
        return len(self._workers) - len(self.dead)

    def look(self, heartbeats: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in the heartbeats as they are now."""
        now = self._clock.monotonic()
        passed = max(0.0, now - self._last)
        self._last = now
        before, self._workers = self._workers, {}
        for key, raw in heartbeats:
            name = last_of(key)
            if name != self._worker:
                self._workers[name] = self._seen(before.get(name), raw, now, passed)
        self.dead = {
            name
            for name, worker in self._workers.items()
            if worker.silent >= worker.ttl - ROUNDED and not self._clock.is_alive(name)
        }
        self._looked.set()
        self._tell()

    def _seen(self, before: _Worker | None, raw: bytes, now: float, passed: float) -> _Worker:
        if before is not None and before.raw == raw:
            before.silent += min(passed, STRIDE * before.ttl)
            return before
        try:
            heartbeat = Heartbeat.unpack(raw)
        except CodecError:
            # A heartbeat that nobody can read is never judged ahead (`inf`). If it does not change, the worker is
            # buried, which deletes the row.
            heartbeat = Heartbeat(inf, self._ttl, 0)
        ttl = heartbeat.ttl
        # How old the heartbeat can be. It was written since the last look; or, if this is the first look at this
        # worker, within its lease, as otherwise the worker is dead.
        age = ttl if before is None else passed
        return _Worker(raw, ttl, 0.0, heartbeat.at + age - now)

    @property
    def next(self) -> float | None:
        """When, by `monotonic`, the first of the other workers counts as dead if its heartbeat does not change."""
        left = [
            worker.ttl - worker.silent
            for name, worker in self._workers.items()
            if name not in self.dead and not self._clock.is_alive(name)
        ]
        return self._last + min(left) if left else None

    # Whose clock is wrong.

    async def until_looked(self) -> None:
        """Return once the heartbeats of the other workers were read for the first time."""
        await self._looked.wait()

    @property
    def ahead(self) -> float:
        """Seconds by which the clock of this worker is ahead of the middle one of all clocks; 0 if the two agree."""
        time, now = self._clock.time(), self._clock.monotonic()
        found = [0.0]
        for name, worker in self._workers.items():
            if name not in self.dead and not self._clock.is_alive(name):
                ahead = time - (worker.latest + now)
                found.append(ahead if ahead > SKEW_SECONDS else 0.0)
        found.sort(reverse=True)
        return found[(len(found) - 1) // 2]

    def judge(self, now: float, watched: float) -> Callable[[float], float]:
        """Return a function that says what time it is, for something due at a given time that can't be taken back.

        `watched`: for how many seconds this worker has been looking for such things.
        """
        ahead = self.ahead
        return lambda when: now if now - when <= watched + FRESH_SECONDS else now - ahead

    def _tell(self) -> None:
        ahead = self.ahead
        if ahead and not self._is_ahead:
            _log.warning(
                "the clock of this worker is %.0f s ahead of those of others; until they agree, it forgets nothing and "
                "begins no tick of a schedule that is not due by theirs",
                ahead,
            )
        elif self._is_ahead and not ahead:
            _log.info("the clock of this worker agrees with those of others again")
        self._is_ahead = ahead > 0


async def wait_idly(
    clock: Clock,
    event: anyio.Event,
    until: float | None = None,
    *,
    by: float | None = None,
    lazily: float | None = None,
) -> None:
    """Wait as `Clock.wait` does, and tell the clock that nothing is under way, so that a virtual clock may jump."""
    await clock.wait(event, until, _nothing, by=by, lazily=lazily)


def _nothing() -> Activity:
    return Activity.NONE
