"""All cells of a machine as they are at one moment, while others may change them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from workflow_sdk.changes.instances import StoredRows, parse
from workflow_sdk.client.directory import Merged
from workflow_sdk.driver import Driver
from workflow_sdk.errors import InstanceStateError
from workflow_sdk.machines.cell import CellData
from workflow_sdk.machines.journal import end_of_journal
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.rows import StoredCell, all_pending, key_of
from workflow_sdk.rows.cells import cell_key
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import DIRECTORY, FIELDS, INBOX, Field, InstanceKeys, last_of, shards_of
from workflow_sdk.rows.location import pack
from workflow_sdk.values import Codec

LOOKS_MAX: Final = 5
"""How often cells are read again that change while they are read."""
_PAGE: Final = 256
_Mark = tuple[bytes | None, bytes]
"""The rows of a cell that change with all that it takes, and when it begins anew."""


@dataclass
class Gathered:
    """The cells of a machine."""

    cells: list[CellData] = field(default_factory=list[CellData])
    cursor: str | None = None
    """Of the last entry of their journal."""
    queued: int = 0
    """How many messages they have that they have not taken."""
    inflight: int = 0
    """How many effects they wait for."""
    marks: dict[str, _Mark] = field(default_factory=dict[str, _Mark])
    """By instance."""


async def gather(driver: Driver, codec: Codec, machine: Machine[Any], *, quiet: bool) -> Gathered:
    """The cells of a machine at one moment. `quiet`: at which nothing was queued or in flight.

    InstanceStateError: something was, or they change all the time.
    """
    for _ in range(LOOKS_MAX):
        cursor = await end_of_journal(driver, machine.name)
        found = await _cells(driver, codec, machine)
        if quiet and (found.queued or found.inflight):
            raise InstanceStateError(
                f"machine {machine.name!r} has {found.queued} messages queued and {found.inflight} effects in flight; "
                "a snapshot needs none"
            )
        # All that was the same at two looks was so at the moment between them.
        if not await _is_same(driver, machine, found, quiet=quiet):
            continue
        if await end_of_journal(driver, machine.name) == cursor:
            found.cursor = cursor
            return found
    raise InstanceStateError(f"the cells of machine {machine.name!r} change all the time; stop what is sent to them")


async def _instances(driver: Driver, machine: Machine[Any]) -> list[str]:
    rows = Merged(driver, shards_of(DIRECTORY + pack((3, machine.name))), b"", b"\xff", page=_PAGE)
    ids: list[str] = []
    while keys := await rows.some(_PAGE):
        ids += map(last_of, keys)
    return ids


async def _cells(driver: Driver, codec: Codec, machine: Machine[Any]) -> Gathered:
    found = Gathered()
    for id in await _instances(driver, machine):
        keys = InstanceKeys(id)
        rows = await _pages(driver, keys.space + INBOX, all_pending(keys)[1])
        stored = StoredRows(rows)
        about = parse(keys, stored.between(*keys.range(FIELDS)), None).about
        if not about:
            continue  # it was deleted since it was listed
        cell = StoredCell.of(keys, stored.between(cell_key(keys), all_pending(keys)[1]))
        data = cell.data(key_of(machine, about, codec), about, codec, 0)
        found.cells.append(data)
        found.queued += len(stored.between(*keys.range(INBOX)))
        found.inflight += len(data.inflight)
        found.marks[id] = _mark(about)
    return found


async def _is_same(driver: Driver, machine: Machine[Any], found: Gathered, *, quiet: bool) -> bool:
    """Whether no cell has changed since it was read, and with `quiet` none has got a message."""
    ids = await _instances(driver, machine)
    if found.marks.keys() != set(ids):
        return False
    for id in ids:
        keys = InstanceKeys(id)
        stored = StoredRows(await driver.scan(keys.space + INBOX, keys.range(FIELDS)[1], limit=_PAGE))
        has_messages = bool(stored.between(*keys.range(INBOX)))
        if has_messages and quiet:
            return False
        rows = await driver.scan(*keys.range(FIELDS)) if has_messages else stored.between(*keys.range(FIELDS))
        about = parse(keys, rows, None).about
        if not about or _mark(about) != found.marks[id]:
            return False
    return True


def _mark(about: InstanceRows) -> _Mark:
    return about.raw.get(Field.CELL), about.raw[Field.BIRTH]


async def _pages(driver: Driver, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    while True:
        rows = await driver.scan(begin, end, limit=_PAGE)
        found += rows
        if len(rows) < _PAGE:
            return found
        begin = rows[-1][0] + b"\x00"
