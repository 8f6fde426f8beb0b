"""The digest of plain data, the same however it was formatted and in whichever order its keys came."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, cast

from cbor2 import dumps

_EXACT: Final = float(1 << 53)


def digest(data: Any) -> str:
    """SHA-256 of the canonical CBOR, in hexadecimal."""
    return sha256(dumps(_normal(data), canonical=True)).hexdigest()


def _normal(value: Any) -> Any:
    """The same data, with 1.0 as 1: some formats and tools don't tell them apart."""
    if isinstance(value, dict):
        return {key: _normal(one) for key, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_normal(one) for one in cast("list[Any]", value)]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value
