"""Values behind a codec of the author's: encrypted, or compressed.

What a codec has written is marked, and has a check inside of it: a reader without this codec, or with another one, gets
an error and never data, also where the codec itself can't tell. Of several codecs the first one writes, and all read.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias

from cbor2 import dumps

from workflow_sdk.core.codec.framing import read_one
from workflow_sdk.core.codec.problem import error_text
from workflow_sdk.core.codec.tags import SEALED
from workflow_sdk.errors import CodecError, DefinitionError

__all__ = ["PLAIN", "SEAL", "SealedError", "Seals", "Unmarked", "Wrapper", "Wrappers", "no_seals", "seals_of"]

SEAL: Final = b"\xd9" + SEALED.to_bytes(2, "big")
"""What every value that a codec has written begins with."""
_CHECK_BYTES: Final = 8


class Wrapper(Protocol):
    """What is done to the bytes of values before they are stored: encryption, compression."""

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
    """Reads what a codec has written when there were no marks."""

    def __init__(self, codec: Wrapper) -> None:
        self._codec = codec

    def encode(self, data: bytes, /) -> bytes:
        """Nothing is written like that any more."""
        raise CodecError("`unmarked` only reads; put the codec that writes in front of it")

    def decode(self, data: bytes, /) -> bytes:
        """What the codec was given."""
        return self._codec.decode(data)

    def __repr__(self) -> str:
        return f"unmarked({type(self._codec).__name__})"


class Seals:
    """The codecs of one reader and writer."""

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
    """What to say of an encoded value where there is no codec."""
    return SealedError("the value is encoded, and can't be read without codec=; give the codec that has written it")


def seals_of(given: object) -> Seals | None:
    """The codecs that were given as `codec=`; None if all is plain."""
    if given is None:
        return None
    codecs: list[Any] = [given] if _is_codec(given) else _several(given)
    codecs = [PLAIN if type(codec) is str and codec == "plain" else codec for codec in codecs]
    wrong = [codec for codec in codecs if not _is_codec(codec)]
    if wrong or not codecs:
        raise DefinitionError(
            "codec= takes an object with `encode` and `decode`, or a list of them, of which the first writes and all "
            f"read; not {(wrong or [given])[0]!r:.100}"
        )
    if isinstance(codecs[0], Unmarked):
        raise DefinitionError("the first codec writes, and `unmarked` only reads; put the codec itself in front of it")
    return None if all(isinstance(codec, Plain) for codec in codecs) else Seals(codecs)


def _several(given: Any) -> list[Any]:
    if isinstance(given, (str, bytes, type)):
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
