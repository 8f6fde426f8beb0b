"""What `graph.validate()` finds, what it leaves alone, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from workflow_sdk import DefinitionError, open_driver, run_workflow
from workflow_sdk.graphs import E, Graph, arc, fn, quorum
from workflow_sdk.graphs.checks import problems_of
from workflow_sdk.graphs.impossible import impossible_joins
from workflow_sdk.graphs.plan import Plan


async def work(ctx: Any, args: Any) -> Any: ...


@dataclass
class Item:
    """A part of a ticket."""

    price: float


@dataclass
class Ticket:
    """What a run is given."""

    kind: str
    item: Item
    maybe: Item | None
    free: dict[str, Any]
    parts: list[Item]


async def triage(ctx: Any, args: Ticket) -> Item:
    return args.item


def found(graph: Graph) -> list[tuple[str, str]]:
    """The problems of a graph: the step, and the text."""
    return [(problem.where, problem.text) for problem in graph.validate()]


def one(graph: Graph) -> tuple[str, str]:
    """The one problem of a graph."""
    (problem,) = found(graph)
    return problem


# Names and reach.


def test_unknown_names_are_found() -> None:
    graph = Graph("names", final="last", entry="first")
    graph.step("a", work, next=["b"], needs=["c"])
    assert found(graph) == [
        ("a", "it needs 'c', which is no step of the graph"),
        ("a", "it leads to 'b', which is no step of the graph"),
        ("", "its entry is 'first', which is no step of the graph"),
        ("", "its final is 'last', which is no step of the graph"),
    ]


def test_steps_that_nothing_leads_to_are_found() -> None:
    graph = Graph("reach")
    graph.step("a", work, next=["b"])
    graph.step("b", work)
    graph.step("c", work, next=["d"])
    graph.step("d", work)
    assert [where for where, _ in found(graph)] == ["c", "d"]


def test_a_circle_of_needs_is_found_and_one_of_arcs_is_fine() -> None:
    graph = Graph("circle")
    graph.step("a", work, needs=["c"])
    graph.step("b", work, needs=["a"])
    graph.step("c", work, needs=["b"])
    assert "steps need each other in a circle" in found(graph)[0][1]
    loop = Graph("loop")
    loop.step("a", work, next=["b"])
    loop.step("b", work, next=["a"])
    assert found(loop) == []


def test_nothing_can_need_the_final_step() -> None:
    graph = Graph("final", final="end")
    graph.step("a", work, next=["b"])
    graph.step("b", work)
    graph.step("c", work, needs=["end"])
    graph.step("end", work)
    assert one(graph) == ("c", "it needs 'end', the final step, which is run when all else is over")


def test_nothing_leads_to_the_final_step_nor_from_it_and_it_is_no_entry() -> None:
    graph = Graph("final", entry="end", final="end")
    graph.step("a", work, next=["end"])
    graph.step("end", work, next=["a"])
    assert found(graph) == [
        ("", "its entry is 'end', the final step, which is run when all else is over"),
        ("end", "it is the final step, after which nothing is run, and can't lead to others"),
        ("a", "it leads to 'end', the final step, which is run when all else is over"),
    ]


# Joins that can never complete.


def fork(mode: str = "exclusive", **join: Any) -> Graph:
    """A fork with three branches, and a join of them."""
    graph = Graph("fork")
    graph.step("choose", work, mode=mode, next=[arc("a", when=E.output.x == 1), "b", "c"])
    graph.step("a", work, next=["d"])
    graph.step("b", work)
    graph.step("c", work)
    graph.step("d", work)
    graph.step("merge", work, **{"needs": ["d", "b", "c"], **join})
    return graph


def test_a_join_of_exclusive_branches_is_found() -> None:
    where, text = one(fork())
    assert where == "merge"
    assert "it can never fire: it needs 'd' and 'b' and 'c', and step 'choose' takes one of its ways" in text


@pytest.mark.parametrize("join", [{"join": "alive"}, {"join": quorum(1)}, {"needs": ["d"]}, {"needs": ["choose", "d"]}])
def test_a_join_that_one_branch_is_enough_for_is_fine(join: dict[str, Any]) -> None:
    graph = fork(**join)
    assert found(graph) == []


def test_a_quorum_that_can_not_be_reached_is_found() -> None:
    assert "its quorum is 2, of which 1 can happen at most" in one(fork(join=quorum(2)))[1]
    assert one(fork("inclusive", join=quorum(4)))[1] == "its quorum is 4, and it needs only 3 steps"


def test_a_join_of_inclusive_branches_is_fine() -> None:
    assert found(fork("inclusive")) == []


def test_branches_that_come_together_again_are_fine() -> None:
    graph = Graph("diamond")
    graph.step("choose", work, next=[arc("a", when=E.output.x == 1), "b"])
    graph.step("a", work, next=["c"])
    graph.step("b", work, next=["c"])
    graph.step("c", work, next=["d", "e"], mode="inclusive")
    graph.step("d", work)
    graph.step("e", work)
    graph.step("merge", work, needs=["d", "e"])
    assert found(graph) == []


def test_a_step_in_a_circle_may_take_another_way_the_next_time() -> None:
    graph = Graph("circle")
    graph.step("choose", work, next=[arc("a", when=E.output.x == 1), "b"])
    graph.step("a", work, next=["choose"])
    graph.step("b", work)
    graph.step("merge", work, needs=["a", "b"])
    assert found(graph) == []


def test_a_step_with_several_tokens_may_take_several_ways() -> None:
    graph = Graph("twice")
    graph.step("fork", work, mode="inclusive", next=["x", "y"])
    graph.step("x", work, next=["choose"])
    graph.step("y", work, next=["choose"])
    graph.step("choose", work, next=[arc("a", when=E.output.x == 1), "b"])
    graph.step("a", work)
    graph.step("b", work)
    graph.step("merge", work, needs=["a", "b"])
    assert found(graph) == []


def test_choices_behind_choices_are_counted() -> None:
    graph = Graph("nested")
    graph.step("fork", work, mode="inclusive", next=["left", "right"])
    for side in ("left", "right"):
        graph.step(side, work, next=[arc(f"{side}1", when=E.output.x == 1), f"{side}2"])
        graph.step(f"{side}1", work)
        graph.step(f"{side}2", work)
    graph.step("two", work, needs=["left1", "left2", "right1", "right2"], join=quorum(2))
    graph.step("three", work, needs=["left1", "left2", "right1", "right2"], join=quorum(3))
    assert [where for where, _ in found(graph)] == ["three"]


@st.composite
def forking(draw: st.DrawFn) -> tuple[Graph, list[int]]:
    """A graph of arcs and joins, and numbers by which its guards decide."""
    count = draw(st.integers(3, 9))
    graph = Graph("random", entry="s0", context={"at": 0}, status="lenient")
    for at in range(count):
        targets = draw(st.lists(st.integers(0, count - 1), max_size=3, unique=True))
        # Mostly forwards, so that runs end.
        targets = [target for target in targets if target > at or draw(st.integers(0, 9)) == 0]
        needs = draw(st.lists(st.integers(0, at - 1), max_size=3, unique=True)) if at and draw(st.booleans()) else []
        joins: list[Any] = ["all", "alive", quorum(2)] if len(needs) > 1 else ["all"]
        decides = fn.len(E.output) % max(1, len(targets))
        graph.step(
            f"s{at}",
            chosen,
            next=[arc(f"s{target}", when=decides == number) for number, target in enumerate(targets)],
            mode=draw(st.sampled_from(["exclusive", "exclusive", "inclusive"])),
            needs=[f"s{need}" for need in needs],
            join=draw(st.sampled_from(joins)) if needs else "all",
        )  # fmt: skip
    return graph, draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))


_choices: list[int] = []


async def chosen(ctx: Any, args: Any) -> str:
    used = ctx.vars.at
    ctx.patch(at=used + 1)
    if used > 40:
        raise RuntimeError("it goes on for too long")
    return "x" * _choices[int(used) % len(_choices)]


@settings(max_examples=effort(400))
@given(forking())
async def test_no_join_that_can_never_fire_ever_fires(example: tuple[Graph, list[int]]) -> None:
    graph, choices = example
    plan = Plan(graph.nodes.values(), **graph.settings)
    dead = {problem.where for problem in impossible_joins(plan)}
    if not dead:
        return
    _choices[:] = choices
    vars(graph)["_plan"] = plan  # it is run as it is
    result = await run_workflow(graph, None, driver=await open_driver("memory://"), instance_id="one")
    outcomes = result.output.outcomes if result.output is not None else {}
    reached = {arc.step for node in graph.nodes.values() for arc in node.next}
    assert not [name for name in dead - reached if name in outcomes and outcomes[name].firings]


# Guards that read what is not there.


def guarded(when: Any, **graph_options: Any) -> Graph:
    graph = Graph("guards", workload=Ticket, **graph_options)
    graph.step("a", triage, next=[arc("b", when=when, args={"x": 1})])
    graph.step("b", work)
    return graph


@pytest.mark.parametrize(
    ("when", "told"),
    [
        (E.workload.knid == "bug", "the workload has no 'knid', only kind, item, maybe, free, parts"),
        (E.start.knid == "bug", "reads workload.knid"),
        (E.workload.item.prize > 1, "reads workload.item.prize, but the workload has no 'prize', only price"),
        (E.workload.maybe.prize > 1, "has no 'prize', only price"),
        (E.workload.kind.upper == 1, "has no 'upper', only nothing"),
        (E.output.prize > 1, "reads output.prize, but what the step returns has no 'prize', only price"),
        (E.results.a.prize > 1, "reads results.a.prize, but what step 'a' returns has no 'prize', only price"),
    ],
)  # fmt: skip
def test_a_guard_that_reads_what_there_is_not_is_found(when: Any, told: str) -> None:
    where, text = one(guarded(when))
    assert where == "a"
    assert text.startswith("the guard of its arc to 'b' reads")
    assert told in text


@pytest.mark.parametrize(
    "when",
    [
        E.workload.item.price > 1,
        E.workload.maybe.price > 1,
        E.workload.free.anything.at.all == 1,
        E.workload.parts[0].price > 1,
        E.output.price > 1,
        E.results.b.whatever == 1,
        E.results.submitted_later.x == 1,
        E.ctx.patched == 1,
        E.args.whatever == 1,
        E.error.kind == "timeout",
        fn.get(E.output.prize, 0) > 1,
        fn.coalesce(E.workload.knid, "bug") == "bug",
        lambda seen: seen.output.prize > 1,
    ],
)
def test_a_guard_that_may_read_what_it_reads_is_fine(when: Any) -> None:
    assert found(guarded(when)) == []


def test_arguments_admissions_and_details_are_looked_at_as_well() -> None:
    graph = Graph("all", workload=Ticket)
    graph.step("a", triage, next=[arc("b", args={"x": [E.output.prize]})], admit=E.workload.knid == "bug")
    graph.assign("b", {"y": E.workload.knid})
    assert [where for where, _ in found(graph)] == ["a", "a", "b"]


def test_a_schema_that_was_imported_is_looked_at() -> None:
    graph = guarded(E.workload.kind == "bug")
    data = graph.to_data()
    data["steps"][0]["next"][0]["when"] = "workload.knid == 'bug'"
    with pytest.raises(DefinitionError, match="has no 'knid'"):
        Graph.from_data(data, functions=[triage, work]).freeze()


def test_functions_of_expressions_that_nobody_has_given_are_found() -> None:
    assert one(guarded(fn.is_vip(E.output.price)))[1].endswith(
        "calls is_vip(), which is no function of the graph; give it in `functions`"
    )


# How long it takes.


def layers(count: int) -> Graph:
    graph = Graph("layers")
    for at in range(count):
        above = range(at // 10 * 10 - 10, at // 10 * 10) if at >= 10 else ()
        graph.step(f"s{at}", work, needs=[f"s{need}" for need in above])
    return graph


def diamonds(count: int, join: Any = "alive") -> Graph:
    graph = Graph("diamonds")
    for at in range(count // 4):
        graph.step(f"f{at}", work, next=[arc(f"a{at}", when=E.output.x == 1), f"b{at}"])
        graph.step(f"a{at}", work)
        graph.step(f"b{at}", work)
        following = [f"f{at + 1}"] if at + 1 < count // 4 else []
        graph.step(f"j{at}", work, needs=[f"a{at}", f"b{at}"], join=join, next=following)
    return graph


def wide(count: int) -> Graph:
    graph = Graph("wide")
    names = [f"s{at}" for at in range(count - 2)]
    graph.step("choose", work, next=[arc(name, when=E.output.x == 1) for name in names])
    for name in names:
        graph.step(name, work)
    graph.step("merge", work, needs=names)
    return graph


@pytest.mark.parametrize(
    "make", [layers, diamonds, wide, lambda count: diamonds(count, "all"), lambda count: diamonds(count, quorum(1))]
)
def test_ten_times_the_steps_take_about_ten_times_as_long(make: Callable[[int], Graph]) -> None:
    small, large = make(400), make(4_000)

    def cost(graph: Graph) -> float:
        spent: list[float] = []
        for _ in range(3):
            began = time.process_time()
            problems_of(graph)
            plan = Plan(graph.nodes.values(), **graph.settings)
            for name in list(graph.nodes)[:5]:
                plan.quorums_served(name)
            spent.append(time.process_time() - began)
        return min(spent)

    assert cost(large) < 40 * max(cost(small), 0.005)


def test_what_a_step_serves_is_known_in_circles_and_outside() -> None:
    graph = Graph("serving", entry="fork")
    graph.step("fork", work, mode="inclusive", next=["a", "b"])
    graph.step("a", work)
    graph.step("b", work, next=["c", "log"], mode="inclusive")
    graph.step("c", work)
    graph.step("log", work)
    graph.step("first", work, needs=["a", "c"], join=quorum(1), next=["fork"])
    plan = graph.freeze()
    assert {name: set(plan.quorums_served(name)) for name in graph.nodes} == {
        "fork": set(), "a": {"first"}, "b": set(), "c": {"first"}, "log": set(), "first": set(),
    }  # fmt: skip
    endless = Graph("endless", entry="fork")
    endless.step("fork", work, mode="inclusive", next=["a", "b"])
    endless.step("a", work)
    endless.step("b", work)
    endless.step("first", work, needs=["a", "b"], join=quorum(1), next=["fork"])
    plan = endless.freeze()
    # Whoever comes to the fork again is in another fork instance.
    assert {name for name in endless.nodes if plan.quorums_served(name)} == {"a", "b"}


def test_problems_of_every_kind_are_told_together() -> None:
    graph = Graph("g", workload=Ticket, final="nothing")
    graph.step("a", work, next=[arc("b", when=E.workload.colour == 1), arc("typo")])
    graph.step("b", work)
    graph.step("alone", work)
    graph.step("c", work, needs=["d"])
    graph.step("d", work, needs=["c"])
    graph.step("e", work, needs=["f"])
    graph.step("f", work, needs=["e"])
    told = "\n".join(map(str, graph.validate()))
    for part in ("typo", "nothing", "colour", "alone: no token", "c -> d -> c", "e -> f -> e"):
        assert part in told, part


def test_a_step_that_needs_what_there_is_not_is_told_once() -> None:
    graph = Graph("g")
    graph.step("a", work, next="b")
    graph.step("b", work)
    graph.step("c", work, needs=["gone"])
    assert [problem.where for problem in graph.validate()] == ["c"]


def test_forks_inside_forks_are_found_in_a_time_that_grows_with_their_number() -> None:
    def nested(count: int) -> Plan:
        graph = Graph("nested")
        for at in range(count):
            graph.step(f"fork {at}", work, mode="inclusive", next=[f"side {at}", f"fork {at + 1}"])
            graph.step(f"side {at}", work)
        graph.step(f"fork {count}", work)
        for at in range(count):
            graph.step(
                f"join {at}", work, needs=[f"side {at}", f"join {at + 1}" if at + 1 < count else f"fork {count}"]
            )
        return graph.freeze()

    plan = nested(2_000)
    began = time.process_time()
    assert all(plan.join_fork(f"join {at}") == f"fork {at}" for at in range(2_000))
    assert time.process_time() - began < 5
