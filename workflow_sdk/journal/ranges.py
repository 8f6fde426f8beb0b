"""A set of keys, as ranges that are merged where they touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Ranges:
    """The keys in any of a number of ranges. Asking for a key costs little, however many ranges there are."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        # Apart from each other, and in order.
        self._begins: list[bytes] = []
        self._ends: list[bytes] = []

    def add(self, begin: bytes, end: bytes) -> None:
        """Add the keys from `begin` up to `end`, which is not included."""
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self._begins, key)
        return at > 0 and key < self._ends[at - 1]

    def __len__(self) -> int:
        return len(self._begins)
