"""Exploring a graph finds each kind of fault with the shortest way there, and nothing in a graph that is sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs import E, Graph, Limits, arc, otherwise, quorum, rule
from workflow_sdk.testing import Exploration, Finding, explore


def body(_ctx: Any, _args: Any) -> None:
    """What no exploration calls."""
    raise AssertionError("nothing is run")


def patching(ctx: Any, _args: Any) -> None:
    """A body that may change the context."""
    ctx.patch(tries=1)


def kinds(found: Exploration) -> list[tuple[str, str]]:
    """What was found, and where."""
    return [(one.kind, one.node) for one in found.findings]


# Graphs that are sound.


def triage() -> Graph:
    graph = Graph("triage", context={"budget": 3}, final="report", limits=Limits(running=2, nodes=50))
    bug = arc("fix", when=E.output.kind == "bug", args={"id": E.output.id})
    graph.step("classify", body, next=[bug, arc("reply")])
    graph.step("fix", patching, admit=E.ctx.budget > 0, mode="inclusive", next=[arc("test"), arc("notify")])
    graph.step("test", body)
    graph.step("notify", body)
    graph.step("merge", body, needs=["test", "notify"])
    graph.step("reply", body)
    graph.step("report", body)
    return graph


def loop() -> Graph:
    graph = Graph("loop")
    graph.step("draft", body, next="review")
    graph.step("review", body, next=[arc("draft", when=E.output.again), arc("publish")])
    graph.step("publish", body)
    return graph


def loop_of_a_fork_and_its_join() -> Graph:
    graph = Graph("rounds")
    graph.step("begin", body, mode="inclusive", next=["left", "right"])
    graph.step("left", body)
    graph.step("right", body)
    graph.step("meet", body, needs=["left", "right"], next=[arc("begin", when=E.output.again)])
    return graph


def diamond() -> Graph:
    graph = Graph("diamond")
    graph.step("a", body)
    graph.step("b", body, needs=["a"])
    graph.step("c", body, needs=["a"])
    graph.step("d", body, needs=["b", "c"])
    return graph


def some_of_several() -> Graph:
    graph = Graph("some")
    graph.step("ask", body, mode="inclusive", next=[arc("a", when=E.output.a), arc("b", when=E.output.b), arc("c")])
    for name in "abc":
        graph.step(name, body)
    graph.step("first", body, needs=["a", "b", "c"], join=quorum(1))
    graph.step("all", body, needs=["a", "b", "c"], join="alive")
    return graph


def a_failure_that_is_handled() -> Graph:
    graph = Graph("handled", status="fail_fast")
    graph.step("call", body, next=[arc("done"), arc("repair", on="failed")])
    graph.step("repair", body, next="call")
    graph.step("done", body)
    return graph


def an_approval_that_a_step_gives() -> Graph:
    graph = Graph("approved", context={"tries": 0}, entry="begin")
    graph.step("begin", body, mode="inclusive", next=["approve", "publish"])
    graph.step("approve", patching)
    graph.step("publish", body, admit=E.ctx.tries > 0)
    return graph


def a_choice_of_steps_that_run_nothing() -> Graph:
    graph = Graph("ends")
    graph.step("ask", body, next=[arc("yes", when=E.output.yes), arc("no")])
    graph.noop("yes")
    graph.noop("no")
    return graph


def many_side_by_side() -> Graph:
    graph = Graph("wide")
    for number in range(40):
        graph.step(f"s{number}", body)
    graph.step("end", body, needs=[f"s{number}" for number in range(40)])
    return graph


SOUND: list[Callable[[], Graph]] = [
    triage,
    loop,
    loop_of_a_fork_and_its_join,
    diamond,
    some_of_several,
    a_failure_that_is_handled,
    an_approval_that_a_step_gives,
    a_choice_of_steps_that_run_nothing,
]


@pytest.mark.parametrize("make", SOUND)
def test_nothing_is_found_in_a_sound_graph(make: Callable[[], Graph]) -> None:
    found = explore(make())
    assert found.findings == []
    assert found.is_complete
    assert str(found).endswith("every way to its end")


def test_a_graph_with_more_states_than_are_looked_at_says_so_and_is_not_blamed() -> None:
    found = explore(many_side_by_side(), states_max=300)
    assert found.findings == []
    assert not found.is_complete
    assert "there are more" in str(found)


def test_exploring_leaves_a_graph_as_it_was() -> None:
    graph = loop()
    explore(graph)
    graph.step("more", body)
    assert kinds(explore(graph)) == [("unreachable", "more")]


# Faults, each planted.


def test_an_admission_that_nothing_can_change_is_a_stall() -> None:
    graph = Graph("stall")
    graph.step("look", body, next="act")
    graph.step("act", body, admit=E.workload.is_urgent)
    found = explore(graph)
    assert found.findings == [Finding("stall", "act", ("look is done",))]
    assert "1. look is done" in str(found)


def gated(admit: Any, context: dict[str, Any]) -> Graph:
    graph = Graph("gated", context=context)
    graph.step("look", body, next="act")
    graph.step("act", body, admit=admit, next="tell")
    graph.step("tell", body)
    return graph


def test_a_gate_that_the_graph_closes_and_never_opens_is_a_stall_and_what_is_behind_it_is_never_run() -> None:
    found = explore(gated(E.ctx.open, {"open": False}))
    assert kinds(found) == [("unreachable", "tell"), ("stall", "act")]


@pytest.mark.parametrize(
    ("admit", "context", "outside"),
    [
        (E.ctx.approved, {"approved": False}, ["approved"]),
        (E.ctx.approved == True, {"approved": None}, []),  # noqa: E712  # an expression
        ("get(ctx.approved, False)", {}, []),
        ("coalesce(ctx.approved, ctx.budget > 100)", {"budget": 3}, []),
    ],
)
def test_an_approval_that_comes_from_outside_is_waited_for_and_no_stall(
    admit: Any, context: dict[str, Any], outside: list[str]
) -> None:
    assert explore(gated(admit, context), outside=outside).findings == []


def test_no_function_of_an_author_is_called() -> None:
    graph = Graph("called", functions={"free": body})
    graph.step("a", body, next=[arc("b", when="free(event.name)"), arc("c")])
    graph.step("b", body)
    graph.step("c", body)
    assert explore(graph).findings == []


def test_a_rule_that_never_allows_is_a_stall() -> None:
    graph = Graph("never")
    graph.step("act", body, admit=[rule(when="1 > 2", allow=True), otherwise(allow=False)])
    assert ("stall", "act") in kinds(explore(graph))


def test_a_denial_that_is_discarded_or_not_waited_for_is_no_stall() -> None:
    for options, settings in (({"on_deny": "discard"}, {}), ({}, {"when_blocked": "complete"})):
        graph = Graph("denied", **settings)  # type: ignore[arg-type]
        graph.step("act", body, admit=E.workload.is_urgent, **options)
        assert kinds(explore(graph)) == []


def test_a_step_that_nothing_leads_to_is_never_run() -> None:
    graph = Graph("island")
    graph.step("a", body, next="b")
    graph.step("b", body)
    graph.step("island", body)
    assert explore(graph).findings == [Finding("unreachable", "island")]


def test_a_step_behind_a_guard_that_is_never_true_is_never_run() -> None:
    graph = Graph("shut")
    graph.step("a", body, next=[arc("b", when='event.name == "loop.done"'), arc("c")])
    graph.step("b", body)
    graph.step("c", body)
    assert kinds(explore(graph)) == [("unreachable", "b")]


def test_a_step_after_the_first_arc_that_always_matches_is_never_run() -> None:
    graph = Graph("shadowed")
    graph.step("a", body, next=["b", arc("c", when=E.output.urgent)])
    graph.step("b", body)
    graph.step("c", body)
    assert kinds(explore(graph)) == [("unreachable", "c")]


def test_a_join_over_ways_that_exclude_each_other_waits_for_ever() -> None:
    graph = Graph("either")
    graph.step("choose", body, next=[arc("a", when=E.output.a), arc("b")])
    graph.step("a", body)
    graph.step("b", body)
    graph.step("both", body, needs=["a", "b"])
    assert kinds(explore(graph)) == [("waiting_join", "both")]
    (finding,) = explore(graph).findings
    assert finding.way == ("choose is done: a begins", "a is done")


def test_a_join_over_passes_of_a_loop_that_never_meet_waits_for_ever() -> None:
    graph = Graph("passes")
    graph.step("begin", body, mode="inclusive", next=[arc("odd", when=E.output.odd), arc("again")])
    graph.step("odd", body, next=[arc("begin", on="any")])
    graph.step("again", body)
    graph.step("mixed", body, needs=["odd", "even"])
    graph.step("even", body)
    assert ("waiting_join", "mixed") in kinds(explore(graph))


def test_a_cycle_that_adds_a_token_in_each_pass_is_without_bound() -> None:
    graph = Graph("growing")
    graph.step("tick", body, mode="inclusive", next=["tick", "work"])
    graph.step("work", body)
    found = explore(graph)
    assert found.findings == [Finding("unbounded", "tick", ("tick is done: tick and work begin",))]
    assert found.is_complete


def test_a_limit_of_starts_bounds_a_cycle() -> None:
    graph = Graph("bounded", limits=Limits(starts=5))
    graph.step("tick", body, mode="inclusive", next=["tick", "work"])
    graph.step("work", body)
    assert kinds(explore(graph)) == []


def test_the_way_to_a_fault_is_the_shortest() -> None:
    graph = Graph("two ways")
    graph.step("a", body, next=[arc("long", when=E.output.long), arc("short")])
    graph.step("long", body, next="longer")
    graph.step("longer", body, next="act")
    graph.step("short", body, next="act")
    graph.step("act", body, admit=E.workload.is_urgent)
    (finding,) = explore(graph).findings
    assert finding.way == ("a is done: short begins", "short is done")


def test_a_way_is_not_walked_further_than_the_depth_that_is_given() -> None:
    graph = Graph("deep")
    for number in range(9):
        graph.step(f"s{number}", body, next=f"s{number + 1}")
    graph.step("s9", body, admit=E.workload.is_urgent)
    assert explore(graph, depth=8).findings == []
    assert not explore(graph, depth=8).is_complete
    assert kinds(explore(graph, depth=9)) == [("stall", "s9")]


def test_steps_that_run_nothing_are_passed_on_the_way() -> None:
    graph = Graph("inline")
    graph.step("a", body, next="pause")
    graph.noop("pause", next="act")
    graph.step("act", body, admit=E.workload.is_urgent)
    (finding,) = explore(graph).findings
    assert finding.way == ("a is done: pause (which is over at once) begins",)


def test_names_that_are_no_steps_are_refused() -> None:
    graph = Graph("wrong")
    graph.step("a", body, next="nowhere")
    with pytest.raises(DefinitionError, match="nowhere"):
        explore(graph)
    with pytest.raises(DefinitionError, match="takes a graph"):
        explore("graph")  # type: ignore[arg-type]
