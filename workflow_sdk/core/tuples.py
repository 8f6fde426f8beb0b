"""`fdb.tuple`, with types: the encoding of every key. It needs no C library."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import cast

import fdb.tuple

from workflow_sdk.errors import CodecError

__all__ = ["TupleItem", "pack", "pack_one", "unpack"]

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
    """A tuple of one item as bytes, to be put together with others: packing is done part by part.

    The ids and times of the instances that are busy now stand in many keys, and are packed once.
    """
    return pack((item,))


def unpack(packed: bytes) -> tuple[TupleItem, ...]:
    """The tuple that the bytes hold."""
    try:
        return cast("tuple[TupleItem, ...]", fdb.tuple.unpack(packed))  # pyright: ignore[reportUnknownMemberType]  # as above
    except (ValueError, IndexError, struct.error, RecursionError):
        raise CodecError(f"a key in the store is not of this library's making: {packed!r:.100}") from None
