"""A graph is a workflow: everything that is done with instances is done with it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.graphs import flows
from tests.graphs.running import Noting, by_status, run, waiting
from tests.laws.counting_driver import WatchedDriver
from tests.patience import PATIENCE
from tests.runtime.parts import until_status
from tests.support import World
from workflow_sdk import (
    AlreadyExistsError,
    Backoff,
    Break,
    Client,
    Context,
    Continue,
    CriticalError,
    DefinitionError,
    Driver,
    Runtime,
    Status,
    WorkflowCancelledError,
    WorkflowFailedError,
    open_driver,
    replay_check,
    run_workflow,
    workflow,
)
from workflow_sdk.graphs import E, Graph, GraphFailedError, GraphResult, arc
from workflow_sdk.rows.keys import MARKINGS, InstanceKeys
from workflow_sdk.testing import FaultyDriver, VirtualClock, crash_everywhere

# Killed everywhere.


@pytest.mark.law(1)
@pytest.mark.parametrize(
    ("graph", "workload"),
    [
        (flows.joined, 3),
        (flows.cyclic, None),
        (flows.failing, -1),
        (flows.undone, None),
        (flows.growing, 3),
        (flows.gate, None),
        (flows.racing, None),
    ],
    ids=lambda value: value.name if isinstance(value, Graph) else "",
)
async def test_a_graph_ends_the_same_wherever_it_is_killed(graph: Graph, workload: Any) -> None:
    report = await crash_everywhere(graph, workload)
    assert report.runs


async def test_a_graph_that_waits_for_messages_ends_the_same_wherever_it_is_killed() -> None:
    await crash_everywhere(flows.approval, script=[("answer", {"ok": True})])


async def test_several_graphs_in_one_workflow_end_the_same_wherever_it_is_killed() -> None:
    await crash_everywhere(flows.two, 2)


async def test_a_graph_that_loses_a_race_ends_the_same_wherever_it_is_killed() -> None:
    await crash_everywhere(flows.over)


@pytest.mark.law(1)
async def test_finished_firings_are_not_run_again_after_a_kill(world: World) -> None:
    """Every commit fails once, so that the instance is loaded again after each."""
    for commit in range(1, 60):
        g = Noting()
        g.add("a", mode="inclusive", next=["b", "c"])
        g.add("b", next="d")
        g.add("c")
        g.add("d")
        g.add("m", needs=["d", "c"])
        id = f"i{commit}"
        try:
            await world.once(g.graph, id=id, driver=FaultyDriver(world.driver, fail_at=[commit]))
            break
        except Exception:  # noqa: BLE001  # the storage's, whatever it is wrapped in
            done = {e.path for e in await world.history(id) if e.status.value == "completed"} if commit > 1 else set()
            g.ran.clear()
            assert (await run(world, g.graph, id=id)).status == "succeeded"
            for path in done:
                if path.count("/") == 2:
                    assert path.split("/")[1] not in g.ran
    else:
        raise AssertionError("it never ended")


# Clients and workers.


async def test_start_list_and_result_by_a_client_in_another_object(driver: Driver) -> None:
    async with Runtime(driver, workflows=[flows.failing]), Client(driver) as client:
        handle = await client.start(flows.failing, 3, id="i")
        result = await handle.result(timeout=PATIENCE)
        assert isinstance(result, GraphResult)
        assert result.outputs == {"risky": 3, "good": "good"}
        page = await client.list(workflow=flows.failing)
        assert [(info.id, info.workflow, info.status) for info in page.items] == [("i", "failing", Status.COMPLETED)]
        by_name = await client.handle("failing", "i").result(timeout=PATIENCE)
        assert by_name["outputs"] == {"risky": 3, "good": "good"}


async def test_starting_twice_finds_it_and_another_workload_is_an_error(driver: Driver) -> None:
    async with Client(driver) as client:
        await client.start(flows.approval, {"a": 1}, id="i")
        await client.start(flows.approval, {"a": 1}, id="i")
        with pytest.raises(AlreadyExistsError):
            await client.start(flows.approval, {"a": 2}, id="i")


async def test_a_message_from_outside_reaches_a_firing_of_a_worker(driver: Driver) -> None:
    async with Runtime(driver, workflows=[flows.approval]), Client(driver) as client:
        handle = await client.start(flows.approval, id="i")
        await until_status(handle, Status.WAITING)
        info = await handle.info()
        assert [(wait.kind, wait.path) for wait in info.waits] == [("message", "approval/ask/~0/answer")]
        await handle.send("answer", {"ok": True})
        result = await handle.result(timeout=PATIENCE)
        assert result.outputs["approved"] == "approved"
        assert result.outcomes["rejected"].status == "never_reached"


async def test_evicted_while_parked_in_a_firing_it_goes_on_from_there(driver: Driver) -> None:
    ran: list[str] = []

    async def asks(ctx: Context, args: Any) -> Any:
        ran.append("body")
        await ctx.step("once", ran.append, "step")
        return await ctx.listen("answer")

    g = Noting()
    g.add("a", 1, next="b")
    g.add("b", does=asks, next="c")
    g.add("c")
    async with Runtime(driver, workflows=[g.graph]) as runtime:
        handle = await runtime.start(g.graph, id="i")
        await until_status(handle, Status.WAITING)
        await handle.evict()
        await handle.send("answer", 42)
        result = await handle.result(timeout=PATIENCE)
    assert result.outputs == {"a": 1, "b": 42, "c": None}
    assert ran.count("step") == 1
    assert g.count("a") == g.count("c") == 1


async def test_evicted_while_blocked_it_is_opened_by_a_patch(driver: Driver) -> None:
    g = Noting(context={"open": False})
    g.add("a", next="gate")
    g.add("gate", admit=E.ctx.open)
    async with Runtime(driver, workflows=[g.graph]) as runtime:
        handle = await runtime.start(g.graph, id="i")
        await until_status(handle, Status.WAITING)
        await handle.evict()
        await handle.patch(open=True)
        assert (await handle.result(timeout=PATIENCE)).status == "succeeded"
    assert g.ran == ["a", "gate"]


async def test_a_graph_that_was_not_given_to_a_runtime_is_refused_there(driver: Driver) -> None:
    async with Runtime(driver, workflows=[flows.joined]) as runtime:
        with pytest.raises(DefinitionError):
            await runtime.start("approval")


async def test_another_worker_goes_on_with_it(driver: Driver) -> None:
    async with Runtime(driver, workflows=[flows.approval]) as runtime:
        handle = await runtime.start(flows.approval, id="i")
        await until_status(handle, Status.WAITING)
    async with Runtime(driver, workflows=[flows.approval]) as runtime:
        again = runtime.handle(flows.approval, "i")
        await again.send("answer", {"ok": False})
        assert (await again.result(timeout=PATIENCE)).outputs["rejected"] == "rejected"


@pytest.mark.parametrize("mode", ["yield", "live"])
async def test_run_workflow_runs_it_in_both_modes(world: World, mode: Any) -> None:
    with anyio.fail_after(PATIENCE):
        while True:
            result = await run_workflow(
                flows.joined, 3, driver=world.driver, instance_id="i", mode=mode, clock=world.clock
            )
            if result.status is not Status.SLEEPING:
                break
            assert (mode, result.wake_at is not None) == ("yield", True)
            world.clock.advance(60)
    assert result.status is Status.COMPLETED
    assert isinstance(result.output, GraphResult)
    assert result.output.outputs["meet"] == 10


# Cancelling.


async def test_cancelling_ends_firings_and_nothing_runs_after_it(driver: Driver) -> None:
    began = anyio.Event()
    cleaned: list[str] = []

    async def hangs(ctx: Context, args: Any) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append("b")

    g = Noting()
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", does=hangs, next="d")
    g.add("c", does=lambda ctx, args: ctx.listen("never"), next="d")
    g.add("d")
    async with Runtime(driver, workflows=[g.graph]) as runtime:
        handle = await runtime.start(g.graph, id="i")
        with anyio.fail_after(PATIENCE):
            await began.wait()
        await handle.cancel()
        with pytest.raises(WorkflowCancelledError):
            await handle.result(timeout=PATIENCE)
    assert cleaned == ["b"]
    assert "d" not in g.ran


async def test_cancelling_with_rollback_undoes_firings(world: World) -> None:
    undone: list[Any] = []

    async def undo(result: Any) -> None:
        undone.append(result)

    g = Noting(Graph("g"))
    g.add("a", 1, rollback=undo, next="b")
    g.add("b", does=lambda ctx, args: ctx.listen("never"))
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").cancel(rollback=True)
    result = await world.run(g.graph)
    assert (result.status, undone) == (Status.CANCELLED, [1])


# Recovering and restarting.


async def test_recovering_a_failed_graph_runs_again_what_failed_and_only_that(world: World) -> None:
    healthy: list[bool] = []

    async def fails(ctx: Context, args: Any) -> str:
        if not healthy:
            raise CriticalError("broken")
        return "mended"

    g = Noting()
    g.add("a", 1, next="b")
    g.add("b", does=fails, next="c")
    g.add("c")
    assert (await run(world, g.graph)).status == "failed"
    healthy.append(True)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").recover()
    result = await run(world, g.graph)
    assert g.ran == ["a", "b", "b", "c"]
    assert result.status == "succeeded"
    assert result.outputs == {"a": 1, "b": "mended", "c": None}


async def test_recovering_tries_a_firing_again_that_failed_before_the_last_one_of_its_step(world: World) -> None:
    is_broken = True

    async def fails(number: int) -> int:
        if is_broken:
            raise CriticalError("broken")
        return number

    async def first_fails(ctx: Context, number: int) -> int:
        return await ctx.step("inner", fails, number) if number == 1 else number

    g = Noting(Graph("g"))
    g.add("fork", mode="inclusive", next=[arc("a", args=1), arc("between")])
    g.add("between", next=arc("a", args=2))
    g.add("a", does=first_fails, next=arc("b", args=E.output))
    g.add("b")
    assert (await run(world, g.graph)).status == "failed"
    is_broken = False
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(g.graph, "i").recover()
    result = await run(world, g.graph)
    assert result.status == "succeeded"
    assert result.outcomes["a"].reason == ""
    assert sorted(g.args["b"]) == [1, 2]
    assert g.count("between") == 1


@pytest.mark.law(9)
async def test_recovering_leaves_a_failure_alone_that_was_handled(world: World) -> None:
    healthy: list[bool] = []

    async def fails(ctx: Context, args: Any) -> None:
        if not healthy:
            raise CriticalError("broken")

    g = Noting()
    g.add("a", fails="handled", next=arc("b", on="failed"))
    g.add("b", does=fails)
    assert (await run(world, g.graph)).status == "failed"
    healthy.append(True)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").recover()
    result = await run(world, g.graph)
    assert g.ran == ["a", "b", "b"]
    assert by_status(result) == {"a": "failed", "b": "completed"}


async def test_restarting_from_a_firing_runs_it_and_all_after_it_again(world: World) -> None:
    g = Noting(context={"n": 0})

    async def counts(ctx: Context, args: Any) -> Any:
        ctx.patch(n=ctx.vars["n"] + 1)
        return ctx.vars["n"]

    g.add("a", does=counts, next="b")
    g.add("b", does=counts, next=arc("c", args={"n": E.output}))
    g.add("c", does=counts)
    await run(world, g.graph)
    path = next(entry.path for entry in await world.history() if entry.path.startswith("g/b/"))
    assert path == "g/b/~0"
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").restart_from(path)
    result = await run(world, g.graph)
    assert g.ran == ["a", "b", "c", "b", "c"]
    assert result.outputs == {"a": 1, "b": 2, "c": 3}, "the patches of what was forgotten are forgotten"
    assert [outcome.firings for outcome in result.outcomes.values()] == [1, 1, 1]


async def test_restarting_from_a_firing_in_a_cycle_keeps_the_earlier_ones(world: World) -> None:
    async def counts(ctx: Context, args: Any) -> Any:
        ctx.patch(n=ctx.vars["n"] + 1)
        return ctx.vars["n"]

    g = Noting(context={"n": 0})
    g.add("a", does=counts, next=[arc("a", when=E.ctx.n < 4), arc("b")])
    g.add("b")
    await run(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").restart_from("g/a/~2")
    result = await run(world, g.graph)
    assert g.ran == ["a"] * 4 + ["b"] + ["a"] * 2 + ["b"]
    assert result.outcomes["a"].firings == 4
    assert result.outputs["a"] == 4


@pytest.mark.law(4)
async def test_restarting_keeps_the_passes_of_a_cycle_before_it(world: World) -> None:
    async def counts(ctx: Context, args: Any) -> Any:
        ctx.patch(n=ctx.vars["n"] + 1)
        return ctx.vars["n"]

    g = Noting(context={"n": 0})
    g.add("b", does=counts, next="a")
    g.add("a", next=[arc("b", when=E.ctx.n < 3), arc("c")])
    g.add("c")
    await run(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").restart_from("g/c/~0")
    g.ran.clear()
    result = await run(world, g.graph)
    assert g.ran == ["c"]
    assert result.outcomes["a"].firings == result.outcomes["b"].firings == 3
    assert result.outputs["b"] == 3


@pytest.mark.law(4)
async def test_restarting_asks_no_guard_again_that_was_answered_before_it(world: World) -> None:
    answers = [True]
    g = Noting()
    g.add("a", next=[arc("b", when=lambda scope: answers[0]), arc("other")])
    g.add("b", next="c")
    g.add("c")
    g.add("other")
    await run(world, g.graph)
    answers[:] = [False]
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").restart_from("g/c/~0")
    g.ran.clear()
    result = await run(world, g.graph)
    assert g.ran == ["c"]
    assert by_status(result) == {"a": "completed", "b": "completed", "c": "completed", "other": "never_reached"}


async def test_restarting_from_a_branch_fires_the_join_again(world: World) -> None:
    g = Noting()
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", 1)
    g.add("c", 2)
    g.add("m", needs=["b", "c"])
    await run(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").restart_from("g/b/~0")
    g.ran.clear()
    result = await run(world, g.graph)
    assert "b" in g.ran
    assert g.ran[-1] == "m"
    assert "a" not in g.ran
    assert result.outcomes["m"].firings == 1
    assert g.args["m"][-1] == {"b": 1, "c": 2}


async def test_restarting_from_the_beginning_runs_all_of_it_again(world: World) -> None:
    g = Noting()
    g.add("a", next="b")
    g.add("b")
    await run(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").restart_from()
    result = await run(world, g.graph)
    assert g.ran == ["a", "b", "a", "b"]
    assert result.status == "succeeded"


async def test_restarting_from_a_step_inside_a_body(world: World) -> None:
    ran: list[str] = []

    async def works(ctx: Context, args: Any) -> None:
        await ctx.step("one", ran.append, "one")
        await ctx.step("two", ran.append, "two")

    g = Noting()
    g.add("a", does=works, next="b")
    g.add("b")
    await run(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").restart_from("g/a/~0/two")
    await run(world, g.graph)
    assert ran == ["one", "two", "two"]
    assert g.count("b") == 2


async def test_restarting_forgets_what_was_submitted_later(world: World) -> None:
    await run(world, flows.growing, 2)
    async with Client(world.driver) as client:
        await client.handle(flows.growing, "i").restart_from("growing/plans/~0")
    result = await run(world, flows.growing, 2)
    assert result.status == "succeeded"
    assert set(result.outcomes) == {"plans", "report", "part 0", "part 1", "sum", "last"}
    assert {outcome.firings for outcome in result.outcomes.values()} == {1}


@pytest.mark.law(4)
async def test_restarting_goes_on_with_the_firings_that_were_under_way(world: World) -> None:
    """The second firing of `b` has ended before `c`, the first after it: that one goes on, in its own place."""
    worked: list[int] = []

    async def works(ctx: Context, args: Any) -> int:
        await ctx.step("work", worked.append, args["n"])
        await ctx.sleep("nap", args["nap"])
        return int(args["n"])

    g = Noting()
    arcs = [arc("b", args={"n": 0, "nap": 100}), arc("b", args={"n": 1, "nap": 10}), arc("c")]
    g.add("a", mode="inclusive", next=arcs)
    g.add("b", does=works)
    g.add("c", does=lambda ctx, args: ctx.sleep("nap", 50), next=arc("b", args={"n": 2, "nap": 1}))
    await run(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").restart_from("g/c/~0")
    result = await run(world, g.graph)
    assert result.outcomes["b"].firings == 3
    assert sorted(worked) == [0, 1, 2, 2]
    firings = {entry.path: entry.value for entry in await world.history() if entry.path.count("/") == 2}
    assert {path: value for path, value in firings.items() if "/b/" in path} == {f"g/b/~{n}": n for n in range(3)}


async def test_restarting_keeps_what_was_submitted_before(world: World) -> None:
    before = await run(world, flows.growing, 2)
    async with Client(world.driver) as client:
        await client.handle(flows.growing, "i").restart_from("growing/sum/~0")
    assert await run(world, flows.growing, 2) == before


# The definition.


@pytest.mark.law(8)
async def test_a_run_goes_on_with_the_definition_that_it_began_with(world: World) -> None:
    before, now = (Graph("g", functions=[flows.approved, flows.rejected]) for _ in range(2))
    for graph, then in ((before, flows.approved), (now, flows.rejected)):
        graph.step("ask", flows.ask, next="then")
        graph.step("then", then)
    await waiting(world, before)
    await world.send("answer", 1)
    assert (await run(world, now)).outputs["then"] == "approved"
    await waiting(world, now, id="other")
    await world.send("answer", 1, id="other")
    assert (await run(world, now, id="other")).outputs["then"] == "rejected"


# What it costs.


@pytest.mark.law(12)
async def test_a_turn_of_a_cycle_costs_the_same_after_many_others() -> None:
    """In the rows that a commit writes, and in those that are kept of where the run is."""

    async def turns(many: int) -> tuple[int, int]:
        async def counts(ctx: Context, args: Any) -> None:
            ctx.patch(n=ctx.vars["n"] + 1)

        g = Noting(context={"n": 0})
        g.add("fork", does=counts, mode="inclusive", next=["x", "y"])
        g.add("x")
        g.add("y")
        g.add("m", needs=["x", "y"], next=[arc("fork", when=E.ctx.n < many), arc("end")])
        g.add("end", does=lambda ctx, args: ctx.listen("never"))
        watched = WatchedDriver(await open_driver("memory://"))
        await run_workflow(g.graph, driver=watched, instance_id="i", mode="yield", clock=VirtualClock())
        kept = await watched.scan(*InstanceKeys("i").range(MARKINGS))
        return max(watched.commits), len(kept)

    assert await turns(40) == await turns(4)


# Checking.


async def test_check_replays_a_graph_without_running_anything(world: World) -> None:
    ran: list[str] = []

    async def asks(ctx: Context, args: Any) -> Any:
        await ctx.step("once", ran.append, "step")
        return await ctx.listen("answer")

    g = Noting()
    g.add("a", next="b")
    g.add("b", does=asks)
    await waiting(world, g.graph)
    await waiting(world, flows.approval, id="j")
    report = await replay_check(world.driver, [g.graph, flows.approval])
    assert report.ok, report
    assert ran == ["step"]
    assert g.count("a") == 1


async def test_check_finds_a_body_that_was_changed(world: World) -> None:
    async def before(ctx: Context, args: Any) -> Any:
        await ctx.step("old", str, "x")
        return await ctx.listen("answer")

    async def now(ctx: Context, args: Any) -> Any:
        await ctx.step("new", str, "x")
        return await ctx.listen("answer")

    first, second = Graph("g"), Graph("g")
    first.step("a", before)
    second.step("a", now)
    await waiting(world, first)
    report = await replay_check(world.driver, [second])
    assert not report.ok


# Composed.


async def test_two_graphs_in_one_workflow_stay_apart(world: World) -> None:
    result = await world.run(flows.two, 2)
    assert result.output is not None
    one, both = result.output
    assert one["meet"] == 2 + 3 + 2
    assert both["a"]["merge"] == [3, 3]
    assert both["b"] == {"mend": "negative"}
    paths = {entry.path for entry in await world.history()}
    assert {"one/meet/~0", "both/a/inner/merge/~2", "both/b/inner/mend/~0"} <= paths


async def test_the_same_graph_twice_in_one_workflow(world: World) -> None:
    @workflow
    async def twice(ctx: Context) -> Any:
        return [(await ctx.graph(name, flows.cyclic)).outputs["merge"] for name in ("one", "two")]

    assert (await world.run(twice)).output == [[3, 3], [3, 3]]


async def test_a_graph_in_a_loop(world: World) -> None:
    async def turn(ctx: Context, state: int) -> Any:
        result = await ctx.graph("g", flows.joined, state)
        return Break(result.outputs["meet"]) if state == 3 else Continue(state + 1)

    @workflow
    async def loops(ctx: Context) -> Any:
        return await ctx.loop("loop", turn, 1, commit_interval=1)

    assert (await world.run(loops)).output == 10


async def test_a_graph_as_a_child(world: World) -> None:
    @workflow
    async def parent(ctx: Context) -> Any:
        result = await ctx.child("child", flows.failing, 1)
        return result.outputs

    assert (await world.run(parent)).output == {"risky": 1, "good": "good"}


async def test_a_graph_that_loses_a_race_is_cancelled(world: World) -> None:
    cleaned: list[str] = []
    began = anyio.Event()

    async def hangs(ctx: Context, args: Any) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append("b")

    g = Noting()
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", does=hangs, next=arc("d", on="any"))
    g.add("c", does=lambda ctx, args: ctx.listen("m"), next=arc("d", on="any"))
    g.add("d")

    @workflow
    async def races(ctx: Context) -> Any:
        async def graph(ctx: Context) -> Any:
            return await ctx.graph("g", g.graph)

        async def other(ctx: Context) -> None:
            await ctx.step("wait", began.wait)

        raced = await ctx.race("race", {"graph": graph, "other": other})
        return [raced.winner, await ctx.listen("m")]

    result = await world.run(races, script=[("m", 1)])
    assert result.output == ["other", 1], "the loser's wait takes no message any more"
    assert cleaned == ["b"]
    assert "d" not in g.ran


async def test_a_graph_that_loses_a_race_undoes_what_it_did_if_the_workflow_fails(world: World) -> None:
    undone: list[Any] = []

    async def undo(result: Any) -> None:
        undone.append(result)

    g = Noting()
    g.add("a", 1, rollback=undo, next="b")
    g.add("b", does=lambda ctx, args: ctx.listen("never"))

    @workflow
    async def races(ctx: Context) -> None:
        async def graph(ctx: Context) -> Any:
            return await ctx.graph("g", g.graph)

        async def nap(ctx: Context) -> None:
            await ctx.sleep("nap", 60)

        await ctx.race("race", {"graph": graph, "nap": nap})
        raise CriticalError("broken")

    await world.run(races)
    assert undone == [1]


async def test_a_graph_that_wins_a_race(world: World) -> None:
    @workflow
    async def races(ctx: Context) -> Any:
        async def graph(ctx: Context) -> Any:
            return (await ctx.graph("g", flows.joined, 3)).outputs["meet"]

        async def nap(ctx: Context) -> None:
            await ctx.sleep("nap", 10_000)

        raced = await ctx.race("race", {"graph": graph, "nap": nap})
        return [raced.winner, raced.value]

    assert (await world.run(races)).output == ["graph", 10]


async def test_attempt_gives_a_failed_graph_back_as_data_or_raises_its_error(world: World) -> None:
    @workflow
    async def tries(ctx: Context) -> Any:
        async def inner(ctx: Context) -> Any:
            return await ctx.graph("g", flows.undone)

        try:
            outcome = await ctx.attempt("try", inner)
        except GraphFailedError as error:
            return type(error).__name__
        return type(outcome).__name__

    assert (await world.run(tries)).output in ("Failure", "GraphFailedError")


async def test_a_graph_after_a_version_and_steps_before_and_after(world: World) -> None:
    @workflow
    async def mixes(ctx: Context) -> Any:
        before = await ctx.step("before", abs, -1)
        result = await ctx.graph("g", flows.joined, before)
        return await ctx.step("after", abs, -result.outputs["meet"])

    assert (await world.run(mixes)).output == 1 + 2 + 1


async def test_compensations_of_a_nested_graph_run_in_reverse_order_of_all(world: World) -> None:
    undone: list[Any] = []

    async def undo(result: Any) -> None:
        undone.append(result)

    g = Noting()
    g.add("a", "g.a", rollback=undo, next="b")
    g.add("b", "g.b", rollback=undo)

    @workflow
    async def mixes(ctx: Context) -> None:
        await ctx.step("before", lambda: "before", rollback=undo)
        await ctx.graph("g", g.graph)
        await ctx.step("after", lambda: "after", rollback=undo)
        raise CriticalError("broken")

    result = await world.run(mixes)
    assert undone == ["after", "g.b", "g.a", "before"]
    assert result.status is Status.ROLLED_BACK


async def test_public_state_of_a_firing_is_seen_from_outside_and_by_guards(world: World) -> None:
    async def tells(ctx: Context, args: Any) -> None:
        ctx.state["stage"] = "told"
        ctx.reference = "order-1"

    g = Noting()
    g.add("a", does=tells, next=[arc("b", when=E.state.stage == "told")])
    g.add("b")
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "b": "completed"}
    async with Client(world.driver) as client:
        info = await client.handle(g.graph, "i").info()
    assert (info.state, info.reference) == ({"stage": "told"}, "order-1")


async def test_history_shows_attempts_and_errors_of_firings(world: World) -> None:
    async def fails(ctx: Context, args: Any) -> None:
        raise ValueError("broken")

    g = Noting()
    g.add("a", does=fails, retries=1, backoff=Backoff(initial=1, factor=1, maximum=1, jitter=0))
    await run(world, g.graph)
    entry = (await world.history())["g/a/~0"]
    assert (entry.status.value, entry.attempts) == ("failed", 2)
    assert entry.error is not None
    assert entry.error.message == "broken"


async def test_a_graph_that_was_used_is_frozen(world: World) -> None:
    g = Noting()
    g.add("a")
    await run(world, g.graph)
    with pytest.raises(DefinitionError):
        g.add("b")


async def test_a_failed_child_graph_is_told_to_its_parent(world: World) -> None:
    @workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.child("child", flows.undone)

    result = await world.run(parent)
    assert result.status in (Status.FAILED, Status.ROLLED_BACK)
    async with Client(world.driver) as client:
        with pytest.raises(WorkflowFailedError):
            await client.handle(parent, "i").result(timeout=PATIENCE)


# Many.


async def test_a_thousand_steps_in_a_row_do_not_take_long(world: World) -> None:
    g = Noting()
    for number in range(1000):
        g.add(str(number), next=str(number + 1) if number < 999 else ())
    with anyio.fail_after(20):
        result = await run(world, g.graph)
    assert len(g.ran) == 1000
    assert result.status == "succeeded"


async def test_a_thousand_steps_side_by_side_and_their_join_do_not_take_long(world: World) -> None:
    g = Noting()
    for number in range(1000):
        g.add(str(number), number)
    g.add("sum", needs=[str(number) for number in range(1000)])
    with anyio.fail_after(20):
        result = await run(world, g.graph)
    assert len(g.args["sum"][0]) == 1000
    assert result.status == "succeeded"


async def test_a_cycle_of_a_thousand_turns_does_not_take_long(world: World) -> None:
    g = Noting(context={"n": 0})

    async def counts(ctx: Context, args: Any) -> None:
        ctx.patch(n=ctx.vars["n"] + 1)

    g.add("a", does=counts, next=[arc("a", when=E.ctx.n < 1000)])
    with anyio.fail_after(20):
        result = await run(world, g.graph)
    assert result.outcomes["a"].firings == 1000


async def test_how_a_firing_is_undone_is_stored_with_its_end_and_not_before() -> None:
    async def parks(ctx: Context, args: Any) -> None:
        await ctx.step("inner", abs, -1, rollback=_undone)
        await ctx.listen("never")

    async def fails(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 5)
        raise CriticalError("broken")

    async def done(args: Any) -> int:
        return 1

    graph = Graph("g", status="fail_fast")
    graph.step("parks", parks)
    graph.step("fails", fails)
    graph.step("done", done, rollback=_undone)
    await crash_everywhere(graph)


async def _undone(value: int) -> None:
    """Undoes a step."""
