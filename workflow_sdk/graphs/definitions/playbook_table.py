"""The table of playbooks: which fields they have, and how they write expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.definitions.shapes import (
    Arguments,
    DictOf,
    Either,
    ExpressionText,
    Field,
    Flag,
    ListOf,
    Number,
    OneOf,
    Plain,
    Record,
    Schema,
    Shape,
    Text,
    optional,
)
from workflow_sdk.graphs.model import Problem
from workflow_sdk.graphs.narrowing import is_dict, is_list

_BRACES: Final = re.compile(r"\s*\{\{(.*)\}\}\s*", re.DOTALL)


def bare(value: Any) -> Any:
    """An expression without the braces around it."""
    found = _BRACES.fullmatch(value) if isinstance(value, str) else None
    return found[1].strip() if found else value


def arguments_of(value: Any) -> Any:
    """Arguments, with texts in braces as expressions."""
    if is_dict(value):
        return {key: arguments_of(one) for key, one in value.items()}
    if is_list(value):
        return [arguments_of(one) for one in value]
    if not isinstance(value, str) or "{{" not in value:
        return value
    found = bare(value)
    if found is value or "{{" in found:
        raise DefinitionError(f"{value!r:.100} is partly an expression; write all of it as one: {{{{ 'a' + args.b }}}}")
    return {"$": found}


@dataclass(frozen=True, slots=True)
class _Braced:
    """An expression, with or without braces around it; or true or false."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        return iter(()) if isinstance(value, bool) else ExpressionText().check(bare(value), where)

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"type": ["string", "boolean"]}


@dataclass(frozen=True, slots=True)
class _Values:
    """Plain data, in which texts with braces around them are expressions."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        try:
            made = arguments_of(value)
        except DefinitionError as error:
            yield Problem(where, str(error))
            return
        yield from Arguments().check(made, where)

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {}


@dataclass(frozen=True, slots=True)
class _Refused:
    """A field that there was in older versions."""

    instead: str

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """That it is there."""
        yield Problem(where, self.instead)

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"not": {}}


def _record(name: str, required: Mapping[str, Shape], others: Mapping[str, Shape]) -> Record:
    """A record whose fields need no words."""
    fields = {key: Field(shape, f"a {key}", is_required=True) for key, shape in required.items()}
    return Record(name, fields | {key: Field(shape, key) for key, shape in others.items()})


def _rules(name: str, then: Record) -> ListOf:
    """Rules in order: `when` and `then`, or `else`."""
    other = _record(f"the `else` of {name}", {"then": then}, {})
    whole: dict[str, Shape] = {
        "when": _Braced(),
        "then": then,
        "else": optional(other, dict, expected="a dict with `then`"),
    }
    return ListOf(_Rule(_record(name, {}, whole)))


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule with `when` and `then`, or with `else`."""

    record: Record

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        yield from self.record.check(value, where)
        if is_dict(value):
            found = value
            if ("else" in found) == ("when" in found):
                yield Problem(where, "a rule has either `when` or `else`")
            elif ("then" in found) == isinstance(found.get("else"), dict):
                yield Problem(where, "a rule has one `then`, which says what follows")

    def schema(self) -> Schema:
        """As a JSON schema."""
        return self.record.schema()


_ALLOW: Final = _record("a `then`", {"allow": Flag()}, {})
_DO: Final = _record(
    "a `then`",
    {"do": OneOf(("retry", "jump", "break", "fail", "continue"))},
    {"attempts": Number(1, is_whole=True), "to": Text(), "set_ctx": DictOf(_Values())},
)
_TASK: Final = _record(
    "a task",
    {"kind": Text()},
    {
        "name": Text(),
        "fn": Text(),
        "spec": _record(
            "the `spec` of a task",
            {},
            {"policy": _record("the `policy` of a task", {}, {"rules": _rules("a rule", _DO)})},
        ),
    },
)


def named_task(task: Any) -> Any:
    """A task that is written below its name, `{fetch: {kind: http}}`, as others are."""
    if is_dict(task) and len(task) == 1 and "kind" not in task:
        ((name, inner),) = task.items()
        return {"name": name, **inner} if is_dict(inner) else task
    return task


def fields_of(task: Mapping[str, Any]) -> dict[str, Any]:
    """What a task says beside what every task has: what a call is made with."""
    return {key: value for key, value in task.items() if key not in _TASK.fields}


@dataclass(frozen=True, slots=True)
class _Task:
    """A task, which may have fields of its own."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        found = named_task(value)
        if not is_dict(found):
            yield from _TASK.check(value, where)
            return
        yield from _TASK.check({key: one for key, one in found.items() if key in _TASK.fields}, where)
        yield from _Values().check(fields_of(found), where)

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"type": "object"}


_ARC: Final = _record("an arc", {"step": Text()}, {"when": _Braced(), "args": _Values()})
_NEXT: Final = _record(
    "`next`",
    {},
    {
        "spec": _record("the `spec` of `next`", {}, {"mode": OneOf(("exclusive", "inclusive"))}),
        "arcs": ListOf(_ARC),
    },
)
_ADMIT: Final = _record("`admit`", {}, {"rules": _rules("a rule", _ALLOW)})
_LOOP: Final = _record(
    "`loop`",
    {"in": _Values()},
    {
        "iterator": Text(),
        "spec": _record(
            "the `spec` of `loop`",
            {},
            {"mode": OneOf(("sequential", "parallel")), "max_in_flight": Number(1, is_whole=True)},
        ),
    },
)
_STEP: Final = _record(
    "a step",
    {"step": Text()},
    {
        "desc": Plain(),
        "spec": _record(
            "the `spec` of a step", {}, {"policy": _record("the `policy` of a step", {}, {"admit": _ADMIT})}
        ),
        "tool": Either({list: ListOf(_Task()), dict: _Task()}, "a list of tasks, or one"),
        "loop": _LOOP,
        "next": _NEXT,
        "when": _Refused("a step has no `when`; write `spec.policy.admit.rules`"),
    },
)
_EXECUTOR: Final = _record(
    "`executor`",
    {},
    {
        "kind": Text(),
        "spec": _record(
            "the `spec` of `executor`",
            {},
            {"entry_step": Text(), "final_step": Text(), "no_next_is_error": Flag()},
        ),
    },
)


@dataclass(frozen=True, slots=True)
class _Metadata:
    """`metadata`: a name, maybe a version, and what else an author wants to say."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        if not is_dict(value):
            yield Problem(where, "expected a dict with `name`")
            return
        found = value
        yield from Text().check(found.get("name"), f"{where}.name")
        yield from Number(1, is_whole=True).check(found.get("version", 1), f"{where}.version")

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"type": "object", "required": ["name"]}


PLAYBOOK: Final = _record(
    "a playbook",
    {"metadata": _Metadata(), "workflow": ListOf(_STEP)},
    {
        "apiVersion": Text(),
        "kind": Text(),
        "keychain": Plain(),
        "executor": _EXECUTOR,
        "workload": optional(DictOf(Plain()), dict, expected="a dict"),
        "workbook": Plain(),
    },
)
