"""Waiting for the binding's futures in an event loop: by callback, without a thread that waits.

A future becomes ready in the binding's network thread, which all event loops of a process share. All that happens
there is that the loop which waits is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, cast

import anyio
from anyio.lowlevel import current_token

from workflow_drivers.foundationdb._binding import Future


class _AsyncioLoop(Protocol):
    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...


class _TrioToken(Protocol):
    def run_sync_soon(self, callback: Callable[[], object], /) -> object: ...


def _from_other_threads() -> Callable[[Callable[[], object]], object]:
    """How another thread has something called in this one's event loop, without waiting for it as `anyio` would."""
    native = current_token().native_token
    if hasattr(native, "run_sync_soon"):
        return cast("_TrioToken", native).run_sync_soon
    return cast("_AsyncioLoop", native).call_soon_threadsafe


class Waker:
    """An event of the loop that makes it, which any thread can set."""

    __slots__ = ("_event", "_soon")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._soon = _from_other_threads()

    def wake(self, _: object = None) -> None:
        """End the wait. Callable from any thread; a callback of futures."""
        # A loop that has been closed has nobody who waits, and the network thread must not hear of it.
        with suppress(RuntimeError):
            self._soon(self._event.set)

    async def wait(self) -> None:
        """Return once woken."""
        await self._event.wait()


async def ready(future: Future) -> None:
    """Return when the future is ready. If the wait is cancelled, so is the future."""
    if future.is_ready():
        return
    waker = Waker()
    future.on_ready(waker.wake)
    try:
        await waker.wait()
    except BaseException:
        future.cancel()
        raise


async def all_ready(futures: Sequence[Future]) -> None:
    """Return when all are ready. If the wait is cancelled, so are they."""
    try:
        for future in futures:
            await ready(future)
    except BaseException:
        for future in futures:
            future.cancel()
        raise


async def settled(future: Future, deadline: float) -> BaseException | None:
    """Wait until the future is ready or the deadline has come, come what may; the cancellation that came meanwhile.

    For commits: one that is under way can't be called back, and whoever gave up on it could not know what is stored.
    """
    cancelled: BaseException | None = None
    if future.is_ready():
        return None
    waker = Waker()
    future.on_ready(waker.wake)
    with anyio.CancelScope(shield=True, deadline=deadline) as scope:
        while not future.is_ready():
            try:
                await waker.wait()
            except anyio.get_cancelled_exc_class() as caught:
                if scope.cancel_called:
                    raise
                cancelled = caught  # of the task itself, which no shield keeps off
    return cancelled
