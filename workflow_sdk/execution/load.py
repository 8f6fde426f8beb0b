"""Bringing what an instance remembers into memory: a few range reads, never one per operation."""

from __future__ import annotations

from typing import Protocol

from workflow_sdk.core.instance import InstanceRows
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.keys import (
    ATTIC,
    CHANGES,
    COMPENSATIONS,
    FOLDED,
    HISTORY,
    NAMES,
    OUTSIDE,
    TAKINGS,
    InstanceKeys,
)
from workflow_sdk.core.loading import HistoryCursor
from workflow_sdk.core.location import segments

__all__ = ["Scannable", "load_for_run", "load_for_walk", "load_history"]


class Scannable(Protocol):
    """A store, or rows that were read of it before."""

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it."""
        ...


async def load_for_run(store: Scannable, journal: Journal, about: InstanceRows) -> None:
    """Load what a run goes on with. What is under finished operations stays where it is."""
    keys = journal.keys
    journal.load(about)
    await _load_names(store, journal)
    await load_history(store, HistoryCursor(journal, HISTORY))
    newest = await store.scan(*keys.range(COMPENSATIONS), limit=1, reverse=True)
    for key, _ in newest:
        journal.next_sequence = sequence_of(keys, key) + 1
        journal.compensations = 1
    start = len(keys.space)
    for key, raw in await store.scan(*keys.range(TAKINGS)):
        journal.load_taking(key[start:], raw)
    for key, raw in await store.scan(keys.range(OUTSIDE)[0], keys.range(CHANGES)[1]):
        if key[start:].startswith(OUTSIDE):
            journal.load_outside(key[start + len(OUTSIDE) :], raw)
        else:
            journal.load_changes(key[start + len(CHANGES) :], raw)


async def load_for_walk(store: Scannable, journal: Journal) -> None:
    """Load everything that was ever done and not cleared, what the losers of races did included."""
    await _load_names(store, journal)
    # Where a race was begun again, what its losers did the last time is what counts.
    for part in (ATTIC, HISTORY):
        await load_history(store, HistoryCursor(journal, part, whole=True))
    for part in (CHANGES, FOLDED):
        start = len(journal.keys.space) + len(part)
        for key, raw in await store.scan(*journal.keys.range(part)):
            journal.load_changes(key[start:], raw)


def sequence_of(keys: InstanceKeys, key: bytes) -> int:
    """The sequence number in the key of a compensation."""
    (number,) = segments(key[len(keys.space) + len(COMPENSATIONS) :])
    assert isinstance(number, int), "compensations are numbered"
    return number


async def load_history(store: Scannable, cursor: HistoryCursor) -> None:
    """Read what the cursor asks for."""
    while cursor.begin is not None:
        cursor.feed(await store.scan(cursor.begin, cursor.end, limit=cursor.limit))


async def _load_names(store: Scannable, journal: Journal) -> None:
    start = len(journal.keys.space) + len(NAMES)
    for key, raw in await store.scan(*journal.keys.range(NAMES)):
        (index,) = segments(key[start:])
        assert isinstance(index, int), "names are numbered"
        journal.names.load(index, raw)
