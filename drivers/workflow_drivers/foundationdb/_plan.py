"""From a batch to what is to be written: in which order, at which keys, and whether it fits.

The writes of a batch take effect in their order. They are reduced to what is left of them in the end, so that all that
is cleared can be cleared first, and then all that is set be set. An append whose range is cleared later in the batch is
dropped here, as nobody could clear it there: its key is known only after the commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sortedcontainers import SortedDict

from workflow_drivers.foundationdb._keys import APPENDED_MARK, VERSIONSTAMP_BYTES, Space
from workflow_drivers.foundationdb._values import HEADER_BYTES, Blob, blob, is_large, whole
from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Set, check_limits
from workflow_sdk.errors import StorageLimitError

TRANSACTION_BYTES_MAX = 10_000_000
"""FoundationDB's limit, of keys, values and conflict ranges together."""
APPENDS_MAX = 65_536
"""They are told apart by two bytes behind the versionstamp of their batch."""

# What a write, a read that is checked, and the whole take beside keys and values: the structures that the client counts
# with them, and the keys of its conflict ranges. Rather too much: what passes here must not be refused later.
_WRITE_BYTES = 150
_READ_BYTES = 80
_COMMIT_BYTES = 2_000


@dataclass(slots=True)
class Plan:
    """What a batch comes to. Keys are those of the cluster."""

    checks: list[tuple[bytes, bytes | None]] = field(default_factory=list[tuple[bytes, bytes | None]])
    ranges: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    """The store's own keys, from and up to: rows and large ones are cleared."""
    clears: list[bytes] = field(default_factory=list[bytes])
    """The store's own keys."""
    sets: list[tuple[bytes, bytes | Blob]] = field(default_factory=list[tuple[bytes, bytes | Blob]])
    """The store's own keys, and their rows."""
    appends: list[tuple[bytes, bytes, bytes | Blob]] = field(default_factory=list[tuple[bytes, bytes, bytes | Blob]])
    """Where in the rows, where among the large, and the row."""
    blobs: list[Blob] = field(default_factory=list[Blob])
    is_staged: bool = False
    """The blobs are written ahead, since all together would be too much for one transaction."""

    is_shared: bool = False
    """There are writes of others in the same transaction."""

    @property
    def is_marked(self) -> bool:
        """Whether its commit leaves something behind, so that it matters what became of it."""
        return self.is_shared or self.writes

    @property
    def writes(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.ranges or self.clears or self.sets or self.appends)


def plan_of(batch: Batch, space: Space) -> Plan:
    """What the batch comes to. StorageLimitError, naming the limit, if it or a part of it is too large."""
    check_limits(batch)
    found = Plan([(space.row(key), expected) for key, expected in batch.checks])
    sets: SortedDict[bytes, bytes | None] = SortedDict()
    appends: list[tuple[bytes, int, bytes]] = []
    appended = 0
    for write in batch.writes:
        kind = type(write)
        if kind is Set or kind is Clear:
            space.row(write[0])  # too long a key fails even if it is cleared again
            sets[write[0]] = write[-1] if kind is Set else None
        elif kind is Append:
            space.appended(write[0], 0)
            appends.append((write[0], appended, write[-1]))
            appended += 1
        elif write[0] < write[-1]:
            _clear_range(ClearRange(write[0], write[-1]), found, sets, appends)
    if appended > APPENDS_MAX:
        raise StorageLimitError(
            f"a batch of {appended:,} appends is over the limit of {APPENDS_MAX:,}; nothing was written"
        )
    for key, value in sets.items():
        if value is None:
            found.clears.append(key)
        else:
            found.sets.append((key, _row(value, found)))
    for prefix, number, value in appends:
        row, large = space.appended(prefix, number)
        found.appends.append((row, large, _row(value, found)))
    _check_size(found, space)
    return found


def _clear_range(
    write: ClearRange, found: Plan, sets: SortedDict[bytes, bytes | None], appends: list[tuple[bytes, int, bytes]]
) -> None:
    for key in list(sets.irange(write.begin, write.end, (True, False))):
        del sets[key]
    # The new keys are not known yet. They are after all that are there, and so is what stands for them here.
    appends[:] = [append for append in appends if not write.begin <= _last(append[0]) < write.end]
    found.ranges.append((write.begin, write.end))


def _last(prefix: bytes) -> bytes:
    return prefix + APPENDED_MARK + b"\xff" * VERSIONSTAMP_BYTES


def _row(value: bytes, found: Plan) -> bytes | Blob:
    if not is_large(value):
        return whole(value)
    made = blob(value)
    found.blobs.append(made)
    return made


def _check_size(found: Plan, space: Space) -> None:
    overhead = len(space.rows)
    size = _COMMIT_BYTES + sum(2 * len(key) + _READ_BYTES for key, _ in found.checks)
    # What is cleared goes twice, among the large as well, and a key is in its write and in its conflict range.
    size += sum(4 * (len(begin) + len(end) + 2 * overhead) + 3 * _WRITE_BYTES for begin, end in found.ranges)
    size += sum(4 * (len(key) + overhead) + _WRITE_BYTES for key in found.clears)
    size += sum(3 * (len(key) + overhead) + _row_bytes(row) + _WRITE_BYTES for key, row in found.sets)
    size += sum(3 * len(row) + _row_bytes(value) + _WRITE_BYTES for row, _, value in found.appends)
    # Where a large value is set, there is a key among the large, which is also watched for what others write to it.
    size += sum(5 * (len(key) + overhead) + 2 * _WRITE_BYTES for key, row in found.sets if not isinstance(row, bytes))
    size += sum(3 * len(row) + _WRITE_BYTES for row, _, value in found.appends if not isinstance(value, bytes))
    chunks = sum(len(blob.value) + blob.about.count * (3 * (overhead + 20) + _WRITE_BYTES) for blob in found.blobs)
    if found.blobs and size + chunks > TRANSACTION_BYTES_MAX:
        found.is_staged = True
    else:
        size += chunks
    if size > TRANSACTION_BYTES_MAX:
        raise StorageLimitError(
            f"a batch of about {size:,} bytes is over the limit of {TRANSACTION_BYTES_MAX:,} bytes that FoundationDB "
            "has for a transaction, in which keys count several times; nothing was written"
        )


def _row_bytes(row: bytes | Blob) -> int:
    return len(row) if isinstance(row, bytes) else HEADER_BYTES
