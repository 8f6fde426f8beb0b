"""Claiming one instance: when it gets a slot, one at a time, and after a failure only after a pause.

A claim takes long compared with everything else that a worker does in memory. During the claim, a message may come for
the instance, a client in this process may start it, or the worker may be told to stop. So each claim is noted before
its first `await`, and each note is taken back in a `finally`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
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
from workflow_sdk.worker.residents import Residents, Running

_log = logging.getLogger("workflow_sdk.runtime")

RETRY_SECONDS = 1.0
"""The pause between a failure and the next try."""
UNREADABLE_SECONDS = 300.0
"""The same pause for an instance that can't be read, in case nothing shows that its rows have changed."""
WATCHED_MAX = 64
"""How many unreadable instances are watched, so as to try them again as soon as their rows change."""

_NEXT = ""
"""The id under which the next claim waits for a slot, whichever instance it is of. No instance has this id."""

TakesOver = Callable[[str], bool]
"""Whether an instance is claimed although the worker with this id has it."""


def only_free(worker: str) -> bool:
    """Take no instance from any worker: claim only those that nobody has."""
    return False


def _no_other(flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> None:
    """All instances are those of workflows."""


class Failures:
    """The instances whose claim or run has failed here. They are not tried again at once."""

    def __init__(self, driver: Driver, clock: Clock, residents: Residents) -> None:
        self._driver = driver
        self._clock = clock
        self._residents = residents
        self._until: dict[str, float] = {}
        """When each instance may be tried again, by `monotonic`."""
        self._watched: set[str] = set()
        """Unreadable instances that are tried again as soon as the unreadable row changes."""
        self.dropped: set[str] = set()
        """Instances whose run is over, and which may still be ours in the store, since releasing them may have
        failed."""
        self.told: list[Callable[[], None]] = []
        """Called when an instance gets another time for its next try."""

    def add(self, id: str, error: BaseException | None = None) -> None:
        """Note that the run or the claim of an instance has failed: it is not tried again before a pause is over."""
        pause = RETRY_SECONDS
        if isinstance(error, CodecError):
            # It would fail again until the row changes, or until this worker gets newer code.
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
        """Try an instance again as soon as the row that can't be read changes."""
        if id in self._watched or len(self._watched) >= WATCHED_MAX:
            return
        self._watched.add(id)

        async def watch() -> None:
            with suppress(Exception):  # the store failed: the instance is tried again at once, and may fail again
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
        """Whether the pause of an instance is not over yet."""
        return self._until.get(id, -inf) > self._clock.monotonic()

    def until(self, id: str) -> float:
        """When an instance may be tried again, by `monotonic`; now, if it has not failed."""
        return self._until.get(id, self._clock.monotonic())

    @property
    def first(self) -> float | None:
        """When the first of the failed instances may be tried again, by `monotonic`."""
        return min(self._until.values(), default=None)

    def take_due(self) -> list[str]:
        """Remove the instances whose pause is over, and return their ids."""
        now = self._clock.monotonic()
        over = [id for id, time in self._until.items() if time <= now]
        for id in over:
            del self._until[id]
        return over


class Claims:
    """Claims instances for one worker, each in a task of its own, and has them run."""

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
        """Called when an instance that became due while it was here is not in memory any more."""
        self.other_runs: Callable[[Workflow[Any, Any], InstanceKeys, Claim], Running | None] = _no_other
        """Makes the run of a claimed instance that is not run as a workflow; None if it is one."""
        self._known = known
        self._retention = retention
        self._claiming: set[str] = set()
        """The instances that are being claimed now."""
        self._starting: set[str] = set()
        """The instances that are being started and claimed in one commit. Each has a slot already, and is ours once it
        is applied."""
        self._claimed = anyio.Event()
        """Set when a claim is over, whatever came of it."""
        self._missed: dict[str, bool] = {}
        """The instances for which a signal came while they were being claimed or started, and whether it evicts
        them."""
        self._later: set[str] = set()
        """The instances that were found due while they were still in memory, or being claimed or started."""
        self._place = anyio.Lock()
        """Held while a claim waits for a slot: only one does at a time, so that the one id `_NEXT` is enough for both
        loops of `claiming`."""
        residents.on_failure = self.failures.add
        residents.on_end.append(self._ended)

    def _ended(self, id: str) -> None:
        if id in self._later:
            self._later.discard(id)
            self.on_due(id)

    def leave_alone(self, names: Iterable[str]) -> None:
        """Claim no instance of these workflows any more: other workers run them."""
        left = set(names)
        self.workflows = {name: flow for name, flow in self.workflows.items() if name not in left}

    def is_here(self, id: str) -> bool:
        """Whether an instance is in memory, or about to be."""
        return id in self._claiming or id in self._starting or id in self.residents.runs

    def look_later(self, id: str) -> None:
        """Note an instance that is due and is here: look at it again once it is not here any more."""
        # Only an instance that nobody has is due. So ours was just released, or was taken over without our noticing.
        # The signal makes its run read the lease, and find out.
        self._later.add(id)
        if id in self.residents.runs:
            self.residents.runs[id].look()

    def missed(self, id: str, *, evict: bool) -> None:
        """Keep a signal for an instance that is not in memory, in case it is being claimed or started just now."""
        if id in self._claiming or id in self._starting:
            self._missed[id] = evict or self._missed.get(id, False)

    async def begin_in_turn(
        self, id: str, takes_over: TakesOver = only_free, on_unknown: Callable[[], None] | None = None
    ) -> bool:
        """Wait for a slot and begin to claim an instance; False if it is here by then, or the worker is stopping.

        `on_unknown` is called if the instance is left to other workers, since its workflow is not known here.
        """
        async with self._place:
            await self._in_turn()
            # While this waited for a slot, a client in this process may have started the instance.
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
        """Claim an instance and run it, in a task of its own and in the slot that was taken for it."""
        residents = self.residents
        # All of this is noted before the task begins: `is_here` is true from now on, and the slot passes from `_NEXT`
        # to the instance without a moment in which another instance could take it.
        residents.slots.pass_on(_NEXT, id)
        residents.busy += 1
        self._claiming.add(id)

        async def claim_and_run() -> None:
            run: Running | None = None  # a cancel scope may end a block early, as far as type checkers know
            try:
                run = await self._claim(id, takes_over, on_unknown)
            except CodecError as error:
                self.failures.add(id, error)
            except Exception:  # noqa: BLE001  # the store failed: other instances are served all the same
                _log.exception("instance %s could not be claimed; it is tried again in %s s", id, RETRY_SECONDS)
                self.failures.add(id)
            finally:
                # Also if this was cancelled: otherwise the slot would be lost for good, and the runtime, when it
                # closes, would wait for this claim.
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

    async def _claim(self, id: str, takes_over: TakesOver, on_unknown: Callable[[], None] | None) -> Running | None:
        """Claim an instance and return its run; None if somebody else has it, or nothing of it can be run here."""
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
        # A cancellation between the claim and the run would leave the instance claimed, with nobody to release it.
        with anyio.CancelScope(shield=True):
            claimed = await claim(self.driver, claimant)
        if claimed is None or claimed.workflow is None:
            if on_unknown is not None:
                on_unknown()
            return None
        return None if claimed.lease is None else self._run(claimed.workflow, keys, claimed)

    def _run(self, flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> Running:
        other = self.other_runs(flow, keys, claimed)
        if other is not None:
            return other
        return Run(flow, self.driver, keys, self.codec, self._known, self.clock, claimed, "live", self.residents.host)

    def _serve(self, id: str, run: Running) -> None:
        """Run an instance that is ours, and pass on the signals that came while it was being claimed."""
        evict = self._missed.pop(id, None)
        if evict is not None:
            run.look()
        # Set before the task begins, without an `await` since the signals were taken out above: a signal that comes
        # from now on finds the run here.
        self.residents.runs[id] = run
        # In a task of its own, so that the frames and rows of the claim are not kept in memory while the instance runs.
        self.residents.host.spawn(partial(self.residents.serve, id, run, evict=bool(evict)))

    async def until_claimed(self) -> None:
        """Return when the claims that are under way now are over, whatever came of them."""
        now = set(self._claiming)
        while now & self._claiming:
            self._claimed = anyio.Event()
            await self._claimed.wait()

    # An instance that is started in this process is claimed in the commit that starts it.

    def starts(self, id: str) -> None:
        """Note that an instance, which has a slot, is about to be started and claimed in one commit."""
        self._starting.add(id)

    def starts_not(self, id: str) -> None:
        """Note that the instance was not started here. Somebody else may have started it, and then we may claim it."""
        self._starting.discard(id)
        self._missed.pop(id, None)
        self._ended(id)

    def begin_claimed(self, flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> None:
        """Run an instance that was started and claimed in one commit, in the slot that it has."""
        run, id = self._run(flow, keys, claimed), keys.instance_id
        self._starting.discard(id)
        self._serve(id, run)
