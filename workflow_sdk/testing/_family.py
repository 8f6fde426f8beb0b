"""The other instances of a play: children, successors, and those that are sent messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from workflow_sdk import Client, InstanceInfo, Status, Workflow, run_workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError, InstanceNotFoundError, InstanceStateError
from workflow_sdk.instance.cleanups import run_cleanups_left
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.rows.wire import shown
from workflow_sdk.testing.clock import VirtualClock
from workflow_sdk.values import Codec, Wrappers

Watching = Callable[[str], AbstractContextManager[None]]
"""Given the id of an instance, notes what it calls while it is run."""


def by_name(workflow: Workflow[Any, Any], others: Iterable[Workflow[Any, Any]]) -> dict[str, Workflow[Any, Any]]:
    """All workflows of a play."""
    found = {workflow.name: workflow}
    for other in others:
        if not isinstance(other, Workflow):
            raise DefinitionError(f"workflows are functions decorated with @workflow, not {shown(other)}")
        found[other.name] = other
    return found


@dataclass(eq=False, slots=True)
class Family:
    """All instances in a store that were not there when the play began, except the hero: the one that is killed."""

    store: Driver
    hero: str
    """The id of the instance that is killed."""
    workflows: Mapping[str, Workflow[Any, Any]]
    """All workflows of the play, by name."""
    clock: VirtualClock
    codec: Wrappers | None
    handlers: KnownHandlers
    _strangers: set[str] = field(default_factory=set[str], init=False)

    async def begin(self) -> None:
        """Note who is in the store before the play: they are strangers to it."""
        if len(self.workflows) > 1:
            self._strangers = {info.id for info in await self._everyone()}

    async def _everyone(self) -> list[InstanceInfo]:
        found: list[InstanceInfo] = []
        async with Client(self.store, clock=self.clock, codec=self.codec) as client:
            cursor: str | None = None
            while True:
                page = await client.list(limit=1000, cursor=cursor)
                found += page.items
                cursor = page.cursor
                if cursor is None:
                    return found

    async def members(self) -> list[InstanceInfo]:
        """The others, the oldest first."""
        if len(self.workflows) == 1:
            return []
        return [info for info in await self._everyone() if info.id not in self._strangers and info.id != self.hero]

    async def go_on(self, driver: Driver, watching: Watching) -> bool:
        """Run each of them as far as it goes; whether that changed anything."""
        before = await self.members()
        if before:
            # As the workers of any runtime would do.
            await run_cleanups_left(driver, Codec(wrapper=self.codec), self.clock.time)
        for info in before:
            if self._is_run(info):
                with watching(info.id):
                    await run_workflow(
                        self.workflows[info.workflow],
                        driver=driver,
                        instance_id=info.id,
                        clock=self.clock,
                        codec=self.codec,
                        handlers=self.handlers,
                    )
        after = await self.members()
        return [(info.id, info.version) for info in before] != [(info.id, info.version) for info in after]

    def _is_run(self, info: InstanceInfo) -> bool:
        """Whether it goes on, and its workflow is one of the play: nobody runs the others."""
        return info.workflow in self.workflows and not (info.status.is_terminal or info.status is Status.STUCK)

    async def wake_at(self) -> float | None:
        """When the first of them is due."""
        members = await self.members()
        times = [info.wake_at.timestamp() for info in members if info.wake_at is not None and self._is_run(info)]
        return min(times, default=None)

    async def endings(self) -> tuple[tuple[str, str, str], ...]:
        """Who they are, and how each of them stands."""
        return tuple(
            (info.id.replace(self.hero, "~", 1), info.status.value, repr(info.output))
            for info in sorted(await self.members(), key=lambda info: info.id)
        )

    async def forget(self) -> None:
        """Cancel and delete all of them."""
        async with Client(self.store, clock=self.clock, codec=self.codec) as client:
            for info in await self.members():
                handle = client.handle(info.workflow, info.id)
                with suppress(InstanceNotFoundError, InstanceStateError):
                    if not (await handle.info()).status.is_terminal:
                        await handle.cancel()
                    await client.delete(info.id)
