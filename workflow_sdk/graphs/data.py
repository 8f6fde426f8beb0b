"""Steps and arcs as plain data, and back: what is exported, hashed, and stored with a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from workflow_sdk.definitions import StepOptions, Workflow, as_step_options
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions import Expression, Template, parse, template_of
from workflow_sdk.graphs.model import Arc, Condition, Join, Kind, Node, Quorum, Rule, as_rules, check_node
from workflow_sdk.graphs.narrowing import is_dict, is_list, is_mapping, is_sequence
from workflow_sdk.graphs.tasks import Policy, Task, on
from workflow_sdk.rows.retry import Backoff, seconds
from workflow_sdk.rows.wire import shown

Find = Callable[[str], object]
"""The function, workflow or exception type that a name in data stands for. DefinitionError, if there is none."""
NameOf = Callable[[object], str]
"""The name by which data knows a function, workflow or exception type. DefinitionError, if it can't have one."""

_OPTIONS = StepOptions()
_FLAGS: dict[str, Any] = {"mode": "exclusive", "on_deny": "wait", "trust": "trusted", "access": "read"}


def node_to_data(node: Node, name_of: NameOf) -> dict[str, Any]:
    """A step as plain data: what has its default is left out."""
    whole: dict[str, Any] = {
        "name": node.name,
        "kind": node.kind,
        "fn": None if node.fn is None else name_of(node.fn),
        **{key: getattr(node, key) for key, default in _FLAGS.items() if getattr(node, key) != default},
        "needs": list(node.needs),
        "join": _join_to_data(node.join),
        "next": [_arc_to_data(arc) for arc in node.next],
        "admit": [_rule_to_data(rule) for rule in node.admit],
        "options": _options_to_data(node.options, node.fn, name_of),
        "details": {key: _detail_to_data(value, name_of) for key, value in node.details.items()},
    }
    data = {key: value for key, value in whole.items() if value}
    return data if node.args is None else {**data, "args": node.args.to_data()}


def _join_to_data(join: Join) -> Any:
    if isinstance(join, Quorum):
        return {"quorum": join.count}
    return None if join == "all" else join


def node_from_data(data: Mapping[str, Any], find: Find) -> Node:
    """The step that plain data describes."""
    name = data.get("name")
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"a step has a `name`, which is a text, not {shown(name)}")
    known = {"name", "kind", "fn", "needs", "join", "next", "admit", "args", "options", "details", *_FLAGS}
    if unknown := sorted(set(data) - known):
        raise DefinitionError(
            f"step {name!r} has no {', '.join(map(repr, unknown))}; it has {', '.join(sorted(known))}"
        )
    fn: Any = find(data["fn"]) if "fn" in data else None
    made = Node(
        name,
        cast("Kind", data.get("kind", "step")),
        fn,
        _options_from_data(data.get("options", {}), fn, find),
        next=tuple(map(_arc_from_data, data.get("next", ()))),
        needs=tuple(data.get("needs", ())),
        join=_join_from_data(data.get("join", "all")),
        admit=_admit_from_data(data.get("admit", ())),
        args=template_of(data["args"]) if "args" in data else None,
        details={key: _detail_from_data(value, find) for key, value in data.get("details", {}).items()},
        **{key: data.get(key, default) for key, default in _FLAGS.items()},
    )
    check_node(made)
    return made


def names_from_data(data: Mapping[str, Any]) -> Node:
    """The name of a step that plain data describes, and the names of steps in it: nothing that has to be found."""
    arcs = tuple(Arc(_arc_from_data(one).step) for one in data.get("next", ()))
    return Node(data["name"], needs=tuple(data.get("needs", ())), next=arcs)


def _condition_to_data(condition: Condition) -> str:
    if not isinstance(condition, Expression):
        raise DefinitionError(f"{condition.place} is Python code, which can't be exported; write an expression")
    return condition.text


def _arc_to_data(arc: Arc) -> dict[str, Any]:
    data: dict[str, Any] = {"step": arc.step}
    if arc.when is not None:
        data["when"] = _condition_to_data(arc.when)
    if arc.args is not None:
        data["args"] = arc.args.to_data()
    if arc.on != "done":
        data["on"] = arc.on
    return data


def _arc_from_data(data: Any) -> Arc:
    if isinstance(data, str):
        return Arc(data)
    if not is_mapping(data) or not isinstance(data.get("step"), str):
        raise DefinitionError(f"an arc is the name of a step, or has one as `step`, not {shown(data)}")
    when = data.get("when")
    args = template_of(data["args"]) if "args" in data else None
    return Arc(data["step"], None if when is None else parse(str(when)), args, data.get("on", "done"))


def _rule_to_data(rule: Rule) -> dict[str, Any]:
    if rule.when is None:
        return {"allow": rule.allow}
    return {"when": _condition_to_data(rule.when), "allow": rule.allow}


def _rule_from_data(data: Any) -> Rule:
    if not is_mapping(data) or not isinstance(data.get("allow"), bool):
        raise DefinitionError(f"a rule has `allow`, which is true or false, and maybe `when`, not {shown(data)}")
    when = data.get("when")
    return Rule(None if when is None else parse(str(when)), data["allow"])


def _admit_from_data(data: Any) -> tuple[Rule, ...]:
    return as_rules(data) if isinstance(data, str) else tuple(map(_rule_from_data, data))


def _join_from_data(data: Any) -> Join:
    if is_mapping(data):
        return Quorum(data["quorum"])
    return cast("Join", data)


def _options_to_data(options: StepOptions, fn: Any, name_of: NameOf) -> dict[str, Any]:
    """The options that differ from the defaults, or from the function's own, which hold if nothing is said."""
    own = as_step_options(fn, {})
    data: dict[str, Any] = {}
    for key, write in _OPTION_WRITERS.items():
        value = getattr(options, key)
        if value != getattr(_OPTIONS, key) or value != getattr(own, key):
            data[key] = write(value, name_of)
    return data


def whole(number: float) -> float:
    """A number as definitions have it: 1.0 is written as 1, so that it does not matter who has written it."""
    return int(number) if float(number).is_integer() else number


def _backoff_to_data(backoff: Backoff, name_of: NameOf) -> dict[str, Any]:
    return {
        "initial": whole(seconds(backoff.initial, "initial")),
        "factor": whole(backoff.factor),
        "maximum": whole(seconds(backoff.maximum, "maximum")),
        "jitter": whole(backoff.jitter),
    }


def _kinds_to_data(given: Any, name_of: NameOf) -> list[str]:
    return [name_of(kind) for kind in (cast("tuple[type, ...]", given) if isinstance(given, tuple) else (given,))]


_OPTION_WRITERS: dict[str, Callable[[Any, NameOf], Any]] = {
    "retries": lambda value, name_of: value,
    "backoff": _backoff_to_data,
    "timeout": lambda value, name_of: None if value is None else whole(seconds(value, "timeout")),
    "retry_on_timeout": lambda value, name_of: value,
    "no_retry": _kinds_to_data,
    "repeatable": lambda value, name_of: value,
    "rollback": lambda value, name_of: None if value is None else name_of(value),
}


def _options_from_data(data: Mapping[str, Any], fn: Any, find: Find) -> StepOptions:
    given = dict(data)
    if "backoff" in given:
        given["backoff"] = Backoff(**given["backoff"])
    if "no_retry" in given:
        given["no_retry"] = tuple(find(name) for name in given["no_retry"])
    if given.get("rollback") is not None:
        given["rollback"] = find(given["rollback"])
    return as_step_options(fn, cast("Any", given))


def _task_to_data(task: Task, name_of: NameOf) -> dict[str, Any]:
    data: dict[str, Any] = {"label": task.label} | ({} if task.fn is None else {"fn": name_of(task.fn)})
    if task.policy:
        data["policy"] = [_policy_to_data(one, name_of) for one in task.policy]
    # Tasks are not retried by themselves: how often they are is said in any case.
    data["options"] = {**_options_to_data(task.options, task.fn, name_of), "retries": task.options.retries}
    return data


def _task_from_data(data: Mapping[str, Any], find: Find) -> Task:
    fn = cast("Callable[..., Any]", find(data["fn"])) if "fn" in data else None
    options = _options_from_data(data.get("options", {"retries": 0}), fn, find)
    return Task(data["label"], fn, tuple(map(_policy_from_data, data.get("policy", ()))), options)


def _policy_to_data(policy: Policy, name_of: NameOf) -> dict[str, Any]:
    data: dict[str, Any] = {} if policy.when is None else {"when": _condition_to_data(policy.when)}
    data["do"] = policy.way
    if policy.patch is not None:
        data["patch"] = policy.patch.to_data()
    if policy.way == "retry":
        data["times"] = policy.times
        if policy.backoff != Backoff():
            data["backoff"] = _backoff_to_data(policy.backoff, name_of)
    if policy.way == "jump":
        data["to"] = policy.label
    return data


def _policy_from_data(data: Mapping[str, Any]) -> Policy:
    when = data.get("when")
    rules = on(when, patch=data.get("patch"))
    match data["do"]:
        case "retry":
            return rules.retry(data.get("times", 1), backoff=Backoff(**data.get("backoff", {})))
        case "jump":
            return rules.jump(data.get("to", ""))
        case way:
            return Policy(rules.when, way, patch=rules.patch)


def _detail_to_data(value: Any, name_of: NameOf) -> Any:
    """A detail of a step's kind. What is no plain data has a mark that says what it is."""
    if is_sequence(value):
        return [_detail_to_data(one, name_of) for one in value]
    if is_dict(value):
        return {key: _detail_to_data(one, name_of) for key, one in value.items()}
    for kind, mark, write in _MARKS:
        if isinstance(value, kind):
            return {mark: write(value, name_of)}
    return {"$fn": name_of(value)} if callable(value) else value


_MARKS: tuple[tuple[type, str, Callable[[Any, NameOf], Any]], ...] = (
    (Template, "$args", lambda value, name_of: value.to_data()),
    (Expression, "$", lambda value, name_of: value.text),
    (Node, "$step", node_to_data),
    (Arc, "$arc", lambda value, name_of: _arc_to_data(value)),
    (Task, "$task", _task_to_data),
    (Workflow, "$fn", lambda value, name_of: name_of(value)),
)


def _detail_from_data(value: Any, find: Find) -> Any:
    if is_list(value):
        return [_detail_from_data(one, find) for one in value]
    if not is_dict(value):
        return value
    mark = next(iter(value)) if len(value) == 1 else ""
    if mark in _READERS:
        return _READERS[mark](value[mark], find)
    return {key: _detail_from_data(one, find) for key, one in value.items()}


_READERS: Mapping[str, Callable[[Any, Find], Any]] = {
    "$args": lambda value, find: template_of(value),
    "$": lambda value, find: parse(value),
    "$step": node_from_data,
    "$arc": lambda value, find: _arc_from_data(value),
    "$task": _task_from_data,
    "$fn": lambda value, find: find(value),
}
