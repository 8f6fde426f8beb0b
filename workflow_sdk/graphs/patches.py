"""What one firing has changed in the context of its graph, and in which scopes.

A body that is replayed makes its changes again. But it does not enter a branch, an attempt or a loop again that is
over: what these have changed is kept, and is changed again where the replay passes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sortedcontainers import SortedDict

from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.rows import PATCHES, RowKey
from workflow_sdk.values import Codec

Changes = dict[str, tuple[int, Any]]
"""By name: the number of the change, which grows, and the value."""


class Scopes:
    """The changes of scopes, by their locations. Most firings have none, so there is nothing until something is put."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: SortedDict[bytes, Changes] | None = None

    def __bool__(self) -> bool:
        return bool(self._found)

    def get(self, location: bytes) -> Changes | None:
        """What a scope has changed."""
        return None if self._found is None else self._found.get(location)

    def put(self, location: bytes, changes: Changes) -> Changes:
        """Have this be what a scope has changed."""
        if self._found is None:
            self._found = SortedDict()
        self._found[location] = changes
        return changes

    def pop(self, location: bytes) -> Changes:
        """Take out what a scope has changed."""
        assert self._found is not None, "there is something to be taken out"
        changes: Changes = self._found.pop(location)
        return changes

    def under(self, location: bytes) -> list[bytes]:
        """The scopes at a location and inside."""
        return [] if self._found is None else list(self._found.irange(location, location + b"\xff"))

    def take_all(self) -> list[tuple[bytes, Changes]]:
        """Take out everything."""
        found, self._found = self._found, None
        return [] if found is None else list(found.items())


def store_changes(marking: Marking, number: int, location: bytes, changes: bytes | None) -> RowKey:
    """Have the next write store what a scope of a firing has changed; None: that is kept with another scope.

    Returns the key of the row.
    """
    place = location.hex()
    if changes is None:
        marking.patches[number].pop(place)
    else:
        marking.patches.setdefault(number, {})[place] = changes
    row = (PATCHES, number, place)
    marking.changed[row] = changes
    return row


def stored_changes(marking: Marking, number: int, codec: Codec) -> Scopes:
    """What scopes of a firing that are over have changed."""
    found = Scopes()
    for place, raw in marking.patches.get(number, {}).items():
        changes: dict[str, list[Any]] = codec.decode(raw, plain=True)
        found.put(bytes.fromhex(place), {name: (at, value) for name, (at, value) in changes.items()})
    return found


class Patches:
    """The changes of a firing, or of a part of one."""

    __slots__ = ("_kept", "_mine", "_newest", "_number", "_own", "_scopes", "_write", "merged")

    def __init__(self, own: bytes, kept: Scopes, write: Callable[[bytes, Changes | None], None]) -> None:
        """`own`: the location of the scope whose code is called again, so that nothing is kept of it.

        `kept`: what scopes that are over have changed. `write` stores that of one scope; None: there is nothing more.
        """
        self._own = own
        self._kept = kept
        self._write = write
        self._number = 0
        self._mine: Changes = {}
        """Those of its own scope: most have no others."""
        self._scopes = Scopes()
        self._newest: dict[str, int] = {}
        self.merged: dict[str, Any] = {}
        """All changes as one."""

    def add(self, scope: bytes, values: Mapping[str, Any]) -> None:
        """Note what a scope has changed."""
        self._number += 1
        self._note(scope, {name: (self._number, value) for name, value in values.items()})

    def pass_by(self, location: bytes) -> None:
        """A replay does not enter a scope, or not from its beginning: what it has changed is changed again."""
        if (changes := self._kept.get(location)) is not None:
            self._note(location, changes)

    def keep(self, location: bytes) -> None:
        """A scope is over: keep what it and all inside have changed, in one."""
        if location == self._own or not (self._scopes or self._kept):
            return
        changed = _newest(self._scopes.pop(at) for at in self._scopes.under(location))
        for at in self._kept.under(location):
            if at != location:
                self._kept.pop(at)
                self._write(at, None)
        if changed:
            self._scopes.put(location, dict(changed))
        if changed and changed != self._kept.get(location):
            self._kept.put(location, changed)
            self._write(location, changed)

    def inside(self, location: bytes) -> Changes:
        """What a scope and all inside have changed so far."""
        return _newest(changes for at in self._scopes.under(location) if (changes := self._scopes.get(at)) is not None)

    def drop(self, locations: Iterable[bytes]) -> None:
        """Scopes have lost a race: what they have changed is as it was."""
        for location in locations:
            for at in self._scopes.under(location):
                self._scopes.pop(at)
            for at in self._kept.under(location):
                self._kept.pop(at)
                self._write(at, None)
        left = [(self._own, self._mine), *self._scopes.take_all()]
        self._mine = {}
        self.clear()
        for at, changes in left:
            self._note(at, changes)

    def clear(self) -> None:
        """The code is called again from its beginning."""
        self._mine.clear()
        self._scopes.take_all()
        self._newest.clear()
        self.merged.clear()
        self._number = 0

    def _note(self, scope: bytes, changes: Changes) -> None:
        noted = self._mine if scope == self._own else self._scopes.get(scope)
        if noted is None:
            noted = self._scopes.put(scope, {})
        for name, (number, value) in changes.items():
            self._number = max(self._number, number)
            noted[name] = (number, value)
            if number >= self._newest.get(name, 0):
                self._newest[name] = number
                self.merged[name] = value


def _newest(several: Iterable[Changes]) -> Changes:
    found: Changes = {}
    for changes in several:
        for name, change in changes.items():
            if name not in found or found[name][0] < change[0]:
                found[name] = change
    return found
