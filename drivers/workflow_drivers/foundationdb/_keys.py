"""How a store lies in the cluster: its keys under the prefix, and the rows of its values.

The prefix is a tuple of one text, so that no two are in each other's range: `("a\\0b",)` packed begins with `("a",)`
packed, but ff follows there, and in a store 15.

A row is a 0 and the value; or, if the value is too large, a 1 and where its chunks are. The row of a large value has
its digest, so that the value can be compared without being read. It also has the id of its chunks, which is a new one
each time, so that the row changes whenever the value is written.

A slot, in which a commit leaves its number, belongs to one commit at a time: see `_commit.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from threading import Lock
from time import time

from workflow_sdk.driver import VALUE_BYTES_MAX
from workflow_sdk.errors import StorageError, StorageLimitError

FDB_KEY_BYTES_MAX = 10_000
VERSIONSTAMP_BYTES = 10
APPENDED_MARK = b"\x33"  # what `fdb.tuple` writes in front of a complete versionstamp
OFFSET_BYTES = 4  # behind a versionstamped key, until it is stored: where in it the versionstamp goes

FDB_VALUE_BYTES_MAX = 100_000
ROW_BYTES_MAX = FDB_VALUE_BYTES_MAX - 1  # the largest value that is kept in its row
ID_BYTES = 16
_DIGEST_BYTES = 32
_SIZE_BYTES = 8
_WHOLE, _IN_CHUNKS = b"\x00", b"\x01"
HEADER_BYTES = 1 + ID_BYTES + _SIZE_BYTES + _DIGEST_BYTES

_TIME_BYTES = 8
_NUMBER_BYTES = 8
_DRIVER_BYTES = 12


@dataclass(frozen=True, slots=True)
class Space:
    """The keys of one store."""

    root: bytes
    rows: bytes  # stands before each key of the store
    large: bytes  # stands before each key again that has a value in chunks, to find the chunks of what is cleared
    chunks: bytes  # id, number: the pieces of the values that are too large for their rows
    tokens: bytes  # driver, slot: which batch was applied last
    staged: bytes  # the ids of chunks that are written ahead of their commit
    has_large: bytes  # a key that is there if any value was ever stored in chunks
    format: bytes
    user: bytes  # stands before the keys that authors write in transactions of their own

    @property
    def begin(self) -> bytes:
        """Where the keys of the store begin."""
        return self.root + b"\x00"

    @property
    def end(self) -> bytes:
        """Where they end."""
        return self.root + b"\xff"

    def row(self, key: bytes) -> bytes:
        """The key of the cluster at which the row of `key` is. StorageLimitError if that is too long."""
        self._check_length(len(key), FDB_KEY_BYTES_MAX - len(self.rows))
        return self.rows + key

    def appended(self, prefix: bytes, number: int) -> tuple[bytes, bytes]:
        """The keys for an append, among the rows and among the large, as the binding takes them.

        The commit replaces the zeros by its versionstamp, at the place that the last four bytes say. `number` is the
        number of the append in its batch.
        """
        key = prefix + APPENDED_MARK + bytes(VERSIONSTAMP_BYTES) + number.to_bytes(2, "big")
        # The four bytes count, too: FoundationDB checks its limit before it takes them off.
        self._check_length(len(key), FDB_KEY_BYTES_MAX - len(self.rows) - OFFSET_BYTES)
        place = len(self.rows) + len(prefix) + len(APPENDED_MARK)
        offset = place.to_bytes(OFFSET_BYTES, "little")
        return self.rows + key + offset, self.large + key + offset

    def chunk(self, id: bytes, number: int) -> bytes:
        return self.chunks + id + number.to_bytes(2, "big")

    def chunks_of(self, id: bytes) -> tuple[bytes, bytes]:
        return self.chunks + id, self.chunks + id + b"\xff\xff\xff"

    def _check_length(self, size: int, limit: int) -> None:
        if size > limit:
            raise StorageLimitError(
                f"a key of {size:,} bytes is over the limit of {limit:,} bytes here (FoundationDB's "
                f"{FDB_KEY_BYTES_MAX:,} without the prefix of the store); nothing was written"
            )


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`. What follows the prefix may begin with 0xFF."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def space_of(prefix: str) -> Space:
    """The keys of the store with that prefix."""
    # As `fdb.tuple` packs a tuple of one text.
    root = b"\x02" + prefix.encode().replace(b"\x00", b"\x00\xff") + b"\x00"
    rows, large, chunks, tokens, staged, facts, user = (root + b"\x15%c" % number for number in range(1, 8))
    return Space(root, rows, large, chunks, tokens, staged, facts + b"large", facts + b"format", user)


@dataclass(frozen=True, slots=True)
class Large:
    """What the row of a value in chunks says of it."""

    id: bytes
    size: int
    digest: bytes

    @property
    def row(self) -> bytes:
        return _IN_CHUNKS + self.id + self.size.to_bytes(_SIZE_BYTES, "big") + self.digest

    @property
    def count(self) -> int:
        """How many chunks it has."""
        return -(-self.size // FDB_VALUE_BYTES_MAX)

    def is_of(self, value: bytes | None) -> bool:
        return value is not None and len(value) == self.size and sha256(value).digest() == self.digest


@dataclass(frozen=True, slots=True)
class Blob:
    """A large value that is to be written."""

    about: Large
    value: bytes

    def chunks(self) -> list[bytes]:
        return [
            self.value[start : start + FDB_VALUE_BYTES_MAX] for start in range(0, len(self.value), FDB_VALUE_BYTES_MAX)
        ]


def row_of(value: bytes) -> bytes | Blob:
    """The row of a value; if it does not fit in one, what is to be written instead, with a new id for its chunks."""
    if len(value) <= ROW_BYTES_MAX:
        return _WHOLE + value
    return Blob(Large(os.urandom(ID_BYTES), len(value), sha256(value).digest()), value)


def read(row: bytes) -> bytes | Large:
    """The value in a row, or where its chunks are."""
    kind, rest = row[:1], row[1:]
    if kind == _WHOLE:
        return rest
    if kind == _IN_CHUNKS and len(row) == HEADER_BYTES:
        size = int.from_bytes(rest[ID_BYTES : ID_BYTES + _SIZE_BYTES], "big")
        if size <= VALUE_BYTES_MAX:
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


@dataclass(slots=True)
class Token:
    """A slot while it belongs to a batch, and the number of the batch."""

    key: bytes
    value: bytes
    is_in_doubt: bool = False  # whether a commit with this value was begun, and it is not known how it ended


class Tokens:
    """The slots of one driver."""

    def __init__(self, space: Space) -> None:
        # Random, so that drivers write to different places, and never to the slot of a process that is gone.
        self._prefix = space.tokens + os.urandom(_DRIVER_BYTES)
        self._free: list[bytes] = []
        self._slots = count()
        self._numbers = count(1)
        self._lock = Lock()  # for drivers that several threads use

    def take(self) -> Token:
        """A slot that nobody else has, and a number that was never in it."""
        with self._lock:
            key = self._free.pop() if self._free else self._prefix + next(self._slots).to_bytes(4, "big")
        return Token(key, self.next_value())

    def next_value(self) -> bytes:
        """A number that no slot has held, and the time."""
        return next(self._numbers).to_bytes(_NUMBER_BYTES, "big") + time_now()

    def give_back(self, token: Token) -> None:
        """Let others have the slot. If its commit is still in doubt, nobody gets it: it may be written to later."""
        if not token.is_in_doubt:
            with self._lock:
                self._free.append(token.key)

    def take_all(self) -> list[bytes]:
        """The keys of the slots that no commit has. They are not used again."""
        with self._lock:
            free, self._free = self._free, []
        return free


def time_now() -> bytes:
    return int(time()).to_bytes(_TIME_BYTES, "big")


def is_old(row: bytes, seconds: float) -> bool:
    """Whether a slot or an entry of the list, which end in the time, was last written to so long ago."""
    return time() - int.from_bytes(row[-_TIME_BYTES:], "big") > seconds
