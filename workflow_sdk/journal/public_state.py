"""The public state of an instance: its state, its reference and its progress.

The author assigns to them as to variables, and a replay assigns the same again. But a replay does not enter finished
scopes, nor past turns of a loop. What was assigned in these is stored beside their entries, and a replay applies that
instead. So each change is noted under the scope that made it, and goes into the row of the scope when that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

from sortedcontainers import SortedDict

from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.journal.names import name_problem
from workflow_sdk.rows.instance import ChangesRow, InstanceRows, Shown
from workflow_sdk.rows.instance import State as StateRow
from workflow_sdk.rows.wire import COUNT_MAX, Text, damaged, shown
from workflow_sdk.values import Codec
from workflow_sdk.values.basics import is_a


class Change(NamedTuple):
    """The changes that one scope has made to one value, as one change."""

    first: int
    """The number of the first change. Numbers grow with every change of any value."""
    last: int
    before: bytes | None
    raw: bytes | None

    def merged(self, other: Change | None) -> Change:
        """Merge this with another change of the same value."""
        if other is None:
            return self
        older, newer = (self, other) if self.first < other.first else (other, self)
        end = max(self, other, key=lambda change: change.last)
        return Change(older.first, max(self.last, newer.last), older.before, end.raw)


Progress = tuple[float, "float | None", "str | None"]
"""How much is done, of how much, and a note."""


_REFERENCE = "reference"
_PROGRESS = "progress"
_STATE = "state "
"""The prefix of the names of the state."""

_FIXED = frozenset({str, int, float, bool, bytes, type(None)})
"""The types whose values can't be changed in place."""

Changes = dict[str, "bytes | None"]


class State(MutableMapping[str, Any]):
    """The state of an instance, as a dict. Values that are put into it have to be storable, and are copied.

    It is sorted by name, so that its order is the same in every replay.
    """

    __slots__ = ("_assigning", "_public")

    def __init__(self, public: PublicState, assigning: Callable[[], AbstractContextManager[None]]) -> None:
        self._public = public
        self._assigning = assigning
        """Makes a context in which each assignment is made."""

    def __getitem__(self, name: str) -> Any:
        return self._public.values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        with self._assigning():
            self._public.assign(name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self._public.values:
            raise KeyError(name)
        with self._assigning():
            self._public.remove(name)

    def setdefault(self, name: str, default: Any = None, /) -> Any:
        """Return the value of a name; if there is none, set the default first."""
        if name not in self:
            self[name] = default
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._public.values))

    def __len__(self) -> int:
        return len(self._public.values)

    def __repr__(self) -> str:
        return repr(dict(self))


class PublicState:
    """The public state as one run has assigned it so far."""

    __slots__ = (
        "_codec",
        "_folded",
        "_known",
        "_last",
        "_loose",
        "_noted",
        "_number",
        "_shown",
        "_told",
        "_touched",
        "progress",
        "reference",
        "values",
    )

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.values: dict[str, Any] = {}
        self.reference: str | None = None
        self.progress: Progress | None = None
        self._touched: set[str] = set()
        """The names that were assigned since the last note."""
        self._loose: set[str] = set()
        """The names of values that the code may change in place, without an assignment."""
        self._known: dict[str, bytes] = {}
        """All values, encoded, as they were when they were last noted."""
        self._noted: SortedDict[bytes, dict[str, Change]] = SortedDict()
        """The changes of each scope, by its location."""
        self._last: dict[str, int] = {}
        """The number of the last change of each value."""
        self._folded: SortedDict[bytes, bytes] = SortedDict()
        """The row of each scope that `fold` gave last, by location."""
        self._number = 0
        self._told: tuple[str | None, Text | None] = (None, None)
        """The note of the progress, and its stored form, which is kept so that it is encoded once."""
        self._shown: tuple[dict[str, bytes], bytes | None] = {}, None
        """The state that was last shown: each value, and the whole, encoded."""

    @property
    def state(self) -> State:
        """The state, for reading and assigning."""
        return State(self, nullcontext)

    def assign(self, name: object, value: object) -> None:
        """Assign one value of the state. The value is copied, so that later changes of the original do not matter."""
        copy = self._copy(name, value)
        assert isinstance(name, str), "names of the state are texts"
        self.values[name] = copy
        self._touched.add(_STATE + name)
        (self._loose.discard if type(copy) in _FIXED else self._loose.add)(name)

    def remove(self, name: str) -> None:
        """Remove a value of the state."""
        del self.values[name]
        self._loose.discard(name)
        self._touched.add(_STATE + name)

    def replace(self, values: object) -> None:
        """Assign the whole state."""
        if not is_a(values, Mapping):
            raise DefinitionError(f"ctx.state takes a dict whose keys are names, not {shown(values)}")
        fresh: dict[object, object] = dict(cast("Mapping[object, object]", values))
        for name, value in fresh.items():
            self._copy(name, value)
        for name in self.values.keys() - fresh.keys():
            self.remove(name)
        for name, value in fresh.items():
            self.assign(name, value)

    def refer(self, reference: object) -> None:
        """Assign the reference."""
        if reference is not None and (not isinstance(reference, str) or name_problem(reference) is not None):
            raise DefinitionError(f"ctx.reference is a text of 1 to 1000 characters, or None, not {shown(reference)}")
        self.reference = reference
        self._touched.add(_REFERENCE)

    def advance(self, done: object, total: object, note: object) -> None:
        """Assign the progress."""
        for number in (done, *([] if total is None else [total])):
            if isinstance(number, bool) or not isinstance(number, (int, float)) or number != number:
                raise DefinitionError(f"progress takes numbers, not {shown(number)}")
            if abs(number) > COUNT_MAX and isinstance(number, int):
                raise DefinitionError(
                    f"progress is told in whole numbers up to {COUNT_MAX:,}, and beyond that as a float, not "
                    f"{shown(number)}"
                )
        if note is not None and not isinstance(note, str):
            raise DefinitionError(f"the note of a progress is a text, not {shown(note)}")
        try:
            self._codec.encode([done, total, note])
        except CodecError as error:
            raise type(error)(f"ctx.progress: {error}") from None
        self.progress = cast("Progress", (done, total, note))
        self._touched.add(_PROGRESS)

    def _copy(self, name: object, value: object) -> Any:
        problem = name_problem(name) if isinstance(name, str) else "names of the state are texts"
        if problem is not None:
            raise DefinitionError(f"ctx.state[{name!r:.100}]: {problem}")
        try:
            return self._codec.roundtrip(value)[1]
        except CodecError as error:
            raise type(error)(f"ctx.state[{name!r}]: {error}") from None

    def note(self, scope: bytes) -> None:
        """Note all changes since the last call as changes of this scope."""
        if not self._touched and not self._loose:
            return
        known = self._known
        changes: Changes = {}
        for name in sorted(self._touched | {_STATE + name for name in self._loose}):
            raw = self._encode(name)
            if raw != known.get(name):
                changes[name] = raw
        self._touched.clear()
        if changes:
            self._add(scope, changes)

    def _add(self, scope: bytes, changes: Changes, at: int = 0) -> None:
        """Note changes; `at` is their number, if they were made before this run."""
        noted = self._noted.setdefault(scope, {})
        for name, raw in changes.items():
            number = at or self._number + 1
            self._number = max(self._number, number)
            change = Change(number, number, self._known.get(name), raw)
            noted[name] = change.merged(noted.get(name))
            self._last[name] = number
            self._learn(name, raw)

    def _learn(self, name: str, raw: bytes | None) -> None:
        if raw is None:
            self._known.pop(name, None)
        else:
            self._known[name] = raw

    def undo(self, losers: Sequence[bytes], winner: bytes) -> None:
        """Undo the changes that losers of a race have made, unless the winner has changed the same value since."""
        if losers:
            self.note(losers[0])
        gone: dict[str, Change] = {}
        for location in losers:
            for name, change in self._pop(location).items():
                gone[name] = change.merged(gone.get(name))
            self._pop_folded(location)
        kept = self._pop(winner)
        if kept:
            self._noted[winner] = kept
        for name, change in gone.items():
            if self._last[name] != change.last:
                continue
            raw = kept[name].raw if name in kept else change.before
            self._take(name, raw)
            self._learn(name, raw)

    def _pop(self, location: bytes) -> dict[str, Change]:
        """Remove all changes noted at and under a location, and return them merged."""
        merged: dict[str, Change] = {}
        for scope in list(self._noted.irange(location, location + b"\xff")):
            for name, change in self._noted.pop(scope).items():
                merged[name] = change.merged(merged.get(name))
        return merged

    def _encode(self, name: str) -> bytes | None:
        before = self._known.get(name)
        if name == _REFERENCE:
            return None if self.reference is None else self._codec.encode_like(before, self.reference)
        if name == _PROGRESS:
            return None if self.progress is None else self._codec.encode_like(before, list(self.progress))
        key = name.removeprefix(_STATE)
        if key not in self.values:
            return None
        try:
            return self._codec.encode_like(before, self.values[key])
        except CodecError as error:
            raise type(error)(f"ctx.state[{key!r}]: {error}") from None

    def fold(self, location: bytes) -> tuple[bytes, dict[bytes, bytes]] | None:
        """All changes at and under a location as a row, and the rows of scopes under it, which that row contains.

        None if nothing has changed since the last call.
        """
        raw = self.merge(location)
        inside = self._pop_folded(location)
        if raw is None or (self._folded.get(location) == raw and not inside):
            return None
        self._folded[location] = raw
        return raw, inside

    def merge(self, location: bytes) -> bytes | None:
        """All changes at and under a location as a row; None if there are none."""
        self.note(location)
        merged = self._pop(location)
        if not merged:
            return None
        self._noted[location] = merged
        return ChangesRow(tuple((name, change.raw, change.last) for name, change in sorted(merged.items()))).pack()

    def _pop_folded(self, location: bytes) -> dict[bytes, bytes]:
        """Remove the rows of scopes under a location, and return them."""
        inside = list(self._folded.irange(location, location + b"\xff", inclusive=(False, True)))
        return {at: self._folded.pop(at) for at in inside}

    def shown(self) -> tuple[StateRow | None, Shown | None]:
        """The rows of the public state as it is now."""
        before, state = self._shown
        now: dict[str, bytes] = {}
        for name in sorted(self.values):
            key = _STATE + name
            raw = self._encode(key) if name in self._loose or key in self._touched else self._known[key]
            assert raw is not None, "what is there can be encoded"
            now[name] = raw
        if now != before:
            try:
                state = self._codec.encode(dict(sorted(self.values.items()))) if now else None
            except CodecError as error:
                raise type(error)(f"ctx.state: {error}") from None
            self._shown = now, state
        progress = self._shown_progress()
        shown = None if progress is None and self.reference is None else Shown(self.reference, progress)
        return None if state is None else StateRow(state), shown

    def _shown_progress(self) -> tuple[float, float | None, Text | None] | None:
        """The progress, in its stored form."""
        if self.progress is None:
            return None
        done, total, note = self.progress
        if note != self._told[0]:
            self._told = note, None if note is None else Text.of(self._codec.encode_text(note))
        return done, total, self._told[1]

    def whole(self) -> bytes:
        """The whole public state as a row."""
        names = [_REFERENCE, _PROGRESS, *(_STATE + name for name in self.values)]
        return ChangesRow(
            tuple((name, raw, 0) for name in sorted(names) if (raw := self._encode(name)) is not None)
        ).pack()

    @classmethod
    def since_the_start(cls, codec: Codec, about: InstanceRows) -> PublicState:
        """The public state with which an instance begins: empty, or as it was when the instance started over."""
        public = cls(codec)
        base = about.birth.base
        if base is not None:
            public.apply({b"": base})
        return public

    def restore(self, about: InstanceRows) -> None:
        """Set everything to what was shown with the last commit, whatever was assigned since."""
        state = about.state
        values: dict[str, Any] = {} if state is None else self._codec.decode(state)
        for name in self.values.keys() | values.keys():
            self._take(_STATE + name, self._codec.encode(values[name]) if name in values else None)
        self.reference = about.shown.reference
        shown = about.shown.progress
        if shown is None:
            self.progress = None
        else:
            done, total, note = shown
            self.progress = (done, total, None if note is None else self._codec.decode_text(note.value))

    def apply(self, rows: Mapping[bytes, bytes]) -> None:
        """Apply the changes of finished scopes, given by location, in the order in which they were made."""
        found: list[tuple[int, str, bytes | None, bytes]] = []
        for location, row in rows.items():
            self._folded[location] = row
            found.extend((number, name, raw, location) for name, raw, number in ChangesRow.unpack(row).changes)
        for number, name, raw, location in sorted(found, key=lambda change: change[0]):
            self._take(name, raw)
            self._touched.discard(name)
            self._add(location, {name: raw}, number)

    def _take(self, name: str, raw: bytes | None) -> None:
        value: Any = None if raw is None else self._codec.decode(raw)
        if name == _REFERENCE and (value is None or isinstance(value, str)):
            self.reference = value
        elif name == _PROGRESS and (value is None or (is_a(value, list) and len(value) == 3)):
            self.progress = None if value is None else tuple(value)
        elif not name.startswith(_STATE):
            raise damaged("a change of the state")
        else:
            key = name.removeprefix(_STATE)
            self._loose.discard(key)
            if raw is None:
                self.values.pop(key, None)
                return
            if type(value) not in _FIXED:
                self._loose.add(key)
            before: Any = self.values.get(key)
            # Code that holds the list or dict sees the change, as it did the first time.
            if type(value) is type(before) is list:
                before[:] = value
            elif type(value) is type(before) is dict:
                before.clear()
                before |= value
            else:
                self.values[key] = value
