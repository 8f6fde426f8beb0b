"""What a transaction has written itself, and so reads: and what it can't read, as nobody knows the key yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.drivers.fdb_double.cluster import Mutation, added
from tests.drivers.fdb_double.errors import FDBError

__all__ = ["overlaid", "overlaid_rows"]


def overlaid(mutations: Sequence[Mutation], version: int, key: bytes, value: bytes | None) -> bytes | None:
    """The value as it is after the writes; 1036 if it is among the keys that the commit will make."""
    for kind, first, second in mutations:
        if kind == "set" and first == key:
            value = second
        elif kind == "add" and first == key:
            value = added(value, second)
        elif kind == "clear" and first <= key < second:
            value = None
        elif kind == "stamped" and _is_unreadable(first, version, key, key + b"\x00"):
            raise FDBError(1036)
    return value


def overlaid_rows(
    mutations: Sequence[Mutation],
    version: int,
    rows: Iterator[tuple[bytes, bytes]],
    begin: bytes,
    end: bytes,
    reverse: bool,
) -> Iterator[tuple[bytes, bytes]]:
    """The same for the rows of a range."""
    if not mutations:
        return rows
    found = dict(rows)
    for kind, first, second in mutations:
        if kind == "set" and begin <= first < end:
            found[first] = second
        elif kind == "add" and begin <= first < end:
            found[first] = added(found.get(first), second)
        elif kind == "clear":
            found = {key: value for key, value in found.items() if not first <= key < second}
        elif kind == "stamped" and _is_unreadable(first, version, begin, end):
            raise FDBError(1036)
    return iter(sorted(found.items(), reverse=reverse))


def _is_unreadable(stamped: bytes, version: int, begin: bytes, end: bytes) -> bool:
    place = int.from_bytes(stamped[-4:], "little")
    head, tail = stamped[:place], stamped[place + 10 : -4]
    low = head + version.to_bytes(8, "big") + b"\x00\x00" + tail
    return low < end and begin <= head + b"\xff" * 10 + tail
