"""The engine's own records: a byte that names the format, and canonical CBOR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from struct import Struct
from typing import Any, Final, NoReturn, TypeAlias, cast

import cbor2

from workflow_sdk.errors import CodecError

__all__ = [
    "AFTER",
    "BEFORE",
    "FOREIGN_TAGS",
    "FORMAT",
    "MARK",
    "MOMENT_MAX",
    "MOMENT_MIN",
    "NOTHING",
    "NUMBERS",
    "NewerFormatError",
    "Shapes",
    "damaged",
    "moment",
    "number",
    "pack_count",
    "pack_outcome",
    "pack_record",
    "pack_text",
    "shapes",
    "unpack_cbor",
    "unpack_record",
]

FORMAT = b"\x01"
"""Old formats stay readable: a new one gets the next number, and a reader of its own in `unpack_record`."""

FOREIGN_TAGS: Final = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""What cbor2 reads by itself and nothing here writes: values that hold themselves, patterns to compile, mails to parse.
Such bytes are refused. Of CBOR's own tags only those of large integers are written, 2 and 3."""

_NEWER: Final = frozenset(bytes((number,)) for number in range(FORMAT[0] + 1, 32))
"""What formats to come may be called. Anything else in that place is damage."""


class NewerFormatError(CodecError):
    """A record that a newer version of workflow_sdk has written, for all that can be seen: it is left to workers of
    that version.
    """


NOTHING: Final = type(None)
NUMBERS: Final = (float, int)
MOMENT_MIN, MOMENT_MAX = -62_135_596_800.0, 253_402_300_799.0
"""What a `datetime` can be, in seconds."""

Shapes: TypeAlias = frozenset[tuple[type, ...]]

MARK: Final = bytes.fromhex("c5a1d80b6e7f4c93b2f0174d9ae35c68")
BEFORE, AFTER = b"\x82", b"\x50" + MARK
"""Whatever is read is read as the first of two, of which the second is a mark behind it: bytes after a value are an
error, and CBOR's reader does not look at them."""

_dumps = cbor2.dumps
_loads = cbor2.loads


def _refuse(content: object, immutable: bool) -> NoReturn:
    raise ValueError("a tag that no record has")


_DECODERS: Final[dict[int, Callable[[object, bool], NoReturn]]] = dict.fromkeys(FOREIGN_TAGS, _refuse)


def pack_record(fields: Sequence[object]) -> bytes:
    """A record as bytes. Equal records give equal bytes."""
    return FORMAT + _dumps(fields, canonical=True)


def pack_count(count: int, more: int | None = None) -> bytes:
    """The record of a number or two, as `pack_record([count])` gives it: every commit writes one."""
    if more is None:
        return b"\x01\x81" + _uint(count)
    return b"\x01\x82" + _uint(count) + (_uint(more) if more >= 0 else _dumps(more))


def _uint(number: int) -> bytes:
    """A number from 0 on as CBOR."""
    if number < 24:
        return bytes((number,))
    if number < 256:
        return bytes((0x18, number))
    if number < 65_536:
        return b"\x19" + number.to_bytes(2, "big")
    return _dumps(number)


def pack_text(text: str) -> bytes:
    """The record of a text, as `pack_record([text])` gives it: most steps write the one of their name."""
    return b"\x01\x81" + _dumps(text)


_TIMES: Final = Struct(">BBdBd")
_TIMES_MIN, _TIMES_MAX = float(1 << 30), float(1 << 31)


def pack_outcome(
    kind: int, status: int, ordinal: int, created: float, finished: float, value: bytes, digest: bytes | None = None
) -> bytes | None:
    """The record of an operation that came to a value at the first attempt; None if it takes `pack_record`.

    As `pack_record([kind, status, ordinal, 1, created, finished, value, None, None])` gives it, with the digest at the
    end if there is one, in half of the time: what ended well is nearly all that is ever written. A time from 2004 to
    2038 that is no multiple of 128 seconds has no shorter form as a float.
    """
    if (
        type(created) is not float
        or type(finished) is not float
        or not _TIMES_MIN < created <= finished < _TIMES_MAX
        or not created % 128.0
        or not finished % 128.0
        or (size := len(value)) > 65_535
    ):
        return None
    if size < 24:
        length = bytes((0x40 + size,))
    elif size < 256:
        length = bytes((0x58, size))
    else:
        length = bytes((0x59, size >> 8, size & 255))
    times = _TIMES.pack(1, 0xFB, created, 0xFB, finished)
    if digest is None:
        return b"".join((bytes((1, 0x89, kind, status)), _uint(ordinal), times, length, value, b"\xf6\xf6"))
    if len(digest) > 23:
        return None
    last = bytes((0xF6, 0xF6, 0x40 + len(digest)))
    return b"".join((bytes((1, 0x8A, kind, status)), _uint(ordinal), times, length, value, last, digest))


def unpack_record(data: bytes) -> list[Any]:
    """The fields of a record."""
    fields: list[Any]
    if data[:1] != FORMAT:
        kind = NewerFormatError if data[:1] in _NEWER else CodecError
        raise kind(
            f"a record in format {data[:1].hex() or 'none'}, which this version of workflow_sdk can't read; "
            "it was written by a newer one, or not by workflow_sdk"
        )
    try:
        fields, end = _loads(BEFORE + data[1:] + AFTER, semantic_decoders=_DECODERS)
    except Exception as error:
        raise damaged("a record") from error
    if fields.__class__ is not list or end.__class__ is not bytes or end != MARK:
        raise damaged("a record")
    return fields


def unpack_cbor(data: bytes) -> object:
    """What CBOR without any tag but those of large integers holds."""
    try:
        fields, end = _loads(BEFORE + data + AFTER, semantic_decoders=_DECODERS)
    except Exception as error:
        raise damaged("a record") from error
    if end.__class__ is not bytes or end != MARK:
        raise damaged("a record")
    return cast(object, fields)


def damaged(what: str) -> CodecError:
    """What to say of a row that nothing here has written like that."""
    return CodecError(f"{what} in the store is damaged, or was not written by workflow_sdk")


def shapes(*fields: tuple[type, ...]) -> Shapes:
    """The types that the fields of a record may have, each one of some: all ways there are, to be looked up at once."""
    return frozenset(product(*fields))


def number(value: float) -> float:
    """A number of a record, as a float."""
    try:
        return float(value)
    except OverflowError:
        raise damaged("a number") from None


def moment(value: float) -> float:
    """A time of a record, which a `datetime` can be made of."""
    if not MOMENT_MIN <= value <= MOMENT_MAX:
        raise damaged("a time")
    return float(value)
