"""What a worker sees of the others by their heartbeats: who is dead, and whether its own clock is ahead of theirs.

No two clocks are compared to find out who is dead. A worker is, once its heartbeat has not changed for as long as it
said, by the watcher's own `monotonic`; and a watcher that has stood still has not watched meanwhile.

What can't be taken back (an instance is forgotten, a tick is over) is not left to a clock that is ahead of the others'.
Each time this worker has seen a heartbeat change, it knows within a few seconds what time it was for whoever wrote it.
Of all clocks, its own included, the one in the middle counts; of two, the one that is behind. That only holds for what
has been due for a while: what becomes due while this worker watches has been given its time by a clock like its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

import anyio

from workflow_sdk.changes.workers import SKEW_SECONDS, Heartbeat
from workflow_sdk.core.keys import last_of
from workflow_sdk.errors import CodecError
from workflow_sdk.execution.clock import Clock

__all__ = ["FRESH_SECONDS", "Watch"]

_log = logging.getLogger("workflow_sdk.runtime")

STRIDE = 2 / 3
"""Of a lease: as much as one look may add to the silence of a worker, however long ago the look before was."""
ROUNDED = 0.001
"""Seconds that a sum of spans may lack: a clock that stands still until it is waited for does not make up for them."""
FRESH_SECONDS = 1.0
"""What has been due for no longer than this has become due just now."""


@dataclass(slots=True)
class _Worker:
    """Another worker, as it was seen at the last look."""

    raw: bytes
    ttl: float
    silent: float
    """Seconds for which its heartbeat has not changed."""
    latest: float
    """Its clock is no further than this, if it is alive: less `monotonic` of the watcher."""


class Watch:
    """The others, as one worker sees them."""

    def __init__(self, clock: Clock, worker: str, lease_ttl: float) -> None:
        self._clock = clock
        self._worker = worker
        self._ttl = lease_ttl
        self._workers: dict[str, _Worker] = {}
        self._last = clock.monotonic()
        self._looked = anyio.Event()
        self._is_ahead = False
        self.dead: set[str] = set()
        """Who is to be buried."""

    @property
    def others(self) -> int:
        """How many other workers are alive."""
        return len(self._workers) - len(self.dead)

    def look(self, heartbeats: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in what the heartbeats are now."""
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
            # Nobody will write another one: it is buried, and the row is gone.
            heartbeat = Heartbeat(inf, self._ttl, 0)
        ttl = heartbeat.ttl
        # Written since the last look; or, if it is the first that is seen of it, within its lease, or it is dead.
        age = ttl if before is None else passed
        return _Worker(raw, ttl, 0.0, heartbeat.at + age - now)

    @property
    def next(self) -> float | None:
        """When the first of the others is to be taken for dead, by `monotonic`, if nothing is heard of it."""
        left = [
            worker.ttl - worker.silent
            for name, worker in self._workers.items()
            if name not in self.dead and not self._clock.is_alive(name)
        ]
        return self._last + min(left) if left else None

    # Whose clock is wrong.

    async def until_looked(self) -> None:
        """Return once it is known who else is there."""
        await self._looked.wait()

    @property
    def ahead(self) -> float:
        """Seconds by which the clock of this worker is ahead of what most of them agree on; 0 if it agrees."""
        time, now = self._clock.time(), self._clock.monotonic()
        found = [0.0]
        for name, worker in self._workers.items():
            if name not in self.dead and not self._clock.is_alive(name):
                ahead = time - (worker.latest + now)
                found.append(ahead if ahead > SKEW_SECONDS else 0.0)
        found.sort(reverse=True)
        return found[(len(found) - 1) // 2]

    def judge(self, now: float, watched: float) -> Callable[[float], float]:
        """What time it is, for what is due at a time and can't be taken back, and who has `watched` for so long."""
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
