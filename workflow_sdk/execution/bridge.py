"""What makes a thread of ours one from which `anyio.from_thread` finds its way back, as from a thread of anyio.

This is what lies under the public interface of anyio. Where a version of it has it elsewhere, a plain function names
the event loop itself: `anyio.from_thread.run(fn, token=...)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import anyio
from anyio._core import _eventloop as anyio_loop

__all__ = ["forget_the_loop", "in_worker_thread"]

Scoped = Callable[[anyio.CancelScope | None], AbstractContextManager[object]]

_claim: Any = getattr(anyio_loop, "claim_worker_thread", None)
_locals: Any = getattr(anyio_loop, "threadlocals", None)
_set_library: Any = getattr(anyio_loop, "set_current_async_library", None)


@contextmanager
def in_worker_thread(loop: asyncio.AbstractEventLoop) -> Generator[Scoped]:
    """While the thread that runs this is a worker thread of the loop."""
    if _claim is None or _locals is None:
        yield nullcontext
        return
    with _claim(anyio_loop.get_async_backend("asyncio"), loop):
        yield _scoped


@contextmanager
def _scoped(scope: anyio.CancelScope | None) -> Generator[None]:
    """While a function runs that may ask whether it is still wanted."""
    _locals.current_cancel_scope = scope
    try:
        yield
    finally:
        del _locals.current_cancel_scope


def forget_the_loop() -> None:
    """In a context that was copied from a task: the thread that will run in it runs no event loop."""
    if _set_library is not None:
        _set_library(None)
        return
    try:
        from sniffio import current_async_library_cvar  # only older versions of anyio need it
    except ImportError:
        return
    current_async_library_cvar.set(None)
