"""Values to canonical CBOR and back, with every type kept exactly. `Tag` has the format.

How authors' objects come apart and together, and by which names their classes are found, the caller says: see
`objects`. The hint under which a value is written only adds to the classes that can be found. What is written is the
same with and without it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, Flag
from functools import lru_cache, partial
from itertools import chain
from typing import Any, ClassVar, Final, Literal, NoReturn, TypeAlias, cast

from cbor2 import CBORTag, dumps, loads

from workflow_sdk.values.basics import (
    FOREIGN_TAGS,
    LEAVES,
    Build,
    BuilderOf,
    Decoder,
    Problem,
    Tag,
    Take,
    at,
    error_text,
    half_character,
    is_a,
    key_segment,
    not_loaded,
    read_one,
    short,
    type_text,
)

ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
"""The types that CBOR has itself, also for the keys of a map."""
DEPTH_MAX: Final = 200
_CBOR_DEPTH_MAX: Final = 1000  # each level of a value takes two levels of CBOR at most
_CLASSES_MAX: Final = 10_000


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

    __slots__ = ("handlers", "indexes", "name_of", "table")
    atoms: ClassVar = ATOMS
    """The types whose values are their own wire form."""

    def __init__(self, handlers: Handlers, name_of: Callable[[type], str]) -> None:
        self.handlers = handlers
        self.name_of: Callable[[type], str] = name_of
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


class _TextChecker(Writer):
    """Looks into every text, to find one that UTF-8 can't encode."""

    __slots__ = ()
    atoms = ATOMS - {str}


Segment: TypeAlias = Callable[[int], str]
Handler: TypeAlias = Callable[[Any, Writer, int], object]

DOCUMENT: Final = b"\xd9" + Tag.DOCUMENT.to_bytes(2, "big")
_TABLE: Final = DOCUMENT + b"\x82\xd9" + Tag.TABLE.to_bytes(2, "big")


def write(value: object, handlers: Handlers, name_of: Callable[[type], str]) -> bytes:
    """The bytes of a value; raises `Problem`."""
    try:
        writer = Writer(handlers, name_of)
        body = dumps(writer(value))
        return _document(writer.table, body) if writer.table else body
    except UnicodeEncodeError as error:
        _TextChecker(handlers, name_of)(value)  # it says where the text is
        raise half_character(error.object) from None


def _document(table: list[tuple[str, tuple[str, ...]]], body: bytes) -> bytes:
    count = len(table)
    head = bytes((0x80 + count,)) if count < 24 else dumps([None] * count)[:-count]
    return b"".join((_TABLE, head, *[_row(name, names) for name, names in table], body))


@lru_cache(4096)
def _row(name: str, names: tuple[str, ...]) -> bytes:
    return dumps([name, *names])


def _items(values: Iterable[object], into: list[object], writer: Writer, depth: int, segment: Segment) -> list[object]:
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


_index: Final[Segment] = "[{}]".format


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
        if depth >= DEPTH_MAX:
            raise _too_deep()
        names, values = take(value)
        content: list[object] = [writer.index(cast(Any, type(value)), names)]
        handlers, atoms = writer.handlers, writer.atoms  # as in `_items`
        try:
            for item in values:
                kind = type(item)
                content.append(item if kind in atoms else handlers[kind](item, writer, depth + 1))
        except Problem as problem:
            raise problem.under(f".{names[len(content) - 1]}") from problem.__cause__
        return CBORTag(Tag.OBJECT, content)

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


def _text(value: str, writer: Writer, depth: int) -> object:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise half_character(value) from None
    return value


def _leaf(tag: int, to_content: Callable[[Any], object]) -> Handler:
    return lambda value, writer, depth: CBORTag(tag, to_content(value))


_BUILT_IN: Final[dict[type, Handler]] = {
    str: _text,  # only asked where `atoms` is without it
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


def read(data: bytes, builder_of: BuilderOf | None, mode: Mode, *, own: bool) -> Any:
    """The value that `data` holds; raises `Problem`, or what cbor2 raises for bytes that are no CBOR.

    `builder_of` is None if there is no table of classes in front of it. `own` says that it was written just now, so
    that it need not be checked for bytes after its end.
    """
    decoders = _DECODERS[mode] if builder_of is None else _with_table(builder_of, mode, [])
    hook = _content if mode == "plain" else _unknown
    try:
        if own:
            return loads(data, semantic_decoders=decoders, tag_hook=hook, max_depth=_CBOR_DEPTH_MAX)
        return read_one(data, decoders, hook, _CBOR_DEPTH_MAX + 1)
    except Exception:
        # What CBOR's reader calls for a tag does not know where in the value it is. A second walk, with the tags kept,
        # raises the `Problem` that there is with its path.
        names: list[list[str]] = []
        _Again(_with_table(builder_of, mode, names), names)(read_one(data, _TAGS_KEPT, depth=_CBOR_DEPTH_MAX))
        raise


def _with_table(builder_of: BuilderOf | None, mode: Mode, names: list[list[str]]) -> dict[int, Decoder]:
    """Decoders for one value and its table of classes, whose attributes are added to `names`."""
    # Functions rather than methods: an object that holds its own methods would be left to the garbage collector.
    builders: list[Build] = []

    def table(content: list[list[str]], _: bool) -> None:
        for name, *attributes in content:
            build = None if mode == "plain" or builder_of is None else builder_of(name, tuple(attributes))
            if build is None and mode == "exact":
                raise not_loaded(name)
            names.append(attributes)
            builders.append(build or partial(_plain_object, attributes))

    def in_table(content: Any, _: bool) -> object:
        index: int = content[0]
        if len(content) != len(names[index]) + 1:
            raise ValueError(f"{len(content) - 1} values for {len(names[index])} attributes")
        return builders[index](content[1:])

    def member(content: Any, *by_name: object) -> object:
        index, value = cast("tuple[int, object]", content)
        return builders[index]((value, *by_name))

    return {
        **_DECODERS[mode],
        Tag.TABLE: table,
        Tag.OBJECT: in_table,
        Tag.ENUM_VALUE: _applied(member),
        Tag.ENUM_NAME: lambda content, _: member(content, "by name"),
    }


class _Again:
    """Makes values of wire forms whose tags were kept; raises `Problem` with the path to what can't be read."""

    def __init__(self, decoders: dict[int, Decoder], names: list[list[str]]) -> None:
        self._decoders = decoders
        self._names = names

    def __call__(self, wire: Any) -> object:
        if is_a(wire, dict):
            return dict(zip(wire, self._parts(wire.values(), map(key_segment, wire)), strict=True))
        if is_a(wire, list):
            return self._parts(wire, map(_index, range(len(wire))))
        if not isinstance(wire, CBORTag):
            return wire
        tag, content = wire.tag, self._content(wire.tag, wire.value)
        try:
            decoder = self._decoders.get(tag)
            return _unknown(CBORTag(tag, content), False) if decoder is None else decoder(content, False)
        except Problem:
            raise
        except Exception as error:
            raise Problem(f"what was written can't be read: {error_text(error)}") from error

    def _content(self, tag: int, content: Any) -> object:
        if tag == Tag.DOCUMENT:
            return list(map(self, content))
        if tag == Tag.OBJECT:
            return [content[0], *self._parts(content[1:], map(".{}".format, self._names[content[0]]))]
        if tag in (Tag.PAIRS, Tag.ORDERED_DICT, Tag.COUNTER):
            return self._parts(content, [key_segment(content[i & -2]) for i in range(len(content))])
        return self(content)

    def _parts(self, wires: Iterable[Any], segments: Iterable[str]) -> list[object]:
        return [at(segment, self, wire) for segment, wire in zip(segments, wires, strict=True)]


def _plain_object(names: Sequence[str], values: Sequence[object]) -> object:
    if not names:
        return values[0] if values else {}  # an enum's member: its value, or else its name
    return {n: v for n, v in zip(names, values, strict=True) if not n.startswith("~")}


def _unknown(tag: CBORTag, _: bool) -> object:
    raise Problem(f"it was written by a later release: tag {tag.tag} is not known here", "upgrade workflow_sdk")


def _content(tag: CBORTag, _: bool) -> object:
    return tag.value


def _applied(make: Callable[[Any], object]) -> Decoder:
    return lambda content, _: make(content)


def _refuse(why: str, content: object) -> NoReturn:
    raise Problem(why)


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


def _plain_pairs(content: list[Any]) -> object:
    plain: dict[Any, object] = {}
    for key, value in _mapped(content):
        try:
            plain[key] = value
        except TypeError:  # it holds what has become a dict
            plain[short(key)] = value
    return plain


_NOT_OURS: Final = "it was not written by this library: tag {} is none of its own"
_REFUSED: Final[dict[int, Decoder]] = {
    **{tag: _applied(partial(_refuse, _NOT_OURS.format(tag))) for tag in FOREIGN_TAGS},
    Tag.SEALED: _applied(partial(_refuse, "there is an encoded value inside of it, which nothing here writes")),
}
_EXACT: Final[dict[int, Decoder]] = {
    **{leaf.tag: _applied(leaf.from_content) for leaf in LEAVES.values()},
    Tag.DOCUMENT: lambda content, _: content[1],
    Tag.TUPLE: _applied(tuple),
    Tag.SET: _applied(set),
    Tag.FROZENSET: _applied(frozenset),
    Tag.PAIRS: _applied(lambda content: dict(_mapped(content))),
    Tag.ORDERED_DICT: lambda content, _: OrderedDict(_mapped(content)),
    Tag.COUNTER: lambda content, _: Counter(dict(_mapped(content))),
    Tag.DEQUE: lambda content, _: deque(content[1:], content[0]),
    **_REFUSED,
}
_PLAIN: Final[dict[int, Decoder]] = {
    **{tag: _plainly(decoder) for tag, decoder in _EXACT.items()},
    **dict.fromkeys((Tag.PAIRS, Tag.ORDERED_DICT, Tag.COUNTER), _applied(_plain_pairs)),
    **_REFUSED,
}
_TAGS_KEPT: Final = {tag: _applied(partial(CBORTag, tag)) for tag in (*range(Tag.FIRST, Tag.LAST + 1), *FOREIGN_TAGS)}
_DECODERS: Final[dict[Mode, dict[int, Decoder]]] = {"exact": _EXACT, "lenient": _EXACT, "plain": _PLAIN}
