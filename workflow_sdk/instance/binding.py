"""The author's function with the input that is stored for an instance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from workflow_sdk.context import Context
from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import CodecError, InputError
from workflow_sdk.operations.scope import Scope
from workflow_sdk.values import Codec, SealedError

_UNREADABLE = "the input of the instance can't be read as the type that the workflow gives it now"


def bound(
    workflow: Workflow[Any, Any],
    codec: Codec,
    raw: bytes,
    misread: Callable[[CodecError, str], BaseException],
    *,
    checked: bool,
) -> Callable[[Scope], Awaitable[Any]]:
    """The function with its input, to be called with a scope. If the input does not fit, that is told by the call.

    `checked`: whether the input was checked against the workflow's annotation when the instance was started. If not,
    it is the caller's mistake; if so, `misread` makes what is raised for code that has changed.
    """
    fn = workflow.fn
    if not workflow.takes_input:
        if not checked:
            return lambda scope: fn(Context(scope, *_no_input(workflow, codec, raw)))
        return lambda scope: fn(Context(scope))
    default = workflow.default_input

    def call(scope: Scope) -> Awaitable[Any]:
        try:
            if default is not None and codec.decode(raw, plain=True) is None:
                # The client that started the instance did not know the workflow, and so gave no default.
                return fn(Context(scope), default)
            value = workflow.read_input(codec, raw)
        except CodecError as error:
            if not isinstance(error, SealedError) and not checked and _is_a_value(codec, raw):
                raise InputError(f"the input of workflow {workflow.name!r}: {error}") from None
            raise misread(error, _UNREADABLE) from None
        return fn(Context(scope), value)

    return call


def _no_input(workflow: Workflow[Any, Any], codec: Codec, raw: bytes) -> tuple[()]:
    """Check that a workflow that takes no input was given none."""
    given = codec.decode(raw, plain=True)
    if given is not None:
        raise InputError(f"workflow {workflow.name!r} takes no input, and was given {given!r:.100}")
    return ()


def _is_a_value(codec: Codec, raw: bytes) -> bool:
    """Whether the bytes are a value of any type. If not, they are damaged."""
    try:
        codec.decode(raw, plain=True)
    except CodecError:
        return False
    return True
