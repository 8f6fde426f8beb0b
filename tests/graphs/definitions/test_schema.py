"""The JSON schema of documents: it takes what can be read, and refuses what can't, as far as a schema can say it."""

from __future__ import annotations

import json
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given, settings

from tests.chaos import effort
from tests.graphs.definitions.samples import every_kind, graphs
from tests.graphs.definitions.test_hostile_documents import PLAIN
from workflow_sdk.graphs import Graph, InvalidGraphError, graph_schema
from workflow_sdk.graphs.definitions.format import DETAILS
from workflow_sdk.graphs.model import Kind

VALIDATOR = jsonschema.Draft202012Validator(graph_schema())


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(graph_schema())
    assert json.loads(json.dumps(graph_schema())) == graph_schema()
    assert graph_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_kind_has_its_details() -> None:
    assert DETAILS.keys() == set(get_args(Kind))


def test_every_field_says_what_it_is() -> None:
    for record in (graph_schema(), *graph_schema()["$defs"].values()):
        assert all(field.get("description") for field in record["properties"].values())


def test_every_kind_of_step_fits() -> None:
    VALIDATOR.validate(every_kind().to_data())


@settings(max_examples=effort(150))
@given(graphs())
def test_what_is_exported_fits(graph: Graph) -> None:
    VALIDATOR.validate(graph.to_data())


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"format": 2},
        {"name": ""},
        {"version": 0},
        {"nam": "x"},
        {"limits": {"running": -1}},
        {"status": "lax"},
        {"retention": "x"},
        {"context": []},
        {"steps": [{"kind": "noop"}]},
        {"steps": [{"name": "x"}]},
        {"steps": [{"name": "x", "kind": "step"}]},
        {"steps": [{"name": "x", "kind": "nope"}]},
        {"steps": [{"name": "x", "kind": "noop", "fn": "f"}]},
        {"steps": [{"name": "x", "kind": "noop", "next": [{"when": "1"}]}]},
        {"steps": [{"name": "x", "kind": "noop", "next": [{"step": "y", "on": "never"}]}]},
        {"steps": [{"name": "x", "kind": "noop", "needs": ["y"], "join": {"quorum": 0}}]},
        {"steps": [{"name": "x", "kind": "noop", "admit": [{"when": "1"}]}]},
        {"steps": [{"name": "x", "kind": "call"}]},
        {"steps": [{"name": "x", "kind": "call", "details": {}}]},
        {"steps": [{"name": "x", "kind": "assign", "details": {"values": 1}}]},
        {"steps": [{"name": "x", "fn": "f", "options": {"retries": -1}}]},
        {"steps": [{"name": "x", "fn": "f", "options": {"retrys": 1}}]},
        {"steps": [{"name": "x", "kind": "pipeline", "details": {"tasks": [{"$task": {"fn": "f"}}]}}]},
    ],
)
def test_what_does_not_fit_is_not_read_either(change: dict[str, Any]) -> None:
    document = {**PLAIN, **change}
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(InvalidGraphError):
        Graph.from_data(document, functions=None)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"limits": {"running": 0, "nodes": None}},
        {"steps": [{"name": "x", "fn": "f"}]},
        {"steps": [{"name": "x", "kind": "noop", "next": ["x"]}]},
        {"steps": [{"name": "x", "kind": "noop", "admit": "ctx.open"}]},
        {"steps": [{"name": "x", "kind": "noop", "needs": ["y"], "join": {"quorum": 1}}]},
    ],
)
def test_what_people_write_fits_and_is_read(change: dict[str, Any]) -> None:
    document = {**PLAIN, **change}
    VALIDATOR.validate(document)
    Graph.from_data(document, functions=None)


def _details(kind: str, details: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**PLAIN, "steps": [{"name": "x", "kind": kind, "details": details, **more}]}


ASKED = {"a": {"$": "workload.a"}, "b": "text"}
SHORT: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("call", {}, {"transport": "t", "payload": ASKED}, {"transport": "t", "payload": {"$args": ASKED}}),
    ("assign", {}, {"values": ASKED}, {"values": {"$args": ASKED}}),
    ("task", {}, {"roles": ["admin"], "type": "int"}, {"roles": {"$args": ["admin"]}, "type": {"$fn": "int"}}),
    ("wait", {}, {"message": "paid"}, {"message": {"$args": "paid"}}),
    ("wait", {}, {"duration": {"$": "args.n"}}, {"duration": {"$args": {"$": "args.n"}}}),
    ("each", {"fn": "f"}, {"items": "workload.a"}, {"items": {"$args": {"$": "workload.a"}}}),
    ("each", {"fn": "f"}, {"items": [1, "a"]}, {"items": {"$args": [1, "a"]}}),
    ("fan_out", {"fn": "f"}, {"over": "args", "then": "g"}, {"over": {"$args": {"$": "args"}}, "then": {"$fn": "g"}}),
    ("repeat", {"fn": "f"}, {"until": "output > 1"}, {"until": {"$": "output > 1"}}),
    ("tournament", {}, {"entrants": ["f"], "judge": "g"}, {"entrants": [{"$fn": "f"}], "judge": {"$fn": "g"}}),
    ("pipeline", {}, {"tasks": [{"label": "a", "fn": "f"}]}, {"tasks": [{"$task": {"label": "a", "fn": "f"}}]}),
]


@pytest.mark.parametrize(("kind", "more", "short", "full"), SHORT)
def test_marks_may_be_left_out_and_change_nothing(
    kind: str, more: dict[str, Any], short: dict[str, Any], full: dict[str, Any]
) -> None:
    hashes: set[str] = set()
    for details in (short, full):
        document = _details(kind, details, **more)
        VALIDATOR.validate(document)
        hashes.add(Graph.from_data(document, functions=None).hash)
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("kind", "details", "where"),
    [
        ("each", {"items": "workload."}, "items"),
        ("each", {"items": 5}, "items"),
        ("repeat", {"until": "a b"}, "until"),
        ("pipeline", {"tasks": [{"fn": "a"}]}, "tasks"),
        ("assign", {"values": "x"}, "values"),
        ("task", {"payload": {"$": "1 +"}}, "payload"),
        ("task", {"type": 5}, "type"),
    ],
)
def test_what_is_wrong_without_marks_is_told_with_its_place(kind: str, details: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidGraphError, match=where):
        Graph.from_data(_details(kind, details, **({"fn": "f"} if kind in ("each", "repeat") else {})), functions=None)
