"""The engine's own records: a byte that names the format, and canonical CBOR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import cbor2

from workflow_sdk.errors import CodecError

__all__ = ["FORMAT", "pack_record", "unpack_record"]

FORMAT = b"\x01"
"""Old formats stay readable: a new one gets the next number, and a reader of its own in `unpack_record`."""

_dumps = cbor2.dumps
_loads = cbor2.loads


def pack_record(fields: Sequence[object]) -> bytes:
    """A record as bytes. Equal records give equal bytes."""
    return FORMAT + _dumps(fields, canonical=True)


def unpack_record(data: bytes) -> list[Any]:
    """The fields of a record."""
    if data[:1] != FORMAT:
        raise CodecError(
            f"a record in format {data[:1].hex() or 'none'}, which this version of workflow_sdk can't read; "
            "it was written by a newer one, or not by workflow_sdk"
        )
    return cast("list[Any]", _loads(data[1:]))
