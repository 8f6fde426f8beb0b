"""Slots, which limit how many instances run at the same time, and timers for the instances that wait in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush


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
        """Whether someone waits for a slot."""
        return bool(self._line)

    def has(self, id: str) -> bool:
        """Whether the instance has a slot."""
        return id in self._running

    def take(self, id: str) -> bool:
        """Whether the instance has a slot now. It takes one if one is free and nobody waits for it."""
        if id in self._running:
            return True
        if self._line or len(self._running) >= self._most:
            return False
        self._running.add(id)
        return True

    def queue_up(self, id: str, go_on: Callable[[], None]) -> None:
        """Give up the slot of the instance, if it has one, and call `go_on` once it has another one."""
        self._running.discard(id)
        self._line.setdefault(id, go_on)
        self._serve()

    def pass_on(self, id: str, to: str) -> None:
        """Hand the slot of `id` over to `to`."""
        self._running.remove(id)
        self._running.add(to)

    def leave(self, id: str) -> None:
        """Give up the slot of the instance, or its place in the queue."""
        self._running.discard(id)
        self._line.pop(id, None)
        self._serve()

    def stop_waiting(self, id: str) -> None:
        """Give up the place of the instance in the queue. A slot that it has it keeps."""
        self._line.pop(id, None)

    def _serve(self) -> None:
        if self._serving:
            # `go_on` below may give up its slot at once, which calls this again. The loop that called it serves the
            # rest of the queue, so a long queue does not become a deep recursion.
            return
        self._serving = True
        try:
            while self._line and len(self._running) < self._most:
                id, go_on = self._line.popitem(last=False)
                self._running.add(id)
                go_on()
        finally:
            self._serving = False


_STALE_TIMERS = 64


class Timers:
    """One time for each id, in order of time."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, id: str, time: float) -> bool:
        """Set the time of an id, unless it has an earlier one; True if it is the first of all times now."""
        known = self._times.get(id)
        if known is not None and known <= time:
            return False
        self._times[id] = time
        heappush(self._heap, (time, id))
        if len(self._heap) > 2 * len(self._times) + _STALE_TIMERS:
            # Times that were discarded, or replaced by earlier ones, are still in the heap: drop them.
            self._heap = [(time, id) for id, time in self._times.items()]
            heapify(self._heap)
        return self._heap[0] == (time, id)

    def discard(self, id: str) -> None:
        """Forget the time of an id."""
        self._times.pop(id, None)

    @property
    def next(self) -> float | None:
        """The first of all times; None if there is none."""
        heap = self._heap
        while heap and self._times.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[str]:
        """Remove the ids whose time has come, and return them in order of time."""
        found: list[str] = []
        while (time := self.next) is not None and time <= now:
            _, id = heappop(self._heap)
            del self._times[id]
            found.append(id)
        return found
