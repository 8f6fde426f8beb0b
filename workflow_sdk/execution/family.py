"""The children of an instance that `run_workflow` runs: they are run by the same call, as far as they go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from workflow_sdk.changes.snapshot import read_standing
from workflow_sdk.changes.workers import Heartbeat
from workflow_sdk.core.keys import Field, InstanceKeys, WorkerKeys
from workflow_sdk.core.status import Status
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError, LeaseLostError
from workflow_sdk.execution.clock import Clock
from workflow_sdk.execution.living import lives_here
from workflow_sdk.execution.probe import probe
from workflow_sdk.execution.shown import Wait

__all__ = ["Family"]

AT_ONCE = 64
"""Children of one instance that are run side by side, each until it waits."""
LOOK_SECONDS = 0.5
"""Between two looks at a child that somebody else runs, or nobody can."""


class Left(Protocol):
    """How a run left an instance."""

    @property
    def status(self) -> Status:
        """What it is doing, or how it ended."""
        ...

    @property
    def waits(self) -> list[Wait]:
        """What it waits for."""
        ...


L = TypeVar("L", bound=Left)
RunOne = Callable[[Workflow[Any, Any], InstanceKeys, Callable[[str], bool]], Awaitable[L]]


class Family:
    """The workflows that one call knows, and the children that it runs."""

    def __init__(self, driver: Driver, clock: Clock, workflows: Iterable[Workflow[Any, Any]]) -> None:
        self._driver = driver
        self._clock = clock
        self._known: dict[str, Workflow[Any, Any]] = {}
        self._group: TaskGroup | None = None
        self._begin: Callable[[str], Coroutine[Any, Any, None]] | None = None
        self._begun: set[str] = set()
        self._is_left = False
        self._heard: dict[str, tuple[bytes, float]] = {}
        """The heartbeats of others, and since when they are like this, by `monotonic`."""
        for workflow in workflows:
            if not isinstance(workflow, Workflow):
                raise DefinitionError(f"workflows are functions decorated with @workflow, not {workflow!r}")
            if self._known.setdefault(workflow.name, workflow) is not workflow:
                raise DefinitionError(f"two workflows are called {workflow.name!r}; give one of them another name")

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """The code has named this workflow: then its instances can be run."""
        self._known.setdefault(workflow.name, workflow)

    async def run_child(self, id: str, run: RunOne[L]) -> L | None:
        """Run a child once; None if nobody can here, or somebody else does."""
        if probe.get() is not None:
            return None  # a test watches this instance, and no other one
        keys = InstanceKeys(id)
        found = await read_standing(self._driver, keys)
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
        """Whether a worker may be alive. Taking a child over by mistake is no harm: this call does so with its own."""
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
        """Run the children that an instance waits for, each until it waits itself; return how they were left."""
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
        """Run an instance, and beside it all children that it begins, until all have ended."""

        async def begin(id: str) -> None:
            while True:
                child = await self.run_child(id, run)
                found = await read_standing(self._driver, InstanceKeys(id))
                if not found.about or found.about.status.is_terminal:
                    return
                if self._is_left and (child is None or child.status is Status.STUCK):
                    return
                with anyio.move_on_after(LOOK_SECONDS):
                    await self._driver.changed(InstanceKeys(id).field(Field.HEAD), found.about.raw[Field.HEAD])

        self._begin = begin
        left: L | None = None  # a cancel scope may end a block early, as far as type checkers know
        async with anyio.create_task_group() as self._group:
            left = await root()
            self._is_left = True
            if not left.status.is_terminal:
                # It was put away, and they are, too.
                self._group.cancel_scope.cancel()
        assert left is not None, "what ends early is raised"
        return left

    def see(self, children: Iterable[str]) -> None:
        """An instance has these children now."""
        if self._group is None or self._begin is None:
            return
        for id in children:
            if id not in self._begun:
                self._begun.add(id)
                self._group.start_soon(self._begin, id)
