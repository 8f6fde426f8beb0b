"""Reading ranges that are kept apart, so that no one place in the store takes every write, as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError

__all__ = ["Merged", "first_time"]


class Merged:
    """The keys of several ranges, in the order of what follows their prefixes."""

    def __init__(self, driver: Driver, prefixes: Sequence[bytes], begin: bytes, end: bytes, *, page: int) -> None:
        self._driver = driver
        self._prefixes = prefixes
        self._begins = [prefix + begin for prefix in prefixes]
        self._ends = [prefix + end for prefix in prefixes]
        self._page = page
        self._heap: list[tuple[bytes, int]] = []
        self._left = [0] * len(prefixes)
        """How many of the keys that were read of a range have not been given out."""
        self._more = [True] * len(prefixes)
        self._is_begun = False

    async def some(self, most: int) -> list[bytes]:
        """The next keys, as many as there are but no more than that."""
        keys: list[bytes] = []
        while len(keys) < most and (found := await self.next()) is not None:
            keys.append(found[0])
        return keys

    async def next(self) -> tuple[bytes, bytes] | None:
        """The next key, and what follows its prefix; None if there is none any more."""
        if not self._is_begun:
            self._is_begun = True
            for number in range(len(self._prefixes)):
                await self._read(number)
        if not self._heap:
            return None
        suffix, number = heappop(self._heap)
        self._left[number] -= 1
        if not self._left[number] and self._more[number]:
            await self._read(number)
        return self._prefixes[number] + suffix, suffix

    async def _read(self, number: int) -> None:
        rows = await self._driver.scan(self._begins[number], self._ends[number], limit=self._page)
        start = len(self._prefixes[number])
        for key, _ in rows:
            heappush(self._heap, (key[start:], number))
        self._left[number] = len(rows)
        self._more[number] = len(rows) == self._page
        if rows:
            self._begins[number] = rows[-1][0] + b"\x00"


async def first_time(driver: Driver, begin: bytes, end: bytes, time_of: Callable[[bytes], float]) -> float | None:
    """The time in the first key of a range; keys that nothing here has written are passed over."""
    while rows := await driver.scan(begin, end, limit=1):
        try:
            return time_of(rows[0][0])
        except CodecError:
            begin = rows[0][0] + b"\x00"
    return None
