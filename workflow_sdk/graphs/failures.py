"""Failures of steps, as expressions see them."""

from __future__ import annotations

from typing import Any

from workflow_sdk.errors import StepError
from workflow_sdk.values import Codec
from workflow_sdk.values.failures import describe


def told(failure: BaseException, codec: Codec) -> dict[str, Any]:
    """What `E.error` is: type, message, kind and attributes. Of a step that has failed, those of its last failure."""
    info = failure.error if isinstance(failure, StepError) else describe(failure, codec)
    return {"type": info.type, "message": info.message, "kind": info.kind, "attributes": dict(info.attributes)}
