"""What one worker claims: what is due, and what the dead have left."""

from __future__ import annotations

import logging
from functools import partial
from random import shuffle
from typing import Any

import anyio

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.claim import Claim
from workflow_sdk.changes.workers import bury, give_heartbeat
from workflow_sdk.client.directory import Merged, first_time
from workflow_sdk.client.watching import wait_idly
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.instance.cleanups import run_cleanups_left
from workflow_sdk.rows.instance import Head
from workflow_sdk.rows.keys import (
    ALARMS,
    ROOT,
    SHARD_SIGNALS,
    SHARDS,
    Field,
    InstanceKeys,
    WorkerKeys,
    all_by_status,
    id_in,
    last_of,
    shard_of,
    worker_of,
)
from workflow_sdk.rows.location import pack, unpack
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import DUE_AT_ONCE_MAX, damaged
from workflow_sdk.worker.claims import Claims

# Finding what is due and nobody has, in order of time.
#
# An alarm says when an instance is due that nobody runs. Each shard has alarms of its own, and a signal that changes
# when one is set there. The signal is read before the alarms: an alarm that is set in between changes it again, and
# none is missed.


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


UNSAID_PASSES = 10
"""Workers without a heartbeat are rare, and looked for seldom."""


class Leftovers:
    """What was left, as one worker sees it."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._driver = claims.driver
        self._unreadable: set[bytes] = set()
        """Cleanups that can't be read, of which that was said."""
        self._not_mended: set[bytes] = set()
        """Stuck instances, by their keys, whose code is the same here as the one they are stuck with."""
        self._passes = 0
        """How often it was looked for."""
        self._lost = anyio.Event()
        """Set when something is to be tried again at another time."""
        claims.failures.told.append(lambda: self._lost.set())

    async def claim(self) -> None:
        """Take over what the dead have left, and stuck instances whose code has changed; return when to look again."""
        claims = self._claims
        self._lost = anyio.Event()
        with claims.residents.looks():
            first = await self._claim_left()
        # Lazily: a clock of tests, which jumps to what is awaited, does not jump for the sake of another look.
        await wait_idly(claims.clock, self._lost, by=first, lazily=claims.clock.monotonic() + claims.ttl / 3)

    async def _claim_left(self) -> float | None:
        """Do so; return when the first of the others is to be taken for dead, if nothing is heard of it."""
        claims = self._claims
        await self._claim_of_the_dead()
        await run_cleanups_left(self._driver, claims.codec, claims.clock.time, self._unreadable)
        if self._passes % UNSAID_PASSES == 0:
            await self._give_heartbeats()
        self._passes += 1
        await self._claim_mended()
        await self._claim_dropped()
        again = [claims.failures.until(id) for id in claims.failures.dropped - claims.residents.runs.keys()]
        return min(again if claims.watch.next is None else [*again, claims.watch.next], default=None)

    async def _claim_of_the_dead(self) -> None:
        watch = self._claims.watch
        heartbeats = await self._driver.scan(*WorkerKeys.heartbeats())
        heartbeats = [(key, raw) for key, raw in heartbeats if id_in(key) is not None]
        watch.look(heartbeats)
        for key, raw in heartbeats:
            if last_of(key) in watch.dead:
                await self._bury(WorkerKeys(last_of(key)), raw)

    async def _bury(self, dead: WorkerKeys, heartbeat: bytes) -> None:
        """Take over what a worker had; forget it once it has nothing any more."""
        for key, _ in await self._driver.scan(*dead.all_claimed()):
            id = id_in(key)
            if id is not None and not self._claims.failures.pauses(id):
                await self._claims.begin_in_turn(id, lambda worker: worker == dead.worker)
        # Else it would have something still, and be buried at the next look only.
        await self._claims.until_claimed()
        await apply(self._driver, bury(dead, heartbeat))

    async def _give_heartbeats(self) -> None:
        """Have workers found that have no heartbeat: buried while they were slow, and dead before they noticed."""
        claims = self._claims
        begin, end = WorkerKeys.all_claims()
        while rows := await self._driver.scan(begin, end, limit=1):
            worker = WorkerKeys(worker_of(rows[0][0]))
            begin = worker.all_claimed()[1]
            # Looked at after its claim: who claims has had a heartbeat before.
            if worker.worker != claims.worker.worker and await self._driver.get(worker.heartbeat) is None:
                await apply(self._driver, give_heartbeat(worker, claims.clock.time()))

    async def _claim_mended(self) -> None:
        rows = await self._driver.scan(*all_by_status(Status.STUCK.value))
        stuck = {key for key, _ in rows if id_in(key) is not None}
        self._not_mended &= stuck
        for key in stuck - self._not_mended:
            if await self._is_mended(last_of(key)):
                await self._claims.begin_in_turn(last_of(key))
            else:
                self._not_mended.add(key)

    async def _is_mended(self, id: str) -> bool:
        raw = await self._driver.get(InstanceKeys(id).field(Field.HEAD))
        if raw is None:
            return False
        try:
            head = Head.unpack(raw)
        except Exception:  # noqa: BLE001  # what it has can't be read: others are looked at all the same
            _log.exception("instance %s is stuck, and can't be read", id)
            return False
        flow = self._claims.workflows.get(head.workflow)
        return flow is not None and (flow.version, flow.fingerprint) != (head.version, head.fingerprint)

    async def _claim_dropped(self) -> None:
        """Take back what this worker could not give back when its run was over."""
        claims = self._claims
        dropped = claims.failures.dropped
        for id in dropped - claims.residents.runs.keys():
            if not claims.failures.pauses(id):
                dropped.discard(id)
                await claims.begin_in_turn(id, lambda worker: worker == claims.worker.worker)


class Claiming:
    """The two loops that find what one worker claims."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._alarms = Alarms(self._claims)
        self._leftovers = Leftovers(self._claims)

    @property
    def worker(self) -> str:
        """Which worker claims."""
        return self._claims.worker.worker

    # The loops.

    async def claim_what_is_due(self) -> None:
        """Claim what is due and nobody has, in order of time; return when there may be more."""
        await self._alarms.claim()

    async def listen_for_what_is_due(self, shard: int) -> None:
        """Notice that an alarm was set in a shard."""
        await self._alarms.listen(shard)

    async def claim_what_was_left(self) -> None:
        """Take over what the dead have left, and stuck instances whose code has changed; return when to look again."""
        await self._leftovers.claim()

    # What others here tell it.

    def look_for(self, id: str) -> None:
        """An instance was made due here: that needs no way through the store."""
        self._alarms.look_for(id)

    def failed(self, id: str) -> None:
        """An instance could not be started here, and may be ours nevertheless: it is not tried again at once."""
        self._claims.failures.add(id)

    def missed(self, id: str, *, evict: bool = False) -> None:
        """A signal came for an instance that is not in memory. It may be about to be."""
        self._claims.missed(id, evict=evict)

    def starts(self, id: str) -> None:
        """An instance is about to be started and claimed in one, and has a turn. Until then nothing else claims it."""
        self._claims.starts(id)

    def starts_not(self, id: str) -> None:
        """It was not. Whoever started it instead may have left it to us."""
        self._claims.starts_not(id)

    def begin_claimed(self, flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> None:
        """Run what has been started and claimed in one, with the turn that it has."""
        self._claims.begin_claimed(flow, keys, claimed)
