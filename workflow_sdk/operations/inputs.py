"""Encoding the input of a workflow, which is checked against its annotation before anything is written."""

from __future__ import annotations

from typing import Any, cast

from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import AlreadyExistsError, CodecError, InputError
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.wire import shown
from workflow_sdk.values import Codec


def encode_input(codec: Codec, workflow: Workflow[Any, Any], value: object) -> bytes:
    """Encode an input. It must fit the workflow's annotation."""
    if value is None:
        value = workflow.default_input
    if value is not None and not workflow.takes_input:
        raise InputError(f"workflow {workflow.name!r} takes no input, and was given {shown(value)}")
    try:
        return codec.encode_checked(value, workflow.input_hint)
    except CodecError as error:
        kind = type(error) if type(error) is not CodecError else InputError
        raise kind(f"the input of workflow {workflow.name!r}: {error}") from None


def encode_plain_input(codec: Codec, workflow: Workflow[Any, Any], value: object) -> bytes:
    """Encode an input that is plain data, from a client that knows the workflow only by its name."""
    if value is None or not workflow.takes_input:
        return encode_input(codec, workflow, value)
    try:
        raw = codec.encode(value)
        codec.decode_checked(raw, workflow.input_hint)
    except CodecError as error:
        kind = type(error) if type(error) is not CodecError else InputError
        raise kind(f"the input of workflow {workflow.name!r}: {error}") from None
    return raw


def check_same_start(codec: Codec, id: str, about: InstanceRows, asked: tuple[str, bytes]) -> None:
    """Check that an existing instance has the same workflow and input as the one that is asked for."""
    wanted_name, raw = asked
    name, birth = about.head.workflow, about.birth
    stored = birth.input if birth.first_input is None else birth.first_input
    if name != wanted_name:
        raise AlreadyExistsError(
            f"instance {id!r} runs workflow {name!r}, not {wanted_name!r}; give this one another id"
        )
    if not same_value(codec, stored, raw):
        was, wanted = codec.decode(stored, plain=True), codec.decode(raw, plain=True)
        raise AlreadyExistsError(
            f"instance {id!r} of workflow {name!r} was started with the input {shown(was)}, not {shown(wanted)}; "
            "give this one another id"
        )


def same_value(codec: Codec, stored: bytes, raw: bytes) -> bool:
    """Whether two encoded inputs are the same, so that starting with either is the same start."""
    if stored == raw:
        return True
    return bool(_as_json(codec.decode(stored, plain=True)) == _as_json(codec.decode(raw, plain=True)))


def _as_json(value: object) -> object:
    """Plain data as it is after a round trip through JSON, from which inputs may come: a tuple becomes a list."""
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in cast("dict[object, object]", value).items()}
    return value
