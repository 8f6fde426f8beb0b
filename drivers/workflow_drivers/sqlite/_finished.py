"""Finishing what was begun, whoever cancels meanwhile."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import anyio

T = TypeVar("T")

__all__ = ["finished"]


async def finished(task: asyncio.Task[T]) -> T:
    """What `task` comes to. The caller's cancellation waits until it has."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as caught:
                cancelled = caught
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # nobody will ask for it any more
        raise cancelled
    return task.result()
