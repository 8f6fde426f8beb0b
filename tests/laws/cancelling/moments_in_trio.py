"""The same on trio, where a task gives way to the instruments of the loop, and only scopes cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import trio

from tests.laws.cancelling.moments import Cancelled
from tests.patience import PATIENCE

__all__ = ["cancelled_in_trio"]

_is_of_the_call: ContextVar[bool] = ContextVar("_is_of_the_call", default=False)


class _Moments(trio.abc.Instrument):
    """The moments of one call."""

    def __init__(self, moment: int, scope: trio.CancelScope) -> None:
        self._moment = moment
        self._scope = scope
        self.count = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task gives way."""
        if task.context.get(_is_of_the_call):
            self.count += 1
            if self.count == self._moment:
                self._scope.cancel()


async def cancelled_in_trio(moment: int, call: Callable[[], Awaitable[object]]) -> Cancelled:
    """As `cancelled_at`."""
    scope = trio.CancelScope()
    moments = _Moments(moment, scope)
    outcome = Cancelled(False, 0)

    async def run() -> None:
        _is_of_the_call.set(True)
        try:
            with scope:
                outcome.value = await call()
        except Exception as error:  # noqa: BLE001  # looked at by whoever has called
            outcome.error = error

    trio.lowlevel.add_instrument(moments)
    try:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
    finally:
        trio.lowlevel.remove_instrument(moments)
    outcome.was_cancelled = scope.cancelled_caught
    outcome.has_come, outcome.moments = moments.count >= moment, moments.count
    return outcome
