"""Running one instance, and the children that it waits for, without a runtime around them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import count
from typing import Any, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from workflow_sdk.changes.instances import read_snapshot
from workflow_sdk.changes.workers import Heartbeat
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError, LeaseLostError
from workflow_sdk.instance.clock import Clock, pause
from workflow_sdk.instance.host import Guest, Near, Parked, Root, Waiting
from workflow_sdk.instance.results import Wait
from workflow_sdk.instance.threads import Threads, threads_of_the_loop
from workflow_sdk.operations.calling import asyncio_task
from workflow_sdk.operations.types import probe
from workflow_sdk.rows.keys import Field, InstanceKeys, WorkerKeys
from workflow_sdk.rows.status import Status
from workflow_sdk.worker.lease import lives_here
from workflow_sdk.worker.stalls import Watched, stalls_watched

AT_ONCE = 64
"""How many children of one instance are run side by side, each until it waits."""
LOOK_SECONDS = 0.5
"""The time between two looks at a child that another worker runs, or that waits."""


class Left(Protocol):
    """How a run left an instance."""

    @property
    def status(self) -> Status:
        """What the instance is doing, or how it ended."""
        ...

    @property
    def waits(self) -> list[Wait]:
        """What the instance waits for."""
        ...


L = TypeVar("L", bound=Left)
RunOne = Callable[[Workflow[Any, Any], InstanceKeys, Callable[[str], bool]], Awaitable[L]]


class Family:
    """The workflows that one call of `run_workflow` knows, and the children that it runs."""

    def __init__(self, driver: Driver, clock: Clock, workflows: Iterable[Workflow[Any, Any]]) -> None:
        self._driver = driver
        self._clock = clock
        self._known: dict[str, Workflow[Any, Any]] = {}
        self._group: TaskGroup | None = None
        self._begin: Callable[[str], Coroutine[Any, Any, None]] | None = None
        self._begun: set[str] = set()
        self._is_left = False
        self._heard: dict[str, tuple[bytes, float]] = {}
        """For each other worker: its heartbeat as last read, and since when it has not changed, by `monotonic`."""
        for workflow in workflows:
            if not isinstance(workflow, Workflow):
                raise DefinitionError(f"workflows are functions decorated with @workflow, not {workflow!r}")
            if self._known.setdefault(workflow.name, workflow) is not workflow:
                raise DefinitionError(f"two workflows are called {workflow.name!r}; give one of them another name")

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """Note a workflow that the author's code has named: from now on its instances can be run here."""
        self._known.setdefault(workflow.name, workflow)

    async def run_child(self, id: str, run: RunOne[L]) -> L | None:
        """Run a child once; None if its workflow is not known here, or another worker runs it."""
        if probe.get() is not None:
            return None  # a test watches the instance of this call, and no other one
        keys = InstanceKeys(id)
        found = await read_snapshot(self._driver, keys)
        workflow = self._known.get(found.about.head.workflow) if found.about else None
        if workflow is None:
            return None
        owner = None if found.lease is None else found.lease.worker
        if owner is not None and await self._may_live(owner):
            return None
        try:
            return await run(workflow, keys, lambda worker: worker == owner)
        except LeaseLostError:
            return None

    async def _may_live(self, worker: str) -> bool:
        """Whether a worker may be alive. A wrong guess does no harm: the lease fences the worker that loses a child.

        It is taken for dead once its heartbeat is too old by our clock, or has not changed for as long as its lease.
        """
        here = lives_here(worker)
        if here is not None or self._clock.is_alive(worker):
            return here is not False
        raw = await self._driver.get(WorkerKeys(worker).heartbeat)
        if raw is None:
            return False
        heartbeat = Heartbeat.unpack(raw)
        now = self._clock.monotonic()
        before, since = self._heard.get(worker, (raw, now))
        self._heard[worker] = (raw, since if before == raw else now)
        return heartbeat.at + heartbeat.ttl > self._clock.time() and now - self._heard[worker][1] < heartbeat.ttl

    # Until they wait.

    async def as_far_as_they_go(self, left: L, run: Callable[[str], Awaitable[L | None]]) -> list[L]:
        """Run the children that an instance waits for, each until it waits itself; return how their runs left them."""
        found: list[L] = []
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def one(id: str) -> None:
            async with limiter:
                child = await run(id)
            if child is not None:
                found.append(child)

        async with anyio.create_task_group() as group:
            for wait in left.waits:
                if wait.kind == "child" and wait.target is not None:
                    group.start_soon(one, wait.target)
        return found

    # Until they end.

    async def together(self, root: Callable[[], Awaitable[L]], run: RunOne[L]) -> L:
        """Run an instance, and beside it all children that it starts, until all have ended."""

        async def begin(id: str) -> None:
            # A child may be evicted, be taken over, or wait for something else. So it is run again and again, until it
            # has ended, or its parent has and nobody here can run it on.
            while True:
                child = await self.run_child(id, run)
                found = await read_snapshot(self._driver, InstanceKeys(id))
                if not found.about or found.about.status.is_terminal:
                    return
                if self._is_left and (child is None or child.status is Status.STUCK):
                    return
                with anyio.move_on_after(LOOK_SECONDS):
                    # The head as it was read above: if it has changed since, `changed` returns at once.
                    await self._driver.changed(InstanceKeys(id).field(Field.HEAD), found.about.raw[Field.HEAD])

        self._begin = begin
        left: L | None = None  # a cancel scope may end a block early, as far as type checkers know
        async with anyio.create_task_group() as self._group:
            left = await root()
            self._is_left = True
            if not left.status.is_terminal:
                # The instance was evicted or is stuck: its children do not go on in this call either.
                self._group.cancel_scope.cancel()
        assert left is not None, "what ends early is raised"
        return left

    def see(self, children: Iterable[str]) -> None:
        """Begin to run those of an instance's children that are not run yet."""
        if self._group is None or self._begin is None:
            return
        for id in children:
            if id not in self._begun:
                self._begun.add(id)
                self._group.start_soon(self._begin, id)


HEAR_AFTER_SECONDS = 0.01
"""After how long a run begins to watch for requests of others: most runs are over before that."""
GRACE_SECONDS = 10.0
"""How long running steps may go on when the instance is evicted."""


class Alone:
    """The host of one run that has no runtime around it: it keeps the time, and writes the heartbeat, of this run."""

    beats = False
    crowded = False

    def __init__(self, driver: Driver, clock: Clock, worker: WorkerKeys, lease_ttl: float, family: Family) -> None:
        self.answers: dict[bytes, Callable[[bytes], None]] = {}
        self.here: Near | None = None
        self.machines: None = None
        self._driver = driver
        self.threads: Threads = threads_of_the_loop()
        self._clock = clock
        self._worker = worker
        self._ttl = lease_ttl
        self._family = family
        self._signal = anyio.Event()
        self._watching = False
        self._hears = False
        """Whether the inbox stamp is watched even if no message is awaited: each request of others changes it, too."""
        self._evicted = False
        self._group: TaskGroup | None = None
        self._starter: asyncio.Task[Any] | None = None
        self._cancelled_before = 0

    @property
    def is_cancelled(self) -> bool:
        """Whether the task that has started the run was cancelled since then."""
        return self._starter is not None and self._starter.cancelling() > self._cancelled_before

    async def run(self, guest: Guest, root: Root) -> None:
        """Run an execution, and beside it what it needs: its timers, its heartbeat and the watch of its inbox stamp."""
        self._starter = asyncio_task()
        self._cancelled_before = 0 if self._starter is None else self._starter.cancelling()
        async with (
            stalls_watched(self._driver, self._clock, self._worker, self._ttl) as watched,
            anyio.create_task_group() as self._group,
        ):
            self._group.start_soon(self._keep_time, guest)
            self._group.start_soon(self._beat, guest)
            self._group.start_soon(self._hear, watched)
            # In a task of its own, so that a cancellation of this run reaches the author's code through a cancel scope.
            self._group.start_soon(self._run, guest, root)

    async def _run(self, guest: Guest, root: Root) -> None:
        await guest.life.run(root)
        assert self._group is not None, "it runs in the group"
        self._group.cancel_scope.cancel()

    async def _keep_time(self, guest: Guest) -> None:
        try:
            while True:
                self._signal = signal = anyio.Event()
                guest.parking.fire()
                self._family.see(guest.outside.children)
                if (guest.parking.listens or self._hears) and not self._watching:
                    self._watching = True
                    self.spawn(lambda: self._watch(guest))
                await self._clock.wait(signal, guest.parking.next_time, guest.activity)
        finally:
            # This loop ends only by cancellation, when the run is over or was cancelled from outside. Nothing wakes the
            # branches any more.
            guest.life.abandon()

    async def _watch(self, guest: Guest) -> None:
        await guest.parking.arrivals.watch()
        self._watching = False
        self._signal.set()

    async def _hear(self, watched: Watched) -> None:
        """Watch the inbox stamp: it changes when the instance is cancelled, evicted, woken or taken over."""
        # A run that is soon over does not need that.
        await anyio.sleep(HEAR_AFTER_SECONDS)
        self._hears = True
        self._signal.set()
        await watched.go_round()

    def evict(self, guest: Parked) -> None:
        """Evict the instance, as somebody has asked for it."""
        if not self._evicted:
            self._evicted = True
            guest.evict()
            self.spawn(lambda: self._insist(guest))

    async def _insist(self, guest: Parked) -> None:
        """Release the evicted instance when its time of grace is over, whatever is still under way."""
        await pause(self._clock, GRACE_SECONDS)
        guest.give_back()

    async def _beat(self, guest: Guest) -> None:
        """Write a heartbeat for this run, again and again."""

        numbers = count(1)

        async def beat() -> None:
            heartbeat = Heartbeat(self._clock.time(), self._ttl, next(numbers)).pack()
            # A heartbeat that fails does not end the run: if the lease is lost, the next commit finds out.
            with suppress(Exception):
                await guest.beat(self._worker, heartbeat)

        await self._clock.beat(self._ttl / 3, beat)

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a function in a task of the run's group."""
        assert self._group is not None, "it runs in the group"
        self._group.start_soon(fn)

    def waits_changed(self, guest: Waiting) -> None:
        """Compute the time of the next timer anew, and whether to watch the inbox."""
        self._signal.set()

    def rests(self, guest: Waiting, idle: bool) -> None:
        """Compute the time of the next timer anew, and whether to watch the inbox."""
        self._signal.set()

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """Note a workflow that the author's code has named: from now on its instances can be run here."""
        self._family.meet(workflow)

    def may_go_on(self, guest: Waiting) -> bool:
        """Answer yes: no other instance competes for a slot."""
        return True

    def queue(self, guest: Waiting, go_on: Callable[[], None]) -> None:
        """Go on at once: no other instance competes for a slot."""
        go_on()
