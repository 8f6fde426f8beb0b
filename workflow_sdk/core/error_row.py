"""What is known of a failure, as rows hold it."""

from __future__ import annotations

from typing import ClassVar

from workflow_sdk.core.wire import Row, Text

__all__ = ["ErrorRow"]


class ErrorRow(Row, frozen=True):
    """An `ErrorInfo`: `failures.pack_error_info` makes it, and `failures.unpack_error_info` reads it."""

    WHAT: ClassVar[str] = "a failure"

    type: str
    message: Text
    traceback: Text
    kind: str
    attributes: dict[str, bytes]
    """Encoded, like other values."""
