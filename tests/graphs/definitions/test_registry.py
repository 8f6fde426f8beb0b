"""A registry: definitions are made canonical, checked, frozen and kept by name and version before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.graphs.definitions.samples import FUNCTIONS, every_kind
from workflow_sdk import Client, Context, DefinitionError, Runtime, open_driver, run_workflow
from workflow_sdk.graphs import E, Graph, InvalidGraphError, Registry, arc
from workflow_sdk.graphs.definitions.registry import Unavailable

GOOD = {"kind": "workflow_sdk.graph", "format": 1, "name": "good", "steps": [{"name": "a", "fn": "answer"}]}
BAD = {**GOOD, "name": "bad", "steps": [{"name": "a", "fn": "gone", "next": [{"step": "b"}]}]}


async def answer(ctx: Context, args: Any) -> Any:
    return 42


def files(folder: Path, *documents: dict[str, Any]) -> Path:
    for document in documents:
        (folder / f"{document['name']}.json").write_text(json.dumps(document))
    return folder


def test_2_2_each_definition_is_made_canonical_with_what_it_needs() -> None:
    registry = Registry(FUNCTIONS)
    registry.add(every_kind())
    registry.open()
    assert registry.canonical("kinds") == every_kind().to_data()
    assert registry.hash("kinds") == every_kind().hash
    uses = registry.resolve("kinds").uses
    assert uses.functions >= {"fix", "judge", "undo", "int", "OutOfStockError", "ValueError"}
    assert uses.transports == frozenset({"http"})
    assert uses.workflows == frozenset({"other", "elsewhere"})
    assert "tests.graphs.definitions.samples" in uses.modules


def test_2_3_strict_the_first_that_is_not_valid_fails_the_start_with_every_problem_and_its_place(
    tmp_path: Path,
) -> None:
    registry = Registry([answer])
    registry.load(files(tmp_path, GOOD, BAD))
    with pytest.raises(InvalidGraphError) as caught:
        registry.open()
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "bad.json"))
    assert "steps[0] (a): there is no function 'gone'" in text
    assert "it leads to 'b', which is no step of the graph" in text
    with pytest.raises(DefinitionError):
        Runtime("memory://", workflows=registry)


async def test_2_3_warn_what_is_not_valid_is_listed_and_can_not_be_started(tmp_path: Path) -> None:
    registry = Registry([answer], mode="warn")
    (tmp_path / "worse.yaml").write_text("a: *b")
    registry.load(files(tmp_path, GOOD, BAD))
    async with Runtime("memory://", workflows=registry) as runtime:
        assert [graph.name for graph in registry] == ["good"]
        handle = await runtime.start(registry.resolve("good"), {})
        assert (await handle.result(20)).outputs == {"a": 42}
        for name in ("bad", "worse"):
            with pytest.raises(DefinitionError, match=f"graph '{name}' is not available: .*{name}"):
                await runtime.start(name, {})
    assert [(one.name, Path(one.where).name) for one in registry.unavailable] == [
        ("bad", "bad.json"),
        ("worse", "worse.yaml"),
    ]


def test_2_4_a_registry_that_is_open_does_not_change() -> None:
    registry = Registry([answer])
    registry.add(GOOD)
    assert registry.open() is registry.open()
    with pytest.raises(DefinitionError, match="can't be changed"):
        registry.add(GOOD)
    with pytest.raises(DefinitionError, match="can't be changed"):
        registry.load(".")
    with pytest.raises(DefinitionError, match="can't be changed"):
        registry.resolve("good").noop("more")
    assert registry.resolve("good") is registry.resolve("good", 1)


def test_2_4_definitions_are_kept_by_name_and_version() -> None:
    registry = Registry([answer])
    registry.add({**GOOD, "version": 9}, {**GOOD, "version": 10}, {**GOOD, "version": 2})
    registry.open()
    assert registry.versions("good") == [2, 9, 10]
    assert registry.resolve("good").version == 10
    assert registry.resolve("good", 9).version == 9
    assert [graph.version for graph in registry] == [10]
    with pytest.raises(DefinitionError, match="there is no version 3 of graph 'good'"):
        registry.resolve("good", 3)
    with pytest.raises(DefinitionError, match="there is no graph 'gone' in the registry; it has: 'good'"):
        registry.resolve("gone")


def test_3_a_canonical_definition_has_all_that_there_is_to_a_graph() -> None:
    document = every_kind().to_data()
    steps = {step["name"]: step for step in document["steps"]}
    assert (document["name"], document["version"]) == ("kinds", 1)
    assert document["workload"]["$defs"]["Ticket"]["properties"].keys() == {"kind", "items", "note"}
    assert steps["task"]["details"]["roles"] == {"$args": ["admin"]}
    assert steps["repeat"]["details"]["until"] == {"$": "output.done == True"}
    assert steps["call"]["details"]["transport"] == "http"
    assert steps["child"]["details"]["workflow"] == {"$fn": "other"}
    assert steps["leave"]["details"]["workflow"] == "elsewhere"
    assert json.loads(json.dumps(document)) == document


async def test_10_definition_errors_come_before_anything_runs() -> None:
    graph = Graph("bad")
    graph.step("a", answer, next=["gone"])
    with pytest.raises(DefinitionError, match="it leads to 'gone'"):
        await run_workflow(graph, {}, driver=await open_driver("memory://"), instance_id="one")
    with pytest.raises(DefinitionError, match="it leads to 'gone'"):
        Runtime("memory://", workflows=[graph])
    async with Client("memory://") as client:
        with pytest.raises(DefinitionError, match="it leads to 'gone'"):
            await client.start(graph, {})


async def test_10_an_expression_error_is_told_apart_and_may_be_followed_by_an_arc() -> None:
    graph = Graph("kinds", entry="a")
    graph.step("a", answer, next=[arc("b", args={"x": E.output.nothing.at.all})])
    graph.step("b", answer)
    result = await run_workflow(graph, {}, driver=await open_driver("memory://"), instance_id="one")
    assert result.status == "failed"
    failing = Graph("routed", entry="a")
    failing.step("a", late, retries=0, timeout=0.01, next=[arc("b", on="failed", when=E.error.kind == "timeout")])
    failing.step("b", answer)
    result = await run_workflow(failing, {}, driver=await open_driver("memory://"), instance_id="one", mode="live")
    assert result.output is not None
    assert result.output.outputs == {"b": 42}


async def late(ctx: Context, args: Any) -> None:
    raise TimeoutError("late")


def test_the_same_definition_twice_is_one_and_two_of_one_version_are_refused() -> None:
    registry = Registry([answer])
    registry.add(GOOD, {**GOOD})
    assert [graph.name for graph in registry] == ["good"]
    other = Registry([answer])
    other.add(GOOD, {**GOOD, "status": "lenient"})
    with pytest.raises(DefinitionError, match="two different graphs 'good' of version 1"):
        other.open()


def test_playbooks_in_files_are_read_as_well(tmp_path: Path) -> None:
    (tmp_path / "book.yaml").write_text("metadata: {name: book}\nworkflow:\n- step: a\n  tool: {kind: noop}\n")
    registry = Registry()
    registry.load(tmp_path)
    assert registry.resolve("book").nodes["a"].kind == "noop"


def test_a_directory_has_to_be_there() -> None:
    with pytest.raises(DefinitionError, match="is no directory"):
        Registry().load("/nowhere/at/all")


def test_what_is_unavailable_can_be_read() -> None:
    registry = Registry(mode="warn")
    registry.add(BAD)
    (found,) = registry.open().unavailable
    assert isinstance(found, Unavailable)
    assert str(found).startswith("graph 'bad': steps[0] (a): there is no function 'gone'")


@pytest.mark.parametrize("given", [None, 1, "good", [GOOD]])
def test_a_registry_takes_graphs_and_definitions_only(given: Any) -> None:
    with pytest.raises(DefinitionError, match="a registry has graphs"):
        Registry().add(given)
    with pytest.raises(DefinitionError, match="mode is"):
        Registry(mode=given)
