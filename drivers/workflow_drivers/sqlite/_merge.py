"""Many batches as one: the outcome of applying a group of them, one after the other, worked out in memory.

So the file is asked once for all checks, and written once with all rows. With every statement, SQLite lets other
threads run and then has to wait for them, so that a statement for every row takes several times as long as one for all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from sortedcontainers import SortedDict

from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Write

T = TypeVar("T")

SIZES = (128, 32, 8, 2, 1)
"""How many rows a statement can be for. These are few enough texts for SQLite to keep all of them prepared."""


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items in pieces, each as long as one of the sizes."""
    rest = iter(items)
    left = len(items)
    for size in SIZES:
        while left >= size:
            yield list(islice(rest, size))
            left -= size


def expectations(batches: Iterable[Batch]) -> dict[bytes, bytes | None]:
    """The value that the first check of each key expects."""
    found: dict[bytes, bytes | None] = {}
    for batch in batches:
        for key, expected in batch.checks:
            if key not in found:
                found[key] = expected
    return found


class Merged:
    """What is written for a group: first the ranges are cleared, then each row gets its value (None: cleared)."""

    def __init__(self, stored: Mapping[bytes, bytes | None], next_key: Callable[[bytes], bytes]) -> None:
        self.ranges: list[tuple[bytes, bytes]] = []
        self.rows: SortedDict[bytes, bytes | None] = SortedDict()
        self._stored = dict(stored)
        """What the keys that are checked hold after the batches that were added."""
        self._checked = sorted(stored)
        self._next_key = next_key

    def add(self, batch: Batch) -> bytes | None:
        """Add a batch. If a key does not hold what the batch expects, add nothing, and return that key."""
        for key, expected in batch.checks:
            if self._stored[key] != expected:
                return key
        for write in batch.writes:
            self._write(write)
        return None

    def _write(self, write: Write) -> None:
        if isinstance(write, ClearRange):
            begin, end = write
            for key in list(self.rows.irange(begin, end, (True, False))):
                del self.rows[key]
            for at in range(bisect_left(self._checked, begin), bisect_left(self._checked, end)):
                self._stored[self._checked[at]] = None
            self.ranges.append((begin, end))
            return
        key = self._next_key(write.prefix) if isinstance(write, Append) else write.key
        value = None if isinstance(write, Clear) else write.value
        self.rows[key] = value
        if key in self._stored:
            self._stored[key] = value
