"""Makes values of bytes: the way back from `lowering`."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, NoReturn, cast

from cbor2 import CBORTag, loads

from workflow_sdk.values import basics as leaves
from workflow_sdk.values import tags
from workflow_sdk.values.basics import Cache, Problem, Walk, error_text, short, type_text
from workflow_sdk.values.classes import Known, known_of, not_loaded
from workflow_sdk.values.sealing import FOREIGN_TAGS, Decoder, read_one
from workflow_sdk.values.shapes import Build, shape_of

CBOR_DEPTH_MAX: Final = 1000
"""How deeply the CBOR of a value may be nested. Each level of a value takes two levels of CBOR at most."""

Mode = Literal["exact", "lenient", "plain"]
"""`exact`: objects; `lenient`: objects, and dicts for those whose class is not loaded; `plain`: no objects."""

_DOCUMENT_HEAD: Final = b"\xd9" + tags.DOCUMENT.to_bytes(2, "big")


def lift(data: bytes, hint: object, mode: Mode, *, own: bool = False) -> Any:
    """The value that `data` holds; raises `Problem`, or what cbor2 raises for bytes that are no CBOR.

    `own` says that it was written just now, so that it need not be checked for bytes after its end.
    """
    try:
        if data[:3] == _DOCUMENT_HEAD:
            decoders = _Reader(known_of(hint), mode).decoders
        else:
            decoders = _PLAIN if mode == "plain" else _EXACT
        hook = _content if mode == "plain" else _unknown
        if own:
            return loads(data, semantic_decoders=decoders, tag_hook=hook, max_depth=CBOR_DEPTH_MAX)
        return read_one(data, decoders, hook, CBOR_DEPTH_MAX + 1)
    except Exception:
        # What CBOR's reader calls for a tag does not know where in the value it is; the slow way does.
        _explain(data, _Reader(known_of(hint), mode))
        raise


def _explain(data: bytes, reader: _Reader) -> None:
    """Read `data` again, and raise the `Problem` that there is in it with its path."""
    keep = {tag: _keeper(tag) for tag in (*range(tags.FIRST, tags.LAST + 1), *FOREIGN_TAGS)}
    wire = read_one(data, keep, depth=CBOR_DEPTH_MAX)
    Walk(lambda leaf: leaf, reader.decoded, reader.names)(wire)


def _keeper(tag: int) -> Decoder:
    return lambda content, _: CBORTag(tag, content)


class _Reader:
    """Reads the objects of one value, by its table of classes."""

    __slots__ = ("builders", "decoders", "known", "mode", "names")

    def __init__(self, known: Known, mode: Mode) -> None:
        self.known = known
        self.mode: Mode = mode
        self.builders: list[Build] = []
        self.names: list[list[str]] = []
        self.decoders: dict[int, Decoder] = (_PLAIN if mode == "plain" else _EXACT).copy()
        self.decoders[tags.TABLE] = self._table
        self.decoders[tags.OBJECT] = self._object
        self.decoders[tags.ENUM_VALUE] = self._enum_value
        self.decoders[tags.ENUM_NAME] = self._enum_name

    def decoded(self, tag: int, content: Any) -> object:
        """What a tag and its content stand for; raises `Problem`."""
        try:
            decoder = self.decoders.get(tag)
            return _unknown(CBORTag(tag, content), False) if decoder is None else decoder(content, False)
        except Problem:
            raise
        except Exception as error:
            raise Problem(f"what was written can't be read: {error_text(error)}") from error

    def _table(self, content: list[list[str]], _: bool) -> None:
        for name, *names in content:
            self.names.append(names)
            self.builders.append(self._builder(name, tuple(names)))

    def _builder(self, name: str, names: tuple[str, ...]) -> Build:
        if self.mode != "plain":
            if (cls := self.known.find(name)) is not None:
                return _builders[cls, names, self.known.leads_to(cls)]
            if self.mode == "exact":
                raise not_loaded(name)
        return partial(_plain_object, names)

    def _object(self, content: Any, _: bool) -> object:
        index: int = content[0]
        return self.builders[index](content[1:])

    def _enum_value(self, content: Any, _: bool) -> object:
        index, value = content
        return self.builders[cast(int, index)]((value,))

    def _enum_name(self, content: Any, _: bool) -> object:
        index, name = content
        return self.builders[cast(int, index)]((name, "by name"))


def _plain_object(names: tuple[str, ...], values: Sequence[object]) -> object:
    if not names:
        return values[0] if values else {}  # an enum's member: its value, or else its name
    return {n: v for n, v in zip(names, values, strict=True) if not n.startswith("~")}


def _make_builder(what: tuple[Any, tuple[str, ...], bool]) -> Build:
    cls, names, is_expected = what
    if issubclass(cls, Enum):
        return partial(_member, cls)
    return shape_of(cls).builder(names, is_expected=is_expected)


_builders: Final = Cache(_make_builder, 10_000)


def _member(cls: type[Enum], values: Sequence[Any]) -> Enum:
    """The member of an enum with this value; or, if there is a second item, with this name."""
    try:
        return cls[values[0]] if values[1:] else cls(values[0])
    except (KeyError, ValueError):
        what = f"{short(values[0])} is not a member of {type_text(cls)} any more"
        raise Problem(what, "keep the member, or an alias of it") from None


def _sealed(content: Any, _: bool) -> NoReturn:
    raise Problem("there is an encoded value inside of it, which nothing here writes")


def _foreign(tag: int) -> Decoder:
    def refuse(content: Any, _: bool) -> object:
        raise Problem(f"it was not written by this library: tag {tag} is none of its own")

    return refuse


def _unknown(tag: CBORTag, _: bool) -> object:
    raise Problem(f"it was written by a later release: tag {tag.tag} is not known here", "upgrade workflow_sdk")


def _content(tag: CBORTag, _: bool) -> object:
    return tag.value


def _mapped(content: list[Any]) -> Iterator[tuple[Any, Any]]:
    parts = iter(content)
    return zip(parts, parts, strict=True)


def _leaf(from_wire: Callable[[Any], object]) -> Decoder:
    return lambda content, _: from_wire(content)


_REFUSED: Final[dict[int, Decoder]] = {tags.SEALED: _sealed, **{tag: _foreign(tag) for tag in FOREIGN_TAGS}}
_EXACT: Final[dict[int, Decoder]] = {
    **{tag: _leaf(from_wire) for tag, from_wire in leaves.FROM_WIRE.items()},
    tags.DOCUMENT: lambda w, _: w[1],
    tags.TUPLE: lambda w, _: tuple(w),
    tags.SET: lambda w, _: set(w),
    tags.FROZENSET: lambda w, _: frozenset(w),
    tags.PAIRS: lambda w, _: dict(_mapped(w)),
    tags.ORDERED_DICT: lambda w, _: OrderedDict(_mapped(w)),
    tags.COUNTER: lambda w, _: Counter(dict(_mapped(w))),
    tags.DEQUE: lambda w, _: deque(w[1:], w[0]),
    **_REFUSED,
}


def _plainly(decoder: Decoder) -> Decoder:
    """A decoder that gives the content itself where `decoder` fails, so that reading plain data never fails."""

    def decode(content: Any, immutable: bool) -> object:
        try:
            return decoder(content, immutable)
        except Exception:  # noqa: BLE001  # a set of what has become dicts, a zone that is not known here
            return content

    return decode


def _plain_pairs(content: list[Any], _: bool) -> object:
    return {_plain_key(key): value for key, value in _mapped(content)}


def _plain_key(key: object) -> object:
    try:
        hash(key)
    except TypeError:
        return short(key)
    return key


_PLAIN: Final[dict[int, Decoder]] = {
    **{tag: _plainly(decoder) for tag, decoder in _EXACT.items()},
    **dict.fromkeys((tags.PAIRS, tags.ORDERED_DICT, tags.COUNTER), _plain_pairs),
    **_REFUSED,
}
