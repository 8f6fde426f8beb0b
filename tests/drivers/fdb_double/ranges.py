"""What a transaction can be asked for: keys, by themselves or by their place, and ranges of rows in pages."""

# pyright: reportPrivateUsage=false
# `_get_range` is private in the binding too.

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from tests.drivers.fdb_double.network import Future, Value

__all__ = ["FDBRange", "KeySelector", "KeyValue", "StreamingMode", "TransactionRead"]


class _Reading(Protocol):
    def read_key(self, key: bytes, is_snapshot: bool) -> Value: ...
    def read_selector(self, selector: KeySelector) -> Value: ...
    def read_range(
        self,
        begin: KeySelector,
        end: KeySelector,
        limit: int,
        mode: int,
        iteration: int,
        reverse: bool,
        is_snapshot: bool,
    ) -> Future: ...


class KeyValue(NamedTuple):
    """A row."""

    key: bytes
    value: bytes


class KeySelector:
    """A key by its place: as in the binding, `offset` keys from the last one before `key`."""

    def __init__(self, key: bytes, or_equal: bool, offset: int) -> None:
        self.key, self.or_equal, self.offset = key, or_equal, offset

    @classmethod
    def last_less_than(cls, key: bytes) -> KeySelector:
        return cls(key, False, 0)

    @classmethod
    def last_less_or_equal(cls, key: bytes) -> KeySelector:
        return cls(key, True, 0)

    @classmethod
    def first_greater_than(cls, key: bytes) -> KeySelector:
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: bytes) -> KeySelector:
        return cls(key, False, 1)


class _StreamingMode:
    want_all, iterator, exact, small = -2, -1, 0, 1


StreamingMode = _StreamingMode()


class TransactionRead:
    """The reads of a transaction; or of its snapshot, which do not conflict with writes of others."""

    def __init__(self, transaction: _Reading, is_snapshot: bool) -> None:
        self._of = transaction
        self._is_snapshot = is_snapshot

    def get(self, key: bytes) -> Value:
        return self._of.read_key(key, self._is_snapshot)

    def get_key(self, selector: KeySelector) -> Value:
        return self._of.read_selector(selector)

    def get_range(
        self,
        begin: bytes | KeySelector,
        end: bytes | KeySelector,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = StreamingMode.iterator,
    ) -> FDBRange:
        return FDBRange(self, _selector(begin), _selector(end), limit, reverse, streaming_mode)

    def _get_range(
        self, begin: KeySelector, end: KeySelector, limit: int, streaming_mode: int, iteration: int, reverse: bool
    ) -> Future:
        return self._of.read_range(begin, end, limit, streaming_mode, iteration, reverse, self._is_snapshot)


class FDBRange:
    """Rows, page by page; iterating blocks between the pages."""

    def __init__(
        self, reads: TransactionRead, begin: KeySelector, end: KeySelector, limit: int, reverse: bool, mode: int
    ) -> None:
        self._reads, self._begin, self._end = reads, begin, end
        self._limit, self._reverse, self._mode = limit, reverse, mode

    def __iter__(self) -> Iterator[KeyValue]:
        begin, end, limit, page = self._begin, self._end, self._limit, 1
        while True:
            rows, count, more = self._reads._get_range(begin, end, limit, self._mode, page, self._reverse).wait()
            yield from rows
            if not more or count in (0, limit):
                return
            limit -= count if limit else 0
            page += 1
            if self._reverse:
                end = KeySelector.first_greater_or_equal(rows[-1].key)
            else:
                begin = KeySelector.first_greater_than(rows[-1].key)


def _selector(key: bytes | KeySelector) -> KeySelector:
    return key if isinstance(key, KeySelector) else KeySelector.first_greater_or_equal(key)
