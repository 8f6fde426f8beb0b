"""What tests of the engine are written with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio

from tests.fdb_store import open_fdb
from tests.patience import PATIENCE
from tests.settings import Setting
from workflow_sdk import (
    Driver,
    History,
    RunResult,
    Status,
    Workflow,
    open_driver,
    read_history,
    run_workflow,
    send_message,
)
from workflow_sdk.instance.execution import Mode
from workflow_sdk.testing import VirtualClock

T = TypeVar("T")

RUNS_MAX = 500


async def open_store(store: str, directory: Path) -> Driver:
    """An open store of that kind."""
    if store == "fdb":
        return await open_fdb(directory)
    return await open_driver("memory://" if store == "memory" else f"sqlite:///{directory}/store.db?synchronous=normal")


@dataclass
class World:
    """A store, a virtual clock, and a mode to run instances in."""

    setting: Setting
    driver: Driver
    directory: Path
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(quiet=0.1))
    runs: int = 0
    """How often `run_workflow` was called."""

    async def once(
        self,
        workflow: Workflow[Any, T],
        input: Any = None,
        *,
        id: str = "i",
        driver: Driver | None = None,
        mode: Mode | None = None,
    ) -> RunResult[T]:
        """One call of `run_workflow`."""
        self.runs += 1
        return await run_workflow(
            workflow,
            input,
            driver=driver or self.driver,
            instance_id=id,
            mode=mode or self.setting.mode,
            clock=self.clock,
        )

    async def run(
        self,
        workflow: Workflow[Any, T],
        input: Any = None,
        *,
        id: str = "i",
        script: Sequence[tuple[str, Any]] = (),
        driver: Driver | None = None,
    ) -> RunResult[T]:
        """Run an instance until it ends, is stuck, or waits for a message that nobody sends.

        In yield mode it is loaded again after every wait, and the clock moved on to its next timer. The messages of
        `script` are sent one by one, each when the instance waits for a message and has no deadline before that.
        """
        if self.setting.mode == "live" and script:
            # In one run, which would wait for a lost message for ever.
            with anyio.fail_after(5 * PATIENCE):
                return await self._live_with_script(workflow, input, id, script, driver)
        left = list(script)
        for _ in range(RUNS_MAX):
            result = await self.once(workflow, input, id=id, driver=driver)
            if result.status.is_terminal or result.status is Status.STUCK:
                return result
            if result.waiting_for and left:
                await self.send(*left.pop(0), id=id)
            elif result.wake_at is not None:
                self.clock.advance(max(0.0, result.wake_at.timestamp() - self.clock.time()))
            else:
                return result
        raise AssertionError(f"no end after {RUNS_MAX} runs")

    async def _live_with_script(
        self, workflow: Workflow[Any, T], input: Any, id: str, script: Sequence[tuple[str, Any]], driver: Driver | None
    ) -> RunResult[T]:
        results: list[RunResult[T]] = []
        async with anyio.create_task_group() as group:

            async def run() -> None:
                results.append(await self.once(workflow, input, id=id, driver=driver))
                group.cancel_scope.cancel()

            group.start_soon(run)
            for message, payload in script:
                await self.until_waiting(id)
                await self.send(message, payload, id=id)
        return results[0]

    async def until_waiting(self, id: str = "i", seconds: float = PATIENCE) -> None:
        """Return once the instance is recorded as waiting for a message."""
        with anyio.fail_after(seconds):
            while True:
                try:
                    if (await self.history(id)).status is Status.WAITING:
                        return
                except LookupError:
                    pass
                except Exception as error:
                    if type(error).__name__ != "InstanceNotFoundError":
                        raise
                await anyio.sleep(0.002)

    async def send(self, message: str, payload: Any = None, *, id: str = "i") -> None:
        """Send a message to an instance."""
        await send_message(self.driver, id, message, payload, clock=self.clock)

    async def history(self, id: str = "i") -> History:
        """What is recorded of an instance."""
        return await read_history(self.driver, id)
