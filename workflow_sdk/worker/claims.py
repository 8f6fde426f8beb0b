"""Claiming one instance: in turn with what runs already, one at a time, and not again at once after a failure.

A claim takes long compared with everything else that a worker does in memory. Meanwhile a message may come for the
instance, somebody here may start it, or the worker may be told to stop. So what is under way is noted before the first
`await`, and every note is taken back in a `finally`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

import anyio

from workflow_sdk.changes.claim import Claim, Claimant, new_lease
from workflow_sdk.changes.instances import find_unreadable
from workflow_sdk.client.watching import Watch
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError
from workflow_sdk.instance.clock import Clock
from workflow_sdk.instance.run import Run
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.rows.keys import InstanceKeys, WorkerKeys
from workflow_sdk.values import Codec, SealedError
from workflow_sdk.worker.lease import claim, lives
from workflow_sdk.worker.residents import Residents

_log = logging.getLogger("workflow_sdk.runtime")

RETRY_SECONDS = 1.0
"""After something has failed, until it is tried again."""
UNREADABLE_SECONDS = 300.0
"""The same for what can't be read, should nobody see that it is mended."""
WATCHED_MAX = 64
"""So many unreadable instances are tried again as soon as they are mended."""

_NEXT = ""
"""Who waits for a turn for the next instance that is claimed. No instance has this id."""

TakesOver = Callable[[str], bool]
"""Whether an instance is claimed that this worker has."""


def only_free(worker: str) -> bool:
    """Claim only what nobody has."""
    return False


class Failures:
    """The instances whose claim or run has failed here. They are not tried again at once."""

    def __init__(self, driver: Driver, clock: Clock, residents: Residents) -> None:
        self._driver = driver
        self._clock = clock
        self._residents = residents
        self._until: dict[str, float] = {}
        """When each may be tried again, by `monotonic`."""
        self._watched: set[str] = set()
        """What can't be read, and is tried again as soon as that has changed."""
        self.dropped: set[str] = set()
        """What may still be ours in the store though its run is over: the store failed when it was to be given back."""
        self.told: list[Callable[[], None]] = []
        """Told when something is to be tried again at another time than before."""

    def add(self, id: str, error: BaseException | None = None) -> None:
        """The run of an instance has failed, or its claim."""
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
                self._watch(id)
        self._until[id] = self._clock.monotonic() + pause
        self.dropped.add(id)
        self._tell()

    def _watch(self, id: str) -> None:
        """Try an instance again as soon as the row has changed for which it can't be read."""
        if id in self._watched or len(self._watched) >= WATCHED_MAX:
            return
        self._watched.add(id)

        async def watch() -> None:
            with suppress(Exception):  # the store failed: it is looked at again after a while
                await self._driver.changed(*await find_unreadable(self._driver, InstanceKeys(id)))
            self._watched.discard(id)
            if id in self._until:
                self._until[id] = self._clock.monotonic()
                self._tell()

        self._residents.host.spawn(watch)

    def _tell(self) -> None:
        for tell in self.told:
            tell()

    def pauses(self, id: str) -> bool:
        """Whether an instance is not to be tried now."""
        return self._until.get(id, -inf) > self._clock.monotonic()

    def until(self, id: str) -> float:
        """When an instance may be tried, by `monotonic`."""
        return self._until.get(id, self._clock.monotonic())

    @property
    def first(self) -> float | None:
        """When the first of them may be tried again, by `monotonic`."""
        return min(self._until.values(), default=None)

    def take_due(self) -> list[str]:
        """Take out those whose pause is over."""
        now = self._clock.monotonic()
        over = [id for id, time in self._until.items() if time <= now]
        for id in over:
            del self._until[id]
        return over


class Claims:
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
        retention: float | None,
    ) -> None:
        self.driver: Driver = driver
        self.codec: Codec = codec
        self.clock: Clock = clock
        self.residents: Residents = residents
        self.workflows: Mapping[str, Workflow[Any, Any]] = workflows
        self.worker: WorkerKeys = worker
        self.ttl: float = lease_ttl
        self.watch: Watch = watch
        self.failures: Failures = Failures(driver, clock, residents)
        self.on_due: Callable[[str], None] = lambda id: None
        """Told when something is not in memory any more that was due meanwhile."""
        self._known = known
        self._retention = retention
        self._claiming: set[str] = set()
        """What is being claimed now."""
        self._starting: set[str] = set()
        """What is being started and claimed in one. It has a slot, and shows only later whether it is ours."""
        self._claimed = anyio.Event()
        """Set when one of them is done."""
        self._missed: dict[str, bool] = {}
        """What a signal came for while it was being claimed, and whether it is to be evicted."""
        self._later: set[str] = set()
        """What was due while it was in memory still, or being claimed or started."""
        self._place = anyio.Lock()
        """Who stands at the one place in the queue: what is due and what was left are claimed one at a time."""
        residents.on_failure = self.failures.add
        residents.on_end.append(self._ended)

    def _ended(self, id: str) -> None:
        if id in self._later:
            self._later.discard(id)
            self.on_due(id)

    def is_here(self, id: str) -> bool:
        """Whether an instance is in memory, or about to be."""
        return id in self._claiming or id in self._starting or id in self.residents.runs

    def look_later(self, id: str) -> None:
        """An instance is due that is here: look at it again when it is not any more."""
        # What is due is nobody's: ours is being given back, or was taken over while we looked away.
        self._later.add(id)
        if id in self.residents.runs:
            self.residents.runs[id].execution.parking.arrivals.signal()

    def missed(self, id: str, *, evict: bool) -> None:
        """A signal came for an instance that is not in memory. It may be about to be."""
        if id in self._claiming or id in self._starting:
            self._missed[id] = evict or self._missed.get(id, False)

    async def begin_in_turn(
        self, id: str, takes_over: TakesOver = only_free, on_unknown: Callable[[], None] | None = None
    ) -> bool:
        """Claim an instance when it is the turn of something new; False if it is here by then, or nothing is begun.

        `on_unknown`: told if it is left to others, since its workflow is not known here.
        """
        async with self._place:
            await self._in_turn()
            # Others may have begun it while we waited for a turn.
            if self.is_here(id) or self.residents.stopping:
                self.residents.slots.leave(_NEXT)
                return False
            self._begin(id, takes_over, on_unknown)
            return True

    async def _in_turn(self) -> None:
        slots = self.residents.slots
        if not slots.take(_NEXT):
            event = anyio.Event()
            slots.queue_up(_NEXT, event.set)
            try:
                await event.wait()
            except BaseException:
                slots.leave(_NEXT)
                raise

    def _begin(self, id: str, takes_over: TakesOver, on_unknown: Callable[[], None] | None) -> None:
        """Claim an instance and run it, in a task of its own, and with the turn that was taken."""
        residents = self.residents
        # All of this is noted before the task begins: whoever asks meanwhile finds the instance here, and the turn
        # passes on without a gap in which somebody else could take it.
        residents.slots.pass_on(_NEXT, id)
        residents.busy += 1
        self._claiming.add(id)

        async def claim_and_run() -> None:
            run: Run | None = None  # a cancel scope may end a block early, as far as type checkers know
            try:
                run = await self._claim(id, takes_over, on_unknown)
            except CodecError as error:
                self.failures.add(id, error)
            except Exception:  # noqa: BLE001  # the store failed: others are served all the same
                _log.exception("instance %s could not be claimed; it is tried again in %s s", id, RETRY_SECONDS)
                self.failures.add(id)
            finally:
                # Also if this was cancelled: else the turn would be lost for good, and the runtime wait for us to end.
                self._claiming.discard(id)
                self._claimed.set()
                residents.one_less()
                if run is None:
                    self._missed.pop(id, None)
                    residents.slots.leave(id)
                    self._ended(id)
            if run is not None:
                self._serve(id, run)

        residents.host.spawn(claim_and_run)

    async def _claim(self, id: str, takes_over: TakesOver, on_unknown: Callable[[], None] | None) -> Run | None:
        """The run of an instance that was claimed; None if someone else has it, or its workflow is not known here."""
        keys = InstanceKeys(id)
        claimant = Claimant(
            keys,
            self.workflows.get,
            self.codec,
            self.clock.time,
            new_lease(self.worker.worker, self.ttl),
            takes_over=takes_over,
            lives=lambda worker: lives(worker, is_alive=self.clock.is_alive(worker)),
            is_dead=lambda worker: worker in self.watch.dead,
            beats=False,
            retention=self._retention,
        )
        claimed: Claim | None = None
        # Not to be cancelled between the claim and the run: nobody would give the instance back.
        with anyio.CancelScope(shield=True):
            claimed = await claim(self.driver, claimant)
        if claimed is None or claimed.workflow is None:
            if on_unknown is not None:
                on_unknown()
            return None
        return None if claimed.lease is None else self._run(claimed.workflow, keys, claimed)

    def _run(self, flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> Run:
        return Run(flow, self.driver, keys, self.codec, self._known, self.clock, claimed, "live", self.residents.host)

    def _serve(self, id: str, run: Run) -> None:
        """Run an instance that is ours, and have it look at what has come for it while it was being claimed."""
        evict = self._missed.pop(id, None)
        if evict is not None:
            run.execution.parking.arrivals.signal()
        # In memory from now on: what comes next finds it there, and not among what is being claimed.
        self.residents.runs[id] = run
        # In a task of its own: nothing of the claim is kept while it runs.
        self.residents.host.spawn(partial(self.residents.serve, id, run, evict=bool(evict)))

    async def until_claimed(self) -> None:
        """Return when what is being claimed now has been, or could not be."""
        now = set(self._claiming)
        while now & self._claiming:
            self._claimed = anyio.Event()
            await self._claimed.wait()

    # What is started here is claimed in the commit that starts it.

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
        self._serve(id, run)
