"""Reads within one transaction, and so of one state: rows, and the values that lie in chunks beside them."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_drivers.foundationdb._binding import Future, Reads, Value, get_range, rows_of
from workflow_drivers.foundationdb._session import Session
from workflow_drivers.foundationdb._values import Large, read
from workflow_drivers.foundationdb._waiting import all_ready, ready
from workflow_sdk.errors import StorageError

CHUNKS_AT_ONCE = 100
"""How many chunks are read together: 10 MB, about as many as the largest value has."""
LIMIT_MAX = 2**31 - 1
"""The largest limit that the library takes: it is an `int` of C, where a larger one would wrap around."""


async def get_row(reads: Reads, key: bytes) -> bytes | None:
    """The row at a key of the cluster."""
    future = reads.get(key)
    await ready(future)
    return future.value


async def get_value(session: Session, reads: Reads, key: bytes) -> bytes | None:
    """The value at a key of the store."""
    row = await get_row(reads, session.space.rows + key)
    if row is None:
        return None
    value = read(row)
    return value if isinstance(value, bytes) else (await _join(session, reads, [value]))[0]


async def scan_raw(
    session: Session, reads: Reads, begin: bytes, end: bytes, limit: int | None = None, reverse: bool = False
) -> list[tuple[bytes, bytes]]:
    """The rows between two keys of the cluster, read page by page."""
    found: list[tuple[bytes, bytes]] = []
    if begin >= end or limit == 0:
        return found
    after: bytes | None = None
    page = 1
    while True:
        left = 0 if limit is None else min(limit - len(found), LIMIT_MAX)
        future = get_range(session.binding, reads, begin, end, left, reverse, after, page)
        await ready(future)
        rows, more = rows_of(future)
        found += [(row.key, row.value) for row in rows]
        if not rows or not more or len(found) == limit:
            return found
        after = rows[-1].key
        page += 1


async def scan_values(
    session: Session, reads: Reads, begin: bytes, end: bytes, limit: int | None, reverse: bool
) -> list[tuple[bytes, bytes]]:
    """The rows between two keys of the store, with their values."""
    base = session.space.rows
    skip = len(base)
    if begin >= end:  # which is a mistake to the binding
        return []
    rows = [
        (key[skip:], read(row)) for key, row in await scan_raw(session, reads, base + begin, base + end, limit, reverse)
    ]
    large = [value for _, value in rows if isinstance(value, Large)]
    joined = iter(await _join(session, reads, large) if large else ())
    return [(key, next(joined) if isinstance(value, Large) else value) for key, value in rows]


async def _join(session: Session, reads: Reads, values: Sequence[Large]) -> list[bytes]:
    """The large values, put together from their chunks. Several are read at once, but not all."""
    found: list[bytes] = []
    group: list[Large] = []
    for value in values:
        if group and sum(other.count for other in group) + value.count > CHUNKS_AT_ONCE:
            found += await _join_at_once(session, reads, group)
            group = []
        group.append(value)
    return found + await _join_at_once(session, reads, group)


async def _join_at_once(session: Session, reads: Reads, values: Sequence[Large]) -> list[bytes]:
    futures: list[list[Value]] = [
        [reads.get(session.space.chunk(value.id, number)) for number in range(value.count)] for value in values
    ]
    flat: list[Future] = [future for chunks in futures for future in chunks]
    await all_ready(flat)
    joined: list[bytes] = []
    for value, chunks in zip(values, futures, strict=True):
        whole = b"".join(future.value or b"" for future in chunks)
        if len(whole) != value.size:
            raise StorageError(f"{session.settings} has lost a part of a value: {len(whole):,} of {value.size:,} bytes")
        joined.append(whole)
    return joined
