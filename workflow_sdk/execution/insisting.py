"""Finishing what was begun, whoever cancels meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from workflow_sdk.operations.cancelling import is_cancelled

__all__ = ["come_what_may"]

CANCELLATIONS_MAX = 100
"""After so many, it is not somebody who cancels, but what is called that can't be finished."""


async def come_what_may(fn: Callable[[], Awaitable[object]]) -> BaseException | None:
    """Call `fn`, and let no cancellation end it; the cancellation that came meanwhile, for the caller to raise.

    A shield keeps off cancel scopes. It does not keep off a task of asyncio being cancelled, as `asyncio.timeout`, a
    task group of asyncio or the end of the event loop do it: then `fn` is called again, and has to bear that.
    """
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        for _ in range(CANCELLATIONS_MAX):
            try:
                await fn()
            except anyio.get_cancelled_exc_class() as error:
                if not is_cancelled():
                    raise  # something that `fn` awaited was cancelled, and not we
                cancelled = error
            else:
                break
    return cancelled
