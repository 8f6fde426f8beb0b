"""What the steps do that are no functions of the author's: tasks, waits, calls, children, items and turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from workflow_sdk.context import Context
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.bodies import call_in
from workflow_sdk.graphs.expressions import ExpressionError
from workflow_sdk.graphs.model import Node
from workflow_sdk.operations.loop import Break, Continue

Values = Mapping[str, Any]
"""What the details of the step came to when it began."""
Body = Callable[[Node, Context, Any, Values], Awaitable[Any]]


async def _noop(node: Node, ctx: Context, args: Any, values: Values) -> None:
    """A step that runs nothing, of which too many came in a row to be passed at once."""


async def _assign(node: Node, ctx: Context, args: Any, values: Values) -> Any:
    ctx.patch(**values["values"])
    return values["values"]


async def _task(node: Node, ctx: Context, args: Any, values: Values) -> dict[str, Any]:
    details = node.details
    done = await ctx.task(
        "task",
        payload=values.get("payload"),
        assignee=values.get("assignee"),
        roles=details.get("roles", ()),
        type=details.get("type", Any),
        timeout=details.get("timeout"),
    )
    return {"result": done.result, "by": done.by}


async def _wait(node: Node, ctx: Context, args: Any, values: Values) -> Any:
    details = node.details
    if (message := details.get("message")) is not None:
        return await ctx.listen("message", message, type=details.get("type", Any), timeout=details.get("timeout"))
    if "duration" in values:
        return await ctx.sleep("duration", values["duration"])
    when = values["until"]
    if not isinstance(when, datetime):
        when = datetime.fromisoformat(when)
    return await ctx.sleep_until("until", when)


async def _call(node: Node, ctx: Context, args: Any, values: Values) -> Any:
    transport: Any = node.details["transport_fn"]
    return await ctx.step("call", transport, values.get("payload", args), timeout=node.details.get("timeout"))


async def _child(node: Node, ctx: Context, args: Any, values: Values) -> Any:
    return await ctx.child("child", node.details["workflow"], values.get("input", args))


async def _continue(node: Node, ctx: Context, args: Any, values: Values) -> str:
    return await ctx.continue_with("continue", node.details["workflow"], values.get("input", args))


async def _each(node: Node, ctx: Context, args: Any, values: Values) -> list[Any]:
    items = values["items"]
    if not isinstance(items, list):
        raise ExpressionError(f"step {node.name!r} is for each item of a list, and was given {type(items).__name__}")
    fn = node.fn
    assert fn is not None, "items are given to a function"

    async def one(inner: Context, item: Any) -> Any:
        return await call_in(inner, fn, item)

    return await ctx.map("items", one, items, limit=node.details.get("parallel"))


async def _repeat(node: Node, ctx: Context, args: Any, values: Values) -> Any:
    until, maximum = node.details.get("until"), node.details.get("maximum")
    fn = node.fn
    assert fn is not None, "a turn is a function"

    async def turn(inner: Context, state: list[Any]) -> Continue[list[Any]] | Break[Any]:
        number, before = state
        output = await call_in(inner, fn, args if number == 0 else before)
        scope = {"output": output, "args": args, "ctx": dict(inner.vars), "event": {"name": "loop.turn"}}
        if (maximum is not None and number + 1 >= maximum) or (until is not None and until.test(scope, {})):
            return Break(output)
        return Continue([number + 1, output])

    return await ctx.loop("turns", turn, [0, None])


async def _sequence(node: Node, ctx: Context, args: Any, values: Values) -> Any:
    output = args
    for part in node.details["parts"]:
        output = await _part(ctx, part, output)
    return output


async def _part(ctx: Context, part: Any, args: Any) -> Any:
    name = getattr(part, "__name__", "part")

    async def run(inner: Context) -> Any:
        return await call_in(inner, part, args)

    return (await ctx.join(name, {name: run}))[name]


_BODIES: dict[str, Body] = {
    "noop": _noop,
    "choose": _noop,
    "assign": _assign,
    "task": _task,
    "wait": _wait,
    "call": _call,
    "child": _child,
    "continue": _continue,
    "each": _each,
    "repeat": _repeat,
    "sequence": _sequence,
}


def body_of(node: Node) -> Callable[[Context, Any, Values], Awaitable[Any]]:
    """What a firing of a step does."""
    body = _BODIES.get(node.kind)
    if body is None:
        raise DefinitionError(f"step {node.name!r} is of the kind {node.kind!r}, which nothing runs")
    return lambda ctx, args, values: body(node, ctx, args, values)
