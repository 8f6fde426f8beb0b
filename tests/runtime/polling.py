"""Waiting for something that shows in the store, and giving what must not happen the time to happen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.lowlevel import checkpoint

from tests.patience import PATIENCE
from workflow_sdk import Batch, Driver

__all__ = ["settle", "until"]

LOOKS_AT_ONCE = 50
"""Most of what is waited for comes after a few turns of the event loop."""

ROUNDS = 15
TURNS = 4

NO_KEY = b"\x00no row has this key"


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    """Return once it holds; it is looked at again and again."""
    looks = 0
    with anyio.fail_after(seconds):
        while not await holds():
            looks += 1
            if looks < LOOKS_AT_ONCE:
                await checkpoint()
            else:
                await anyio.sleep(0.002)  # what a thread or another process does sets no event here


async def settle(driver: Driver) -> None:
    """Return once whoever had something to do has had the time to do it, for tests of what must not happen.

    That is no length of time: the store is asked as often as it takes to notice a change, to claim an instance, and to
    run a few of its steps, and the event loop goes round as often. On a slow machine, this takes longer as well.
    """
    nothing = Batch()
    nothing.clear(NO_KEY)
    for _ in range(ROUNDS):
        await driver.get(NO_KEY)
        await driver.commit(nothing)
        for _ in range(TURNS):
            await checkpoint()
