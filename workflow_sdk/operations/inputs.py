"""The input of a workflow as it is stored: checked against its annotation before anything is written."""

from __future__ import annotations

from typing import Any

from workflow_sdk.core.codec import Codec
from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import CodecError, InputError

__all__ = ["encode_input", "encode_plain_input"]


def encode_input(codec: Codec, workflow: Workflow[Any, Any], value: object) -> bytes:
    """The input as it is stored; it fits the workflow's annotation."""
    if value is None:
        value = workflow.default_input
    if value is not None and not workflow.takes_input:
        raise InputError(f"workflow {workflow.name!r} takes no input, and was given {value!r:.100}")
    try:
        return codec.encode_checked(value, workflow.input_hint)
    except CodecError as error:
        kind = type(error) if type(error) is not CodecError else InputError
        raise kind(f"the input of workflow {workflow.name!r}: {error}") from None


def encode_plain_input(codec: Codec, workflow: Workflow[Any, Any], value: object) -> bytes:
    """The same from plain data, as it comes from whoever knows the workflow by its name only."""
    if value is None or not workflow.takes_input:
        return encode_input(codec, workflow, value)
    try:
        raw = codec.encode(value)
        codec.decode_checked(raw, workflow.input_hint)
    except CodecError as error:
        kind = type(error) if type(error) is not CodecError else InputError
        raise kind(f"the input of workflow {workflow.name!r}: {error}") from None
    return raw
