"""What a firing does: the code of each kind of step, as a function of a ctx and of the arguments of the firing."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from workflow_sdk.context import Context
from workflow_sdk.definitions import Step
from workflow_sdk.graphs.model import Node
from workflow_sdk.values.hints import parameter_hint, return_hint

Body = Callable[[Context, Any], Awaitable[Any]]


@lru_cache(maxsize=4096)
def _shape(fn: Callable[..., Any]) -> tuple[bool, bool]:
    """Whether a function takes a ctx first, and whether it takes arguments of the firing."""
    positional = [
        one
        for one in inspect.signature(fn).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if not positional:
        return False, False
    first = positional[0]
    takes_ctx = first.name == "ctx" or "Context" in str(first.annotation)
    return takes_ctx, len(positional) > takes_ctx


def unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, without its options as a step."""
    while isinstance(fn, Step):
        fn = fn.fn
    return fn


def takes_ctx(fn: Callable[..., Any]) -> bool:
    """Whether a body is given a ctx, and may have operations."""
    return _shape(unwrapped(fn))[0]


def arguments_for(fn: Callable[..., Any], ctx: Context, args: Any) -> tuple[Any, ...]:
    """What a body is called with: as many of ctx and arguments as it takes."""
    has_ctx, has_args = _shape(unwrapped(fn))
    return (*((ctx,) if has_ctx else ()), *((args,) if has_args else ()))


def args_hint(fn: Callable[..., Any]) -> object:
    """The annotation of the arguments of a body; Any, if it has none."""
    has_ctx, has_args = _shape(unwrapped(fn))
    return parameter_hint(unwrapped(fn), 1 if has_ctx else 0) if has_args else Any


def output_hint(node: Node) -> object:
    """The annotation of what a step gives."""
    return Any if node.fn is None or node.kind != "step" else return_hint(unwrapped(node.fn))


async def call_in(ctx: Context, fn: Callable[..., Any], args: Any) -> Any:
    """Call a function of the author's as a part of a body."""
    found = unwrapped(fn)(*arguments_for(fn, ctx, args))
    return await found if inspect.isawaitable(found) else found
