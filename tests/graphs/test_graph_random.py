"""Random graphs beside models of a few lines that say what has to come of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.laws.examples import examples
from workflow_sdk import Client, Context, CriticalError, Status, WorkflowFailedError, open_driver, run_workflow
from workflow_sdk.graphs import E, Graph, GraphResult, Limits, arc, quorum
from workflow_sdk.instance.execution import Mode
from workflow_sdk.testing import FaultyDriver, VirtualClock

RUNS_MAX = 300

failing_commits = st.sampled_from([None, *range(1, 30)])
"""After which commit the instance is loaded again, if any."""


@dataclass
class Step:
    """One step of a random graph of needs."""

    needs: list[int]
    join: str | int
    fails: bool
    naps: int
    """How long it sleeps, for the order in which steps end."""


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """Steps that need earlier ones."""
    made: list[Step] = []
    for number in range(draw(st.integers(1, 9))):
        needs = draw(st.lists(st.integers(0, number - 1), unique=True, max_size=4)) if number else []
        join = draw(st.sampled_from(["all", "alive"])) if needs else "all"
        made.append(Step(needs, join, draw(st.integers(0, 4)) == 0, draw(st.integers(0, 3))))
    return made


def expected(given: list[Step]) -> dict[str, str]:
    """What has to become of each, told from the steps before it."""
    found: list[str] = []
    for step in given:
        done = [found[need] == "completed" for need in step.needs]
        fires = not step.needs or (any(done) if step.join == "alive" else all(done))
        found.append("skipped" if not fires else "failed" if step.fails else "completed")
    return {f"s{number}": status for number, status in enumerate(found)}


def built(given: list[Step], ran: list[str], running: int | None) -> Graph:
    """The graph of these steps."""
    graph = Graph("g", limits=Limits(running=running), status="lenient")

    def body(name: str, step: Step) -> Any:
        async def run(ctx: Context, args: Any) -> Any:
            if step.naps:
                await ctx.sleep("nap", step.naps)
            ran.append(name)
            if step.fails:
                raise CriticalError("no")
            return sorted(args or ())

        run.__name__ = run.__qualname__ = name
        return run

    for number, step in enumerate(given):
        options: dict[str, Any] = {"needs": [f"s{need}" for need in step.needs], "join": step.join}
        graph.step(f"s{number}", body(f"s{number}", step), **(options if step.needs else {}))
    return graph


async def result_of(
    graph: Graph, workload: Any = None, fail_at: int | None = None, mode: Mode = "yield"
) -> GraphResult:
    """How it ends; if wanted, after a commit that failed."""
    driver = await open_driver("memory://")
    clock = VirtualClock()
    try:
        store = FaultyDriver(driver, fail_at=() if fail_at is None else [fail_at])
        for _ in range(RUNS_MAX):
            try:
                result = await run_workflow(graph, workload, driver=store, instance_id="i", mode=mode, clock=clock)
            except Exception:
                if fail_at is None:
                    raise
                store, fail_at = FaultyDriver(driver), None
                continue
            if result.status is Status.SLEEPING:
                assert result.wake_at is not None
                clock.advance(max(0.0, result.wake_at.timestamp() - clock.time()))
                continue
            break
        else:
            raise AssertionError("it never ended")
        assert result.status in (Status.COMPLETED, Status.FAILED), result
        async with Client(driver) as client:
            try:
                found: object = await client.handle(graph, "i").result()
            except WorkflowFailedError as error:
                found = error.result
        assert isinstance(found, GraphResult)
        return found
    finally:
        await driver.aclose()


def run_of(coroutine: Coroutine[Any, Any, GraphResult]) -> GraphResult:
    """In a loop of its own."""
    return asyncio.run(coroutine)


@pytest.mark.law(6)
@examples(300)
@given(steps(), st.sampled_from([None, 1, 2]), failing_commits)
def test_of_a_graph_of_needs_becomes_what_follows_from_its_steps(
    given: list[Step], running: int | None, fail_at: int | None
) -> None:
    ran: list[str] = []
    result = run_of(result_of(built(given, ran, running), fail_at=fail_at))
    should = expected(given)
    assert {name: outcome.status for name, outcome in result.outcomes.items()} == should
    for number, step in enumerate(given):
        name = f"s{number}"
        assert result.outcomes[name].firings == (should[name] != "skipped")
        if should[name] == "completed":
            done = sorted(f"s{need}" for need in step.needs if should[f"s{need}"] == "completed")
            assert result.outputs[name] == done
    if fail_at is None:
        assert sorted(ran) == sorted(name for name, status in should.items() if status != "skipped")
        found = set(should.values())
        lenient = "partial" if "completed" in found else "failed"
        assert result.status == (lenient if "failed" in found else "succeeded")


@dataclass
class Tree:
    """A fork, each of whose branches is a row of such trees; it is joined again. Without branches: a plain step."""

    branches: list[list[Tree]]


def forks(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    """A fork of two or three branches."""
    return st.builds(Tree, st.lists(st.lists(inner, max_size=2), min_size=2, max_size=3))


trees = st.recursive(st.just(Tree([])), forks, max_leaves=5)


class Planted:
    """A tree as a graph: every fork is joined, and the whole of it may be gone through several times."""

    def __init__(self, tree: Tree, turns: int, naps: list[int]) -> None:
        self.graph = Graph("g", context={"n": 0})
        self.turns = turns
        self.naps = naps
        self.plans: dict[str, dict[str, Any]] = {}
        self.joins: dict[str, list[str]] = {}
        self._plan("begin", next=["0"])
        last = self._tree(tree, "0")
        self.plans[last]["next"] = ["turn"]
        self._plan("turn", next=[arc("0", when=E.output < turns)])
        for name, options in self.plans.items():
            self.graph.step(name, self._body(name), **options)

    def _plan(self, name: str, **options: Any) -> str:
        self.plans[name] = options
        return name

    def _tree(self, tree: Tree, name: str) -> str:
        """Plan a tree that begins with the step `name`; the name of the step it ends with."""
        if not tree.branches:
            return self._plan(name, next=[])
        heads = [f"{name}.{number}" for number in range(len(tree.branches))]
        self._plan(name, mode="inclusive", next=list(heads))
        tails: list[str] = []
        for head, branch in zip(heads, tree.branches, strict=True):
            last = self._plan(head, next=[])
            for number, inner in enumerate(branch):
                begin = f"{head}-{number}"
                self.plans[last]["next"] = [begin]
                last = self._tree(inner, begin)
            tails.append(last)
        self.joins[f"join {name}"] = tails
        return self._plan(f"join {name}", needs=tails, next=[])

    def _body(self, name: str) -> Any:
        nap = self.naps[sum(name.encode()) % len(self.naps)]

        async def run(ctx: Context, args: Any) -> Any:
            if nap:
                await ctx.sleep("nap", nap)
            if name == "turn":
                ctx.patch(n=ctx.vars["n"] + 1)
            if name in self.joins:
                assert sorted(args) == sorted(self.joins[name])
                assert set(args.values()) == {ctx.vars["n"]}, "what belongs to one turn"
            return ctx.vars["n"]

        run.__name__ = run.__qualname__ = name
        return run


@examples(300)
@given(
    trees,
    st.integers(1, 3),
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    failing_commits,
)
def test_forks_inside_forks_are_all_joined_once_in_every_turn(
    tree: Tree, turns: int, naps: list[int], fail_at: int | None
) -> None:
    planted = Planted(tree, turns, naps)
    assert planted.graph.validate() == []
    result = run_of(result_of(planted.graph, fail_at=fail_at))
    assert {name: (outcome.status, outcome.firings, outcome.reason) for name, outcome in result.outcomes.items()} == {
        name: ("completed", 1 if name == "begin" else turns, "") for name in planted.plans
    }
    assert result.status == "succeeded"


@examples(200)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(1, 6),
    st.sampled_from([None, 1, 3]),
)
def test_a_quorum_fires_once_if_enough_are_done_and_is_skipped_otherwise(
    given: list[tuple[bool, int]], count: int, running: int | None
) -> None:
    count = min(count, len(given))
    ran: list[str] = []
    graph = built([Step([], "all", fails, naps) for fails, naps in given], ran, running)
    seen: list[int] = []

    async def meets(ctx: Context, args: Any) -> None:
        seen.append(len(args))

    needs = [f"s{number}" for number in range(len(given))]
    graph.step("m", meets, needs=needs, join=quorum(count))
    result = run_of(result_of(graph))
    enough = sum(not fails for fails, _ in given) >= count
    assert seen == ([count] if enough else [])
    assert result.outcomes["m"].status == ("completed" if enough else "skipped")
    counted = [result.outcomes[need].status for need in needs]
    assert counted.count("completed") == (count if enough else sum(not fails for fails, _ in given))
    assert set(counted) <= ({"completed", "failed", "cancelled"} if enough else {"completed", "failed"})


@dataclass
class Way:
    """An arc: where it leads, and for which numbers."""

    to: int
    least: int


@dataclass
class Stop:
    """A step of a random net: its arcs, and whether all of them are followed that match."""

    ways: list[Way]
    is_inclusive: bool
    naps: int


ways = st.builds(Way, st.integers(0, 4), st.integers(0, 3))
nets = st.lists(st.builds(Stop, st.lists(ways, max_size=2), st.booleans(), st.integers(0, 2)), min_size=5, max_size=5)


def walked(net: list[Stop], most: int) -> Counter[tuple[int, int]]:
    """How often each step has to be fired with which number: a token loses one with each arc, and 0 goes nowhere."""
    found: Counter[tuple[int, int]] = Counter()
    tokens = [(0, most)]
    while tokens:
        at, number = tokens.pop()
        found[at, number] += 1
        matching = [way.to for way in net[at].ways if number > way.least]
        tokens += [(to, number - 1) for to in (matching if net[at].is_inclusive else matching[:1])]
    return found


def wired(net: list[Stop], ran: list[tuple[int, int]]) -> Graph:
    """The graph of a net, with what has run noted by numbers."""
    graph = Graph("g", entry="s0")

    def body(at: int) -> Any:
        async def run(ctx: Context, args: Any) -> int:
            if net[at].naps:
                await ctx.sleep("nap", net[at].naps)
            number = int(args["n"])
            ran.append((at, number))
            return number

        run.__name__ = run.__qualname__ = f"s{at}"
        return run

    for at, stop in enumerate(net):
        arcs = [arc(f"s{way.to}", when=E.output > way.least, args={"n": E.output - 1}) for way in stop.ways]
        # So that every step can be reached.
        spare = [arc(f"s{other}", when=E.output > 100) for other in range(1, len(net))] if at == 0 else []
        graph.step(f"s{at}", body(at), next=[*arcs, *spare], mode="inclusive" if stop.is_inclusive else "exclusive")
    return graph


@examples(300)
@given(nets, st.integers(0, 4), failing_commits, st.sampled_from(["yield", "live"]))
def test_tokens_go_where_arcs_lead_and_nowhere_else(
    net: list[Stop], most: int, fail_at: int | None, mode: Mode
) -> None:
    ran: list[tuple[int, int]] = []
    result = run_of(result_of(wired(net, ran), {"n": most}, fail_at, mode))
    should = walked(net, most)
    firings = Counter({f"s{at}": 0 for at in range(len(net))})
    for (at, _), count in should.items():
        firings[f"s{at}"] += count
    assert {name: outcome.firings for name, outcome in result.outcomes.items()} == firings
    assert result.status == "succeeded"
    if fail_at is None:
        assert Counter(ran) == should


@st.composite
def mixtures(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Steps with arcs and needs, among which anything goes that `validate` lets through."""
    count = draw(st.integers(3, 7))
    made: list[dict[str, Any]] = []
    for at in range(count):
        given: dict[str, Any] = {"naps": draw(st.integers(0, 2)), "fails": draw(st.integers(0, 5)) == 0}
        if at > 1 and draw(st.integers(0, 2)) == 0:
            given["needs"] = draw(st.lists(st.integers(0, at - 1), min_size=1, max_size=3, unique=True))
            given["join"] = draw(st.sampled_from(["all", "alive"]))
        given["ways"] = draw(st.lists(st.integers(at + 1, count - 1), max_size=3)) if at + 1 < count else []
        given["mode"] = draw(st.sampled_from(["exclusive", "inclusive", "inclusive"]))
        made.append(given)
    return made


def mixed(given: list[dict[str, Any]]) -> Graph:
    """The graph of a mixture."""
    graph = Graph("g", status="lenient")

    def body(at: int, step: dict[str, Any]) -> Any:
        async def run(ctx: Context, args: Any) -> Any:
            if step["naps"]:
                await ctx.sleep("nap", step["naps"] * (1 + at / 100))
            if step["fails"]:
                raise CriticalError("no")
            return sorted(args or ())

        run.__name__ = run.__qualname__ = f"s{at}"
        return run

    joins = {at for at, step in enumerate(given) if "needs" in step}
    for at, step in enumerate(given):
        options: dict[str, Any] = {"mode": step["mode"], "next": [f"s{to}" for to in step["ways"] if to not in joins]}
        if at in joins:
            options |= {"needs": [f"s{need}" for need in step["needs"]], "join": step["join"]}
        graph.step(f"s{at}", body(at, step), **options)
    return graph


@examples(300)
@given(mixtures(), failing_commits)
def test_a_run_that_is_loaded_again_and_again_ends_like_one_that_is_not(
    given: list[dict[str, Any]], fail_at: int | None
) -> None:
    assume(not mixed(given).validate())
    whole = run_of(result_of(mixed(given), mode="live"))
    assert run_of(result_of(mixed(given), mode="yield")) == whole
    assert run_of(result_of(mixed(given), mode="live", fail_at=fail_at)) == whole
