"""An instance as one read finds it: who has it, its rows, and, if there is little, everything else as well."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from workflow_sdk.core.instance import InstanceRows, Lease, unpack
from workflow_sdk.core.keys import FIELDS, Field, InstanceKeys, all_spaces
from workflow_sdk.core.location import segments
from workflow_sdk.core.wire import before_release, is_of_before_release
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError

__all__ = ["Snapshot", "StoredRows", "check_form", "find_unreadable", "read_about", "read_snapshot", "read_standing"]

ROWS_MAX = 128
"""With more rows than this, the history is not read at once."""

_FIELDS = {field.value: field for field in Field}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An instance at one moment."""

    about: InstanceRows
    """False if there is no such instance."""
    lease: Lease | None
    nudge: bytes | None
    rows: StoredRows | None = None
    """All there is of it; None if that was not read."""
    sent: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """The rows that count what was sent to it."""


class StoredRows:
    """Rows that were read, to be scanned like the store they come from."""

    __slots__ = ("_keys", "_rows")

    def __init__(self, rows: list[tuple[bytes, bytes]]) -> None:
        self._rows = rows
        self._keys = [key for key, _ in rows]

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """As a driver does."""
        found = self.between(begin, end)
        if reverse:
            found.reverse()
        return found if limit is None else found[:limit]

    def between(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it."""
        return self._rows[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]


async def check_form(driver: Driver) -> None:
    """CodecError, if the store was written before the first release. One row tells."""
    for _, raw in await driver.scan(*all_spaces(), limit=1):
        if is_of_before_release(raw):
            raise before_release("this store")


async def read_snapshot(driver: Driver, keys: InstanceKeys) -> Snapshot:
    """The instance with everything, if that is a page; else as `read_standing` gives it."""
    rows = await driver.scan(*keys.all(), limit=ROWS_MAX)
    if len(rows) == ROWS_MAX:
        return await read_standing(driver, keys)
    stored = StoredRows(rows)
    return _parse(keys, stored.between(*keys.range(FIELDS)), stored)


async def read_standing(driver: Driver, keys: InstanceKeys) -> Snapshot:
    """Who has the instance, and what is stored of it beside its history."""
    return _parse(keys, await driver.scan(*keys.range(FIELDS)), None)


async def read_about(driver: Driver, keys: InstanceKeys) -> InstanceRows:
    """What is stored of an instance beside its history; false if there is no such instance."""
    return (await read_standing(driver, keys)).about


async def find_unreadable(driver: Driver, keys: InstanceKeys) -> tuple[bytes, bytes | None]:
    """The first row that makes an instance unreadable, and what it holds."""
    start = len(keys.space) + len(FIELDS)
    for key, raw in await driver.scan(*keys.range(FIELDS)):
        try:
            number = next(segments(key[start:]))
            field = _FIELDS.get(number) if isinstance(number, int) else None
            if field is not None:
                unpack(field, raw)
            elif key == keys.lease:
                Lease.unpack(raw)
        except CodecError:
            return key, raw
    # One is missing. Whatever is written there changes this one.
    head = keys.field(Field.HEAD)
    return head, await driver.get(head)


def _parse(keys: InstanceKeys, rows: list[tuple[bytes, bytes]], stored: StoredRows | None) -> Snapshot:
    start = len(keys.space) + len(FIELDS)
    fields: dict[Field, bytes] = {}
    lease = nudge = None
    sent: dict[bytes, bytes] = {}
    for key, raw in rows:
        number = next(segments(key[start:]))
        found = _FIELDS.get(number) if isinstance(number, int) else None
        if found is not None:
            fields[found] = raw
        elif key == keys.lease:
            lease = raw
        elif key == keys.nudge:
            nudge = raw
        elif key.startswith(keys.nudge):
            sent[key] = raw
    return Snapshot(InstanceRows(fields), None if lease is None else Lease.unpack(lease), nudge, stored, sent)
