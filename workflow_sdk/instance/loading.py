"""Loading an instance from the store into a journal: with a few range reads, never one for each operation."""

from __future__ import annotations

from typing import Protocol

from workflow_sdk.driver import Driver
from workflow_sdk.journal.journal import Journal
from workflow_sdk.rows.entries import Entry, LoopData
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import (
    ARCHIVE,
    CHANGES,
    COMPENSATIONS,
    FOLDED,
    HISTORY,
    NAMES,
    OUTSIDE,
    TAKINGS,
    InstanceKeys,
)
from workflow_sdk.rows.location import number_of, pack_segment, split_last, subtree
from workflow_sdk.rows.outside import Hanging
from workflow_sdk.rows.status import Kind

PAGE_MIN = 64
PAGE_MAX = 4096


class HistoryCursor:
    """Says which range of rows to read next (`begin` to `end`), and takes them in. `begin` is None at the end."""

    def __init__(self, journal: Journal, part: bytes, location: bytes = b"", *, whole: bool = False) -> None:
        self._journal = journal
        self._prefix = journal.keys.space + part
        begin, end = subtree(self._prefix + location)
        self.begin: bytes | None = begin
        self.end: bytes = end
        self.limit: int = PAGE_MIN
        """How many rows to read: few after a skip, since the next may be skipped too, and more while nothing is."""
        self._whole = whole

    def feed(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Take in the rows that a scan from `begin` to `end` with `limit` gave."""
        start = len(self._prefix)
        skip_to = b""
        for key, raw in rows:
            if key < skip_to:
                continue
            location = key[start:]
            entry = self._journal.history.load_entry(location, raw)
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
        if entry.is_final or entry.kind is Kind.GRAPH:
            # A graph reads what it goes on with by itself: most of its firings may be over.
            return subtree(key)[1]
        if isinstance(entry.data, LoopData):
            _, own = split_last(location)
            return key + b"\x05" + own + pack_segment(entry.data.turn)
        return b""


class Scannable(Protocol):
    """A store, or rows that were read of it before."""

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it."""
        ...


async def load_for_run(store: Scannable, journal: Journal, about: InstanceRows) -> None:
    """Load what a run needs in order to go on. What is recorded under finished operations is not read."""
    keys = journal.keys
    journal.load(about)
    await _load_names(store, journal)
    await load_history(store, HistoryCursor(journal, HISTORY))
    newest = await store.scan(*keys.range(COMPENSATIONS), limit=1, reverse=True)
    for key, _ in newest:
        journal.compensations.next_sequence = sequence_of(keys, key) + 1
        journal.compensations.count = 1
    start = len(keys.space)
    for key, raw in await store.scan(*keys.range(TAKINGS)):
        journal.takings.load(key[start:], raw)
    for key, raw in await store.scan(keys.range(OUTSIDE)[0], keys.range(CHANGES)[1]):
        if key[start:].startswith(OUTSIDE):
            journal.hang(key[start + len(OUTSIDE) :], Hanging.unpack(raw), is_stored=True)
        else:
            journal.history.load_changes(key[start + len(CHANGES) :], raw)


async def load_for_walk(store: Scannable, journal: Journal) -> None:
    """Load the whole history, and the archive of race losers."""
    await _load_names(store, journal)
    # The history comes after the archive and replaces it: if a race runs again, its newest entries count.
    for part in (ARCHIVE, HISTORY):
        await load_history(store, HistoryCursor(journal, part, whole=True))
    for part in (CHANGES, FOLDED):
        start = len(journal.keys.space) + len(part)
        for key, raw in await store.scan(*journal.keys.range(part)):
            journal.history.load_changes(key[start:], raw)


def sequence_of(keys: InstanceKeys, key: bytes) -> int:
    """The sequence number in the key of a compensation."""
    return number_of(key[len(keys.space) + len(COMPENSATIONS) :])


async def load_history(store: Scannable, cursor: HistoryCursor) -> None:
    """Read the history, range by range, as the cursor asks for it."""
    while cursor.begin is not None:
        cursor.feed(await store.scan(cursor.begin, cursor.end, limit=cursor.limit))


async def _load_names(store: Scannable, journal: Journal) -> None:
    start = len(journal.keys.space) + len(NAMES)
    for key, raw in await store.scan(*journal.keys.range(NAMES)):
        journal.names.load(number_of(key[start:]), raw)


PAGE = 256


async def read_branches(driver: Driver, keys: InstanceKeys, location: bytes) -> dict[bytes, Entry]:
    """Read the entries of the branches of a join, race or map, by segment, without the entries inside them."""
    found: dict[bytes, Entry] = {}
    begin, end = subtree(keys.space + HISTORY + location)
    start = len(keys.space) + len(HISTORY)
    while True:
        rows = await driver.scan(begin, end, limit=PAGE)
        for key, raw in rows:
            scope, segment = split_last(key[start:])
            if scope == location and (entry := Entry.unpack(raw)).kind is Kind.BRANCH:
                found[segment] = entry
                begin = subtree(key)[1]
        if len(rows) < PAGE:
            return found
        begin = max(begin, rows[-1][0] + b"\x00")


async def read_page(
    driver: Driver, keys: InstanceKeys, location: bytes, after: bytes
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """Read a page of the history under a location; also return where the next page begins, None if there is none."""
    begin, end = subtree(keys.space + HISTORY + location)
    start = len(keys.space) + len(HISTORY)
    rows = await driver.scan(after or begin, end, limit=PAGE)
    following = rows[-1][0] + b"\x00" if len(rows) == PAGE else None
    return [(key[start:], raw) for key, raw in rows], following
