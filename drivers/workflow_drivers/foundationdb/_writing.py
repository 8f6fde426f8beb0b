"""From a plan to the calls of a transaction, and what has to be read for it.

The chunks of a large value that is overwritten or cleared are cleared in the same transaction. To find them, the keys
that have large values are kept a second time, in a range of their own, which is mostly empty. It is read at the keys
that are written. As long as no large value was ever stored, it is not read at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from workflow_drivers.foundationdb._binding import Transaction, get_range, rows_of
from workflow_drivers.foundationdb._keys import Space
from workflow_drivers.foundationdb._plan import Plan
from workflow_drivers.foundationdb._reading import get_row, scan_raw
from workflow_drivers.foundationdb._session import Session
from workflow_drivers.foundationdb._tokens import Token
from workflow_drivers.foundationdb._waiting import all_ready, ready

POINTS_MAX = 16
"""More keys than this are not asked for one by one: the range around them is read, which is mostly empty."""
IN_RANGE_MAX = 200

# How long a driver remembers that there are no large values, since every commit would read the same key. The cost: in
# the first seconds after the first large value of a store, another driver that overwrites it leaves its chunks there.
# They are cleared when something is written at that key again.
NO_LARGE_SECONDS = 10.0


class LargeValues:
    """Finds the large values that a plan overwrites or clears."""

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
            # Not from the snapshot: if somebody stores a large value there meanwhile, this commit has to conflict. Else
            # it would clear the value and leave its chunks.
            rows = await scan_raw(self._session, transaction, space.large + begin, space.large + end)
            found += [(key[skip:], id) for key, id in rows]
        # From the snapshot: a value that is overlooked here stays listed as large, and is found by the next commit that
        # writes there. A value that is found has to be there still at the commit, which `_clear` sees to.
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
    """Make the writes of the plan, and clear the chunks of the `large` values that it overwrites or clears."""
    _clear(session.space, transaction, plan, large)
    _set(session.space, transaction, plan)
    if plan.blobs and is_first_large:
        transaction.set(session.space.has_large, b"")
    for blob in plan.blobs:
        if plan.is_staged:
            transaction.clear(session.space.staged + blob.about.id)
        else:
            for number, chunk in enumerate(blob.chunks()):
                transaction.set(session.space.chunk(blob.about.id, number), chunk)
    transaction.set(token.key, token.value)


def _clear(space: Space, transaction: Transaction, plan: Plan, large: Sequence[tuple[bytes, bytes]]) -> None:
    for begin, end in plan.ranges:
        transaction.clear_range(space.rows + begin, space.rows + end)
    for key in plan.clears:
        transaction.clear(space.rows + key)
    for key, id in large:
        # Another commit that replaces the value at the same time has found the same chunks. The second one has to clear
        # the chunks of the first instead, so it must conflict. Before the write, or this would have no effect.
        transaction.add_read_conflict_key(space.large + key)
        transaction.clear(space.large + key)
        transaction.clear_range(*space.chunks_of(id))


def _set(space: Space, transaction: Transaction, plan: Plan) -> None:
    for key, row in plan.sets:
        if isinstance(row, bytes):
            transaction.set(space.rows + key, row)
        else:
            # As above, of two commits that store a large value where there was none.
            transaction.add_read_conflict_key(space.large + key)
            transaction.set(space.rows + key, row.about.row)
            transaction.set(space.large + key, row.about.id)
    for place, place_among_large, row in plan.appends:
        if isinstance(row, bytes):
            transaction.set_versionstamped_key(place, row)
        else:
            transaction.set_versionstamped_key(place, row.about.row)
            transaction.set_versionstamped_key(place_among_large, row.about.id)
