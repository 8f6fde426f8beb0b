"""What a firing does whose code is ours: tasks of people, waits, children, items, turns and pipelines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from workflow_sdk.context import Context
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions import ExpressionError
from workflow_sdk.graphs.model import listed
from workflow_sdk.graphs.parts import Part, Work, holds, own_seat, run_part
from workflow_sdk.graphs.pipeline import run_tasks
from workflow_sdk.operations.loop import Break, Continue

Body = Callable[[Work], Awaitable[Any]]


async def _noop(work: Work) -> None:
    """Do nothing. So many steps that run nothing came in a row that this one was not passed at once."""


async def _assign(work: Work) -> Any:
    work.ctx.patch(**work.values["values"])
    return work.values["values"]


async def _controller(work: Work) -> Any:
    """Give what a controller came to without adding a step, of which too many came in a row to be passed at once."""
    return work.values["output"]


async def _task(work: Work) -> Any:
    details, values = work.node.details, work.values
    assignee, roles = values.get("assignee"), values.get("roles", ())
    several = listed(roles)
    done = await work.ctx.task(
        work.node.name,
        payload=values.get("payload"),
        assignee=None if assignee is None else _text(work, "assignee", assignee),
        roles=[_text(work, "role", one) for one in ([roles] if several is None else several)],
        type=details.get("type", Any),
        timeout=details.get("timeout"),
    )
    return {"result": done.value, "value": done.value, "by": done.by}


async def _wait(work: Work) -> Any:
    ctx, details, values = work.ctx, work.node.details, work.values
    if "message" in values:
        message = _text(work, "message", values["message"])
        return await ctx.listen("message", message, type=details.get("type", Any), timeout=details.get("timeout"))
    if "duration" in values:
        duration = values["duration"]
        if isinstance(duration, timedelta):
            duration = duration.total_seconds()
        if isinstance(duration, bool) or not isinstance(duration, (int, float)) or duration < 0:
            raise ExpressionError(
                f"step {work.node.name!r} waits for seconds from 0 on, and was given {duration!r:.100}"
            )
        return await ctx.sleep("duration", duration)
    return await ctx.sleep_until("until", _moment(work))


def _moment(work: Work) -> datetime:
    given = when = work.values["until"]
    if isinstance(given, str):
        with suppress(ValueError):
            when = datetime.fromisoformat(given)
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise ExpressionError(
            f"step {work.node.name!r} waits until a time such as 2030-01-31T12:00:00Z, and was given {given!r:.100}"
        )
    return when


def _text(work: Work, what: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ExpressionError(f"the {what} of step {work.node.name!r} is a text that is not empty, not {value!r:.100}")
    return value


async def _child(work: Work) -> Any:
    return await work.ctx.child("child", work.node.details["workflow"], work.values.get("input", work.args))


async def _continue(work: Work) -> str:
    return await work.ctx.continue_with("next", work.node.details["workflow"], work.values.get("input", work.args))


async def _each(work: Work) -> list[Any]:
    node = work.node
    items = listed(work.values["items"])
    if items is None:
        given = type(work.values["items"]).__name__
        raise ExpressionError(f"step {node.name!r} is for each item of a list, and was given {given}")
    fn, outer = node.fn, work.seat
    assert fn is not None, "items are given to a function"
    options = node.options

    async def one(ctx: Context, item: Any) -> list[Any]:
        seat = own_seat(outer)
        output = await run_part(ctx, seat, Part("item", fn, item, options))
        return [output, seat.changed]

    outputs: list[Any] = []
    for output, changed in await work.ctx.map("items", one, items, limit=node.details.get("parallel")):
        outer.patch(changed)
        outputs.append(output)
    return outputs


async def _repeat(work: Work) -> Any:
    node, outer = work.node, work.seat
    until, maximum = node.details.get("until"), node.details.get("maximum")
    fn = node.fn
    assert fn is not None, "a turn is a function"

    async def turn(ctx: Context, state: list[Any]) -> Continue[list[Any]] | Break[list[Any]]:
        number, given, changed = state
        seat = own_seat(outer)
        seat.patch(changed)
        output = await run_part(ctx, seat, Part("turn", fn, given, node.options))
        after = [number + 1, output, seat.changed]
        if maximum is not None and number + 1 >= maximum:
            return Break(after)
        if until is not None and await holds(ctx, "until", seat, until, given, output=output, event="step.done"):
            return Break(after)
        return Continue(after)

    _, output, changed = await work.ctx.loop("turns", turn, [0, work.args, {}])
    outer.patch(changed)
    return output


_BODIES: dict[str, Body] = {
    "noop": _noop,
    "choose": _noop,
    "assign": _assign,
    "task": _task,
    "wait": _wait,
    "child": _child,
    "continue": _continue,
    "each": _each,
    "repeat": _repeat,
    "sequence": run_tasks,
    "pipeline": run_tasks,
    "fan_out": _controller,
    "best_of": _controller,
    "tournament": _controller,
    "generate_and_filter": _controller,
}


def body_of(work: Work) -> Callable[[], Awaitable[Any]]:
    """What a firing of a step does."""
    body = _BODIES.get(work.node.kind)
    if body is None:
        raise DefinitionError(f"step {work.node.name!r} is of the kind {work.node.kind!r}, which nothing runs")
    return lambda: body(work)
