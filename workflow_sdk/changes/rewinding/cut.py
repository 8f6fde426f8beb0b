"""What a rewind deletes of a history, so that a part of it happens again, and what it keeps.

A restart deletes the target and what came after it. A loop can begin again only with some of its turns: with which ones
depends on what it has kept of them. So for each loop around the target, or beside it, a turn is chosen with which it
begins again, and then everything in later turns of that loop is deleted, too.
"""

from __future__ import annotations

from math import inf

from msgspec import Struct, field

from workflow_sdk.changes.rewinding.graph_events import GraphEvents
from workflow_sdk.changes.rewinding.loop_tape import LoopStart, turn_of
from workflow_sdk.changes.rewinding.record import Record, Tree, scopes_around
from workflow_sdk.errors import DefinitionError
from workflow_sdk.journal.compensation import Progress
from workflow_sdk.rows.entries import BranchesData, Entry, LoopData
from workflow_sdk.rows.location import split_last
from workflow_sdk.rows.status import Kind

_SIDE_BY_SIDE = (Kind.JOIN, Kind.RACE, Kind.MAP, Kind.GRAPH)
"""In these, several branches are under way at once."""


_OUTCOMES = (Kind.BRANCH, Kind.FIRING)
"""Entries that hold only the outcome of a scope."""


def cut_failures(record: Record, failed_operations: tuple[str, ...]) -> Cut:
    """Delete the failures at these paths, so that they are tried again."""
    paths = record.tree.paths
    found = {paths[path] for path in failed_operations if path in paths}
    # What a firing of a graph has done stays done, and its code goes on after it.
    unended = {at for at in found if record.tree.kind(at) is Kind.FIRING}
    return Cut(record.tree, found - unended, unended=unended)


def cut_from(record: Record, path: str) -> Cut:
    """Delete the entry at a path, or the turn of a loop, and all that finished after it."""
    tree = record.tree
    target = tree.locate(path)
    cut = Cut(tree, target=target)
    # The order matters: each step uses what the steps before have marked as deleted. Loops beside the target come last,
    # since they may have to keep some of what is marked in them.
    cut.begin_around(target, path)
    cut.dropped |= _came_after(tree, target) | record.orphans()
    cut.drop_undone(record)
    cut.drop_events()
    cut.begin_beside()
    return cut


class Cut(Struct):
    """The part of a history that a rewind deletes."""

    tree: Tree
    dropped: set[bytes] = field(default_factory=set[bytes])
    """The locations of the entries that are deleted."""
    target: bytes | None = None
    """The location of what is restarted: an entry, a turn of a loop, or a branch that is under way."""
    loops: dict[bytes, LoopStart] = field(default_factory=dict[bytes, LoopStart])
    """The loops that begin again with one of their turns, by location."""
    unended: set[bytes] = field(default_factory=set[bytes])
    """The firings of graphs that go on again: what is recorded in them stays, and their ends are deleted."""

    def is_dropped(self, location: bytes) -> bool:
        """Whether a location, or a scope around it, is deleted."""
        return not self.dropped.isdisjoint([location, *scopes_around(location)])

    def begin_around(self, location: bytes, path: str) -> None:
        """Have the loops around a location begin again with the turns that contain it, or with earlier ones."""
        for around in scopes_around(location):
            if self.tree.is_loop(around):
                start = self.loops.get(around)
                turn = turn_of(around, location)
                if start is None or turn < start.turn:
                    self.loops[around] = self.tree.start(around, turn, path)

    def drop_undone(self, record: Record) -> None:
        """Delete the steps that were undone, since they have to happen again, and what finished after them."""
        for compensation in record.compensations:
            at, path = compensation.location, compensation.path
            if compensation.progress is not Progress.DONE or self.is_dropped(at):
                continue
            try:
                self.begin_around(at, path)
            except DefinitionError as error:
                outermost = next(around for around in scopes_around(at) if self.tree.is_loop(around))
                raise DefinitionError(
                    f"{path!r} was undone, and so it has to happen again. But {error}. Restart from "
                    f"{self.tree.path(outermost)!r}, or from the beginning"
                ) from None
            if at in self.tree.entries:
                self.dropped |= _came_after(self.tree, at)
        # If a step that came before a loop was undone, the loop is deleted with it, even if it holds the target.
        for location in self.loops.keys() & self.dropped:
            del self.loops[location]

    def drop_events(self) -> None:
        """Delete what happened in graphs after what is deleted in them. Graphs around others come first."""
        for graph in [at for at, entry in self.tree.entries.items() if entry.kind is Kind.GRAPH]:
            if graph in self.dropped:
                continue
            events = GraphEvents(self.tree, graph)
            first = events.first_of({*self.dropped, *(() if self.target is None else (self.target,))})
            if first is not None:
                dropped, unended = events.after(first)
                self.dropped |= dropped
                self.unended |= {at for at in unended if not self.is_dropped(at)}

    def begin_beside(self) -> None:
        """Have loops that are not around the target begin again with the first turn in which something is deleted."""
        beside = {around for at in self.dropped for around in scopes_around(at) if self.tree.is_loop(around)}
        # Outer loops first: what they delete may contain inner loops.
        for location in sorted(beside - self.loops.keys(), key=len):
            if location not in self.dropped:
                self._begin_again(location)

    def _begin_again(self, location: bytes) -> None:
        turns = {at: turn_of(location, at) for at in self.tree.inside(location)}
        hit = [turn for at, turn in turns.items() if at in self.dropped]
        if not hit:
            return  # a loop around this one has kept all of it after all
        start = self.tree.loop(location).first_start(min(hit))
        if start is None:
            # The loop can't begin again with any of these turns. So it goes on from where it is, and keeps everything.
            self.dropped -= turns.keys()
            return
        self.dropped -= {at for at, turn in turns.items() if turn < start.turn}
        self.dropped |= {at for at, turn in turns.items() if turn > start.turn}
        self.loops[location] = start


def _came_after(tree: Tree, location: bytes) -> set[bytes]:
    """The entries at or under a location, and those that came after it."""
    target = _Target(tree, location)
    dropped: set[bytes] = set()
    for at, entry in tree.entries.items():
        # Entries are sorted by location, so the scopes around an entry come before it.
        if not dropped.isdisjoint(scopes_around(at)) or target.is_before(at, entry):
            dropped.add(at)
    return dropped


class _Target:
    """A place in a history, to tell what came after it."""

    def __init__(self, tree: Tree, location: bytes) -> None:
        self._tree = tree
        self._line = [*scopes_around(location), location]
        self._ended = _ended(tree, location)

    def is_before(self, at: bytes, entry: Entry) -> bool:
        """Whether this place comes before an entry, or contains it.

        How their order is known depends on the innermost scope that is around both.
        """
        if at.startswith(self._line[-1]):
            return True
        depth = max(number for number, around in enumerate(self._line) if at.startswith(around))
        fork, own = self._line[depth], self._line[depth + 1]
        if at == fork:
            return False  # it is around this place
        kind = self._tree.kind(fork)
        if kind is Kind.LOOP:
            return turn_of(fork, at) > turn_of(fork, own)
        if kind in _SIDE_BY_SIDE:
            return self._saw_the_end(entry)
        entries = self._tree.entries
        return entries[fork + _first_segment(at[len(fork) :])].ordinal > entries[own].ordinal

    def _saw_the_end(self, entry: Entry) -> bool:
        """Whether an entry of another branch began or finished after this place had ended, and so may depend on it.

        For a scope that began before that, this is asked of the entries in it. The scope itself is kept, and goes on.
        """
        if entry.created_at > self._ended:
            return True
        return not entry.kind.is_composite and entry.finished_at is not None and entry.finished_at > self._ended


def _ended(tree: Tree, location: bytes) -> float:
    """When the entry or turn at a location ended; if it has not ended, when it began."""
    entry = tree.entries.get(location)
    if entry is not None:
        return entry.created_at if entry.finished_at is None else entry.finished_at
    around, _ = split_last(location)
    if tree.is_loop(around):
        return tree.loop(around).ended(turn_of(around, location))
    return inf  # a branch that is under way: nothing came after its end


def _first_segment(packed: bytes) -> bytes:
    return [*scopes_around(packed), packed][1]


class Remainder(Struct, frozen=True):
    """The history that a cut leaves."""

    entries: dict[bytes, Entry]
    reopened: set[bytes]
    """The scopes that had ended, and that go on since something in them happens again."""
    loops: dict[bytes, LoopData]
    """The data to be stored of the loops that begin again with one of their turns."""

    @classmethod
    def after(cls, cut: Cut) -> Remainder:
        """The history that this cut leaves."""
        gone = cut.dropped | cut.unended
        entries = {at: entry for at, entry in cut.tree.entries.items() if at not in gone}
        reopened: set[bytes] = set()
        again = {*cut.dropped, *cut.unended, cut.target or b""}
        for around in {around for at in again for around in scopes_around(at)} & entries.keys():
            entry = entries[around]
            if entry.kind in _OUTCOMES:
                del entries[around]  # the outcome is open again
            elif entry.is_final:
                reopened.add(around)
                entries[around] = _reopened(entry)
        return cls(entries, reopened, {at: start.data for at, start in cut.loops.items()})

    def is_open(self, location: bytes) -> bool:
        """Whether the code comes to this scope again, and goes on in it."""
        return location in self.reopened or location in self.loops


def _reopened(entry: Entry) -> Entry:
    """The entry of a scope that had ended, without its outcome."""
    data = entry.data
    if isinstance(data, BranchesData):
        data = BranchesData(data.names, data.count)  # which branch won, and in what order they ended, is open again
    return Entry(entry.kind, entry.ordinal, entry.created_at, data=data)
