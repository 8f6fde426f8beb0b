"""Snapshots of machines in a store, and whether their journals lead from them to the cells that there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from workflow_sdk.changes.apply import apply
from workflow_sdk.client.access import Access
from workflow_sdk.client.info import Page
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, DefinitionError, InstanceStateError
from workflow_sdk.machines.blobs import fetch_all, fetch_index, generation, put, states_of, store_newest
from workflow_sdk.machines.cell import CellData
from workflow_sdk.machines.gathering import Gathered, gather
from workflow_sdk.machines.index import Replay, index_of, replay, snapshot_of
from workflow_sdk.machines.index import Snapshot as WholeSnapshot
from workflow_sdk.machines.journal import JournalEntry, all_entries
from workflow_sdk.machines.kernel import Entry
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.rows import SnapshotRow, newest_key
from workflow_sdk.rows.cells import SequenceRow, sequence_key
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.rows.wire import shown, time_of

TRIES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """The cells of a machine at a moment at which nothing was queued or in flight. Equal cells have the same root."""

    machine: str
    root: str
    count: int
    """How many cells there are in it."""
    at: datetime
    """When it was taken."""
    cursor: str | None
    """Where it stands in the journal: `client.journal(machine, cursor=...)` goes on from there."""


async def take_snapshot(access: Access, machine: Machine[Any]) -> StoredSnapshot:
    """Store the cells of a machine, unless the newest snapshot has them."""
    driver, codec = access.driver, access.codec
    while True:
        number = await generation(driver)
        found = await gather(access.looking, codec, machine, quiet=True)
        raw = await driver.get(newest_key(machine.name))
        newest = None if raw is None else SnapshotRow.unpack(raw)
        taken, blobs = snapshot_of(machine.name, found.cells)
        if newest is not None and (newest.root, newest.cursor) == (taken.root, found.cursor):
            return _of(machine.name, newest)
        try:
            known = set[str]() if newest is None else await _known(driver, access, newest.root)
        except CodecError:
            if await generation(driver) == number:
                raise
            continue  # there is a newer one by now, and this one was collected
        await put(driver, codec, {hashed: data for hashed, data in blobs.items() if hashed not in known})
        row = SnapshotRow(taken.root, taken.count, float(access.clock.time()), found.cursor)
        if await apply(driver, store_newest(machine.name, row, number)):
            return _of(machine.name, row)


def _of(machine: str, row: SnapshotRow) -> StoredSnapshot:
    return StoredSnapshot(machine, row.root, row.count, time_of(row.at), row.cursor)


async def _known(driver: Driver, access: Access, root: str) -> set[str]:
    """What is stored already."""
    index = await fetch_index(driver, access.codec, root)
    return {*index, *states_of(root, index)}


async def verify(
    access: Access,
    machine: Machine[Any],
    snapshot: StoredSnapshot,
    journal: Iterable[JournalEntry] | None,
    manifest_hash: str,
) -> Replay:
    """Whether the journal leads from the cells of a snapshot to those that there are now."""
    driver, codec = access.looking, access.codec
    blobs = await fetch_all(driver, codec, snapshot.root)
    before = WholeSnapshot(machine.name, snapshot.root, snapshot.count, blobs.__getitem__).cells()
    given = None if journal is None else _given(journal, snapshot)
    for _ in range(TRIES_MAX):
        now = await gather(driver, codec, machine, quiet=False)
        entries = given
        if entries is None:
            entries = [one async for one in all_entries(driver, codec, machine.name, snapshot.cursor)]
            if (entries[-1].cursor if entries else snapshot.cursor) != now.cursor:
                continue  # more was taken since the cells were read
        return await _replayed(driver, machine, before, [one.recorded for one in entries], now, manifest_hash)
    raise InstanceStateError(f"the cells of machine {machine.name!r} change all the time; stop what is sent to them")


def _given(journal: Iterable[JournalEntry], snapshot: StoredSnapshot) -> list[JournalEntry]:
    """What comes after the snapshot in a journal that was given."""
    if isinstance(journal, Page) and journal.cursor is not None:
        raise DefinitionError("this page of the journal is not the last one; give a list of what is on all of them")
    entries = list(journal)
    wrong = [one for one in entries if not isinstance(one, JournalEntry)]
    if wrong:
        raise DefinitionError(f"a journal is what `client.journal(machine)` returns, not {shown(wrong[0])}")
    return [one for one in entries if snapshot.cursor is None or one.cursor > snapshot.cursor]


async def _replayed(
    driver: Driver,
    machine: Machine[Any],
    before: list[CellData],
    entries: list[Entry],
    now: Gathered,
    manifest_hash: str,
) -> Replay:
    there = {cell.key for cell in now.cells}
    gone = {cell.key for cell in before} | {one.key for one in entries if one.machine == machine.name}
    counts: dict[bytes | None, int] = {}
    for key in gone - there:
        raw = await driver.get(sequence_key(InstanceKeys(machine.cell_id(key))))
        if raw is not None:
            counts[key] = SequenceRow.unpack(raw).sequence
    return replay(machine, before, entries, index_of(now.cells), manifest_hash=manifest_hash, counts=counts)
