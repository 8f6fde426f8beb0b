"""Bringing what an instance remembers into memory: a few range reads, never one per operation."""

from __future__ import annotations

from workflow_sdk.core.journal import Journal
from workflow_sdk.core.keys import (
    ATTIC,
    COMPENSATIONS,
    HISTORY,
    NAMES,
    TAKINGS,
    Field,
    InstanceKeys,
)
from workflow_sdk.core.loading import HistoryCursor
from workflow_sdk.core.location import segments
from workflow_sdk.driver import Driver

__all__ = ["load_for_run", "load_for_walk", "load_history"]


async def load_for_run(driver: Driver, journal: Journal, fields: dict[Field, bytes]) -> None:
    """Load what a run goes on with. What is under finished operations stays where it is."""
    keys = journal.keys
    journal.fields = dict(fields)
    await _load_names(driver, journal)
    await load_history(driver, HistoryCursor(journal, HISTORY))
    newest = await driver.scan(*keys.range(COMPENSATIONS), limit=1, reverse=True)
    for key, _ in newest:
        journal.next_sequence = sequence_of(keys, key) + 1
        journal.compensations = 1
    start = len(keys.space)
    for key, raw in await driver.scan(*keys.range(TAKINGS)):
        journal.load_taking(key[start:], raw)


async def load_for_walk(driver: Driver, journal: Journal) -> None:
    """Load everything that was ever done and not cleared, what the losers of races did included."""
    await _load_names(driver, journal)
    for part in (HISTORY, ATTIC):
        await load_history(driver, HistoryCursor(journal, part, whole=True))


def sequence_of(keys: InstanceKeys, key: bytes) -> int:
    """The sequence number in the key of a compensation."""
    (number,) = segments(key[len(keys.space) + len(COMPENSATIONS) :])
    assert isinstance(number, int), "compensations are numbered"
    return number


async def load_history(driver: Driver, cursor: HistoryCursor) -> None:
    """Read what the cursor asks for."""
    while cursor.begin is not None:
        cursor.feed(await driver.scan(cursor.begin, cursor.end, limit=cursor.limit))


async def _load_names(driver: Driver, journal: Journal) -> None:
    start = len(journal.keys.space) + len(NAMES)
    for key, raw in await driver.scan(*journal.keys.range(NAMES)):
        (index,) = segments(key[start:])
        assert isinstance(index, int), "names are numbered"
        journal.names.load(index, raw)
