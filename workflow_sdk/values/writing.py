"""Values to canonical CBOR, with every type kept exactly. `Tag` has the format.

A value becomes a wire form of what CBOR has, and a table of the classes in it. How authors' objects come apart, and
what their classes are called, the caller says: see `objects`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, Flag
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, islice
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeAlias, cast

from cbor2 import CBORTag, dumps

from workflow_sdk.values.basics import (
    LEAVES,
    Problem,
    Tag,
    Take,
    checked_text,
    half_character,
    key_segment,
    short,
    type_text,
)

ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
"""The types that CBOR has itself, also for the keys of a map."""
DEPTH_MAX: Final = 200
_CLASSES_MAX: Final = 10_000


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
    atoms: ClassVar[frozenset[type]] = ATOMS
    """The types whose values are their own wire form."""

    def __init__(self, handlers: Handlers, name_of: Callable[[type], str]) -> None:
        self.handlers: Handlers = handlers
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

_TABLE: Final = b"\xd9" + Tag.DOCUMENT.to_bytes(2, "big") + b"\x82\xd9" + Tag.TABLE.to_bytes(2, "big")


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


def _leaf(tag: int, to_content: Callable[[Any], object]) -> Handler:
    return lambda value, writer, depth: CBORTag(tag, to_content(value))


_BUILT_IN: Final[dict[type, Handler]] = {
    str: lambda value, writer, depth: checked_text(value),  # only asked where `atoms` is without it
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


# -- Digests of arguments ---------------------------------------------------------------------------------------------

_VALUES_SIZE: Final = 8
_CLASSES_SIZE: Final = 4
_FIELDS_SIZE: Final = 4
_UNKNOWN: Final = 57_700
"""The tag of an argument that can't be encoded. It is never stored, as only digests are."""


def digest_with(handlers: Handlers, arguments: Sequence[object]) -> bytes:
    """The digest of the arguments: one part for their values and, if there are objects, for their classes and fields.

    An argument that can't be encoded (a connection, a function) counts by its type alone.
    """
    if ATOMS.issuperset(map(type, arguments)):
        try:
            return _hash(_VALUES_SIZE, ascii(tuple(arguments)).encode())  # in a fifth of the time
        except ValueError:
            pass  # an int of thousands of digits
    # Classes need not be found again by their names, and may move to another module.
    writer = Writer(handlers, attrgetter("__qualname__"))
    values = _hash(_VALUES_SIZE, b"".join([_encoded(argument, writer) for argument in arguments]))
    if not writer.table:
        return values
    classes = _hash(_CLASSES_SIZE, dumps([name for name, _ in writer.table]))
    return values + classes + _hash(_FIELDS_SIZE, dumps([names for _, names in writer.table]))


def _encoded(argument: object, writer: Writer) -> bytes:
    count = len(writer.table)
    try:
        return dumps(writer(argument), canonical=True)
    except Exception:  # noqa: BLE001  # an author's class may raise anything when it is looked at
        del writer.table[count:]
        writer.indexes = dict(islice(writer.indexes.items(), count))
        return dumps(CBORTag(_UNKNOWN, type(argument).__qualname__))


def _hash(size: int, data: bytes) -> bytes:
    return blake2b(data, digest_size=size).digest()


def differ(recorded: bytes, asked: bytes) -> bool:
    """Whether two digests are of other arguments.

    If a class has other fields than it had, nobody can tell: its objects look different, and may be the same.
    """
    fields = _VALUES_SIZE + _CLASSES_SIZE
    if recorded[_VALUES_SIZE:fields] != asked[_VALUES_SIZE:fields]:
        return True
    return recorded[fields:] == asked[fields:] and recorded != asked
