"""Where an operation stands in its instance: the segments of its key, packed, and the path that people read.

A segment is a name's index, or a pair (name's index, number) for a turn of a loop and a branch of a map. A location is
kept packed, exactly as it stands in the key: a scope packs its prefix once, and an operation appends its own segment.
"""

from __future__ import annotations

from collections.abc import Iterator

from workflow_sdk.core.tuples import pack, unpack
from workflow_sdk.errors import CodecError

__all__ = [
    "Segment",
    "check_location",
    "escape",
    "join_path",
    "pack_pair",
    "pack_segment",
    "segments",
    "split_last",
    "subtree",
]

Segment = int | tuple[int, int]

_NESTED = 0x05
_ZERO = 0x14

_packed: dict[int, bytes] = {}


def pack_segment(index: int) -> bytes:
    """A name's index as a segment of a key, as `pack((index,))` gives it."""
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
    """A turn of a loop, or a branch of a map, as a segment of a key."""
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
    """A packed location as its parent and its last segment."""
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
    """Raise `CodecError` unless it is a location: for one that stands in a record, and in no key."""
    for _ in segments(packed):
        pass
    try:
        split_last(packed)
    except AssertionError:
        raise _no_location(packed) from None


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
