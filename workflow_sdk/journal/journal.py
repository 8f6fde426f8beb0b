"""The memory of one run: its history, names, inbox and other rows. What the store lacks is in `journal.unwritten`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace
from sortedcontainers import SortedDict

from workflow_sdk.journal.compensation import Compensations
from workflow_sdk.journal.inbox import Inbox, Takings
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
    MARKINGS,
    METADATA,
    NAMES,
    OUTSIDE,
    PATCHED,
    TAKINGS,
    TRIES,
    WAITS,
    Field,
    InstanceKeys,
    field_key,
    marking_of,
    parts_of,
    waits_of,
)
from workflow_sdk.rows.location import pack_segment, split_last, subtree
from workflow_sdk.rows.outside import Hanging
from workflow_sdk.rows.status import EntryStatus
from workflow_sdk.rows.wire import Row

_OF_THE_RUN = frozenset({Field.HEAD, Field.DEATHS})
"""The rows that say how the instance is run. To write them is no change of the instance itself."""


# Shared by all, and never written to.
_NOTHING_LOADED: SortedDict[bytes, dict[bytes, Entry]] = SortedDict()
_NOTHING_OUTSIDE: SortedDict[bytes, Hanging] = SortedDict()
_NOTHING_CHANGED: dict[bytes, bytes] = {}


class History:
    """The entries of one instance, and the changes that its scopes have made to the public state."""

    __slots__ = ("_names", "_space", "_unwritten", "changes", "has_graphs", "loaded")

    def __init__(self, space: bytes, unwritten: Unwritten, names: Names) -> None:
        self._space = space
        self._unwritten = unwritten
        self._names = names
        self.loaded: SortedDict[bytes, dict[bytes, Entry]] = _NOTHING_LOADED
        """The entries from before this run, by scope and segment. A scope takes its own out when it opens."""
        self.has_graphs: bool = False
        """Whether there may be graphs, which keep their markings and large results beside the history."""
        self.changes: dict[bytes, bytes] = _NOTHING_CHANGED
        """The changes of the public state by finished scopes, by the location of the scope."""

    def put(self, location: bytes, entry: Entry) -> None:
        """Have the next flush write an entry, as it is by then."""
        self._unwritten.counts = True
        self._unwritten.rows[self._space + HISTORY + location] = entry
        if entry.value is not None:
            self._unwritten.weight += len(entry.value)

    def trouble(self, location: bytes, trouble: EntryTrouble) -> None:
        """Record the failed attempts of an entry."""
        self._unwritten.rows[self._space + METADATA + location] = trouble.pack()

    def keep_bases(self, turn: bytes, bases: Sequence[Known]) -> None:
        """Store the states with which turns of a loop began, up to the turn at this location."""
        self._unwritten.write(BASES + turn, pack_bases(bases))

    def row_of(self, location: bytes, entry: Entry) -> tuple[bytes, bytes]:
        """The row of an entry whose outcome is known only during the commit that stores it."""
        return self._space + HISTORY + location, entry.pack()

    def keep_in_archive(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Copy history that is about to be cleared into the archive, so that handlers can be found in it.

        A copy may be made again: it is no change of the instance.
        """
        for location, raw in rows:
            self._unwritten.rows[self._space + ARCHIVE + location] = raw

    def load_entry(self, location: bytes, raw: bytes) -> Entry:
        """Take in a row of the history."""
        entry = Entry.unpack(raw)
        if entry.data is not None or entry.status is EntryStatus.FAILED:
            entry.check()
        # What is recorded under it may not be read.
        self.has_graphs = self.has_graphs or entry.kind.is_composite
        scope, segment = split_last(location)
        if self.loaded is _NOTHING_LOADED:
            self.loaded = SortedDict()
        self.loaded.setdefault(scope, {})[segment] = entry
        return entry

    def clear_losers(self, race: bytes, winner: bytes) -> None:
        """Delete the history under a race, except that of the winning branch, whose location is `winner`.

        However many losers there are, only the ranges before and after the winner are cleared.
        """
        self._names.drop(race, but=winner)
        _, after = subtree(winner)
        for part in (HISTORY, METADATA, BASES, CHANGES, FOLDED, *((MARKINGS, PATCHED) if self.has_graphs else ())):
            begin, end = subtree(self._space + part + race)
            self._unwritten.clear((begin, self._space + part + winner))
            self._unwritten.clear((self._space + part + after, end))
        for scope in list(self.loaded.irange(race, race + b"\xff")):
            if scope != race and not winner <= scope < after:
                del self.loaded[scope]

    def clear_scope(self, location: bytes) -> None:
        """Forget all that is recorded at and under a location."""
        self._names.drop(location)
        self._unwritten.write(HISTORY + location, None)
        for part in (HISTORY, METADATA, BASES, CHANGES, FOLDED, MARKINGS, PATCHED):
            self._unwritten.clear(subtree(self._space + part + location))
        for part in (METADATA, CHANGES, FOLDED, PATCHED):
            self._unwritten.write(part + location, None)
        self.forget_loaded(location)

    def clear_marking(self, location: bytes) -> None:
        """A graph is over: nothing is kept of where it was, but its result if that is stored in parts."""
        self._unwritten.clear((self._space + marking_of(location), self._space + parts_of(location)))

    def clear_parts(self, location: bytes) -> None:
        """Forget the parts of a graph's result: those of a run that has not come to its end."""
        begin = self._space + parts_of(location)
        self._unwritten.clear((begin, begin + b"\xff"))

    def clear_turns(self, first: bytes, end: bytes, *, shown: bool) -> None:
        """Delete the turns of a loop from the location `first`, up to `end` and without it.

        `shown`: whether the turns may have changed the public state.
        """
        parts = (
            HISTORY,
            METADATA,
            BASES,
            *((CHANGES, FOLDED) if shown else ()),
            *((MARKINGS, PATCHED) if self.has_graphs else ()),
        )
        for part in parts:
            self._unwritten.clear((self._space + part + first, self._space + part + end))

    def load_changes(self, location: bytes, raw: bytes) -> None:
        """Take in a row of the store."""
        if self.changes is _NOTHING_CHANGED:
            self.changes = {}
        self.changes[location] = raw

    def keep_changes(self, location: bytes, changes: bytes, inside: Mapping[bytes, bytes]) -> None:
        """Store the changes that a scope has made to the public state.

        They contain those of the scopes inside, whose own rows move elsewhere. A rewind uses these if the scope goes on
        again.
        """
        if inside:
            self._unwritten.clear(subtree(self._space + CHANGES + location))
        for at, raw in inside.items():
            self._unwritten.write(FOLDED + at, raw)
        self._unwritten.write(CHANGES + location, changes)

    def forget_loaded(self, location: bytes) -> None:
        """Drop the loaded entries under a location, which the code does not enter any more."""
        for scope in list(self.loaded.irange(location, location + b"\xff")):
            del self.loaded[scope]


class Journal:
    """The memory of one run. It reads and writes nothing itself: the run loads it, and writes what `unwritten` has."""

    # There may be thousands in memory, most of them new or short, so empty parts are shared or not made.
    __slots__ = (
        "_compensations",
        "_space",
        "_takings",
        "about",
        "history",
        "inbox",
        "keys",
        "names",
        "outside",
        "riding",
        "settled",
        "unwritten",
    )

    def __init__(self, keys: InstanceKeys) -> None:
        self.keys: InstanceKeys = keys
        self.unwritten: Unwritten = Unwritten(keys)
        """The changes that the store does not know yet."""
        self.names: Names = Names(self.unwritten.write)
        self.history: History = History(keys.space, self.unwritten, self.names)
        self._compensations: Compensations | None = None
        self.inbox: Inbox = Inbox()
        self.about: InstanceRows = InstanceRows()
        """The rows beside the history, as the store will have them after the next flush."""
        self._takings: Takings | None = None
        self.outside: SortedDict[bytes, Hanging] = _NOTHING_OUTSIDE
        """The children and tasks that the instance waits for, by the location of the wait."""
        self.riding: int = 0
        """How many repeatable steps have left their record to a later commit."""
        self.settled: int = 0
        """How many of these records are known to be stored."""
        self._space = keys.space

    @property
    def compensations(self) -> Compensations:
        """The compensations. Made when first needed: most instances have none."""
        if self._compensations is None:
            self._compensations = Compensations(self.keys.space, self.unwritten)
        return self._compensations

    @property
    def takings(self) -> Takings:
        """What takes messages out of the inbox. Made when first needed."""
        if self._takings is None:
            self._takings = Takings(self.keys.space, self.unwritten, self.inbox)
        return self._takings

    # Changes. All of them take effect in memory at once.

    def load(self, about: InstanceRows) -> None:
        """Take in the rows beside the history."""
        self.about = about
        self.unwritten.version, self.unwritten.taken = about.tally.commits, about.tally.taken

    def set_row(self, field: Field, row: Row | None) -> None:
        """Store a row of the instance beside its history, or clear it."""
        before = self.about.raw.get(field)
        raw = self.about.set(field, row)
        # A clear is written even if the row seems to be gone: the write that cleared it may have been discarded.
        if raw is None or raw != before:
            self.unwritten.counts = self.unwritten.counts or field not in _OF_THE_RUN
            self.unwritten.rows[self._space + field_key(field)] = raw

    def start_over(self) -> None:
        """Delete the whole history. The instance itself stays, and so do the messages that it has not taken."""
        for part in (
            NAMES,
            HISTORY,
            METADATA,
            COMPENSATIONS,
            TAKINGS,
            ARCHIVE,
            BASES,
            CHANGES,
            FOLDED,
            OUTSIDE,
            MARKINGS,
            PATCHED,
        ):
            self.unwritten.clear(subtree(self._space + part))
        self.forget_waits()
        self.names = Names(self.unwritten.write)
        self.history = History(self.keys.space, self.unwritten, self.names)
        self._compensations = None
        self._takings = None
        self.outside = _NOTHING_OUTSIDE

    # Waits.

    def begin_wait(self, location: bytes, messages: Iterable[str | bytes], about: WaitRow, entry: Entry | None) -> None:
        """Write the rows of a wait, so that with the next flush everybody can see it.

        It has begun with the version that `about` or the entry says; else with that of the flush.
        """

        def pack(version: int) -> bytes:
            since = about.since or (version if entry is None else entry.since)
            promised = self.inbox.addressed_to(pack_segment(since) + location)
            return replace(about, since=since, promised=promised).pack()

        for key in _wait_keys(location, messages):
            self.unwritten.rows[self._space + key] = Late(pack)

    def end_wait(self, location: bytes, messages: Iterable[str | bytes]) -> None:
        """Clear the rows of a wait."""
        for key in _wait_keys(location, messages):
            self.unwritten.rows[self._space + key] = None

    def forget_waits(self) -> None:
        """Clear the rows of all waits."""
        self.unwritten.clear(subtree(self._space + WAITS), counts=False)

    # What workers died of.

    def note_try(self, location: bytes, raw: bytes | None) -> None:
        """Note that the code of an operation is about to be called; None: that no worker died of it."""
        self.unwritten.rows[self._space + TRIES + location] = raw

    def forget_deaths(self) -> None:
        """Delete the deaths, since the instance has got past the operations under which they happened."""
        self.set_row(Field.DEATHS, None)
        self.unwritten.clear(subtree(self._space + TRIES), counts=False)

    # Children and tasks.

    def hang(self, location: bytes, what: Hanging, *, is_stored: bool = False) -> None:
        """Note a child or a task for which the wait at a location waits. It is written, unless it is stored already."""
        if self.outside is _NOTHING_OUTSIDE:
            self.outside = SortedDict()
        self.outside[location] = what
        if is_stored:
            return

        def pack(version: int) -> bytes:
            # Only the commit knows its own number, since which the instance waits.
            now = self.outside[location] = replace(what, since=version)
            return now.pack()

        self.unwritten.counts = True
        self.unwritten.rows[self._space + OUTSIDE + location] = Late(pack)

    def unhang(self, location: bytes) -> None:
        """Forget the child or task of a wait that is over."""
        if self.outside.pop(location, None) is not None:
            self.unwritten.write(OUTSIDE + location, None)

    def drop_outside(self, location: bytes) -> list[tuple[bytes, Hanging]]:
        """Forget, and return, the children and tasks at and under a location, for which nobody waits any more."""
        found = [(at, self.outside[at]) for at in self.outside.irange(location, location + b"\xff")]
        for at, what in found:
            self.unhang(at)
            # Its end may be in the inbox already, where no wait would take it.
            for message in self.inbox.find((pack_segment(what.since) + at,)):
                self.takings.take(message)
        return found

    def drop_endings(self) -> None:
        """Remove from the inbox the ends of children and tasks for which nobody waits any more."""
        for name in self.inbox.names():
            if isinstance(name, bytes):
                for message in self.inbox.find((name,), self.inbox.count(name)):
                    self.takings.take(message)

    def write_outside(self, key: bytes, value: bytes | Callable[[int], bytes] | None) -> None:
        """Write a row outside of the instance's own space, in the next commit of the instance.

        A callable value makes the row from the version that the instance has with that commit.
        """
        self.unwritten.rows[key] = Late(value) if callable(value) else value


def _wait_keys(location: bytes, messages: Iterable[str | bytes]) -> Iterator[bytes]:
    for name in messages or ("",):
        yield waits_of(name) + location
