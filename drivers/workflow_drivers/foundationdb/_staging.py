"""Values that are too large together for one transaction: their chunks are written ahead, in transactions of their own.

Nobody sees the chunks before the commit that makes them the value of a key. Until then, their ids are on a list, with
the time. The commit takes them off the list, and fails if they are not on it any more. If a process dies in between,
they stay on the list, and whoever opens the store later clears them.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time

from workflow_drivers.foundationdb._binding import Transaction
from workflow_drivers.foundationdb._reading import get_row
from workflow_drivers.foundationdb._session import Session
from workflow_drivers.foundationdb._values import Blob
from workflow_drivers.foundationdb._waiting import all_ready, committed
from workflow_sdk.errors import StorageError

STAGED_OLD_SECONDS = 3_600.0
"""Much longer than anybody's `timeout`."""
TRANSACTION_CHUNKS = 10
"""A megabyte at a time, as FoundationDB's makers recommend."""
_TIME_BYTES = 8


async def stage(session: Session, blobs: Sequence[Blob]) -> None:
    """Write the chunks. Each transaction may take as long as a whole operation, since this is much to write."""
    for blob in blobs:
        chunks = list(blob.chunks())
        for start in range(0, len(chunks), TRANSACTION_CHUNKS):
            part = chunks[start : start + TRANSACTION_CHUNKS]

            async def body(
                transaction: Transaction, blob: Blob = blob, start: int = start, part: list[bytes] = part
            ) -> None:
                # Writing this twice changes nothing, so a commit without an answer is simply tried again.
                transaction.set(session.space.staged + blob.about.id, int(time()).to_bytes(_TIME_BYTES, "big"))
                for number, chunk in enumerate(part, start):
                    transaction.set(session.space.chunk(blob.about.id, number), chunk)
                await committed(transaction)

            await session.run("write a large value", body)


async def check_staged(session: Session, transaction: Transaction, blobs: Sequence[Blob]) -> None:
    """Have the transaction fail unless the chunks are still there when it commits."""
    futures = [transaction.get(session.space.staged + blob.about.id) for blob in blobs]
    await all_ready(futures)
    if any(future.value is None for future in futures):
        raise StorageError(
            f"{session.settings}: large values that had been written ahead were cleared before the commit came, which "
            f"was more than {STAGED_OLD_SECONDS:g} s later; nothing was written"
        )


async def unstage(session: Session, ids: Sequence[bytes]) -> None:
    """Clear chunks that are not needed any more. Those that a commit has taken off the list meanwhile stay."""
    for id in ids:

        async def body(transaction: Transaction, id: bytes = id) -> None:
            if await get_row(transaction, session.space.staged + id) is not None:
                transaction.clear(session.space.staged + id)
                transaction.clear_range(*session.space.chunks_of(id))
                await committed(transaction)

        await session.run("clear a large value", body)


def is_old(value: bytes, now: float) -> bool:
    """Whether chunks that were listed with this value were written by a process that is gone by now."""
    return now - int.from_bytes(value, "big") > STAGED_OLD_SECONDS
