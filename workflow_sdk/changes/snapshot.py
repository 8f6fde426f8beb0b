"""An instance as one read finds it: who has it, its rows, and, if there is little, everything else as well."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from workflow_sdk.changes.change import Scan, Steps, change, scan
from workflow_sdk.core.instance import InstanceRows, Lease, unpack
from workflow_sdk.core.keys import FIELDS, LEASE, NUDGE, Field, InstanceKeys, all_spaces, field_key
from workflow_sdk.core.status import Status
from workflow_sdk.core.wire import before_release, is_of_before_release
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError

__all__ = [
    "Snapshot",
    "StoredRows",
    "check_form",
    "find",
    "find_all",
    "find_unreadable",
    "parse",
    "read_about",
    "read_snapshot",
    "read_standing",
]

ROWS_MAX = 128
"""With more rows than this, the history is not read at once."""

_FIELDS = {field_key(field): field for field in Field}
"""By what their keys end with."""


@dataclass(slots=True)
class Snapshot:
    """An instance at one moment."""

    keys: InstanceKeys
    about: InstanceRows
    """False if there is no such instance."""
    lease: Lease | None
    nudge: bytes | None
    rows: StoredRows | None = None
    """All there is of it; None if that was not read."""
    sent: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """The rows that count what was sent to it."""

    @property
    def status(self) -> Status:
        """The status of an instance that there is."""
        return self.about.status


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


@change
def check_form() -> Steps[None]:
    """CodecError, if the store was written before the first release. One row tells."""
    for _, raw in (yield from scan(*all_spaces(), limit=1)):
        if is_of_before_release(raw):
            raise before_release("this store")


def find(keys: InstanceKeys) -> Steps[Snapshot]:
    """An instance as a change finds it. What the change depends on, it has to `Get`, which costs no read any more."""
    return parse(keys, (yield Scan(*keys.range(FIELDS))), None)


def find_all(keys: InstanceKeys) -> Steps[Snapshot]:
    """An instance with everything, if that is a page; else as `find` gives it."""
    rows = yield from scan(*keys.all(), limit=ROWS_MAX)
    if len(rows) == ROWS_MAX:
        return (yield from find(keys))
    stored = StoredRows(rows)
    return parse(keys, stored.between(*keys.range(FIELDS)), stored)


async def read_snapshot(driver: Driver, keys: InstanceKeys) -> Snapshot:
    """The instance with everything, if that is a page; else as `read_standing` gives it."""
    rows = await driver.scan(*keys.all(), limit=ROWS_MAX)
    if len(rows) == ROWS_MAX:
        return await read_standing(driver, keys)
    stored = StoredRows(rows)
    return parse(keys, stored.between(*keys.range(FIELDS)), stored)


async def read_standing(driver: Driver, keys: InstanceKeys) -> Snapshot:
    """Who has the instance, and what is stored of it beside its history."""
    return parse(keys, await driver.scan(*keys.range(FIELDS)), None)


async def read_about(driver: Driver, keys: InstanceKeys) -> InstanceRows:
    """What is stored of an instance beside its history; false if there is no such instance."""
    return (await read_standing(driver, keys)).about


async def find_unreadable(driver: Driver, keys: InstanceKeys) -> tuple[bytes, bytes | None]:
    """The first row that makes an instance unreadable, and what it holds."""
    for key, raw in await driver.scan(*keys.range(FIELDS)):
        try:
            field = _FIELDS.get(key[len(keys.space) :])
            if field is not None:
                unpack(field, raw)
            elif key == keys.lease:
                Lease.unpack(raw)
        except CodecError:
            return key, raw
    # One is missing. Whatever is written there changes this one.
    head = keys.field(Field.HEAD)
    return head, await driver.get(head)


def parse(keys: InstanceKeys, rows: list[tuple[bytes, bytes]], stored: StoredRows | None = None) -> Snapshot:
    """An instance, from its rows beside its history."""
    start = len(keys.space)
    fields: dict[Field, bytes] = {}
    lease = nudge = None
    sent: dict[bytes, bytes] = {}
    for key, raw in rows:
        place = key[start:]
        if place in _FIELDS:
            fields[_FIELDS[place]] = raw
        elif place == LEASE:
            lease = raw
        elif place == NUDGE:
            nudge = raw
        elif place.startswith(NUDGE):
            sent[key] = raw
    return Snapshot(keys, InstanceRows(fields), None if lease is None else Lease.unpack(lease), nudge, stored, sent)
