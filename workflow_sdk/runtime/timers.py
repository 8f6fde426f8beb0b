"""The first timer of each instance that waits in memory."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

__all__ = ["Timers"]

_STALE_TIMERS = 64


class Timers:
    """One time for each id, and which of them is next."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, id: str, time: float) -> bool:
        """Have the id at that time, if it has none before it. True if it is the next of all now."""
        known = self._times.get(id)
        if known is not None and known <= time:
            return False
        self._times[id] = time
        heappush(self._heap, (time, id))
        if len(self._heap) > 2 * len(self._times) + _STALE_TIMERS:
            # What ended early, or got an earlier time, has left something behind.
            self._heap = [(time, id) for id, time in self._times.items()]
            heapify(self._heap)
        return self._heap[0] == (time, id)

    def discard(self, id: str) -> None:
        """The id has no time."""
        self._times.pop(id, None)

    @property
    def next(self) -> float | None:
        """The first time of all."""
        heap = self._heap
        while heap and self._times.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[str]:
        """The ids whose time has come, in order of time. They have none afterwards."""
        found: list[str] = []
        while (time := self.next) is not None and time <= now:
            _, id = heappop(self._heap)
            del self._times[id]
            found.append(id)
        return found
