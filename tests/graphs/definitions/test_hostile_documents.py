"""Documents from anybody: what is wrong is a DefinitionError that says where, and nothing takes long."""

from __future__ import annotations

import copy
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from tests.graphs.definitions.samples import FUNCTIONS, every_kind
from tests.graphs.definitions.test_playbooks import PLAYBOOK
from workflow_sdk import DefinitionError
from workflow_sdk.graphs import Graph, InvalidGraphError
from workflow_sdk.graphs.definitions.files import read_json
from workflow_sdk.graphs.definitions.yaml_text import read_yaml, write_yaml

PLAIN = {"kind": "workflow_sdk.graph", "format": 1, "name": "a", "steps": [{"name": "x", "kind": "noop"}]}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything in a document."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        found += places(one, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The document with something else at a place."""
    made = copy.deepcopy(value)
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return made


DOCUMENT = every_kind().to_data()
ODD: list[Any] = [
    *(None, True, 0, -1, 1.5, 10**30, 10**400, float("inf"), "", "x", "1 +", object(), b"x"),
    *([], [None], [[]], {}, {"x": 1}, {"$": 1}, {"$fn": []}, {"$args": {"$": "("}}),
    *({"$task": {}}, {"$step": 1}, {"$date": "x"}, {"$literal": 1}),
]


@settings(max_examples=effort(2_000))
@given(st.sampled_from(places(DOCUMENT)), st.sampled_from(ODD))
def test_anything_anywhere_is_read_or_refused(path: tuple[Any, ...], new: Any) -> None:
    document = changed(DOCUMENT, path, new)
    with suppress(DefinitionError):
        graph = Graph.from_data(document, functions=FUNCTIONS)
        if not graph.validate():
            assert Graph.from_data(graph.to_data(), functions=FUNCTIONS).hash == graph.hash


@settings(max_examples=effort(800))
@given(st.sampled_from(places(PLAYBOOK)), st.sampled_from(ODD))
def test_anything_anywhere_in_a_playbook_is_read_or_refused(path: tuple[Any, ...], new: Any) -> None:
    with suppress(DefinitionError):
        Graph.from_playbook(changed(PLAYBOOK, path, new), functions=FUNCTIONS).validate()


@settings(max_examples=effort(300))
@given(st.recursive(st.sampled_from(ODD), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_is_no_document_is_refused(value: Any) -> None:
    for read in (Graph.from_data, Graph.from_playbook):
        with pytest.raises(DefinitionError):
            read(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/A"},
        {"$ref": "#/$defs/A", "$defs": None},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/A"}] * 9}}},
        {"type": ["object"], "properties": {"x": None}},
        {"properties": [1]},
        {"anyOf": 1},
    ],
)
def test_a_schema_that_makes_no_sense_says_nothing_and_is_not_gone_through_for_ever(schema: Any) -> None:
    steps = [{"name": "x", "kind": "noop", "next": [{"step": "x", "when": "workload.x.y == 1"}]}]
    assert Graph.from_data({**PLAIN, "workload": schema, "steps": steps}).validate() == []


def test_what_is_too_deep_is_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(DefinitionError, match="nested 64 deep at most"):
        Graph.from_data({**PLAIN, "context": {"x": deep}})
    holds_itself: dict[str, Any] = {**PLAIN}
    holds_itself["context"] = holds_itself
    with pytest.raises(DefinitionError, match="nested 64 deep at most"):
        Graph.from_data(holds_itself)


def test_what_is_shared_again_and_again_is_counted_each_time() -> None:
    bomb: Any = [0] * 10
    for _ in range(12):
        bomb = [bomb] * 10
    began = time.perf_counter()
    with pytest.raises(DefinitionError, match="at most 5,000,000 values"):
        Graph.from_data({**PLAIN, "context": {"x": bomb}})
    assert time.perf_counter() - began < 60


YAML_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (YAML_BOMB, "line 7: a document has at most 5,000,000 values"),
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' comes twice"),
        ("a: !!python/object/apply:os.system [ls]", "line 1: tags such as"),
        ("a: !thing 1", "line 1: tags such as '!thing'"),
        ("a: *b", "line 1: there is no anchor 'b'"),
        ("&a [*a]", "line 1: there is no anchor 'a'"),
        ("[" * 100_000, "line 1: a document is nested 64 deep at most"),
        ("a: b: c", "line 1: no YAML: mapping values are not allowed"),
        ("--- 1\n--- 2", "line 2: there is a second document"),
        ("? [a]\n: b", "line 1: a key is a text"),
        ("1: b", "line 1: a key is a text, not 1"),
        ("<<: {a: 1}", "line 1: keys are not merged"),
        ("a: " + "9" * 5_000, "no YAML: "),
        ("\x00", "no YAML: "),
    ],
)
def test_yaml_that_does_harm_is_refused(text: str, told: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        read_yaml(text)
    assert str(caught.value).startswith(told)


def test_words_of_yaml_are_texts_as_in_its_core_schema() -> None:
    text = "[on, off, yes, no, y, 12:30, 2026-01-31, 0b1, 1_000, '1', \"true\", =]"
    assert read_yaml(text) == [
        "on", "off", "yes", "no", "y", "12:30", "2026-01-31", "0b1", "1_000", "1", "true", "=",
    ]  # fmt: skip
    assert read_yaml("[true, null, ~, 1, -2, 0x1f, 0o17, 1.5, .5, 1e3, .inf]") == [
        True, None, None, 1, -2, 31, 15, 1.5, 0.5, 1000.0, float("inf"),
    ]  # fmt: skip


def test_a_key_in_quotes_is_a_text_whatever_it_is() -> None:
    assert read_yaml("'<<': {a: 1}") == {"<<": {"a": 1}}
    assert read_yaml(write_yaml({"<<": "<<"})) == {"<<": "<<"}


def test_small_aliases_are_read() -> None:
    assert read_yaml("a: &x [1]\nb: *x") == {"a": [1], "b": [1]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' comes twice"),
        ("[" * 100_000, "nested too deeply"),
        ("[NaN]", "NaN is no number of JSON"),
        ("9" * 5_000, "no JSON: "),
        ("{", "no JSON: "),
        ("", "no JSON: "),
    ],
)
def test_json_that_does_harm_is_refused(text: str, told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        read_json(text)


@pytest.mark.parametrize(("name", "content"), [("a.json", b"\xff"), ("a.yaml", b"a: \xff"), ("gone.json", None)])
def test_a_file_that_cannot_be_read_is_told_with_its_name(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DefinitionError, match=name):
        Graph.load(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"nam": "x"}, ""),
        ({"format": 2}, "format"),
        ({"kind": "other"}, "kind"),
        ({"version": 0}, "version"),
        ({"limits": {"runing": 1}}, "limits"),
        ({"status": "lax"}, "status"),
        ({"steps": [{"name": "x", "kind": "noop"}, {"name": "x", "kind": "noop"}]}, "steps[1].name"),
        ({"steps": [{"name": "x", "kind": "noop", "next": [{"step": "y", "whn": "1"}]}]}, "steps[0] (x).next[0]"),
        (
            {"steps": [{"name": "x", "kind": "noop", "next": [{"step": "y", "when": "1 +"}]}]},
            "steps[0] (x).next[0].when",
        ),
        ({"steps": [{"name": "x", "kind": "noop", "fn": "x"}]}, "steps[0] (x)"),
        ({"steps": [{"name": "x"}]}, "steps[0] (x)"),
        ({"steps": [{"name": "x", "kind": "wait"}]}, "steps[0] (x)"),
        ({"steps": [{"name": "x", "kind": "call", "details": {}}]}, "steps[0] (x).details"),
        ({"steps": [{"name": "x", "kind": "noop", "details": {"message": {"$args": 1}}}]}, "steps[0] (x).details"),
        ({"steps": [{"name": "x", "fn": "gone"}]}, "steps[0] (x)"),
        ({"steps": [{"name": "x", "fn": "fix", "options": {"retries": -1}}]}, "steps[0] (x).options.retries"),
        (
            {"steps": [{"name": "x", "fn": "fix", "options": {"backoff": {"factor": 0}}}]},
            "steps[0] (x).options.backoff.factor",
        ),
        ({"steps": [{"kind": "noop"}]}, "steps[0]"),
        ({"steps": 1}, "steps"),
    ],
)
def test_a_problem_says_where_it_is(change: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidGraphError) as caught:
        Graph.from_data({**PLAIN, **change}, functions=FUNCTIONS)
    assert where in [problem.where for problem in caught.value.problems]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    steps = [
        {"name": "x", "fn": "gone", "next": [{"step": "nowhere"}]},
        {"name": "y", "fn": "lost", "needs": ["x"]},
    ]
    with pytest.raises(InvalidGraphError) as caught:
        Graph.from_data({**PLAIN, "steps": steps}, functions=FUNCTIONS)
    text = str(caught.value)
    assert all(word in text for word in ("'gone'", "'lost'", "'nowhere'"))


def test_thousands_of_problems_are_not_all_told() -> None:
    with pytest.raises(DefinitionError) as caught:
        Graph.from_data({**PLAIN, "steps": [{"name": f"s{at}", "nope": 1} for at in range(10_000)]})
    assert len(str(caught.value)) < 50_000
    assert json.dumps(str(caught.value))
