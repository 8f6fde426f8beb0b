"""Values to canonical CBOR and back, with every type kept exactly. `Tag` has the format.

How authors' objects come apart and together, and by which names their classes are found, the caller says: see
`objects`. The hint under which a value is written only adds to the classes that can be found. What is written is the
same with and without it.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, Flag
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final, Literal, NoReturn, TypeAlias, cast

from cbor2 import CBORTag, dumps, loads

from workflow_sdk.values.basics import (
    FOREIGN_TAGS,
    LEAVES,
    Decoder,
    Problem,
    Tag,
    at,
    behind,
    check_text,
    error_text,
    key_segment,
    read_one,
    short,
    type_text,
)

ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
"""The types that CBOR has itself, also for the keys of a map."""
DEPTH_MAX: Final = 200
_CBOR_DEPTH_MAX: Final = 1000  # each level of a value takes two levels of CBOR at most
_CLASSES_MAX: Final = 10_000

Taken: TypeAlias = tuple[tuple[str, ...], Sequence[object]]
"""An object that was taken apart: the names and the values of its attributes."""
Take: TypeAlias = Callable[[Any], Taken]
Build: TypeAlias = Callable[[Sequence[object]], object]
"""Makes an object of the values of its attributes; of an enum, the member with a value, or with a name and a mark."""
BuilderOf: TypeAlias = Callable[[str, tuple[str, ...]], Build | None]
"""Gives what makes objects of a class, by its name and those of its attributes; None if there is no such class."""


# -- Writing: a wire form of what CBOR has, and the table of classes ---------------------------------------------------


class Handlers(dict[type, "Handler"]):
    """What makes the wire form of a value, by its exact type: an object of a subclass must not come back as a base."""

    def __init__(self, taker_of: Callable[[type], Take]) -> None:
        super().__init__(_BUILT_IN)
        self._taker_of = taker_of

    def __missing__(self, cls: type) -> Handler:
        handler = _enum if Enum in cls.__mro__ else _object(self._taker_of(cls))
        if len(self) >= _CLASSES_MAX:
            self.clear()
            self.update(_BUILT_IN)
        self[cls] = handler
        return handler


class Writer:
    """Makes wire forms that share one table of classes. `name_of` gives what the table calls a class."""

    __slots__ = ("atoms", "handlers", "indexes", "name_of", "table")

    def __init__(
        self, handlers: Handlers, name_of: Callable[[type], str], atoms: frozenset[type] = ATOMS
    ) -> None:
        self.handlers = handlers
        self.name_of: Callable[[type], str] = name_of
        self.atoms = atoms
        """The types whose values are their own wire form."""
        self.table: list[tuple[str, tuple[str, ...]]] = []
        self.indexes: dict[tuple[type, tuple[str, ...]], int] = {}

    def __call__(self, value: object) -> object:
        """The wire form of a value; raises `Problem`."""
        kind = type(value)
        return value if kind in self.atoms else self.handlers[kind](value, self, 0)

    def index(self, cls: type, names: tuple[str, ...]) -> int:
        """The place of a class, with these attributes, in the table."""
        key = (cls, names)
        if (index := self.indexes.get(key)) is None:
            self.table.append((self.name_of(cls), names))
            index = self.indexes[key] = len(self.indexes)
        return index


Handler: TypeAlias = Callable[[Any, Writer, int], object]

_DOCUMENT: Final = b"\xd9" + Tag.DOCUMENT.to_bytes(2, "big")
_TABLE: Final = _DOCUMENT + b"\x82\xd9" + Tag.TABLE.to_bytes(2, "big")


def write(value: object, handlers: Handlers, name_of: Callable[[type], str]) -> bytes:
    """The bytes of a value; raises `Problem`."""
    try:
        writer = Writer(handlers, name_of)
        body = dumps(writer(value))
        return _document(writer.table, body) if writer.table else body
    except UnicodeEncodeError:
        # A walk that looks into every text finds which one it is.
        Writer(handlers, name_of, ATOMS - {str})(value)
        raise Problem("the value holds text that UTF-8 does not have") from None


def _document(table: list[tuple[str, tuple[str, ...]]], body: bytes) -> bytes:
    count = len(table)
    head = bytes((0x80 + count,)) if count < 24 else dumps([None] * count)[:-count]
    return b"".join((_TABLE, head, *[_row(name, names) for name, names in table], body))


@lru_cache(4096)
def _row(name: str, names: tuple[str, ...]) -> bytes:
    return dumps([name, *names])


def _items(values: Iterable[object], into: list[object], writer: Writer, depth: int, segment: Any) -> list[object]:
    """Add the wire form of each value to `into`. `segment(place)` is the path segment of a value."""
    if depth >= DEPTH_MAX:
        raise _too_deep()
    handlers, atoms, before = writer.handlers, writer.atoms, len(into)
    try:
        for value in values:
            kind = type(value)
            into.append(value if kind in atoms else handlers[kind](value, writer, depth + 1))
    except Problem as problem:
        raise problem.under(segment(len(into) - before)) from problem.__cause__
    return into


_index: Final = "[{}]".format


def _too_deep() -> Problem:
    return Problem(f"the value is nested more than {DEPTH_MAX} levels deep, or holds itself", "pass a flat form of it")


def _list(value: list[object], writer: Writer, depth: int) -> object:
    if writer.atoms.issuperset(map(type, value)):
        return value
    return _items(value, [], writer, depth, _index)


def _tuple(value: tuple[object, ...], writer: Writer, depth: int) -> object:
    return CBORTag(Tag.TUPLE, _items(value, [], writer, depth, _index))


def _deque(value: deque[object], writer: Writer, depth: int) -> object:
    return CBORTag(Tag.DEQUE, _items(value, [value.maxlen], writer, depth, _index))


def _unordered(tag: int) -> Handler:
    def handle(value: set[object] | frozenset[object], writer: Writer, depth: int) -> object:
        # Sets iterate in another order in every process; equal sets are to be equal bytes.
        kinds = {type(item) for item in value}
        if len(kinds) == 1 and kinds <= {str, int} & writer.atoms:
            return CBORTag(tag, sorted(cast("Iterable[Any]", value)))
        return CBORTag(tag, sorted(_items(value, [], writer, depth, _index), key=dumps))

    return handle


def _dict(value: dict[Any, object], writer: Writer, depth: int) -> object:
    atoms = writer.atoms
    if not atoms.issuperset(map(type, value)):
        return _dict_of_any_keys(value, writer, depth)
    if atoms.issuperset(map(type, value.values())):
        return value
    if depth >= DEPTH_MAX:
        raise _too_deep()
    # Not by `_items`: that would be a list first, and dicts are what values are mostly made of.
    handlers = writer.handlers
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
        parts = chain.from_iterable(value.items())
        return CBORTag(tag, _items(parts, [], writer, depth, lambda place: key_segment(list(value)[place // 2])))

    return handle


_dict_of_any_keys: Final = _pairs(Tag.PAIRS)


def _object(take: Take) -> Handler:
    def handle(value: Any, writer: Writer, depth: int) -> object:
        names, values = take(value)
        index = writer.index(type(value), names)
        return CBORTag(Tag.OBJECT, _items(values, [index], writer, depth, lambda place: f".{names[place]}"))

    return handle


def _enum(value: Any, writer: Writer, depth: int) -> object:
    cls: Any = cast(Any, type(value))
    index = writer.index(cls, ())
    content: Any = value.value
    # By its value where that leads back to this very member, so that members can be renamed; else by its name.
    if type(content) in (str, int) and (cls(content) is value or isinstance(value, Flag)):
        return CBORTag(Tag.ENUM_VALUE, [index, content])
    if value.name is not None and cls.__members__.get(value.name) is value:
        return CBORTag(Tag.ENUM_NAME, [index, value.name])
    raise Problem(f"{short(value)} is not a member of {type_text(cls)}")


def _leaf(tag: int, to_content: Callable[[Any], object]) -> Handler:
    return lambda value, writer, depth: CBORTag(tag, to_content(value))


_BUILT_IN: Final[dict[type, Handler]] = {
    str: lambda value, writer, depth: check_text(value),  # only asked where `atoms` is without it
    list: _list,
    dict: _dict,
    tuple: _tuple,
    set: _unordered(Tag.SET),
    frozenset: _unordered(Tag.FROZENSET),
    deque: _deque,
    OrderedDict: _pairs(Tag.ORDERED_DICT),
    Counter: _pairs(Tag.COUNTER),
    **{cls: _leaf(leaf.tag, leaf.to_content) for cls, leaf in LEAVES.items()},
}


# -- Reading ----------------------------------------------------------------------------------------------------------

Mode = Literal["exact", "lenient", "plain"]
"""`exact`: objects; `lenient`: objects, and dicts for those whose class is not loaded; `plain`: no objects."""
def read(data: bytes, builder_of: BuilderOf, mode: Mode, *, own: bool) -> Any:
    """The value that `data` holds; raises `Problem`, or what cbor2 raises for bytes that are no CBOR.

    `own` says that it was written just now, so that it need not be checked for bytes after its end.
    """
    if not 0x80 <= data[0] < 0xE0:  # it is no list, dict or tag
        value = loads(data)
        if own or len(data) == 1 or (again := dumps(value)) == data:
            return value
        if data.startswith(again):
            raise behind()
        return read_one(data)
    decoders = _Reader(builder_of, mode).decoders if data[:3] == _DOCUMENT else _DECODERS[mode]
    hook = _content if mode == "plain" else _unknown
    try:
        if own:
            return loads(data, semantic_decoders=decoders, tag_hook=hook, max_depth=_CBOR_DEPTH_MAX)
        return read_one(data, decoders, hook, _CBOR_DEPTH_MAX + 1)
    except Exception:
        # What CBOR's reader calls for a tag does not know where in the value it is. A second walk, with the tags kept,
        # raises the `Problem` that there is with its path.
        _Reader(builder_of, mode).again(read_one(data, _TAGS_KEPT, depth=_CBOR_DEPTH_MAX))
        raise


class _Reader:
    """Reads the objects of one value, by its table of classes."""

    __slots__ = ("builder_of", "builders", "decoders", "mode", "names")

    def __init__(self, builder_of: BuilderOf, mode: Mode) -> None:
        self.builder_of: BuilderOf = builder_of
        self.mode: Mode = mode
        self.names: list[list[str]] = []
        self.builders: list[Build] = []
        self.decoders: dict[int, Decoder] = _DECODERS[mode].copy()
        self.decoders[Tag.TABLE] = self.table
        self.decoders[Tag.OBJECT] = self.object
        self.decoders[Tag.ENUM_VALUE] = self.enum_value
        self.decoders[Tag.ENUM_NAME] = self.enum_name

    def table(self, content: list[list[str]], _: bool) -> None:
        for name, *names in content:
            self.names.append(names)
            self.builders.append(self.builder(name, tuple(names)))

    def object(self, content: Any, _: bool) -> object:
        return self.builders[content[0]](content[1:])

    def enum_value(self, content: Any, _: bool) -> object:
        index, value = content
        return self.builders[index]((value,))

    def enum_name(self, content: Any, _: bool) -> object:
        index, name = content
        return self.builders[index]((name, "by name"))

    def builder(self, name: str, names: tuple[str, ...]) -> Build:
        if self.mode != "plain":
            if (build := self.builder_of(name, names)) is not None:
                return build
            if self.mode == "exact":
                raise _not_loaded(name)
        return partial(_plain_object, names)

    def again(self, wire: Any) -> object:
        """The value of a wire form whose tags were kept; raises `Problem` with the path to what can't be read."""
        if isinstance(wire, dict):
            return dict(zip(wire, self.parts(wire.values(), map(key_segment, wire)), strict=True))
        if isinstance(wire, CBORTag):
            return self.tagged(wire.tag, wire.value)
        return self.parts(wire, map(_index, range(len(wire)))) if isinstance(wire, list) else wire

    def tagged(self, tag: int, content: Any) -> object:
        """What a tag stands for, whose content has its own tags kept."""
        if tag == Tag.DOCUMENT:
            content = list(map(self.again, content))
        elif tag == Tag.OBJECT:
            content = [content[0], *self.parts(content[1:], map(".{}".format, self.names[content[0]]))]
        elif tag in (Tag.PAIRS, Tag.ORDERED_DICT, Tag.COUNTER):
            content = self.parts(content, [key_segment(content[i & -2]) for i in range(len(content))])
        else:
            content = self.again(content)
        try:
            decoder = self.decoders.get(tag)
            return _unknown(CBORTag(tag, content), False) if decoder is None else decoder(content, False)
        except Problem:
            raise
        except Exception as error:
            raise Problem(f"what was written can't be read: {error_text(error)}") from error

    def parts(self, wires: Iterable[Any], segments: Iterable[str]) -> list[object]:
        return [at(segment, self.again, wire) for segment, wire in zip(segments, wires, strict=True)]


def _not_loaded(name: str) -> Problem:
    module, _, qualname = name.partition(":")
    if module in sys.modules:
        return Problem(
            f"the class {module}.{qualname} does not exist any more",
            f"define it in {module}, or keep its old name there as an alias",
        )
    return Problem(f"the class {module}.{qualname} is not loaded", f"import the module {module} before")


def _plain_object(names: tuple[str, ...], values: Sequence[object]) -> object:
    if not names:
        return values[0] if values else {}  # an enum's member: its value, or else its name
    return {n: v for n, v in zip(names, values, strict=True) if not n.startswith("~")}


def _unknown(tag: CBORTag, _: bool) -> object:
    raise Problem(f"it was written by a later release: tag {tag.tag} is not known here", "upgrade workflow_sdk")


def _content(tag: CBORTag, _: bool) -> object:
    return tag.value


def _refusing(why: str) -> Decoder:
    def refuse(content: Any, _: bool) -> NoReturn:
        raise Problem(why)

    return refuse


def _applied(make: Callable[[Any], object]) -> Decoder:
    return lambda content, _: make(content)


def _keeping(tag: int) -> Decoder:
    return lambda content, _: CBORTag(tag, content)


def _plainly(decoder: Decoder) -> Decoder:
    """A decoder that gives the content itself where `decoder` fails, so that reading plain data never fails."""

    def decode(content: Any, immutable: bool) -> object:
        try:
            return decoder(content, immutable)
        except Exception:  # noqa: BLE001  # a set of what has become dicts, a zone that is not known here
            return content

    return decode


def _mapped(content: list[Any]) -> Iterator[tuple[Any, Any]]:
    parts = iter(content)
    return zip(parts, parts, strict=True)


def _plain_key(key: object) -> object:
    try:
        hash(key)
    except TypeError:
        return short(key)
    return key


_FOREIGN: Final[dict[int, Decoder]] = {
    tag: _refusing(f"it was not written by this library: tag {tag} is none of its own") for tag in FOREIGN_TAGS
}
_REFUSED: Final = {**_FOREIGN, Tag.SEALED: _refusing("there is an encoded value inside of it, which nothing here writes")}
_EXACT: Final[dict[int, Decoder]] = {
    **{leaf.tag: _applied(leaf.from_content) for leaf in LEAVES.values()},
    Tag.DOCUMENT: lambda content, _: content[1],
    Tag.TUPLE: _applied(tuple),
    Tag.SET: _applied(set),
    Tag.FROZENSET: _applied(frozenset),
    Tag.PAIRS: lambda content, _: dict(_mapped(content)),
    Tag.ORDERED_DICT: lambda content, _: OrderedDict(_mapped(content)),
    Tag.COUNTER: lambda content, _: Counter(dict(_mapped(content))),
    Tag.DEQUE: lambda content, _: deque(content[1:], content[0]),
    **_REFUSED,
}
_PLAIN_PAIRS: Final = _applied(lambda content: {_plain_key(key): value for key, value in _mapped(content)})
_PLAIN: Final[dict[int, Decoder]] = {
    **{tag: _plainly(decoder) for tag, decoder in _EXACT.items()},
    **dict.fromkeys((Tag.PAIRS, Tag.ORDERED_DICT, Tag.COUNTER), _PLAIN_PAIRS),
    **_REFUSED,
}
_TAGS_KEPT: Final = {tag: _keeping(tag) for tag in (*range(Tag.FIRST, Tag.LAST + 1), *FOREIGN_TAGS)}
_DECODERS: Final[dict[Mode, dict[int, Decoder]]] = {"exact": _EXACT, "lenient": _EXACT, "plain": _PLAIN}
