"""What an instance has come to, made from an error."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.error_row import ErrorRow
from workflow_sdk.core.failures import pack_error_info
from workflow_sdk.core.instance import Result
from workflow_sdk.errors import ErrorInfo

__all__ = ["result_of"]


def result_of(info: ErrorInfo, codec: Codec, original: ErrorRow | None = None, culprits: Sequence[str] = ()) -> Result:
    """What an instance has come to that something has stopped; `original` and `culprits` as a `Result` has them."""
    return Result(None, pack_error_info(info, codec), original, tuple(culprits))
