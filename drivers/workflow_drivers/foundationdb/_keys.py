"""Where things lie under the prefix of a store, and how long keys can be.

The prefix is a tuple of one text, so that no two are in each other's range: `("a\\0b",)` packed begins with `("a",)`
packed, but ff follows there, and in a store 15.
"""

from __future__ import annotations

from dataclasses import dataclass

from workflow_sdk.errors import StorageLimitError

FDB_KEY_BYTES_MAX = 10_000
VERSIONSTAMP_BYTES = 10
APPENDED_MARK = b"\x33"
"""What `fdb.tuple` writes in front of a complete versionstamp."""
OFFSET_BYTES = 4
"""Behind a versionstamped key, until it is stored: where in it the versionstamp goes."""

_ROWS, _LARGE, _CHUNKS, _TOKENS, _STAGED, _FACTS, _USER = (b"\x15%c" % number for number in range(1, 8))


@dataclass(frozen=True, slots=True)
class Space:
    """The keys of one store."""

    root: bytes
    rows: bytes
    """Stands before each key of the store. A value that is too large for its row is in chunks."""
    large: bytes
    """Stands before each key again that has a value in chunks, to find the chunks of what is cleared."""
    chunks: bytes
    """The pieces: id, number."""
    tokens: bytes
    """Which batch was applied last: driver, slot."""
    staged: bytes
    """The ids of chunks that are written ahead of their commit."""
    has_large: bytes
    """A key that is there if any value was ever stored in chunks."""
    format: bytes
    user: bytes
    """Stands before the keys that authors write in transactions of their own."""

    @property
    def begin(self) -> bytes:
        """Where the keys of the store begin."""
        return self.root + b"\x00"

    @property
    def end(self) -> bytes:
        """Where they end."""
        return self.root + b"\xff"

    @property
    def key_bytes_max(self) -> int:
        """How long a key of the store can be."""
        return FDB_KEY_BYTES_MAX - len(self.rows)

    def row(self, key: bytes) -> bytes:
        """The key of the cluster at which the row of `key` is. StorageLimitError if that is too long."""
        if len(key) > self.key_bytes_max:
            raise self._too_long(len(key), self.key_bytes_max)
        return self.rows + key

    def appended(self, prefix: bytes, number: int) -> tuple[bytes, bytes]:
        """The keys for an append, among the rows and among the large, as the binding takes them.

        The commit replaces the zeros by its versionstamp, at the place that the last four bytes say. `number` is the
        number of the append in its batch.
        """
        key = prefix + APPENDED_MARK + bytes(VERSIONSTAMP_BYTES) + number.to_bytes(2, "big")
        # The four bytes count, too: FoundationDB checks its limit before it takes them off.
        if len(key) + OFFSET_BYTES > self.key_bytes_max:
            raise self._too_long(len(key), self.key_bytes_max - OFFSET_BYTES)
        place = len(self.rows) + len(prefix) + len(APPENDED_MARK)
        offset = place.to_bytes(OFFSET_BYTES, "little")
        return self.rows + key + offset, self.large + key + offset

    def chunk(self, id: bytes, number: int) -> bytes:
        """Where a piece of a value is."""
        return self.chunks + id + number.to_bytes(2, "big")

    def chunks_of(self, id: bytes) -> tuple[bytes, bytes]:
        """The range of the pieces of a value."""
        return self.chunks + id, self.chunks + id + b"\xff\xff\xff"

    def _too_long(self, size: int, limit: int) -> StorageLimitError:
        return StorageLimitError(
            f"a key of {size:,} bytes is over the limit of {limit:,} bytes here (FoundationDB's {FDB_KEY_BYTES_MAX:,} "
            "without the prefix of the store); nothing was written"
        )


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`. What follows the prefix may begin with 0xFF."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def space_of(prefix: str) -> Space:
    """The keys of the store with that prefix."""
    # As `fdb.tuple` packs a tuple of one text.
    root = b"\x02" + prefix.encode().replace(b"\x00", b"\x00\xff") + b"\x00"
    facts = root + _FACTS
    return Space(
        root,
        root + _ROWS,
        root + _LARGE,
        root + _CHUNKS,
        root + _TOKENS,
        root + _STAGED,
        facts + b"large",
        facts + b"format",
        root + _USER,
    )
