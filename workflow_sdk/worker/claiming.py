"""The two loops in which a worker finds instances to claim: those that are due, and those that dead workers left."""

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
# An alarm says when an instance that nobody runs is due. Each shard has its own alarms, and a signal that changes
# whenever an alarm is set there. The signal is read before the alarms: an alarm that is set between the two reads
# changes the signal again, so it is not missed.


_log = logging.getLogger("workflow_sdk.runtime")

ALARMS_PAGE = 64
AT_RANDOM = 64
"""How many due instances are shuffled before they are claimed, if there are other workers that claim too."""


class Alarms:
    """Claims the instances whose alarms are due, for one worker."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._driver = claims.driver
        self._unknown: set[bytes] = set()
        """Alarms that this runtime leaves alone: it does not know the workflow of the instance, or can't read the
        key."""
        self._shards: set[int] = set(range(SHARDS))
        """The shards that may have something to claim."""
        self._rung = anyio.Event()
        """Set when a shard is added to these, or when an instance that failed here gets another time for its next
        try."""
        self._signals: list[bytes | None] = [None] * SHARDS
        """The value of each shard's signal when it was last read, which was just before its alarms were."""
        self._heard = [anyio.Event() for _ in range(SHARDS)]
        """One event for each shard, set when its signal is read again."""
        self._upcoming: dict[int, float] = {}
        """When the first alarm of each shard that was not due yet is due."""
        claims.on_due = self.look_for
        claims.failures.told.append(lambda: self._rung.set())

    def look_for(self, id: str) -> None:
        """Look at the shard of an instance that was made due in this process, without waiting for its signal."""
        self._look(shard_of(id))

    def _look(self, shard: int) -> None:
        self._shards.add(shard)
        self._rung.set()

    async def listen(self, shard: int) -> None:
        """Return once an alarm was set in a shard, and the signal that said so was read again."""
        await self._driver.changed(SHARD_SIGNALS[shard], self._signals[shard])
        self._look(shard)
        # Called again before the signal was read again, `changed` would return at once, for the same alarm.
        heard = self._heard[shard] = anyio.Event()
        await heard.wait()

    async def claim(self) -> None:
        """Claim the due instances that nobody has, in order of time; return when there may be more of them."""
        claims = self._claims
        with claims.residents.looks():
            await self._claim_shards()
        until = min(self._upcoming.values(), default=None)
        await wait_idly(claims.clock, self._rung, until, by=claims.failures.first)
        self._shards.update(map(shard_of, claims.failures.take_due()))

    async def _claim_shards(self) -> None:
        now = self._claims.clock.time()
        # A new event before anything is read: whatever is signalled during the reads sets this one, and is not missed.
        self._rung = anyio.Event()
        shards, self._shards = self._shards | {shard for shard, time in self._upcoming.items() if time <= now}, set()
        try:
            for shard in shards:
                self._signals[shard] = await self._driver.get(SHARD_SIGNALS[shard])
                self._heard[shard].set()
            await self._claim_due(sorted(shards), now)
        except BaseException:
            # The store failed, or this was cancelled: the next call looks at the same shards again.
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
        # Forget the alarms that are gone. Those of shards that were not read this time may still be there.
        self._unknown = {key for key in self._unknown if key in alarms.seen or not key.startswith(read)}
        await self._look_ahead(shards, alarms.end)

    async def _look_ahead(self, shards: list[int], begin: bytes) -> None:
        """Note the time of the first alarm of each shard that is not due yet. Such alarms sort after `begin`."""
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
        # The instance may also have come into memory while this waited for a turn.
        if not is_begun and claims.is_here(id):
            claims.look_later(id)


class _DueAlarms:
    """The alarms of some shards that are due at a time: each is given out once, in order of time.

    Alarms without a time, which are due at once, sort first, and more of them may be set while they are read. So from
    the second page on, alarms with a time are given out in turn with them. Otherwise they might wait without end.
    """

    def __init__(self, driver: Driver, shards: list[int], now: float) -> None:
        self.end: bytes = pack((now,)) + b"\xff"
        """Where, within a shard, the alarms begin that are not due yet."""
        self.seen: set[bytes] = set()
        """The alarms that were given out."""
        self._driver = driver
        self._prefixes = [ALARMS[shard] for shard in shards]
        self._all = self._from(b"")
        self._timers: Merged | None = None

    def _from(self, begin: bytes) -> Merged:
        return Merged(self._driver, self._prefixes, begin, self.end, page=ALARMS_PAGE)

    async def some(self, most: int) -> list[bytes] | None:
        """Return some more alarms in random order, or None if there are none.

        The list may be empty, since alarms that were given out before are left out.
        """
        some = await self._all.some(most)
        if self._timers is None and len(self.seen) >= ALARMS_PAGE:
            self._timers = self._from(pack((DUE_AT_ONCE_MAX,)))
        if self._timers is not None:
            some += await self._timers.some(len(some) or 1)
        if not some:
            return None
        # Other workers read the same alarms. If each began with the first, all but one of their claims would fail.
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
"""Workers that hold claims but have no heartbeat are rare: they are looked for in every tenth pass only."""


class Leftovers:
    """Claims, for one worker, the instances that dead workers left, and stuck ones whose code was mended."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._driver = claims.driver
        self._unreadable: set[bytes] = set()
        """Cleanups that can't be read, and of which the log says so already."""
        self._not_mended: set[bytes] = set()
        """The directory keys of stuck instances that need no look: the code here is the code they became stuck with."""
        self._passes = 0
        """How many passes there were. A pass is one call of `claim`."""
        self._lost = anyio.Event()
        """Set when an instance that failed here gets another time for its next try."""
        claims.failures.told.append(lambda: self._lost.set())

    async def claim(self) -> None:
        """Take over what dead workers left, and stuck instances whose code has changed; return when to look again."""
        claims = self._claims
        self._lost = anyio.Event()
        with claims.residents.looks():
            first = await self._claim_left()
        # Lazily, so that the virtual clock of a test, which jumps to the next timer, does not jump to the next pass.
        await wait_idly(claims.clock, self._lost, by=first, lazily=claims.clock.monotonic() + claims.ttl / 3)

    async def _claim_left(self) -> float | None:
        """Make one pass; return when to look again at the latest, by `monotonic`: when a worker would be taken for dead
        whose heartbeat does not change, or when an instance of our own may be tried again."""
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
        """Take over the instances of a dead worker, and forget the worker once it has none left."""
        for key, _ in await self._driver.scan(*dead.all_claimed()):
            id = id_in(key)
            if id is not None and not self._claims.failures.pauses(id):
                await self._claims.begin_in_turn(id, lambda worker: worker == dead.worker)
        # `bury` forgets only a worker without instances, and claims that are under way still count as the dead
        # worker's.
        await self._claims.until_claimed()
        await apply(self._driver, bury(dead, heartbeat))

    async def _give_heartbeats(self) -> None:
        """Write a heartbeat for each worker that has instances and none, so that it can be seen to run out.

        Such a worker was slow, was buried, claimed once more and then died, before it could notice.
        """
        claims = self._claims
        begin, end = WorkerKeys.all_claims()
        while rows := await self._driver.scan(begin, end, limit=1):
            worker = WorkerKeys(worker_of(rows[0][0]))
            begin = worker.all_claimed()[1]
            # The claim is read first, then the heartbeat. A worker writes a heartbeat before it claims anything, so one
            # that has only just begun is not mistaken for one without.
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
        except Exception:  # noqa: BLE001  # the row can't be read: the other instances are looked at all the same
            _log.exception("instance %s is stuck, and can't be read", id)
            return False
        flow = self._claims.workflows.get(head.workflow)
        return flow is not None and (flow.version, flow.fingerprint) != (head.version, head.fingerprint)

    async def _claim_dropped(self) -> None:
        """Claim again the instances that this worker could not release when their runs were over."""
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
        """The id of the worker that claims."""
        return self._claims.worker.worker

    # The loops.

    async def claim_what_is_due(self) -> None:
        """Claim the due instances that nobody has, in order of time; return when there may be more of them."""
        await self._alarms.claim()

    async def listen_for_what_is_due(self, shard: int) -> None:
        """Return once an alarm was set in a shard, and the signal that said so was read again."""
        await self._alarms.listen(shard)

    async def claim_what_was_left(self) -> None:
        """Take over what dead workers left, and stuck instances whose code has changed; return when to look again."""
        await self._leftovers.claim()

    # What other parts of the runtime tell it.

    def look_for(self, id: str) -> None:
        """Look at the shard of an instance that was made due in this process, without waiting for its signal."""
        self._alarms.look_for(id)

    def failed(self, id: str) -> None:
        """Note that the start of an instance failed here. It may be ours even so: it is tried again after a pause."""
        self._claims.failures.add(id)

    def missed(self, id: str, *, evict: bool = False) -> None:
        """Keep a signal for an instance that is not in memory, in case it is being claimed or started just now."""
        self._claims.missed(id, evict=evict)

    def starts(self, id: str) -> None:
        """Note that an instance, which has a slot, is about to be started and claimed in one commit."""
        self._claims.starts(id)

    def starts_not(self, id: str) -> None:
        """Note that the instance was not started here. Somebody else may have started it, and then we may claim it."""
        self._claims.starts_not(id)

    def begin_claimed(self, flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> None:
        """Run an instance that was started and claimed in one commit, in the slot that it has."""
        self._claims.begin_claimed(flow, keys, claimed)
