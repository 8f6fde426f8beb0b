"""`workflow graph` and `workflow show --graph`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.line import Line
from tests.graphs.definitions.samples import every_kind
from workflow_sdk import Context, Driver, workflow
from workflow_sdk.graphs import Graph, arc, graph_schema, node
from workflow_sdk.graphs.definitions.yaml_text import read_yaml

NAME = "tests.graphs.definitions.samples:every_kind"


@pytest.fixture
def line(tmp_path: Path) -> Line:
    async def leave(driver: Driver) -> None:
        """To open it was enough."""

    made = Line(f"sqlite:///{tmp_path}/app.db?synchronous=normal", tmp_path)
    made.on_store(leave)
    return made


def test_a_graph_is_shown_in_every_form(line: Line, tmp_path: Path) -> None:
    document = every_kind().to_data()
    (tmp_path / "kinds.json").write_text(json.dumps(document))
    for target in (NAME, str(tmp_path / "kinds.json")):
        text = line("graph", "show", target).output
        assert text.startswith("kinds  version 1, ")
        assert "-> end if args.x == 1; rest" in text
        assert "if ctx.since is not None" in text
        assert json.loads(line("graph", "show", target, "--as", "json").output) == document
        assert read_yaml(line("graph", "show", target, "--as", "yaml").output) == document
        ElementTree.fromstring(line("graph", "show", target, "--as", "svg").output)
        assert "flowchart TD" in line("graph", "show", target, "--as", "mermaid").output
        assert line("graph", "show", target, "--as", "dot").output.startswith('digraph "kinds"')
        assert "graph.noop(" in line("graph", "show", target, "--as", "python").output


def test_problems_are_told_one_in_a_line(line: Line, tmp_path: Path) -> None:
    assert line("graph", "validate", NAME).output == "graph kinds version 1 is valid\n"
    bad = Graph("bad")
    bad.noop("a", next=["b", "c"])
    steps = [{"name": "a", "kind": "noop", "next": ["b", "c"]}]
    (tmp_path / "bad.yaml").write_text(
        json.dumps({"kind": "workflow_sdk.graph", "format": 1, "name": "bad", "steps": steps})
    )
    found = line("graph", "validate", str(tmp_path / "bad.yaml"), code=1)
    assert found.stdout.splitlines() == [str(problem) for problem in bad.validate()]
    assert "has 2 problems" in found.stderr


def test_names_of_functions_are_looked_up_if_functions_are_given(line: Line, tmp_path: Path) -> None:
    path = str(tmp_path / "kinds.json")
    Path(path).write_text(json.dumps(every_kind().to_data()))
    line("graph", "validate", path, "--functions", "tests.graphs.definitions.samples:FUNCTIONS")
    assert (
        "no function 'fix'"
        in line(
            "graph", "validate", path, "--functions", "tests.graphs.definitions.samples:NO_FUNCTIONS", code=1
        ).stdout
    )


def test_every_way_through_a_graph_is_tried(line: Line, tmp_path: Path) -> None:
    graph = Graph("ways", entry="a", context={"open": False})
    graph.noop("a", next=["b"])
    graph.noop("b", admit="ctx.open")
    (tmp_path / "ways.yaml").write_text(graph.to_yaml())
    found = line("graph", "explore", str(tmp_path / "ways.yaml"), code=1)
    assert "b" in found.stdout
    graph = Graph("fine")
    graph.noop("a")
    (tmp_path / "fine.yaml").write_text(graph.to_yaml())
    assert line("graph", "explore", str(tmp_path / "fine.yaml"), "--depth", "5").output == "nothing was found\n"


def test_the_schema_is_printed(line: Line) -> None:
    assert json.loads(line("graph", "schema").output) == graph_schema()


def test_what_is_no_graph_is_an_error(line: Line, tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("[]")
    assert "a graph is a dict" in line("graph", "show", str(tmp_path / "no.json"), code=2).stderr
    assert "and no graph" in line("graph", "show", "tests.graphs.definitions.samples:other", code=2).stderr
    assert "no such file" in line("graph", "show", "gone.yaml", code=2).stderr.lower()


def test_the_steps_of_a_run_are_shown_with_their_status(line: Line, tmp_path: Path) -> None:
    graph = Graph("waits")
    graph.noop("a", next=["b"])
    graph.wait("b", message="paid", next=["c"])
    graph.noop("c")
    line.run(graph, id="one")
    (tmp_path / "waits.yaml").write_text(graph.to_yaml())
    shown = line("show", "one", "--graph", str(tmp_path / "waits.yaml")).output.splitlines()
    assert [text.split()[:2] for text in shown[1:]] == [["a", "completed"], ["b", "waiting"], ["c", "noop"]]
    assert line("show", "one", "--graph").output.splitlines() == shown, "the store has the definition"


async def grows(ctx: Context) -> None:
    await ctx.submit([node("more", grows_no_more)])


async def grows_no_more(ctx: Context) -> None: ...


@workflow
async def with_a_part(ctx: Context) -> None:
    part = Graph("part")
    part.step("a", grows, next=[arc("b", when="output == 1")])
    part.noop("b")
    await ctx.graph("inside", part)


def test_a_graph_inside_a_workflow_is_shown_with_what_was_submitted(line: Line) -> None:
    line.run(with_a_part, id="one")
    shown = [text.split() for text in line("show", "one", "--graph").output.splitlines()]
    assert shown[0][:3] == ["part", "version", "1,"]
    assert shown[1][:2] == ["a", "completed"]
    assert shown[3] == ["more", "completed", "submitted"]


def test_a_graph_that_can_not_be_stored_is_shown_by_its_firings(line: Line) -> None:
    graph = Graph("code")
    graph.step("a", grows_no_more, next=[arc("b", when=lambda scope: False)])
    graph.noop("b")
    line.run(graph, id="one")
    assert "code/a/~0  completed" in line("show", "one", "--graph").output


def test_an_instance_without_a_graph_says_so(line: Line) -> None:
    line.run(without, id="one")
    assert "has run no graph" in line("show", "one", "--graph").output


@workflow
async def without(ctx: Context) -> None: ...
