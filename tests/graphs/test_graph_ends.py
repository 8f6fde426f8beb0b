"""The end of a graph: when it is there, `final`, the result, and what the instance ends as."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.graphs.running import Noting, by_status, ended, run
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Backoff,
    Client,
    Context,
    CriticalError,
    DefinitionError,
    Driver,
    GraphFailedError,
    Status,
    run_workflow,
    workflow,
)
from workflow_sdk.graphs import E, Graph, GraphResult, Limits, Outcome, Summary, arc
from workflow_sdk.testing import VirtualClock

EXACT = Backoff(initial=1, factor=1, maximum=1, jitter=0)


# Quiescence and final.


@pytest.mark.law(9)
async def test_final_runs_once_when_nothing_else_is_left(world: World) -> None:
    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)
        done.append("b")

    async def fails_once(ctx: Context, args: Any) -> None:
        if g.count("c") == 1:
            raise ValueError("not yet")
        done.append("c")

    async def last(ctx: Context, args: Any) -> None:
        done.append("end")

    done: list[str] = []
    g = Noting(final="end")
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", does=naps, next="d")
    g.add("c", does=fails_once, backoff=EXACT)
    g.add("d", does=lambda ctx, args: naps(ctx, args))
    g.add("end", does=last)
    result = await run(world, g.graph)
    assert done[-1] == "end"
    assert sorted(done) == ["b", "b", "c", "end"]
    assert (result.status, result.outcomes["end"]) == ("succeeded", Outcome("completed", "", 1))


async def test_final_is_given_a_summary(world: World) -> None:
    seen: list[Any] = []
    graph = Graph("g", final="end", status="lenient")

    async def ok(ctx: Context, args: Any) -> int:
        return 1

    async def bad(ctx: Context, args: Any) -> None:
        raise ValueError("broken")

    async def end(ctx: Context, summary: Summary) -> str:
        seen.append(summary)
        return "reported"

    graph.step("a", ok)
    graph.step("b", bad, retries=0)
    graph.step("c", ok, needs=["b"])
    graph.step("end", end)
    result = await run(world, graph)
    (summary,) = {str(one): one for one in seen}.values()
    assert isinstance(summary, Summary)
    assert summary.instance_id == "i"
    assert summary.outputs == {"a": 1}
    assert summary.failures.keys() == {"b"}
    assert "broken" in summary.failures["b"]
    assert {status: count for status, count in summary.counts.items() if count} == {
        "completed": 1,
        "failed": 1,
        "skipped": 1,
    }
    assert result.outputs["end"] == "reported"


async def test_final_runs_after_a_failure_too(world: World) -> None:
    g = Noting(final="end")
    g.add("a", fails="no")
    g.add("end")
    result = await run(world, g.graph)
    assert g.ran == ["a", "end"]
    assert result.status == "failed"
    assert result.outcomes["end"].status == "completed"


async def test_no_graph_needs_a_final_or_a_noop(world: World) -> None:
    g = Noting()
    g.add("only")
    assert (await run(world, g.graph)).outcomes == {"only": Outcome("completed", "", 1)}


async def test_a_final_that_fails_fails_the_graph(world: World) -> None:
    g = Noting(final="end")
    g.add("a", 1)
    g.add("end", fails="no")
    result = await run(world, g.graph)
    assert (result.status, result.outputs) == ("failed", {"a": 1})
    assert by_status(result) == {"a": "completed", "end": "failed"}


async def test_a_final_that_fails_makes_it_partial_if_that_is_asked_for(world: World) -> None:
    g = Noting(final="end", final_failure="partial")
    g.add("a", 1)
    g.add("end", fails="no")
    result = await run(world, g.graph)
    assert (result.status, result.outputs) == ("partial", {"a": 1})


@pytest.mark.law(1)
async def test_a_final_may_wait_and_submit_nothing_twice(world: World) -> None:
    async def naps(ctx: Context, args: Any) -> str:
        await ctx.sleep("nap", 60)
        return "end"

    g = Noting(final="end")
    g.add("a")
    g.add("end", does=naps)
    result = await run(world, g.graph)
    assert result.outcomes["end"].firings == 1
    assert result.outputs["end"] == "end"


# The status.


def mixed(**options: Any) -> Noting:
    """One step of each end, but for cancelled."""
    g = Noting(**options)
    g.add("start", 1, mode="inclusive", next=[arc("ok"), arc("bad"), arc("never", when=E.output == 2)])
    g.add("ok")
    g.add("bad", fails="broken")
    g.add("never")
    g.add("skipped", needs=["ok", "bad"])
    return g


async def test_strict_fails_with_an_unhandled_failure(world: World) -> None:
    result = await run(world, mixed().graph)
    assert result.status == "failed"
    assert by_status(result) == {
        "start": "completed",
        "ok": "completed",
        "bad": "failed",
        "never": "never_reached",
        "skipped": "skipped",
    }
    assert result.outputs.keys() == {"start", "ok"}, "outputs of completed ones only"


async def test_lenient_is_partial_if_any_step_completed(world: World) -> None:
    result = await run(world, mixed(status="lenient").graph)
    assert result.status == "partial"
    assert result.outputs == {"start": 1, "ok": None}
    async with Client(world.driver) as client:
        assert (await client.handle("g", "i").info()).status is Status.COMPLETED


async def test_lenient_fails_if_none_completed(world: World) -> None:
    g = Noting(status="lenient")
    g.add("a", fails="no")
    assert (await run(world, g.graph)).status == "failed"


async def test_lenient_without_a_failure_succeeds(world: World) -> None:
    g = Noting(status="lenient")
    g.add("a")
    assert (await run(world, g.graph)).status == "succeeded"


async def test_lenient_is_partial_after_a_permanent_denial(world: World) -> None:
    g = Noting(status="lenient", limits=Limits(starts=1))
    g.add("a")
    g.add("b")
    result = await run(world, g.graph)
    assert (result.status, by_status(result)) == ("partial", {"a": "completed", "b": "denied"})


async def test_fail_fast_ends_what_is_under_way(world: World) -> None:
    cleaned: list[str] = []
    began = anyio.Event()

    async def hangs(ctx: Context, args: Any) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append("b")

    async def fails(ctx: Context, args: Any) -> None:
        await began.wait()
        raise ValueError("broken")

    g = Noting(status="fail_fast")
    g.add("a", does=fails, retries=0)
    g.add("b", does=hangs)
    g.add("c", needs=["a"])
    g.add("d", needs=["b"])
    result = await run(world, g.graph)
    assert cleaned == ["b"]
    assert result.status == "failed"
    assert by_status(result)["a"] == "failed"
    assert by_status(result)["b"] == "cancelled"
    assert set(result.outcomes) == {"a", "b", "c", "d"}
    assert "c" not in g.ran and "d" not in g.ran  # noqa: PT018


async def test_fail_fast_ends_a_parked_firing_at_once(world: World) -> None:
    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 10_000)

    began = world.clock.time()
    g = Noting(status="fail_fast")
    g.add("a", fails="no")
    g.add("b", does=naps)
    result = await run(world, g.graph)
    assert result.status == "failed"
    assert world.clock.time() - began < 10_000


async def test_fail_fast_is_not_moved_by_a_failure_that_is_handled(world: World) -> None:
    g = Noting(status="fail_fast")
    g.add("a", fails="no", next=arc("b", on="failed"))
    g.add("b", next="c")
    g.add("c")
    result = await run(world, g.graph)
    assert (g.ran, result.status) == (["a", "b", "c"], "succeeded")


# Outcomes.


async def test_the_last_firing_counts(world: World) -> None:
    async def fails_at_first(ctx: Context, args: Any) -> int:
        if g.count("a") == 1:
            raise ValueError("broken")
        return g.count("a")

    g = Noting()
    g.add("a", does=fails_at_first, retries=0, next=arc("mend", on="failed"))
    g.add("mend", next="a")
    result = await run(world, g.graph)
    assert result.outcomes["a"] == Outcome("completed", "", 2)
    assert result.outputs["a"] == 2
    assert result.status == "succeeded"


@pytest.mark.parametrize(("status", "came_to"), [("strict", "failed"), ("lenient", "partial")])
async def test_an_earlier_failure_that_counts_is_told_of_a_step_that_is_completed(
    world: World, status: str, came_to: str
) -> None:
    async def fails_first(ctx: Context, number: int) -> int:
        if number == 1:
            raise CriticalError("broken")
        return number

    g = Noting(status=status, entry="fine")
    g.add("fork", mode="inclusive", next=[arc("a", args=1), arc("between")])
    g.add("between", next=arc("a", args=2))
    g.add("a", does=fails_first)
    g.add("fine", fails="this is handled", next=arc("fork", on="failed"))
    result = await run(world, g.graph)
    assert result.status == came_to
    assert result.outcomes["a"] == Outcome("completed", "an earlier firing has failed: CriticalError: broken", 2)
    assert result.outputs["a"] == 2
    if came_to == "failed":
        error = str(await ended(world, g.graph))
        assert "graph 'g' failed: step 'a' (an earlier firing has failed: CriticalError: broken)" in error


async def test_a_step_that_failed_last_has_no_output_though_it_completed_before(world: World) -> None:
    async def fails_in_the_end(ctx: Context, args: Any) -> int:
        if g.count("a") == 2:
            raise ValueError("broken")
        return 1

    g = Noting()
    g.add("a", does=fails_in_the_end, retries=0, next=arc("b"))
    g.add("b", next="a")
    result = await run(world, g.graph)
    assert (result.outcomes["a"].status, result.outcomes["a"].firings) == ("failed", 2)
    assert "a" not in result.outputs
    assert result.status == "failed"


@pytest.mark.law(11)
async def test_a_failure_in_an_earlier_firing_that_nothing_handled_is_a_failure(world: World) -> None:
    """Two tokens on `b`: the first fails, the second completes. The last counts for the outcome, both for the graph."""

    async def fails_for_1(ctx: Context, args: Any) -> int:
        if args["n"] == 1:
            raise ValueError("broken")
        await ctx.sleep("nap", 60)
        return 2

    g = Noting()
    g.add("a", mode="inclusive", next=[arc("b", args={"n": 1}), arc("b", args={"n": 2})])
    g.add("b", does=fails_for_1, retries=0)
    result = await run(world, g.graph)
    assert (result.outcomes["b"].status, result.outcomes["b"].firings) == ("completed", 2)
    assert result.status == "failed"


@pytest.mark.law(11)
async def test_a_failure_that_nothing_handled_is_one_though_the_next_was_handled(world: World) -> None:
    async def fails(ctx: Context, args: Any) -> None:
        if args["n"] == 2:
            await ctx.sleep("nap", 60)
        raise ValueError("broken")

    g = Noting()
    g.add("a", mode="inclusive", next=[arc("b", args={"n": 1}), arc("b", args={"n": 2})])
    g.add("b", does=fails, retries=0, next=arc("c", on="failed", when=E.args.n == 2))
    g.add("c")
    result = await run(world, g.graph)
    assert (result.outcomes["b"].firings, g.count("c")) == (2, 1)
    assert result.status == "failed"


async def test_every_node_has_an_outcome_also_in_a_graph_that_was_never_reached(world: World) -> None:
    g = Noting()
    g.add("a", 1, next=[arc("b", when=E.output == 2)])
    g.add("b", next="c")
    g.add("c")
    g.add("m", needs=["b", "c"], join="alive")
    result = await run(world, g.graph)
    assert by_status(result)["b"] == by_status(result)["c"] == "never_reached"
    assert by_status(result)["m"] in ("skipped", "never_reached")
    assert result.outcomes["b"].reason
    assert result.status == "succeeded"


# The instance.


async def test_a_graph_that_succeeds_completes_the_instance(world: World) -> None:
    g = Noting()
    g.add("a", {"x": 1})
    await run(world, g.graph)
    async with Client(world.driver) as client:
        info = await client.handle(g.graph, "i").info()
        result = await client.handle(g.graph, "i").result()
        plain = await client.handle("g", "i").result()
    assert info.status is Status.COMPLETED
    assert result == GraphResult("succeeded", {"a": Outcome("completed", "", 1)}, {"a": {"x": 1}}, [])
    assert plain["outputs"] == {"a": {"x": 1}}
    assert plain["outcomes"]["a"]["status"] == "completed"


async def test_a_failed_graph_fails_the_instance_and_keeps_its_result(world: World) -> None:
    g = mixed()
    result = await run(world, g.graph)
    error = await ended(world, g.graph)
    assert error.status is Status.FAILED
    assert error.result == result
    async with Client(world.driver) as client:
        info = await client.handle(g.graph, "i").info()
    assert info.status is Status.FAILED
    assert info.output["status"] == "failed"
    assert info.output["outputs"] == {"start": 1, "ok": None}
    assert info.output["outcomes"]["bad"]["status"] == "failed"
    assert info.error is not None
    assert "broken" in info.error.message


async def test_run_workflow_of_a_failed_graph_gives_the_result_as_output(world: World) -> None:
    g = mixed()
    result = await world.run(g.graph)
    assert result.status is Status.FAILED
    assert result.error is not None
    assert isinstance(result.output, GraphResult)
    assert result.output.status == "failed"


async def test_a_failed_graph_is_rolled_back_if_something_can_be(world: World) -> None:
    undone: list[Any] = []

    async def undo(result: Any) -> None:
        undone.append(result)

    g = Noting()
    g.add("a", 1, rollback=undo, next="b")
    g.add("b", fails="no")
    result = await run(world, g.graph)
    assert undone == [1]
    error = await ended(world, g.graph)
    assert (error.status, error.result) == (Status.ROLLED_BACK, result)


async def test_as_an_operation_a_failed_graph_raises_with_the_result(world: World) -> None:
    g = mixed()

    @workflow
    async def tries(ctx: Context) -> Any:
        try:
            await ctx.graph("one", g.graph)
        except GraphFailedError as error:
            result: Any = error.result
            await ctx.sleep("nap", 60)
            return [result.status, result.outcomes["bad"].status, sorted(result.outputs)]

    assert (await world.run(tries)).output == ["failed", "failed", ["ok", "start"]]


async def test_as_an_operation_a_partial_graph_returns(world: World) -> None:
    g = mixed(status="lenient")

    @workflow
    async def runs(ctx: Context) -> Any:
        return (await ctx.graph("one", g.graph)).status

    assert (await world.run(runs)).output == "partial"


async def test_a_failed_graph_that_nobody_catches_fails_the_workflow(world: World) -> None:
    g = mixed()

    @workflow
    async def runs(ctx: Context) -> Any:
        return await ctx.graph("one", g.graph)

    result = await world.run(runs)
    assert result.status is Status.FAILED
    assert result.error is not None
    assert "GraphFailedError" in result.error.type
    assert "bad" in result.error.message


@pytest.mark.parametrize("status", ["strict", "lenient", "fail_fast"])
async def test_skipped_and_never_reached_alone_are_no_failure(world: World, status: Any) -> None:
    g = Noting(status=status)
    g.add("a", 1, mode="inclusive", next=[arc("b"), arc("c", when=E.output == 2), arc("d")])
    g.add("b")
    g.add("c")
    g.add("d")
    g.add("m", needs=["b", "c"])
    result = await run(world, g.graph)
    assert by_status(result)["m"] == "skipped"
    assert result.status == "succeeded"


@workflow
async def kept_waiting(ctx: Context) -> None:
    """A child that ends only if somebody ends it."""
    await ctx.listen("never")


@pytest.mark.law(7)
async def test_the_children_of_what_the_last_end_cancels_end_at_once(driver: Driver) -> None:
    async def fails(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)
        raise CriticalError("no")

    async def has_a_child(ctx: Context, args: Any) -> None:
        await ctx.child("child", kept_waiting, id="child")

    g = Noting(status="fail_fast")
    g.add("a", does=fails)
    g.add("b", does=has_a_child)
    with anyio.fail_after(PATIENCE):
        result = await run_workflow(
            g.graph, driver=driver, instance_id="i", clock=VirtualClock(), mode="live", workflows=[kept_waiting]
        )
    assert result.status is Status.FAILED
    async with Client(driver) as client:
        assert (await client.handle(kept_waiting, "child").info()).status is Status.CANCELLED


async def test_a_graph_without_steps_is_refused(world: World) -> None:
    with anyio.fail_after(30), pytest.raises(DefinitionError, match="no steps"):
        await world.run(Graph("empty"))
