"""Playbooks, whose steps lead to each other by `next.arcs`, as canonical definitions.

An expression may be written as `{{ expression }}`. The arcs of a playbook are followed after a failure as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.definitions.files import read_file
from workflow_sdk.graphs.definitions.format import DOCUMENT, FORMAT
from workflow_sdk.graphs.definitions.importing import Functions, Parts, parts_of
from workflow_sdk.graphs.definitions.plain import Reader, written
from workflow_sdk.graphs.definitions.playbook_table import PLAYBOOK, arguments_of, bare, fields_of, named_task
from workflow_sdk.graphs.definitions.problems import TOLD_MAX, InvalidGraphError
from workflow_sdk.graphs.model import Problem
from workflow_sdk.graphs.narrowing import is_dict, is_list


def parts_in_file(path: Path, functions: Functions, transports: Mapping[str, Any] | None = None) -> Parts:
    """What a file says that has a canonical definition or a playbook in it."""
    data = read_file(path)
    is_playbook = is_dict(data) and "workflow" in data
    read = parts_of_playbook if is_playbook else parts_of
    return read(data, functions, transports, str(path))


def parts_of_playbook(
    data: Any, functions: Functions, transports: Mapping[str, Any] | None = None, where: str | None = None
) -> Parts:
    """What a playbook says. DefinitionError with everything that is wrong with it, and where."""
    try:
        read = Reader().read(data)
    except DefinitionError as error:
        raise InvalidGraphError(where or "this is no playbook", [Problem("", str(error))]) from None
    problems = list(islice(PLAYBOOK.check(read, ""), TOLD_MAX + 1))
    problems = problems or [*_unknown_steps(read), *_unsupported(read)]
    if problems:
        raise InvalidGraphError(where or "this playbook is not valid", problems)
    document = _document(read)
    try:
        made = parts_of(document, functions, transports)
    except InvalidGraphError as error:
        told = [Problem(one.where.replace("steps[", "workflow[", 1), one.text) for one in error.problems]
        raise InvalidGraphError(where or f"playbook {document['name']!r} is not valid", told) from None
    return made


def _unknown_steps(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Names that stand for no step."""
    steps: list[dict[str, Any]] = data["workflow"]
    if not steps:
        yield Problem("workflow", "it has no steps")
    names = {step["step"] for step in steps}
    for key in ("entry_step", "final_step"):
        name = _at(data, "executor", "spec").get(key)
        if name is not None and name not in names:
            yield Problem(f"executor.spec.{key}", f"there is no step {name!r:.100}")
    for at, step in enumerate(steps):
        for number, arc in enumerate(_at(step, "next").get("arcs", ())):
            if arc["step"] not in names:
                where = f"workflow[{at}] ({step['step']:.100}).next.arcs[{number}].step"
                yield Problem(where, f"there is no step {arc['step']!r:.100}")


def _at(data: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """What is behind keys, each of which may be left out."""
    for key in keys:
        data = data.get(key) or {}
    return data


# Turned into a canonical definition.


def _condition(value: Any) -> str:
    return str(value) if isinstance(value, bool) else str(bare(value))


def _document(data: Mapping[str, Any]) -> dict[str, Any]:
    metadata, executor = data["metadata"], _at(data, "executor", "spec")
    made: dict[str, Any] = {"kind": DOCUMENT, "format": FORMAT, "name": metadata["name"]}
    made["version"] = metadata.get("version", 1)
    # Without this, a playbook without any arcs would begin at all of its steps.
    first = [step["step"] for step in data["workflow"] if step["step"] != executor.get("final_step")]
    if entry := executor.get("entry_step", first[0] if first else None):
        made["entry"] = entry
    if "final_step" in executor:
        made["final"] = executor["final_step"]
    if executor.get("no_next_is_error"):
        made["no_match"] = "error"
    if data.get("workload"):
        made["default"] = data["workload"]
    made["about"] = _about(data)
    made["steps"] = [_step(step) for step in data["workflow"]]
    document: dict[str, Any] = written(made)
    return document


def _about(data: Mapping[str, Any]) -> dict[str, Any]:
    """What changes nothing in how it is run: it is kept for people, and for what else reads definitions."""
    metadata = {key: value for key, value in data["metadata"].items() if key not in ("name", "version")}
    kept = {"metadata": metadata, **{key: data.get(key) for key in ("keychain", "workbook")}}
    return {key: value for key, value in kept.items() if value}


def _step(data: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": data["step"], **_work(data)}
    next_ = _at(data, "next")
    if _at(next_, "spec").get("mode") == "inclusive":
        made["mode"] = "inclusive"
    if arcs := next_.get("arcs"):
        made["next"] = [_arc(arc) for arc in arcs]
    if rules := _at(data, "spec", "policy", "admit").get("rules"):
        made["admit"] = [_rule(rule) for rule in rules]
    return made


def _arc(data: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"step": data["step"], "on": "any"}
    if "when" in data:
        made["when"] = _condition(data["when"])
    if "args" in data:
        made["args"] = arguments_of(data["args"])
    return made


def _then(rule: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The condition of a rule, and what follows."""
    if "when" in rule:
        return {"when": _condition(rule["when"])}, rule["then"]
    return {}, (rule["else"] or rule)["then"]


def _rule(data: Mapping[str, Any]) -> dict[str, Any]:
    when, then = _then(data)
    return {**when, "allow": then["allow"]}


def _work(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a step does: the kind, and what is special to it."""
    tasks = _tasks_of(data)
    if _is_assignment(tasks):
        return {"kind": "assign", "details": {"values": {"$args": _assigned(tasks[0])}}}
    if all(map(_is_idle, tasks)):
        return {"kind": "noop"}
    # What nothing can jump to is left out.
    left = [task for task in tasks if "name" in task or not _is_idle(task)]
    if len(left) == 1 and _may_call(left[0]):
        return _call(left[0]) or {"fn": _function(left[0]), **_each(data)}
    made = [{"$task": _task(task.get("name", f"task {at}"), task)} for at, task in enumerate(left)]
    return {"kind": "pipeline", "details": {"tasks": made}}


def _is_idle(task: Mapping[str, Any]) -> bool:
    return task["kind"] == "noop" and not _rules_of(task)


def _call(task: Mapping[str, Any]) -> dict[str, Any] | None:
    """The call that a task with fields of its own is; None if it has none."""
    fields = fields_of(task)
    payload = {"$args": arguments_of(fields)}
    return {"kind": "call", "details": {"transport": task["kind"], "payload": payload}} if fields else None


def _tasks_of(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tasks of a step, which has several, one or none."""
    tool = data.get("tool", [])
    return [named_task(task) for task in (tool if is_list(tool) else [tool])]


def _each(data: Mapping[str, Any]) -> dict[str, Any]:
    if "loop" not in data:
        return {}
    spec = _at(data, "loop", "spec")
    details: dict[str, Any] = {"items": {"$args": arguments_of(data["loop"]["in"])}}
    if spec.get("mode") == "sequential":
        details["parallel"] = 1
    elif "max_in_flight" in spec:
        details["parallel"] = spec["max_in_flight"]
    return {"kind": "each", "details": details}


def _function(task: Mapping[str, Any]) -> str:
    """The name of the function of a task."""
    return str(task.get("fn") or task.get("name") or task["kind"])


def _rules_of(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rules: list[Mapping[str, Any]] = _at(task, "spec", "policy").get("rules", [])
    return rules


def _is_assignment(tasks: list[Mapping[str, Any]]) -> bool:
    return len(tasks) == 1 and _assigned(tasks[0]) is not None


def _assigned(task: Mapping[str, Any]) -> Any:
    """What a task that runs nothing puts into the context; None if it does anything else."""
    rules = _rules_of(task)
    if task["kind"] != "noop" or len(rules) != 1 or "when" in rules[0]:
        return None
    then = _then(rules[0])[1]
    values = then.get("set_ctx")
    return arguments_of(values) if values and then["do"] in ("continue", "break") else None


def _task(label: str, task: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"label": label, "policy": [_policy(rule) for rule in _rules_of(task)]}
    return made if task["kind"] == "noop" else {**made, "fn": _function(task)}


def _policy(rule: Mapping[str, Any]) -> dict[str, Any]:
    when, then = _then(rule)
    made: dict[str, Any] = {**when, "do": then["do"]}
    if then["do"] == "retry":
        made["times"] = then.get("attempts", 1)
    if then["do"] == "jump":
        made["to"] = then.get("to", "")
    if "set_ctx" in then:
        made["patch"] = arguments_of(then["set_ctx"])
    return made


def _unsupported(data: Mapping[str, Any]) -> Iterator[Problem]:
    """What a playbook may say, and graphs do another way."""
    for at, step in enumerate(data["workflow"]):
        for text in _unsupported_in(step, _tasks_of(step)):
            yield Problem(f"workflow[{at}] ({step['step']:.100})", text)


def _unsupported_in(step: Mapping[str, Any], tasks: list[Mapping[str, Any]]) -> Iterator[str]:
    is_one_call, is_loop = len(tasks) == 1 and _may_call(tasks[0]), "loop" in step
    if is_loop and not is_one_call:
        yield "a `loop` is over one task, which calls a function and has no rules; write others as steps"
    fields = sorted(set(chain.from_iterable(map(fields_of, tasks))))
    if fields and (is_loop or not is_one_call):
        yield f"{', '.join(fields)}: for a call, which is the one task of its step, without rules and loop"


def _may_call(task: Mapping[str, Any]) -> bool:
    return task["kind"] != "noop" and not _rules_of(task)
