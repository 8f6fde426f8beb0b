"""An event loop whose time jumps: for drivers that do all their work in it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

__all__ = ["run_without_waiting"]

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, lets its time have come."""

    ahead = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.ahead += max(0.0, timeout)
        return ready


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return super().time() + self._jumping.ahead


def run_without_waiting(fn: Callable[..., Awaitable[T]], *args: Any) -> T:
    """What `fn` returns. Once nothing is ready in its event loop, the next timer is: sleeping takes no real time.

    What happens in threads does not count as something that is going on.
    """
    return anyio.run(fn, *args, backend_options={"loop_factory": _JumpingLoop})
