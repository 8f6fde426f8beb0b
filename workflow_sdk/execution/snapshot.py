"""An instance as one read finds it: who has it, its fields, and, if there is little, everything else as well."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from workflow_sdk.core.fields import check_field, check_fields, check_lease
from workflow_sdk.core.keys import FIELDS, Field, InstanceKeys
from workflow_sdk.core.location import segments
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError

__all__ = ["Snapshot", "StoredRows", "find_unreadable", "read_fields", "read_snapshot", "read_standing"]

ROWS_MAX = 128
"""With more rows than this, only the fields are read at once."""

_FIELDS = {field.value: field for field in Field}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An instance at one moment. Without fields, there is no such instance."""

    fields: dict[Field, bytes]
    lease: bytes | None
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


async def read_snapshot(driver: Driver, keys: InstanceKeys) -> Snapshot:
    """The instance with everything, if that is a page; else as `read_standing` gives it."""
    rows = await driver.scan(*keys.all(), limit=ROWS_MAX)
    if len(rows) == ROWS_MAX:
        return await read_standing(driver, keys)
    stored = StoredRows(rows)
    return _parse(keys, stored.between(*keys.range(FIELDS)), stored)


async def read_standing(driver: Driver, keys: InstanceKeys) -> Snapshot:
    """Who has the instance, and its fields."""
    return _parse(keys, await driver.scan(*keys.range(FIELDS)), None)


async def read_fields(driver: Driver, keys: InstanceKeys) -> dict[Field, bytes]:
    """The fields of an instance; none if there is no such instance."""
    return (await read_standing(driver, keys)).fields


async def find_unreadable(driver: Driver, keys: InstanceKeys) -> tuple[bytes, bytes | None]:
    """The first row that makes the fields of an instance unreadable, and what it holds."""
    start = len(keys.space) + len(FIELDS)
    for key, raw in await driver.scan(*keys.range(FIELDS)):
        try:
            number = next(segments(key[start:]))
            field = _FIELDS.get(number) if isinstance(number, int) else None
            if field is not None:
                check_field(field, raw)
            elif key == keys.lease:
                check_lease(raw)
        except CodecError:
            return key, raw
    # One is missing. Whatever is written there is counted here.
    version = keys.field(Field.VERSION)
    return version, await driver.get(version)


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
    check_fields(fields)
    check_lease(lease)
    return Snapshot(fields, lease, nudge, stored, sent)
