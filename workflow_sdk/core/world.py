"""What the world may see of an instance: its state, its reference and its progress.

The author assigns to them as to variables, and a replay assigns the same again. But a replay does not enter the scopes
that are finished, nor the turns of a loop that are over: what was assigned in there is kept beside their entries, and
taken over from there. So each change is noted under the scope that made it, and folded into the row of the scope when
that ends.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, cast

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.codec.problem import is_a
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.wire import NOTHING, damaged, pack_record, shapes, unpack_record
from workflow_sdk.errors import CodecError, DefinitionError

__all__ = ["Progress", "State", "World"]

Progress = tuple[float, "float | None", "str | None"]
"""How much is done, of how much, and a note."""

_CHANGE = shapes((str,), (bytes, NOTHING))

_REFERENCE = "reference"
_PROGRESS = "progress"
_STATE = "state "
"""Before the names of the state."""

Changes = dict[str, "bytes | None"]


class State(MutableMapping[str, Any]):
    """The state of an instance, as a dict. What is put into it has to be of what can be stored."""

    __slots__ = ("_values", "_world")

    def __init__(self, world: World, values: dict[str, Any]) -> None:
        self._world = world
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._world.check(name, value)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class World:
    """What one run has assigned so far."""

    __slots__ = ("_codec", "_folded", "_known", "_noted", "_number", "progress", "reference", "values")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.values: dict[str, Any] = {}
        self.reference: str | None = None
        self.progress: Progress | None = None
        self._known: dict[str, bytes] = {}
        """Everything as it was when it was last noted."""
        self._noted: dict[bytes, dict[str, tuple[int, bytes | None]]] = {}
        """What changed in a scope, by the prefix of its locations; and when, as a number that grows."""
        self._folded: dict[bytes, bytes] = {}
        """What was given out last, by location."""
        self._number = 0

    @property
    def state(self) -> State:
        """The state, to be read and assigned."""
        return State(self, self.values)

    def replace(self, values: object) -> None:
        """Assign the whole state."""
        if not isinstance(values, (dict, MutableMapping)):
            raise DefinitionError(f"ctx.state is a dict by names, not {values!r:.100}")
        fresh: dict[str, Any] = dict(values)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        for name, value in fresh.items():
            self.check(name, value)
        self.values.clear()
        self.values.update(fresh)

    def refer(self, reference: object) -> None:
        """Assign the reference."""
        if reference is not None and (not isinstance(reference, str) or name_problem(reference) is not None):
            raise DefinitionError(f"ctx.reference is a text of 1 to 1000 characters, or None, not {reference!r:.100}")
        self.reference = reference

    def advance(self, done: object, total: object, note: object) -> None:
        """Assign the progress."""
        for number in (done, *([] if total is None else [total])):
            if isinstance(number, bool) or not isinstance(number, (int, float)) or number != number:
                raise DefinitionError(f"progress is told in numbers, not {number!r:.100}")
        if note is not None and not isinstance(note, str):
            raise DefinitionError(f"the note of a progress is a text, not {note!r:.100}")
        self.progress = cast("Progress", (done, total, note))

    def check(self, name: object, value: object) -> None:
        """What is assigned can be stored."""
        problem = name_problem(name) if isinstance(name, str) else "names of the state are texts"
        if problem is not None:
            raise DefinitionError(f"ctx.state[{name!r:.100}]: {problem}")
        try:
            self._codec.encode(value)
        except CodecError as error:
            raise type(error)(f"ctx.state[{name!r}]: {error}") from None

    def note(self, scope: bytes) -> None:
        """What changed since the last time was changed by this scope."""
        now = self._encoded()
        known = self._known
        if now == known:
            return
        changes: Changes = {name: raw for name, raw in now.items() if known.get(name) != raw}
        changes.update(dict.fromkeys(known.keys() - now.keys()))
        self._add(scope, changes)
        self._known = now

    def _add(self, scope: bytes, changes: Changes) -> None:
        noted = self._noted.setdefault(scope, {})
        for name, raw in changes.items():
            self._number += 1
            noted[name] = self._number, raw

    def _encoded(self) -> dict[str, bytes]:
        encode = self._codec.encode
        found = {_STATE + name: encode(value) for name, value in self.values.items()}
        if self.reference is not None:
            found[_REFERENCE] = encode(self.reference)
        if self.progress is not None:
            found[_PROGRESS] = encode(list(self.progress))
        return found

    def fold(self, location: bytes) -> bytes | None:
        """All that was changed in what is under a location, as a row; None if that is what it was the last time."""
        inside = [scope for scope in self._noted if scope.startswith(location) and scope != location]
        merged = dict(self._noted.get(location, {}))
        for scope in inside:
            for name, change in self._noted.pop(scope).items():
                if name not in merged or merged[name] < change:
                    merged[name] = change
        if not merged:
            return None
        self._noted[location] = merged
        raw = pack_record([[name, change[1]] for name, change in sorted(merged.items())])
        if self._folded.get(location) == raw:
            return None
        self._folded[location] = raw
        return raw

    def shown(self) -> tuple[bytes | None, str | None, Progress | None]:
        """What is to be seen now: the state as bytes, the reference and the progress."""
        state = self._codec.encode(self.values) if self.values else None
        return state, self.reference, self.progress

    def whole(self) -> bytes:
        """Everything as it is, as a row."""
        return pack_record([[name, raw] for name, raw in sorted(self._encoded().items())])

    def apply(self, location: bytes, raw: bytes) -> None:
        """Take over what a finished scope has changed."""
        self._folded[location] = raw
        changes: Changes = {}
        for change in unpack_record(raw):
            if not is_a(change, list) or tuple(map(type, change)) not in _CHANGE:
                raise damaged("a change of the state")
            name, value = change
            changes[name] = value
            self._assign(name, value)
        self._add(location, changes)
        self._known = self._encoded()

    def _assign(self, name: str, raw: bytes | None) -> None:
        value: Any = None if raw is None else self._codec.decode(raw)
        if name == _REFERENCE and (value is None or isinstance(value, str)):
            self.reference = value
        elif name == _PROGRESS and (value is None or (is_a(value, list) and len(value) == 3)):
            self.progress = None if value is None else tuple(value)
        elif not name.startswith(_STATE):
            raise damaged("a change of the state")
        elif raw is None:
            self.values.pop(name.removeprefix(_STATE), None)
        else:
            self.values[name.removeprefix(_STATE)] = value
