"""The journal of a machine: what its cells have taken, in the order of the commits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from workflow_sdk.client.info import Page
from workflow_sdk.driver import Driver
from workflow_sdk.errors import DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.kernel import Entry
from workflow_sdk.machines.rows import JOURNALS, IntentRow, JournalRow, intent_key, journal_of
from workflow_sdk.rows.location import subtree, unpack
from workflow_sdk.rows.wire import shown, time_of
from workflow_sdk.values import Codec

LIMIT_MAX: Final = 10_000
_PAGE: Final = 256


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A message that a cell has taken."""

    cursor: str
    """Where it stands: `client.journal(machine, cursor=...)` goes on after it."""
    machine: str
    key: Any
    """Of the cell, as plain data."""
    kind: Literal["event", "receipt"]
    schema: str
    value: Any
    """Plain data."""
    at: datetime
    """When it was accepted: to the transition, that is now."""
    intent_id: str | None
    """Of a receipt: the effect that it ends."""
    sequence: int
    """How many transitions the cell had made before."""
    annotations: Any
    """Of the transition, as plain data."""
    recorded: Entry = field(repr=False, compare=False)
    """The same as bytes, which replay takes."""


def _entry_of(machine: str, cursor: str, raw: bytes, codec: Codec) -> JournalEntry:
    row = JournalRow.unpack(raw)
    key = None if row.key is None else codec.unseal(row.key)
    value = codec.unseal(row.value)
    kind: Literal["event", "receipt"] = "event" if row.intent is None else "receipt"
    return JournalEntry(
        cursor,
        machine,
        None if key is None else canonical.restored(key),
        kind,
        row.schema,
        canonical.restored(value),
        time_of(row.at),
        row.intent,
        row.sequence,
        None if row.annotations is None else canonical.restored(codec.unseal(row.annotations)),
        Entry(machine, key, kind, row.schema, value, row.at, row.intent, row.sequence, row.begins),
    )


async def read_journal(
    driver: Driver, codec: Codec, machine: str, limit: int, cursor: str | None, *, newest_first: bool = False
) -> Page[JournalEntry]:
    """A page of the journal of a machine, oldest first unless `newest_first`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIMIT_MAX:
        raise DefinitionError(f"limit is a number of entries from 1 to {LIMIT_MAX:,}, not {shown(limit)}")
    prefix = journal_of(machine)
    begin, end = subtree(prefix)
    if cursor is not None:
        place = prefix + place_of(cursor)
        begin, end = (begin, place) if newest_first else (place + b"\x00", end)
    items: list[JournalEntry] = []
    while True:
        asked = min(limit + 1 - len(items), _PAGE)
        rows = await driver.scan(begin, end, limit=asked, reverse=newest_first)
        items += [_entry_of(machine, key[len(prefix) :].hex(), raw, codec) for key, raw in rows]
        if len(items) > limit:
            return Page(items[:limit], items[limit - 1].cursor)
        if len(rows) < asked:
            return Page(items, None)
        begin, end = (begin, rows[-1][0]) if newest_first else (rows[-1][0] + b"\x00", end)


async def all_entries(driver: Driver, codec: Codec, machine: str, cursor: str | None) -> AsyncIterator[JournalEntry]:
    """The journal of a machine, from its beginning on or after a cursor, to its end."""
    while True:
        page = await read_journal(driver, codec, machine, _PAGE, cursor)
        for entry in page:
            yield entry
        if page.cursor is None:
            return
        cursor = page.cursor


async def end_of_journal(driver: Driver, machine: str) -> str | None:
    """The cursor of the last entry; None, if there is none."""
    prefix = journal_of(machine)
    rows = await driver.scan(*subtree(prefix), limit=1, reverse=True)
    return rows[0][0][len(prefix) :].hex() if rows else None


def place_of(cursor: str) -> bytes:
    """What the key of an entry ends with; DefinitionError, if it is no cursor."""
    try:
        return bytes.fromhex(cursor)
    except (ValueError, TypeError):
        raise DefinitionError(f"cursor is one of an entry of this journal, not {shown(cursor)}") from None


async def trace(driver: Driver, codec: Codec, intent_id: str) -> list[JournalEntry]:
    """What the journals have of an intent: what its cell took when it asked for it, and the answer."""
    raw = await driver.get(intent_key(intent_id))
    if raw is not None:
        row = IntentRow.unpack(raw)
        key = None if row.key is None else codec.unseal(row.key)
        return await _with_sequence(driver, codec, row.machine, key, row.sequence - 1)
    for machine in await _machines(driver):
        found = [one async for one in _only(driver, codec, machine, lambda row: row.intent == intent_id)]
        for receipt in found:
            asked = int(receipt.value["sequence"]) - 1
            return [*await _with_sequence(driver, codec, machine, receipt.recorded.key, asked), receipt]
    return []


async def _with_sequence(
    driver: Driver, codec: Codec, machine: str, key: bytes | None, sequence: int
) -> list[JournalEntry]:
    """The transition that a cell has made after so many others."""
    found = [one async for one in _only(driver, codec, machine, lambda row: row.sequence == sequence)]
    # What was taken without a transition has the sequence of the next one.
    return [one for one in found if one.recorded.key == key][-1:]


async def _only(
    driver: Driver, codec: Codec, machine: str, wanted: Callable[[JournalRow], bool]
) -> AsyncIterator[JournalEntry]:
    prefix = journal_of(machine)
    begin, end = subtree(prefix)
    while rows := await driver.scan(begin, end, limit=_PAGE):
        for key, raw in rows:
            if wanted(JournalRow.unpack(raw)):
                yield _entry_of(machine, key[len(prefix) :].hex(), raw, codec)
        begin = rows[-1][0] + b"\x00"


async def _machines(driver: Driver) -> list[str]:
    """The machines that have a journal."""
    found: list[str] = []
    begin, end = subtree(JOURNALS)
    while rows := await driver.scan(begin, end, limit=1):
        name, *_ = unpack(rows[0][0][len(JOURNALS) :])
        found.append(str(name))
        begin = subtree(journal_of(found[-1]))[1]
    return found
