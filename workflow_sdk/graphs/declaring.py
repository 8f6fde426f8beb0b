"""The kinds of steps: a function for each makes the step that the method of `Graph` of the same name declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypedDict, Unpack, cast

from workflow_sdk.definitions import Step, StepOptions, StepOverrides, Workflow, is_function
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.bodies import check_body, takes_ctx
from workflow_sdk.graphs.data import whole
from workflow_sdk.graphs.expressions import Template, expression_of, template_of
from workflow_sdk.graphs.growing import OPTIONS, make_node
from workflow_sdk.graphs.model import Access, Join, Kind, Mode, Node, OnDeny, Trust, as_arcs, listed
from workflow_sdk.graphs.tasks import Task, as_tasks, in_sequence
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.wire import shown

P = ParamSpec("P")
Fn = Callable[..., Any]


class Placing(TypedDict, total=False):
    """How a step stands among the others."""

    next: object
    """Arcs and names of steps, one or several."""
    mode: Mode
    needs: str | Sequence[str]
    join: Join
    admit: object
    on_deny: OnDeny
    trust: Trust
    access: Access


class Options(StepOverrides, Placing, total=False):
    """How a step stands among the others, and how its code is run."""


class Adds(Protocol):
    """A graph that steps are added to."""

    def add(self, node: Node) -> None:
        """Add a step."""
        ...


class Declares(Generic[P]):
    """A method of `Graph` that declares a step of one kind."""

    def __init__(self, make: Callable[Concatenate[P], Node]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __get__(self, graph: Adds, owner: type) -> Callable[P, None]:
        def declare(*args: P.args, **kwargs: P.kwargs) -> None:
            graph.add(self._make(*args, **kwargs))

        declare.__doc__ = self.__doc__
        return declare


def _made(name: str, kind: Kind, fn: Any, options: Mapping[str, Any], **details: Any) -> Node:
    kept = {key: value for key, value in details.items() if value is not None}
    known = OPTIONS | {"name", "each", "parallel", "tasks"} if kind in ("step", "each", "pipeline") else OPTIONS
    node = make_node(name, fn, {**options, "details": kept}, kind, known)
    if node.fn is not None and kind in ("each", "repeat"):
        _check_rollback(f"step {name!r}", node.fn, node.options)
    for one in kept.get("tasks", ()):
        if one.fn is not None:
            _check_rollback(f"task {one.label!r}", one.fn, one.options)
    return node


def _check_rollback(what: str, fn: Callable[..., Any], options: StepOptions) -> None:
    """A part of a firing that has operations of its own is undone by these."""
    if options.rollback is not None and takes_ctx(fn):
        raise DefinitionError(f"{what} calls a function with a ctx: give `rollback` to the steps that it makes with it")


def _placed(name: str, kind: Kind, options: Mapping[str, Any], **details: Any) -> Node:
    """A step that calls no function of the author's: it has none of the options of code."""
    if unknown := sorted(options.keys() - Placing.__optional_keys__):
        known = ", ".join(sorted(Placing.__optional_keys__))
        raise DefinitionError(f"step {name!r} has no option {', '.join(unknown)}; it has {known}")
    return _made(name, kind, None, options, **details)


def _template(given: object) -> Template | None:
    return None if given is None else template_of(given)


def _list_of(given: object) -> Template:
    """What gives a list: an expression, or the list itself."""
    several = listed(given)
    return template_of(expression_of(given) if several is None else several)


def _function(name: str, what: str, given: object) -> Fn:
    if not is_function(given):
        raise DefinitionError(f"step {name!r}: {what} is a function, not {shown(given)}")
    check_body(f"step {name!r}: {what}", given)
    return given


def functions_of(node: Node) -> Iterator[Any]:
    """The functions and workflows that a step has, to be known by their names."""
    todo: list[Any] = [node.fn, *node.details.values()]
    while todo:
        one = todo.pop(0)
        if isinstance(one, Task):
            todo.append(one.fn)
        elif isinstance(one, list):
            todo.extend(one)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(one, (Workflow, Step)) or callable(one):
            yield one


# Steps with code of the author's.


def step(name: str, fn: Fn, options: Mapping[str, Any]) -> Node:
    """A step that calls a function: once, or with `each` for every item of a list."""
    left = dict(options)
    if "each" not in left:
        if "parallel" in left:
            raise DefinitionError(f"step {name!r}: `parallel` says how many items of `each` are called at once")
        return _made(name, "step", fn, left)
    parallel = left.pop("parallel", None)
    if parallel is not None:
        _from_one(name, "parallel", parallel)
    return _made(name, "each", fn, left, items=_list_of(left.pop("each")), parallel=parallel)


def pipeline(name: str, tasks: object, options: Mapping[str, Any]) -> Node:
    """A step that runs tasks in order."""
    return _made(name, "pipeline", None, options, tasks=as_tasks(name, tasks))


def repeat(
    name: str, body: Fn, *, until: object = None, maximum: int | None = None, **options: Unpack[Options]
) -> Node:
    """Call `body` again and again inside one firing, until `until` is true of what it gives, `maximum` times at most.

    It is given the arguments of the step the first time, and then what it gave last, which is the output in the end.
    """
    if until is None and maximum is None:
        raise DefinitionError(f"step {name!r} would repeat for ever: give it `until` or `maximum`")
    if maximum is not None:
        _from_one(name, "maximum", maximum)
    condition = None if until is None else expression_of(until)
    return _made(name, "repeat", _function(name, "body", body), options, until=condition, maximum=maximum)


def sequence(name: str, parts: Sequence[Fn | Task], **options: Unpack[Options]) -> Node:
    """Call functions one after the other inside one firing: each is given what the one before it gave.

    The first is given the arguments of the step. What the last one gives is the output.
    """
    left: dict[str, Any] = {**options}
    own = {key: left.pop(key) for key in StepOverrides.__optional_keys__ & left.keys()}
    return _made(name, "sequence", None, left, tasks=in_sequence(name, parts, own))


def call(
    name: str, *, transport: str, payload: object = None, result: str | None = None, **options: Unpack[Options]
) -> Node:
    """Call something outside, by a function that is registered as a transport; `http` is built in.

    It is given `payload`, or else the arguments of the step. What it gives is the output, and with `result` it is also
    put into the context under that key. A call that fails or takes longer than `timeout` is followed by the arcs with
    `on="failed"`, whose guards may read `E.error.kind`: `transport`, `timeout`, `authorization` and so on.
    """
    for what, given in (("transport", transport), ("result", result)):
        if (not isinstance(given, str) or not given) and not (what == "result" and given is None):
            raise DefinitionError(f"step {name!r}: {what} is a name, not {shown(given)}")
    return _made(name, "call", None, options, transport=transport, payload=_template(payload), result=result)


# Steps without.


def noop(name: str, **options: Unpack[Placing]) -> Node:
    """A step that runs nothing and has no output: its arcs are all there is to it."""
    return _placed(name, "noop", options)


def choose(name: str, arcs: object, *, otherwise: object = None, **options: Unpack[Placing]) -> Node:
    """Take the first of the arcs that matches; if none does, the way to `otherwise`. It has no output."""
    if "next" in options or "mode" in options:
        raise DefinitionError(f"step {name!r} takes one of its arcs: it has no `next` and no `mode`")
    placing: dict[str, Any] = {**options, "next": (*as_arcs(arcs), *as_arcs(otherwise))}
    return _placed(name, "choose", placing)


def assign(name: str, values: Mapping[str, object], **options: Unpack[Placing]) -> Node:
    """Put values into the context of the graph. They are the output of the step, too."""
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise DefinitionError(f"step {name!r} assigns a dict of names and values, not {shown(values)}")
    return _placed(name, "assign", options, values=template_of(dict(values)))


def task(
    name: str,
    *,
    payload: object = None,
    assignee: object = None,
    roles: object = None,
    type: Any = None,
    timeout: Duration | None = None,
    **options: Unpack[Placing],
) -> Node:
    """Ask a person to do something, and wait for it. The output is `{"result":, "value":, "by":}`.

    `result` is what the person gave, of the type `type`, and `value` is the same; `by` is who it was. `payload` is what
    they are shown, and `roles` who may do it. If nobody has done it in `timeout`, the step fails with an error of the
    kind `timeout`.
    """
    asked = {"payload": _template(payload), "assignee": _template(assignee)}
    several = listed(roles)
    asked["roles"] = _template(roles if several is None else several)
    return _placed(name, "task", options, **asked, type=type, timeout=_time(name, timeout))


def wait(
    name: str,
    *,
    message: object = None,
    duration: object = None,
    until: object = None,
    type: Any = None,
    timeout: Duration | None = None,
    **options: Unpack[Placing],
) -> Node:
    """Wait for one of three: a message, whose payload is the output; a while; a time. The last two have no output.

    If no message has come in `timeout`, the step fails with an error of the kind `timeout`.
    """
    if sum(given is not None for given in (message, duration, until)) != 1:
        raise DefinitionError(f"step {name!r} waits for one thing: `message`, `duration` or `until`")
    if message is None and (timeout is not None or type is not None):
        raise DefinitionError(f"step {name!r}: `timeout` and `type` are for messages")
    how_long = whole(duration.total_seconds()) if isinstance(duration, timedelta) else duration
    return _placed(
        name,
        "wait",
        options,
        message=_template(message),
        duration=_template(how_long),
        until=_template(_moment(name, until)),
        type=type,
        timeout=_time(name, timeout),
    )


def child(name: str, workflow: Workflow[Any, Any] | str, input: object = None, **options: Unpack[Placing]) -> Node:
    """Start another instance, and wait for its end; its output is that of the step.

    Without `input` it is given the arguments of the step.
    """
    return _placed(name, "child", options, workflow=_workflow(name, workflow), input=_template(input))


def continue_with(
    name: str, workflow: Workflow[Any, Any] | str, input: object = None, **options: Unpack[Placing]
) -> Node:
    """Start another instance, and go on without it; the output is its id.

    Without `input` it is given the arguments of the step.
    """
    return _placed(name, "continue", options, workflow=_workflow(name, workflow), input=_template(input))


# Controllers, which run nothing themselves: they add steps to the run. Their options of code are those of the steps.


def fan_out(name: str, worker: Fn, *, over: object, then: Fn | None = None, **options: Unpack[Options]) -> Node:
    """Add a step for each item of a list, which is given the item. The output is the list of theirs, in order.

    With `then`, a function, it is what that gives for the list. If one of them fails, this fails once all have ended.
    """
    after = None if then is None else _function(name, "then", then)
    return _made(name, "fan_out", _function(name, "worker", worker), options, over=_list_of(over), then=after)


def best_of(name: str, fn: Fn, *, n: int, judge: Fn, **options: Unpack[Options]) -> Node:
    """Add `n` steps that do the same, and give the list of what they came to to `judge`, whose choice is the output.

    Those that fail are left out. If all do, this fails.
    """
    _from_one(name, "n", n)
    return _made(name, "best_of", _function(name, "fn", fn), options, n=n, judge=_function(name, "judge", judge))


def tournament(name: str, entrants: object, *, judge: Fn, **options: Unpack[Options]) -> Node:
    """Compare two and two in rounds, until one is left, which is the output.

    `entrants` are functions, each of which is a step and stands for what it gives; or values, or an expression for a
    list of them. `judge` is given `{"left":, "right":}`, and gives the better one, or "left" or "right". An odd one
    passes on. An entrant that fails loses; if all do, this fails.
    """
    found: dict[str, Any]
    several = listed(entrants) or []
    if any(is_function(one) for one in several):
        found = {"entrants": [_function(name, "an entrant beside functions", one) for one in several]}
    else:
        found = {"over": _list_of(entrants)}
    return _made(name, "tournament", None, options, **found, judge=_function(name, "judge", judge))


def generate_and_filter(name: str, generate: Fn, keep: Fn, **options: Unpack[Options]) -> Node:
    """Have `generate` give a list, and ask `keep` of each of its items; those that it is true of are the output."""
    made = _function(name, "generate", generate)
    return _made(name, "generate_and_filter", made, options, keep=_function(name, "keep", keep))


# What they are given.


def _from_one(name: str, what: str, given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise DefinitionError(f"step {name!r}: `{what}` is a number from 1 on, not {shown(given)}")


def _time(name: str, given: Duration | None) -> float | None:
    found = None if given is None else seconds(given, "timeout")
    if found is not None and found <= 0:
        raise DefinitionError(f"step {name!r}: timeout must be positive, got {shown(given)}")
    return None if found is None else whole(found)


def _moment(name: str, given: object) -> object:
    if not isinstance(given, datetime):
        return given
    if given.tzinfo is None:
        raise DefinitionError(f"step {name!r}: `until` has no time zone: {given.isoformat()}")
    return given.isoformat()


def _workflow(name: str, given: object) -> object:
    if not isinstance(given, Workflow) and (not isinstance(given, str) or not given):
        raise DefinitionError(f"step {name!r}: `workflow` is a workflow or the name of one, not {shown(given)}")
    return cast("object", given)
