"""Plain data of documents: what JSON has, and marks for the rest, so that every file format keeps every value.

`{"$date": "2026-01-31"}` is a date. A dict of the author's that looks like a mark is written as `{"$literal": {...}}`.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions.data import LISTS, kind_of
from workflow_sdk.graphs.narrowing import is_mapping, is_sequence
from workflow_sdk.rows.wire import shown

DEPTH_MAX: Final = 64
"""How deep a document is nested."""
VALUES_MAX: Final = 5_000_000
"""How many values a document has, those counted again that stand in several places."""
INT_MAX: Final = 1 << 4_096
"""As in expressions."""
LITERAL: Final = "$literal"

_WRITERS: Final[Mapping[type, tuple[str, Callable[[Any], str]]]] = {
    bytes: ("$bytes", lambda value: b64encode(value).decode()),
    datetime: ("$datetime", datetime.isoformat),
    date: ("$date", date.isoformat),
    timedelta: ("$duration", msgspec.to_builtins),
    Decimal: ("$decimal", str),
    UUID: ("$uuid", str),
    float: ("$float", repr),
}
_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "$bytes": lambda text: b64decode(text, validate=True),
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$duration": lambda text: msgspec.convert(text, timedelta),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$float": {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.__getitem__,
}
MARKS: Final = frozenset(_READERS) | {LITERAL}
_PLAIN: Final = frozenset({str, int, bool, type(None)})


def written(value: Any, where: str = "") -> Any:
    """Plain data as documents have it. DefinitionError for what is none, or can't be written."""
    kind = kind_of(value)
    if kind is dict:
        found = {_text(key, where): written(one, f"{where}.{key}") for key, one in value.items()}
        return {LITERAL: found} if len(found) == 1 and next(iter(found)) in MARKS else found
    if kind in LISTS:
        return [written(one, f"{where}[{at}]") for at, one in enumerate(value)]
    return _text(value, where) if kind is str else _written_scalar(value, kind, where)


def _written_scalar(value: Any, kind: type, where: str) -> Any:
    if kind in _PLAIN or (kind is float and math.isfinite(value)):
        return value
    if kind not in _WRITERS:
        raise DefinitionError(f"{where.lstrip('.')}: {shown(value)} is no plain data")
    mark, write = _WRITERS[kind]
    return {mark: write(value)}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise DefinitionError(f"{where.lstrip('.')}: a key is a text, not {shown(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DefinitionError(f"{where.lstrip('.')}: the text {value!a:.60} has no encoding in UTF-8") from None
    return value


class Reader:
    """Reads one document, whoever has made it: every value is copied, and counted."""

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def read(self, value: Any, where: str = "", depth: int = DEPTH_MAX) -> Any:
        """The plain data of a document, with the values that marks stand for. DefinitionError says where it is none."""
        self._left -= 1
        if self._left < 0:
            raise DefinitionError(f"a document has at most {VALUES_MAX:,} values, and each that is shared counts anew")
        if depth < 0:
            raise DefinitionError(f"{_place(where)}: a document is nested {DEPTH_MAX} deep at most")
        if is_mapping(value):
            return self._mapping(value, where, depth - 1)
        if is_sequence(value):
            several = value
            return [self.read(one, f"{where}[{at}]", depth - 1) for at, one in enumerate(several)]
        return _scalar(value, where)

    def _mapping(self, value: Mapping[Any, Any], where: str, depth: int) -> Any:
        items = list(value.items())
        if len(items) == 1 and isinstance(items[0][0], str) and items[0][0] in MARKS:
            mark, inner = items[0]
            return self._marked(mark, inner, where, depth)
        return self._dict(items, where, depth)

    def _dict(self, items: list[tuple[Any, Any]], where: str, depth: int) -> dict[str, Any]:
        found = {_text(key, where): self.read(one, f"{where}.{key}", depth) for key, one in items}
        self._left -= len(found)
        return found

    def _marked(self, mark: str, inner: Any, where: str, depth: int) -> Any:
        if mark == LITERAL and is_mapping(inner):
            return self._dict(list(inner.items()), where, depth)
        if not isinstance(inner, str) or mark == LITERAL:
            expected = "a dict" if mark == LITERAL else "a text"
            raise DefinitionError(f"{_place(where)}: {mark} is followed by {expected}, not {shown(inner, 60)}")
        try:
            return _READERS[mark](inner)
        except (ValueError, ArithmeticError, KeyError, msgspec.ValidationError):
            raise DefinitionError(f"{_place(where)}: {inner!r:.60} is no {mark.removeprefix('$')}") from None


def _scalar(value: Any, where: str) -> Any:
    if isinstance(value, str):
        return _text(str.__str__(value), where)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= INT_MAX:
        raise DefinitionError(f"{_place(where)}: a whole number is smaller than 2**4096")
    if type(value) in _PLAIN or type(value) in _WRITERS:
        return value
    raise DefinitionError(f"{_place(where)}: {shown(value, 60)} is no plain data")


def _place(where: str) -> str:
    return where.lstrip(".") or "the document"
