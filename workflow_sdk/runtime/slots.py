"""Who may run: a number of instances at once; the others stand in line."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Slots"]


class Slots:
    """Up to `most` slots, given first come, first served."""

    __slots__ = ("_line", "_most", "_running", "_serving")

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: set[str] = set()
        self._line: OrderedDict[str, Callable[[], None]] = OrderedDict()
        self._serving = False

    @property
    def crowded(self) -> bool:
        """Whether someone stands in line."""
        return bool(self._line)

    def has(self, id: str) -> bool:
        """Whether it has a slot."""
        return id in self._running

    def take(self, id: str) -> bool:
        """Have a slot at once, if there is one and nobody stands in line for it. Whoever has one keeps it."""
        if id in self._running:
            return True
        if self._line or len(self._running) >= self._most:
            return False
        self._running.add(id)
        return True

    def stand_in_line(self, id: str, go_on: Callable[[], None]) -> None:
        """Give up the slot, if it has one, and have `go_on` called when it has one (again)."""
        self._running.discard(id)
        self._line.setdefault(id, go_on)
        self._serve()

    def pass_on(self, id: str, to: str) -> None:
        """Whoever has a slot gives it to someone else."""
        self._running.remove(id)
        self._running.add(to)

    def leave(self, id: str) -> None:
        """Have no slot any more, and want none."""
        self._running.discard(id)
        self._line.pop(id, None)
        self._serve()

    def stop_waiting(self, id: str) -> None:
        """Stand in line no more. Whoever has a slot keeps it."""
        self._line.pop(id, None)

    def _serve(self) -> None:
        if self._serving:
            # Whoever goes on may leave at once. The line is served from where that began, however long it is.
            return
        self._serving = True
        try:
            while self._line and len(self._running) < self._most:
                id, go_on = self._line.popitem(last=False)
                self._running.add(id)
                go_on()
        finally:
            self._serving = False
