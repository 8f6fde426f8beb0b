"""What a failed graph undoes by handlers that are found only by walking its bodies over their history."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import World
from workflow_sdk import Client, Context, CriticalError, Status, workflow
from workflow_sdk.graphs import Graph, arc, node

undone: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    undone.clear()


async def same(value: Any) -> Any:
    """Gives back what it is given."""
    return value


async def fails(args: Any) -> None:
    """Fails for good."""
    raise CriticalError("broken")


def undoes(what: Any) -> Any:
    """A handler that no name leads to."""

    async def undo(value: Any) -> None:
        undone.append((what, value))

    return undo


async def run_to_the_end(world: World, graph: Graph) -> None:
    result = await world.run(graph)
    assert result.status is Status.ROLLED_BACK, result


async def test_a_body_is_walked_with_the_context_that_its_firing_saw(world: World) -> None:
    async def counts(ctx: Context, args: Any) -> None:
        number = ctx.vars["number"] + 1
        ctx.patch(number=number)

        async def branch(ctx: Context) -> None:
            ctx.patch(inside=number)
            await ctx.step("first", same, number, rollback=undoes(ctx.vars["inside"]))

        await ctx.join("join", {"only": branch})
        if ctx.vars["inside"] == 2:
            await ctx.step("second", same, "two", rollback=undoes(ctx.vars["inside"]))
        await ctx.sleep("nap", 1)

    graph = Graph("g", context={"number": 0})
    graph.step("a", counts, next=[arc("a", when="ctx.number < 3"), arc("b")])
    graph.step("b", fails)
    await run_to_the_end(world, graph)
    assert undone == [(3, 3), (2, "two"), (2, 2), (1, 1)]


async def test_a_body_is_walked_with_what_came_from_outside(world: World) -> None:
    async def looks(ctx: Context, args: Any) -> None:
        await ctx.step("first", same, 1, rollback=undoes(ctx.vars["given"]))
        await ctx.sleep("nap", 1)

    graph = Graph("g", context={"given": 0})
    graph.step("a", same, admit="ctx.given > 0", next="b")
    graph.step("b", looks, next="c")
    graph.step("c", fails)
    await world.once(graph, mode="yield")
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(graph, "i").patch(given=7)
    await run_to_the_end(world, graph)
    assert undone == [(7, 1)]


async def test_a_body_that_has_submitted_steps_is_walked_with_the_verdict(world: World) -> None:
    async def grows(ctx: Context, args: Any) -> None:
        is_allowed = bool(await ctx.submit([node("x", same)]))
        is_refused = not await ctx.submit([node("x", same)])
        await ctx.step("first", same, 1, rollback=undoes((is_allowed, is_refused)))
        await ctx.sleep("nap", 1)

    graph = Graph("g")
    graph.step("a", grows, next="b")
    graph.step("b", fails)
    await run_to_the_end(world, graph)
    assert undone == [((True, True), 1)]


def sums() -> Graph:
    """The final step is given more than one value can hold, and undoes by what it was given."""
    graph = Graph("sums", final="last", status="lenient")

    async def much(ctx: Context, args: Any) -> str:
        if ctx.path.endswith("/a/~0"):
            await ctx.sleep("nap", 1)
        return "x" * 700_000

    async def last(ctx: Context, args: Any) -> None:
        about = (args["counts"], [*args["outputs"]], args["failures"], args["instance_id"])
        await ctx.step(f"pay for {args['counts']['completed']}", same, 1, rollback=undoes(about))
        await ctx.sleep("nap", 1)

    for step in "abc":
        graph.step(step, much)
    graph.step("d", fails)
    graph.step("e", same, needs=["d"])
    graph.step("last", last)
    return graph


summed = sums()
SUMMED = ({"completed": 3, "failed": 1, "skipped": 1}, ["a", "b", "c"], {"d": "CriticalError: broken"}, "i")


@workflow
async def regrets(ctx: Context) -> None:
    """Fails in a later run than that of the graph."""
    await ctx.graph("graph", summed)
    await ctx.sleep("nap", 1)
    raise CriticalError("regrets it")


@pytest.mark.law(11)
@pytest.mark.settings(mode="yield")
async def test_the_final_step_is_walked_with_what_it_was_given_though_that_was_too_large_to_be_stored(
    world: World,
) -> None:
    assert (await world.run(regrets)).status is Status.ROLLED_BACK
    assert undone == [(SUMMED, 1)]


@pytest.mark.law(11)
@pytest.mark.settings(mode="yield")
async def test_cancelled_under_way_the_final_step_is_walked_with_that_too(world: World) -> None:
    for _ in range(2):
        assert (await world.once(summed)).wake_at is not None
        world.clock.advance(1)
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(summed, "i").cancel(rollback=True)
    assert (await world.run(summed)).status is Status.CANCELLED
    assert undone == [(SUMMED, 1)]


def passes() -> Graph:
    """A fork and its join in a cycle. The second pass begins before the first is over, and is ahead of it in part."""
    graph = Graph("passes", context={"turn": 0})

    async def fork(ctx: Context, args: Any) -> None:
        ctx.patch(turn=ctx.vars["turn"] + 1)

    async def much(ctx: Context, args: Any) -> str:
        turn = ctx.vars["turn"]
        if turn == 1 and "/c/" in ctx.path:
            await ctx.sleep("nap", 3)
        return str(turn) * 700_000

    async def later(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 1)

    async def meet(ctx: Context, args: dict[str, str]) -> None:
        got = "".join(text[0] for text in args.values())
        await ctx.step("pay", same, got, rollback=undoes(got))
        await ctx.sleep("nap", 5)

    graph.step("fork", fork, mode="inclusive", next=["a", "b", "c", arc("later", when="ctx.turn < 2")])
    for step in "abc":
        graph.step(step, much)
    graph.step("later", later, next="fork")
    graph.step("meet", meet, needs=["a", "b", "c"])
    return graph


passing = passes()


@workflow
async def regrets_passes(ctx: Context) -> None:
    """Fails in a later run than that of the graph."""
    await ctx.graph("graph", passing)
    await ctx.sleep("nap", 1)
    raise CriticalError("regrets it")


@pytest.mark.law(11)
@pytest.mark.settings(mode="yield")
async def test_a_join_in_a_cycle_is_walked_with_what_belongs_to_its_turn(world: World) -> None:
    assert (await world.run(regrets_passes)).status is Status.ROLLED_BACK
    assert sorted(undone) == [("111", "111"), ("222", "222")]


@pytest.mark.law(11)
@pytest.mark.settings(mode="yield")
async def test_cancelled_under_way_it_is_walked_with_that_too(world: World) -> None:
    for _ in range(5):
        assert (await world.once(passing)).wake_at is not None
        world.clock.advance(1)
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(passing, "i").cancel(rollback=True)
    assert (await world.run(passing)).status is Status.CANCELLED
    assert sorted(undone) == [("111", "111"), ("222", "222")]
