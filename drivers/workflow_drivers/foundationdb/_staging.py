"""Large values that are too large together: their chunks are written ahead, in transactions of their own.

Nobody sees them before the commit that makes them a value of a key. Until then their ids are listed, with the time; the
commit takes them off the list, and does not happen if they are not on it any more. What stays on it, because a process
died in between, is cleared by who opens the store later.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time

from workflow_drivers.foundationdb._binding import Transaction
from workflow_drivers.foundationdb._session import Session
from workflow_drivers.foundationdb._values import Blob
from workflow_drivers.foundationdb._waiting import all_ready, ready
from workflow_sdk.errors import StorageError

STAGED_OLD_SECONDS = 3_600.0
"""Much longer than anybody's `timeout`."""
TRANSACTION_CHUNKS = 10
"""A megabyte at a time, as FoundationDB's makers recommend."""
_TIME_BYTES = 8


async def stage(session: Session, blobs: Sequence[Blob]) -> None:
    """Write the chunks. Each transaction has the time of a whole operation, since so much may take a while."""
    for blob in blobs:
        chunks = list(blob.chunks())
        for start in range(0, len(chunks), TRANSACTION_CHUNKS):
            part = chunks[start : start + TRANSACTION_CHUNKS]

            async def body(
                transaction: Transaction, blob: Blob = blob, start: int = start, part: list[bytes] = part
            ) -> None:
                # Done twice it is the same, so it does not matter what becomes of a commit without an answer.
                transaction.set(session.space.staged + blob.about.id, int(time()).to_bytes(_TIME_BYTES, "big"))
                for number, chunk in enumerate(part, start):
                    transaction.set(session.space.chunk(blob.about.id, number), chunk)
                future = transaction.commit()
                await ready(future)
                future.wait()

            await session.run("write a large value", body)


async def check_staged(session: Session, transaction: Transaction, blobs: Sequence[Blob]) -> None:
    """Hold the transaction to the chunks being there when it commits."""
    futures = [transaction.get(session.space.staged + blob.about.id) for blob in blobs]
    await all_ready(futures)
    if any(future.value is None for future in futures):
        raise StorageError(
            f"{session.settings}: large values that had been written ahead were cleared before the commit came, which "
            f"was more than {STAGED_OLD_SECONDS:g} s later; nothing was written"
        )


async def unstage(session: Session, ids: Sequence[bytes]) -> None:
    """Clear chunks that will not be needed. Those that a commit has taken off the list meanwhile stay."""
    for id in ids:

        async def body(transaction: Transaction, id: bytes = id) -> None:
            listed = transaction.get(session.space.staged + id)
            await ready(listed)
            if listed.value is not None:
                transaction.clear(session.space.staged + id)
                transaction.clear_range(*session.space.chunks_of(id))
                future = transaction.commit()
                await ready(future)
                future.wait()

        await session.run("clear a large value", body)


def is_old(value: bytes, now: float) -> bool:
    """Whether what was listed with this value has been forgotten."""
    return now - int.from_bytes(value, "big") > STAGED_OLD_SECONDS
