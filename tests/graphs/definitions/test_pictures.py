"""Pictures of graphs: what is drawn of them, and what has become of their steps."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from tests.graphs.definitions.samples import every_kind
from workflow_sdk import Context, Runtime
from workflow_sdk.graphs import E, Graph, Outcome, arc, quorum
from workflow_sdk.graphs.drawing import NodeStatus
from workflow_sdk.graphs.pictures import drawing_of, statuses_of


async def work(ctx: Context, args: Any) -> Any:
    return 1


async def broken(ctx: Context, args: Any) -> Any:
    raise ValueError("no")


async def naps(ctx: Context, args: Any) -> None:
    await ctx.sleep("nap", 3_600)


def sample() -> Graph:
    graph = Graph("sample", entry="a", final="end", context={"open": False})
    targets = ["b", arc("c", when=E.output == 1), arc("d", on="any"), "gate"]
    graph.step("a", work, next=targets, mode="inclusive")
    graph.step("b", broken, retries=0, next=[arc("e", on="failed")])
    graph.wait("c", message="paid")
    graph.step("d", naps)
    graph.step("e", work)
    graph.step("gate", work, admit=E.ctx.open)
    graph.step("merge", work, needs=["c", "d"], join=quorum(1))
    graph.step("end", work)
    return graph


def test_steps_arcs_and_needs_are_drawn() -> None:
    drawing = drawing_of(sample())
    shapes = {shape.name: shape for shape in drawing.shapes}
    assert {name: shape.kind for name, shape in shapes.items()} == {
        "a": "step", "b": "step", "c": "wait", "d": "step", "e": "step", "gate": "step", "merge": "join",
        "end": "final",
    }  # fmt: skip
    assert [name for name, shape in shapes.items() if shape.is_entry] == ["a"]
    assert [name for name, shape in shapes.items() if shape.is_final] == ["end"]
    assert shapes["merge"].lines == ("1 of 2",)
    assert shapes["gate"].lines == ("if ctx.open",)
    assert shapes["c"].lines == ("message: paid",)
    assert [(line.source, line.target, line.label, line.kind) for line in drawing.lines] == [
        ("a", "b", "", "arc"),
        ("a", "c", "output == 1", "arc"),
        ("a", "d", "", "any"),
        ("a", "gate", "", "arc"),
        ("b", "e", "", "failure"),
        ("c", "merge", "", "need"),
        ("d", "merge", "", "need"),
    ]


def test_every_kind_is_drawn_the_same_each_time() -> None:
    assert every_kind().layout().to_data() == every_kind().layout().to_data()
    for draw in (Graph.to_svg, Graph.to_mermaid, Graph.to_dot):
        assert draw(every_kind()) == draw(every_kind())
    ElementTree.fromstring(every_kind().to_svg())


def test_a_graph_that_is_not_sound_is_drawn_as_it_is() -> None:
    graph = Graph("bad", entry="gone")
    graph.step("a", work, next=["nowhere"], needs=["nobody"])
    assert "nowhere" in graph.to_mermaid()
    assert "nobody" in graph.to_svg()
    assert Graph("empty").to_dot().startswith('digraph "empty"')


async def test_the_statuses_of_a_run_come_from_its_info_and_its_history() -> None:
    graph = sample()
    async with Runtime("memory://", workflows=[graph]) as runtime:
        handle = await runtime.start(graph, {})
        found, info = graph.statuses({}), await handle.info()
        while len(found) < 6 or found["e"].status != "completed" or len((await handle.info()).waits) < 3:
            info = await handle.info()
            found = graph.statuses([await handle.history(), info])
        assert {name: one.status for name, one in found.items()} == {
            "a": "completed", "b": "failed", "c": "waiting", "d": "waiting", "e": "completed", "gate": "blocked",
        }  # fmt: skip
        assert found["c"].note == "message: paid"
        svg = graph.to_svg(status=info)
        assert 'class="is-waiting"' in svg
        assert 'class="is-blocked"' in svg
        ElementTree.fromstring(svg)


async def test_the_statuses_of_a_run_that_has_ended_come_from_its_result() -> None:
    graph = Graph("ended", entry="a", status="lenient")
    graph.step("a", work, next=["b", "c"], mode="inclusive")
    graph.step("b", broken, retries=0)
    graph.step("c", work, next=[arc("d", when=E.output == 2)])
    graph.step("d", work)
    expected = {"a": "completed", "b": "failed", "c": "completed", "d": "never_reached"}
    async with Runtime("memory://", workflows=[graph]) as runtime:
        handle = await runtime.start(graph, {})
        result = await handle.result(20)
        for seen in (result, await handle.info()):
            found = graph.statuses(seen)
            assert {name: one.status for name, one in found.items()} == expected
            assert found["b"].note == "ValueError: no"


@pytest.mark.parametrize("given", ["failed", Outcome("failed", "why", 2), NodeStatus("failed")])
def test_statuses_can_be_given_by_name(given: Any) -> None:
    found = statuses_of(sample(), {"a": given})
    assert found is not None
    assert found["a"].status == "failed"
    assert 'class="is-failed"' in sample().to_svg(status={"a": given})
