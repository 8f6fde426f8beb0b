"""Bytes of one value: reading exactly one, and sealing it with the codecs of authors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import filterfalse
from typing import Any, Final, NoReturn, Protocol, TypeAlias

from cbor2 import dumps, loads

from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.rows.wire import damaged
from workflow_sdk.values.basics import error_text
from workflow_sdk.values.tags import SEALED

Decoder: TypeAlias = Callable[[Any, bool], object]
"""Makes a value of the content of a tag. The flag says whether the value has to be immutable, as a key has."""

FOREIGN_TAGS: Final = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""Tags that cbor2 reads by itself and nothing here writes: values that hold themselves, patterns to compile, emails to
parse. Bytes that hold them are refused. Of CBOR's own tags only 2 and 3 are written, for large integers."""

HEAD_SIZES: Final = (*[1] * 24, 2, 3, 5, 9, 0, 0, 0, 0)
"""The number of bytes in the head of a value, by the last five bits of its first byte; 0 if they do not tell."""

_TEXT_OR_BYTES: Final = (2, 3)
_MARK: Final = bytes.fromhex("c5a1d80b6e7f4c93b2f0174d9ae35c68")
# The value is read as the first item of a pair. The second is the mark, so a longer value leaves something else there.
_BEFORE, _AFTER = b"\x82", b"\x50" + _MARK


def read_one(
    data: bytes, decoders: Mapping[int, Decoder] | None = None, tag_hook: Decoder | None = None, depth: int = 400
) -> Any:
    """The value that `data` holds from its first byte to its last; raises `CodecError` if there are bytes after it.

    `decoders` read tags by their number, and `tag_hook` all other tags. `depth` is how deeply the value may be nested.
    """
    framed = _BEFORE + data + _AFTER
    value, mark = loads(framed, semantic_decoders=decoders, tag_hook=tag_hook, max_depth=depth)
    if type(mark) is not bytes or mark != _MARK:
        raise behind() from None
    return value


def read_simple(data: bytes) -> Any:
    """The same for a value that holds no others: an integer, bytes, text, a float, True, False or None."""
    head = data[0]
    size = HEAD_SIZES[head & 31]
    if not size:
        return read_one(data)
    if head >> 5 in _TEXT_OR_BYTES:
        size += head & 31 if size == 1 else int.from_bytes(data[1:size], "big")
    if data[size:]:
        raise behind()
    return loads(data)


def behind() -> CodecError:
    """The error for bytes after a value."""
    return CodecError("there are bytes after the value; it is damaged, or was written with a codec")


def _refuse(content: object, immutable: bool) -> NoReturn:
    raise ValueError("a tag that no record has")


_REFUSING: Final[dict[int, Decoder]] = dict.fromkeys(FOREIGN_TAGS, _refuse)


def unpack_cbor(data: bytes) -> object:
    """The value of CBOR that has no tags but those of large integers; raises `CodecError`."""
    try:
        return read_one(data, _REFUSING)
    except Exception as error:
        raise damaged("a record") from error


SEAL: Final = b"\xd9" + SEALED.to_bytes(2, "big")
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

    def decode(self, data: bytes, /) -> bytes:
        """The same."""
        return data

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
            raise CodecError(f"the codec's wrapper failed: {error_text(error)}") from error

    def open(self, data: bytes) -> bytes:
        """The bytes of the value that `data` was stored for; raises `SealedError`."""
        return self._open_marked(data) if data.startswith(SEAL) else self._open_unmarked(data)

    def wrote(self, data: bytes) -> bool:
        """Whether the codec that writes can read this by itself."""
        alone = Seals([self._first])
        try:
            alone.open(data)
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
                failures.append(f"the codec's wrapper failed: {error_text(error)}")
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


def is_sealed(data: bytes) -> bool:
    """Whether a codec has written the bytes."""
    return data.startswith(SEAL)


def no_seals() -> SealedError:
    """The error for an encoded value where there is no codec."""
    return SealedError("the value is encoded, and can't be read without codec=; give the codec that has written it")


def seals_of(given: object) -> Seals | None:
    """The codecs that were given as `codec=`; None if values are stored as they are."""
    if given is None:
        return None
    codecs: list[Any] = list(map(_named, _several(given)))
    wrong = list(filterfalse(_is_codec, codecs))
    if wrong or not codecs:
        raise DefinitionError(
            "codec= takes an object with `encode` and `decode`, or a list of them, of which the first writes and all "
            f"read; not {(wrong or [given])[0]!r:.100}"
        )
    if isinstance(codecs[0], Unmarked):
        raise DefinitionError("the first codec writes, and `unmarked` only reads; put the codec itself in front of it")
    return None if all(isinstance(codec, Plain) for codec in codecs) else Seals(codecs)


def _named(codec: object) -> object:
    return PLAIN if type(codec) is str and codec == "plain" else codec


def _several(given: Any) -> list[Any]:
    if _is_codec(given) or isinstance(given, (str, bytes, type)):
        return [given]
    try:
        return list(given)
    except TypeError:
        return [given]


def _is_codec(given: object) -> bool:
    if isinstance(given, (str, bytes, bytearray, type)):
        return False
    return all(callable(getattr(given, name, None)) for name in ("encode", "decode"))


def _check_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECK_BYTES, person=b"workflow_sdk").digest()
