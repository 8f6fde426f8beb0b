"""From a batch to a plan: what is to be written, in which order, at which keys, and whether it fits.

The writes of a batch take effect in their order. They are reduced to what is left of them in the end: first all that is
cleared, then all that is set. An append whose range is cleared later in the batch is dropped, since the transaction
could not clear it: its key is known only after the commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from sortedcontainers import SortedDict

from workflow_drivers.foundationdb._keys import APPENDED_MARK, HEADER_BYTES, VERSIONSTAMP_BYTES, Blob, Space, row_of
from workflow_sdk.driver import Append, Batch, ClearRange, Set, check_limits
from workflow_sdk.errors import StorageLimitError

TRANSACTION_BYTES_MAX = 10_000_000  # FoundationDB's limit, of keys, values and conflict ranges together
APPENDS_MAX = 65_536  # the appends of a batch are told apart by two bytes after the versionstamp

# How many bytes the client counts, beside keys and values, for a write, for a checked read, and for the whole. Rather
# too many: what passes here must not be refused later.
_WRITE_BYTES = 150
_READ_BYTES = 80
_COMMIT_BYTES = 2_000

_LAST = APPENDED_MARK + b"\xff" * VERSIONSTAMP_BYTES


@dataclass(slots=True)
class Plan:
    """What a transaction has to check and to write for a batch."""

    checks: list[tuple[bytes, bytes | None]]
    ranges: list[tuple[bytes, bytes]]  # of keys of the store, which are cleared with their values in chunks
    clears: list[bytes]  # keys of the store
    sets: list[tuple[bytes, bytes | Blob]]  # keys of the store, and their rows
    appends: list[tuple[bytes, bytes, bytes | Blob]]  # where among the rows, where among the large, and the row
    blobs: list[Blob] = field(init=False)
    is_staged: bool = False  # whether the blobs are written ahead, since they would be too much for one transaction
    is_shared: bool = False  # whether an author writes in the same transaction

    def __post_init__(self) -> None:
        rows = [row for _, row in self.sets] + [row for _, _, row in self.appends]
        self.blobs = [row for row in rows if isinstance(row, Blob)]

    @property
    def writes(self) -> bool:
        """Whether the commit writes anything, so that it matters whether it was applied."""
        return self.is_shared or bool(self.ranges or self.clears or self.sets or self.appends)


def plan_of(batch: Batch, space: Space) -> Plan:
    """The plan of a batch. Raises StorageLimitError, which names the limit, if a part or all is too large."""
    check_limits(batch)
    appended = sum(type(write) is Append for write in batch.writes)
    if appended > APPENDS_MAX:
        raise StorageLimitError(
            f"a batch of {appended:,} appends is over the limit of {APPENDS_MAX:,}; nothing was written"
        )
    checks = [(space.row(key), expected) for key, expected in batch.checks]
    ranges, left, appends = _reduced(batch, space)
    clears = [key for key, value in left.items() if value is None]
    sets = [(key, row_of(value)) for key, value in left.items() if value is not None]
    plan = Plan(checks, ranges, clears, sets, [(*places, row_of(value)) for _, places, value in appends])
    _check_size(plan, space)
    return plan


def _reduced(
    batch: Batch, space: Space
) -> tuple[list[tuple[bytes, bytes]], SortedDict[bytes, bytes | None], list[tuple[bytes, tuple[bytes, bytes], bytes]]]:
    """What is left of the writes of a batch: cleared ranges; keys set, or cleared (None); appends, with their prefixes.

    Raises StorageLimitError if a key is too long, even if it is cleared later.
    """
    ranges: list[tuple[bytes, bytes]] = []
    left: SortedDict[bytes, bytes | None] = SortedDict()
    appends: list[tuple[bytes, tuple[bytes, bytes], bytes]] = []
    numbers = count()
    for write in batch.writes:
        kind = type(write)
        if kind is Append:
            appends.append((write[0], space.appended(write[0], next(numbers)), write[-1]))
        elif kind is not ClearRange:
            space.row(write[0])
            left[write[0]] = write[-1] if kind is Set else None
        elif (begin := write[0]) < (end := write[-1]):
            for key in list(left.irange(begin, end, (True, False))):
                del left[key]
            # The keys of appends are not known yet. They come after all that are there, as does what stands for them.
            appends = [append for append in appends if not begin <= append[0] + _LAST < end]
            ranges.append((begin, end))
    return ranges, left, appends


def _check_size(plan: Plan, space: Space) -> None:
    overhead = len(space.rows)
    size = _COMMIT_BYTES + sum(2 * len(key) + _READ_BYTES for key, _ in plan.checks)
    # What is cleared is cleared twice, among the large as well, and each key is in a write and in a conflict range.
    size += sum(4 * (len(begin) + len(end) + 2 * overhead) + 3 * _WRITE_BYTES for begin, end in plan.ranges)
    size += sum(4 * (len(key) + overhead) + _WRITE_BYTES for key in plan.clears)
    # The key of a large value is written among the large, too. If it is set, the commit conflicts with others there.
    size += sum(_row_bytes(len(key) + overhead, row, 2) for key, row in plan.sets)
    size += sum(_row_bytes(len(place), row, 1) for place, _, row in plan.appends)
    chunks = sum(len(blob.value) + blob.about.count * (3 * (overhead + 20) + _WRITE_BYTES) for blob in plan.blobs)
    plan.is_staged = bool(plan.blobs) and size + chunks > TRANSACTION_BYTES_MAX
    if not plan.is_staged:
        size += chunks
    if size > TRANSACTION_BYTES_MAX:
        raise StorageLimitError(
            f"a batch of about {size:,} bytes is over the limit of {TRANSACTION_BYTES_MAX:,} bytes that FoundationDB "
            "has for a transaction, in which keys count several times; nothing was written"
        )


def _row_bytes(key: int, row: bytes | Blob, beside: int) -> int:
    """The size of a write at a key of this many bytes, and of the calls that are made beside it if the row is large."""
    if isinstance(row, bytes):
        return 3 * key + len(row) + _WRITE_BYTES
    return (4 + 2 * beside) * key + HEADER_BYTES + (1 + beside) * _WRITE_BYTES
