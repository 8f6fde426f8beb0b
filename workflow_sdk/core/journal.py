"""What one instance remembers, in memory, and which part of it the store does not know yet.

A flush takes the changed rows as they stand. What changes while they are being written is changed again afterwards, and
goes with the next flush; if the write fails, everything is changed still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from sortedcontainers import SortedDict

from workflow_sdk.core.bases import Known, pack_bases
from workflow_sdk.core.compensation import Compensation
from workflow_sdk.core.entries import Entry, EntryTrouble
from workflow_sdk.core.inbox import Inbox, InboxMessage, TakingRow
from workflow_sdk.core.instance import InstanceRows, Tally, WaitRow
from workflow_sdk.core.keys import (
    ATTIC,
    BASES,
    CHANGES,
    COMPENSATIONS,
    DIRECTORY,
    FIELDS,
    FOLDED,
    HISTORY,
    INBOX,
    METADATA,
    NAMES,
    OUTSIDE,
    TAKINGS,
    TRIES,
    WAITS,
    Field,
    InstanceKeys,
    field_key,
    sequence_key,
    waits_of,
)
from workflow_sdk.core.location import pack_segment, segments, split_last, subtree
from workflow_sdk.core.names import Names
from workflow_sdk.core.outside import Hanging
from workflow_sdk.core.ranges import Ranges
from workflow_sdk.core.status import EntryStatus
from workflow_sdk.core.wire import Row

__all__ = ["Journal", "WriteSet"]

Range = tuple[bytes, bytes]


@dataclass(slots=True)
class WriteSet:
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
_STANDING = frozenset({Field.HEAD, Field.DEATHS})
"""What says who runs the instance, and that it waits."""


class _Late:
    """A row that tells which state of the instance it is of: that is known with the commit that stores it."""

    __slots__ = ("pack",)

    def __init__(self, pack: Callable[[int], bytes]) -> None:
        self.pack = pack


# Shared by all, and never written to.
_NOTHING_LOADED: SortedDict[bytes, dict[bytes, Entry]] = SortedDict()
_NOTHING_TAKEN: SortedDict[bytes, InboxMessage] = SortedDict()
_NOTHING_OUTSIDE: SortedDict[bytes, Hanging] = SortedDict()
_NOTHING_CHANGED: dict[bytes, bytes] = {}
_NOTHING_CHECKED: dict[bytes, bytes] = {}


class Journal:
    """The memory of one instance. No input or output: the execution loads it, and writes what `take` gives."""

    # There may be thousands in memory, most of them new or short: what is empty takes no room.
    __slots__ = (
        "_before",
        "_checks",
        "_clears",
        "_counts",
        "_rows",
        "_space",
        "about",
        "changes",
        "compensations",
        "inbox",
        "keys",
        "loaded",
        "names",
        "next_sequence",
        "outside",
        "riding",
        "settled",
        "taken",
        "takings",
        "version",
        "weight",
    )

    def __init__(self, keys: InstanceKeys) -> None:
        self.keys: InstanceKeys = keys
        self.names: Names = Names(self._write_here)
        self.loaded: SortedDict[bytes, dict[bytes, Entry]] = _NOTHING_LOADED
        """History that was recorded before this run, by scope and segment. A scope takes its part when it opens."""
        self.inbox: Inbox = Inbox()
        self.about: InstanceRows = InstanceRows()
        """What is stored beside the history, as the store will have it after the next flush."""
        self.takings: SortedDict[bytes, InboxMessage] = _NOTHING_TAKEN
        """Messages taken inside races that are still open, by their key in the instance's space."""
        self.outside: SortedDict[bytes, Hanging] = _NOTHING_OUTSIDE
        """What lies outside and hangs on a wait, by its location."""
        self.changes: dict[bytes, bytes] = _NOTHING_CHANGED
        """What finished scopes have changed of what the world may see, by their location."""
        self.compensations: int = 0
        """How many were ever registered since the last checkpoint; their sequence numbers are below `next_sequence`."""
        self.next_sequence: int = 0
        """See `new_sequence`."""
        self.riding: int = 0
        """How many steps have left their record to a later commit."""
        self.settled: int = 0
        """How many of them are known to be stored."""
        self.weight: int = 0
        """About how many bytes of values the next flush will write."""
        self.version: int = 0
        """How many commits have changed the instance."""
        self.taken: int = 0
        """How many messages it has taken."""
        self._rows: dict[bytes, Entry | _Late | bytes | None] = {}
        self._clears: list[Range] = []
        self._checks: dict[bytes, bytes] = _NOTHING_CHECKED
        self._before: list[tuple[int, dict[bytes, Entry | _Late | bytes | None]]] = []
        """Rows that were changed before the clears from that one on."""
        self._counts = False
        """Whether one of the changes is of the instance itself."""
        self._space = keys.space

    @property
    def is_dirty(self) -> bool:
        """Whether there is something that the store does not know."""
        return bool(self._rows or self._clears or self._before)

    def touch(self) -> None:
        """The next write set goes with rows that change the instance."""
        self._counts = True

    # Changes. All of them take effect in memory at once.

    def load(self, about: InstanceRows) -> None:
        """Take in what the store has beside the history."""
        self.about = about
        self.version, self.taken = about.tally.commits, about.tally.taken

    def _write_here(self, key: bytes, value: bytes | None) -> None:
        self._counts = True
        self._rows[self._space + key] = value

    def put(self, location: bytes, entry: Entry) -> None:
        """Record an entry as it will stand when the next flush takes it."""
        self._counts = True
        self._rows[self._space + HISTORY + location] = entry
        if entry.value is not None:
            self.weight += len(entry.value)

    def trouble(self, location: bytes, trouble: EntryTrouble) -> None:
        """Record that an entry did not succeed at once."""
        self._rows[self._space + METADATA + location] = trouble.pack()

    def keep_bases(self, turn: bytes, bases: Sequence[Known]) -> None:
        """Store what turns of a loop began with, up to the one at this location."""
        self._write_here(BASES + turn, pack_bases(bases))

    def set_row(self, field: Field, row: Row | None) -> None:
        """Store a row of the instance beside its history, or clear it."""
        before = self.about.raw.get(field)
        raw = self.about.set(field, row)
        # A clear is written even if it looks cleared: the change that cleared it may have been discarded.
        if raw is None or raw != before:
            self._counts = self._counts or field not in _STANDING
            self._rows[self._space + field_key(field)] = raw

    def show(self, field: Field, row: Row | None) -> None:
        """Store a row that the world may see, if it has changed."""
        if row is not None or field in self.about.raw:
            self.set_row(field, row)

    def clear_history(self, location: bytes) -> None:
        """Forget all that is recorded at and under a location, and the names of loops there."""
        self.names.drop(location)
        for part in (HISTORY, METADATA, BASES, CHANGES, FOLDED):
            self._write_here(part + location, None)
            self._clear(subtree(self._space + part + location))
        if Field.DEATHS in self.about.raw:
            self._clear(subtree(self._space + TRIES + location), counts=False)
        self.forget_loaded(location)

    def clear_losers(self, race: bytes, winner: bytes) -> None:
        """Forget all that is recorded under a race, but for the branch that has won it, whose location is `winner`.

        In as many ranges for a thousand losers as for one.
        """
        self.names.drop(race, but=winner)
        _, after = subtree(winner)
        for part in (HISTORY, METADATA, BASES, CHANGES, FOLDED):
            begin, end = subtree(self._space + part + race)
            self._clear((begin, self._space + part + winner))
            self._clear((self._space + part + after, end))
        for scope in list(self.loaded.irange(race, race + b"\xff")):
            if scope != race and not winner <= scope < after:
                del self.loaded[scope]

    def clear_turns(self, first: bytes, end: bytes, *, shown: bool) -> None:
        """Forget the turns of a loop from the location `first`, up to `end` and without it.

        `shown`: something may be recorded of what the world may see.
        """
        for part in (HISTORY, METADATA, BASES, CHANGES, FOLDED) if shown else (HISTORY, METADATA, BASES):
            self._clear((self._space + part + first, self._space + part + end))

    def start_over(self) -> None:
        """Forget all that was done, but not the instance itself, nor the messages it has not taken."""
        for part in (NAMES, HISTORY, METADATA, COMPENSATIONS, TAKINGS, ATTIC, BASES, CHANGES, FOLDED, OUTSIDE):
            self._clear(subtree(self._space + part))
        self.forget_waits()
        self.names = Names(self._write_here)
        self.loaded = _NOTHING_LOADED
        self.takings = _NOTHING_TAKEN
        self.outside = _NOTHING_OUTSIDE
        self.changes = _NOTHING_CHANGED
        self.compensations = self.next_sequence = 0

    def _clear(self, cleared: Range, *, counts: bool = True) -> None:
        self._counts = self._counts or counts
        if len(self._rows) <= FEW:
            begin, end = cleared
            for key in [key for key in self._rows if begin <= key < end]:
                del self._rows[key]
        else:
            # Which of them are cleared is found out once, when all clears are known: there may be thousands of both.
            self._before.append((len(self._clears), self._rows))
            self._rows = {}
        self._clears.append(cleared)

    def _rows_left(self) -> dict[bytes, Entry | _Late | bytes | None]:
        """The changed rows, without those that were cleared since they were written."""
        if not self._before:
            return self._rows
        cleared = Ranges()
        at = len(self._clears)
        left: list[dict[bytes, Entry | _Late | bytes | None]] = [self._rows]
        for first, rows in reversed(self._before):
            for begin, end in self._clears[first:at]:
                cleared.add(begin, end)
            at = first
            left.append({key: row for key, row in rows.items() if key not in cleared})
        self._before = []
        self._rows = {}
        for rows in reversed(left):
            self._rows.update(rows)
        return self._rows

    # Waits.

    def begin_wait(self, location: bytes, messages: Iterable[str | bytes], about: WaitRow, entry: Entry | None) -> None:
        """A branch parks. With the next flush, everybody can see what it waits for."""

        def pack(version: int) -> bytes:
            since = version if entry is None else entry.since
            promised = self.inbox.addressed_to(pack_segment(since) + location)
            return replace(about, since=since, promised=promised).pack()

        for key in _wait_keys(location, messages):
            self._rows[self._space + key] = _Late(pack)

    def end_wait(self, location: bytes, messages: Iterable[str | bytes]) -> None:
        """A branch goes on."""
        for key in _wait_keys(location, messages):
            self._rows[self._space + key] = None

    def forget_waits(self) -> None:
        """Nothing is waited for any more."""
        self._clear(subtree(self._space + WAITS), counts=False)

    # What workers died of.

    def note_try(self, location: bytes, raw: bytes | None) -> None:
        """Note that the code of an operation is called, or (None) that it was, and nobody died of it."""
        self._rows[self._space + TRIES + location] = raw

    def forget_deaths(self) -> None:
        """The instance has got past what workers died of."""
        self.set_row(Field.DEATHS, None)
        self._clear(subtree(self._space + TRIES), counts=False)

    # What lies outside.

    def load_outside(self, location: bytes, raw: bytes) -> None:
        """Take in a row of the store."""
        self.hangs(location, Hanging.unpack(raw))

    def hangs(self, location: bytes, what: Hanging) -> None:
        """Something outside hangs on the wait at a location now, and the store knows it."""
        if self.outside is _NOTHING_OUTSIDE:
            self.outside = SortedDict()
        self.outside[location] = what

    def hang(self, location: bytes, what: Hanging) -> None:
        """Something outside hangs on the wait at a location, from the next commit on: that is since when it waits."""
        self.hangs(location, what)

        def pack(version: int) -> bytes:
            now = replace(what, since=version)
            self.hangs(location, now)
            return now.pack()

        self._counts = True
        self._rows[self._space + OUTSIDE + location] = _Late(pack)

    def outside_row(self, location: bytes, what: Hanging) -> tuple[bytes, bytes]:
        """The row of that, for a commit that does more."""
        return self._space + OUTSIDE + location, what.pack()

    def unhang(self, location: bytes) -> None:
        """Nothing hangs there any more: the wait is over."""
        if self.outside.pop(location, None) is not None:
            self._write_here(OUTSIDE + location, None)

    def drop_outside(self, location: bytes) -> list[tuple[bytes, Hanging]]:
        """What hangs on the waits at and under a location, which nobody waits for any more."""
        found = [(at, self.outside[at]) for at in self.outside.irange(location, location + b"\xff")]
        for at, what in found:
            self.unhang(at)
            # It may have ended just now.
            for message in self.inbox.find((pack_segment(what.since) + at,)):
                self.take_message(message)
        return found

    def drop_endings(self) -> None:
        """Forget that something outside has ended which nobody waits for any more."""
        for name in self.inbox.names():
            if isinstance(name, bytes):
                for message in self.inbox.find((name,), self.inbox.count(name)):
                    self.take_message(message)

    # What the world may see.

    def load_changes(self, location: bytes, raw: bytes) -> None:
        """Take in a row of the store."""
        if self.changes is _NOTHING_CHANGED:
            self.changes = {}
        self.changes[location] = raw

    def keep_changes(self, location: bytes, changes: bytes, inside: Mapping[bytes, bytes]) -> None:
        """Store what a scope has changed of what the world may see.

        That of the scopes inside is in it, and set aside: it counts again when the scope is entered again.
        """
        if inside:
            self._clear(subtree(self._space + CHANGES + location))
        for at, raw in inside.items():
            self._write_here(FOLDED + at, raw)
        self._write_here(CHANGES + location, changes)

    def keep_beginning(self, turn: bytes, changes: bytes) -> None:
        """Store what a loop has changed of what the world may see before this turn."""
        self._write_here(FOLDED + turn, changes)

    def forget_loaded(self, location: bytes) -> None:
        """The code does not enter what was recorded under a location any more."""
        for scope in list(self.loaded.irange(location, location + b"\xff")):
            del self.loaded[scope]

    # Messages.

    def take_message(self, message: InboxMessage) -> None:
        """A message leaves the inbox, in the same commit as the entry that took it."""
        self.inbox.take(message)
        if message.is_counted:
            self.taken += 1
        key = self._space + INBOX + message.id
        if self._rows.get(key) is None:  # else it was given back since the last commit, and is not in the store yet
            if self._checks is _NOTHING_CHECKED:
                self._checks = {}
            self._checks[key] = message.pack()
        self._write_here(INBOX + message.id, None)

    def keep_taking(self, location: bytes, number: int, message: InboxMessage) -> None:
        """Remember a message that was taken where a race can still be lost."""
        key = TAKINGS + location + pack_segment(number)
        self._keep(key, message)
        self._write_here(key, TakingRow(message.id, message.pack()).pack())

    def load_taking(self, key: bytes, raw: bytes) -> None:
        """Take in a row of the store."""
        row = TakingRow.unpack(raw)
        self._keep(key, InboxMessage.unpack(row.id, row.message))

    def _keep(self, key: bytes, message: InboxMessage) -> None:
        if self.takings is _NOTHING_TAKEN:
            self.takings = SortedDict()
        self.takings[key] = message

    def settle_takings(self, location: bytes, *, give_back: bool) -> None:
        """What was taken under a location is given back to the inbox, or its taking is final."""
        begin, end = subtree(TAKINGS + location)
        for key in list(self.takings.irange(begin, end)):
            message = self.takings.pop(key)
            self._write_here(key, None)
            if give_back:
                self._write_here(INBOX + message.id, message.pack())
                # If it was taken since the last commit, it is in the store still.
                self._checks.pop(self._space + INBOX + message.id, None)
                self.taken -= message.is_counted
                self.inbox.add(message)

    def settle_turns(self, first: bytes, end: bytes) -> None:
        """What was taken in turns of a loop that are forgotten is not given back any more.

        The turns are those from the location `first`, up to `end` and without it.
        """
        keys = list(self.takings.irange(TAKINGS + first, TAKINGS + end, inclusive=(True, False)))
        for key in keys:
            del self.takings[key]
        if keys:
            self._clear((self._space + TAKINGS + first, self._space + TAKINGS + end))

    def write_outside(self, key: bytes, value: bytes | Callable[[int], bytes] | None) -> None:
        """Write a row that is not in the instance's own space, with what changes there.

        It may be made from the number of commits that have changed the instance with this one.
        """
        self._rows[key] = _Late(value) if callable(value) else value

    # Compensations.

    def new_sequence(self) -> int:
        """The place of what completes now in the order of undoing. Nothing else gets this number, written or not."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def register(self, compensation: Compensation) -> None:
        """Register something to undo, with a sequence number of its own."""
        self.compensations += 1
        self.update(compensation)

    def update(self, compensation: Compensation) -> None:
        """Record how far the undoing is."""
        self._write_here(sequence_key(compensation.sequence), compensation.pack())

    def rows_of(self, location: bytes, entry: Entry, compensation: Compensation | None) -> list[tuple[bytes, bytes]]:
        """The rows of an outcome that is known only within the commit that stores it. `stored` follows, once it is."""
        rows = [(self._space + HISTORY + location, entry.pack())]
        if compensation is not None:
            rows.append((self._space + sequence_key(compensation.sequence), compensation.pack()))
        return rows

    def registered(self) -> None:
        """A compensation is in the store that was not written through here."""
        self.compensations += 1

    def forget_compensations(self) -> None:
        """Nothing that finished before now is to be undone any more."""
        self.compensations = 0
        self._clear(subtree(self._space + COMPENSATIONS))
        self._clear(subtree(self._space + ATTIC))

    def keep_in_attic(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Set history aside that is about to be cleared: the code is walked over it to find what undoes its steps.

        That copies what is recorded, and may be done again: it is no change of the instance.
        """
        for location, raw in rows:
            self._rows[self._space + ATTIC + location] = raw

    # Writing.

    def take(self) -> WriteSet:
        """Everything that the store does not know, as it stands now. The journal is clean afterwards."""
        counts = self._counts
        if counts:
            self.version += 1
        rows: dict[bytes, bytes | None] = {}
        late: list[tuple[bytes, _Late]] = []
        for key, row in (self._rows_left() if self._before else self._rows).items():
            if type(row) is Entry:
                if row.status is EntryStatus.WAITING and not row.since:
                    row.since = self.version
                rows[key] = row.pack()
            elif type(row) is _Late:
                late.append((key, row))
            else:
                rows[key] = row  # type: ignore[assignment]  # `type() is` is the hot path's isinstance
        for key, tells in late:  # of entries, which know by now since when they wait
            rows[key] = tells.pack(self.version)
        if counts:
            rows[self._space + _TALLY] = Tally(self.version, self.taken).pack()
        clears, checks = self._clears, self._checks
        self._rows = {}
        self._clears = []
        self._checks = _NOTHING_CHECKED
        self._counts = False
        self.weight = 0
        return WriteSet(clears, rows, checks, counts)

    def discard(self, *, keep_fields: bool = False) -> None:
        """Forget what the store does not know: the code that did it was wrong, and no effect outside came of it.

        With `keep_fields`, what the instance itself is doing is still to be written: that it waits no more.
        """
        begin, end = self.keys.range(FIELDS)
        self._rows = {
            key: row
            for key, row in self._rows_left().items()
            if keep_fields and (begin <= key < end or key.startswith(DIRECTORY))
        }
        self._clears = []
        self._checks = _NOTHING_CHECKED
        self._counts = False

    def name_row(self, key: bytes, raw: bytes) -> str:
        """What a row is, in words for people."""
        rest = key.removeprefix(self._space)
        if rest is key or not key.startswith(self._space):
            return "what it writes outside of itself"
        if rest.startswith(HISTORY):
            *_, last = segments(rest[len(HISTORY) :])
            index, number = last if isinstance(last, tuple) else (last, None)
            name = self.names.texts.get(index, "?")
            kind = Entry.unpack(raw).kind.value
            return f"{kind} {name!r}" if number is None else f"{kind} {number} of {name!r}"
        named = [field.name.lower() for field in Field if rest == field_key(field)]
        return f"its {named[0]}" if named else "what it keeps beside its history"

    def restore(self, failed: WriteSet) -> None:
        """The write did not happen: all of it is unknown to the store still. What changed since then is newer."""
        if failed.counts:
            self.version -= 1
            self._counts = True
        count = len(failed.clears)
        self._before = [(count, {**failed.rows}), *((count + at, rows) for at, rows in self._before)]
        self._clears = failed.clears + self._clears
        if failed.checks or self._checks:
            # What the failed write would have put there is not to be found there.
            unwritten = {key for key in self._checks if failed.rows.get(key) is not None}
            self._checks = failed.checks | {k: raw for k, raw in self._checks.items() if k not in unwritten}

    def load_entry(self, location: bytes, raw: bytes) -> Entry:
        """Take in a row of the history."""
        entry = Entry.unpack(raw)
        if entry.data is not None or entry.status is EntryStatus.FAILED:
            entry.check()
        scope, segment = split_last(location)
        if self.loaded is _NOTHING_LOADED:
            self.loaded = SortedDict()
        self.loaded.setdefault(scope, {})[segment] = entry
        return entry


def _wait_keys(location: bytes, messages: Iterable[str | bytes]) -> Iterator[bytes]:
    for name in messages or ("",):
        yield waits_of(name) + location
