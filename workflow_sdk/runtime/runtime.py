"""Running many instances. Any number of runtimes share a store; each claims what is due and nobody has."""

from __future__ import annotations

import logging
import signal
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

from workflow_sdk.core.codec import VALUE_BYTES_MAX, Wrapper
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
from workflow_sdk.core.retry import Duration, seconds
from workflow_sdk.core.status import Status
from workflow_sdk.core.tuples import unpack
from workflow_sdk.core.wire import pack_record, unpack_record
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.errors import DefinitionError, LeaseLostError, WorkflowSDKError
from workflow_sdk.execution.clock import Activity, Clock
from workflow_sdk.execution.lease import Claim, Claimant, claim
from workflow_sdk.execution.run import Run
from workflow_sdk.runtime.client import Client

__all__ = ["Runtime"]

_log = logging.getLogger("workflow_sdk.runtime")

LEASE_SECONDS = 10.0
GRACE_SECONDS = 10.0
ALARMS_PAGE = 256
RETRY_SECONDS = 1.0
"""After the store has failed, until it is asked again."""


class Runtime(Client):
    """A client that also executes."""

    def __init__(
        self,
        store: str | Driver,
        *,
        workflows: Iterable[Workflow[Any, Any]],
        max_resident: int = 4096,
        concurrency: int = 256,
        clock: Clock | None = None,
        lease_ttl: Duration = LEASE_SECONDS,
        grace: Duration = GRACE_SECONDS,
        codec: Wrapper | None = None,
        max_value_bytes: int = VALUE_BYTES_MAX,
    ) -> None:
        super().__init__(store, clock=clock, codec=codec, max_value_bytes=max_value_bytes)
        self._workflows = _by_name(workflows)
        self._max_resident = max_resident
        self._concurrency = concurrency
        self._ttl = seconds(lease_ttl, "lease_ttl")
        self._grace = seconds(grace, "grace")
        self._worker = WorkerKeys(uuid4().hex)
        self._resident: dict[str, Run] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Those that wait in memory, the longest idle first."""
        self._changed = anyio.Event()
        self._ended = anyio.Event()
        """Set when a run has ended. Not `_changed`, which the claiming replaces with every turn."""
        self._stopping = False
        self._unknown: set[bytes] = set()
        """Alarms of instances whose workflow this runtime was not given: they are left to others."""
        self._claims: set[str] = set()
        """What is being claimed now."""
        self._missed: set[str] = set()
        """What a letter came for while it was being claimed."""
        self._leaving: set[str] = set()
        """Residents that are being put away."""
        self._dropped: set[str] = set()
        """What may still be ours in the store though its run is over: the store failed when it was to be given back."""
        self._alive_until = 0.0
        """What the last heartbeat has promised."""
        self._tasks: TaskGroup | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self._beat()
        group = self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        for loop in (self._beating, self._claiming, self._reading_letters, self._looking_for_orphans):
            group.start_soon(self._forever, loop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._shut_down()
        finally:
            try:
                await self._stack.aclose()
            finally:
                with anyio.CancelScope(shield=True):
                    try:
                        await self._leave()
                    finally:
                        await super().__aexit__(kind, error, trace)

    @property
    def resident(self) -> int:
        """How many instances it has in memory, running or waiting."""
        return len(self._resident)

    async def serve(self) -> None:
        """Run until SIGTERM or SIGINT, then shut down gracefully."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                return

    def _definition(self, workflow: Workflow[Any, Any] | str) -> Workflow[Any, Any] | None:
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        if name not in self._workflows:
            known = ", ".join(sorted(self._workflows))
            raise DefinitionError(f"this runtime was not given the workflow {name!r}; it has: {known}")
        return workflow if isinstance(workflow, Workflow) else None

    def _known(self, name: str) -> Workflow[Any, Any] | None:
        return self._workflows.get(name)

    # The loops. Each goes on whatever the store does.

    async def _forever(self, loop: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await loop()
            except* (WorkflowSDKError, OSError):
                _log.exception("the store failed; it is asked again in %s s", RETRY_SECONDS)
                await anyio.sleep(RETRY_SECONDS)

    async def _beat(self) -> None:
        batch, until = Batch(), self._clock.time() + self._ttl
        batch.set(self._worker.heartbeat, pack_record([until]))
        await self.access.driver.commit(batch)
        self._alive_until = until

    async def _beating(self) -> None:
        await anyio.sleep(self._ttl / 3)
        late = self._clock.time() > self._alive_until
        await self._beat()
        if late:
            # We were taken for dead: what others have taken over is dropped.
            for run in list(self._resident.values()):
                run.execution.poke()

    async def _claiming(self) -> None:
        """Claim what is due and nobody has, in order of time."""
        driver, now = self.access.driver, self._clock.time()
        bell = await driver.get(DUE_BELL)
        self._changed = changed = anyio.Event()
        begin, end = alarms_until(now)
        seen: set[bytes] = set()
        while self._has_room:
            rows = await driver.scan(begin, end, limit=ALARMS_PAGE)
            for key, _ in rows:
                begin = key + b"\x00"
                seen.add(key)
                if key not in self._unknown and self._has_room:
                    await self._due(key)
            if len(rows) < ALARMS_PAGE:
                self._unknown &= seen
                break
        upcoming = await driver.scan(end, alarms_until(float("inf"))[1], limit=1)
        until = None
        if upcoming:
            when = unpack(upcoming[0][0][len(ROOT) :])[1]
            assert isinstance(when, (int, float)), "alarms are by time"
            until = float(when)
        await self._wait(bell, until, changed)

    @property
    def _has_room(self) -> bool:
        return not self._stopping and len(self._resident) - len(self._idle) < self._concurrency

    async def _due(self, alarm: bytes) -> None:
        """Run what an alarm is for."""
        id = last_of(alarm)
        if id in self._resident:
            # What is due is nobody's: ours is being given back, or was taken over while we looked away.
            self._resident[id].execution.poke()
        elif await self._claim(id) is None:
            self._unknown.add(alarm)

    async def _wait(self, bell: bytes | None, until: float | None, changed: anyio.Event) -> None:
        """Until something else is due, or there is room for more."""

        async def watch() -> None:
            await self.access.driver.changed(DUE_BELL, bell)
            changed.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await self._clock.wait(changed, until, self._activity)
            group.cancel_scope.cancel()

    @staticmethod
    def _activity() -> Activity:
        return Activity.NONE

    async def _claim(self, id: str, takes_over: Callable[[str], bool] = lambda worker: False) -> bool | None:
        """Claim an instance and run it; False if someone else has it, None if its workflow is not known here."""
        access = self.access
        keys = InstanceKeys(id)
        version = await access.driver.get(keys.field(Field.VERSION))
        flow = None if version is None else self._workflows.get(str(unpack_record(version)[0]))
        if flow is None:
            return None
        claimant = Claimant(
            access.driver,
            keys,
            flow,
            access.codec,
            self._clock.time,
            self._ttl,
            worker=self._worker.worker,
            takes_over=takes_over,
            creates=False,
            beats=False,
        )
        if id in self._claims or id in self._resident:
            return False
        self._claims.add(id)
        claimed: Claim | None = None  # a cancel scope may end a block early, as far as type checkers know
        try:
            # Not to be cancelled between the claim and the run: nobody would give the instance back.
            with anyio.CancelScope(shield=True):
                claimed = await claim(claimant, None)
        except Exception:
            self._dropped.add(id)  # it may be ours all the same
            raise
        finally:
            self._claims.discard(id)
        was_missed = id in self._missed
        self._missed.discard(id)
        if claimed is None or claimed.lease is None:
            return False
        run = Run(flow, access.driver, keys, access.codec, self._clock, claimed, "live", hosted=True)
        run.execution.on_rest = lambda idle: self._rest(id, idle)
        self._resident[id] = run
        if was_missed:
            run.execution.poke()
        if self._stopping:
            run.execution.put_away()
        assert self._tasks is not None, "a runtime that claims is open"
        self._tasks.start_soon(self._run, id, run)
        return True

    async def _run(self, id: str, run: Run) -> None:
        try:
            await run.result()
        except LeaseLostError:
            _log.info("instance %s was taken over", id)
        except Exception:  # noqa: BLE001  # whatever ended the run: the others go on, and this one is due again
            _log.exception("the run of instance %s has ended; it is tried again", id)
            # Not at once: what ended it may end it again, and the others have to be served, too.
            await anyio.sleep(RETRY_SECONDS)
            self._dropped.add(id)
        finally:
            self._resident.pop(id, None)
            self._idle.pop(id, None)
            self._leaving.discard(id)
            self._changed.set()
            self._ended.set()

    def _rest(self, id: str, idle: bool) -> None:
        """An instance waits in memory now, or goes on."""
        if not idle:
            self._idle.pop(id, None)
            return
        self._idle[id] = None
        self._changed.set()
        while len(self._resident) - len(self._leaving) > self._max_resident and self._idle:
            longest, _ = self._idle.popitem(last=False)
            self._leaving.add(longest)
            self._resident[longest].execution.put_away()

    async def _reading_letters(self) -> None:
        """Tell residents of their messages."""
        driver, worker = self.access.driver, self._worker
        bell = await driver.get(worker.bell)
        rows = await driver.scan(*subtree(worker.letters))
        if not rows:
            await driver.changed(worker.bell, bell)
            return
        batch = Batch()
        for key, raw in rows:
            batch.clear(key)
            id, *orders = unpack_record(raw)
            run = self._resident.get(id)
            if run is None:
                if id in self._claims:
                    self._missed.add(id)
                continue
            if orders:
                run.execution.put_away()
            else:
                run.execution.poke()
        await driver.commit(batch)

    async def _looking_for_orphans(self) -> None:
        """Take over what dead workers have left, and stuck instances whose code has changed. It never stops."""
        driver, now = self.access.driver, self._clock.time()
        for key, raw in await driver.scan(*WorkerKeys.heartbeats()):
            if float(unpack_record(raw)[0]) < now and last_of(key) != self._worker.worker:
                await self._bury(WorkerKeys(last_of(key)), raw)
        for key, _ in await driver.scan(*all_by_status(Status.STUCK.value)):
            id = last_of(key)
            if id not in self._resident and await self._is_mended(id):
                await self._claim(id)
        for id in self._dropped - self._resident.keys():
            self._dropped.discard(id)
            await self._claim(id, lambda worker: worker == self._worker.worker)
        await anyio.sleep(self._ttl / 3)

    async def _bury(self, dead: WorkerKeys, heartbeat: bytes) -> None:
        driver = self.access.driver
        left = await driver.scan(*dead.all_claimed())
        taken = 0
        for key, _ in left:
            if len(self._resident) - len(self._idle) >= self._concurrency or self._stopping:
                return
            taken += bool(await self._claim(last_of(key), lambda worker: worker == dead.worker))
        if taken == len(left):
            batch = Batch()
            batch.check(dead.heartbeat, heartbeat)
            batch.clear(dead.heartbeat)
            batch.clear(dead.bell)
            batch.clear_range(*subtree(dead.letters))
            with suppress(ConflictError):
                await driver.commit(batch)

    async def _is_mended(self, id: str) -> bool:
        raw = await self.access.driver.get(InstanceKeys(id).field(Field.VERSION))
        if raw is None:
            return False
        name, version, fingerprint, *_ = unpack_record(raw)
        flow = self._workflows.get(name)
        return flow is not None and (flow.version, flow.fingerprint) != (version, fingerprint)

    async def _shut_down(self) -> None:
        """Begin nothing new, let what is under way end, put everything away."""
        self._stopping = True
        for run in list(self._resident.values()):
            run.execution.put_away()
        with anyio.move_on_after(self._grace):
            await self._until_empty()
        assert self._tasks is not None, "a runtime that shuts down was open"
        self._tasks.cancel_scope.cancel()

    async def _leave(self) -> None:
        """Forget the worker, unless something is left of it that others have to take over."""
        driver, worker = self.access.driver, self._worker
        with suppress(WorkflowSDKError, OSError):
            if await driver.scan(*worker.all_claimed(), limit=1):
                return
            batch = Batch()
            batch.clear(worker.heartbeat)
            batch.clear(worker.bell)
            batch.clear_range(*subtree(worker.letters))
            await driver.commit(batch)

    async def _until_empty(self) -> None:
        while self._resident:
            self._ended = anyio.Event()
            await self._ended.wait()


def _by_name(workflows: Iterable[Workflow[Any, Any]]) -> dict[str, Workflow[Any, Any]]:
    found: dict[str, Workflow[Any, Any]] = {}
    for flow in workflows:
        if not isinstance(flow, Workflow):
            raise DefinitionError(f"workflows are functions decorated with @workflow, not {flow!r}")
        if found.setdefault(flow.name, flow) is not flow:
            raise DefinitionError(f"two workflows are called {flow.name!r}; give one of them another name")
    return found
