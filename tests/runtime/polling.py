"""Waiting for something that shows in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from tests.patience import PATIENCE

__all__ = ["until"]


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    """Return once it holds; it is looked at again and again."""
    with anyio.fail_after(seconds):
        while not await holds():  # noqa: ASYNC110  # what another process does sets no event here
            await anyio.sleep(0.005)
