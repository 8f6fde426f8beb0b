"""What a firing does: the code of each kind of step, as a function of a ctx and of the arguments of the firing."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from workflow_sdk.context import Context
from workflow_sdk.definitions import Step
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.model import Node
from workflow_sdk.operations.calling import KEY
from workflow_sdk.values.hints import parameter_hint, return_hint

Body = Callable[[Context, Any], Awaitable[Any]]
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@lru_cache(maxsize=4096)
def _shape(fn: Callable[..., Any]) -> tuple[bool, bool]:
    """Whether a function takes a ctx first, and whether it takes arguments of the firing."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:
        return False, True  # some functions of Python itself, such as `max`, don't tell what they take
    positional = [one for one in parameters if one.kind in _POSITIONAL and not _is_given_by_name(one)]
    if not positional:
        return False, False
    first, required = positional[0], [one for one in positional if one.default is one.empty]
    # Two values can only be the ctx and the arguments, whatever they are called.
    takes_ctx = first.name == "ctx" or "Context" in str(first.annotation) or len(required) > 1
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


class Calling(Struct, frozen=True):
    """How a body is called: all that is known of it before."""

    fn: Callable[..., Any]
    takes_ctx: bool
    takes_args: bool
    args_hint: object
    output_hint: object


@lru_cache(maxsize=4096)
def calling_of(fn: Callable[..., Any]) -> Calling:
    """How a body is called."""
    inner = unwrapped(fn)
    return Calling(inner, *_shape(inner), args_hint(fn), return_hint(inner))


def output_hint(node: Node) -> object:
    """The annotation of what a step gives."""
    return Any if node.fn is None or node.kind != "step" else return_hint(unwrapped(node.fn))


def check_body(what: str, fn: Callable[..., Any]) -> None:
    """Raise `DefinitionError` for a function that no firing can call: it would fail in every run."""
    body = unwrapped(fn)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise DefinitionError(f"{what} is a generator; give back a list, without `yield`")
    if others := _asked_beside(body):
        raise DefinitionError(
            f"{what} asks for {', '.join(others)}: it is given a ctx, if its first parameter is called so, and one "
            "value; give other parameters a default, or use functools.partial"
        )


@lru_cache(maxsize=4096)
def _asked_beside(fn: Callable[..., Any]) -> list[str]:
    """The parameters that a function has to be given, beside a ctx and arguments."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:
        return []
    wanted = [one for one in parameters if one.default is one.empty and not _is_given_by_name(one)]
    positional = [one.name for one in wanted if one.kind in _POSITIONAL]
    return [*positional[1 + takes_ctx(fn) :], *(one.name for one in wanted if one.kind is one.KEYWORD_ONLY)]


def _is_given_by_name(parameter: inspect.Parameter) -> bool:
    return parameter.name == KEY or any(one in str(parameter.annotation) for one in ("StreamWriter", "Resource"))


async def call_in(ctx: Context, fn: Callable[..., Any], args: Any) -> Any:
    """Call a function of the author's as a part of a body."""
    return await awaited(unwrapped(fn), *arguments_for(fn, ctx, args))


async def awaited(fn: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, which may be a plain one that needs no `await`."""
    found = fn(*arguments)
    return await found if inspect.isawaitable(found) else found
