"""How many effects a worker has at once: what it has no room for is queued, and left to others."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, TypeAlias

AT_ONCE: Final = 512
"""How many effects a worker has: those that run, and those that wait for their next attempt."""

Placing: TypeAlias = Callable[[str], str | None]
"""Tells who is to run an effect that is about to be recorded: this worker, or None, which queues it."""


class Room:
    """Which effects one worker takes, and how many more of them."""

    def __init__(self, worker: str, effects: frozenset[str]) -> None:
        self._worker = worker
        self._effects = effects
        self._taken = 0
        self.is_short = False
        """Whether effects were left in the queue for lack of room. As long as that is so, new ones go behind them."""

    @property
    def left(self) -> int:
        """How many more there is room for."""
        return max(0, AT_ONCE - self._taken)

    def take(self) -> None:
        """Count one more."""
        self._taken += 1

    def free(self) -> None:
        """Count one less."""
        self._taken -= 1

    def close(self) -> None:
        """From now on, all that is asked for is queued."""
        self._effects = frozenset()

    @contextmanager
    def placing(self) -> Generator[Placing]:
        """Keep places, until the end of the block, for effects that are recorded in it: those begun have their own."""
        kept = 0

        def place(effect: str) -> str | None:
            nonlocal kept
            if effect not in self._effects or self.is_short or not self.left:
                return None
            kept += 1
            self._taken += 1
            return self._worker

        try:
            yield place
        finally:
            self._taken -= kept
