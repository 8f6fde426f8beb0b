"""The history of one instance, as a rewind reads it: a tree of entries, and the rows that belong to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from sortedcontainers import SortedDict

from workflow_sdk.changes.change import Get, Steps, Writing, scan
from workflow_sdk.changes.decide import INBOX_PAGE
from workflow_sdk.changes.deliver import NewMessage, ending_of, put
from workflow_sdk.changes.instances import find
from workflow_sdk.changes.rewinding.loop_tape import LoopStart, LoopTape
from workflow_sdk.driver import Set
from workflow_sdk.errors import DefinitionError
from workflow_sdk.journal.compensation import Compensation, Progress
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.journal.names import NameRow
from workflow_sdk.rows.entries import ChildData, Entry, read_token, token_of
from workflow_sdk.rows.keys import (
    ARCHIVE,
    BASES,
    CHANGES,
    COMPENSATIONS,
    FOLDED,
    HISTORY,
    INBOX,
    NAMES,
    OUTSIDE,
    PATCHED,
    TAKINGS,
    Field,
    InstanceKeys,
)
from workflow_sdk.rows.location import escape, join_path, segments, split_last, subtree
from workflow_sdk.rows.outside import Ending, Hanging
from workflow_sdk.rows.status import Kind
from workflow_sdk.rows.wire import damaged

DIGITS_MAX = 18
"""The number of a turn never has more digits. Python would refuse to read very long ones."""


def scopes_around(location: bytes) -> list[bytes]:
    """The locations of the scopes around a location, outermost first. The first is that of the workflow: empty."""
    found: list[bytes] = []
    while location:
        location, _ = split_last(location)
        found.append(location)
    return found[::-1]


class Tree:
    """The entries of a history by their locations, and the paths by which people name them."""

    def __init__(self, texts: dict[int, str], entries: Iterable[tuple[bytes, Entry]]) -> None:
        self.texts = texts
        """The text of every name, by its index."""
        self.entries: SortedDict[bytes, Entry] = SortedDict(entries)
        self.bases: dict[bytes, list[tuple[bytes, bytes]]] = {}
        """The rows of the states with which turns began, by the location of their loop."""
        self.paths: dict[str, bytes] = {}
        """The location of every entry, and of every branch that is under way, which has no entry yet."""
        for location in self.entries:
            for at in (*scopes_around(location)[1:], location):
                if at in self.entries or not self.is_loop(split_last(at)[0]):
                    self.paths[self.path(at)] = at

    def path(self, location: bytes) -> str:
        """The path of a location."""
        path, at = "", b""
        for around in [*scopes_around(location), location][1:]:
            (found,) = segments(around[len(at) :])
            if isinstance(found, tuple):
                label = f"~{found[1]}" if self.is_loop(at) else str(found[1])
                if self.kind(at) is Kind.GRAPH:
                    label = f"{escape(self.texts.get(found[0], f'?{found[0]}'))}/~{found[1]}"
            else:
                label = escape(self.texts.get(found, f"?{found}"))
            path, at = join_path(path, label), around
        return path

    def kind(self, location: bytes) -> Kind | None:
        """The kind of the entry at a location; None if there is none."""
        entry = self.entries.get(location)
        return None if entry is None else entry.kind

    def is_loop(self, location: bytes) -> bool:
        """Whether the entry at a location is a loop."""
        return self.kind(location) is Kind.LOOP

    def inside(self, location: bytes) -> Iterator[bytes]:
        """The locations of the entries in a scope, at any depth."""
        return self.entries.irange(*subtree(location))

    def loop(self, location: bytes) -> LoopTape:
        """The loop at a location, with its turns."""
        inside = {at: self.entries[at] for at in self.inside(location)}
        return LoopTape(location, self.entries[location], inside, self.bases.get(location, []))

    def locate(self, path: str) -> bytes:
        """The location of an entry, or of a turn of a loop; DefinitionError if there is none."""
        if path in self.paths:
            return self.paths[path]
        # A turn has no entry of its own, and if its history was pruned, there is none under it either. So look for the
        # longest part of the path that is a loop: the error then says from which of its turns one can restart.
        parts = path.split("/")
        for size in range(len(parts) - 1, 0, -1):
            around, label = self.paths.get("/".join(parts[:size])), parts[size]
            if around is None or not self.is_loop(around) or label[:1] != "~" or not label[1:].isdecimal():
                continue
            start = self.start(around, int(label[1 : DIGITS_MAX + 1]), path)
            if size == len(parts) - 1:
                return start.loop.turn_location(start.turn)
            break
        raise DefinitionError(f"there is no entry {path!r} to restart from; `history()` shows those that there are")

    def start(self, location: bytes, turn: int, path: str) -> LoopStart:
        """Begin the loop at a location again with a turn; DefinitionError, which names `path`, if it can't."""
        loop = self.loop(location)
        start = loop.start(turn)
        if start is None:
            there = loop.startable()
            known = f"there are the turns ~{there[0]} to ~{there[-1]}" if there else "it keeps none"
            raise DefinitionError(
                f"can't restart from {path!r}: the history of turn ~{turn} of loop {self.path(location)!r} "
                f"is not there; {known}"
            )
        return start


class LeftChild(Struct, frozen=True):
    """A child that a cancel left running. It still tells the instance of its end, though nobody waits for that now."""

    hanging: Hanging
    token: bytes
    ending: Ending | None
    """How the child ended; None if it has not."""
    at: float
    """When the head of the child was last written."""

    def wait_again(self, keys: InstanceKeys, location: bytes) -> list[Writing]:
        """The writes that have the instance wait for the child again, and that tell it of the end if that has come."""
        writes: list[Writing] = [Set(keys.space + OUTSIDE + location, self.hanging.pack())]
        return (
            writes if self.ending is None else writes + put(keys, NewMessage(self.token, self.ending.pack()), self.at)
        )


class Record(Struct, frozen=True):
    """The history of one instance. Unless said otherwise, locations are those of entries."""

    keys: InstanceKeys
    tree: Tree
    compensations: list[Compensation]
    takings: list[bytes]
    """The ends of the keys of messages that open races have taken: the location of the listen, and a number."""
    outside: dict[bytes, Hanging]
    """The children and tasks that the instance waits for, by the location of the wait."""
    changed: list[bytes]
    """The locations of finished scopes that have changed the public state."""
    folded: dict[bytes, bytes]
    """The rows of changes of the public state by scopes inside finished ones and by turns of loops, by location."""
    patched: dict[bytes, bytes]
    """What scopes in firings of graphs have changed in the contexts of these, and what loops had before a turn."""
    archive: list[bytes]
    """The locations of entries in the archive: the history of race losers that compensations need."""
    addressed: list[bytes]
    """The locations of waits to which messages in the inbox are addressed."""
    left: dict[bytes, LeftChild]
    """Children that a cancel left running, by the location of the wait that it ended."""

    @property
    def undoes_again(self) -> bool:
        """Whether something was undone already. If it happens again, that is a new step for the outside."""
        return any(compensation.progress is Progress.DONE for compensation in self.compensations)

    def orphans(self) -> set[bytes]:
        """The locations of waits for what is outside that a cancel has ended, and that have to begin anew."""
        return {
            at
            for at, entry in self.tree.entries.items()
            if entry.kind in (Kind.CHILD, Kind.TASK, Kind.EFFECT)
            and not entry.is_final
            and at not in self.outside
            and at not in self.left
        }


def read_record(keys: InstanceKeys) -> Steps[Record]:
    """Read the history of an instance, and the rows that belong to it."""
    texts = texts_in((yield from _part(keys, NAMES)))
    history = yield from _part(keys, HISTORY)
    tree = Tree(texts, ((at, Entry.unpack(raw)) for at, raw in history))
    for turn, raw in (yield from _part(keys, BASES)):
        tree.bases.setdefault(split_last(turn)[0], []).append((turn, raw))
    compensations = compensations_in((yield from _part(keys, COMPENSATIONS)))
    takings = [key for key, _ in (yield from _part(keys, TAKINGS))]
    outside = {at: Hanging.unpack(raw) for at, raw in (yield from _part(keys, OUTSIDE))}
    return Record(
        keys,
        tree,
        compensations,
        takings,
        outside,
        changed=[at for at, _ in (yield from _part(keys, CHANGES))],
        folded=dict((yield from _part(keys, FOLDED))),
        patched=dict((yield from _part(keys, PATCHED))),
        archive=[at for at, _ in (yield from _part(keys, ARCHIVE))],
        addressed=(yield from _read_addressed(keys)),
        left=(yield from _read_left(keys, tree, outside)),
    )


def _part(keys: InstanceKeys, part: bytes) -> Steps[list[tuple[bytes, bytes]]]:
    """Read the rows of a part of the instance's space; each comes with the end of its key, after that part."""
    start = len(keys.space) + len(part)
    return [(key[start:], raw) for key, raw in (yield from scan(*keys.range(part)))]


def texts_in(rows: Iterable[tuple[bytes, bytes]]) -> dict[int, str]:
    """The text of every name, by its index, from the rows of the names."""
    return {_number(key): NameRow.unpack(raw).text for key, raw in rows}


def compensations_in(rows: Iterable[tuple[bytes, bytes]]) -> list[Compensation]:
    """The compensations, in order of completion, from their rows."""
    return [Compensation.unpack(_number(key), raw) for key, raw in rows]


def _number(packed: bytes) -> int:
    number = next(segments(packed), None)
    if not isinstance(number, int):
        raise damaged("a number")
    return number


def _read_addressed(keys: InstanceKeys) -> Steps[list[bytes]]:
    found: list[bytes] = []
    begin, end = keys.range(INBOX)
    # In pages, since payloads may be large.
    while rows := (yield from scan(begin, end, limit=INBOX_PAGE)):
        for _, raw in rows:
            if (only_for := InboxMessage.unpack(b"", raw).only_for) is not None:
                found.append(read_token(only_for)[1])
        begin = rows[-1][0] + b"\x00"
    return found


def _read_left(keys: InstanceKeys, tree: Tree, outside: dict[bytes, Hanging]) -> Steps[dict[bytes, LeftChild]]:
    found: dict[bytes, LeftChild] = {}
    for at, entry in tree.entries.items():
        if isinstance(entry.data, ChildData) and not entry.is_final and at not in outside:
            left = yield from _find_left(keys, at, entry, entry.data)
            if left is not None:
                found[at] = left
    return found


def _find_left(keys: InstanceKeys, at: bytes, entry: Entry, data: ChildData) -> Steps[LeftChild | None]:
    """The child that was waited for at a location, if it was left running and still tells the instance of its end."""
    child = InstanceKeys(data.id)
    about = (yield from find(child)).about
    token = token_of(at, entry)
    # A child that is cancelled with its parent was told to end: its end is not a result to wait for again.
    if data.cancels or not about or (keys.instance_id, token) not in about.watchers:
        return None
    # The head changes when the child ends, and then the ending below would be wrong: so the commit checks it.
    yield Get(child.field(Field.HEAD))
    return LeftChild(
        Hanging("child", data.id, data.cancels, entry.since),
        token,
        ending_of(about) if about.status.is_terminal else None,
        about.head.changed_at,
    )
