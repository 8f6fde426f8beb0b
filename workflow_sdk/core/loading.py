"""Which rows of a history a run needs: a cursor that skips what is under finished operations, and does not read it."""

from __future__ import annotations

from workflow_sdk.core.entries import Entry, LoopData
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.location import pack_segment, split_last, subtree

__all__ = ["HistoryCursor"]

PAGE_MIN = 64
PAGE_MAX = 4096


class HistoryCursor:
    """Says which range to read next, and is fed with its rows, until there is none."""

    def __init__(self, journal: Journal, part: bytes, *, whole: bool = False) -> None:
        self._journal = journal
        self._prefix = journal.keys.space + part
        begin, end = subtree(self._prefix)
        self.begin: bytes | None = begin
        self.end: bytes = end
        self.limit: int = PAGE_MIN
        """Small after a skip, since what follows may be skipped too; growing while nothing is."""
        self._whole = whole

    def feed(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Take in what a scan from `begin` to `end` with `limit` gave."""
        start = len(self._prefix)
        skip_to = b""
        for key, raw in rows:
            if key < skip_to:
                continue
            location = key[start:]
            entry = self._journal.load_entry(location, raw)
            if not self._whole and entry.kind.is_composite:
                skip_to = self._skip(key, location, entry)
        if len(rows) < self.limit:
            self.begin = None
            return
        last = rows[-1][0] + b"\x00"
        skipping = skip_to > last
        self.begin = skip_to if skipping else last
        self.limit = PAGE_MIN if skipping else min(self.limit * 4, PAGE_MAX)

    @staticmethod
    def _skip(key: bytes, location: bytes, entry: Entry) -> bytes:
        if entry.is_final:
            return subtree(key)[1]
        if isinstance(entry.data, LoopData):
            _, own = split_last(location)
            return key + b"\x05" + own + pack_segment(entry.data.turn)
        return b""
