"""Finding what is to be run: what is due and nobody has, what dead workers have left, and what was mended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from random import shuffle
from typing import Any

import anyio

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.claim import Claim, Claimant, new_lease
from workflow_sdk.changes.snapshot import find_unreadable
from workflow_sdk.changes.workers import bury, give_heartbeat
from workflow_sdk.core.codec import Codec, SealedError
from workflow_sdk.core.instance import Head
from workflow_sdk.core.keys import (
    ALARMS,
    DUE_BELLS,
    ROOT,
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
from workflow_sdk.core.status import Status
from workflow_sdk.core.times import DUE_AT_ONCE_MAX
from workflow_sdk.core.tuples import pack, unpack
from workflow_sdk.core.wire import damaged
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError
from workflow_sdk.execution.clock import Activity, Clock
from workflow_sdk.execution.errands import run_errands_left
from workflow_sdk.execution.lease import claim, lives
from workflow_sdk.execution.run import Run
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.runtime.merging import Merged, first_time
from workflow_sdk.runtime.residents import Residents
from workflow_sdk.runtime.watching import Watch

__all__ = ["RETRY_SECONDS", "Claiming"]

_log = logging.getLogger("workflow_sdk.runtime")

ALARMS_PAGE = 64
AT_RANDOM = 64
"""Of so many that are due, any may come first, if there are other workers."""
UNSAID_PASSES = 10
"""Workers without a heartbeat are rare, and looked for seldom."""
RETRY_SECONDS = 1.0
"""After something has failed, until it is tried again."""
UNREADABLE_SECONDS = 300.0
"""The same for what can't be read, should nobody see that it is mended."""
WATCHED_MAX = 64
"""So many unreadable instances are tried again as soon as they are mended."""

_IN_LINE = ""
"""Who stands in line for the next instance that is due. No instance has this id."""

TakesOver = Callable[[str], bool]


def _only_free(worker: str) -> bool:
    return False


class Claiming:
    """The claims of one worker."""

    def __init__(
        self,
        driver: Driver,
        codec: Codec,
        clock: Clock,
        residents: Residents,
        workflows: Mapping[str, Workflow[Any, Any]],
        known: KnownHandlers,
        worker: WorkerKeys,
        lease_ttl: float,
        watch: Watch,
        retention: float | None = None,
    ) -> None:
        self._driver = driver
        self._codec = codec
        self._clock = clock
        self._residents = residents
        self._workflows = workflows
        self._known = known
        self._worker = worker
        self._ttl = lease_ttl
        self._watch = watch
        self._retention = retention
        self._claims: set[str] = set()
        """What is being claimed now."""
        self._starting: set[str] = set()
        """What is being started and claimed in one. It has a slot, and shows only later whether it is ours."""
        self._claimed = anyio.Event()
        """Set when one of them is done."""
        self._missed: dict[str, bool] = {}
        """What a letter came for while it was being claimed, and whether it is to be put away."""
        self._unknown: set[bytes] = set()
        """Alarms of instances whose workflow this runtime was not given: they are left to others."""
        self._failing: dict[str, float] = {}
        """What is not tried again before this time (of `monotonic`), since it has failed."""
        self._unreadable: set[bytes] = set()
        """Errands that can't be read, of which that was said."""
        self._watched: set[str] = set()
        """What can't be read, and is tried again as soon as that has changed."""
        self._dropped: set[str] = set()
        """What may still be ours in the store though its run is over: the store failed when it was to be given back."""
        self._lost = anyio.Event()
        """Set when there is more of that."""
        self._not_mended: set[bytes] = set()
        """Stuck instances, by their keys, whose code is the same here as the one they are stuck with."""
        self._later: set[str] = set()
        """What was due while it was in memory still, or being claimed or started."""
        self._shards: set[int] = set(range(SHARDS))
        """Where there may be something to claim."""
        self._rung = anyio.Event()
        """Set when there is."""
        self._bells: list[bytes | None] = [None] * SHARDS
        """What the bells held when the alarms were read."""
        self._heard = [anyio.Event() for _ in range(SHARDS)]
        """Set when a bell was read."""
        self._upcoming: dict[int, float] = {}
        """The first alarm of each shard that was not due yet."""
        self._passes = 0
        """How often it was looked for what was left."""
        self._place = anyio.Lock()
        """Who stands at the one place in line: what is due and what was left are claimed one at a time."""
        residents.on_failure = self.failed
        residents.on_end.append(self._ended)

    def _ended(self, id: str) -> None:
        if id in self._later:
            self._later.discard(id)
            self._look(shard_of(id))

    @property
    def worker(self) -> str:
        """Which worker claims."""
        return self._worker.worker

    def failed(self, id: str, error: BaseException | None = None) -> None:
        """The run of an instance has failed, or its claim: it is not tried again at once."""
        pause = RETRY_SECONDS
        if isinstance(error, CodecError):
            # Nothing would come of it until the row has changed; or until this worker is of a newer version.
            pause = UNREADABLE_SECONDS
            if isinstance(error, SealedError):
                _log.error(
                    "instance %s is left to workers with another codec, and nothing of it was run: %s", id, error
                )
            else:
                _log.error("instance %s can't be run here, and is left alone until its rows change: %s", id, error)
                self._watch_unreadable(id)
        self._failing[id] = self._clock.monotonic() + pause
        self._dropped.add(id)
        # Whoever waits for the next time is told of this one.
        self._rung.set()
        self._lost.set()

    def _watch_unreadable(self, id: str) -> None:
        """Try an instance again as soon as the row has changed for which it can't be read."""
        if id in self._watched or len(self._watched) >= WATCHED_MAX:
            return
        self._watched.add(id)

        async def watch() -> None:
            with suppress(Exception):  # the store failed: it is looked at again after a while
                await self._driver.changed(*await find_unreadable(self._driver, InstanceKeys(id)))
            self._watched.discard(id)
            if id in self._failing:
                self._failing[id] = self._clock.monotonic()
                self._rung.set()
                self._lost.set()

        self._residents.spawn(watch)

    def missed(self, id: str, *, evict: bool = False) -> None:
        """A letter came for an instance that is not in memory. It may be about to be."""
        if id in self._claims or id in self._starting:
            self._missed[id] = evict or self._missed.get(id, False)

    # What is due.

    def look_for(self, id: str) -> None:
        """An instance was made due here: that needs no way through the store."""
        self._look(shard_of(id))

    async def listen_for_what_is_due(self, shard: int) -> None:
        """Notice that an alarm was set in a shard."""
        await self._driver.changed(DUE_BELLS[shard], self._bells[shard])
        self._look(shard)
        # The bell is read before the alarms are.
        heard = self._heard[shard] = anyio.Event()
        await heard.wait()

    def _look(self, shard: int) -> None:
        self._shards.add(shard)
        self._rung.set()

    async def claim_what_is_due(self) -> None:
        """Claim what is due and nobody has, in order of time; return when there may be more."""
        with self._residents.looks():
            await self._claim_shards()
        until = min(self._upcoming.values(), default=None)
        await self._clock.wait(self._rung, until, _nothing, by=min(self._failing.values(), default=None))
        now = self._clock.monotonic()
        for id in [id for id, time in self._failing.items() if time <= now]:
            del self._failing[id]
            self._shards.add(shard_of(id))

    async def _claim_shards(self) -> None:
        now = self._clock.time()
        self._rung = anyio.Event()
        shards, self._shards = self._shards | {shard for shard, time in self._upcoming.items() if time <= now}, set()
        try:
            for shard in shards:
                self._bells[shard] = await self._driver.get(DUE_BELLS[shard])
                self._heard[shard].set()
            await self._claim_due(sorted(shards), now)
        except BaseException:
            self._shards |= shards
            raise

    async def _claim_due(self, shards: list[int], now: float) -> None:
        end = pack((now,)) + b"\xff"
        prefixes = [ALARMS[shard] for shard in shards]
        alarms = Merged(self._driver, prefixes, b"", end, page=ALARMS_PAGE)
        timers: Merged | None = None
        seen: set[bytes] = set()
        while not self._residents.stopping:
            some = await alarms.some(AT_RANDOM if self._watch.others else 1)
            if timers is None and len(seen) >= ALARMS_PAGE:
                # What is due at once comes first, and there may be more and more of it: timers are not to wait for all.
                timers = Merged(self._driver, prefixes, pack((DUE_AT_ONCE_MAX,)), end, page=ALARMS_PAGE)
            if timers is not None:
                some += await timers.some(len(some) or 1)
            if not some:
                break
            # Others look at the same alarms. If all began with the first, they would be in each other's way.
            shuffle(some)
            for key in some:
                if key in seen:
                    continue
                seen.add(key)
                if key not in self._unknown:
                    await self._due(key)
        read = tuple(ALARMS[shard] for shard in shards)
        self._unknown = {key for key in self._unknown if key in seen or not key.startswith(read)}
        for shard in shards:
            self._upcoming.pop(shard, None)
            first = await first_time(self._driver, ALARMS[shard] + end, ALARMS[shard] + b"\xff", _time_of)
            if first is not None:
                self._upcoming[shard] = first

    async def _due(self, alarm: bytes) -> None:
        id = id_in(alarm)
        if id is None:
            _log.error("an alarm is left alone, as it is not of this library's making: %r", alarm)
            self._unknown.add(alarm)
            return
        if self._failing.get(id, -inf) > self._clock.monotonic():
            return
        if self._is_here(id) or not await self._begin_in_turn(id, alarm=alarm):
            if not self._is_here(id):
                return
            # What is due is nobody's: ours is being given back, or was taken over while we looked away.
            self._later.add(id)
            if id in self._residents.runs:
                self._residents.runs[id].execution.poke()

    def _is_here(self, id: str) -> bool:
        return id in self._claims or id in self._starting or id in self._residents.runs

    async def _begin_in_turn(self, id: str, takes_over: TakesOver = _only_free, alarm: bytes | None = None) -> bool:
        """Claim an instance when it is the turn of something new; False if it is here by then, or nothing is begun."""
        async with self._place:
            await self._in_turn()
            if self._is_here(id) or self._residents.stopping:
                self._residents.slots.leave(_IN_LINE)
                return False
            self._begin(id, takes_over, alarm)
            return True

    async def _in_turn(self) -> None:
        slots = self._residents.slots
        if not slots.take(_IN_LINE):
            event = anyio.Event()
            slots.stand_in_line(_IN_LINE, event.set)
            try:
                await event.wait()
            except BaseException:
                slots.leave(_IN_LINE)
                raise

    def _begin(self, id: str, takes_over: TakesOver, alarm: bytes | None) -> None:
        """Claim an instance and run it, in a task of its own, and with the turn that was taken."""
        residents = self._residents
        residents.slots.pass_on(_IN_LINE, id)
        residents.busy += 1
        self._claims.add(id)

        async def claim_and_run() -> None:
            run: Run | None = None  # a cancel scope may end a block early, as far as type checkers know
            try:
                run = await self._claim(id, takes_over, alarm)
            except CodecError as error:
                self.failed(id, error)
            except Exception:  # noqa: BLE001  # the store failed: others are served all the same
                _log.exception("instance %s could not be claimed; it is tried again in %s s", id, RETRY_SECONDS)
                self.failed(id)
            finally:
                self._claims.discard(id)
                self._claimed.set()
                residents.one_less()
                if run is None:
                    self._missed.pop(id, None)
                    residents.slots.leave(id)
                    self._ended(id)
            if run is not None:
                evict = self._missed.pop(id, None)
                if evict is not None:
                    run.execution.poke()
                # In a task of its own: nothing of the claim is kept while it runs.
                residents.runs[id] = run
                residents.spawn(partial(residents.serve, id, run, evict=bool(evict)))

        residents.spawn(claim_and_run)

    async def _claim(self, id: str, takes_over: TakesOver, alarm: bytes | None) -> Run | None:
        """The run of an instance that was claimed; None if someone else has it, or its workflow is not known here."""
        keys = InstanceKeys(id)
        claimant = Claimant(
            keys,
            self._workflows.get,
            self._codec,
            self._clock.time,
            new_lease(self._worker.worker, self._ttl),
            takes_over=takes_over,
            lives=lambda worker: lives(worker, is_alive=self._clock.is_alive(worker)),
            is_dead=lambda worker: worker in self._watch.dead,
            beats=False,
            retention=self._retention,
        )
        claimed: Claim | None = None
        # Not to be cancelled between the claim and the run: nobody would give the instance back.
        with anyio.CancelScope(shield=True):
            claimed = await claim(self._driver, claimant)
        if claimed is None or claimed.workflow is None:
            if alarm is not None:
                self._unknown.add(alarm)
            return None
        return None if claimed.lease is None else self._run(claimed.workflow, keys, claimed)

    def _run(self, flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> Run:
        return Run(flow, self._driver, keys, self._codec, self._known, self._clock, claimed, "live", self._residents)

    def starts(self, id: str) -> None:
        """An instance is about to be started and claimed in one, and has a turn. Until then nothing else claims it."""
        self._starting.add(id)

    def starts_not(self, id: str) -> None:
        """It was not. Whoever started it instead may have left it to us."""
        self._starting.discard(id)
        self._missed.pop(id, None)
        self._ended(id)

    def begin_claimed(self, flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> None:
        """Run what has been started and claimed in one, with the turn that it has."""
        run, id = self._run(flow, keys, claimed), keys.instance_id
        self._starting.discard(id)
        evict = self._missed.pop(id, None)
        if evict is not None:
            run.execution.poke()
        self._residents.runs[id] = run
        self._residents.spawn(partial(self._residents.serve, id, run, evict=bool(evict)))

    # What was left.

    async def claim_what_was_left(self) -> None:
        """Take over what the dead have left, and stuck instances whose code has changed; return when to look again."""
        self._lost = anyio.Event()
        with self._residents.looks():
            first = await self._claim_left()
        await self._clock.wait(self._lost, None, _nothing, by=first, lazily=self._clock.monotonic() + self._ttl / 3)

    async def _claim_left(self) -> float | None:
        """Do so; return when the first of the others is to be taken for dead, if nothing is heard of it."""
        driver, watch = self._driver, self._watch
        heartbeats = await driver.scan(*WorkerKeys.heartbeats())
        heartbeats = [(key, raw) for key, raw in heartbeats if id_in(key) is not None]
        watch.look(heartbeats)
        for key, raw in heartbeats:
            if last_of(key) in watch.dead:
                await self._bury(WorkerKeys(last_of(key)), raw)
        await run_errands_left(driver, self._codec, self._clock.time, self._unreadable)
        if self._passes % UNSAID_PASSES == 0:
            await self._give_heartbeats()
        self._passes += 1
        stuck = {key for key, _ in await driver.scan(*all_by_status(Status.STUCK.value)) if id_in(key) is not None}
        self._not_mended &= stuck
        for key in stuck - self._not_mended:
            if await self._is_mended(last_of(key)):
                await self._begin_in_turn(last_of(key), _only_free)
            else:
                self._not_mended.add(key)
        for id in self._dropped - self._residents.runs.keys():
            if self._failing.get(id, -inf) > self._clock.monotonic():
                continue
            self._dropped.discard(id)
            await self._begin_in_turn(id, lambda worker: worker == self._worker.worker)
        lost = [] if watch.next is None else [watch.next]
        now = self._clock.monotonic()
        again = [self._failing.get(id, now) for id in self._dropped - self._residents.runs.keys()]
        return min(lost + again, default=None)

    async def _give_heartbeats(self) -> None:
        """Have workers found that have no heartbeat: buried while they were slow, and dead before they noticed."""
        begin, end = WorkerKeys.all_claims()
        while rows := await self._driver.scan(begin, end, limit=1):
            worker = WorkerKeys(worker_of(rows[0][0]))
            begin = worker.all_claimed()[1]
            # Looked at after its claim: who claims has had a heartbeat before.
            if worker.worker != self._worker.worker and await self._driver.get(worker.heartbeat) is None:
                await apply(self._driver, give_heartbeat(worker, self._clock.time()))

    async def _bury(self, dead: WorkerKeys, heartbeat: bytes) -> None:
        """Take over what a worker had; forget it once it has nothing any more."""
        driver = self._driver
        for key, _ in await driver.scan(*dead.all_claimed()):
            id = id_in(key)
            if id is None or self._failing.get(id, -inf) > self._clock.monotonic():
                continue
            await self._begin_in_turn(id, lambda worker: worker == dead.worker)
        await self._until_claimed()
        await apply(driver, bury(dead, heartbeat))

    async def _until_claimed(self) -> None:
        """Return when what is being claimed now has been, or could not be."""
        now = set(self._claims)
        while now & self._claims:
            self._claimed = anyio.Event()
            await self._claimed.wait()

    async def _is_mended(self, id: str) -> bool:
        raw = await self._driver.get(InstanceKeys(id).field(Field.HEAD))
        if raw is None:
            return False
        try:
            head = Head.unpack(raw)
        except Exception:  # noqa: BLE001  # what it has can't be read: others are looked at all the same
            _log.exception("instance %s is stuck, and can't be read", id)
            return False
        flow = self._workflows.get(head.workflow)
        return flow is not None and (flow.version, flow.fingerprint) != (head.version, head.fingerprint)


def _nothing() -> Activity:
    return Activity.NONE


def _time_of(alarm: bytes) -> float:
    parts = unpack(alarm[len(ROOT) :])
    if len(parts) != 4 or not isinstance(parts[2], (int, float)):
        raise damaged("an alarm")
    return float(parts[2])
