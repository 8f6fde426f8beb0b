"""What one instance remembers, in memory. What of it the store does not know yet is in `journal.unwritten`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace
from sortedcontainers import SortedDict

from workflow_sdk.journal.compensation import Compensation
from workflow_sdk.journal.inbox import Inbox, InboxMessage, TakingRow
from workflow_sdk.journal.loop_states import Known, pack_bases
from workflow_sdk.journal.names import Names
from workflow_sdk.journal.unwritten import Late, Unwritten
from workflow_sdk.rows.entries import Entry, EntryTrouble
from workflow_sdk.rows.instance import InstanceRows, WaitRow
from workflow_sdk.rows.keys import (
    ARCHIVE,
    BASES,
    CHANGES,
    COMPENSATIONS,
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
from workflow_sdk.rows.location import pack_segment, split_last, subtree
from workflow_sdk.rows.outside import Hanging
from workflow_sdk.rows.status import EntryStatus
from workflow_sdk.rows.wire import Row

_OF_THE_RUN = frozenset({Field.HEAD, Field.DEATHS})
"""What says who runs the instance, and that it waits."""


# Shared by all, and never written to.
_NOTHING_LOADED: SortedDict[bytes, dict[bytes, Entry]] = SortedDict()
_NOTHING_TAKEN: SortedDict[bytes, InboxMessage] = SortedDict()
_NOTHING_OUTSIDE: SortedDict[bytes, Hanging] = SortedDict()
_NOTHING_CHANGED: dict[bytes, bytes] = {}


class Journal:
    """The memory of one instance. No input or output: the execution loads it, and writes what `take` gives."""

    # There may be thousands in memory, most of them new or short: what is empty takes no room.
    __slots__ = (
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
        "takings",
        "unwritten",
    )

    def __init__(self, keys: InstanceKeys) -> None:
        self.keys: InstanceKeys = keys
        self.unwritten: Unwritten = Unwritten(keys)
        """What changed, and the store does not know yet."""
        self.names: Names = Names(self.unwritten.write)
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
        """What finished scopes have changed of the public state, by their location."""
        self.compensations: int = 0
        """How many were ever registered since the last checkpoint; their sequence numbers are below `next_sequence`."""
        self.next_sequence: int = 0
        """See `new_sequence`."""
        self.riding: int = 0
        """How many steps have left their record to a later commit."""
        self.settled: int = 0
        """How many of them are known to be stored."""
        self._space = keys.space

    # Changes. All of them take effect in memory at once.

    def load(self, about: InstanceRows) -> None:
        """Take in what the store has beside the history."""
        self.about = about
        self.unwritten.version, self.unwritten.taken = about.tally.commits, about.tally.taken

    def put(self, location: bytes, entry: Entry) -> None:
        """Record an entry as it will stand when the next flush takes it."""
        self.unwritten.counts = True
        self.unwritten.rows[self._space + HISTORY + location] = entry
        if entry.value is not None:
            self.unwritten.weight += len(entry.value)

    def trouble(self, location: bytes, trouble: EntryTrouble) -> None:
        """Record that an entry did not succeed at once."""
        self.unwritten.rows[self._space + METADATA + location] = trouble.pack()

    def keep_bases(self, turn: bytes, bases: Sequence[Known]) -> None:
        """Store what turns of a loop began with, up to the one at this location."""
        self.unwritten.write(BASES + turn, pack_bases(bases))

    def set_row(self, field: Field, row: Row | None) -> None:
        """Store a row of the instance beside its history, or clear it."""
        before = self.about.raw.get(field)
        raw = self.about.set(field, row)
        # A clear is written even if it looks cleared: the change that cleared it may have been discarded.
        if raw is None or raw != before:
            self.unwritten.counts = self.unwritten.counts or field not in _OF_THE_RUN
            self.unwritten.rows[self._space + field_key(field)] = raw

    def show(self, field: Field, row: Row | None) -> None:
        """Store a row of the public state, if it has changed."""
        if row is not None or field in self.about.raw:
            self.set_row(field, row)

    def clear_history(self, location: bytes) -> None:
        """Forget all that is recorded at and under a location, and the names of loops there."""
        self.names.drop(location)
        for part in (HISTORY, METADATA, BASES, CHANGES, FOLDED):
            self.unwritten.write(part + location, None)
            self.unwritten.clear(subtree(self._space + part + location))
        if Field.DEATHS in self.about.raw:
            self.unwritten.clear(subtree(self._space + TRIES + location), counts=False)
        self.forget_loaded(location)

    def clear_losers(self, race: bytes, winner: bytes) -> None:
        """Forget all that is recorded under a race, but for the branch that has won it, whose location is `winner`.

        In as many ranges for a thousand losers as for one.
        """
        self.names.drop(race, but=winner)
        _, after = subtree(winner)
        for part in (HISTORY, METADATA, BASES, CHANGES, FOLDED):
            begin, end = subtree(self._space + part + race)
            self.unwritten.clear((begin, self._space + part + winner))
            self.unwritten.clear((self._space + part + after, end))
        for scope in list(self.loaded.irange(race, race + b"\xff")):
            if scope != race and not winner <= scope < after:
                del self.loaded[scope]

    def clear_turns(self, first: bytes, end: bytes, *, shown: bool) -> None:
        """Forget the turns of a loop from the location `first`, up to `end` and without it.

        `shown`: something may be recorded of the public state.
        """
        for part in (HISTORY, METADATA, BASES, CHANGES, FOLDED) if shown else (HISTORY, METADATA, BASES):
            self.unwritten.clear((self._space + part + first, self._space + part + end))

    def start_over(self) -> None:
        """Forget all that was done, but not the instance itself, nor the messages it has not taken."""
        for part in (NAMES, HISTORY, METADATA, COMPENSATIONS, TAKINGS, ARCHIVE, BASES, CHANGES, FOLDED, OUTSIDE):
            self.unwritten.clear(subtree(self._space + part))
        self.forget_waits()
        self.names = Names(self.unwritten.write)
        self.loaded = _NOTHING_LOADED
        self.takings = _NOTHING_TAKEN
        self.outside = _NOTHING_OUTSIDE
        self.changes = _NOTHING_CHANGED
        self.compensations = self.next_sequence = 0

    # Waits.

    def begin_wait(self, location: bytes, messages: Iterable[str | bytes], about: WaitRow, entry: Entry | None) -> None:
        """A branch parks. With the next flush, everybody can see what it waits for."""

        def pack(version: int) -> bytes:
            since = version if entry is None else entry.since
            promised = self.inbox.addressed_to(pack_segment(since) + location)
            return replace(about, since=since, promised=promised).pack()

        for key in _wait_keys(location, messages):
            self.unwritten.rows[self._space + key] = Late(pack)

    def end_wait(self, location: bytes, messages: Iterable[str | bytes]) -> None:
        """A branch goes on."""
        for key in _wait_keys(location, messages):
            self.unwritten.rows[self._space + key] = None

    def forget_waits(self) -> None:
        """Nothing is waited for any more."""
        self.unwritten.clear(subtree(self._space + WAITS), counts=False)

    # What workers died of.

    def note_try(self, location: bytes, raw: bytes | None) -> None:
        """Note that the code of an operation is called, or (None) that it was, and nobody died of it."""
        self.unwritten.rows[self._space + TRIES + location] = raw

    def forget_deaths(self) -> None:
        """The instance has got past what workers died of."""
        self.set_row(Field.DEATHS, None)
        self.unwritten.clear(subtree(self._space + TRIES), counts=False)

    # What lies outside.

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

        self.unwritten.counts = True
        self.unwritten.rows[self._space + OUTSIDE + location] = Late(pack)

    def unhang(self, location: bytes) -> None:
        """Nothing hangs there any more: the wait is over."""
        if self.outside.pop(location, None) is not None:
            self.unwritten.write(OUTSIDE + location, None)

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

    # The public state.

    def load_changes(self, location: bytes, raw: bytes) -> None:
        """Take in a row of the store."""
        if self.changes is _NOTHING_CHANGED:
            self.changes = {}
        self.changes[location] = raw

    def keep_changes(self, location: bytes, changes: bytes, inside: Mapping[bytes, bytes]) -> None:
        """Store what a scope has changed of the public state.

        That of the scopes inside is in it, and set aside: it counts again when the scope is entered again.
        """
        if inside:
            self.unwritten.clear(subtree(self._space + CHANGES + location))
        for at, raw in inside.items():
            self.unwritten.write(FOLDED + at, raw)
        self.unwritten.write(CHANGES + location, changes)

    def forget_loaded(self, location: bytes) -> None:
        """The code does not enter what was recorded under a location any more."""
        for scope in list(self.loaded.irange(location, location + b"\xff")):
            del self.loaded[scope]

    # Messages.

    def take_message(self, message: InboxMessage) -> None:
        """A message leaves the inbox, in the same commit as the entry that took it."""
        self.inbox.take(message)
        if message.is_counted:
            self.unwritten.taken += 1
        key = self._space + INBOX + message.id
        if self.unwritten.rows.get(key) is None:
            # Else it was given back since the last commit, and is not in the store yet.
            self.unwritten.check(key, message.pack())
        self.unwritten.write(INBOX + message.id, None)

    def keep_taking(self, location: bytes, number: int, message: InboxMessage) -> None:
        """Remember a message that was taken where a race can still be lost."""
        key = TAKINGS + location + pack_segment(number)
        self._keep(key, message)
        self.unwritten.write(key, TakingRow(message.id, message.pack()).pack())

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
            self.unwritten.write(key, None)
            if give_back:
                self.unwritten.write(INBOX + message.id, message.pack())
                # If it was taken since the last commit, it is in the store still.
                self.unwritten.uncheck(self._space + INBOX + message.id)
                self.unwritten.taken -= message.is_counted
                self.inbox.add(message)

    def settle_turns(self, first: bytes, end: bytes) -> None:
        """What was taken in turns of a loop that are forgotten is not given back any more.

        The turns are those from the location `first`, up to `end` and without it.
        """
        keys = list(self.takings.irange(TAKINGS + first, TAKINGS + end, inclusive=(True, False)))
        for key in keys:
            del self.takings[key]
        if keys:
            self.unwritten.clear((self._space + TAKINGS + first, self._space + TAKINGS + end))

    def write_outside(self, key: bytes, value: bytes | Callable[[int], bytes] | None) -> None:
        """Write a row that is not in the instance's own space, with what changes there.

        It may be made from the number of commits that have changed the instance with this one.
        """
        self.unwritten.rows[key] = Late(value) if callable(value) else value

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
        self.unwritten.write(sequence_key(compensation.sequence), compensation.pack())

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
        self.unwritten.clear(subtree(self._space + COMPENSATIONS))
        self.unwritten.clear(subtree(self._space + ARCHIVE))

    def keep_in_archive(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Set history aside that is about to be cleared: the code is walked over it to find what undoes its steps.

        That copies what is recorded, and may be done again: it is no change of the instance.
        """
        for location, raw in rows:
            self.unwritten.rows[self._space + ARCHIVE + location] = raw

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
