"""From a plan to the calls of a transaction, and what has to be read for it.

The chunks of a large value that is overwritten or cleared are cleared in the same transaction. To find them, the keys
that have large values are kept a second time, in a range of their own that holds nothing else and is mostly empty: it
is read at the keys that are written. As long as no large value was ever stored, not even that is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from workflow_drivers.foundationdb._binding import Transaction, get_range, rows_of
from workflow_drivers.foundationdb._plan import Plan
from workflow_drivers.foundationdb._reading import get_row, scan_raw
from workflow_drivers.foundationdb._session import Session
from workflow_drivers.foundationdb._tokens import Token
from workflow_drivers.foundationdb._values import Blob
from workflow_drivers.foundationdb._waiting import all_ready, ready

POINTS_MAX = 16
"""More keys than this are looked for in one range, as there will hardly be anything in it."""
IN_RANGE_MAX = 200

# Every commit would read the same key, so each driver remembers the answer. What it costs: in the first seconds after
# the first large value of a store, another driver that overwrites it leaves its chunks there; they go when something
# is written at that key again.
NO_LARGE_SECONDS = 10.0


class LargeValues:
    """Whether there are large values, and where."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.exist = False
        self._asked = float("-inf")

    async def look(self, transaction: Transaction, plan: Plan) -> list[tuple[bytes, bytes]]:
        """The large values that the plan overwrites or clears: their keys, and the ids of their chunks."""
        space = self._session.space
        if not self.exist and monotonic() - self._asked > NO_LARGE_SECONDS:
            self.exist = await get_row(transaction.snapshot, space.has_large) is not None
            self._asked = monotonic()
        if not self.exist and not plan.blobs:
            return []
        found: list[tuple[bytes, bytes]] = []
        skip = len(space.large)
        for begin, end in plan.ranges:
            # Not of the snapshot: whoever stores a large value there meanwhile must not be cleared without its chunks.
            rows = await scan_raw(self._session, transaction, space.large + begin, space.large + end)
            found += [(key[skip:], id) for key, id in rows]
        # Of the snapshot: what is overlooked here keeps its key among the large, and is found by the next who writes.
        # What is found is held to be there still, when it is cleared.
        points = [*plan.clears, *(key for key, _ in plan.sets)]
        return found + await self._at(transaction, points)

    async def _at(self, transaction: Transaction, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        base = self._session.space.large
        if len(keys) > POINTS_MAX:
            first, last = base + min(keys), base + max(keys) + b"\x00"
            reads, binding = transaction.snapshot, self._session.binding
            future = get_range(binding, reads, first, last, IN_RANGE_MAX, False, None, 1)
            await ready(future)
            rows, more = rows_of(future)
            if not more and len(rows) < IN_RANGE_MAX:
                wanted = set(keys)
                found = [(row.key[len(base) :], row.value) for row in rows]
                return [(key, id) for key, id in found if key in wanted]
        futures = [transaction.snapshot.get(base + key) for key in keys]
        await all_ready(futures)
        return [(key, id) for key, future in zip(keys, futures, strict=True) if (id := future.value) is not None]


def write(
    session: Session,
    transaction: Transaction,
    plan: Plan,
    large: Sequence[tuple[bytes, bytes]],
    is_first_large: bool,
    token: Token,
) -> None:
    """Make the writes of the plan. `large`: what was found of large values that go with them."""
    space = session.space
    for begin, end in plan.ranges:
        transaction.clear_range(space.rows + begin, space.rows + end)
    for key in plan.clears:
        transaction.clear(space.rows + key)
    for key, id in large:
        # Whoever replaces the value at the same time has found the same chunks, and the second has to clear those of
        # the first. Before the write, or it would have no effect.
        transaction.add_read_conflict_key(space.large + key)
        transaction.clear(space.large + key)
        transaction.clear_range(*space.chunks_of(id))
    for key, row in plan.sets:
        if isinstance(row, bytes):
            transaction.set(space.rows + key, row)
        else:
            # The same, of two who store a large value where there was none.
            transaction.add_read_conflict_key(space.large + key)
            transaction.set(space.rows + key, row.about.row)
            transaction.set(space.large + key, row.about.id)
    for place, place_among_large, row in plan.appends:
        if isinstance(row, bytes):
            transaction.set_versionstamped_key(place, row)
        else:
            transaction.set_versionstamped_key(place, row.about.row)
            transaction.set_versionstamped_key(place_among_large, row.about.id)
    if plan.blobs and is_first_large:
        transaction.set(space.has_large, b"")
    for blob in plan.blobs:
        if plan.is_staged:
            transaction.clear(space.staged + blob.about.id)
        else:
            _write_chunks(session, transaction, blob)
    transaction.set(token.key, token.value)


def _write_chunks(session: Session, transaction: Transaction, blob: Blob) -> None:
    for number, chunk in enumerate(blob.chunks()):
        transaction.set(session.space.chunk(blob.about.id, number), chunk)
