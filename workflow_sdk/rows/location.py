"""Keys as tuples, and where in an instance something is recorded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import cast

import fdb.tuple

from workflow_sdk.errors import CodecError

TupleItem = int | float | str | bytes | None | tuple["TupleItem", ...]


def pack(items: tuple[TupleItem, ...]) -> bytes:
    """The tuple as bytes that sort like the tuple."""
    try:
        packed: bytes = fdb.tuple.pack(items)  # pyright: ignore[reportUnknownMemberType]  # fdb has no types
    except UnicodeEncodeError:
        raise CodecError(
            f"half of a surrogate pair is no character, and can't be part of a key: {items!a:.100}"
        ) from None
    return packed


@lru_cache(maxsize=2048, typed=True)  # 1 and 1.0 are not the same part of a key
def pack_one(item: str | float) -> bytes:
    """The bytes of a tuple of one item. Those of a longer tuple are these bytes, one after the other.

    They are kept, as the ids and times of busy instances are in many keys.
    """
    return pack((item,))


def unpack(packed: bytes) -> tuple[TupleItem, ...]:
    """The tuple that the bytes hold."""
    try:
        return cast("tuple[TupleItem, ...]", fdb.tuple.unpack(packed))  # pyright: ignore[reportUnknownMemberType]  # as above
    except (ValueError, IndexError, struct.error, RecursionError):
        raise CodecError(f"a key in the store is not of this library's making: {packed!r:.100}") from None


Segment = int | tuple[int, int]

_NESTED = 0x05
_ZERO = 0x14

_packed: dict[int, bytes] = {}


def pack_segment(index: int) -> bytes:
    """The segment for the index of a name: the bytes of `pack((index,))`."""
    found = _packed.get(index)
    if found is not None:
        return found
    if 0 < index < 1 << 32:
        size = (index.bit_length() + 7) // 8
        found = bytes((_ZERO + size,)) + index.to_bytes(size, "big")
    else:
        found = pack((index,))
    if len(_packed) < 4096:
        _packed[index] = found
    return found


def pack_pair(index: int, number: int) -> bytes:
    """The segment of a turn of a loop, or of a branch of a map."""
    return b"\x05" + pack_segment(index) + pack_segment(number) + b"\x00"


def subtree(packed: bytes) -> tuple[bytes, bytes]:
    """The range of everything below a packed key, without the key itself.

    Never a bare prefix: a string ends in 00, and `00 FF` is a NUL inside one, so ("a",) is a prefix of ("a\\0b",).
    """
    return packed + b"\x00", packed + b"\xff"


def _end_of_segment(packed: bytes, start: int) -> int:
    if packed[start] != _NESTED:
        return _end_of_number(packed, start)
    end = _end_of_number(packed, _end_of_number(packed, start + 1))
    if packed[end] != 0:
        raise _no_location(packed)
    return end + 1


def _end_of_number(packed: bytes, start: int) -> int:
    code = packed[start]
    if not _ZERO <= code <= _ZERO + 8:
        raise _no_location(packed)
    return start + 1 + code - _ZERO


def _no_location(packed: bytes) -> CodecError:
    return CodecError(f"a key in the store is not that of an operation: {packed!r:.100}")


def split_last(packed: bytes) -> tuple[bytes, bytes]:
    """The parent of a packed location, and its last segment."""
    last = at = 0
    size = len(packed)
    try:
        while at < size:
            last = at
            at = _end_of_segment(packed, at)
    except IndexError:
        raise _no_location(packed) from None
    if at != size:
        raise _no_location(packed)
    return packed[:last], packed[last:]


def check_location(packed: bytes) -> None:
    """Raise `CodecError` for bytes that are no packed location. It is for those that come from a record, not a key."""
    for _ in segments(packed):
        pass
    try:
        split_last(packed)
    except AssertionError:
        raise _no_location(packed) from None


def number_of(packed: bytes) -> int:
    """The number that is the only segment of a packed location."""
    size = packed[0] - _ZERO if packed else -1
    if 0 <= size <= 4 and len(packed) == 1 + size:
        return int.from_bytes(packed[1:], "big")  # thousands of them are read when an instance is loaded
    found = list(segments(packed))
    if len(found) != 1 or not isinstance(found[0], int):
        raise _no_location(packed)
    return found[0]


def segments(packed: bytes) -> Iterator[Segment]:
    """The segments of a packed location."""
    for item in unpack(packed):
        if type(item) is int:
            yield item
            continue
        match item:
            case (int() as index, int() as number):
                yield (index, number)
            case _:
                raise _no_location(packed)


def escape(name: str) -> str:
    """A name as it stands in a path: `/`, `~`, `%` and control characters as %XX, so that no two paths print alike."""
    if name.isalnum():
        return name
    return "".join(
        f"%{ord(char):02X}" if char in "/~%" or ord(char) < 32 or 127 <= ord(char) < 160 else char for char in name
    )


def join_path(parent: str, label: str) -> str:
    """The path of what is called `label` (escaped already) under `parent`."""
    return f"{parent}/{label}" if parent else label
