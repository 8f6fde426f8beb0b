"""What a body may do: options of a step, operations, foreign awaits, the context of the graph."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.graphs.running import Noting, by_status, ended, run, waiting
from tests.hasty_clock import hasty_clock
from tests.support import World
from workflow_sdk import (
    Backoff,
    Break,
    Client,
    Context,
    Continue,
    CriticalError,
    RollbackError,
    Status,
    StepError,
    workflow,
)
from workflow_sdk.graphs import E, Graph, arc

EXACT = Backoff(initial=1, factor=1, maximum=1, jitter=0)

# A body without operations.


async def test_a_body_without_operations_is_retried(world: World) -> None:
    async def fails_twice(ctx: Context, args: Any) -> int:
        if g.count("a") < 3:
            raise ValueError("not yet")
        return g.count("a")

    g = Noting()
    g.add("a", does=fails_twice, next="b", retries=2, backoff=EXACT)
    g.add("b")
    result = await run(world, g.graph)
    assert g.ran == ["a", "a", "a", "b"]
    assert result.outcomes["a"].firings == 1, "retries are no firings"
    assert (result.outputs["a"], (await world.history())["g/a/~0"].attempts) == (3, 3)


@pytest.mark.law(4)
async def test_a_body_is_retried_three_times_by_default(world: World) -> None:
    async def fails(ctx: Context, args: Any) -> None:
        raise ValueError("never")

    g = Noting()
    g.add("a", does=fails)
    result = await run(world, g.graph)
    assert g.count("a") == 4
    assert "never" in result.outcomes["a"].reason


async def test_retries_are_waited_for_by_the_clock(world: World) -> None:
    times: list[float] = []

    async def fails_once(ctx: Context, args: Any) -> None:
        times.append(world.clock.time())
        if len(times) == 1:
            raise ValueError("not yet")

    g = Noting()
    g.add("a", does=fails_once, backoff=Backoff(initial=50, factor=1, maximum=50, jitter=0))
    await run(world, g.graph)
    assert times[1] - times[0] == pytest.approx(50)


@pytest.mark.parametrize("options", [{"retries": 0}, {"retries": 5, "no_retry": (ValueError,)}])
async def test_what_is_not_to_be_retried_is_not(world: World, options: dict[str, Any]) -> None:
    async def fails(ctx: Context, args: Any) -> None:
        raise ValueError("no")

    g = Noting()
    g.add("a", does=fails, next=arc("b", on="failed"), **options)
    g.add("b")
    await run(world, g.graph)
    assert g.ran == ["a", "b"]


async def test_a_timeout_ends_an_attempt(world: World) -> None:
    world.clock = hasty_clock()

    async def hangs(ctx: Context, args: Any) -> None:
        await anyio.sleep_forever()

    g = Noting()
    arcs = [arc("b", on="failed", args={"error": E.error.type, "kind": E.error.kind})]
    g.add("a", does=hangs, timeout=timedelta(seconds=5), retries=1, backoff=EXACT, next=arcs)
    g.add("b")
    result = await run(world, g.graph)
    assert g.ran == ["a", "a", "b"]
    assert by_status(result) == {"a": "failed", "b": "completed"}
    assert "Timeout" in g.args["b"][0]["error"]
    assert g.args["b"][0]["kind"] == "timeout"


@pytest.mark.law(11)
async def test_the_rollback_of_a_step_undoes_its_firings_newest_first(world: World) -> None:
    undone: list[Any] = []

    async def undo(result: Any) -> None:
        undone.append(result)

    g = Noting()
    g.add("a", 1, rollback=undo, next="b")
    g.add("b", 2, rollback=undo, next="c")
    g.add("c", fails="no")
    result = await run(world, g.graph)
    assert undone == [2, 1]
    assert by_status(result) == {"a": "completed", "b": "completed", "c": "failed"}
    assert (await ended(world, g.graph)).status == "rolled_back"


async def test_nothing_is_undone_if_the_graph_succeeds(world: World) -> None:
    undone: list[Any] = []

    async def undo(result: Any) -> None:
        undone.append(result)

    g = Noting()
    g.add("a", 1, rollback=undo, next="b")
    g.add("b", fails="no", rollback=undo, next=arc("c", on="failed"))
    g.add("c")
    assert (await run(world, g.graph)).status == "succeeded"
    assert undone == []


async def test_steps_inside_a_body_are_undone_too(world: World) -> None:
    undone: list[Any] = []

    async def undo(result: Any) -> None:
        undone.append(result)

    async def charges(ctx: Context, args: Any) -> int:
        return await ctx.step("charge", lambda: 5, rollback=undo)

    g = Noting()
    g.add("a", does=charges, next="b")
    g.add("b", fails="no")
    await run(world, g.graph)
    assert undone == [5]


# A body with operations.


@pytest.mark.law(11)
@pytest.mark.settings(mode="yield")
async def test_what_a_firing_under_way_has_done_is_undone_by_a_handler_without_a_name(world: World) -> None:
    undone: list[Any] = []

    async def books(ctx: Context, args: Any) -> None:
        await ctx.step("book", lambda: args["n"], rollback=lambda result: undone.append(result))
        await ctx.listen("never")

    g = Noting()
    g.add("a", next=arc("b", args={"n": 7}))
    g.add("b", does=books)
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").cancel(rollback=True)
    result = await world.run(g.graph)
    assert (result.status, undone) == (Status.CANCELLED, [7])


@pytest.mark.settings(mode="yield")
async def test_a_rollback_error_undoes_what_others_under_way_have_done(world: World) -> None:
    """Also if it is not the run that has begun them which undoes it."""
    undone: list[Any] = []
    tries: list[Any] = []

    def undo(result: Any) -> None:
        tries.append(result)
        if len(tries) == 1:
            raise ValueError("not yet")
        undone.append(result)

    async def books(ctx: Context, args: Any) -> None:
        await ctx.step("book", lambda: args["n"], rollback=undo)
        await ctx.listen("never")

    async def unwinds(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)
        raise RollbackError("enough")

    g = Noting()
    g.add("a", mode="inclusive", next=[arc("b", args={"n": 7}), arc("c")])
    g.add("b", does=books)
    g.add("c", does=unwinds)
    result = await world.run(g.graph)
    assert (result.status, undone) == (Status.ROLLED_BACK, [7])


async def test_a_body_with_operations_is_replayed_and_its_steps_are_not_run_again(world: World) -> None:
    ran: list[str] = []

    def does(name: str, value: int) -> int:
        ran.append(name)
        return value

    async def works(ctx: Context, args: Any) -> Any:
        first = await ctx.step("first", does, "first", 1)
        await ctx.sleep("nap", 3600)
        second = await ctx.step("second", does, "second", 2)
        return [first, second, ctx.path]

    g = Noting()
    g.add("a", does=works, next="b")
    g.add("b")
    result = await run(world, g.graph)
    assert ran == ["first", "second"]
    assert result.outputs["a"] == [1, 2, "g/a/~0"]
    history = await world.history()
    assert [path for path in (entry.path for entry in history) if path.startswith("g/a")] == [
        *("g/a/~0", "g/a/~0/first", "g/a/~0/nap", "g/a/~0/second")
    ]


async def test_two_firings_of_one_step_may_use_the_same_names(world: World) -> None:
    async def works(ctx: Context, args: Any) -> Any:
        await ctx.sleep("nap", 10 * args["n"])
        return await ctx.step("work", lambda: args["n"])

    g = Noting()
    g.add("a", mode="inclusive", next=[arc("b", args={"n": 1}), arc("b", args={"n": 2})])
    g.add("b", does=works)
    await run(world, g.graph)
    history = await world.history()
    assert {history["g/b/~0/work"].value, history["g/b/~1/work"].value} == {1, 2}


async def test_a_step_that_fails_inside_a_body_can_be_caught_there(world: World) -> None:
    def fails() -> None:
        raise CriticalError("no")

    async def catches(ctx: Context, args: Any) -> str:
        try:
            await ctx.step("s", fails)
        except StepError as error:
            return error.error.message
        return "none"

    g = Noting()
    g.add("a", does=catches)
    assert (await run(world, g.graph)).outputs == {"a": "no"}


async def test_a_step_that_fails_inside_a_body_fails_the_firing(world: World) -> None:
    def fails() -> None:
        raise CriticalError("no money")

    async def works(ctx: Context, args: Any) -> None:
        await ctx.step("s", fails)

    g = Noting()
    g.add("a", does=works, next=arc("b", on="failed"))
    g.add("b")
    result = await run(world, g.graph)
    assert "no money" in result.outcomes["a"].reason
    assert g.ran[-1] == "b"
    assert result.status == "succeeded"


async def test_every_verb_of_ctx_works_in_a_body(world: World) -> None:
    @workflow(name="kid")
    async def kid(ctx: Context, n: int) -> int:
        return n + 1

    async def turn(ctx: Context, state: int) -> Any:
        return Break(state) if state == 3 else Continue(state + 1)

    async def naps(ctx: Context) -> str:
        await ctx.sleep("nap", 5)
        return "slept"

    async def quick(ctx: Context) -> str:
        return await ctx.step("q", lambda: "quick")

    async def works(ctx: Context, args: Any) -> Any:
        joined = await ctx.join("join", {"a": naps, "b": quick})
        raced = await ctx.race("race", {"a": naps, "b": quick})
        looped = await ctx.loop("loop", turn, 0)
        mapped = await ctx.map("map", lambda ctx, item: ctx.step("s", abs, item), [-1, -2])
        child = await ctx.child("child", kid, 1)
        return [joined, raced.winner, looped, mapped, child]

    g = Noting()
    g.add("a", does=works)
    result = await run(world, g.graph)
    assert result.outputs["a"] == [{"a": "slept", "b": "quick"}, "b", 3, [1, 2], 2]


async def test_a_body_can_wait_for_a_message(world: World) -> None:
    async def asks(ctx: Context, args: Any) -> Any:
        return await ctx.listen("answer")

    g = Noting()
    g.add("a", does=asks, next=[arc("b", when=E.output == 42)])
    g.add("b")
    result = await world.run(g.graph, script=[("answer", 42)])
    assert result.output is not None
    assert result.output.outputs == {"a": 42, "b": None}


async def test_a_graph_can_be_run_inside_a_body(world: World) -> None:
    inner = Noting(Graph("inner"))
    inner.add("x", 7, next="y")
    inner.add("y", 8)

    async def nests(ctx: Context, args: Any) -> Any:
        return (await ctx.graph("nested", inner.graph, {"n": 1})).outputs

    g = Noting()
    g.add("a", does=nests)
    result = await run(world, g.graph)
    assert result.outputs == {"a": {"x": 7, "y": 8}}
    assert inner.args["x"] == [{"n": 1}]
    assert "g/a/~0/nested/x/~0" in await world.history()


async def test_foreign_awaits_are_allowed_in_a_body(world: World) -> None:
    async def awaits(ctx: Context, args: Any) -> Any:
        threads = await anyio.to_thread.run_sync(threading.get_ident)
        first = await ctx.step("first", lambda: 1)
        await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)
        second = await ctx.step("second", lambda: 2)
        return [first, second, threads != 0]

    g = Noting()
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", does=awaits)
    g.add("c", does=awaits)
    result = await run(world, g.graph)
    assert result.outputs["b"] == result.outputs["c"] == [1, 2, True]


async def test_facts_of_a_firing_are_the_same_on_replay(world: World) -> None:
    seen: list[list[Any]] = []

    async def looks(ctx: Context, args: Any) -> None:
        seen.append([ctx.uuid(), ctx.random.random(), ctx.now()])
        await ctx.sleep("nap", 60)

    g = Noting()
    g.add("a", does=looks, next="b")
    g.add("b", does=looks)
    await run(world, g.graph)
    assert len({str(one) for one in seen}) == 2, "two firings differ, each is the same however often it is replayed"


# The context of the graph.


async def test_vars_is_the_context_and_patch_changes_it_for_those_that_come_after(world: World) -> None:
    seen: list[Any] = []

    async def changes(ctx: Context, args: Any) -> None:
        seen.append(dict(ctx.vars))
        ctx.patch(tries=1, deep={"x": [1]})
        seen.append(dict(ctx.vars))

    async def looks(ctx: Context, args: Any) -> None:
        seen.append(dict(ctx.vars))

    g = Noting(context={"budget": 3, "tries": 0})
    g.add("a", does=changes, next=[arc("b", when=E.ctx.tries == 1)])
    g.add("b", does=looks)
    await run(world, g.graph)
    assert seen == [
        {"budget": 3, "tries": 0},
        {"budget": 3, "tries": 1, "deep": {"x": [1]}},
        {"budget": 3, "tries": 1, "deep": {"x": [1]}},
    ]


@pytest.mark.law(1)
async def test_a_patch_is_seen_by_others_only_at_the_end_of_its_firing(world: World) -> None:
    patched, looked = anyio.Event(), anyio.Event()
    seen: list[Any] = []

    async def patches(ctx: Context, args: Any) -> None:
        ctx.patch(n=1)
        patched.set()
        await looked.wait()

    async def starts_between(ctx: Context, args: Any) -> None:
        await patched.wait()

    async def looks(ctx: Context, args: Any) -> None:
        seen.append(ctx.vars["n"])
        looked.set()

    g = Noting(context={"n": 0})
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", does=patches, next="e")
    g.add("c", does=starts_between, next=[arc("d", when=E.ctx.n == 0)])
    g.add("d", does=looks)
    g.add("e", does=looks)
    await run(world, g.graph)
    assert seen == [0, 1]


async def test_the_patches_of_a_failed_firing_are_dropped(world: World) -> None:
    async def patches_and_fails(ctx: Context, args: Any) -> None:
        ctx.patch(n=1)
        assert ctx.vars["n"] == 1
        raise CriticalError("no")

    async def looks(ctx: Context, args: Any) -> Any:
        return ctx.vars["n"]

    g = Noting(context={"n": 0})
    g.add("a", does=patches_and_fails, next=arc("b", on="failed", args={"n": E.ctx.n}))
    g.add("b", does=looks)
    result = await run(world, g.graph)
    assert result.outputs == {"b": 0}
    assert g.args["b"] == [{"n": 0}]


async def test_the_patches_of_a_failed_firing_with_operations_are_dropped(world: World) -> None:
    async def patches_and_fails(ctx: Context, args: Any) -> None:
        ctx.patch(n=1)
        await ctx.sleep("nap", 5)
        ctx.patch(m=1)
        raise CriticalError("no")

    async def looks(ctx: Context, args: Any) -> Any:
        return dict(ctx.vars)

    g = Noting(context={"n": 0})
    g.add("a", does=patches_and_fails, next=arc("b", on="failed"))
    g.add("b", does=looks)
    assert (await run(world, g.graph)).outputs == {"b": {"n": 0}}


@pytest.mark.law(1)
async def test_the_patches_of_a_firing_whose_guard_has_no_answer_are_dropped(world: World) -> None:
    async def patches(ctx: Context, args: Any) -> None:
        ctx.patch(n=1)

    async def looks(ctx: Context, args: Any) -> Any:
        return ctx.vars["n"]

    g = Noting(context={"n": 0})
    g.add("a", does=patches, next=[arc("c", when="output.nothing"), arc("b", on="failed", args={"n": E.ctx.n})])
    g.add("b", does=looks)
    g.add("c")
    result = await run(world, g.graph)
    assert result.outputs == {"b": 0}
    assert g.args["b"] == [{"n": 0}]


@pytest.mark.law(1)
async def test_the_patches_of_a_failed_attempt_are_dropped(world: World) -> None:
    seen: list[Any] = []

    async def patches(ctx: Context, args: Any) -> None:
        seen.append(dict(ctx.vars))
        if len(seen) == 1:
            ctx.patch(bad=1)
            raise ValueError("once more")
        ctx.patch(good=1)

    async def looks(ctx: Context, args: Any) -> Any:
        return dict(ctx.vars)

    g = Noting(context={"n": 0})
    g.add("a", does=patches, next="b", backoff=EXACT)
    g.add("b", does=looks)
    result = await run(world, g.graph)
    assert seen == [{"n": 0}, {"n": 0}]
    assert result.outputs["b"] == {"n": 0, "good": 1}


@pytest.mark.law(4)
async def test_vars_are_the_same_on_every_replay_of_a_firing(world: World) -> None:
    """While `b` sleeps, `c` changes the context: `b` goes on with what it read when it began."""
    seen: list[Any] = []

    async def naps(ctx: Context, args: Any) -> Any:
        before = ctx.vars["n"]
        seen.append(before)
        await ctx.sleep("nap", 60)
        return [before, ctx.vars["n"]]

    async def patches(ctx: Context, args: Any) -> None:
        await ctx.sleep("short", 5)
        ctx.patch(n=1)

    g = Noting(context={"n": 0})
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", does=naps)
    g.add("c", does=patches, next="d")
    g.add("d", does=lambda ctx, args: ctx.step("look", lambda: ctx.vars["n"]))
    result = await run(world, g.graph)
    assert set(seen) == {0}
    assert result.outputs["b"] == [0, 0]
    assert result.outputs["d"] == 1


async def test_patches_of_a_firing_that_is_replayed_count_once(world: World) -> None:
    async def counts(ctx: Context, args: Any) -> None:
        ctx.patch(n=ctx.vars["n"] + 1)
        await ctx.sleep("nap", 60)
        ctx.patch(n=ctx.vars["n"] + 10)

    async def looks(ctx: Context, args: Any) -> Any:
        return ctx.vars["n"]

    g = Noting(context={"n": 0})
    g.add("a", does=counts, next="b")
    g.add("b", does=looks)
    assert (await run(world, g.graph)).outputs["b"] == 11


async def test_vars_can_not_be_changed_but_by_patch(world: World) -> None:
    async def spoils(ctx: Context, args: Any) -> None:
        ctx.vars["list"].append(2)

    async def looks(ctx: Context, args: Any) -> Any:
        return ctx.vars["list"]

    g = Noting(context={"list": [1]})
    g.add("a", does=spoils, next=[arc("b", on="any")], retries=0)
    g.add("b", does=looks)
    assert (await run(world, g.graph)).outputs["b"] == [1]


async def test_the_context_of_one_run_is_not_that_of_another(world: World) -> None:
    async def counts(ctx: Context, args: Any) -> Any:
        ctx.patch(n=ctx.vars["n"] + 1)
        return ctx.vars["n"]

    g = Noting(context={"n": 0})
    g.add("a", does=counts)
    assert (await run(world, g.graph, id="one")).outputs["a"] == 1
    assert (await run(world, g.graph, id="two")).outputs["a"] == 1


async def test_two_firings_at_once_each_patch_their_own(world: World) -> None:
    async def left(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 5)
        ctx.patch(left=1)

    async def right(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 5)
        ctx.patch(right=1)

    async def looks(ctx: Context, args: Any) -> Any:
        return dict(ctx.vars)

    g = Noting(context={})
    g.add("l", does=left)
    g.add("r", does=right)
    g.add("look", does=looks, needs=["l", "r"])
    assert (await run(world, g.graph)).outputs["look"] == {"left": 1, "right": 1}


async def test_a_patch_from_outside_does_not_change_what_a_firing_under_way_reads(world: World) -> None:
    async def asks(ctx: Context, args: Any) -> Any:
        before = ctx.vars["n"]
        await ctx.listen("go")
        return [before, ctx.vars["n"]]

    async def looks(ctx: Context, args: Any) -> Any:
        return ctx.vars["n"]

    g = Noting(context={"n": 0})
    g.add("a", does=asks, next="b")
    g.add("b", does=looks)
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").patch(n=1)
    await waiting(world, g.graph)
    await world.send("go")
    result = await run(world, g.graph)
    assert result.outputs == {"a": [0, 0], "b": 1}


async def test_of_two_patches_of_one_value_the_one_that_ends_last_stays(world: World) -> None:
    async def later(ctx: Context, args: Any) -> None:
        ctx.patch(n=args["n"])
        await ctx.sleep("nap", 10 * args["n"])

    async def looks(ctx: Context, args: Any) -> Any:
        return ctx.vars["n"]

    g = Noting(context={"n": 0})
    g.add("a", mode="inclusive", next=[arc("b", args={"n": 2}), arc("b2", args={"n": 1})])
    g.add("b", does=later)
    g.add("b2", does=later)
    g.add("m", does=looks, needs=["b", "b2"])
    assert (await run(world, g.graph)).outputs["m"] == 2
