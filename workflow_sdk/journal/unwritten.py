"""The changes of one instance that the store does not know yet.

A flush takes the changed rows as they are. Rows that change while these are being written go with the next flush. If
the write fails, all of them count as changed again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from msgspec import Struct, field

from workflow_sdk.journal.names import Names
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.instance import Tally
from workflow_sdk.rows.keys import DIRECTORY, FIELDS, HISTORY, Field, InstanceKeys, field_key
from workflow_sdk.rows.location import segments
from workflow_sdk.rows.status import EntryStatus

# A set of keys, as ranges that are merged where they touch.


class Ranges:
    """A set of keys, given as ranges. To look up a key costs little, however many ranges there are."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        # The ranges are sorted, and do not touch each other.
        self._begins: list[bytes] = []
        self._ends: list[bytes] = []

    def add(self, begin: bytes, end: bytes) -> None:
        """Add the keys from `begin` up to `end`, which is not included."""
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self._begins, key)
        return at > 0 and key < self._ends[at - 1]

    def __len__(self) -> int:
        return len(self._begins)


Range = tuple[bytes, bytes]


class WriteSet(Struct):
    """The writes of one commit: first the ranges are cleared, then the rows are stored (None: cleared)."""

    clears: list[Range] = field(default_factory=list[Range])
    rows: dict[bytes, bytes | None] = field(default_factory=dict[bytes, "bytes | None"])
    checks: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """The rows that the commit checks: messages that it takes, since they may have been discarded meanwhile."""
    counts: bool = False
    """Whether the commit changes the instance. To be run again, and to wait for the same again, changes nothing."""


FEW = 16
"""Up to so many changed rows, each range that is cleared is applied to them at once."""

_TALLY = field_key(Field.TALLY)


class Late:
    """A row that holds the version of the instance after its own commit, and so is packed at the last moment."""

    __slots__ = ("pack",)

    def __init__(self, pack: Callable[[int], bytes]) -> None:
        self.pack: Callable[[int], bytes] = pack


# Shared by all, and never written to.
_NOTHING_CHECKED: dict[bytes, bytes] = {}
_NOTHING_CLEARED: list[Range] = []
_NOTHING_BEFORE: list[tuple[int, dict[bytes, Entry | Late | bytes | None]]] = []


class Unwritten:
    """Rows to be written and ranges to be cleared, in the order in which they were changed."""

    __slots__ = ("_before", "_checks", "_clears", "_keys", "_space", "counts", "rows", "taken", "version", "weight")

    def __init__(self, keys: InstanceKeys) -> None:
        self._keys = keys
        self._space = keys.space
        self.rows: dict[bytes, Entry | Late | bytes | None] = {}
        """The changed rows, by their keys; None: to be cleared."""
        self.counts: bool = False
        """Whether one of the changes is of the instance itself. To be run again, and to wait for the same again, is
        none."""
        self.weight: int = 0
        """About how many bytes of values the next flush will write."""
        self.version: int = 0
        """How many commits have changed the instance."""
        self.taken: int = 0
        """How many messages the instance has taken."""
        self._clears: list[Range] = _NOTHING_CLEARED
        self._checks: dict[bytes, bytes] = _NOTHING_CHECKED
        self._before: list[tuple[int, dict[bytes, Entry | Late | bytes | None]]] = _NOTHING_BEFORE
        """Older changed rows, each group with the number of the first clear that came after it."""

    def write(self, key: bytes, value: bytes | None) -> None:
        """Write a row in the instance's own space, by its key in that space."""
        self.counts = True
        self.rows[self._space + key] = value

    def check(self, key: bytes, expected: bytes) -> None:
        """Have the next commit check that a row is as it was read."""
        if self._checks is _NOTHING_CHECKED:
            self._checks = {}
        self._checks[key] = expected

    def uncheck(self, key: bytes) -> None:
        """Drop the check of a row."""
        self._checks.pop(key, None)

    @property
    def is_dirty(self) -> bool:
        """Whether there is something that the store does not know."""
        return bool(self.rows or self._clears or self._before)

    def touch(self) -> None:
        """Count the next commit as one that changes the instance."""
        self.counts = True

    def clear(self, cleared: Range, *, counts: bool = True) -> None:
        self.counts = self.counts or counts
        if len(self.rows) <= FEW:
            begin, end = cleared
            for key in [key for key in self.rows if begin <= key < end]:
                del self.rows[key]
        else:
            # There may be thousands of rows and of clears. Which rows are cleared is found out once, in `_rows_left`.
            if self._before is _NOTHING_BEFORE:
                self._before = []
            self._before.append((len(self._clears), self.rows))
            self.rows = {}
        if self._clears is _NOTHING_CLEARED:
            self._clears = []
        self._clears.append(cleared)

    def _rows_left(self) -> dict[bytes, Entry | Late | bytes | None]:
        """The changed rows, without those that were cleared since they were written."""
        if not self._before:
            return self.rows
        cleared = Ranges()
        at = len(self._clears)
        left: list[dict[bytes, Entry | Late | bytes | None]] = [self.rows]
        for first, rows in reversed(self._before):
            for begin, end in self._clears[first:at]:
                cleared.add(begin, end)
            at = first
            left.append({key: row for key, row in rows.items() if key not in cleared})
        self._before = _NOTHING_BEFORE
        self.rows = {}
        for rows in reversed(left):
            self.rows.update(rows)
        return self.rows

    def take(self) -> WriteSet:
        """Return all changes as they are now, and forget them."""
        counts = self.counts
        if counts:
            self.version += 1
        rows: dict[bytes, bytes | None] = {}
        late: list[tuple[bytes, Late]] = []
        for key, row in (self._rows_left() if self._before else self.rows).items():
            if type(row) is Entry:
                if row.status is EntryStatus.WAITING and not row.since:
                    row.since = self.version
                rows[key] = row.pack()
            elif type(row) is Late:
                late.append((key, row))
            else:
                rows[key] = row  # type: ignore[assignment]  # `type() is` is the hot path's isinstance
        for key, tells in late:  # after the entries, which by now know since when they wait
            rows[key] = tells.pack(self.version)
        if counts:
            rows[self._space + _TALLY] = Tally(self.version, self.taken).pack()
        clears, checks = self._clears, self._checks
        self.rows = {}
        self._clears = _NOTHING_CLEARED
        self._checks = _NOTHING_CHECKED
        self.counts = False
        self.weight = 0
        return WriteSet(clears, rows, checks, counts)

    def discard(self, *, keep_fields: bool = False) -> None:
        """Forget the changes, since the code that made them was wrong; none of them had an effect outside.

        With `keep_fields`, changes of the rows beside the history and of the directory are kept, such as the status.
        """
        begin, end = self._keys.range(FIELDS)
        self.rows = {
            key: row
            for key, row in self._rows_left().items()
            if keep_fields and (begin <= key < end or key.startswith(DIRECTORY))
        }
        self._clears = _NOTHING_CLEARED
        self._checks = _NOTHING_CHECKED
        self.counts = False

    def name_row(self, key: bytes, raw: bytes, names: Names) -> str:
        """What a row holds, in words for people."""
        rest = key.removeprefix(self._space)
        if rest is key or not key.startswith(self._space):
            return "what it writes outside of itself"
        if rest.startswith(HISTORY):
            *_, last = segments(rest[len(HISTORY) :])
            index, number = last if isinstance(last, tuple) else (last, None)
            name = names.texts.get(index, "?")
            kind = Entry.unpack(raw).kind.value
            return f"{kind} {name!r}" if number is None else f"{kind} {number} of {name!r}"
        named = [field.name.lower() for field in Field if rest == field_key(field)]
        return f"its {named[0]}" if named else "what it keeps beside its history"

    def restore(self, failed: WriteSet) -> None:
        """Take back the changes of a write that has failed. Those that were made since then are newer, and win."""
        if failed.counts:
            self.version -= 1
            self.counts = True
        count = len(failed.clears)
        self._before = [(count, {**failed.rows}), *((count + at, rows) for at, rows in self._before)]
        self._clears = failed.clears + self._clears
        if failed.checks or self._checks:
            # Checks of rows that the failed write was to store are dropped: these rows are not in the store.
            unwritten = {key for key in self._checks if failed.rows.get(key) is not None}
            self._checks = failed.checks | {k: raw for k, raw in self._checks.items() if k not in unwritten}
