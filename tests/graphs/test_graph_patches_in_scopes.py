"""`ctx.patch` in branches, loops, races and attempts of a body: a replay passes these by, and loses none of it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.graphs.running import HeldScans, Noting, run
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Break, Client, Context, Continue, Status, open_driver, run_workflow
from workflow_sdk.graphs import E, Graph, arc, node, quorum
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.patches import store_changes
from workflow_sdk.graphs.rows import Firing, packed
from workflow_sdk.testing import SimulatedCrash, crash_everywhere


async def joins(ctx: Context) -> None:
    """Two branches that change the context, one of them before the other is over."""

    async def quick(ctx: Context) -> None:
        ctx.patch(quick=1)

    async def slow(ctx: Context) -> None:
        await ctx.sleep("nap", 1)
        ctx.patch(slow=ctx.vars["quick"] + 1)

    await ctx.join("join", {"quick": quick, "slow": slow})


async def loops(ctx: Context) -> None:
    """A loop that notes its turns in the context."""

    async def turn(ctx: Context, number: int) -> Break[int] | Continue[int]:
        ctx.patch(turns=[*ctx.vars["turns"], number])
        await ctx.sleep("nap", 1)
        return Break(0) if number == 4 else Continue(number + 1)

    await ctx.loop("loop", turn, 0, commit_interval=2)


async def races(ctx: Context) -> None:
    """A loser that changes what was there, and what was not."""

    async def loser(ctx: Context) -> None:
        ctx.patch(lost=True, quick="lost")
        await ctx.listen("never")

    async def winner(ctx: Context) -> None:
        ctx.patch(won=True)
        await ctx.sleep("nap", 1)

    await ctx.race("race", {"loser": loser, "winner": winner})


async def attempts(ctx: Context) -> None:
    """A scope in a scope."""

    async def outer(ctx: Context) -> None:
        async def inner(ctx: Context, item: int) -> None:
            ctx.patch(**{f"item {item}": item})

        await ctx.map("map", inner, [1, 2])
        ctx.patch(won="attempted")

    await ctx.attempt("try", outer)


async def body(ctx: Context) -> dict[str, Any]:
    """All of it, and a wait after that."""
    ctx.patch(turns=[], quick=0)
    await joins(ctx)
    await loops(ctx)
    await races(ctx)
    await attempts(ctx)
    await ctx.sleep("nap", 1)
    return dict(ctx.vars)


ALL = {"quick": 1, "slow": 2, "turns": [0, 1, 2, 3, 4], "won": "attempted", "item 1": 1, "item 2": 2}


def scopes() -> Graph:
    """A step that does all of it, and one that is given the context after that."""
    graph = Graph("g")
    graph.step("a", body, next=arc("b", args=E.ctx))

    async def after(args: Any) -> Any:
        return args

    graph.step("b", after)
    return graph


async def test_what_scopes_of_a_body_have_changed_outlasts_every_replay(world: World) -> None:
    result = await run(world, scopes())
    assert result.outputs == {"a": ALL, "b": ALL}


async def paths_in_body(world: World, id: str) -> list[str]:
    """What can happen again in the body of the first step."""
    return [one.path for one in await world.history(id) if one.path.startswith("g/a/~0/")]


async def test_it_is_the_same_whatever_part_of_the_body_happens_again(world: World) -> None:
    await run(world, scopes())
    paths = await paths_in_body(world, "i")
    assert {"g/a/~0/join", "g/a/~0/join/slow/nap", "g/a/~0/loop/~3/nap", "g/a/~0/try", "g/a/~0/nap"} <= {*paths}
    async with Client(world.driver, clock=world.clock) as client:
        for number, path in enumerate(paths):
            await run(world, scopes(), id=f"i{number}")
            await client.handle(scopes(), f"i{number}").restart_from(path)
            result = await run(world, scopes(), id=f"i{number}")
            assert result.outputs == {"a": ALL, "b": ALL}, path


@pytest.mark.settings(mode="yield")
async def test_it_is_the_same_if_a_part_happens_again_while_the_body_is_under_way(world: World) -> None:
    """Also if that is done twice."""
    waits = 0
    while not (await world.once(scopes(), id="i")).status.is_terminal:
        waits += 1
        world.clock.advance(1)
    async with Client(world.driver, clock=world.clock) as client:
        for number in range(1, waits + 1):
            id = f"i{number}"
            for _ in range(number):
                await world.once(scopes(), id=id)
                world.clock.advance(1)
            for path in (await paths_in_body(world, id))[-2:]:
                if path in await paths_in_body(world, id):
                    await client.handle(scopes(), id).restart_from(path)
            result = await run(world, scopes(), id=id)
            assert result.outputs == {"a": ALL, "b": ALL}, number


@pytest.mark.parametrize(
    ("path", "after"),
    [
        ("g/a/~0/try/draw", {"got 4": 4, "got 5": 5, "got 6": 6}),
        ("g/a/~0/loop/~1/draw", {"got 1": 1, "got 2": 2, "got 4": 4}),
        ("g/a/~0/nap", {"got 1": 1, "got 2": 2, "got 3": 3}),
    ],
)
async def test_what_was_changed_where_it_happens_again_is_gone(world: World, path: str, after: dict[str, int]) -> None:
    drawn: list[int] = []

    def draw() -> int:
        drawn.append(len(drawn) + 1)
        return drawn[-1]

    async def draws(ctx: Context) -> None:
        got = await ctx.step("draw", draw)
        ctx.patch(**{f"got {got}": got})

    async def turn(ctx: Context, number: int) -> Break[int] | Continue[int]:
        await draws(ctx)
        return Break(0) if number == 1 else Continue(1)

    async def all_of_it(ctx: Context) -> dict[str, Any]:
        await ctx.attempt("try", draws)
        await ctx.loop("loop", turn, 0)
        await ctx.sleep("nap", 1)
        return dict(ctx.vars)

    graph = Graph("g")
    graph.step("a", all_of_it)
    assert (await run(world, graph)).outputs["a"] == {"got 1": 1, "got 2": 2, "got 3": 3}
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(graph, "i").restart_from(path)
    assert (await run(world, graph)).outputs["a"] == after


async def test_it_is_the_same_wherever_it_is_killed() -> None:
    await crash_everywhere(scopes(), commits_max=20)


def test_it_is_kept_while_the_firing_is_under_way_and_not_longer() -> None:
    marking = Marking()
    marking.put_firing(3, Firing("a", 0, b"", (), 0, 1, 0.0))
    store_changes(marking, 3, b"at", b"changes")
    kept = dict(packed(marking.take_changes()))
    marking.drop_firing(3)
    assert dict(packed(marking.take_changes())) == dict.fromkeys(kept)
    assert not marking.patches


async def test_a_retried_body_has_what_its_scopes_have_changed(world: World) -> None:
    seen: list[Any] = []

    async def fails_at_first(ctx: Context, args: Any) -> None:
        await joins(ctx)
        seen.append(dict(ctx.vars))
        if len(seen) < 3:
            raise ValueError("not yet")

    g = Noting(Graph("g"))
    g.add("a", does=fails_at_first)
    assert (await run(world, g.graph)).status == "succeeded"
    assert all(one == {"quick": 1, "slow": 2} for one in seen)


async def test_scopes_of_an_item_change_the_context_too(world: World) -> None:
    async def item(ctx: Context, number: int) -> Any:
        async def branch(ctx: Context) -> None:
            ctx.patch(**{str(number): number})

        await ctx.join("join", {"only": branch})
        await ctx.sleep("nap", number)
        return ctx.vars[str(number)]

    graph = Graph("g")
    graph.step("a", item, each=[1, 2, 3], next=arc("b", args=E.ctx))
    graph.step("b", keeps)
    result = await run(world, graph)
    assert result.outputs == {"a": [1, 2, 3], "b": {"1": 1, "2": 2, "3": 3}}


async def keeps(args: Any) -> Any:
    """Gives back its arguments."""
    return args


async def test_a_step_inside_a_body_can_not_change_the_context(world: World) -> None:
    async def patches_in_a_step(ctx: Context, args: Any) -> None:
        async def inside() -> None:
            ctx.patch(a=1)

        await ctx.step("inside", inside)

    g = Noting(Graph("g"))
    g.add("a", does=patches_in_a_step)
    result = await world.run(g.graph)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert "inside a step" in result.error.message


async def test_steps_are_submitted_in_a_branch_once(world: World) -> None:
    async def grows(ctx: Context, args: Any) -> Any:
        async def branch(ctx: Context) -> bool:
            return bool(await ctx.submit([node("x", keeps, args=1)]))

        found = await ctx.join("join", {"only": branch})
        await ctx.sleep("nap", 1)
        return found

    g = Noting(Graph("g"))
    g.add("a", does=grows)
    result = await run(world, g.graph)
    assert result.outputs == {"a": {"only": True}, "x": 1}


async def undone(value: Any) -> None:
    """Undoes nothing."""


@pytest.mark.law(1)
async def test_it_is_stored_with_the_scope_though_another_end_is_being_decided() -> None:
    """The end of `wins` cancels `loses`, and waits for a copy of its history. There the worker dies."""
    driver = await open_driver("memory://")
    held, stored = HeldScans(driver), anyio.Event()

    async def wins(ctx: Context, args: Any) -> None:
        await ctx.step("bill", lambda: 1, rollback=undone)
        held.is_armed = not held.held.is_set()

    async def never(ctx: Context, args: Any) -> None:
        await ctx.listen("never")

    async def changes(ctx: Context, args: Any) -> Any:
        async def branch(ctx: Context) -> None:
            await held.held.wait()
            ctx.patch(changed=True)

        await ctx.join("join", {"only": branch})
        if not held.is_dead:
            stored.set()
            await anyio.sleep_forever()
        return ctx.vars["changed"]

    g = Noting(Graph("g", context={"changed": False}))
    g.add("wins", does=wins)
    g.add("loses", does=never)
    g.add("changes", does=changes)
    g.add("join", needs=["wins", "loses"], join=quorum(1))

    async def dies() -> None:
        await stored.wait()
        held.is_dead = True
        held.let_go.set()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(dies)
            with pytest.raises((SimulatedCrash, BaseExceptionGroup)):
                await run_workflow(g.graph, driver=held, instance_id="i")
        result = await run_workflow(g.graph, driver=driver, instance_id="i")
    assert result.output is not None, result
    assert result.output.outputs["changes"] is True
