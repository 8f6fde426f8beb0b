"""Cells and executors in a runtime: what a worker needs to run them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from workflow_sdk.changes.claim import Claim
from workflow_sdk.client.access import Access
from workflow_sdk.client.watching import Watch
from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import DefinitionError
from workflow_sdk.machines.effects import timer
from workflow_sdk.machines.emitting import begin_manifest, unmarked
from workflow_sdk.machines.executing import Executing
from workflow_sdk.machines.executor import Executor
from workflow_sdk.machines.issuing import Issuer
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.manifest import Manifest
from workflow_sdk.machines.rows import ACTIVE
from workflow_sdk.machines.running import CellRun
from workflow_sdk.machines.surroundings import Surroundings
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.rows.wire import shown
from workflow_sdk.worker.residents import Residents, Running

_log: Final = logging.getLogger("workflow_sdk.machines")


class CellHost:
    """The machines and executors of one runtime."""

    def __init__(self, manifest: Manifest | None, executors: Iterable[Executor], *, journal: bool = False) -> None:
        if manifest is not None and not isinstance(manifest, Manifest):
            raise DefinitionError(f"Runtime(machines=...) takes a Manifest, not {shown(manifest)}")
        self.manifest: Manifest = Manifest() if manifest is None else manifest
        self._has_journal = journal
        self.executors: dict[str, Executor] = {}
        for one in executors:
            self._add(one)
        self._around: Surroundings | None = None
        self._executing: Executing | None = None
        self._residents: Residents | None = None
        self._ttl = 0.0
        self._leave_alone: Callable[[Iterable[str]], None] = _ignore
        self._is_fenced = False
        self._seen: bytes | None = None
        """The row of the active manifest, as it was when it was looked at."""

    def _add(self, one: Executor) -> None:
        if not isinstance(one, Executor):
            raise DefinitionError(
                f"Runtime(executors=[...]) takes functions decorated with @executor, not {shown(one)}"
            )
        name = one.effect.name
        if self.manifest.effects.get(name) is not one.effect:
            raise DefinitionError(f"{one.__name__} is an executor of {name!r}, which is no effect of the manifest")
        if self.executors.setdefault(name, one) is not one:
            raise DefinitionError(f"there are two executors of {name!r}")

    @property
    def flows(self) -> Mapping[str, Workflow[Any, Any]]:
        """The machines, by name: to a worker, their cells are instances of them."""
        return self.manifest.machines

    def attach(
        self,
        access: Access,
        residents: Residents,
        watch: Watch,
        worker: str,
        ttl: float,
        retention: float | None,
        leave_alone: Callable[[Iterable[str]], None],
    ) -> None:
        """Run cells of this store from now on. `leave_alone` is called with machines that are left to others."""
        here = access.here
        assert here is not None, "a runtime has residents"

        def tell(id: str, worker: str | None) -> None:
            if worker is None or not here.is_worker(worker):
                here.is_due(id)
            else:
                here.message_came(id)

        self._around = Surroundings(
            access.driver,
            access.codec,
            access.clock,
            self.manifest,
            worker,
            frozenset(self.executors),
            retention,
            here.is_worker,
            tell,
            journal=self._has_journal,
        )
        self._around.fenced = self._fence
        self._residents = residents
        residents.host.machines = Issuer(self._around)
        self._ttl = ttl
        self._leave_alone = leave_alone
        self._is_fenced = False
        self._executing = residents.beside = Executing(self._around, self.executors.values(), residents, watch)

    async def begin(self) -> None:
        """Have the manifest be the active one; DefinitionError, if another one is."""
        around = self.around
        around.active = self._seen = await begin_manifest(around.driver, self.manifest, around.clock.time())

    @property
    def around(self) -> Surroundings:
        """What cells are run with."""
        assert self._around is not None, "attached when the runtime was opened"
        return self._around

    def run(self, flow: Workflow[Any, Any], keys: InstanceKeys, claimed: Claim) -> Running | None:
        """A claimed cell, to be run; None if it is an instance of something else."""
        if not isinstance(flow, Machine):
            return None
        assert self._residents is not None, "attached when the runtime was opened"
        run = CellRun(flow, keys, claimed, self.around, self._residents.host)
        if self._is_fenced:
            run.evict()  # it was claimed just before
        return run

    async def watch(self) -> None:
        """Find out that another manifest was applied; return to be called again."""
        around = self.around
        await around.driver.changed(ACTIVE, self._seen)
        self._seen = await around.driver.get(ACTIVE)
        if self._seen is None or unmarked(self._seen)[1] != around.active:
            self._fence()

    def _fence(self) -> None:
        """Leave cells and effects to runtimes that have the active manifest."""
        if self._is_fenced:
            return
        self._is_fenced = True
        _log.error("another manifest was applied: this runtime runs no cells any more; open it with the active one")
        executing, residents = self._executing, self._residents
        assert executing is not None, "attached when the runtime was opened"
        assert residents is not None, "attached when the runtime was opened"
        self._leave_alone(self.flows)
        executing.take_nothing()
        for id, run in list(residents.runs.items()):
            if isinstance(run, CellRun):
                residents.evict_one(id)

    def loops(self) -> list[Callable[[], Awaitable[None]]]:
        """What runs beside the cells, each again and again."""
        executing = self._executing
        assert executing is not None, "attached when the runtime was opened"
        return [
            self.watch,
            executing.take_what_is_queued,
            partial(executing.take_what_was_left, self._ttl),
            *(partial(executing.listen, name) for name in (timer.name, *self.executors)),
        ]


def _ignore(names: Iterable[str]) -> None:
    """Nobody claims anything yet."""
