"""Features of graphs that meet: quorums in cycles in forks, controllers in joins, limits with submissions."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.graphs.running import Noting, by_status, run
from tests.patience import PATIENCE
from tests.runtime.parts import until_status
from tests.support import World
from workflow_sdk import Backoff, Client, Context, CriticalError, Driver, Runtime, Status, workflow
from workflow_sdk.graphs import E, Graph, Limits, arc, node, quorum
from workflow_sdk.testing import crash_everywhere

EXACT = Backoff(initial=1, factor=1, maximum=1, jitter=0)


async def same(args: Any) -> Any:
    """Gives back what it is given."""
    return args


async def parks(ctx: Context, args: Any) -> None:
    """Waits for what nobody sends."""
    await ctx.listen("never")


async def naps(ctx: Context, args: Any) -> str:
    """Takes a while."""
    await ctx.sleep("nap", 3)
    return "slept"


async def counts(ctx: Context, args: Any) -> int:
    """Counts how often it runs, in the context."""
    ctx.patch(turn=ctx.vars["turn"] + 1)
    turn: int = ctx.vars["turn"]
    return turn


def quorum_in_a_cycle_in_a_fork() -> Graph:
    """A race by quorum, three times over, while another branch of the fork around it waits."""
    graph = Graph("g", context={"turn": 0})
    graph.step("outer", same, mode="inclusive", next=["loop", "side"])
    graph.step("loop", counts, mode="inclusive", next=["x", "y", "z"])
    graph.step("x", naps)
    graph.step("y", same)
    graph.step("z", parks)
    again = arc("loop", when=E.ctx.turn < 3)
    graph.step("q", same, needs=["x", "y", "z"], join=quorum(2), next=[again, arc("out", args=E.ctx.turn)])
    graph.step("out", same)
    graph.step("side", naps)
    graph.step("both", same, needs=["out", "side"])
    return graph


async def test_a_quorum_in_a_cycle_in_a_fork(world: World) -> None:
    result = await run(world, quorum_in_a_cycle_in_a_fork())
    assert result.status == "succeeded"
    assert result.outcomes["q"].firings == 3
    assert (result.outcomes["z"].status, result.outcomes["z"].firings) == ("cancelled", 3)
    assert result.outputs["both"] == {"out": 3, "side": "slept"}


async def test_a_quorum_in_a_cycle_in_a_fork_ends_the_same_wherever_it_is_killed() -> None:
    await crash_everywhere(quorum_in_a_cycle_in_a_fork(), commits_max=15)


@pytest.mark.parametrize("join", ["all", "alive", quorum(3)])
async def test_a_join_of_a_controller_a_list_and_a_step(world: World, join: Any) -> None:
    g = Noting()
    g.graph.fan_out("fan", same, over=[1, 2])
    g.graph.step("each", same, each=[1, 2, 3])
    g.add("a", 5)
    g.add("join", needs=["fan", "each", "a"], join=join)
    await run(world, g.graph)
    assert g.args["join"] == [{"fan": [1, 2], "each": [1, 2, 3], "a": 5}]


@pytest.mark.parametrize(
    ("join", "status"), [("all", "skipped"), (quorum(2), "skipped"), ("alive", "completed"), (quorum(1), "completed")]
)
async def test_a_join_of_what_failed_was_dropped_and_was_denied(world: World, join: Any, status: str) -> None:
    g = Noting(status="lenient", context={"open": False})
    g.add("fine", 1)
    g.add("failed", fails="broken")
    g.add("dropped", admit=E.ctx.open, on_deny="discard")
    g.add("denied", access="write", trust="quarantined")
    g.add("join", needs=["fine", "failed", "dropped", "denied"], join=join)
    result = await run(world, g.graph)
    assert result.status == "partial"
    assert result.outcomes["join"].status == status
    assert g.args.get("join", [{"fine": 1}]) == [{"fine": 1}]


async def test_four_joins_over_the_same_needs_fire_once_each(world: World) -> None:
    g = Noting()
    g.add("a", 1)
    g.add("b", 2)
    for name, join in {"all": "all", "alive": "alive", "one": quorum(1), "two": quorum(2)}.items():
        g.add(name, needs=["a", "b"], join=join)
    result = await run(world, g.graph)
    assert set(by_status(result).values()) == {"completed"}
    assert sorted(g.ran) == ["a", "alive", "all", "b", "one", "two"]


async def test_a_controller_that_a_quorum_does_not_need_is_cancelled_with_its_steps(world: World) -> None:
    g = Noting()
    g.graph.fan_out("fan", parks, over=[1, 2])
    g.add("a", 1)
    g.add("join", needs=["a", "fan"], join=quorum(1))
    result = await run(world, g.graph)
    assert result.status == "succeeded"
    assert {by_status(result)[name] for name in ("fan", "fan.0", "fan.1")} == {"cancelled"}


async def test_a_step_between_two_attempts_is_cancelled_by_a_quorum(world: World) -> None:
    async def fails(ctx: Context, args: Any) -> None:
        raise ValueError("not yet")

    g = Noting()
    g.add("a", 1)
    g.add("b", does=fails, retries=100, backoff=EXACT)
    g.add("join", needs=["a", "b"], join=quorum(1))
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "b": "cancelled", "join": "completed"}


async def test_a_quorum_that_is_submitted_cancels_what_only_it_needs(world: World) -> None:
    async def grows(ctx: Context, args: Any) -> bool:
        join = node("join", same, needs=["x", "y"], join=quorum(1))
        return bool(await ctx.submit([node("x", naps), node("y", parks), join]))

    g = Noting(Graph("g"))
    g.add("a", does=grows)
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "x": "completed", "y": "cancelled", "join": "completed"}


async def test_items_and_their_attempts_are_one_start(world: World) -> None:
    ran: list[int] = []

    async def fails_twice(item: int) -> int:
        ran.append(item)
        if ran.count(item) < 3:
            raise ValueError("not yet")
        return item

    graph = Graph("g", limits=Limits(starts=1, running=1))
    graph.step("a", fails_twice, each=[1, 2], parallel=1, retries=2, backoff=EXACT)
    assert (await run(world, graph)).outputs == {"a": [1, 2]}
    assert ran == [1, 1, 1, 2, 2, 2]


async def test_starts_are_shared_with_what_is_submitted(world: World) -> None:
    async def grows(ctx: Context, args: Any) -> bool:
        return bool(await ctx.submit([node("x", same), node("y", same), node("z", same, needs=["y"])]))

    g = Noting(Graph("g", limits=Limits(starts=2)))
    g.add("a", does=grows)
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "x": "completed", "y": "denied", "z": "skipped"}
    assert result.status == "failed"


async def test_what_is_submitted_waits_for_a_slot_of_a_parked_step(world: World) -> None:
    ran: list[str] = []

    async def grows(ctx: Context, args: Any) -> None:
        await ctx.submit([node("x", same)])
        await ctx.sleep("nap", 10)
        ran.append("a")

    g = Noting(Graph("g", limits=Limits(running=1)))
    g.add("a", does=grows)
    result = await run(world, g.graph)
    assert ran == ["a"]
    assert result.outcomes["x"].status == "completed"


@pytest.mark.parametrize(
    "limits",
    [Limits(running=0), Limits(starts=0), Limits(nodes=0), Limits(running=1), Limits(starts=1), Limits(nodes=1)],
)
async def test_the_final_step_runs_whatever_the_limits_are(world: World, limits: Limits) -> None:
    g = Noting(final="end", limits=limits)
    g.add("a")
    g.add("end")
    result = await run(world, g.graph)
    assert result.outcomes["end"].status == "completed"
    is_allowed = 0 not in (limits.running, limits.starts, limits.nodes)
    assert result.outcomes["a"].status == ("completed" if is_allowed else "denied")


async def test_a_final_step_that_would_open_what_was_blocked_comes_too_late(world: World) -> None:
    async def opens(ctx: Context, args: Any) -> None:
        ctx.patch(open=True)

    g = Noting(final="end", when_blocked="complete", context={"open": False})
    g.add("a", admit=E.ctx.open)
    g.add("end", does=opens)
    result = await run(world, g.graph)
    assert result.status == "partial"
    assert result.blocked == ["a"]
    assert g.ran == ["end"]


async def test_steps_are_submitted_by_many_clients_while_it_is_evicted_and_woken(driver: Driver) -> None:
    g = Noting(Graph("g", functions=[same]))
    g.add("a", does=parks)
    async with Runtime(driver, workflows=[g.graph]) as runtime, Client(driver) as client:
        handle = await runtime.start(g.graph, id="i")
        await until_status(handle, Status.WAITING)
        for number in range(6):
            if number % 2:
                await handle.evict()
            allowed: list[bool] = []

            async def submits(step: str, own: str, allowed: list[bool] = allowed) -> None:
                allowed.append(bool(await client.submit("i", [node(step, same), node(own, same)])))

            async with anyio.create_task_group() as group:
                for who in "xyz":
                    group.start_soon(submits, str(number), f"{number}{who}")
            assert sorted(allowed) == [False, False, True]
        await handle.send("never")
        result = await handle.result(timeout=PATIENCE)
        assert len(result.outcomes) == 1 + 2 * 6


async def test_many_instances_of_one_graph_and_two_workflows_that_run_it(driver: Driver) -> None:
    async def meets(args: Any) -> Any:
        return args

    graph = Graph("g", limits=Limits(running=2))
    graph.step("a", same)
    graph.step("b", same)
    graph.step("c", meets, needs=["a", "b"])

    @workflow
    async def once(ctx: Context, number: int) -> Any:
        return (await ctx.graph("only", graph, number)).outputs["c"]

    @workflow
    async def twice(ctx: Context, number: int) -> Any:
        found = await ctx.join(
            "join", {"p": lambda ctx: ctx.graph("g", graph, number), "q": lambda ctx: ctx.graph("g", graph, number + 1)}
        )
        return [one.outputs["a"] for one in found.values()]

    async with Runtime(driver, workflows=[graph, once, twice]) as runtime:
        handles = [await runtime.start(graph, number) for number in range(50)]
        assert await runtime.run(once, 5) == {"a": 5, "b": 5}
        assert await runtime.run(twice, 5) == [5, 6]
        for number, handle in enumerate(handles):
            assert (await handle.result(timeout=PATIENCE)).outputs["c"] == {"a": number, "b": number}


async def test_fail_fast_drops_what_waits_for_its_admission(world: World) -> None:
    async def fails(args: Any) -> None:
        raise CriticalError("broken")

    g = Noting(status="fail_fast", context={"open": False}, final="end")
    g.add("waits", admit=E.ctx.open)
    g.graph.step("fails", fails)
    g.add("end")
    result = await run(world, g.graph)
    assert by_status(result) == {"waits": "cancelled", "fails": "failed", "end": "completed"}


undone: list[str] = []


async def books(ctx: Context, args: Any) -> None:
    """Books, to be undone by a handler without a name, and goes on for long."""
    await ctx.step("book", lambda: args["n"], rollback=lambda result: undone.append(f"undo {result}"))
    await ctx.sleep("nap", 10_000)


async def submits_books(ctx: Context, args: Any) -> None:
    """Has a step that was submitted do it."""
    assert await ctx.submit([node("late", books, args={"n": "late"})])


async def maps_books(ctx: Context, args: Any) -> None:
    """Does it in a branch."""

    async def item(ctx: Context, number: int) -> None:
        await books(ctx, args)

    await ctx.map("map", item, [1])


async def runs_books(ctx: Context, args: Any) -> None:
    """Has a graph inside do it."""
    inner = Graph("inner")
    inner.step("books", books)
    await ctx.graph("inner", inner, args)


@pytest.mark.law(11)
@pytest.mark.settings(mode="yield")
@pytest.mark.parametrize("body", [books, submits_books, maps_books, runs_books])
@pytest.mark.parametrize("loses", ["a race", "to a quorum"])
async def test_what_a_lost_graph_was_about_to_do_is_undone_by_a_later_run(world: World, body: Any, loses: str) -> None:
    """Its firings have no end, and its marking is gone."""
    undone.clear()
    graph = Graph("lost")
    graph.step("first", same, next=arc("body", args={"n": "it"}))
    graph.step("body", body)

    @workflow
    async def raced(ctx: Context) -> None:
        async def runs(ctx: Context) -> None:
            await ctx.graph("graph", graph, {})

        async def wins(ctx: Context) -> None:
            await ctx.sleep("soon", 10)

        await ctx.race("race", {"graph": runs, "soon": wins})
        await ctx.sleep("later", 10)
        raise CriticalError("no")

    async def runs_lost(ctx: Context, args: Any) -> None:
        await ctx.graph("graph", graph, {})

    async def fails_later(ctx: Context, args: Any) -> None:
        await ctx.sleep("later", 10)
        raise CriticalError("no")

    outer = Graph("outer")
    outer.step("slow", runs_lost)
    outer.step("quick", naps)
    outer.step("join", fails_later, needs=["slow", "quick"], join=quorum(1))
    flow: Any = raced if loses == "a race" else outer
    result = await world.run(flow, {} if flow is outer else None)
    assert result.status is Status.ROLLED_BACK, result
    assert undone == ["undo late" if body is submits_books else "undo it"]
