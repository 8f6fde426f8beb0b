"""Makes wire forms of values: what CBOR can write, with every type kept exactly. `tags` has the format.

The hint under which a value is written only adds classes to those that can be found again. What is written is the
same with and without it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag
from itertools import chain
from typing import Any, Final, cast

from cbor2 import CBORTag, dumps

from workflow_sdk.values import basics as leaves
from workflow_sdk.values import tags
from workflow_sdk.values.basics import Cache, Problem, Walk, key_segment, short, type_text
from workflow_sdk.values.classes import Known
from workflow_sdk.values.shapes import shape_of

DEPTH_MAX: Final = 200

ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
"""The types that CBOR has itself, also for the keys of a map."""


class Writer:
    """Collects the table of classes of one value. `name` gives what the table calls a class."""

    __slots__ = ("entries", "indexes", "name")

    def __init__(self, name: Callable[[type], str]) -> None:
        self.name: Callable[[type], str] = name
        self.entries: list[list[str]] = []
        self.indexes: dict[tuple[type, tuple[str, ...]], int] = {}

    def index(self, cls: type, names: tuple[str, ...]) -> int:
        """The place of a class, with these attributes, in the table."""
        key = (cls, names)
        if (index := self.indexes.get(key)) is None:
            self.entries.append([self.name(cls), *names])
            index = self.indexes[key] = len(self.indexes)
        return index


Handler = Callable[[Any, Writer, int], object]


def lower(value: object, known: Known) -> object:
    """The wire form of `value`, whose type is not in `ATOMS`; raises `Problem`."""
    writer = Writer(known.check_writable)
    body = _handlers[type(value)](value, writer, 0)
    if writer.entries:
        return CBORTag(tags.DOCUMENT, [CBORTag(tags.TABLE, writer.entries), body])
    return body


def lower_with(value: object, writer: Writer) -> object:
    """The wire form of one of several values that share the table of `writer`; raises `Problem`."""
    kind = type(value)
    return value if kind in ATOMS else _handlers[kind](value, writer, 0)


def _index(_: object, place: int) -> str:
    return f"[{place}]"


def _attribute(names: tuple[str, ...], place: int) -> str:
    return f".{names[place]}"


def _key(mapping: Mapping[Any, object], place: int) -> str:
    return key_segment(list(mapping)[place // 2])


def _items(
    values: Iterable[object], into: list[object], writer: Writer, depth: int, whose: Any = None, segment: Any = _index
) -> list[object]:
    """Add the wire form of each value to `into`. `segment(whose, place)` is the path segment of a value."""
    if depth >= DEPTH_MAX:
        raise _too_deep()
    handlers, atoms, before = _handlers, ATOMS, len(into)
    try:
        for value in values:
            kind = type(value)
            into.append(value if kind in atoms else handlers[kind](value, writer, depth + 1))
    except Problem as problem:
        raise problem.under(segment(whose, len(into) - before)) from problem.__cause__
    return into


def _too_deep() -> Problem:
    return Problem(f"the value is nested more than {DEPTH_MAX} levels deep, or holds itself", "pass a flat form of it")


def _list(value: list[object], writer: Writer, depth: int) -> object:
    if ATOMS.issuperset(map(type, value)):
        return value
    return _items(value, [], writer, depth)


def _tuple(value: tuple[object, ...], writer: Writer, depth: int) -> object:
    return CBORTag(tags.TUPLE, _items(value, [], writer, depth))


def _deque(value: deque[object], writer: Writer, depth: int) -> object:
    return CBORTag(tags.DEQUE, _items(value, [value.maxlen], writer, depth))


def _unordered(tag: int) -> Handler:
    def handle(value: set[object] | frozenset[object], writer: Writer, depth: int) -> object:
        # Sets iterate in another order in every process; equal sets are to be equal bytes.
        kinds = {type(item) for item in value}
        if len(kinds) == 1 and kinds <= {str, int}:
            return CBORTag(tag, sorted(cast("Iterable[Any]", value)))
        items = _items(value, [], writer, depth)
        try:
            return CBORTag(tag, sorted(items, key=dumps))
        except UnicodeEncodeError:
            return CBORTag(tag, items)  # it will be refused with its path

    return handle


def _dict(value: dict[Any, object], writer: Writer, depth: int) -> object:
    if not ATOMS.issuperset(map(type, value)):
        return _dict_of_any_keys(value, writer, depth)
    if ATOMS.issuperset(map(type, value.values())):
        return value
    if depth >= DEPTH_MAX:
        raise _too_deep()
    # Not by `_items`: that would be a list first, and dicts are what values are mostly made of.
    handlers, atoms = _handlers, ATOMS
    into: dict[Any, object] = {}
    key: object = None
    try:
        for key, item in value.items():
            kind = type(item)
            into[key] = item if kind in atoms else handlers[kind](item, writer, depth + 1)
    except Problem as problem:
        raise problem.under(key_segment(key)) from problem.__cause__
    return into


def _pairs(tag: int) -> Handler:
    def handle(value: Mapping[Any, object], writer: Writer, depth: int) -> object:
        return CBORTag(tag, _items(chain.from_iterable(value.items()), [], writer, depth, value, _key))

    return handle


_dict_of_any_keys: Final = _pairs(tags.PAIRS)


def _object(value: Any, writer: Writer, depth: int) -> object:
    cls: Any = cast(Any, type(value))
    names, values = shape_of(cls).take(value)
    return CBORTag(tags.OBJECT, _items(values, [writer.index(cls, names)], writer, depth, names, _attribute))


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


_BUILT_IN: Final[dict[type, Handler]] = {
    list: _list,
    dict: _dict,
    tuple: _tuple,
    set: _unordered(tags.SET),
    frozenset: _unordered(tags.FROZENSET),
    deque: _deque,
    OrderedDict: _pairs(tags.ORDERED_DICT),
    Counter: _pairs(tags.COUNTER),
    **{cls: _leaf(to_wire) for cls, to_wire in leaves.TO_WIRE.items()},
}


def _make_handler(cls: type) -> Handler:
    # By its exact type: an object of a subclass must not come back as one of its base.
    if (built_in := _BUILT_IN.get(cls)) is not None:
        return built_in
    if Enum in cls.__mro__:
        return _enum
    shape_of(cls)  # raises Problem for a class whose objects can't be stored
    return _object


_handlers: Final = Cache(_make_handler, 10_000)


def check_text(wire: Any) -> None:
    """Raise `Problem` if a wire form holds text that UTF-8 can't encode."""
    names: list[list[str]] = []
    if isinstance(wire, CBORTag) and wire.tag == tags.DOCUMENT:
        table, wire = wire.value
        names = [attributes for _, *attributes in table.value]
    Walk(_check_leaf, lambda tag, content: content, names)(wire)


def _check_leaf(wire: object) -> object:
    if isinstance(wire, str):
        try:
            wire.encode()
        except UnicodeEncodeError:
            raise Problem(
                f"the text {short(wire)} holds half of a surrogate pair, which is no character",
                "clean it: text.encode(errors='replace').decode(), or pass bytes",
            ) from None
    return wire
