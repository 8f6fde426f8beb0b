"""Authors' values as bytes, and back, as the hints of the code say. The rest of the engine uses `Codec`."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import filterfalse
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast

from cbor2 import CBORError, dumps

from workflow_sdk.errors import CodecError, DefinitionError, PayloadTooLargeError
from workflow_sdk.values.basics import BuilderOf, Problem, Tag, error_text, half_character, read_one, read_simple
from workflow_sdk.values.fitting import fitter
from workflow_sdk.values.hints import bare, field_hints, hint_cache, making_of
from workflow_sdk.values.objects import Known, taker_of
from workflow_sdk.values.reading import Mode, read
from workflow_sdk.values.writing import ATOMS, Handlers, digest_with, write
from workflow_sdk.values.writing import differ as differ

VALUE_BYTES_MAX: Final = 2_000_000
_HANDLERS: Final = Handlers(taker_of)
_SINGLETONS: Final = {None: dumps(None), True: dumps(True), False: dumps(False)}
_TOO_DEEP: Final = "the value is nested too deeply, or holds itself; pass a flat form of it"


def digest(arguments: Sequence[object]) -> bytes:
    """The digest of arguments: see `digest_with`."""
    return digest_with(_HANDLERS, arguments)


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

    def encode_large(self, value: object, hint: object = Any) -> bytes:
        """The bytes of a value that may be of any size, as it is not stored as one row; raises `CodecError`."""
        data = _bytes_of(value, hint)
        return data if self._seals is None else self._seals.close(data)

    def encode_like(self, before: bytes | None, value: object) -> bytes:
        """The bytes of `value`: `before`, if they are of the same value. What encrypts gives other bytes each time."""
        data = self._to_bytes(value, Any)
        if self._seals is None:
            return data
        try:
            if before is not None and self._seals.open(before) == data:
                return before
        except CodecError:
            pass
        return self._seals.close(data)

    def decode(self, data: bytes, hint: object = Any, *, plain: bool = False) -> Any:
        """The value that `data` holds; raises `CodecError`.

        `plain` gives dicts for objects and values for enum members: for those who do not have the classes.
        """
        if self._seals is not None or data[:3] == SEAL:
            data = self.unseal(data)
        return _from_bytes(data, hint, "plain" if plain else "exact")

    def roundtrip(self, value: object, hint: object = Any) -> tuple[bytes, Any]:
        """The bytes of `value`, and the value that `decode` will give for them later."""
        data = self._to_bytes(value, hint)
        if type(value) not in ATOMS:
            value = _from_bytes(data, hint, "exact", own=True)
        return (data if self._seals is None else self._seals.close(data)), value

    def encode_checked(self, value: object, hint: object = Any) -> bytes:
        """The bytes of `value`, which must fit its hint; raises `CodecError`."""
        _fit(value, hint, convert=False)
        return self.encode(value, hint)

    def decode_checked(self, data: bytes, hint: object = Any) -> Any:
        """The value that `data` holds, as its hint asks for; raises `CodecError`.

        Plain data is converted: a dict to the dataclass that is asked for, ISO text to a datetime.
        """
        return _fit(_from_bytes(self.unseal(data), hint, "lenient"), hint, convert=True)

    def encode_text(self, text: str) -> str | bytes:
        """A text beside values as it is stored, which is readable if there is no codec. Never raises."""
        if self._seals is None:
            return text
        try:
            return self._seals.close(dumps(text))
        except CodecError:
            return "(the codec could not encode this text)"

    def decode_text(self, found: str | bytes) -> str:
        """The text that was stored; raises `CodecError`."""
        text = found if isinstance(found, str) else self.decode(found)
        if not isinstance(text, str):
            raise CodecError("the stored bytes are no text")
        return text

    def seal(self, data: bytes) -> bytes:
        """Bytes that hold a value already, as they are stored; `PayloadTooLargeError`, if they are too many."""
        if len(data) > self.max_value_bytes:
            raise _too_large(data, self.max_value_bytes)
        return data if self._seals is None else self._seals.close(data)

    def check_readable(self, data: bytes) -> None:
        """Raise `SealedError` if the value can't be read with the codecs that are here."""
        self.unseal(data)

    def is_same(self, one: bytes, other: bytes) -> bool:
        """Whether both hold the same value; raises `CodecError`."""
        return one == other or self.unseal(one) == self.unseal(other)

    def is_own(self, data: bytes) -> bool:
        """Whether everyone who can read `data` can also read what is written here."""
        return data[:3] != SEAL if self._seals is None else self._seals.wrote(data)

    def unseal(self, data: bytes) -> bytes:
        """The bytes that `seal` was given; raises `CodecError`."""
        if self._seals is not None:
            return self._seals.open(data)
        if data[:3] == SEAL:
            raise SealedError(
                "the value is encoded, and can't be read without codec=; give the codec that has written it"
            )
        return data

    def _to_bytes(self, value: object, hint: object) -> bytes:
        data = _bytes_of(value, hint)
        if len(data) > self.max_value_bytes:
            raise _too_large(data, self.max_value_bytes)
        return data


def _too_large(data: bytes, most: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"the value is {len(data):,} bytes encoded, and the limit is {most:,} (max_value_bytes)"
        "; store it elsewhere and pass a reference"
    )


def _bytes_of(value: object, hint: object) -> bytes:
    if value is None or value is True or value is False:
        return _SINGLETONS[value]
    try:
        return dumps(value) if type(value) in ATOMS else write(value, _HANDLERS, _known_of(hint).name_of)
    except UnicodeEncodeError as error:
        raise CodecError(str(half_character(error.object))) from None
    except Exception as error:  # noqa: BLE001  # an author's class may raise anything
        _raise(error, "the value can't be read")


@hint_cache
def _known_of(hint: object) -> Known:
    """The classes that `hint` leads to."""
    return Known(_classes_of(hint))


def _classes_of(hint: object) -> Iterator[type]:
    """Every author's class that a value under `hint` may hold, as far as the hint tells."""
    seen: dict[int, object] = {}  # by id, and kept: nothing that was seen may go away meanwhile
    todo: list[object] = [hint]
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen[id(current)] = current
        if isinstance(current, type) and current.__module__ not in ("builtins", "typing", "collections.abc"):
            yield current
            if making_of(current) is not None or typing.is_typeddict(current):
                todo.extend(field_hints(current).values())
        todo += (bare(current), typing.get_origin(current), *typing.get_args(current))
        todo.append(getattr(current, "__value__", None))  # of a type alias
        if isinstance(current, list):  # the arguments of a Callable or ParamSpec
            todo += cast("list[object]", current)


def _builder_of(hint: object) -> BuilderOf:
    return _known_of(hint).builder_of


def _from_bytes(data: bytes, hint: object, mode: Mode, *, own: bool = False) -> Any:
    try:
        if not 0x80 <= data[0] < 0xE0:  # it is no list, dict or tag
            return read_simple(data)
        return read(data, _builder_of, hint, mode, own=own)
    except Exception as error:  # noqa: BLE001  # an author's class may raise anything
        is_damaged = isinstance(error, (CBORError, ValueError, TypeError, IndexError))
        what = "the stored bytes are no value of this library" if is_damaged else "the value can't be made"
        _raise(error, what, "the stored value is nested too deeply")


def _fit(value: object, hint: object, *, convert: bool) -> Any:
    try:
        return fitter(hint)(value, convert)
    except Exception as error:  # noqa: BLE001  # an author's class may raise anything
        _raise(error, "the value can't be checked")


def _raise(error: Exception, what: str, too_deep: str = _TOO_DEEP) -> NoReturn:
    """Raise what the caller is told of a failure. Its cause is what a class of the author's has raised."""
    if isinstance(error, CodecError):
        raise error
    if isinstance(error, Problem):
        raise CodecError(str(error)) from error.__cause__
    if isinstance(error, RecursionError):
        raise CodecError(too_deep) from None
    raise CodecError(f"{what}: {error_text(error)}") from error


# -- What changes bytes before they are stored -------------------------------------------------------------------------

SEAL: Final = b"\xd9" + Tag.SEALED.to_bytes(2, "big")
"""The first bytes of every value that a codec has written."""
_CHECK_BYTES: Final = 8


class Wrapper(Protocol):
    """What changes the bytes of values before they are stored, such as encryption or compression."""

    def encode(self, data: bytes, /) -> bytes:
        """What to store for `data`."""
        ...

    def decode(self, data: bytes, /) -> bytes:
        """What `encode` was given."""
        ...


Wrappers: TypeAlias = "Wrapper | Sequence[Wrapper]"
"""One codec, or several: the first writes, all read."""


class SealedError(CodecError):
    """The value can't be read with the codecs of this reader: it is not damaged, and others may read it."""


class Plain:
    """Writes values as they are."""

    def encode(self, data: bytes, /) -> bytes:
        """The same."""
        return data

    decode = encode

    def __call__(self) -> Plain:
        """The same: `plain()` is written beside `fernet(keys)` by many."""
        return self

    def __repr__(self) -> str:
        return "plain"


PLAIN: Final = Plain()


class Unmarked:
    """Reads what a codec has written before its values were marked."""

    def __init__(self, codec: Wrapper) -> None:
        self._codec = codec

    def encode(self, data: bytes, /) -> bytes:
        """Raises `CodecError`: nothing is written without a mark any more."""
        raise CodecError("`unmarked` only reads; list the codec that writes before it")

    def decode(self, data: bytes, /) -> bytes:
        """What the codec was given."""
        return self._codec.decode(data)

    def __repr__(self) -> str:
        return f"unmarked({type(self._codec).__name__})"


class Seals:
    """The codecs that one program writes and reads values with."""

    __slots__ = ("_first", "_readers", "_unmarked")

    def __init__(self, codecs: Sequence[Wrapper]) -> None:
        self._first: Wrapper = codecs[0]
        self._readers: list[Wrapper] = [codec for codec in codecs if not isinstance(codec, (Plain, Unmarked))]
        self._unmarked: list[Wrapper] = [codec for codec in codecs if isinstance(codec, (Plain, Unmarked))]

    def close(self, data: bytes) -> bytes:
        """What to store for the bytes of a value."""
        if isinstance(self._first, Plain):
            return data
        try:
            closed: Any = self._first.encode(_check_of(data) + data)
            return SEAL + dumps(bytes(memoryview(closed)))
        except CodecError:
            raise
        except Exception as error:  # a codec is an author's, and may raise anything
            raise CodecError(f"{_FAILED}: {error_text(error)}") from error

    def open(self, data: bytes) -> bytes:
        """The bytes of the value that `data` was stored for; raises `SealedError`."""
        return self._open_marked(data) if data.startswith(SEAL) else self._open_unmarked(data)

    def wrote(self, data: bytes) -> bool:
        """Whether the codec that writes can read this by itself."""
        try:
            Seals([self._first]).open(data)
        except SealedError:
            return False
        return True

    def _open_marked(self, data: bytes) -> bytes:
        try:
            closed: Any = read_one(data[len(SEAL) :])
        except Exception as error:
            raise CodecError(f"the stored bytes are no value of this library: {error_text(error)}") from error
        failures: list[str] = []
        for codec in self._readers:
            try:
                # What another codec has written may come out as anything.
                opened: Any = codec.decode(closed)
                inner = bytes(memoryview(opened))
            except Exception as error:  # noqa: BLE001  # a codec is an author's, and may raise anything
                failures.append(f"{_FAILED}: {error_text(error)}")
                continue
            value = inner[_CHECK_BYTES:]
            if value and inner.startswith(_check_of(value)):
                return value
            failures.append("it was written with another codec")
        why = failures[0] if len(set(failures)) == 1 else "; ".join(failures) or "only `plain` is in the list"
        raise SealedError(
            f"the value is encoded, and can't be read here: {why}. Give codec= what has written it, or a list: the "
            "first of it writes, and all read"
        )

    def _open_unmarked(self, data: bytes) -> bytes:
        failure = ""
        for codec in self._unmarked:
            try:
                opened: Any = codec.decode(data)
                return bytes(memoryview(opened))
            except Exception as error:  # noqa: BLE001  # a codec is an author's, and may raise anything
                failure = f": {error_text(error)}"
        raise SealedError(
            f"the value is not encoded, and this reader takes only what its codec has written{failure}. Values from "
            "before there was a codec are read with codec=[codec, plain]; those that a codec wrote before there were "
            "marks, with codec=[codec, unmarked(codec)]; both are in workflow_sdk.codecs"
        )


_FAILED: Final = "the codec's wrapper failed"


def is_sealed(data: bytes) -> bool:
    """Whether a codec has written the bytes."""
    return data.startswith(SEAL)


def seals_of(given: Any) -> Seals | None:
    """The codecs that were given as `codec=`; None if values are stored as they are."""
    if given is None:
        return None
    codecs = _several(given)
    wrong = list(filterfalse(_is_codec, codecs))
    if wrong or not codecs:
        raise DefinitionError(
            "codec= takes an object with `encode` and `decode`, or a list of them, of which the first writes and all "
            f"read; not {(wrong or [given])[0]!r:.100}"
        )
    if isinstance(codecs[0], Unmarked):
        raise DefinitionError("the first codec writes, and `unmarked` only reads; put the codec itself in front of it")
    return None if all(isinstance(codec, Plain) for codec in codecs) else Seals(codecs)


def _several(given: Any) -> list[Any]:
    try:
        several = [given] if _is_codec(given) or isinstance(given, (str, bytes, type)) else list(given)
    except TypeError:
        several = [given]
    return [PLAIN if type(codec) is str and codec == "plain" else codec for codec in several]


def _is_codec(given: object) -> bool:
    if isinstance(given, (str, bytes, bytearray, type)):
        return False
    return all(callable(getattr(given, name, None)) for name in ("encode", "decode"))


def _check_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECK_BYTES, person=b"workflow_sdk").digest()
