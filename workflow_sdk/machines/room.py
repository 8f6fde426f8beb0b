"""How many effects a worker has at once: what it has no room for is queued, and left to others."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, TypeAlias

AT_ONCE: Final = 512
"""How many effects a worker has: those that run, and those that wait for their next attempt."""

Placing: TypeAlias = Callable[[str, str], str | None]
"""Tells, by its id and its name, who is to run an effect that is recorded now: this worker; None, if it is queued."""


class Room:
    """Which effects one worker takes, and how many more of them."""

    def __init__(self, worker: str, effects: frozenset[str]) -> None:
        self._worker = worker
        self._effects: frozenset[str] = effects
        self._held: dict[str, int] = {}
        """The effects that it has, or that it is about to have, by id: for how many reasons."""
        self.is_short = False
        """Whether effects were left in the queue for lack of room. As long as that is so, new ones go behind them."""

    @property
    def left(self) -> int:
        """How many more there is room for."""
        return max(0, AT_ONCE - len(self._held))

    def __contains__(self, id: str) -> bool:
        return id in self._held

    def held(self) -> set[str]:
        """The effects that it has now, or is about to have."""
        return set(self._held)

    def take(self, id: str) -> None:
        """Have an effect. The store may say so before this worker knows: so it is called before that is committed."""
        self._held[id] = self._held.get(id, 0) + 1

    def free(self, id: str) -> None:
        """Take back one `take`."""
        self._held[id] -= 1
        if not self._held[id]:
            del self._held[id]

    def close(self) -> None:
        """From now on, all that is asked for is queued."""
        self._effects = frozenset()

    @contextmanager
    def placing(self) -> Generator[Placing]:
        """Keep places, until the end of the block, for effects that are recorded in it, and begin before its end."""
        kept: list[str] = []

        def place(id: str, effect: str) -> str | None:
            if effect not in self._effects or self.is_short or not self.left:
                return None
            kept.append(id)
            self.take(id)
            return self._worker

        try:
            yield place
        finally:
            for id in kept:
                self.free(id)
