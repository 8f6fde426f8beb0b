"""The table of the document: which fields a graph, a step, an arc and a rule have. Everything else is made from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

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
from workflow_sdk.graphs.definitions.shorthand import Marked
from workflow_sdk.graphs.model import Kind, Problem
from workflow_sdk.graphs.narrowing import is_dict
from workflow_sdk.graphs.tasks import WAYS

DOCUMENT: Final = "workflow_sdk.graph"
"""What a document says that it is."""
FORMAT: Final = 1
"""The version of the format."""
SCHEMA_ID: Final = "urn:workflow_sdk:graph:1"

_COUNT: Final = Number(is_whole=True, is_optional=True)
_NAMES: Final = ListOf(Text())
_SECONDS: Final = Number(is_optional=True)

ARC: Final = Record(
    "an arc",
    {
        "step": Field(Text(), "the step that it leads to", is_required=True),
        "when": Field(ExpressionText(), "the condition; without one it is always taken"),
        "args": Field(Arguments(), "what the next step is given; {} if it is left out"),
        "on": Field(OneOf(("done", "failed", "any")), "how the step before has ended; done"),
    },
    is_named=True,
)
RULE: Final = Record(
    "a rule",
    {
        "when": Field(ExpressionText(), "the condition; without one it always holds"),
        "allow": Field(Flag(), "whether the step may start", is_required=True),
    },
    is_named=True,
)
_QUORUM: Final = Record(
    "a quorum", {"quorum": Field(Number(1, is_whole=True), "how many needs have to be done", is_required=True)}
)
_BACKOFF: Final = Record(
    "a backoff",
    {
        "initial": Field(Number(), "seconds before the first retry"),
        "factor": Field(Number(1), "how many times longer each further wait is"),
        "maximum": Field(Number(), "seconds that no wait is longer than"),
        "jitter": Field(Number(), "the part of a wait that is left to chance"),
    },
)
OPTIONS: Final = Record(
    "an options",
    {
        "retries": Field(Number(is_whole=True), "attempts after the first"),
        "backoff": Field(_BACKOFF, "how long to wait before a retry"),
        "timeout": Field(Number(is_above=True, is_optional=True), "seconds that one attempt may take"),
        "retry_on_timeout": Field(Flag(), "whether a timeout is retried"),
        "no_retry": Field(_NAMES, "names of exceptions that are not retried"),
        "repeatable": Field(Flag(), "whether it may safely run again"),
        "rollback": Field(
            optional(Text(), str, expected="the name of a function"), "the name of the function that undoes it"
        ),
    },
    is_named=True,
)


_POLICY: Final = Record(
    "a policy",
    {
        "when": Field(ExpressionText(), "the condition; without one it always holds"),
        "do": Field(OneOf(WAYS), "what follows", is_required=True),
        "times": Field(Number(1, is_whole=True), "of retry: how often, at most; 1"),
        "backoff": Field(_BACKOFF, "of retry: how long to wait before"),
        "to": Field(Text(), "of jump: the label of the next task"),
        "patch": Field(Arguments(), "what is put into the context, if the rule is followed"),
    },
)
TASK: Final = Record(
    "a task",
    {
        "label": Field(Text(), "its name among the tasks of the step", is_required=True),
        "fn": Field(Text(), "the name of the function that it calls; without one it runs nothing"),
        "policy": Field(ListOf(_POLICY), "rules of which the first that holds says how the step goes on"),
        "options": Field(OPTIONS, "how it is run; it is not retried, if nothing is said"),
    },
    is_named=True,
)
_EXPRESSION: Final = Record("a condition", {"$": Field(ExpressionText(), "its text", is_required=True)})
_ARGUMENTS: Final = Record("arguments", {"$args": Field(Arguments(), "what they are", is_required=True)})
_ARGS: Final = Marked("$args", _ARGUMENTS, Arguments())
_LIST: Final = Marked(
    "$args",
    _ARGUMENTS,
    Either({str: ExpressionText(), list: ListOf(Arguments()), dict: _EXPRESSION}, "a list"),
    is_list=True,
)
_VALUES: Final = Marked("$args", _ARGUMENTS, DictOf(Arguments()))
_NAMED: Final = Record("a function", {"$fn": Field(Text(), "its name", is_required=True)})
_FUNCTION: Final = Marked("$fn", _NAMED, Text())
_CONDITION: Final = Marked("$", _EXPRESSION, ExpressionText())
_TASKS: Final = ListOf(Marked("$task", Record("a task", {"$task": Field(TASK, "what it is", is_required=True)}), TASK))
_WORKFLOW: Final = Either({str: Text(), dict: _NAMED}, "the name of a workflow")
_TIMEOUT: Final = Number(is_above=True)
_AT_ONCE: Final = Number(1, is_whole=True)


def _details(kind: str, required: Mapping[str, tuple[Shape, str]], others: Mapping[str, tuple[Shape, str]]) -> Record:
    fields = {key: Field(shape, about, is_required=True) for key, (shape, about) in required.items()}
    fields |= {key: Field(shape, about) for key, (shape, about) in others.items()}
    return Record(f"the details of a {kind}", fields)


_Fields = dict[str, tuple[Shape, str]]
_SPECIAL: Final[tuple[tuple[str, _Fields, _Fields], ...]] = (
    ("step", {}, {}),
    ("noop", {}, {}),
    ("choose", {}, {}),
    ("assign", {"values": (_VALUES, "what is put into the context")}, {}),
    ("pipeline", {"tasks": (_TASKS, "what is run in order")}, {}),
    ("sequence", {"tasks": (_TASKS, "what is run in order")}, {}),
    (
        "task",
        {},
        {
            "payload": (_ARGS, "what the person is shown"),
            "assignee": (_ARGS, "who is to do it"),
            "roles": (_ARGS, "who may do it"),
            "type": (_FUNCTION, "the type of the result"),
            "timeout": (_TIMEOUT, "seconds that it may take"),
        },
    ),
    (
        "wait",
        {},
        {
            "message": (_ARGS, "the message that it waits for"),
            "duration": (_ARGS, "how many seconds it waits"),
            "until": (_ARGS, "the time that it waits for"),
            "type": (_FUNCTION, "the type of the message's payload"),
            "timeout": (_TIMEOUT, "seconds after which no message has come"),
        },
    ),
    (
        "call",
        {"transport": (Text(), "the name of what makes the call")},
        {"payload": (_ARGS, "what it is given"), "result": (Text(), "the key of the context for what it gives")},
    ),
    ("child", {"workflow": (_WORKFLOW, "what is started")}, {"input": (_ARGS, "what it is given")}),
    ("continue", {"workflow": (_WORKFLOW, "what is started")}, {"input": (_ARGS, "what it is given")}),
    (
        "repeat",
        {},
        {"until": (_CONDITION, "when it ends"), "maximum": (_AT_ONCE, "how often it is called at most")},
    ),
    ("each", {"items": (_LIST, "the list")}, {"parallel": (_AT_ONCE, "how many are under way at once")}),
    ("fan_out", {"over": (_LIST, "the list")}, {"then": (_FUNCTION, "what is given all outputs")}),
    ("best_of", {"n": (_AT_ONCE, "how many"), "judge": (_FUNCTION, "what chooses")}, {}),
    (
        "tournament",
        {"judge": (_FUNCTION, "what compares two")},
        {"entrants": (ListOf(_FUNCTION), "those that stand for what they give"), "over": (_LIST, "the list")},
    ),
    ("generate_and_filter", {"keep": (_FUNCTION, "what is asked of each")}, {}),
)
DETAILS: Final[Mapping[str, Record]] = {kind: _details(kind, required, others) for kind, required, others in _SPECIAL}
"""What is special to each kind."""
CALLING: Final = frozenset({"step", "each", "repeat", "fan_out", "best_of", "generate_and_filter"})
"""Kinds whose steps have `fn`; the others have none."""

STEP: Final = Record(
    "a step",
    {
        "name": Field(Text(), "its name", is_required=True),
        "kind": Field(OneOf(get_args(Kind)), "what it does; step: it calls a function"),
        "fn": Field(Text(), "the name of the function that it calls"),
        "next": Field(
            ListOf(Either({str: Text(), dict: ARC}, "the name of a step, or an arc")), "where its tokens go, in order"
        ),
        "mode": Field(OneOf(("exclusive", "inclusive")), "whether one arc is taken, or every one that matches"),
        "needs": Field(_NAMES, "steps that have to be done before it"),
        "join": Field(
            Either({str: OneOf(("all", "alive")), dict: _QUORUM}, 'all, alive or {"quorum": n}'),
            "how many of its needs it waits for; all",
        ),
        "admit": Field(
            Either({str: ExpressionText(), list: ListOf(RULE)}, "an expression, or a list of rules"),
            "whether it may start",
        ),
        "on_deny": Field(OneOf(("wait", "discard")), "what becomes of a token that is denied; wait"),
        "trust": Field(OneOf(("trusted", "quarantined")), "whether it may write"),
        "access": Field(OneOf(("read", "write")), "whether it writes"),
        "args": Field(Arguments(), "its arguments, if it is submitted and needs nothing"),
        "options": Field(OPTIONS, "how it is run"),
        "details": Field(DictOf(Plain()), "what is special to its kind"),
    },
    is_named=True,
)


class StepShape:
    """A step: a record, with details of its own for each kind."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        yield from STEP.check(value, where)
        kind = value.get("kind", "step") if is_dict(value) else None
        if not isinstance(kind, str) or kind not in DETAILS:
            return
        yield from DETAILS[kind].check(value.get("details", {}), f"{where}.details")
        if ("fn" in value) != (kind in CALLING):
            must = "has to have `fn`, the name of the function that it calls" if kind in CALLING else "has no `fn`"
            yield Problem(where, f"a step of the kind {kind!r} {must}")

    def schema(self) -> Schema:
        """As a JSON schema."""
        return STEP.schema()

    def whole_schema(self) -> Schema:
        """As a JSON schema, with what holds for each kind."""
        return {**STEP.whole_schema(), "allOf": [self._of_kind(kind) for kind in DETAILS]}

    def _of_kind(self, kind: str) -> Schema:
        details = DETAILS[kind].whole_schema()
        then: Schema = {"properties": {"details": details}}
        required = (["details"] if "required" in details else []) + (["fn"] if kind in CALLING else [])
        if required:
            then["required"] = required
        if kind not in CALLING:
            then["properties"]["fn"] = False
        is_kind: Schema = {"properties": {"kind": {"const": kind}}}
        if kind != "step":
            is_kind["required"] = ["kind"]
        return {"if": is_kind, "then": then}


LIMITS: Final = Record(
    "a limits",
    {
        "running": Field(_COUNT, "firings that are under way at once"),
        "nodes": Field(_COUNT, "steps that are declared and submitted"),
        "starts": Field(_COUNT, "firings in all"),
        "depth": Field(_COUNT, "generations of submitting"),
    },
)


def _word(default: str, *others: str) -> Shape:
    return OneOf((default, *others))


GRAPH: Final = Record(
    "a graph",
    {
        "kind": Field(OneOf((DOCUMENT,)), "what this document is", is_required=True),
        "format": Field(Number(1, is_whole=True), "the version of the format", is_required=True),
        "name": Field(Text(), "its name", is_required=True),
        "version": Field(Number(1, is_whole=True), "its version; 1"),
        "entry": Field(Text(), "the step that has the first token"),
        "final": Field(Text(), "the step that runs when all else is over"),
        "limits": Field(LIMITS, "how much a run may do"),
        "status": Field(_word("strict", "lenient", "fail_fast"), "what failures make of the result; strict"),
        "no_match": Field(_word("end", "error"), "what becomes of a branch of which no arc matches; end"),
        "when_blocked": Field(_word("wait", "complete"), "what follows if only denied tokens are left; wait"),
        "final_failure": Field(_word("fail", "partial"), "what follows if the final step fails; fail"),
        "retention": Field(_SECONDS, "seconds that instances are kept after their end"),
        "about": Field(DictOf(Plain()), "what is to be known of it; a run does not read it"),
        "context": Field(DictOf(Plain()), "what the context of a run begins with"),
        "workload": Field(DictOf(Plain()), "the JSON schema of what a run is given"),
        "default": Field(Plain(), "what a run is given, if nothing else is"),
        "steps": Field(ListOf(StepShape()), "its steps, in order", is_required=True),
    },
)


def json_schema() -> Schema:
    """The JSON schema (2020-12) of documents."""
    named = {record.key: record.whole_schema() for record in (ARC, RULE, OPTIONS, TASK)}
    whole = GRAPH.whole_schema()
    whole["properties"]["format"] = {"description": GRAPH.fields["format"].about, "const": FORMAT}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "A graph of workflow_sdk",
        **whole,
        "$defs": {STEP.key: StepShape().whole_schema(), **named},
    }
