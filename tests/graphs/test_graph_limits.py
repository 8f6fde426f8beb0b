"""Limits: how much a run of a graph may do, and what becomes of what is too much."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.graphs.running import Noting, by_status, run
from tests.support import World
from workflow_sdk import Backoff, Context, DefinitionError
from workflow_sdk.graphs import E, Graph, Limits, arc, node

EXACT = Backoff(initial=1, factor=1, maximum=1, jitter=0)


class Meter:
    """Counts who is under way."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.most = 0

    async def works(self, ctx: Context, args: Any) -> None:
        """A body that takes a few turns of the event loop."""
        self.now.add(ctx.path)
        self.most = max(self.most, len(self.now))
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        self.now.discard(ctx.path)


# Running.


@pytest.mark.parametrize("running", [1, 2, 3, 10])
async def test_never_more_firings_than_running_are_under_way_and_all_run_in_the_end(world: World, running: int) -> None:
    meter = Meter()
    g = Noting(limits=Limits(running=running))
    for number in range(7):
        g.add(str(number), does=meter.works)
    result = await run(world, g.graph)
    assert meter.most == min(running, 7)
    assert result.status == "succeeded"
    assert len(g.ran) == 7


async def test_what_is_deferred_stays_ready_in_order(world: World) -> None:
    g = Noting(limits=Limits(running=1))
    g.add("a", mode="inclusive", next=list("bcdef"))
    g.add("b", next="g")
    for name in "cdefg":
        g.add(name)
    await run(world, g.graph)
    assert g.ran == ["a", "b", "c", "d", "e", "f", "g"]


async def test_a_parked_firing_holds_its_slot(world: World) -> None:
    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)
        done.append("a")

    async def looks(ctx: Context, args: Any) -> None:
        done.append("b")

    done: list[str] = []
    g = Noting(limits=Limits(running=1))
    g.add("a", does=naps)
    g.add("b", does=looks)
    await run(world, g.graph)
    assert done == ["a", "b"]


async def test_a_firing_in_backoff_holds_its_slot(world: World) -> None:
    async def fails_once(ctx: Context, args: Any) -> None:
        if g.count("a") == 1:
            raise ValueError("not yet")

    g = Noting(limits=Limits(running=1))
    g.add("a", does=fails_once, backoff=EXACT)
    g.add("b")
    await run(world, g.graph)
    assert g.ran == ["a", "a", "b"]


async def test_a_slot_is_free_again_after_a_failure(world: World) -> None:
    g = Noting(limits=Limits(running=1))
    g.add("a", fails="no")
    g.add("b")
    result = await run(world, g.graph)
    assert g.ran == ["a", "b"]
    assert by_status(result) == {"a": "failed", "b": "completed"}


@pytest.mark.law(15)
@pytest.mark.parametrize("limit", ["running", "nodes", "starts"])
async def test_a_limit_of_0_denies_and_is_no_success(world: World, limit: str) -> None:
    g = Noting(limits=Limits(**{limit: 0}))
    g.add("a", next="b")
    g.add("b")
    result = await run(world, g.graph)
    assert g.ran == []
    assert result.status == "failed"
    assert result.outcomes["a"].status == "denied"
    assert limit in result.outcomes["a"].reason


# Starts.


async def test_starts_counts_firings_and_ends_a_cycle(world: World) -> None:
    g = Noting(limits=Limits(starts=5))
    g.add("a", next="b")
    g.add("b", next="a")
    result = await run(world, g.graph)
    assert g.ran == ["a", "b", "a", "b", "a"]
    assert result.outcomes["b"].status == "denied"
    assert "starts" in result.outcomes["b"].reason
    assert result.outcomes["b"].firings == 2
    assert result.status == "failed"


async def test_retries_are_no_starts(world: World) -> None:
    async def fails_twice(ctx: Context, args: Any) -> None:
        if g.count("a") < 3:
            raise ValueError("not yet")

    g = Noting(limits=Limits(starts=2))
    g.add("a", does=fails_twice, next="b", backoff=EXACT)
    g.add("b")
    assert (await run(world, g.graph)).status == "succeeded"


@pytest.mark.law(15)
async def test_what_is_denied_by_a_limit_skips_its_dependents_and_the_rest_goes_on(world: World) -> None:
    g = Noting(limits=Limits(starts=2))
    g.add("a")
    g.add("b")
    g.add("c")
    g.add("d", needs=["c"])
    result = await run(world, g.graph)
    assert sorted(g.ran) == ["a", "b"]
    assert by_status(result) == {"a": "completed", "b": "completed", "c": "denied", "d": "skipped"}
    assert "starts" in result.outcomes["c"].reason
    assert "c" in result.outcomes["d"].reason


async def test_a_replay_uses_up_no_starts(world: World) -> None:
    async def naps(ctx: Context, args: Any) -> None:
        for number in range(5):
            await ctx.sleep(str(number), 60)

    g = Noting(limits=Limits(starts=2))
    g.add("a", does=naps, next="b")
    g.add("b", does=naps)
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "b": "completed"}


# Nodes.


async def test_nodes_counts_what_is_defined(world: World) -> None:
    g = Noting(limits=Limits(nodes=2))
    for name in "abc":
        g.add(name)
    result = await run(world, g.graph)
    assert sorted(by_status(result).values()) == ["completed", "completed", "denied"]
    assert result.outcomes["c"].status == "denied"
    assert "nodes" in result.outcomes["c"].reason
    assert result.status == "failed"


async def one(ctx: Context, args: Any) -> int:
    """A step to submit."""
    return 1


async def test_nodes_counts_what_is_submitted_and_refuses_the_batch(world: World) -> None:
    verdicts: list[Any] = []

    async def grows(ctx: Context, args: Any) -> None:
        verdicts.append(await ctx.submit([node("x", one), node("y", one)]))
        verdicts.append(await ctx.submit([node("x", one)]))
        verdicts.append(await ctx.submit([node("y", one)]))

    g = Noting(Graph("g", limits=Limits(nodes=2)))
    g.add("a", does=grows)
    result = await run(world, g.graph)
    assert [bool(verdict) for verdict in verdicts] == [False, True, False], verdicts
    assert verdicts[0].kind == "deny"
    assert "nodes" in verdicts[0].reason
    assert by_status(result) == {"a": "completed", "x": "completed"}
    assert result.status == "succeeded", "refused submissions alone are no failure"


# Depth.


deep_verdicts: list[Any] = []


async def third(ctx: Context, args: Any) -> None:
    """Submitted by what is submitted itself."""


async def second(ctx: Context, args: Any) -> None:
    """Submits once more."""
    deep_verdicts.append(await ctx.submit([node("third", third)]))


async def middle(ctx: Context, args: Any) -> None:
    """Submits what submits once more, when `first` is done."""
    await ctx.submit([node("second", second, needs=["first"])])


@pytest.mark.parametrize(("depth", "reached"), [(0, 0), (1, 1), (2, 2), (None, 2)])
async def test_depth_is_generations_of_submitting(world: World, depth: int | None, reached: int) -> None:
    async def first(ctx: Context, args: Any) -> None:
        deep_verdicts.append(await ctx.submit([node("second", second)]))

    deep_verdicts.clear()
    g = Noting(Graph("g", limits=Limits(depth=depth)))
    g.add("first", does=first)
    result = await run(world, g.graph)
    verdicts = list(deep_verdicts)
    assert [bool(verdict) for verdict in verdicts] == [True] * min(reached, 2) + [False] * (depth in (0, 1)), verdicts
    assert list(result.outcomes) == ["first", "second", "third"][: 1 + reached]
    if depth in (0, 1):
        assert (verdicts[-1].kind, "depth" in verdicts[-1].reason) == ("deny", True)


@pytest.mark.law(4)
@pytest.mark.settings(mode="yield")
async def test_depth_is_known_of_a_join_that_has_waited_since_another_run(world: World) -> None:
    async def first(ctx: Context, args: Any) -> None:
        await ctx.submit([node("middle", middle)])
        await ctx.sleep("nap", 60)

    deep_verdicts.clear()
    g = Noting(Graph("g", limits=Limits(depth=2)))
    g.add("first", does=first)
    result = await run(world, g.graph)
    assert list(result.outcomes) == ["first", "middle", "second"]
    assert [bool(verdict) for verdict in deep_verdicts] == [False]


# What is used.


async def test_limits_is_a_snapshot_of_what_is_used_and_left(world: World) -> None:
    seen: list[Any] = []

    async def looks(ctx: Context, args: Any) -> None:
        limits = ctx.limits
        seen.append([limits.used, limits.most, limits.left])

    g = Noting(limits=Limits(running=2, nodes=10, starts=5))
    g.add("a", does=looks, next="b")
    g.add("b", does=looks)
    await run(world, g.graph)
    (used, most, left), (later, _, less) = seen
    assert most == Limits(running=2, nodes=10, starts=5)
    assert (used.running, used.nodes, used.starts) == (1, 2, 1)
    assert (left.running, left.nodes, left.starts, left.depth) == (1, 8, 4, None)
    assert (later.starts, less.starts) == (2, 3)


async def test_limits_are_told_as_they_are_after_the_starts_of_the_same_round(world: World) -> None:
    """Whoever coordinates has to see what runs beside it: its siblings that started with it are counted."""
    seen: list[Any] = []

    async def looks(ctx: Context, args: Any) -> None:
        seen.append((ctx.limits.used.running, ctx.limits.used.starts))

    g = Noting(limits=Limits(running=5))
    for name in "abc":
        g.add(name, does=looks)
    await run(world, g.graph)
    assert seen == [(3, 3)] * 3


async def test_limits_are_the_same_on_replay(world: World) -> None:
    seen: list[Any] = []

    async def looks(ctx: Context, args: Any) -> None:
        seen.append(ctx.limits.used.starts)
        await ctx.sleep("nap", 60)
        seen.append(ctx.limits.used.starts)

    g = Noting(limits=Limits(starts=10))
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", does=looks)
    g.add("c", next="d")
    g.add("d", next="e")
    g.add("e")
    await run(world, g.graph)
    assert len(set(seen)) == 1


@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
def test_a_limit_is_a_number_from_0_on(value: Any) -> None:
    with pytest.raises(DefinitionError):
        Limits(running=value)


async def test_a_limit_that_is_not_reached_changes_nothing(world: World) -> None:
    g = Noting(limits=Limits(running=1, nodes=3, starts=3, depth=0))
    g.add("a", next=arc("b", when=E.workload == 1))
    g.add("b", next="c")
    g.add("c")
    result = await run(world, g.graph, 1)
    assert set(by_status(result).values()) == {"completed"}
