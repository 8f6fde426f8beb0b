"""Finding what is due and nobody has, in order of time.

An alarm says when an instance is due that nobody runs. Each shard has alarms of its own, and a signal that changes when
one is set there. The signal is read before the alarms: an alarm that is set in between changes it again, and none is
missed.
"""

from __future__ import annotations

import logging
from functools import partial
from random import shuffle

import anyio

from workflow_sdk.client.directory import Merged, first_time
from workflow_sdk.client.watching import wait_idly
from workflow_sdk.driver import Driver
from workflow_sdk.rows.keys import ALARMS, ROOT, SHARD_SIGNALS, SHARDS, id_in, shard_of
from workflow_sdk.rows.location import pack, unpack
from workflow_sdk.rows.wire import DUE_AT_ONCE_MAX, damaged
from workflow_sdk.worker.claims import Claims

_log = logging.getLogger("workflow_sdk.runtime")

ALARMS_PAGE = 64
AT_RANDOM = 64
"""Of so many that are due, any may come first, if there are other workers."""


class Alarms:
    """The alarms of a store, as one worker sees them: it claims what is due."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._driver = claims.driver
        self._unknown: set[bytes] = set()
        """Alarms of instances whose workflow this runtime was not given: they are left to others."""
        self._shards: set[int] = set(range(SHARDS))
        """Where there may be something to claim."""
        self._rung = anyio.Event()
        """Set when there is, or when something is to be tried again at another time."""
        self._signals: list[bytes | None] = [None] * SHARDS
        """What the signals held when the alarms were read."""
        self._heard = [anyio.Event() for _ in range(SHARDS)]
        """Set when a signal was read."""
        self._upcoming: dict[int, float] = {}
        """The first alarm of each shard that was not due yet."""
        claims.on_due = self.look_for
        claims.failures.told.append(lambda: self._rung.set())

    def look_for(self, id: str) -> None:
        """An instance was made due here: that needs no way through the store."""
        self._look(shard_of(id))

    def _look(self, shard: int) -> None:
        self._shards.add(shard)
        self._rung.set()

    async def listen(self, shard: int) -> None:
        """Notice that an alarm was set in a shard."""
        await self._driver.changed(SHARD_SIGNALS[shard], self._signals[shard])
        self._look(shard)
        # Until the signal was read again, what it holds is no news.
        heard = self._heard[shard] = anyio.Event()
        await heard.wait()

    async def claim(self) -> None:
        """Claim what is due and nobody has, in order of time; return when there may be more."""
        claims = self._claims
        with claims.residents.looks():
            await self._claim_shards()
        until = min(self._upcoming.values(), default=None)
        await wait_idly(claims.clock, self._rung, until, by=claims.failures.first)
        self._shards.update(map(shard_of, claims.failures.take_due()))

    async def _claim_shards(self) -> None:
        now = self._claims.clock.time()
        self._rung = anyio.Event()
        shards, self._shards = self._shards | {shard for shard, time in self._upcoming.items() if time <= now}, set()
        try:
            for shard in shards:
                self._signals[shard] = await self._driver.get(SHARD_SIGNALS[shard])
                self._heard[shard].set()
            await self._claim_due(sorted(shards), now)
        except BaseException:
            # The store failed, or this was cancelled: what was not looked at is looked at the next time.
            self._shards |= shards
            raise

    async def _claim_due(self, shards: list[int], now: float) -> None:
        alarms = _DueAlarms(self._driver, shards, now)
        while not self._claims.residents.stopping:
            keys = await alarms.some(AT_RANDOM if self._claims.watch.others else 1)
            if keys is None:
                break
            for key in keys:
                if key not in self._unknown:
                    await self._claim(key)
        read = tuple(ALARMS[shard] for shard in shards)
        self._unknown = {key for key in self._unknown if key in alarms.seen or not key.startswith(read)}
        await self._look_ahead(shards, alarms.end)

    async def _look_ahead(self, shards: list[int], begin: bytes) -> None:
        """Note the first alarm of each shard that is not due yet: from `begin` on."""
        for shard in shards:
            self._upcoming.pop(shard, None)
            first = await first_time(self._driver, ALARMS[shard] + begin, ALARMS[shard] + b"\xff", _time_of)
            if first is not None:
                self._upcoming[shard] = first

    async def _claim(self, alarm: bytes) -> None:
        claims, id = self._claims, id_in(alarm)
        if id is None:
            _log.error("an alarm is left alone, as it is not of this library's making: %r", alarm)
            self._unknown.add(alarm)
            return
        if claims.failures.pauses(id):
            return
        on_unknown = partial(self._unknown.add, alarm)
        is_begun = not claims.is_here(id) and await claims.begin_in_turn(id, on_unknown=on_unknown)
        # Also one that came here only while we waited for a turn.
        if not is_begun and claims.is_here(id):
            claims.look_later(id)


class _DueAlarms:
    """The alarms of some shards that are due at a time, each once, in order of time.

    What is due at once comes first, and while it is read there may come more and more of it. So from the second page on
    timers come in turn with it: they are not to wait for all.
    """

    def __init__(self, driver: Driver, shards: list[int], now: float) -> None:
        self.end: bytes = pack((now,)) + b"\xff"
        """Where alarms begin, within their shard, that are not due yet."""
        self.seen: set[bytes] = set()
        """Those that were given out."""
        self._driver = driver
        self._prefixes = [ALARMS[shard] for shard in shards]
        self._all = self._from(b"")
        self._timers: Merged | None = None

    def _from(self, begin: bytes) -> Merged:
        return Merged(self._driver, self._prefixes, begin, self.end, page=ALARMS_PAGE)

    async def some(self, most: int) -> list[bytes] | None:
        """The next ones, in no order among themselves; None if there are no more. All of them may be known already."""
        some = await self._all.some(most)
        if self._timers is None and len(self.seen) >= ALARMS_PAGE:
            self._timers = self._from(pack((DUE_AT_ONCE_MAX,)))
        if self._timers is not None:
            some += await self._timers.some(len(some) or 1)
        if not some:
            return None
        # Others look at the same alarms. If all began with the first, they would be in each other's way.
        shuffle(some)
        new = [key for key in dict.fromkeys(some) if key not in self.seen]
        self.seen.update(new)
        return new


def _time_of(alarm: bytes) -> float:
    parts = unpack(alarm[len(ROOT) :])
    if len(parts) != 4 or not isinstance(parts[2], (int, float)):
        raise damaged("an alarm")
    return float(parts[2])
