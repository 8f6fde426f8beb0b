"""Looking at an instance that nobody has in memory, and at what is stored."""

from __future__ import annotations

from typing import Any

from workflow_sdk import Batch, Driver, InstanceInfo, RunResult, Wait, Workflow, run_workflow
from workflow_sdk.client.info import read_info
from workflow_sdk.testing import VirtualClock
from workflow_sdk.values import Codec

__all__ = ["Bench", "Through", "dump"]


async def dump(driver: Driver) -> list[tuple[bytes, bytes]]:
    """Everything that is stored."""
    return await driver.scan(b"", b"\xff")


class Through:
    """Hands everything on to a driver: for those that do more."""

    def __init__(self, driver: Driver) -> None:
        self.driver: Driver = driver

    async def get(self, key: bytes, /) -> bytes | None:
        """As the driver."""
        return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """As the driver."""
        return await self.driver.scan(begin, end, limit=limit, reverse=reverse)

    async def commit(self, batch: Batch, /) -> None:
        """As the driver."""
        await self.driver.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """As the driver."""
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        """As the driver."""
        await self.driver.aclose()


class Bench:
    """One instance of a workflow, run in goes, and looked at in between."""

    def __init__(self, driver: Driver, flow: Workflow[Any, Any], input: Any = None) -> None:
        self.driver = driver
        self.flow = flow
        self.input = input
        self.clock = VirtualClock(quiet=10)

    async def go(self, advance: float = 0) -> RunResult[Any]:
        """Let time pass, and run it until it waits."""
        self.clock.advance(advance)
        return await run_workflow(self.flow, self.input, driver=self.driver, instance_id="i", clock=self.clock)

    async def info(self) -> InstanceInfo:
        """What can be seen of it."""
        return await read_info(self.driver, "i", Codec())

    async def waits(self) -> dict[str, Wait]:
        """What it waits for, by name."""
        return {wait.name: wait for wait in (await self.info()).waits}
