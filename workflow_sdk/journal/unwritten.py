"""What one instance has changed in memory and the store does not know yet.

A flush takes the changed rows as they stand. What changes while they are being written is changed again afterwards, and
goes with the next flush; if the write fails, everything is changed still.
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
    """The keys in any of a number of ranges. Asking for a key costs little, however many ranges there are."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        # Apart from each other, and in order.
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
    """What one commit writes: first the ranges are cleared, then the rows are stored (None: cleared)."""

    clears: list[Range] = field(default_factory=list[Range])
    rows: dict[bytes, bytes | None] = field(default_factory=dict[bytes, "bytes | None"])
    checks: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Rows that have to be as they were read: messages that are taken, which may have been discarded meanwhile."""
    counts: bool = False
    """Whether it changes the instance: not that it is run, and waits for the same again."""


FEW = 16
"""So many rows are looked through for each range that is cleared."""

_TALLY = field_key(Field.TALLY)


class Late:
    """A row that tells which state of the instance it is of: that is known with the commit that stores it."""

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
        """By their keys; None: to be cleared."""
        self.counts: bool = False
        """Whether one of the changes is of the instance itself: not that it is run, and waits for the same again."""
        self.weight: int = 0
        """About how many bytes of values the next flush will write."""
        self.version: int = 0
        """How many commits have changed the instance."""
        self.taken: int = 0
        """How many messages it has taken."""
        self._clears: list[Range] = _NOTHING_CLEARED
        self._checks: dict[bytes, bytes] = _NOTHING_CHECKED
        self._before: list[tuple[int, dict[bytes, Entry | Late | bytes | None]]] = _NOTHING_BEFORE
        """Rows that were changed before the clears from that one on."""

    def write(self, key: bytes, value: bytes | None) -> None:
        """Write a row of the instance's own space, whose keys begin with it."""
        self.counts = True
        self.rows[self._space + key] = value

    def check(self, key: bytes, expected: bytes) -> None:
        """Hold the next commit to what a row was when it was read."""
        if self._checks is _NOTHING_CHECKED:
            self._checks = {}
        self._checks[key] = expected

    def uncheck(self, key: bytes) -> None:
        """Hold it to that no more."""
        self._checks.pop(key, None)

    @property
    def is_dirty(self) -> bool:
        """Whether there is something that the store does not know."""
        return bool(self.rows or self._clears or self._before)

    def touch(self) -> None:
        """The next write set goes with rows that change the instance."""
        self.counts = True

    def clear(self, cleared: Range, *, counts: bool = True) -> None:
        self.counts = self.counts or counts
        if len(self.rows) <= FEW:
            begin, end = cleared
            for key in [key for key in self.rows if begin <= key < end]:
                del self.rows[key]
        else:
            # Which of them are cleared is found out once, when all clears are known: there may be thousands of both.
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
        """Everything that the store does not know, as it stands now. The journal is clean afterwards."""
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
        for key, tells in late:  # of entries, which know by now since when they wait
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
        """Forget what the store does not know: the code that did it was wrong, and no effect outside came of it.

        With `keep_fields`, what the instance itself is doing is still to be written: that it waits no more.
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
        """What a row is, in words for people."""
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
        """The write did not happen: all of it is unknown to the store still. What changed since then is newer."""
        if failed.counts:
            self.version -= 1
            self.counts = True
        count = len(failed.clears)
        self._before = [(count, {**failed.rows}), *((count + at, rows) for at, rows in self._before)]
        self._clears = failed.clears + self._clears
        if failed.checks or self._checks:
            # What the failed write would have put there is not to be found there.
            unwritten = {key for key in self._checks if failed.rows.get(key) is not None}
            self._checks = failed.checks | {k: raw for k, raw in self._checks.items() if k not in unwritten}
