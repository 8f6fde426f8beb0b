"""From a value to what CBOR can write, every type kept exactly; `tags` has the format.

The hint under which a value is written only adds classes to those that can be found again. What is written is the
same with and without it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag
from typing import Any, Final, cast

from cbor2 import CBORTag, dumps

from workflow_sdk.core.codec import leaves, tags
from workflow_sdk.core.codec.classes import Known
from workflow_sdk.core.codec.problem import Problem, is_a, key_segment, short, type_text
from workflow_sdk.core.codec.shapes import shape_of

DEPTH_MAX: Final = 200
_HANDLERS_MAX: Final = 10_000

ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
"""The types that CBOR has itself; as keys of a map, too."""


class Writer:
    """The table of classes of one value."""

    __slots__ = ("entries", "indexes", "known")

    def __init__(self, known: Known) -> None:
        self.known: Known = known
        self.entries: list[list[str]] = []
        self.indexes: dict[tuple[type, tuple[str, ...]], int] = {}

    def index(self, cls: type, names: tuple[str, ...]) -> int:
        """The place of a class, with these attributes, in the table."""
        key = (cls, names)
        if (index := self.indexes.get(key)) is None:
            self.entries.append([self.known.check_writable(cls), *names])
            index = self.indexes[key] = len(self.indexes)
        return index


Handler = Callable[[Any, Writer, int], object]


def lower(value: object, known: Known) -> object:
    """What to write for `value`; raises `Problem`."""
    writer = Writer(known)
    kind = type(value)
    body = value if kind in ATOMS else _handlers[kind](value, writer, 0)
    if writer.entries:
        return CBORTag(tags.DOCUMENT, [CBORTag(tags.TABLE, writer.entries), body])
    return body


def lower_with(value: object, writer: Writer) -> object:
    """What to write for one of several values, which share the table of `writer`; raises `Problem`."""
    kind = type(value)
    return value if kind in ATOMS else _handlers[kind](value, writer, 0)


def _items(values: Iterable[object], into: list[object], writer: Writer, depth: int) -> list[object]:
    """Add the wire form of each value to `into`."""
    if depth >= DEPTH_MAX:
        raise _too_deep()
    handlers, atoms, before = _handlers, ATOMS, len(into)
    try:
        for value in values:
            kind = type(value)
            into.append(value if kind in atoms else handlers[kind](value, writer, depth + 1))
    except Problem as problem:
        raise problem.under(f"[{len(into) - before}]") from problem.__cause__
    return into


def _list(value: list[object], writer: Writer, depth: int) -> object:
    if ATOMS.issuperset(map(type, value)):
        return value
    return _items(value, [], writer, depth)


def _tuple(value: tuple[object, ...], writer: Writer, depth: int) -> object:
    return CBORTag(tags.TUPLE, _items(value, [], writer, depth))


def _deque(value: deque[object], writer: Writer, depth: int) -> object:
    return CBORTag(tags.DEQUE, _items(value, [value.maxlen], writer, depth))


def _set(value: set[object], writer: Writer, depth: int) -> object:
    return CBORTag(tags.SET, _unordered(value, writer, depth))


def _frozenset(value: frozenset[object], writer: Writer, depth: int) -> object:
    return CBORTag(tags.FROZENSET, _unordered(value, writer, depth))


def _unordered(value: set[object] | frozenset[object], writer: Writer, depth: int) -> list[object]:
    # Sets iterate in another order in every process; equal sets are to be equal bytes.
    kinds = {type(item) for item in value}
    if len(kinds) == 1 and kinds <= {str, int}:
        return sorted(cast("Iterable[Any]", value))
    try:
        return sorted(_items(value, [], writer, depth), key=dumps)
    except UnicodeEncodeError:
        return _items(value, [], writer, depth)  # it will be refused with its path


def _dict(value: dict[Any, object], writer: Writer, depth: int) -> object:
    if not ATOMS.issuperset(map(type, value)):
        return CBORTag(tags.PAIRS, _pairs(value, writer, depth))
    if ATOMS.issuperset(map(type, value.values())):
        return value
    return _map(value, {}, writer, depth)


def _map(value: Mapping[Any, object], into: dict[Any, object], writer: Writer, depth: int) -> dict[Any, object]:
    if depth >= DEPTH_MAX:
        raise _too_deep()
    handlers, atoms = _handlers, ATOMS
    key: object = None
    try:
        for key, item in value.items():
            kind = type(item)
            into[key] = item if kind in atoms else handlers[kind](item, writer, depth + 1)
    except Problem as problem:
        raise problem.under(key_segment(key)) from problem.__cause__
    return into


def _pairs(value: Mapping[Any, object], writer: Writer, depth: int) -> list[object]:
    if depth >= DEPTH_MAX:
        raise _too_deep()
    wire: list[object] = []
    key: object = None
    try:
        for key, item in value.items():
            for part in (key, item):
                kind = type(part)
                wire.append(part if kind in ATOMS else _handlers[kind](part, writer, depth + 1))
    except Problem as problem:
        raise problem.under(key_segment(key)) from problem.__cause__
    return wire


def _ordered_dict(value: OrderedDict[Any, object], writer: Writer, depth: int) -> object:
    return CBORTag(tags.ORDERED_DICT, _pairs(value, writer, depth))


def _counter(value: Counter[Any], writer: Writer, depth: int) -> object:
    return CBORTag(tags.COUNTER, _pairs(value, writer, depth))


def _object(value: Any, writer: Writer, depth: int) -> object:
    cls: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anything
    names, values = shape_of(cls).take(value)
    wire: list[object] = [writer.index(cls, names)]
    if depth >= DEPTH_MAX:
        raise _too_deep()
    handlers, atoms = _handlers, ATOMS
    try:
        for item in values:
            kind = type(item)
            wire.append(item if kind in atoms else handlers[kind](item, writer, depth + 1))
    except Problem as problem:
        raise problem.under("." + names[len(wire) - 1]) from problem.__cause__
    return CBORTag(tags.OBJECT, wire)


def _enum(value: Any, writer: Writer, depth: int) -> object:
    cls: Any = cast(Any, type(value))
    index = writer.index(cls, ())
    content: Any = value.value
    # By its value where that leads back to this very member, so that members can be renamed; else by its name.
    if type(content) in (str, int) and (cls(content) is value or isinstance(value, Flag)):
        return CBORTag(tags.ENUM_VALUE, [index, content])
    if value.name is not None and cls.__members__.get(value.name) is value:
        return CBORTag(tags.ENUM_NAME, [index, value.name])
    raise Problem(f"{short(value)} is not a member of {type_text(cls)}")


def _leaf(to_wire: Callable[[Any], CBORTag]) -> Handler:
    return lambda value, writer, depth: to_wire(value)


def _too_deep() -> Problem:
    return Problem(f"the value is nested more than {DEPTH_MAX} levels deep, or holds itself", "pass a flat form of it")


_BUILT_IN: Final[dict[type, Handler]] = {
    list: _list,
    dict: _dict,
    tuple: _tuple,
    set: _set,
    frozenset: _frozenset,
    deque: _deque,
    OrderedDict: _ordered_dict,
    Counter: _counter,
    **{cls: _leaf(to_wire) for cls, to_wire in leaves.TO_WIRE.items()},
}


class _Handlers(dict[type, Handler]):
    """What to do with a value, by its exact type: a subclass is another type, and would come back as its base."""

    def __missing__(self, cls: type) -> Handler:
        handler: Handler = _enum
        if Enum not in cls.__mro__:
            shape_of(cls)  # raises Problem for a class whose objects can't be stored
            handler = _object
        if len(self) >= _HANDLERS_MAX:  # classes made in functions are many, and must not be kept for ever
            for made in [known for known in self if known not in _BUILT_IN]:
                self.pop(made, None)
        self[cls] = handler
        return handler


_handlers: Final = _Handlers(_BUILT_IN)


def text_problem(wire: object, entries: list[list[str]] | None = None) -> Problem | None:
    """Where in a wire form there is text that UTF-8 does not have; `None` if nowhere."""
    if isinstance(wire, str):
        try:
            wire.encode()
        except UnicodeEncodeError:
            return Problem(
                f"the text {short(wire)} holds half of a surrogate pair, which is no character",
                "clean it: text.encode(errors='replace').decode(), or pass bytes",
            )
        return None
    children: Iterable[tuple[str, object]] = ()
    if isinstance(wire, CBORTag):
        content: Any = wire.value
        if wire.tag == tags.DOCUMENT:
            return text_problem(content[1], content[0].value)
        if wire.tag == tags.OBJECT and entries is not None:
            index: int = content[0]
            children = [(f".{n}", v) for n, v in zip(entries[index][1:], content[1:], strict=True)]
        elif wire.tag in (tags.PAIRS, tags.ORDERED_DICT, tags.COUNTER):
            children = [(key_segment(content[i & -2]), part) for i, part in enumerate(content)]
        else:
            return text_problem(content, entries)
    elif isinstance(wire, list):
        children = [(f"[{i}]", part) for i, part in enumerate(cast("list[object]", wire))]
    elif is_a(wire, dict):
        children = [(key_segment(k), part) for k, v in cast("dict[Any, Any]", wire).items() for part in (k, v)]
    for segment, part in children:
        if found := text_problem(part, entries):
            return found.under(segment)
    return None
