"""`crash_everywhere` on graphs: every commit is survived, what ran again is told, and a script changes a graph."""

from __future__ import annotations

from typing import Any

import pytest

from workflow_sdk import Context, Status
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs import E, Graph, arc, node, quorum
from workflow_sdk.testing import crash_everywhere
from workflow_sdk.testing.crash_report import is_over

CALLS: list[str] = []


async def work(ctx: Context, args: Any) -> Any:
    """A body without operations."""
    return args


async def patching(ctx: Context, args: Any) -> None:
    """A body that changes the context."""
    ctx.patch(tries=ctx.vars["tries"] + 1)


async def growing(ctx: Context, args: Any) -> bool:
    """A body that adds steps."""
    return bool(await ctx.submit([node("late", work, args={"n": 1}), node("later", work, needs=["late"])]))


async def pausing(ctx: Context, args: Any) -> int:
    """A body with operations."""
    found = await ctx.step("one", one)
    await ctx.sleep("pause", 60)
    return found


async def one() -> int:
    """A step inside a firing."""
    return 1


async def failing(ctx: Context, args: Any) -> None:
    """A body that never succeeds."""
    raise ValueError("no")


def everything() -> Graph:
    """A graph with forks, joins, growth, retries, a handled failure and a loop."""
    graph = Graph("everything", context={"tries": 0}, final="final", status="lenient")
    graph.step("begin", work, mode="inclusive", next=["wrong", "grow", "pause", "count"])
    graph.step("wrong", failing, retries=1, next=[arc("repair", on="failed")])
    graph.step("repair", work)
    graph.step("grow", growing)
    graph.step("pause", pausing)
    graph.step("count", patching, next=[arc("count", when=E.ctx.tries < 2)])
    graph.step("meet", work, needs=["grow", "pause"])
    graph.step("first", work, needs=["pause", "repair"], join=quorum(1))
    graph.step("final", work)
    return graph


async def test_a_graph_with_everything_survives_a_crash_at_every_commit() -> None:
    report = await crash_everywhere(everything(), {"id": 1})
    assert report.clean.info.status is Status.COMPLETED
    assert len(report.runs) == 2 * report.commits
    # What is still under way when the process dies is called once more, and nothing else.
    begin, pause = "everything/begin/~0", "everything/pause/~0"
    later = [run for run in report.runs if run.then is not None and is_over(begin, run.then)]
    assert len(later) > len(report.runs) / 2
    assert not any(begin in run.ran_again for run in later)
    assert any(pause in run.ran_again for run in later)


async def counting(ctx: Context, args: Any) -> int:
    """A body that does something else each time it is called."""
    CALLS.append("called")
    return len(CALLS)


async def test_a_body_that_comes_to_something_else_each_time_is_reported() -> None:
    CALLS.clear()
    graph = Graph("unsteady")
    graph.step("a", counting, next="b")
    graph.step("b", counting)
    with pytest.raises(AssertionError, match="ends differently without any crash"):
        await crash_everywhere(graph, None)


def gated() -> Graph:
    """A graph that waits to be let on."""
    graph = Graph("gated", context={"is_open": False})
    graph.step("look", work, next="act")
    graph.step("act", work, admit=E.ctx.is_open)
    return graph


@pytest.mark.law(1)
async def test_a_script_patches_a_graph_that_waits() -> None:
    report = await crash_everywhere(gated(), {"id": 1}, script=[("patch", {"is_open": True})])
    assert report.clean.info.status is Status.COMPLETED
    assert report.clean.sent == 1

    report = await crash_everywhere(gated(), {"id": 1})
    assert report.clean.info.status is Status.WAITING
    assert str(report.clean) == "waiting for act"


async def test_a_script_adds_steps_to_a_graph() -> None:
    graph = gated()
    more = [node("more", work, needs=["look"]), node("most", work, needs=["more", "act"])]
    report = await crash_everywhere(graph, {"id": 1}, script=[("submit", more), ("patch", {"is_open": True})])
    assert report.clean.info.output["outcomes"]["most"]["status"] == "completed"


async def test_a_script_says_with_what_a_graph_is_patched() -> None:
    with pytest.raises(DefinitionError, match="patches a graph"):
        await crash_everywhere(gated(), None, script=["patch"])


async def test_firings_of_a_step_that_begin_in_another_order_are_no_difference() -> None:
    graph = Graph("order")
    graph.step("begin", work, mode="inclusive", next=["slow", "quick"])
    for name in ("slow", "quick"):
        graph.step(name, pausing, next=[arc("end", args={"from": name})])
    # The last firing, whose output is in the result, is always the same.
    graph.step("last", pausing, needs=["slow", "quick"], next=[arc("end", args={"from": "last"})])
    graph.step("end", work)
    assert (await crash_everywhere(graph, None)).ok
