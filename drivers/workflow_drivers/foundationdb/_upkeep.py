"""What is done when a store is opened: see that the cluster answers and the store is ours, and sweep."""

from __future__ import annotations

import os
from time import time

from workflow_drivers.foundationdb import _staging, _tokens
from workflow_drivers.foundationdb._binding import Transaction
from workflow_drivers.foundationdb._keys import end_of
from workflow_drivers.foundationdb._reading import get_row, scan_raw
from workflow_drivers.foundationdb._session import Session
from workflow_drivers.foundationdb._staging import unstage
from workflow_drivers.foundationdb._waiting import ready
from workflow_sdk.errors import StorageError

FORMAT = b"1"
"""Of what lies under the prefix; another number if that changes."""
SWEPT_MAX = 1_000
"""At one opening. What is left is for the next."""


async def open_store(session: Session) -> None:
    """Write the format, or find that it is ours; StorageError if it isn't."""
    space = session.space

    async def body(transaction: Transaction) -> bytes:
        found = await get_row(transaction, space.format)
        if found is not None:
            return found
        transaction.set(space.format, FORMAT)
        future = transaction.commit()
        await ready(future)
        future.wait()
        return FORMAT

    found = await session.run("open the store", body)
    if found != FORMAT:
        raise StorageError(
            f"{session.settings} was written by a newer version: its format is {found!r:.40}, not {FORMAT!r}"
        )


async def sweep(session: Session) -> None:
    """Clear what processes that crashed have left behind, long ago."""
    space = session.space

    async def old_slots(transaction: Transaction) -> None:
        # Of the snapshot, as slots are written all the time. And from anywhere on, as it may be only a part of them.
        start = space.tokens + os.urandom(1)
        ranges = ((start, end_of(space.tokens)), (space.tokens, start))
        old: list[bytes] = []
        for begin, end in ranges:
            rows = await scan_raw(session, transaction.snapshot, begin, end, SWEPT_MAX)
            old += [key for key, value in rows if _tokens.is_old(value, time())]
        for key in old:
            # Whoever has it after all, and writes to it now, keeps it.
            transaction.add_read_conflict_key(key)
            transaction.clear(key)
        if old:
            future = transaction.commit()
            await ready(future)
            future.wait()

    async def old_staged(transaction: Transaction) -> list[bytes]:
        rows = await scan_raw(session, transaction.snapshot, space.staged, end_of(space.staged), SWEPT_MAX)
        return [key[len(space.staged) :] for key, value in rows if _staging.is_old(value, time())]

    await session.run("sweep", old_slots)
    await unstage(session, await session.run("sweep", old_staged))
