"""A graph that is exported and read again is the same graph, whatever the format, and has the same hash."""

from __future__ import annotations

import json
import random
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cbor2 import dumps
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from tests.graphs.definitions.samples import FUNCTIONS, Ticket, every_kind, fix, graphs, judge
from workflow_sdk import DefinitionError, step
from workflow_sdk.graphs import E, Graph, InvalidGraphError, arc, fn, function, on, task
from workflow_sdk.graphs.definitions.files import read_json
from workflow_sdk.graphs.definitions.yaml_text import read_yaml

EXAMPLES = effort(400)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same data with keys in another order."""
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: shuffled(value[key], chance) for key in keys}
    return [shuffled(one, chance) for one in value] if isinstance(value, list) else value


def built_by(text: str) -> Graph:
    """The graph that a module builds."""
    names: dict[str, Any] = {}
    exec(text, names)
    graph: Graph = names["graph"]
    return graph


@settings(max_examples=EXAMPLES)
@given(graphs(), st.randoms(use_true_random=False))
def test_random_graphs_keep_their_hash_in_every_format(graph: Graph, chance: random.Random) -> None:
    data, digest = graph.to_data(), graph.hash
    texts = [json.dumps(data), json.dumps(shuffled(data, chance), indent=3, ensure_ascii=False)]
    for read in (data, *map(read_json, texts), read_yaml(graph.to_yaml())):
        again = Graph.from_data(read, functions=FUNCTIONS)
        assert again.to_data() == data
        assert again.hash == digest


@settings(max_examples=effort(150))
@given(graphs())
def test_random_graphs_are_built_again_by_their_python_module(graph: Graph) -> None:
    assert built_by(graph.to_python()).hash == graph.hash


def test_every_kind_of_step_is_kept() -> None:
    graph = every_kind()
    again = Graph.from_data(json.loads(json.dumps(graph.to_data())), functions=FUNCTIONS)
    assert again.to_data() == graph.to_data()
    assert again.workload is Ticket
    assert again.nodes["step"].options.rollback is graph.nodes["step"].options.rollback
    assert again.nodes["pipe"].details["tasks"] == graph.nodes["pipe"].details["tasks"]


def test_rules_that_patch_and_tasks_without_a_function_are_kept() -> None:
    graph = Graph("kept")
    rules = [on("output == 1", patch={"fn": "no name", "n": E.output + 1}).jump("b"), on(patch={"n": 0}).continue_()]
    graph.step("a", tasks=[task("a", None, policy=rules), task("b", fix)])
    again = Graph.from_data(json.loads(json.dumps(graph.to_data())), functions=FUNCTIONS)
    assert again.to_data() == graph.to_data()
    assert again.uses.functions == {"fix"}
    assert built_by(graph.to_python()).hash == graph.hash


def test_a_python_module_builds_every_kind_of_step() -> None:
    text = every_kind().to_python()
    assert "from tests.graphs.definitions.samples import" in text
    assert built_by(text).hash == every_kind().hash


def test_functions_that_no_module_has_are_left_to_be_written() -> None:
    async def inner(ctx: Any, args: Any) -> None: ...

    graph = Graph("inner")
    graph.step("a", inner)
    text = graph.to_python()
    assert "async def inner(ctx, args):" in text
    assert built_by(text).hash == graph.hash


def test_formatting_and_the_order_of_keys_do_not_change_the_hash() -> None:
    one = read_yaml("kind: workflow_sdk.graph\nformat: 1\nname: a\nsteps:\n- name: x\n  kind: noop\n")
    other = read_json(
        '{"steps": [{"kind": "noop", "name": "x"}], "name": "a",\n "format": 1, "kind": "workflow_sdk.graph"}'
    )
    assert Graph.from_data(one).hash == Graph.from_data(other).hash


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(version=2),
        lambda data: data.update(name="b"),
        lambda data: data.update(status="lenient"),
        lambda data: data["steps"][0]["next"][0].update(when="output.x == 2"),
        lambda data: data["steps"][0].update(options={"retries": 1}),
    ],
)
def test_what_changes_the_graph_changes_the_hash(change: Any) -> None:
    graph = Graph("a")
    graph.step("x", fix, next=[arc("y", when=E.output.x == 1)])
    graph.step("y", judge)
    data = graph.to_data()
    change(data)
    assert Graph.from_data(data, functions=FUNCTIONS).hash != graph.hash


def test_defaults_are_left_out() -> None:
    graph = Graph("plain")
    graph.step("x", fix)
    assert graph.to_data() == {
        "kind": "workflow_sdk.graph",
        "format": 1,
        "name": "plain",
        "version": 1,
        "steps": [{"name": "x", "kind": "step", "fn": "fix"}],
    }


def test_options_of_a_function_hold_unless_the_step_says_otherwise() -> None:
    stubborn = step(retries=9)(fix)
    graph = Graph("options")
    graph.step("own", stubborn)
    graph.step("plain", stubborn, retries=3)
    again = Graph.from_data(graph.to_data(), functions={"fix": stubborn})
    assert [node.options.retries for node in again.nodes.values()] == [9, 3]
    assert again.hash == graph.hash


def test_two_functions_of_one_name_are_told_apart_by_names_that_are_given() -> None:
    def made(number: int) -> Any:
        async def body(ctx: Any, args: Any) -> int:
            return number

        return body

    one, two = made(1), made(2)
    unnamed = Graph("twins")
    unnamed.step("a", one)
    unnamed.step("b", two)
    with pytest.raises(DefinitionError, match="two functions are called 'body'"):
        unnamed.to_data()
    named = Graph("twins", functions={"one": one, "two": two})
    named.step("a", one)
    named.step("b", two)
    assert [node["fn"] for node in named.to_data()["steps"]] == ["one", "two"]
    again = Graph.from_data(named.to_data(), functions={"two": two, "one": one})
    assert again.nodes["b"].fn is two
    assert built_by(named.to_python()).hash == named.hash


def test_lambdas_run_and_are_not_exported() -> None:
    graph = Graph("lambdas")
    graph.step("a", fix, next=[arc("b", when=lambda seen: seen.output.x > 1)])
    graph.step("b", lambda args: None)
    assert graph.validate() == []
    for export in (graph.to_data, lambda: graph.hash, graph.to_python, graph.to_yaml):
        with pytest.raises(InvalidGraphError) as caught:
            export()
        assert [problem.where for problem in caught.value.problems] == ["a", "b"]


def test_what_is_not_sound_is_not_exported_and_everything_is_told() -> None:
    graph = Graph("bad", context={"x": object()})
    graph.step("a", fix, next=["nowhere"])
    graph.step("b", fix, needs=["gone"])
    with pytest.raises(InvalidGraphError) as caught:
        graph.to_data()
    assert [problem.where for problem in caught.value.problems] == ["a", "b", "context"]


def test_functions_of_expressions_are_found_by_name() -> None:
    @function
    def is_vip(name: str) -> bool:
        return name == "vip"

    graph = Graph("vips", functions=[is_vip])
    graph.step("a", fix, next=[arc("b", when=fn.is_vip(E.output.name))])
    graph.step("b", fix)
    assert Graph.from_data(graph.to_data(), functions=[is_vip, fix]).validate() == []
    with pytest.raises(DefinitionError, match=r"is_vip\(\), which is no function of the graph"):
        Graph.from_data(graph.to_data(), functions=[fix]).freeze()
    assert built_by(graph.to_python()).hash == graph.hash


def test_a_graph_read_without_functions_can_be_looked_at() -> None:
    graph = Graph.from_data(every_kind().to_data(), functions=None)
    assert graph.validate() == []
    assert graph.hash == every_kind().hash
    assert built_by(graph.to_python()).hash == graph.hash


def test_transports_are_checked_where_they_are_given() -> None:
    data = every_kind().to_data()
    data["steps"][6]["details"]["transport"] = "pigeon"
    assert Graph.from_data(data, functions=FUNCTIONS, transports={"pigeon": fix}).hash
    with pytest.raises(DefinitionError, match=r"steps\[6\] \(call\): there is no transport 'pigeon'"):
        Graph.from_data(data, functions=FUNCTIONS, transports={})


def test_files_are_read_by_their_ending(tmp_path: Path) -> None:
    graph = every_kind()
    (tmp_path / "a.json").write_text(json.dumps(graph.to_data()))
    (tmp_path / "a.yaml").write_text(graph.to_yaml())
    for name in ("a.json", "a.yaml"):
        assert Graph.load(tmp_path / name, functions=FUNCTIONS).hash == graph.hash


def test_the_hash_is_that_of_the_canonical_bytes_of_the_definition() -> None:
    graph = every_kind()
    assert graph.hash == sha256(dumps(graph.to_data(), canonical=True)).hexdigest()
