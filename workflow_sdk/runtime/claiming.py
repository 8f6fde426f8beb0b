"""Finding what is to be run: what is due and nobody has, what dead workers have left, and what was mended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.keys import (
    DUE_BELL,
    ROOT,
    Field,
    InstanceKeys,
    WorkerKeys,
    alarms_until,
    all_by_status,
    last_of,
)
from workflow_sdk.core.location import subtree
from workflow_sdk.core.status import Status
from workflow_sdk.core.tuples import unpack
from workflow_sdk.core.wire import unpack_record
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.execution.clock import Activity, Clock
from workflow_sdk.execution.lease import Claim, Claimant, claim
from workflow_sdk.execution.run import Run
from workflow_sdk.execution.snapshot import read_snapshot
from workflow_sdk.runtime.residents import Residents

__all__ = ["RETRY_SECONDS", "Claiming"]

_log = logging.getLogger("workflow_sdk.runtime")

ALARMS_PAGE = 256
RETRY_SECONDS = 1.0
"""After something has failed, until it is tried again."""

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
        worker: WorkerKeys,
        lease_ttl: float,
    ) -> None:
        self._driver = driver
        self._codec = codec
        self._clock = clock
        self._residents = residents
        self._workflows = workflows
        self._worker = worker
        self._ttl = lease_ttl
        self._claims: set[str] = set()
        """What is being claimed now."""
        self._claimed = anyio.Event()
        """Set when one of them is done."""
        self._missed: set[str] = set()
        """What a letter came for while it was being claimed."""
        self._unknown: set[bytes] = set()
        """Alarms of instances whose workflow this runtime was not given: they are left to others."""
        self._failing: dict[str, float] = {}
        """What is not tried again before this time, since it has failed."""
        self._dropped: set[str] = set()
        """What may still be ours in the store though its run is over: the store failed when it was to be given back."""
        self._not_mended: set[bytes] = set()
        """Stuck instances, by their keys, whose code is the same here as the one they are stuck with."""
        self._later: set[str] = set()
        """What was due while it was in memory still, or being claimed."""
        self._rung = anyio.Event()
        """Set when there may be something to claim."""
        residents.on_failure = self.failed
        residents.on_end = self._ended

    def _ended(self, id: str) -> None:
        if id in self._later:
            self._later.discard(id)
            self._rung.set()

    @property
    def worker(self) -> str:
        """Which worker claims."""
        return self._worker.worker

    def failed(self, id: str) -> None:
        """The run of an instance has failed, or its claim: it is not tried again at once."""
        self._failing[id] = self._clock.time() + RETRY_SECONDS
        self._dropped.add(id)

    def missed(self, id: str) -> None:
        """A letter came for an instance that is not in memory. It may be about to be."""
        if id in self._claims:
            self._missed.add(id)

    # What is due.

    async def claim_what_is_due(self) -> None:
        """Claim what is due and nobody has, in order of time; return when there may be more."""
        driver, now = self._driver, self._clock.time()
        bell = await driver.get(DUE_BELL)
        self._rung = anyio.Event()
        begin, end = alarms_until(now)
        seen: set[bytes] = set()
        while not self._residents.stopping:
            rows = await driver.scan(begin, end, limit=ALARMS_PAGE)
            for key, _ in rows:
                begin = key + b"\x00"
                seen.add(key)
                if key not in self._unknown:
                    await self._due(key)
            if len(rows) < ALARMS_PAGE:
                break
        self._unknown &= seen
        upcoming = await driver.scan(end, alarms_until(float("inf"))[1], limit=1)
        times = [_time_of(key) for key, _ in upcoming]
        now = self._clock.time()
        self._failing = {id: time for id, time in self._failing.items() if time > now}
        await self._until_rung(bell, min([*times, *self._failing.values()], default=None))

    async def _due(self, alarm: bytes) -> None:
        id = last_of(alarm)
        if self._failing.get(id, 0.0) > self._clock.time():
            return
        if not self._is_here(id):
            await self._in_turn()
        if self._is_here(id):
            # What is due is nobody's: ours is being given back, or was taken over while we looked away.
            self._later.add(id)
            self._residents.slots.leave(_IN_LINE)
            if id in self._residents.runs:
                self._residents.runs[id].execution.poke()
        else:
            self._begin(id, alarm=alarm)

    def _is_here(self, id: str) -> bool:
        return id in self._claims or id in self._residents.runs

    async def _in_turn(self) -> None:
        """Return when it is the turn of something new."""
        slots = self._residents.slots
        if not slots.take(_IN_LINE):
            event = anyio.Event()
            slots.stand_in_line(_IN_LINE, event.set)
            try:
                await event.wait()
            except BaseException:
                slots.leave(_IN_LINE)
                raise

    def _begin(self, id: str, takes_over: TakesOver = _only_free, alarm: bytes | None = None) -> None:
        """Claim an instance and run it, in a task of its own, and with the turn that was taken."""
        residents = self._residents
        residents.slots.pass_on(_IN_LINE, id)
        residents.busy += 1
        self._claims.add(id)

        async def claim_and_run() -> None:
            run: Run | None = None  # a cancel scope may end a block early, as far as type checkers know
            try:
                run = await self._claim(id, takes_over, alarm)
            except Exception:  # noqa: BLE001  # the store failed, or what it has can't be read: others are served all the same
                _log.exception("instance %s could not be claimed; it is tried again in %s s", id, RETRY_SECONDS)
                self.failed(id)
            finally:
                self._claims.discard(id)
                self._claimed.set()
                residents.one_less()
                if run is None:
                    self._missed.discard(id)
                    residents.slots.leave(id)
                    self._ended(id)
            if run is not None:
                await self._serve(id, run)

        residents.spawn(claim_and_run)

    async def _serve(self, id: str, run: Run) -> None:
        if id in self._missed:
            self._missed.discard(id)
            run.execution.poke()
        await self._residents.serve(id, run)

    async def _claim(self, id: str, takes_over: TakesOver, alarm: bytes | None) -> Run | None:
        """The run of an instance that was claimed; None if someone else has it, or its workflow is not known here."""
        keys = InstanceKeys(id)
        seen = await read_snapshot(self._driver, keys)
        version = seen.fields.get(Field.VERSION)
        flow = None if version is None else self._workflows.get(str(unpack_record(version)[0]))
        if flow is None:
            if alarm is not None:
                self._unknown.add(alarm)
            return None
        claimant = Claimant(
            self._driver,
            keys,
            flow,
            self._codec,
            self._clock.time,
            self._ttl,
            worker=self._worker.worker,
            takes_over=takes_over,
            creates=False,
            beats=False,
        )
        claimed: Claim | None = None
        # Not to be cancelled between the claim and the run: nobody would give the instance back.
        with anyio.CancelScope(shield=True):
            claimed = await claim(claimant, None, seen)
        if claimed is None or claimed.lease is None:
            return None
        return self._run(flow, keys, claimed)

    def _run(self, flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> Run:
        return Run(flow, self._driver, keys, self._codec, self._clock, claimed, "live", self._residents)

    def begin_claimed(self, flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> None:
        """Run what has been started and claimed in one, with the turn that it has."""
        run, id = self._run(flow, keys, claimed), keys.instance_id
        self._residents.runs[id] = run

        async def serve() -> None:
            await self._residents.serve(id, run)

        self._residents.spawn(serve)

    async def _until_rung(self, bell: bytes | None, until: float | None) -> None:
        rung = self._rung

        async def watch() -> None:
            await self._driver.changed(DUE_BELL, bell)
            rung.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await self._clock.wait(rung, until, _nothing)
            group.cancel_scope.cancel()

    # What was left.

    async def claim_what_was_left(self) -> None:
        """Take over what dead workers have left, and stuck instances whose code has changed."""
        driver, now = self._driver, self._clock.time()
        for key, raw in await driver.scan(*WorkerKeys.heartbeats()):
            if float(unpack_record(raw)[0]) < now and last_of(key) != self._worker.worker:
                await self._bury(WorkerKeys(last_of(key)), raw)
        stuck = {key for key, _ in await driver.scan(*all_by_status(Status.STUCK.value))}
        self._not_mended &= stuck
        for key in stuck - self._not_mended:
            if await self._is_mended(last_of(key)):
                await self._take_over(last_of(key), _only_free)
            else:
                self._not_mended.add(key)
        for id in self._dropped - self._residents.runs.keys():
            self._dropped.discard(id)
            await self._take_over(id, lambda worker: worker == self._worker.worker)

    async def _take_over(self, id: str, takes_over: TakesOver) -> None:
        await self._in_turn()
        if self._is_here(id) or self._residents.stopping:
            self._residents.slots.leave(_IN_LINE)
        else:
            self._begin(id, takes_over)

    async def _bury(self, dead: WorkerKeys, heartbeat: bytes) -> None:
        """Take over what a worker had; forget it once it has nothing any more."""
        driver = self._driver
        for key, _ in await driver.scan(*dead.all_claimed()):
            await self._take_over(last_of(key), lambda worker: worker == dead.worker)
        await self._until_claimed()
        if await driver.scan(*dead.all_claimed(), limit=1):
            return
        batch = Batch()
        batch.check(dead.heartbeat, heartbeat)
        batch.clear(dead.heartbeat)
        batch.clear(dead.bell)
        batch.clear_range(*subtree(dead.letters))
        with suppress(ConflictError):
            await driver.commit(batch)

    async def _until_claimed(self) -> None:
        """Return when what is being claimed now has been, or could not be."""
        now = set(self._claims)
        while now & self._claims:
            self._claimed = anyio.Event()
            await self._claimed.wait()

    async def _is_mended(self, id: str) -> bool:
        raw = await self._driver.get(InstanceKeys(id).field(Field.VERSION))
        if raw is None:
            return False
        name, version, fingerprint, *_ = unpack_record(raw)
        flow = self._workflows.get(name)
        return flow is not None and (flow.version, flow.fingerprint) != (version, fingerprint)


def _nothing() -> Activity:
    return Activity.NONE


def _time_of(alarm: bytes) -> float:
    when = unpack(alarm[len(ROOT) :])[1]
    assert isinstance(when, (int, float)), "alarms are by time"
    return float(when)
