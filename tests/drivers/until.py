"""Waiting in tests for what is not told to anybody."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel

from tests.patience import PATIENCE
from workflow_drivers.sqlite import SqliteDriver

__all__ = ["some_turns", "until", "until_waiting"]


async def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds, which may come true in another thread."""
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await anyio.sleep(0.001)


async def some_turns() -> None:
    """Let all that is ready in the event loop have its turn, and what comes of that."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def until_waiting(driver: SqliteDriver) -> None:
    """Return once somebody waits for a change in this store, and has seen that there was none yet."""
    await until(lambda: driver._watch and driver._timer is not None)
