"""The transaction that authors get: all its keys lie under a prefix of theirs, and they can't commit it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from workflow_drivers.foundationdb._binding import Reads, Transaction, Value
from workflow_drivers.foundationdb._keys import OFFSET_BYTES, end_of


class UserRow(NamedTuple):
    """A row of a range."""

    key: bytes
    value: bytes


class UserReads:
    """Reads under the prefix of authors. As in the binding, reading `value` waits for it."""

    def __init__(self, reads: Reads, prefix: bytes) -> None:
        self._reads = reads
        self.prefix = prefix
        """What stands before every key in the cluster, for programs that read them there."""

    def get(self, key: bytes) -> Value:
        """The value of `key`, as a future; its `value` is None if there is none."""
        return self._reads.get(self._key(key))

    def get_range(
        self,
        begin: bytes | None = None,
        end: bytes | None = None,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = -1,
    ) -> Iterator[UserRow]:
        """The rows from `begin`, up to `end` and without it; all, without them."""
        skip = len(self.prefix)
        for row in self._reads.get_range(*self._range(begin, end), limit, reverse, streaming_mode):
            yield UserRow(row.key[skip:], row.value)

    def get_range_startswith(
        self, prefix: bytes, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> Iterator[UserRow]:
        """The rows whose keys begin with `prefix`."""
        begin = _bytes(prefix)
        return self.get_range(begin, after_all(begin), limit, reverse, streaming_mode)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            begin, end, step = _parts(key)
            return self.get_range(begin, end, reverse=step == -1)
        return self.get(key)

    def _key(self, key: Any) -> bytes:
        return self.prefix + _bytes(key)

    def _range(self, begin: Any, end: Any) -> tuple[bytes, bytes]:
        first = self.prefix if begin is None else self._key(begin)
        return first, end_of(self.prefix) if end is None else self._key(end)


def _atomic(name: str, doc: str) -> Callable[[UserTransaction, bytes, bytes], None]:
    """A method `(key, value)` that hands on to the method of this name of the binding's transaction."""

    def operate(self: UserTransaction, key: bytes, value: bytes) -> None:
        transaction, place = self._transaction, self._key(key)  # pyright: ignore[reportPrivateUsage]  # it is a method
        # By name: the binding makes these methods from a table, and has no types for them.
        operation: Callable[[bytes, bytes], None] = getattr(transaction, name)
        operation(place, value)

    operate.__name__, operate.__qualname__, operate.__doc__ = name, f"UserTransaction.{name}", doc
    return operate


class UserTransaction(UserReads):
    """FoundationDB's transaction under the authors' prefix: `tr[key]`, `tr[key] = value`, `tr.get_range`, `tr.add`.

    The driver commits it with the record of the operation. So it has no `commit`, `reset`, `watch` or options.
    """

    def __init__(self, transaction: Transaction, prefix: bytes) -> None:
        super().__init__(transaction, prefix)
        self._transaction = transaction

    @property
    def snapshot(self) -> UserReads:
        """Reads that do not conflict with what others write."""
        return UserReads(self._transaction.snapshot, self.prefix)

    def set(self, key: bytes, value: bytes) -> None:
        """Store `value` under `key`."""
        self._transaction.set(self._key(key), value)

    def clear(self, key: bytes) -> None:
        """Forget `key`."""
        self._transaction.clear(self._key(key))

    def clear_range(self, begin: bytes | None = None, end: bytes | None = None) -> None:
        """Forget the keys from `begin`, up to `end` and without it; all, without them."""
        self._transaction.clear_range(*self._range(begin, end))

    def clear_range_startswith(self, prefix: bytes) -> None:
        """Forget the keys that begin with `prefix`."""
        begin = _bytes(prefix)
        self.clear_range(begin, after_all(begin))

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(*_parts(key)[:2])
        else:
            self.clear(key)

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        """Store `value` under `key`, into which the commit writes its version where the last four bytes say."""
        key = _bytes(key)
        place = int.from_bytes(key[-OFFSET_BYTES:], "little") + len(self.prefix)
        offset = place.to_bytes(OFFSET_BYTES, "little")
        self._transaction.set_versionstamped_key(self.prefix + key[:-OFFSET_BYTES] + offset, value)

    # Operations on a value that is not read, and so does not conflict.

    set_versionstamped_value = _atomic(
        "set_versionstamped_value",
        "Store `value`, into which the commit writes its version where the last four bytes say.",
    )
    add = _atomic("add", "Add to a little-endian number.")
    bit_and = _atomic("bit_and", "Keep the bits that both have.")
    bit_or = _atomic("bit_or", "Set bits.")
    bit_xor = _atomic("bit_xor", "Turn bits over.")
    max = _atomic("max", "Keep the larger little-endian number.")
    min = _atomic("min", "Keep the smaller little-endian number.")
    byte_max = _atomic("byte_max", "Keep what sorts later.")
    byte_min = _atomic("byte_min", "Keep what sorts earlier.")
    append_if_fits = _atomic("append_if_fits", "Append to a value, unless it would be too large.")
    compare_and_clear = _atomic("compare_and_clear", "Forget `key` if it has this value.")

    # What it conflicts with.

    def add_read_conflict_key(self, key: bytes) -> None:
        """As if `key` had been read."""
        self._transaction.add_read_conflict_key(self._key(key))

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """As if the range had been read."""
        self._transaction.add_read_conflict_range(*self._range(begin, end))

    def add_write_conflict_key(self, key: bytes) -> None:
        """As if `key` had been written."""
        self._transaction.add_write_conflict_key(self._key(key))

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        """As if the range had been written."""
        self._transaction.add_write_conflict_range(*self._range(begin, end))


def after_all(prefix: bytes) -> bytes | None:
    """The first key after all that begin with `prefix`; None if there is none."""
    shorter = prefix.rstrip(b"\xff")
    return end_of(shorter) if shorter else None


def _bytes(key: Any) -> bytes:
    """A key as bytes. Objects such as a `Subspace` say which key they stand for."""
    if hasattr(key, "as_foundationdb_key"):
        key = key.as_foundationdb_key()
    if not isinstance(key, bytes):
        raise TypeError(f"a key is bytes, not {key!r:.80}")
    return key


def _parts(part: Any) -> tuple[Any, Any, Any]:
    return part.start, part.stop, part.step
