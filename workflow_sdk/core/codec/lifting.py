"""From bytes to the value: the way back of `lowering`."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, Literal, cast

from cbor2 import CBORTag, loads

from workflow_sdk.core.codec import leaves, tags
from workflow_sdk.core.codec.classes import Known, not_loaded
from workflow_sdk.core.codec.framing import behind, read_one
from workflow_sdk.core.codec.problem import Problem, error_text, is_a, key_segment, short, type_text
from workflow_sdk.core.codec.shapes import Build, shape_of
from workflow_sdk.core.wire import AFTER, BEFORE, FOREIGN_TAGS, MARK

CBOR_DEPTH_MAX: Final = 1000
"""Every level of a value is two of CBOR at most; this is room for that, and a bound for bytes of others."""

Mode = Literal["exact", "lenient", "plain"]
"""`exact`: objects; `lenient`: objects, and dicts for those whose class is not loaded; `plain`: no objects."""

Decoder = Callable[[Any, bool], object]
_BUILDERS_MAX: Final = 10_000
_BY_NAME: Final = True
_DOCUMENT_HEAD: Final = b"\xd9" + tags.DOCUMENT.to_bytes(2, "big")


def lift(data: bytes, known: Known, mode: Mode, *, own: bool = False) -> Any:
    """The value that `data` holds; raises `Problem`, or what cbor2 raises for bytes that are no CBOR.

    `own`: it was written just now, so that nothing can be wrong with its end.
    """
    try:
        if data.startswith(_DOCUMENT_HEAD):
            decoders = _Reader(known, mode).decoders
        else:
            decoders = _PLAIN if mode == "plain" else _EXACT
        hook = _content if mode == "plain" else _unknown
        if own:
            return loads(data, semantic_decoders=decoders, tag_hook=hook, max_depth=CBOR_DEPTH_MAX)
        framed = BEFORE + data + AFTER
        value, mark = loads(framed, semantic_decoders=decoders, tag_hook=hook, max_depth=CBOR_DEPTH_MAX + 1)
        if type(mark) is not bytes or mark != MARK:
            raise behind()
        return value
    except Exception:
        # What CBOR's reader calls for a tag does not know where in the value it is; the slow way does.
        _explain(data, _Reader(known, mode))
        raise


def _explain(data: bytes, reader: _Reader) -> None:
    """Read `data` again, and raise the `Problem` that there is in it with its path."""
    keep: dict[int, Any] = {tag: _keeper(tag) for tag in (*range(tags.FIRST, tags.LAST + 1), *FOREIGN_TAGS)}
    _walk(read_one(data, semantic_decoders=keep, max_depth=CBOR_DEPTH_MAX), reader)


def _keeper(tag: int) -> Decoder:
    return lambda content, _: CBORTag(tag, content)


def _walk(wire: Any, reader: _Reader) -> object:
    if is_a(wire, list):
        return [_step(f"[{i}]", part, reader) for i, part in enumerate(wire)]
    if is_a(wire, dict):
        return {key: _step(key_segment(key), part, reader) for key, part in wire.items()}
    if not isinstance(wire, CBORTag):
        return wire
    content: Any = wire.value
    if wire.tag == tags.DOCUMENT:
        content = [_walk(part, reader) for part in content]
    elif wire.tag == tags.OBJECT:
        index: int = content[0]
        names = reader.names[index]
        content = [index, *(_step(f".{n}", part, reader) for n, part in zip(names, content[1:], strict=True))]
    elif wire.tag in (tags.PAIRS, tags.ORDERED_DICT, tags.COUNTER):
        content = [_step(key_segment(content[i & -2]), part, reader) for i, part in enumerate(content)]
    else:
        content = _walk(content, reader)
    try:
        decoder = reader.decoders.get(wire.tag)
        return _unknown(wire, False) if decoder is None else decoder(content, False)
    except Problem:
        raise
    except Exception as error:
        raise Problem(f"what was written can't be read: {error_text(error)}") from error


def _step(segment: str, wire: object, reader: _Reader) -> object:
    try:
        return _walk(wire, reader)
    except Problem as problem:
        raise problem.under(segment) from problem.__cause__


class _Reader:
    """The table of classes of one value, while it is read."""

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

    def _table(self, content: list[list[str]], _: bool) -> None:
        for name, *names in content:
            self.names.append(names)
            self.builders.append(self._builder(name, tuple(names)))

    def _builder(self, name: str, names: tuple[str, ...]) -> Build:
        if self.mode != "plain":
            if (cls := self.known.find(name)) is not None:
                return _builder(cls, names, self.known.leads_to(cls))
            if self.mode == "exact":
                raise not_loaded(name)
        return _plain_builder(names)

    def _object(self, content: Any, _: bool) -> object:
        index: int = content[0]
        return self.builders[index](content[1:])

    def _enum_value(self, content: Any, _: bool) -> object:
        index, value = content
        return self.builders[cast(int, index)]((value,))

    def _enum_name(self, content: Any, _: bool) -> object:
        index, name = content
        return self.builders[cast(int, index)]((name, _BY_NAME))


def _plain_builder(names: tuple[str, ...]) -> Build:
    if not names:
        return lambda values: values[0] if values else {}  # an enum's member: its value, or else its name
    return lambda values: {n: v for n, v in zip(names, values, strict=True) if not n.startswith("~")}


_builders: dict[tuple[type, tuple[str, ...], bool], Build] = {}


def _builder(cls: type, names: tuple[str, ...], is_expected: bool) -> Build:
    if (build := _builders.get((cls, names, is_expected))) is None:
        if _is_enum(cls):
            build = _enum_builder(cast("type[Enum]", cls))
        else:
            build = shape_of(cls).builder(names, is_expected=is_expected)
        if len(_builders) >= _BUILDERS_MAX:  # classes made in functions are many, and must not be kept for ever
            _builders.clear()
        _builders[cls, names, is_expected] = build
    return build


def _is_enum(cls: type) -> bool:
    return issubclass(cls, Enum)


def _enum_builder(cls: type[Enum]) -> Build:
    def build(values: Sequence[Any]) -> Enum:
        try:
            return cls[values[0]] if values[1:] else cls(values[0])
        except (KeyError, ValueError):
            raise Problem(
                f"{short(values[0])} is not a member of {type_text(cls)} any more", "keep the member, or an alias of it"
            ) from None

    return build


def _document(content: list[object], _: bool) -> object:
    return content[1]


def _foreign(tag: int) -> Decoder:
    def refuse(content: Any, _: bool) -> object:
        raise Problem(f"it was not written by this library: tag {tag} is none of its own")

    return refuse


def _sealed(content: Any, _: bool) -> object:
    raise Problem("there is an encoded value inside of it, which nothing here writes")


def _mapped(content: list[Any]) -> Iterator[tuple[Any, Any]]:
    parts = iter(content)
    return zip(parts, parts, strict=True)


def _leaf(from_wire: Callable[[Any], object]) -> Decoder:
    return lambda content, _: from_wire(content)


def _unknown(tag: CBORTag, _: bool) -> object:
    raise Problem(f"it was written by a later release: tag {tag.tag} is not known here", "upgrade workflow_sdk")


def _content(tag: CBORTag, _: bool) -> object:
    return tag.value


_EXACT: Final[dict[int, Decoder]] = {
    **{tag: _leaf(from_wire) for tag, from_wire in leaves.FROM_WIRE.items()},
    tags.DOCUMENT: _document,
    tags.TUPLE: lambda w, _: tuple(w),
    tags.SET: lambda w, _: set(w),
    tags.FROZENSET: lambda w, _: frozenset(w),
    tags.PAIRS: lambda w, _: dict(_mapped(w)),
    tags.ORDERED_DICT: lambda w, _: OrderedDict(_mapped(w)),
    tags.COUNTER: lambda w, _: Counter(dict(_mapped(w))),
    tags.DEQUE: lambda w, _: deque(w[1:], w[0]),
    tags.SEALED: _sealed,
    **{tag: _foreign(tag) for tag in FOREIGN_TAGS},
}


def _plainly(decoder: Decoder) -> Decoder:
    """What `decoder` makes of the content, or the content as it stands: reading plain data does not fail."""

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
    tags.SEALED: _sealed,
    **{tag: _foreign(tag) for tag in FOREIGN_TAGS},
}
