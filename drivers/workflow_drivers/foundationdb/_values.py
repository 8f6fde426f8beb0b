"""How a value lies in its row: a 0 and the value; or, if it is too large, a 1 and where its chunks are.

The row of a large value has its digest, so that the value can be compared without being read. It also has the id of its
chunks, which is a new one each time, so that the row changes whenever the value is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from workflow_sdk.errors import StorageError

FDB_VALUE_BYTES_MAX = 100_000
ROW_BYTES_MAX = FDB_VALUE_BYTES_MAX - 1
"""The largest value that is kept in its row."""

ID_BYTES = 16
_DIGEST_BYTES = 32
_SIZE_BYTES = 8
_WHOLE, _IN_CHUNKS = b"\x00", b"\x01"
HEADER_BYTES = 1 + ID_BYTES + _SIZE_BYTES + _DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class Large:
    """What the row of a value in chunks says of it."""

    id: bytes
    size: int
    digest: bytes

    @property
    def row(self) -> bytes:
        """What is in the row."""
        return _IN_CHUNKS + self.id + self.size.to_bytes(_SIZE_BYTES, "big") + self.digest

    @property
    def count(self) -> int:
        """How many chunks it has."""
        return -(-self.size // FDB_VALUE_BYTES_MAX)

    def is_of(self, value: bytes | None) -> bool:
        """Whether this is that value."""
        return value is not None and len(value) == self.size and sha256(value).digest() == self.digest


@dataclass(frozen=True, slots=True)
class Blob:
    """A large value that is to be written."""

    about: Large
    value: bytes

    def chunks(self) -> Iterator[bytes]:
        """Its pieces, in order."""
        for start in range(0, len(self.value), FDB_VALUE_BYTES_MAX):
            yield self.value[start : start + FDB_VALUE_BYTES_MAX]


def is_large(value: bytes) -> bool:
    """Whether the value does not fit in a row."""
    return len(value) > ROW_BYTES_MAX


def whole(value: bytes) -> bytes:
    """The row of a value that fits."""
    return _WHOLE + value


def blob(value: bytes) -> Blob:
    """A value that does not fit in a row, with a new id for its chunks."""
    return Blob(Large(os.urandom(ID_BYTES), len(value), sha256(value).digest()), value)


def read(row: bytes) -> bytes | Large:
    """The value in a row, or where its chunks are."""
    kind, rest = row[:1], row[1:]
    if kind == _WHOLE:
        return rest
    if kind == _IN_CHUNKS and len(row) == HEADER_BYTES:
        size = int.from_bytes(rest[ID_BYTES : ID_BYTES + _SIZE_BYTES], "big")
        return Large(rest[:ID_BYTES], size, rest[ID_BYTES + _SIZE_BYTES :])
    raise StorageError(f"a row in the store is not of this driver's making: {row!r:.80}")


def holds(row: bytes | None, value: bytes | None) -> bool:
    """Whether the row holds this value. None is no row, and no value."""
    if row is None or value is None:
        return row is None and value is None
    if row[:1] == _WHOLE:
        return row[1:] == value
    found = read(row)
    return found == value if isinstance(found, bytes) else found.is_of(value)
