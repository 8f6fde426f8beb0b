"""From a batch to a plan: what is to be written, in which order, at which keys, and whether it fits.

The writes of a batch take effect in their order. They are reduced to what is left of them in the end: first all that is
cleared, then all that is set. An append whose range is cleared later in the batch is dropped, since the transaction
could not clear it: its key is known only after the commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sortedcontainers import SortedDict

from workflow_drivers.foundationdb._keys import APPENDED_MARK, VERSIONSTAMP_BYTES, Space
from workflow_drivers.foundationdb._values import HEADER_BYTES, Blob, blob, is_large, whole
from workflow_sdk.driver import Append, Batch, ClearRange, Set, Write, check_limits
from workflow_sdk.errors import StorageLimitError

TRANSACTION_BYTES_MAX = 10_000_000
"""FoundationDB's limit, of keys, values and conflict ranges together."""
APPENDS_MAX = 65_536
"""The appends of a batch are told apart by two bytes after the versionstamp."""

# How many bytes the client counts, beside keys and values, for a write, for a checked read, and for the whole. Rather
# too many: what passes here must not be refused later.
_WRITE_BYTES = 150
_READ_BYTES = 80
_COMMIT_BYTES = 2_000


@dataclass(slots=True)
class Plan:
    """What a transaction has to check and to write for a batch."""

    checks: list[tuple[bytes, bytes | None]] = field(default_factory=list[tuple[bytes, bytes | None]])
    ranges: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    """Ranges of keys of the store that are cleared, with the values in chunks that are in them."""
    clears: list[bytes] = field(default_factory=list[bytes])
    """Keys of the store that are cleared."""
    sets: list[tuple[bytes, bytes | Blob]] = field(default_factory=list[tuple[bytes, bytes | Blob]])
    """Keys of the store, and the rows that are set there."""
    appends: list[tuple[bytes, bytes, bytes | Blob]] = field(default_factory=list[tuple[bytes, bytes, bytes | Blob]])
    """Where among the rows, where among the keys with large values, and the row."""
    blobs: list[Blob] = field(default_factory=list[Blob])
    is_staged: bool = False
    """Whether the blobs are written ahead, since they would be too much for one transaction."""

    is_shared: bool = False
    """Whether an author writes in the same transaction."""

    @property
    def is_marked(self) -> bool:
        """Whether the commit writes anything, so that it matters whether it was applied."""
        return self.is_shared or self.writes

    @property
    def writes(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.ranges or self.clears or self.sets or self.appends)


def plan_of(batch: Batch, space: Space) -> Plan:
    """The plan of a batch. Raises StorageLimitError, which names the limit, if a part or all is too large."""
    check_limits(batch)
    found = Plan([(space.row(key), expected) for key, expected in batch.checks])
    left = _Left(space, found.ranges)
    for write in batch.writes:
        left.add(write)
    if left.appended > APPENDS_MAX:
        raise StorageLimitError(
            f"a batch of {left.appended:,} appends is over the limit of {APPENDS_MAX:,}; nothing was written"
        )
    for key, value in left.sets.items():
        if value is None:
            found.clears.append(key)
        else:
            found.sets.append((key, _row(value, found)))
    for prefix, number, value in left.appends:
        row, large = space.appended(prefix, number)
        found.appends.append((row, large, _row(value, found)))
    _check_size(found, space)
    return found


class _Left:
    """What is left in the end of the writes of a batch. Each is added to what the ones before it have left."""

    def __init__(self, space: Space, ranges: list[tuple[bytes, bytes]]) -> None:
        self._space = space
        self.ranges = ranges
        self.sets: SortedDict[bytes, bytes | None] = SortedDict()
        """The keys that are set, and those that are cleared (None)."""
        self.appends: list[tuple[bytes, int, bytes]] = []
        """Prefixes, numbers and values."""
        self.appended = 0
        """How many appends there were, also those that were cleared again."""

    def add(self, write: Write) -> None:
        """Take in the next write. Raises StorageLimitError if its key is too long, even if it is cleared later."""
        kind = type(write)
        if kind is Append:
            self._space.appended(write[0], 0)
            self.appends.append((write[0], self.appended, write[-1]))
            self.appended += 1
        elif kind is ClearRange:
            self._clear_range(write[0], write[-1])
        else:
            self._space.row(write[0])
            self.sets[write[0]] = write[-1] if kind is Set else None

    def _clear_range(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        for key in list(self.sets.irange(begin, end, (True, False))):
            del self.sets[key]
        # The keys of appends are not known yet. They come after all that are there, as does what stands for them here.
        self.appends = [append for append in self.appends if not begin <= _last(append[0]) < end]
        self.ranges.append((begin, end))


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
    # What is cleared is cleared twice, among the large as well, and each key is in a write and in a conflict range.
    size += sum(4 * (len(begin) + len(end) + 2 * overhead) + 3 * _WRITE_BYTES for begin, end in found.ranges)
    size += sum(4 * (len(key) + overhead) + _WRITE_BYTES for key in found.clears)
    size += sum(_set_bytes(len(key) + overhead, row) for key, row in found.sets)
    size += sum(_append_bytes(len(place), row) for place, _, row in found.appends)
    chunks = sum(len(blob.value) + blob.about.count * (3 * (overhead + 20) + _WRITE_BYTES) for blob in found.blobs)
    found.is_staged = bool(found.blobs) and size + chunks > TRANSACTION_BYTES_MAX
    if not found.is_staged:
        size += chunks
    if size > TRANSACTION_BYTES_MAX:
        raise StorageLimitError(
            f"a batch of about {size:,} bytes is over the limit of {TRANSACTION_BYTES_MAX:,} bytes that FoundationDB "
            "has for a transaction, in which keys count several times; nothing was written"
        )


def _set_bytes(key: int, row: bytes | Blob) -> int:
    """The size of a write at a key of this many bytes."""
    if isinstance(row, bytes):
        return 3 * key + len(row) + _WRITE_BYTES
    # The key is also written among the large, and added to what the commit conflicts with.
    return 8 * key + HEADER_BYTES + 3 * _WRITE_BYTES


def _append_bytes(key: int, row: bytes | Blob) -> int:
    """The same of an append."""
    if isinstance(row, bytes):
        return 3 * key + len(row) + _WRITE_BYTES
    return 6 * key + HEADER_BYTES + 2 * _WRITE_BYTES
