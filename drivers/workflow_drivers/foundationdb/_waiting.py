"""Waiting for the binding's futures in an event loop: by callback, without a thread that waits.

A future becomes ready in the binding's network thread, which all event loops of a process share. All that happens
there is that the loop which waits is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import anyio

from workflow_drivers.foundationdb._binding import Future, Transaction
from workflow_sdk.driver import caller_from_threads


class Waker:
    """An event of the event loop in which it is made. Any thread can set it."""

    __slots__ = ("_event", "_soon")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._soon = caller_from_threads()

    def wake(self, _: object = None) -> None:
        """End the wait. Callable from any thread; a callback of futures."""
        # In a loop that has been closed nobody waits. The network thread must not get its error.
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


async def committed(transaction: Transaction) -> None:
    """Commit, and wait for the answer. Raises the binding's error."""
    future = transaction.commit()
    await ready(future)
    future.wait()


async def settled(future: Future, deadline: float) -> BaseException | None:
    """Wait until the future is ready or the deadline has come; return the last cancellation that came meanwhile.

    This is for commits. One that is under way can't be called back, and whoever gave up on it could not know what is
    stored. So a cancellation waits, and the caller raises it afterwards.
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
                cancelled = caught  # asyncio's own, of the task, which no shield keeps off
    return cancelled
