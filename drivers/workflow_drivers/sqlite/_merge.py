"""Many batches as one: what a group of them comes to, one applied after the other, before anything is written.

It is worked out in memory, so that the file is asked once for all checks and told once of all rows. Each statement
that SQLite steps through lets other threads run, and has to wait for them: a statement for every row takes several
times as long as one for all.
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
"""How many rows a statement is made for: few enough texts for SQLite to keep them prepared."""


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items in pieces, each as long as one of the sizes."""
    rest = iter(items)
    left = len(items)
    for size in SIZES:
        while left >= size:
            yield list(islice(rest, size))
            left -= size


def expectations(batches: Iterable[Batch]) -> dict[bytes, bytes | None]:
    """What the keys that are checked hold, if the first check of each is right."""
    found: dict[bytes, bytes | None] = {}
    for batch in batches:
        for key, expected in batch.checks:
            if key not in found:
                found[key] = expected
    return found


class Merged:
    """What is to be written: first the ranges are cleared, then every row gets its value (None: cleared)."""

    def __init__(self, stored: Mapping[bytes, bytes | None], next_key: Callable[[bytes], bytes]) -> None:
        self.ranges: list[tuple[bytes, bytes]] = []
        self.rows: SortedDict[bytes, bytes | None] = SortedDict()
        self._stored = dict(stored)
        """What the checked keys hold; where something is cleared or written, as it will be."""
        self._checked = sorted(stored)
        self._next_key = next_key

    def add(self, batch: Batch) -> bytes | None:
        """Take in a batch; or return the first key that does not hold what the batch expects, and take in nothing."""
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
