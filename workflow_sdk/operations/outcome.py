"""Outcomes as they are recorded. What the author sees the first time is read back from the record, like every time."""

from __future__ import annotations

import cbor2

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.failures import pack_failure, unpack_failure
from workflow_sdk.core.wire import unpack_cbor
from workflow_sdk.errors import CodecError

__all__ = ["about", "pack_error", "unpack_error"]


def pack_error(error: Exception, codec: Codec) -> bytes:
    """A failure as bytes."""
    return cbor2.dumps(pack_failure(error, codec), canonical=True)


def unpack_error(raw: bytes, codec: Codec) -> Exception:
    """The failure that the bytes hold: an exception of the same class, with the same attributes."""
    return unpack_failure(unpack_cbor(raw), codec)


def about(what: str, error: CodecError) -> CodecError:
    """The same error, saying which value it is about."""
    return type(error)(f"{what}: {error}")
