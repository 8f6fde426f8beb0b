"""Rows and their bytes: a format byte, and the fields in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Self

import msgspec
from msgspec import Meta, Struct

from workflow_sdk.errors import CodecError

FORMAT = b"\x01"

_NEWER: Final = frozenset(bytes((number,)) for number in range(FORMAT[0] + 1, 32))
"""The first bytes of formats to come. Any other first byte is damage."""
_BEFORE_RELEASE: Final = frozenset(range(0x80, 0x90))
"""The second byte of rows that were written in CBOR, before there was a release."""

MOMENT_MIN, MOMENT_MAX = -62_135_596_800.0, 253_402_300_799.0
"""The earliest and the latest `datetime`, in seconds since 1970."""

Moment = Annotated[float, Meta(ge=MOMENT_MIN, le=MOMENT_MAX)]
"""A time that can be shown as a `datetime`."""
Time = Annotated[float, Meta(ge=-1e300)]
"""Any time, but not NaN."""
COUNT_MAX = (1 << 62) - 1
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]


def _as_plain(value: object) -> object:
    """The plain text, bytes or number of a value whose class extends one of these types."""
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
    """The base of what can be packed as a row."""

    __slots__ = ()

    WHAT: ClassVar[str] = "a row"
    """What errors call such a row."""

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
    """A text of an author's, as the codec stores it: readable or encrypted."""

    plain: str = ""
    sealed: bytes | None = None

    @classmethod
    def of(cls, text: str | bytes) -> Text:
        """The text that the codec gave."""
        return cls(text) if isinstance(text, str) else cls("", text)

    @property
    def value(self) -> str | bytes:
        """The text as the codec gave it."""
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
    """The error for a row from before the first release, or for a store that has one."""
    return CodecError(
        f"{what} was written by a version of workflow_sdk from before its first release, whose rows had another form; "
        "begin with a new store"
    )


def damaged(what: str) -> CodecError:
    """The error for a row that this library can't have written."""
    return CodecError(f"{what} in the store is damaged, or was not written by workflow_sdk")


_LATEST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

AHEAD_SECONDS = 1.0
"""A recorded time that is later than now by more than this comes from a clock that is ahead of ours."""

_AGE = 60_000_000_000.0
"""How many seconds from 1970 on can be told apart in alarms that are due at once: nineteen centuries."""
DUE_AT_ONCE_MAX = MOMENT_MIN + _AGE
"""Alarms before this one are due at once; all others are real times."""


def time_of(at: float) -> datetime:
    """The `datetime` that is nearest to a time at which something has happened."""
    return _LATEST if at >= _LATEST.timestamp() else datetime.fromtimestamp(at, UTC)


def deadline_of(at: float) -> datetime:
    """The first `datetime` that is not before a deadline: whoever comes back then finds it reached."""
    when = time_of(at)
    return when if when is _LATEST or when.timestamp() >= at else when + _MICROSECOND


def due_at_once(now: float) -> float:
    """An alarm that is due at once. `now`, by whatever clock, only decides the order of such alarms."""
    return MOMENT_MIN + min(max(now, 0.0), _AGE - 1.0)


def due_since(alarm: float) -> float:
    """The time of an alarm; for one that is due at once, the time when it was set."""
    return alarm - MOMENT_MIN if alarm < DUE_AT_ONCE_MAX else alarm


class ErrorRow(Row, frozen=True):
    """An `ErrorInfo`: `failures.pack_error_info` makes it, and `failures.unpack_error_info` reads it."""

    WHAT: ClassVar[str] = "a failure"

    type: str
    message: Text
    traceback: Text
    kind: str
    attributes: dict[str, bytes]
    """The attributes of the exception, encoded like other values."""


def shown(value: object, most: int = 200) -> str:
    """The `repr` of a value, `most` characters of it at most; its type, if `repr` raises. Never raises itself.

    `repr` raises for an int of thousands of digits, and may for an author's class.
    """
    try:
        return repr(value)[:most]
    except Exception:  # noqa: BLE001  # an author's __repr__ may raise anything, and an error message must not
        return f"<{type(value).__name__}>"
