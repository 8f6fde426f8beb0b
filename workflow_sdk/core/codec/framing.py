"""Reading exactly one value: CBOR's reader does not care what comes after it."""

from __future__ import annotations

from typing import Any, Final

from cbor2 import loads

from workflow_sdk.core.codec.problem import Problem
from workflow_sdk.core.wire import AFTER, BEFORE, MARK

__all__ = ["behind", "read_one", "read_simple"]

_TEXT_OR_BYTES: Final = (2, 3)
_SIZES: Final = {**dict.fromkeys(range(24), 1), 24: 2, 25: 3, 26: 5, 27: 9}
"""How many bytes the head of a value has, by the last five bits of the first one."""


def read_one(data: bytes, **how: Any) -> Any:
    """The value that `data` is, from its first byte to its last; raises `Problem` if there is more."""
    value, mark = loads(BEFORE + data + AFTER, **how)
    if type(mark) is not bytes or mark != MARK:
        raise behind()
    return value


def read_simple(data: bytes) -> Any:
    """The same for a value that holds no others: an integer, bytes, text, a float, True, False or None."""
    head = data[0]
    size = _SIZES.get(head & 31)
    if size is None:
        return read_one(data)
    if head >> 5 in _TEXT_OR_BYTES:
        size += head & 31 if size == 1 else int.from_bytes(data[1:size], "big")
    if len(data) > size:
        raise behind()
    return loads(data)


def behind() -> Problem:
    """What to say of bytes after a value."""
    return Problem("there are bytes after the value", "it is damaged, or was written with a codec")
