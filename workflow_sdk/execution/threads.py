"""Worker threads for steps that are plain functions, under a limit of the engine's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

__all__ = ["run_in_thread"]

THREADS_MAX = 40
"""Steps that are plain functions and run at once, in one event loop."""

_threads: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("workflow_sdk_threads")


async def run_in_thread(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What `fn(*args)` returns or raises, in a thread. A cancelled call does not wait for it."""
    try:
        limiter = _threads.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(THREADS_MAX)
        _threads.set(limiter)
    (value,) = await anyio.to_thread.run_sync(_boxed, fn, args, abandon_on_cancel=True, limiter=limiter)
    return value


def _boxed(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any]:
    # trio refuses to hand a bare coroutine out of a thread, which is what a lambda around an async function returns.
    return (fn(*args),)
