"""Reading back what a run has not loaded, or holds no more: the outcomes of many branches, and a loser's history."""

from __future__ import annotations

from workflow_sdk.core.entries import Entry
from workflow_sdk.core.keys import HISTORY, InstanceKeys
from workflow_sdk.core.location import split_last, subtree
from workflow_sdk.core.status import Kind
from workflow_sdk.driver import Driver

__all__ = ["read_branches", "read_page"]

PAGE = 256


async def read_branches(driver: Driver, keys: InstanceKeys, location: bytes) -> dict[bytes, Entry]:
    """The entries of the branches of a join, race or map, by segment; what is in them is skipped."""
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
    """Rows of the history under a location, and where the next page begins; None if this is the last."""
    begin, end = subtree(keys.space + HISTORY + location)
    start = len(keys.space) + len(HISTORY)
    rows = await driver.scan(after or begin, end, limit=PAGE)
    following = rows[-1][0] + b"\x00" if len(rows) == PAGE else None
    return [(key[start:], raw) for key, raw in rows], following
