"""Canonical bytes: equal values have equal bytes, and a value has only these.

They are the deterministic CBOR of RFC 8949, section 4.2.1, with text keys, behind the tag that says "this is CBOR".
"""

from __future__ import annotations

from typing import Any, Final, cast

from cbor2 import dumps, loads

from workflow_sdk.errors import CodecError

TAG: Final = b"\xd9\xd9\xf7"
"""What canonical bytes begin with: tag 55799 of RFC 8949. In the store they are kept without it."""

DEPTH_MAX: Final = 200
"""How deeply lists and maps may be nested in each other. What is written keeps to it; more can be read, so that bytes
can be put into others."""

_TOO_DEEP: Final = f"the value is nested too deeply, more than {DEPTH_MAX} levels, or holds itself"
_ATOMS: Final = (str, int, float, bytes, bool, type(None))


def encode(value: object) -> bytes:
    """The canonical bytes of plain data; CodecError, if it is none."""
    try:
        _check(value)
    except RecursionError:
        raise CodecError(_TOO_DEEP) from None
    return TAG + bare(value)


def bare(value: object) -> bytes:
    """The canonical bytes of what is plain data already, as `schemas.plain` makes it, without the tag."""
    try:
        data = dumps(value, canonical=True)
    except Exception as error:
        raise CodecError(f"it has no canonical bytes: {error}") from error
    if len(data) > DEPTH_MAX:  # every level takes a byte at least
        _check_depth(data)
    return data


def decode(data: bytes) -> Any:
    """The plain data of canonical bytes, with their tag or without; CodecError, if these are not canonical."""
    inner = bytes(data).removeprefix(TAG)
    try:
        value = loads(inner)
    except Exception as error:
        raise CodecError(f"the bytes are no CBOR: {error}") from error
    try:
        _check(value)
        again = dumps(value, canonical=True)
    except RecursionError:
        raise CodecError(_TOO_DEEP) from None
    if again != inner:
        raise CodecError(
            "the bytes are CBOR, but not the canonical ones of their value: shortest forms, sorted keys, each key once"
        )
    return value


def restored(data: bytes) -> Any:
    """The plain data of bytes that `bare` or `encode` has made."""
    try:
        return loads(data.removeprefix(TAG))
    except Exception as error:
        raise CodecError(f"the stored bytes are damaged: {error}") from error


def _check_depth(data: bytes) -> None:
    """CodecError, if the value is nested so deeply that it could not be read again."""
    try:
        loads(data, max_depth=DEPTH_MAX)
    except Exception as error:
        raise CodecError(_TOO_DEEP) from error


def _check(value: object) -> None:
    """CodecError, unless it is plain data: texts, numbers, bytes, true, false, null, lists, maps with text keys."""
    if isinstance(value, dict):
        for key, part in cast("dict[object, object]", value).items():
            if type(key) is not str:
                raise CodecError(f"the key {key!r} of a map is no text")
            _check(part)
    elif isinstance(value, list):
        for part in cast("list[object]", value):
            _check(part)
    elif type(value) not in _ATOMS:
        raise CodecError(f"the bytes hold a {type(value).__name__}, which is no plain data")
