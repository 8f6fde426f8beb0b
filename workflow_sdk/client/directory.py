"""Listing instances in order of time, which merges the shards of the directory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from workflow_sdk.changes.instances import read_about
from workflow_sdk.client.info import InstanceInfo, Page, after_cursor, read_info
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, InstanceNotFoundError
from workflow_sdk.rows.keys import DIRECTORY, InstanceKeys, last_of, shards_of
from workflow_sdk.rows.location import pack
from workflow_sdk.rows.status import Status
from workflow_sdk.values import Codec


class Merged:
    """The keys of several ranges, merged in the order of what follows the prefix of each range."""

    def __init__(self, driver: Driver, prefixes: Sequence[bytes], begin: bytes, end: bytes, *, page: int) -> None:
        self._driver = driver
        self._prefixes = prefixes
        self._begins = [prefix + begin for prefix in prefixes]
        self._ends = [prefix + end for prefix in prefixes]
        self._page = page
        self._heap: list[tuple[bytes, int]] = []
        self._left = [0] * len(prefixes)
        """For each range, how many of the keys that were read have not been returned yet."""
        self._more = [True] * len(prefixes)
        self._is_begun = False

    async def some(self, most: int) -> list[bytes]:
        """Return the next keys, at most `most`."""
        keys: list[bytes] = []
        while len(keys) < most and (found := await self.next()) is not None:
            keys.append(found[0])
        return keys

    async def next(self) -> tuple[bytes, bytes] | None:
        """Return the next key and what follows its prefix; None at the end."""
        if not self._is_begun:
            self._is_begun = True
            for number in range(len(self._prefixes)):
                await self._read(number)
        if not self._heap:
            return None
        suffix, number = heappop(self._heap)
        self._left[number] -= 1
        if not self._left[number] and self._more[number]:
            await self._read(number)
        return self._prefixes[number] + suffix, suffix

    async def _read(self, number: int) -> None:
        rows = await self._driver.scan(self._begins[number], self._ends[number], limit=self._page)
        start = len(self._prefixes[number])
        for key, _ in rows:
            heappush(self._heap, (key[start:], number))
        self._left[number] = len(rows)
        self._more[number] = len(rows) == self._page
        if rows:
            self._begins[number] = rows[-1][0] + b"\x00"


async def first_time(driver: Driver, begin: bytes, end: bytes, time_of: Callable[[bytes], float]) -> float | None:
    """The time in the first key of a range; None if there is none. Keys that this library did not write are skipped."""
    while rows := await driver.scan(begin, end, limit=1):
        try:
            return time_of(rows[0][0])
        except CodecError:
            begin = rows[0][0] + b"\x00"
    return None


_log = logging.getLogger("workflow_sdk.runtime")


class Wanted(Struct, frozen=True):
    """The filters of a list: an instance is listed if it matches all that are not None."""

    workflow: str | None = None
    status: Status | None = None
    reference: str | None = None

    @property
    def part(self) -> bytes:
        """The part of the directory that has all instances that match, and the fewest others."""
        if self.reference is not None:
            return pack((4, self.reference))
        if self.status is not None:
            return pack((2, self.status.value))
        return pack((1,)) if self.workflow is None else pack((3, self.workflow))

    def has(self, info: InstanceInfo) -> bool:
        """Whether an instance matches."""
        if self.status is not None and info.status is not self.status:
            return False
        return self.workflow in (None, info.workflow) and self.reference in (None, info.reference)


async def list_instances(
    driver: Driver, codec: Codec, wanted: Wanted, *, created_after: float | None, limit: int, cursor: str | None
) -> Page[InstanceInfo]:
    """A page of instances, oldest first."""
    part, begin = wanted.part, b""
    if created_after is not None:
        # After every key with that time, whatever its id.
        begin = pack((created_after,)) + b"\xff"
    if cursor is not None:
        begin = after_cursor(cursor, part)
    rows = Merged(driver, shards_of(DIRECTORY + part), begin, b"\xff", page=max(8, limit // 8))
    items: list[InstanceInfo] = []
    while (found := await rows.next()) is not None:
        key, suffix = found
        info = await _read(driver, last_of(key), codec)
        # The instance may have changed since the row was read.
        if info is not None and wanted.has(info):
            items.append(info)
            if len(items) == limit:
                return Page(items, (part + suffix).hex())
    return Page(items, None)


async def _read(driver: Driver, id: str, codec: Codec) -> InstanceInfo | None:
    """An instance; None if it was deleted since its row was read, or if it is damaged, which is logged."""
    try:
        return await read_info(driver, id, codec)
    except InstanceNotFoundError:
        return None
    except CodecError as error:
        if await _can_be_read(driver, id):
            raise  # it is a value, and this reader lacks its codec
        _log.warning("instance %s is not listed, as it can't be read: %s", id, error)
        return None


async def _can_be_read(driver: Driver, id: str) -> bool:
    """Whether the engine's rows of an instance can be read. The values of authors are not looked at."""
    try:
        await read_about(driver, InstanceKeys(id))
    except CodecError:
        return False
    return True
