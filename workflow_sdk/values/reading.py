"""Canonical CBOR to values: the way back from `writing`.

How authors' objects are made, and which classes names stand for, the caller says: see `objects`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, NoReturn, cast

from cbor2 import CBORTag, loads

from workflow_sdk.values.basics import (
    FOREIGN_TAGS,
    LEAVES,
    Build,
    BuilderOf,
    Decoder,
    Problem,
    Tag,
    at,
    error_text,
    is_a,
    key_segment,
    not_loaded,
    read_one,
    short,
)

_DOCUMENT: Final = b"\xd9" + Tag.DOCUMENT.to_bytes(2, "big")
_CBOR_DEPTH_MAX: Final = 1000  # each level of a value takes two levels of CBOR at most

Mode = Literal["exact", "lenient", "plain"]
"""`exact`: objects; `lenient`: objects, and dicts for those whose class is not loaded; `plain`: no objects."""


def read(data: bytes, builders: Callable[[object], BuilderOf], hint: object, mode: Mode, *, own: bool) -> Any:
    """The value that `data` holds; raises `Problem`, or what cbor2 raises for bytes that are no CBOR.

    `builders(hint)` is asked for the classes in its table, if it has one. `own` says that it was written just now, so
    that it need not be checked for bytes after its end.
    """
    decoders = _with_table(builders(hint), mode, []) if data[:3] == _DOCUMENT else _DECODERS[mode]
    hook = _content if mode == "plain" else _unknown
    try:
        if own:
            return loads(data, semantic_decoders=decoders, tag_hook=hook, max_depth=_CBOR_DEPTH_MAX)
        return read_one(data, decoders, hook, _CBOR_DEPTH_MAX + 1)
    except Exception:
        # What CBOR's reader calls for a tag does not know where in the value it is. A second walk, with the tags kept,
        # raises the `Problem` that there is with its path.
        names: list[list[str]] = []
        _Again(_with_table(builders(hint), mode, names), names)(read_one(data, _TAGS_KEPT, depth=_CBOR_DEPTH_MAX))
        raise


def _with_table(builder_of: BuilderOf, mode: Mode, names: list[list[str]]) -> dict[int, Decoder]:
    """Decoders for one value and its table of classes, whose attributes are added to `names`."""
    # Functions rather than methods: an object that holds its own methods would be left to the garbage collector.
    builders: list[Build] = []

    def table(content: list[list[str]], _: bool) -> None:
        for name, *attributes in content:
            build = None if mode == "plain" else builder_of(name, tuple(attributes))
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
            return self._parts(wire, map("[{}]".format, range(len(wire))))
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
            index: int = content[0]
            return [index, *self._parts(content[1:], map(".{}".format, self._names[index]))]
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
