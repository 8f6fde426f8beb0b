"""The other instances of a play: children, successors, and whoever is sent messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from workflow_sdk.core.codec import Codec, Wrappers
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Status
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError, InstanceNotFoundError, InstanceStateError
from workflow_sdk.execution.calling import run_workflow
from workflow_sdk.execution.errands import run_errands_left
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.runtime.client import Client
from workflow_sdk.runtime.info import InstanceInfo
from workflow_sdk.testing.clock import VirtualClock

__all__ = ["Family", "by_name"]

Watching = Callable[[str], AbstractContextManager[None]]
"""Has somebody told of what the run of an instance calls."""


def by_name(workflow: Workflow[Any, Any], others: Iterable[Workflow[Any, Any]]) -> dict[str, Workflow[Any, Any]]:
    """All workflows of a play."""
    found = {workflow.name: workflow}
    for other in others:
        if not isinstance(other, Workflow):
            raise DefinitionError(f"workflows are functions decorated with @workflow, not {shown(other)}")
        found[other.name] = other
    return found


class Family:
    """Everyone in a store who was not there when the play began, but for its hero."""

    def __init__(
        self,
        store: Driver,
        hero: str,
        workflows: Mapping[str, Workflow[Any, Any]],
        clock: VirtualClock,
        codec: Wrappers | None,
        handlers: KnownHandlers,
    ) -> None:
        self._store = store
        self._hero = hero
        self._workflows = workflows
        self._clock = clock
        self._codec = codec
        self._handlers = handlers
        self._strangers: set[str] = set()

    async def begin(self) -> None:
        """Whoever is there now is a stranger."""
        if len(self._workflows) > 1:
            self._strangers = {info.id for info in await self._everyone()}

    async def _everyone(self) -> list[InstanceInfo]:
        found: list[InstanceInfo] = []
        async with Client(self._store, clock=self._clock, codec=self._codec) as client:
            cursor: str | None = None
            while True:
                page = await client.list(limit=1000, cursor=cursor)
                found += page.items
                cursor = page.cursor
                if cursor is None:
                    return found

    async def members(self) -> list[InstanceInfo]:
        """The others, the oldest first."""
        if len(self._workflows) == 1:
            return []
        return [info for info in await self._everyone() if info.id not in self._strangers and info.id != self._hero]

    async def go_on(self, driver: Driver, watching: Watching) -> bool:
        """Run each of them as far as it goes; whether that changed anything."""
        before = await self.members()
        if before:
            # As any runtime does that comes by.
            await run_errands_left(driver, Codec(wrapper=self._codec), self._clock.time)
        for info in before:
            if self._is_run(info):
                with watching(info.id):
                    await run_workflow(
                        self._workflows[info.workflow],
                        driver=driver,
                        instance_id=info.id,
                        clock=self._clock,
                        codec=self._codec,
                        handlers=self._handlers,
                    )
        after = await self.members()
        return [(info.id, info.version) for info in before] != [(info.id, info.version) for info in after]

    def _is_run(self, info: InstanceInfo) -> bool:
        """Whether it has not ended, and its workflow is one of the play. Nobody runs the others, so they stay due."""
        return info.workflow in self._workflows and not (info.status.is_terminal or info.status is Status.STUCK)

    async def wake_at(self) -> float | None:
        """When the first of them is due."""
        members = await self.members()
        times = [info.wake_at.timestamp() for info in members if info.wake_at is not None and self._is_run(info)]
        return min(times, default=None)

    async def endings(self) -> tuple[tuple[str, str, str], ...]:
        """Who they are, and how each of them stands."""
        return tuple(
            (info.id.replace(self._hero, "~", 1), info.status.value, repr(info.output))
            for info in sorted(await self.members(), key=lambda info: info.id)
        )

    async def forget(self) -> None:
        """Leave nothing of them."""
        async with Client(self._store, clock=self._clock, codec=self._codec) as client:
            for info in await self.members():
                handle = client.handle(info.workflow, info.id)
                with suppress(InstanceNotFoundError, InstanceStateError):
                    if not (await handle.info()).status.is_terminal:
                        await handle.cancel()
                    await client.delete(info.id)
