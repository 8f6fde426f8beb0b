"""The names of operations, and their indexes: a name is stored once, and keys hold a small number instead, its index.

A name that is first used inside a loop belongs to that loop, and is deleted when the last turn that used it is pruned.
Otherwise a loop that names its steps after its data would leave all these names behind. When a loop ends, its names
pass to the scope around it. If that scope has the same text under another index by then, the index of the loop is
shadowed: it is kept for the keys that hold it, and new operations use the index of the scope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from sortedcontainers import SortedDict

from workflow_sdk.rows.keys import NAMES
from workflow_sdk.rows.location import pack_segment, segments
from workflow_sdk.rows.wire import Row

NAME_CHARACTERS_MAX = 1000


class NameRow(Row, frozen=True):
    """A name as it is stored. The fields after its text are for names that belong to a loop."""

    WHAT: ClassVar[str] = "a name"

    text: str
    owner: bytes = b""
    """The location of the loop; empty for the root."""
    shadowed: bool = False
    """Whether new operations of this name use another index."""
    last_used: int = 0
    """The name is deleted when this turn is pruned."""


# Shared by all, and never written to.
_NEVER_USED: dict[int, int] = {}
_NO_TABLES: SortedDict[bytes, NameTable] = SortedDict()

Write = Callable[[bytes, "bytes | None"], None]
"""Writes a changed row: its key in the instance's space and its value, or None to clear it."""


def _key(index: int) -> bytes:
    return NAMES + pack_segment(index)


class NameTable:
    """The names of one loop, or of the root. Names that it lacks are looked up in the scopes around it."""

    __slots__ = ("_names", "ahead", "first", "index", "last_used", "owner", "parent", "turn")

    def __init__(self, names: Names, owner: bytes, parent: NameTable | None) -> None:
        self._names = names
        self.owner: bytes = owner
        self.parent: NameTable | None = parent
        self.index: dict[str, int] = {}
        self.last_used: dict[int, int] = _NEVER_USED if parent is None else {}
        """The `NameRow.last_used` of each index, as the store has it. The root has none."""
        self.turn: int = 0
        self.first: int = 0
        """The first turn of this loop that is not pruned."""
        self.ahead: int = 0
        """For how many turns ahead a name that is used again is kept, so that its row is not written in every turn."""

    def find(self, text: str) -> int | None:
        """The index of a name, in this scope or one around it."""
        table: NameTable | None = self
        while table is not None:
            index = table.index.get(text)
            if index is not None:
                if table.parent is not None and table.last_used[index] < table.turn:
                    self._names.keep(table, index, table.turn + table.ahead)
                return index
            table = table.parent
        return None

    def intern(self, text: str) -> int:
        """The index of a name. A name without one gets one."""
        index = self.find(text)
        return self._names.add(self, text) if index is None else index

    def add(self, text: str) -> int:
        """Give an index to a name that has none."""
        return self._names.add(self, text)

    def has_forgotten(self, location: bytes, names: Names) -> bool:
        """Whether a location under this loop is gone, because its turn was pruned or the instance has started over."""
        if names is not self._names:
            return True
        table = self
        while table.parent is not None:
            turn = next(segments(location[len(table.owner) :]), None)
            if isinstance(turn, tuple) and turn[1] < table.first:
                return True
            table = table.parent
        return False

    def prune(self, before: int) -> None:
        """Delete the names that no turn from `before` on has used."""
        self.first = before
        gone = [index for index, turn in self.last_used.items() if turn < before]
        for index in gone:
            self._names.forget(self, index)

    def end(self) -> None:
        """Pass the names of this loop, which has ended, to the scope around it."""
        self._names.adopt(self)


class Names:
    """Every name of an instance."""

    __slots__ = ("_next", "_tables", "_write", "root", "texts")

    def __init__(self, write: Write) -> None:
        self.texts: dict[int, str] = {}
        self._write = write
        self._next = 0
        self.root: NameTable = NameTable(self, b"", None)
        self._tables: SortedDict[bytes, NameTable] = _NO_TABLES

    def load(self, index: int, value: bytes) -> None:
        """Take in a row of the store."""
        name = NameRow.unpack(value)
        self.texts[index] = name.text
        self._next = max(self._next, index + 1)
        table = self._table(name.owner) if name.owner else self.root
        if not name.shadowed:
            table.index[name.text] = index
        if name.owner:
            table.last_used[index] = name.last_used

    def _table(self, owner: bytes) -> NameTable:
        if self._tables is _NO_TABLES:
            self._tables = SortedDict()
        if owner not in self._tables:
            self._tables[owner] = NameTable(self, owner, self.root)
        return self._tables[owner]

    def open(self, owner: bytes, parent: NameTable, turn: int, ahead: int) -> NameTable:
        """The table of a loop that begins, or goes on, with `turn`."""
        table = self._table(owner)
        table.parent = parent
        table.turn = turn
        table.ahead = ahead
        return table

    def add(self, table: NameTable, text: str) -> int:
        """Give a name a new index, in `table`."""
        index = self._next
        self._next += 1
        self.texts[index] = text
        table.index[text] = index
        self.keep(table, index, table.turn)
        return index

    def keep(self, table: NameTable, index: int, turn: int, *, shadowed: bool = False) -> None:
        """Keep a name of `table` until the turn is pruned; for ever, if `table` is that of the root."""
        text = self.texts[index]
        if table.parent is not None:
            table.last_used[index] = turn
            row = NameRow(text, table.owner, shadowed, turn)
        else:
            row = NameRow(text, shadowed=shadowed)
        self._write(_key(index), row.pack())

    def forget(self, table: NameTable, index: int) -> None:
        """Delete an index of `table`."""
        text = self.texts.pop(index)
        del table.last_used[index]
        if table.index.get(text) == index:
            del table.index[text]
        self._write(_key(index), None)

    def adopt(self, table: NameTable) -> None:
        """Pass the names of a loop that has ended to the table around it."""
        parent = table.parent
        assert parent is not None, "the root's names have nowhere to go"
        for index in table.last_used:
            text = self.texts[index]
            # If the text has an index there already, entries may use it. So new operations go on using that one.
            shadowed = parent.find(text) is not None
            if not shadowed:
                parent.index[text] = index
            self.keep(parent, index, parent.turn, shadowed=shadowed)
        self._tables.pop(table.owner, None)

    def drop(self, packed: bytes, *, but: bytes | None = None) -> None:
        """Delete the names of all loops under a location whose history is cleared, except at and under `but`."""
        for owner in list(self._tables.irange(packed, packed + b"\xff")):
            if but is not None and owner.startswith(but):
                continue
            table = self._tables.pop(owner)
            for index in list(table.last_used):
                self.forget(table, index)


def name_problem(name: object) -> str | None:
    """Why this can't be the name of an operation or branch, or None."""
    if not isinstance(name, str):
        return f"a name is a text, not {type(name).__name__}"
    if not name:
        return "a name can't be empty"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"a name has at most {NAME_CHARACTERS_MAX} characters, not {len(name)}"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "a name is text that can be encoded; this one holds half a surrogate pair"
    return None
