"""`fdb.tuple`, with types: the encoding of every key. It needs no C library."""

from __future__ import annotations

from typing import cast

import fdb.tuple

__all__ = ["TupleItem", "pack", "unpack"]

TupleItem = int | float | str | bytes | None | tuple["TupleItem", ...]


def pack(items: tuple[TupleItem, ...]) -> bytes:
    """The tuple as bytes that sort like the tuple."""
    packed: bytes = fdb.tuple.pack(items)  # pyright: ignore[reportUnknownMemberType]  # fdb has no types
    return packed


def unpack(packed: bytes) -> tuple[TupleItem, ...]:
    """The tuple that the bytes hold."""
    return cast("tuple[TupleItem, ...]", fdb.tuple.unpack(packed))  # pyright: ignore[reportUnknownMemberType]  # as above
