"""The digest of plain data, the same however it was formatted and in whichever order its keys came."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from cbor2 import dumps

from workflow_sdk.graphs.narrowing import is_dict, is_list

_EXACT: Final = float(1 << 53)


def digest(data: Any) -> str:
    """SHA-256 of the canonical CBOR, in hexadecimal."""
    return sha256(dumps(_normal(data), canonical=True)).hexdigest()


def _normal(value: Any) -> Any:
    """The same data, with 1.0 as 1: some formats and tools don't tell them apart."""
    if is_dict(value):
        return {key: _normal(one) for key, one in value.items()}
    if is_list(value):
        return [_normal(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value
