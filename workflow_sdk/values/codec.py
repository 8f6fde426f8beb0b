"""Values to bytes and back, as the hints of the code say."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final

from cbor2 import CBORError, CBORTag, dumps, loads

from workflow_sdk.errors import CodecError, PayloadTooLargeError
from workflow_sdk.values.basics import Problem, error_text
from workflow_sdk.values.classes import known_of
from workflow_sdk.values.fitting import fitter
from workflow_sdk.values.lifting import Mode, lift
from workflow_sdk.values.lowering import ATOMS, Writer, check_text, lower, lower_with
from workflow_sdk.values.sealing import HEAD_SIZES, SEAL, Wrappers, no_seals, read_simple, seals_of

VALUES_SIZE: Final = 8
CLASSES_SIZE: Final = 4
FIELDS_SIZE: Final = 4

UNKNOWN: Final = 57_700
"""The tag of an argument that can't be encoded. It is never stored, as only digests are."""


def digest(arguments: Sequence[object]) -> bytes:
    """The digest of the arguments: one part for their values and, if there are objects, for their classes and fields.

    An argument that can't be encoded (a connection, a function) counts by its type alone.
    """
    if ATOMS.issuperset(map(type, arguments)):
        try:
            return _hash(VALUES_SIZE, ascii(tuple(arguments)).encode())  # in a fifth of the time
        except ValueError:
            pass  # an int of thousands of digits
    # Classes need not be found again by their names, and may move to another module.
    writer = Writer(attrgetter("__qualname__"))
    values = _hash(VALUES_SIZE, b"".join([_encoded(argument, writer) for argument in arguments]))
    if not writer.entries:
        return values
    classes = _hash(CLASSES_SIZE, dumps([entry[0] for entry in writer.entries]))
    return values + classes + _hash(FIELDS_SIZE, dumps([entry[1:] for entry in writer.entries]))


def differ(recorded: bytes, asked: bytes) -> bool:
    """Whether two digests are of other arguments.

    If a class has other fields than it had, nobody can tell: its objects look different, and may be the same.
    """
    fields = VALUES_SIZE + CLASSES_SIZE
    if recorded[VALUES_SIZE:fields] != asked[VALUES_SIZE:fields]:
        return True
    return recorded[fields:] == asked[fields:] and recorded != asked


def _hash(size: int, data: bytes) -> bytes:
    return blake2b(data, digest_size=size).digest()


def _encoded(argument: object, writer: Writer) -> bytes:
    count = len(writer.entries)
    try:
        return dumps(lower_with(argument, writer), canonical=True)
    except Exception:  # noqa: BLE001  # an author's class may raise anything when it is looked at
        for key in [key for key, index in writer.indexes.items() if index >= count]:
            del writer.indexes[key]
        del writer.entries[count:]
        return dumps(CBORTag(UNKNOWN, type(argument).__qualname__))


VALUE_BYTES_MAX: Final = 2_000_000
_TOO_DEEP: Final = "the value is nested too deeply, or holds itself; pass a flat form of it"
_SINGLETONS: Final = {None: dumps(None), True: dumps(True), False: dumps(False)}


class Codec:
    """Encodes and decodes authors' values.

    Errors say what is wrong, where in the value, and what to do; the caller adds which operation it was.
    """

    def __init__(self, *, max_value_bytes: int = VALUE_BYTES_MAX, wrapper: Wrappers | None = None) -> None:
        self.max_value_bytes = max_value_bytes
        self.wrapper = wrapper
        self._seals = seals_of(wrapper)

    def encode(self, value: object, hint: object = Any) -> bytes:
        """The bytes of `value`; raises `CodecError`, or `PayloadTooLargeError`."""
        data = self._to_bytes(value, hint)
        return data if self._seals is None else self._seals.close(data)

    def encode_like(self, before: bytes | None, value: object) -> bytes:
        """The bytes of `value`: `before`, if they are of the same value. What encrypts gives other bytes each time."""
        if self._seals is None or before is None:
            return self.encode(value)
        data = self._to_bytes(value, Any)
        try:
            if self._seals.open(before) == data:
                return before
        except CodecError:
            pass
        return self._seals.close(data)

    def decode(self, data: bytes, hint: object = Any, *, plain: bool = False) -> Any:
        """The value that `data` holds; raises `CodecError`.

        `plain` gives dicts for objects and values for enum members: for those who do not have the classes.
        """
        if self._seals is not None or data[:3] == SEAL:
            data = self._opened(data)
        return self._from_bytes(data, hint, "plain" if plain else "exact")

    def roundtrip(self, value: object, hint: object = Any) -> tuple[bytes, Any]:
        """The bytes of `value`, and the value that `decode` will give for them later."""
        data = self._to_bytes(value, hint)
        if type(value) not in ATOMS:
            value = self._from_bytes(data, hint, "exact", own=True)
        return (data if self._seals is None else self._seals.close(data)), value

    def encode_checked(self, value: object, hint: object = Any) -> bytes:
        """The bytes of `value`, which must fit its hint; raises `CodecError`."""
        _fit(value, hint, convert=False)
        return self.encode(value, hint)

    def decode_checked(self, data: bytes, hint: object = Any) -> Any:
        """The value that `data` holds, as its hint asks for; raises `CodecError`.

        Plain data is converted: a dict to the dataclass that is asked for, ISO text to a datetime.
        """
        return _fit(self._from_bytes(self._opened(data), hint, "lenient"), hint, convert=True)

    # What is written beside values, and is an author's or a person's all the same.

    def encode_text(self, text: str) -> str | bytes:
        """A text as it is stored, which is readable if there is no codec. Never raises."""
        if self._seals is None:
            return text
        try:
            return self._seals.close(dumps(text))
        except CodecError:
            return "(the codec could not encode this text)"

    def decode_text(self, found: str | bytes) -> str:
        """The text that was stored; raises `CodecError`."""
        if isinstance(found, str):
            return found
        text = self.decode(found)
        if not isinstance(text, str):
            raise CodecError("the stored bytes are no text")
        return text

    # Whether an instance can be read here.

    def check_readable(self, data: bytes) -> None:
        """Raise `SealedError` if the value can't be read with the codecs that are here."""
        self._opened(data)

    def is_same(self, one: bytes, other: bytes) -> bool:
        """Whether both hold the same value; raises `CodecError`."""
        return one == other or self._opened(one) == self._opened(other)

    def is_own(self, data: bytes) -> bool:
        """Whether everyone who can read `data` can also read what is written here."""
        return data[:3] != SEAL if self._seals is None else self._seals.wrote(data)

    def _opened(self, data: bytes) -> bytes:
        if self._seals is not None:
            return self._seals.open(data)
        if data[:3] == SEAL:
            raise no_seals()
        return data

    def _to_bytes(self, value: object, hint: object) -> bytes:
        if value is None or value is True or value is False:
            return _SINGLETONS[value]
        try:
            wire = value if type(value) in ATOMS else lower(value, known_of(hint))
            try:
                data = dumps(wire)
            except UnicodeEncodeError:
                check_text(wire)
                raise Problem("the value holds text that UTF-8 does not have") from None
        except Problem as problem:
            raise CodecError(str(problem)) from problem.__cause__
        except RecursionError:
            raise CodecError(_TOO_DEEP) from None
        except Exception as error:  # an author's class may raise anything when it is looked at
            raise CodecError(f"the value can't be read: {error_text(error)}") from error
        if len(data) > self.max_value_bytes:
            raise PayloadTooLargeError(
                f"the value is {len(data):,} bytes encoded, and the limit is {self.max_value_bytes:,} (max_value_bytes)"
                "; store it elsewhere and pass a reference"
            )
        return data

    def _from_bytes(self, data: bytes, hint: object, mode: Mode, *, own: bool = False) -> Any:
        try:
            if not 0x80 <= data[0] < 0xE0:  # it is no list, dict or tag
                # Most have nothing behind their head.
                return loads(data) if own or not data[HEAD_SIZES[data[0] & 31] :] else read_simple(data)
            return lift(data, hint, mode, own=own)
        except Problem as problem:
            raise CodecError(str(problem)) from problem.__cause__
        except CodecError:
            raise
        except (CBORError, ValueError, TypeError, IndexError) as error:
            raise CodecError(f"the stored bytes are no value of this library: {error_text(error)}") from error
        except RecursionError:
            raise CodecError("the stored value is nested too deeply") from None
        except Exception as error:  # as when a class of the author's is put together
            raise CodecError(f"the value can't be made: {error_text(error)}") from error


def _fit(value: object, hint: object, *, convert: bool) -> Any:
    try:
        return fitter(hint)(value, convert)
    except Problem as problem:
        raise CodecError(str(problem)) from problem.__cause__
    except RecursionError:
        raise CodecError(_TOO_DEEP) from None
    except Exception as error:  # an author's class may raise anything when it is looked at
        raise CodecError(f"the value can't be checked: {error_text(error)}") from error
