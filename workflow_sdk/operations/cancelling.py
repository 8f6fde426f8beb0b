"""Telling a cancellation of ours from one that an author's function ran into."""

from __future__ import annotations

import sys

import anyio

__all__ = ["is_cancelled"]


def is_cancelled() -> bool:
    """Whether the code that is running has been cancelled: by a scope around it, or by someone who cancelled its task.

    If not, a cancellation that comes out of an author's function is a failure of that function: it awaited something
    that was cancelled.
    """
    if anyio.current_effective_deadline() == -float("inf"):
        return True
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
