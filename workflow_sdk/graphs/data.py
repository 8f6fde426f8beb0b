"""Steps and arcs as plain data, and back: what is exported, hashed, and stored with a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from workflow_sdk.definitions import Step, StepOptions, Workflow, as_step_options
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
    data: dict[str, Any] = {"name": node.name, "kind": node.kind}
    if node.fn is not None:
        data["fn"] = name_of(node.fn)
    data |= {key: getattr(node, key) for key, default in _FLAGS.items() if getattr(node, key) != default}
    if node.needs:
        data["needs"] = list(node.needs)
    if node.join != "all":
        data["join"] = {"quorum": node.join.count} if isinstance(node.join, Quorum) else node.join
    if node.next:
        data["next"] = [_arc_to_data(arc) for arc in node.next]
    if node.admit:
        data["admit"] = [_rule_to_data(rule) for rule in node.admit]
    if node.args is not None:
        data["args"] = node.args.to_data()
    if options := _options_to_data(node.options, node.fn, name_of):
        data["options"] = options
    if node.details:
        data["details"] = {key: _detail_to_data(value, name_of) for key, value in node.details.items()}
    return data


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


def _condition_to_data(condition: Condition) -> str:
    if not isinstance(condition, Expression):
        raise DefinitionError(f"{condition.name} is a Python function, and can't be exported; write an expression")
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


def _backoff_to_data(backoff: Backoff, name_of: NameOf) -> dict[str, Any]:
    return {
        "initial": seconds(backoff.initial, "initial"),
        "factor": float(backoff.factor),
        "maximum": seconds(backoff.maximum, "maximum"),
        "jitter": float(backoff.jitter),
    }


def _kinds_to_data(given: Any, name_of: NameOf) -> list[str]:
    return [name_of(kind) for kind in (cast("tuple[type, ...]", given) if isinstance(given, tuple) else (given,))]


_OPTION_WRITERS: dict[str, Callable[[Any, NameOf], Any]] = {
    "retries": lambda value, name_of: value,
    "backoff": _backoff_to_data,
    "timeout": lambda value, name_of: None if value is None else seconds(value, "timeout"),
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
    data: dict[str, Any] = {"label": task.label, "fn": name_of(task.fn)}
    if task.policy:
        data["policy"] = [_policy_to_data(one, name_of) for one in task.policy]
    # Tasks are not retried by themselves: how often they are is said in any case.
    data["options"] = {**_options_to_data(task.options, task.fn, name_of), "retries": task.options.retries}
    return data


def _task_from_data(data: Mapping[str, Any], find: Find) -> Task:
    fn = cast("Callable[..., Any]", find(data["fn"]))
    options = _options_from_data(data.get("options", {"retries": 0}), fn, find)
    return Task(data["label"], fn, tuple(map(_policy_from_data, data.get("policy", ()))), options)


def _policy_to_data(policy: Policy, name_of: NameOf) -> dict[str, Any]:
    data: dict[str, Any] = {} if policy.when is None else {"when": _condition_to_data(policy.when)}
    data["do"] = policy.way
    if policy.way == "retry":
        data["times"] = policy.times
        if policy.backoff != Backoff():
            data["backoff"] = _backoff_to_data(policy.backoff, name_of)
    if policy.way == "jump":
        data["to"] = policy.label
    return data


def _policy_from_data(data: Mapping[str, Any]) -> Policy:
    when = data.get("when")
    rules = on(when)
    match data["do"]:
        case "retry":
            return rules.retry(data.get("times", 1), backoff=Backoff(**data.get("backoff", {})))
        case "jump":
            return rules.jump(data.get("to", ""))
        case way:
            return Policy(rules.when, way)


def _detail_to_data(value: Any, name_of: NameOf) -> Any:
    """A detail of a step's kind. What is no plain data has a mark that says what it is."""
    if isinstance(value, Template):
        return {"$args": value.to_data()}
    if isinstance(value, Expression):
        return {"$": value.text}
    if isinstance(value, Node):
        return {"$step": node_to_data(value, name_of)}
    if isinstance(value, Arc):
        return {"$arc": _arc_to_data(value)}
    if isinstance(value, Task):
        return {"$task": _task_to_data(value, name_of)}
    if is_sequence(value):
        return [_detail_to_data(one, name_of) for one in value]
    if is_dict(value):
        return {key: _detail_to_data(one, name_of) for key, one in value.items()}
    if isinstance(value, (Workflow, Step)) or callable(value):
        return {"$fn": name_of(cast("object", value))}
    return value


def _detail_from_data(value: Any, find: Find) -> Any:
    if is_list(value):
        return [_detail_from_data(one, find) for one in value]
    if not is_dict(value):
        return value
    if len(value) != 1:
        return {key: _detail_from_data(one, find) for key, one in value.items()}
    match value:
        case {"$args": args}:
            return template_of(args)
        case {"$": str() as text}:
            return parse(text)
        case {"$step": step}:
            return node_from_data(step, find)
        case {"$arc": arc}:
            return _arc_from_data(arc)
        case {"$task": task}:
            return _task_from_data(task, find)
        case {"$fn": str() as name}:
            return find(name)
        case _:
            return {key: _detail_from_data(one, find) for key, one in value.items()}
