"""Rows: a byte that names the format, and a MessagePack array of the fields.

A kind of row is a class. Its bytes are checked when they are read: whatever does not have the types and ranges that the
class says is refused with `CodecError`, and the code behind it never sees it. Fields are only ever added, at the end
and with a default, so that old rows stay readable. A row with more fields than its class has is of a newer version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Final, NoReturn, Self, cast

import cbor2
import msgspec
from msgspec import Meta, Struct

from workflow_sdk.errors import CodecError

__all__ = [
    "AFTER",
    "BEFORE",
    "COUNT_MAX",
    "FOREIGN_TAGS",
    "FORMAT",
    "MARK",
    "MOMENT_MAX",
    "MOMENT_MIN",
    "Count",
    "Moment",
    "NewerFormatError",
    "Packed",
    "Row",
    "Text",
    "Time",
    "before_release",
    "damaged",
    "is_of_before_release",
    "pack_record",
    "unpack_cbor",
    "unpack_record",
]

FORMAT = b"\x01"

_NEWER: Final = frozenset(bytes((number,)) for number in range(FORMAT[0] + 1, 32))
"""What formats to come may be called. Anything else in that place is damage."""
_BEFORE_RELEASE: Final = frozenset(range(0x80, 0x90))
"""The second byte of rows that were written in CBOR, before there was a release."""

MOMENT_MIN, MOMENT_MAX = -62_135_596_800.0, 253_402_300_799.0
"""What a `datetime` can be, in seconds."""

Moment = Annotated[float, Meta(ge=MOMENT_MIN, le=MOMENT_MAX)]
"""A time that a `datetime` can be made of."""
Time = Annotated[float, Meta(ge=-1e300)]
"""Any time: everything but NaN."""
COUNT_MAX = (1 << 62) - 1
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]


def _as_plain(value: object) -> object:
    """What a row holds of a value whose class extends that of a text or a number."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"no row can hold {type(value).__name__}")


_encode: Final = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_as_plain).encode
_decode_any: Final = msgspec.msgpack.Decoder().decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class NewerFormatError(CodecError):
    """A record that a newer version of workflow_sdk has written, for all that can be seen: it is left to workers of
    that version.
    """


class Packed:
    """What can be packed as a row."""

    __slots__ = ()

    WHAT: ClassVar[str] = "a row"
    """What an error calls it."""

    def pack(self) -> bytes:
        """The row as bytes. Equal rows give equal bytes. CodecError, if it holds what no row can hold."""
        try:
            return FORMAT + _encode(self)
        except (OverflowError, UnicodeEncodeError, TypeError) as error:
            raise CodecError(f"{self.WHAT} can't be stored: {error}") from error

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        """The row that the bytes hold; CodecError if they hold none of this class."""
        if raw[:1] != FORMAT:
            raise _other_format(raw)
        decode = _decoders.get(cls)
        if decode is None:
            decode = _decoders[cls] = msgspec.msgpack.Decoder(cls).decode
        try:
            row: Self = decode(raw[1:])
        except _UNREADABLE as error:
            raise _unreadable(cls.WHAT, raw, error) from error
        return row


_decoders: Final[dict[type[Packed], Callable[[bytes], Any]]] = {}


class Row(Packed, Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The value of a row, or a part of one."""


class Text(Row, frozen=True):
    """A text of an author's, as the codec has it: readable, or encrypted."""

    plain: str = ""
    sealed: bytes | None = None

    @classmethod
    def of(cls, text: str | bytes) -> Text:
        """The text, from what the codec gave."""
        return cls(text) if isinstance(text, str) else cls("", text)

    @property
    def value(self) -> str | bytes:
        """What the codec gave."""
        return self.plain if self.sealed is None else self.sealed


def pack_record(fields: Sequence[object]) -> bytes:
    """A row of any fields as bytes."""
    return FORMAT + _encode(fields)


def unpack_record(raw: bytes) -> list[Any]:
    """The fields of a row, whatever they are."""
    if raw[:1] != FORMAT:
        raise _other_format(raw)
    try:
        fields: Any = _decode_any(raw[1:])
    except _UNREADABLE as error:
        raise _unreadable("a record", raw, error) from error
    if fields.__class__ is not list:
        raise _unreadable("a record", raw)
    found: list[Any] = fields
    return found


def _other_format(raw: bytes) -> CodecError:
    kind = NewerFormatError if raw[:1] in _NEWER else CodecError
    return kind(
        f"a record in format {raw[:1].hex() or 'none'}, which this version of workflow_sdk can't read; "
        "it was written by a newer one, or not by workflow_sdk"
    )


def _unreadable(what: str, raw: bytes, error: Exception | None = None) -> CodecError:
    if is_of_before_release(raw):
        return before_release(what)
    if "of at most length" in str(error):  # in msgspec's words: it has more fields than its class
        return NewerFormatError(
            f"{what} in the store has fields that this version of workflow_sdk does not know; it was written by a "
            "newer one"
        )
    return damaged(what)


def is_of_before_release(raw: bytes) -> bool:
    """Whether a row has the form that rows had before the first release."""
    return raw[:1] == FORMAT and len(raw) > 1 and raw[1] in _BEFORE_RELEASE


def before_release(what: str) -> CodecError:
    """What to say of such a row, or of a store that has one."""
    return CodecError(
        f"{what} was written by a version of workflow_sdk from before its first release, whose rows had another form; "
        "begin with a new store"
    )


def damaged(what: str) -> CodecError:
    """What to say of a row that nothing here has written like that."""
    return CodecError(f"{what} in the store is damaged, or was not written by workflow_sdk")


# -- CBOR, which values are written in --------------------------------------------------------------------------------

FOREIGN_TAGS: Final = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""What cbor2 reads by itself and nothing here writes: values that hold themselves, patterns to compile, mails to parse.
Such bytes are refused. Of CBOR's own tags only those of large integers are written, 2 and 3."""

MARK: Final = bytes.fromhex("c5a1d80b6e7f4c93b2f0174d9ae35c68")
BEFORE, AFTER = b"\x82", b"\x50" + MARK
"""Whatever is read is read as the first of two, of which the second is a mark behind it: bytes after a value are an
error, and CBOR's reader does not look at them."""

_loads = cbor2.loads


def _refuse(content: object, immutable: bool) -> NoReturn:
    raise ValueError("a tag that no record has")


_DECODERS: Final[dict[int, Callable[[object, bool], NoReturn]]] = dict.fromkeys(FOREIGN_TAGS, _refuse)


def unpack_cbor(data: bytes) -> object:
    """What CBOR without any tag but those of large integers holds."""
    try:
        fields, end = _loads(BEFORE + data + AFTER, semantic_decoders=_DECODERS)
    except Exception as error:
        raise damaged("a record") from error
    if end.__class__ is not bytes or end != MARK:
        raise damaged("a record")
    return cast(object, fields)
