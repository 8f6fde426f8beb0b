"""What is done when a store is opened: its format is checked, and what crashed processes have left is cleared."""

from __future__ import annotations

import os
from time import time

from workflow_drivers.foundationdb import _staging, _tokens
from workflow_drivers.foundationdb._binding import Transaction
from workflow_drivers.foundationdb._keys import end_of
from workflow_drivers.foundationdb._reading import get_row, scan_raw
from workflow_drivers.foundationdb._session import Session
from workflow_drivers.foundationdb._staging import unstage
from workflow_drivers.foundationdb._waiting import committed
from workflow_sdk.errors import StorageError

FORMAT = b"1"
"""The version of how things lie under the prefix."""
SWEPT_MAX = 1_000
"""How many leftovers are cleared at one opening. The rest is for the next."""


async def open_store(session: Session) -> None:
    """Write the format into a new store. Raises StorageError if the store has another format."""
    space = session.space

    async def body(transaction: Transaction) -> bytes:
        found = await get_row(transaction, space.format)
        if found is not None:
            return found
        transaction.set(space.format, FORMAT)
        await committed(transaction)
        return FORMAT

    found = await session.run("open the store", body)
    if found != FORMAT:
        raise StorageError(
            f"{session.settings} was written by a newer version: its format is {found!r:.40}, not {FORMAT!r}"
        )


async def sweep(session: Session) -> None:
    """Clear what crashed processes have left behind long ago."""
    space = session.space

    async def old_slots(transaction: Transaction) -> None:
        # From the snapshot, or every commit of others would conflict with this. From a random place on, since there may
        # be more slots in use than are looked at, and the next opening has to get to others.
        start = space.tokens + os.urandom(1)
        ranges = ((start, end_of(space.tokens)), (space.tokens, start))
        old: list[bytes] = []
        for begin, end in ranges:
            rows = await scan_raw(session, transaction.snapshot, begin, end, SWEPT_MAX)
            old += [key for key, value in rows if _tokens.is_old(value, time())]
        for key in old:
            # If its driver lives after all, and writes to it now, this fails, and the slot stays.
            transaction.add_read_conflict_key(key)
            transaction.clear(key)
        if old:
            await committed(transaction)

    async def old_staged(transaction: Transaction) -> list[bytes]:
        rows = await scan_raw(session, transaction.snapshot, space.staged, end_of(space.staged), SWEPT_MAX)
        return [key[len(space.staged) :] for key, value in rows if _staging.is_old(value, time())]

    await session.run("sweep", old_slots)
    await unstage(session, await session.run("sweep", old_staged))
