"""The index of the cells of a machine, addressed by content: equal cells have the same root.

An entry says where the state of a cell is, by its hash. Entries are in pages, by the first byte of the hash of the
cell's key, and the root is the hash of the list of pages. Whoever has the root can read all of it, and show of every
part that it is the right one; whoever changes one cell writes its page and the root again, and no other page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

from workflow_sdk.errors import CodecError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.cell import CellData, CellMessage, decide
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.stepping import EventData, RefusedError

_NANOSECONDS: Final = 1_000_000_000

Reading = Callable[[str], bytes]
"""Gives the bytes that have a hash; KeyError, if they are not there."""


class IndexEntry(NamedTuple):
    """One cell in the index."""

    key_hash: bytes
    key: bytes | None
    state_hash: bytes
    size: int
    """Of its state, in bytes."""
    last_active: int
    """When it took its last event, in nanoseconds."""


class Page(NamedTuple):
    """The cells whose hashes of keys begin with the same byte."""

    entries: Mapping[bytes, IndexEntry]
    """By the hash of the key."""
    data: bytes
    hash: str


class Index:
    """The index of the cells of a machine. It never changes: `updated` gives another one."""

    def __init__(self, pages: Mapping[int, Page]) -> None:
        self.pages: dict[int, Page] = {place: pages[place] for place in sorted(pages)}
        self.count: int = sum(len(page.entries) for page in self.pages.values())
        self.data: bytes = canonical.bare(
            {"count": self.count, "pages": [[place, page.hash] for place, page in self.pages.items()]}
        )
        """What the root is the hash of."""
        self.root: str = hash_of(self.data)

    def __iter__(self) -> Iterator[IndexEntry]:
        for page in self.pages.values():
            yield from page.entries.values()

    def updated(self, cells: Iterable[CellData]) -> Index:
        """The index in which these cells are as they are now. Pages without one of them stay as they were."""
        changed: defaultdict[int, dict[bytes, IndexEntry | None]] = defaultdict(dict)
        for cell in cells:
            hashed = hash_of_key(cell.key)
            changed[hashed[0]][hashed] = entry_of(cell)
        pages = dict(self.pages)
        for place, ours in changed.items():
            before = pages.pop(place).entries.items() if place in pages else ()
            after = {hashed: one for hashed, one in {**dict(before), **ours}.items() if one is not None}
            if after:
                pages[place] = _page(after)
        return Index(pages)

    @property
    def blobs(self) -> dict[str, bytes]:
        """Its pages and what the root is the hash of, by hash."""
        return {page.hash: page.data for page in self.pages.values()} | {self.root: self.data}


def hash_of(data: bytes) -> str:
    """What bytes are found by."""
    return sha256(data).hexdigest()


def hash_of_key(key: bytes | None) -> bytes:
    """What a cell is found by."""
    return sha256(key or b"").digest()


def entry_of(cell: CellData) -> IndexEntry | None:
    """The entry of a cell; None, if it has no state, and so is none."""
    if cell.state is None:
        return None
    last_active = round(cell.changed_at * _NANOSECONDS)
    return IndexEntry(hash_of_key(cell.key), cell.key, sha256(cell.state).digest(), len(cell.state), last_active)


def index_of(cells: Iterable[CellData]) -> Index:
    """The index of cells."""
    return Index({}).updated(cells)


def read_index(root: str, read: Reading) -> Index:
    """The index that has this root; CodecError, if something of it is not what it was."""
    top: dict[str, Any] = canonical.restored(_checked(root, read))
    pages: dict[int, Page] = {}
    for place, hashed in top["pages"]:
        data = _checked(hashed, read)
        entries = [IndexEntry(*fields) for fields in canonical.restored(data)]
        pages[place] = Page({entry.key_hash: entry for entry in entries}, data, hashed)
    return Index(pages)


def pages_of(data: bytes) -> list[str]:
    """The hashes of the pages of an index, by what its root is the hash of."""
    return [hashed for _, hashed in canonical.restored(data)["pages"]]


def reachable(root: str, read: Reading) -> set[str]:
    """The hashes of all that belongs to the index with this root: its pages, and the states of its cells."""
    index = read_index(root, read)
    return {*index.blobs, *(entry.state_hash.hex() for entry in index)}


def _checked(hashed: str, read: Reading) -> bytes:
    try:
        data = read(hashed)
    except KeyError:
        raise CodecError(f"the bytes of {hashed} are not there") from None
    if hash_of(data) != hashed:
        raise CodecError(f"the bytes of {hashed} have another hash: they are damaged")
    return data


def _page(entries: Mapping[bytes, IndexEntry]) -> Page:
    in_order = {hashed: entries[hashed] for hashed in sorted(entries)}
    data = canonical.bare([list(entry) for entry in in_order.values()])
    return Page(in_order, data, hash_of(data))


@dataclass(frozen=True)
class Snapshot:
    """The cells of a machine at a moment at which nothing was queued or in flight. Equal cells have the same root."""

    machine: str
    root: str
    count: int
    """How many cells there are in it."""
    read: Reading = field(repr=False, compare=False)
    """Gives what it consists of, by hash."""

    def entries(self) -> list[IndexEntry]:
        """The cells in it, without their states, in the order of the hashes of their keys."""
        return list(read_index(self.root, self.read))

    def cells(self) -> list[CellData]:
        """The cells in it. What only their journal knows, how often each was called, is 0 in them."""
        return [
            CellData(one.key, _checked(one.state_hash.hex(), self.read), changed_at=one.last_active / _NANOSECONDS)
            for one in self.entries()
        ]


def snapshot_of(machine: str, cells: Iterable[CellData]) -> tuple[Snapshot, dict[str, bytes]]:
    """A snapshot of cells, and what it consists of by hash: the pages of the index, and the states."""
    kept = [cell for cell in cells if cell.state is not None]
    index = index_of(kept)
    blobs = index.blobs | {hash_of(cell.state): cell.state for cell in kept if cell.state is not None}
    return Snapshot(machine, index.root, index.count, blobs.__getitem__), blobs


class Recorded(Protocol):
    """An entry of a journal, as replay needs it."""

    @property
    def machine(self) -> str: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def schema(self) -> str: ...
    @property
    def value(self) -> bytes: ...
    @property
    def at(self) -> float: ...
    @property
    def sequence(self) -> int: ...
    @property
    def begins(self) -> bool: ...


class Mismatch(NamedTuple):
    """A cell that replay has not led to where it was."""

    key: Any
    """Of the cell, as plain data."""
    reason: str


@dataclass(frozen=True)
class Replay:
    """What a journal has led to."""

    root: str
    """Of the index of the cells that it has led to."""
    mismatches: tuple[Mismatch, ...]
    """The cells that are not as expected, and those that could not be replayed."""
    forgotten: tuple[Any, ...] = ()
    """The keys of cells that had ended and were deleted since, as their retention says or by hand."""

    @property
    def is_equal(self) -> bool:
        """Whether every cell is as expected."""
        return not self.mismatches


def replay(
    machine: Machine[Any],
    cells: Iterable[CellData],
    journal: Iterable[Recorded],
    expected: Index | None = None,
    *,
    manifest_hash: str = "",
    counts: Mapping[bytes | None, int] | None = None,
) -> Replay:
    """Take the messages of a journal again, from the cells of a snapshot on, or from none.

    With `expected`, the cells that it leads to are compared with that index, one by one. `counts` are of cells that
    were deleted: how many transitions they had made. One of which replay makes as many was not deleted by a transition.
    """
    replaying = _Replaying(machine, cells, manifest_hash)
    for entry in journal:
        if entry.machine == machine.name:
            replaying.take(entry)
    forgotten = replaying.forget(counts or {})
    index = index_of(replaying.cells.values())
    found = replaying.mismatches
    if expected is not None:
        for key, reason in _differences(index, expected):
            found.setdefault(key, reason)
    told = tuple(Mismatch(_plain_key(key), why) for key, why in found.items())
    return Replay(index.root, told, tuple(map(_plain_key, forgotten)))


def _plain_key(key: bytes | None) -> Any:
    return None if key is None else canonical.restored(key)


class _Replaying:
    """The cells of a machine, while a journal is replayed."""

    def __init__(self, machine: Machine[Any], cells: Iterable[CellData], manifest_hash: str) -> None:
        self.machine = machine
        self.manifest_hash = manifest_hash
        self.cells = {cell.key: cell for cell in cells}
        self.begun: set[bytes | None] = set()
        self.mismatches: dict[bytes | None, str] = {}

    def take(self, entry: Recorded) -> None:
        """Have the cell take the message again, unless it is lost already."""
        key = entry.key
        if key in self.mismatches:
            return
        cell = self.cells.get(key, CellData(key))
        if key not in self.begun:
            self.begun.add(key)
            cell = replace(cell, sequence=entry.sequence)
        if entry.begins:
            cell = CellData(key, sequence=cell.sequence)  # what had ended was deleted in between
        try:
            self.cells[key] = self._taken(cell, entry)
        except RefusedError as error:
            self.mismatches[key] = str(error)

    def forget(self, counts: Mapping[bytes | None, int]) -> list[bytes | None]:
        """Delete the cells that were not deleted by a transition, and are not there any more; return their keys."""
        found: list[bytes | None] = []
        for key, count in counts.items():
            cell = self.cells.get(key)
            if cell is None or cell.state is None or key in self.mismatches:
                continue
            if key not in self.begun or cell.sequence == count:
                del self.cells[key]
                found.append(key)
        return found

    def _taken(self, cell: CellData, entry: Recorded) -> CellData:
        where = f"the journal goes on with {entry.schema} after {entry.sequence} transitions"
        if cell.sequence != entry.sequence:
            raise RefusedError(f"{where}, and replay has made {cell.sequence}")
        message = CellMessage(EventData(entry.schema, entry.value), entry.at)
        after = decide(self.machine, cell, message, entry.at, self.manifest_hash).cell
        if after is cell:
            raise RefusedError(f"{where}, and in replay nobody waits for it")
        return after


def _differences(index: Index, expected: Index) -> Iterator[tuple[bytes | None, str]]:
    ours = {one.key_hash: one for one in index}
    theirs = {one.key_hash: one for one in expected}
    for hashed in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(hashed), theirs.get(hashed)
        if mine is None:
            assert other is not None, "it is in one of the two"
            yield other.key, "replay has not led to this cell"
        elif other is None:
            yield mine.key, "replay has led to a cell that is not expected"
        elif mine.state_hash != other.state_hash:
            yield mine.key, "replay has led to another state"
        elif mine != other:
            yield mine.key, "replay has led to this state at another time"
