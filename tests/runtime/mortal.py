"""A runtime that dies when it is told to."""

from __future__ import annotations

from typing import Any

import anyio

from tests.runtime.parts import Rows
from tests.runtime.polling import until
from workflow_sdk import Driver, Runtime, Workflow
from workflow_sdk.instance.clock import TimeSource
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

__all__ = ["TTL", "Mortal"]

TTL = 0.3


class Mortal:
    """A runtime that can die: from then on it reaches its store no more."""

    def __init__(self, driver: Driver, workflows: list[Workflow[Any, Any]], clock: TimeSource | None = None) -> None:
        self.driver: FaultyDriver = FaultyDriver(driver)
        self.runtime: Runtime = Runtime(self.driver, workflows=workflows, lease_ttl=TTL, clock=clock, grace=0)
        self.is_open: anyio.Event = anyio.Event()
        self._end = anyio.Event()

    async def live(self) -> None:
        """Until it dies."""
        try:
            async with self.runtime:
                self.is_open.set()
                await self._end.wait()
                self.driver.crashed = True
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if not isinstance(error, SimulatedCrash):
                raise

    async def until_forgotten(self, driver: Driver) -> None:
        """Return once others have noticed, and nothing is left of it: its last heartbeat may have been on its way."""
        worker = self.runtime._worker.worker  # pyright: ignore[reportPrivateUsage]  # nobody else wants to know

        async def is_forgotten() -> bool:
            return not any(key[0] == worker for key in (await Rows.of(driver)).workers)

        await until(is_forgotten)

    def die(self) -> None:
        """At once, without a word."""
        self.driver.crashed = True
        self._end.set()
