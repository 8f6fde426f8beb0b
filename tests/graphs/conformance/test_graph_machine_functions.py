"""Functions of an agent kernel's graph machine: each test is named after the function whose behaviour it shows."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.graphs.conformance.books import deaths, raises, waits
from tests.graphs.running import Noting, by_status, run, waiting
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    AlreadyExistsError,
    Client,
    Context,
    DefinitionError,
    Driver,
    InstanceNotFoundError,
    Runtime,
    Status,
    Verdict,
    workflow,
)
from workflow_sdk.graphs import Graph, GraphFailedError, GraphResult, Limits, arc, node

log: list[Any] = []
"""What submitted steps were given, by their names."""
verdicts: list[Verdict] = []
events: list[anyio.Event] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    verdicts.clear()
    events.clear()


# What is submitted is found again by its name: so these are functions of the module.


async def note(ctx: Context, args: Any) -> Any:
    """Notes that it ran, and gives back its arguments."""
    log.append((ctx.path.split("/")[1], args))
    return args


async def lets_go(ctx: Context, args: Any) -> None:
    """Lets the one go on who submitted it, once the others have run."""
    with anyio.fail_after(PATIENCE):
        while len(log) < 2 or not events:
            await anyio.lowlevel.checkpoint()
    events[0].set()


async def grows(ctx: Context, args: Any) -> None:
    """Submits one step."""
    verdicts.append(await ctx.submit([node("deeper", note)]))


async def submits_writer(ctx: Context, args: Any) -> None:
    """Submits a step that writes, and calls it trusted."""
    verdicts.append(await ctx.submit([node("writer", note, access="write", trust="trusted"), node("reader", note)]))


async def picks(args: Any) -> str:
    """Judges two entrants."""
    return "left" if args["left"] < args["right"] else "right"


async def one(ctx: Context, args: Any) -> int:
    """An entrant."""
    return 1


async def two(ctx: Context, args: Any) -> int:
    """An entrant."""
    return 2


def graph(**options: Any) -> Noting:
    """A graph of this module."""
    return Noting(Graph("g", **options))


def submitting(*batches: Any, **options: Any) -> Noting:
    """A graph whose step `a` submits these, one after the other."""

    async def submits(ctx: Context, args: Any) -> None:
        verdicts.extend([await ctx.submit(batch) for batch in batches])

    g = graph(**options)
    g.add("a", does=submits)
    return g


async def send_steps(world: World, *nodes: Any, id: str = "i") -> Verdict:
    """Submit steps from outside."""
    async with Client(world.driver, clock=world.clock) as client:
        return await client.submit(id, list(nodes))


def started(history: Any) -> list[str]:
    """The firings that have begun, in order."""
    return [entry.path for entry in history if entry.kind.value == "firing"]


# workflow_active.


async def test_workflow_active_is_what_the_status_tells(world: World) -> None:
    g = graph()
    g.add("a", does=waits("answer"))
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        handle = client.handle(g.graph, "i")
        assert not (await handle.info()).status.is_terminal
        await world.send("answer")
        await run(world, g.graph)
        assert (await handle.info()).status.is_terminal


async def test_workflow_active_only_then_are_steps_taken(world: World) -> None:
    g = graph()
    g.add("a", does=waits("answer"))
    await waiting(world, g.graph)
    assert await send_steps(world, node("x", note))
    await world.send("answer")
    await run(world, g.graph)
    refused = await send_steps(world, node("y", note))
    assert (bool(refused), refused.kind) == (False, "deny")
    assert [name for name, _ in log] == ["x"]


@workflow
async def no_graph(ctx: Context) -> None:
    """Waits, and is no graph."""
    await ctx.listen("never")


async def test_workflow_active_is_not_true_of_an_instance_without_a_graph(world: World) -> None:
    await world.once(no_graph, mode="yield")
    refused = await send_steps(world, node("x", note))
    assert (bool(refused), refused.kind) == (False, "deny")


# ensure_started_for_workflow.


async def test_ensure_started_for_workflow_what_comes_before_the_first_run_is_kept_for_it(world: World) -> None:
    """Nobody has run it yet: steps can be submitted all the same, and are run with the first ones."""
    g = graph()
    g.add("a")
    async with Client(world.driver, clock=world.clock) as client:
        await client.start(g.graph, id="i")
    assert await send_steps(world, node("x", note, needs=["a"]))
    assert (g.ran, log) == ([], [])
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "x": "completed"}
    assert log == [("x", {"a": None})]


async def test_ensure_started_for_workflow_starting_again_changes_nothing(world: World) -> None:
    g = graph()
    g.add("a", does=waits("answer"))
    await waiting(world, g.graph, {"n": 1})
    before = await world.driver.scan(b"", b"\xff")
    async with Client(world.driver, clock=world.clock) as client:
        assert (await client.start(g.graph, {"n": 1}, id="i")).id == "i"
        with pytest.raises(AlreadyExistsError):
            await client.start(g.graph, {"n": 2}, id="i")
    assert await world.driver.scan(b"", b"\xff") == before
    await world.send("answer")
    await run(world, g.graph, {"n": 1})
    assert g.args["a"][0] == {"n": 1}


async def test_ensure_started_for_workflow_one_that_nobody_started_is_an_error(world: World) -> None:
    with pytest.raises(InstanceNotFoundError):
        await send_steps(world, node("x", note), id="nobody")


# load_workflow.


async def test_load_workflow_starts_the_first_gated_batch(world: World) -> None:
    g = graph(limits=Limits(running=2))
    for name in "abc":
        g.add(name, does=waits(name))
    g.add("d", needs=["a"])
    await waiting(world, g.graph)
    assert sorted(started(await world.history())) == ["g/a/~0", "g/b/~0"], "c has to wait for its turn, and d for a"


async def test_load_workflow_refuses_a_cycle(world: World) -> None:
    g = graph()
    g.add("a", needs=["b"])
    g.add("b", needs=["a"])
    await refused(world, g, "circle")


async def test_load_workflow_refuses_a_dependency_that_there_is_not(world: World) -> None:
    g = graph()
    g.add("a")
    g.add("b", needs=["nowhere"])
    await refused(world, g, "nowhere")


async def refused(world: World, g: Noting, word: str) -> None:
    """The graph is not installed, nothing of it is written or run, and whoever asked for it goes on.

    A workflow that asks for it has a mistake in it: it is stuck until that is mended, and has lost nothing.
    """
    good = graph()
    good.add("a", 1)
    is_mended: list[bool] = []

    @workflow
    async def outer(ctx: Context) -> Any:
        return (await ctx.graph("inner", (good if is_mended else g).graph)).outputs

    async with Client(world.driver, clock=world.clock) as client:
        with pytest.raises(DefinitionError, match=word):
            await client.start(g.graph, id="bad")
        assert not (await client.list()).items
        stuck = await world.run(outer)
        assert stuck.error is not None
        assert (stuck.status, stuck.error.kind, word in stuck.error.message) == (Status.STUCK, "definition", True)
        assert list(await world.history()) == []
        is_mended.append(True)
        await client.handle(outer, "i").recover()
    assert (await world.run(outer)).output == {"a": 1}
    assert (g.ran, good.ran) == ([], ["a"])


# submit_workflow_nodes.


async def test_submit_workflow_nodes_starts_what_is_ready_beside_the_one_who_submits(world: World) -> None:
    over = anyio.Event()

    async def submits(ctx: Context, args: Any) -> None:
        assert await ctx.submit([node("x", note, args={"n": 1}), node("y", note, needs=["x"]), node("z", lets_go)])
        events.append(over)
        with anyio.fail_after(PATIENCE):
            await over.wait()

    g = graph()
    g.add("a", does=submits)
    result = await run(world, g.graph)
    assert log == [("x", {"n": 1}), ("y", {"x": {"n": 1}})]
    assert set(by_status(result).values()) == {"completed"}


async def test_submit_workflow_nodes_takes_part_in_the_same_quota(world: World) -> None:
    g = submitting([node("x", note), node("y", note)], limits=Limits(running=1, starts=2))
    result = await run(world, g.graph)
    assert [name for name, _ in log] == ["x"]
    assert by_status(result) == {"a": "completed", "x": "completed", "y": "denied"}


async def test_submit_workflow_nodes_of_an_empty_batch_changes_nothing(world: World) -> None:
    g = graph()
    g.add("a", does=waits("answer"))
    await waiting(world, g.graph)
    before = await world.driver.scan(b"", b"\xff")
    await send_steps(world)
    assert await world.driver.scan(b"", b"\xff") == before
    g = submitting([])
    result = await run(world, g.graph, id="j")
    assert set(result.outcomes) == {"a"}


async def test_submit_workflow_nodes_outside_a_graph_is_a_mistake(world: World) -> None:
    @workflow
    async def plain(ctx: Context) -> None:
        await ctx.submit([node("x", note)])

    result = await world.run(plain)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert log == []


async def test_submit_workflow_nodes_over_the_quota_is_denied_and_the_run_goes_on(world: World) -> None:
    g = submitting([node("x", note), node("y", note)], [node("z", note)], limits=Limits(nodes=2))
    result = await run(world, g.graph)
    denied, allowed = verdicts
    assert (denied.kind, denied.stage, "nodes" in denied.reason) == ("deny", "limit", True)
    assert allowed == Verdict.allow
    assert [name for name, _ in log] == ["z"], "all of a batch, or nothing"
    assert result.status == "succeeded"


async def test_submit_workflow_nodes_is_done_once_wherever_it_is_killed() -> None:
    def made() -> Noting:
        log.clear()
        g = submitting([node("x", note), node("y", note, needs=["x"])])
        g.add("b", needs=["a"])
        return g

    async for death in deaths(made):
        assert by_status(death.result) == dict.fromkeys(("a", "b", "x", "y"), "completed")
        assert {outcome.firings for outcome in death.result.outcomes.values()} == {1}
        assert sorted(started(death.history)) == ["g/a/~0", "g/b/~0", "g/x/~0", "g/y/~0"]
        assert death.again == []


# submit_nodes_from.


async def test_submit_nodes_from_a_quarantined_step_are_quarantined_whatever_they_say(world: World) -> None:
    g = graph()
    g.add("a", does=submits_writer, trust="quarantined")
    result = await run(world, g.graph)
    assert bool(verdicts[0])
    assert [name for name, _ in log] == ["reader"]
    assert (by_status(result)["writer"], "quarantine" in result.outcomes["writer"].reason) == ("denied", True)


async def test_submit_nodes_from_a_trusted_step_may_write(world: World) -> None:
    g = graph()
    g.add("a", does=submits_writer)
    assert by_status(await run(world, g.graph))["writer"] == "completed"


# submit_workflow.


def harness() -> Graph:
    """A graph that is written while another one runs."""
    made = Graph("harness")
    made.step("x", note, next=arc("y", args={"n": 1}))
    made.step("y", note)
    return made


async def test_submit_workflow_inside_a_run_is_flattened_into_it(world: World) -> None:
    g = submitting(harness())
    result = await run(world, g.graph)
    assert [bool(verdict) for verdict in verdicts] == [True]
    assert set(result.outcomes) == {"a", "x", "y"}
    assert sorted(started(await world.history())) == ["g/a/~0", "g/x/~0", "g/y/~0"], "one run, and none inside it"
    assert sorted(log) == [("x", {}), ("y", {"n": 1})]


async def test_submit_workflow_where_none_is_active_is_an_operation_that_runs_it(world: World) -> None:
    """By `ctx.graph`: the workflow waits for it, and goes on with what it has come to."""

    @workflow
    async def agent(ctx: Context) -> Any:
        return sorted((await ctx.graph("plan", harness())).outcomes)

    assert (await world.run(agent)).output == ["x", "y"]


async def test_submit_workflow_is_gated_by_the_same_quota(world: World) -> None:
    g = submitting(harness(), limits=Limits(nodes=2))
    result = await run(world, g.graph)
    assert (bool(verdicts[0]), "nodes" in verdicts[0].reason) == (False, True)
    assert set(result.outcomes) == {"a"}
    assert result.status == "succeeded"


async def test_submit_workflow_a_second_time_flattens_again_and_never_stacks(world: World) -> None:
    other = Graph("other")
    other.step("z", note)
    g = submitting(harness(), other)
    result = await run(world, g.graph)
    assert set(result.outcomes) == {"a", "x", "y", "z"}
    assert {path.count("/") for path in started(await world.history())} == {2}


# load_workflow_resumed.


async def test_load_workflow_resumed_goes_on_with_the_remaining_work(driver: Driver) -> None:
    g = graph()
    g.add("a", "fresh")
    g.add("b", 2)
    g.add("c", needs=["a", "b"])
    async with Runtime(driver, workflows=[g.graph]) as runtime:
        handle = await runtime.start(g.graph, None, id="i", completed={"a": "old"})
        result = await handle.result(timeout=PATIENCE)
    assert g.ran == ["b", "c"]
    assert g.args["c"] == [{"a": "old", "b": 2}]
    assert set(by_status(result).values()) == {"completed"}


async def test_load_workflow_resumed_applies_the_submissions_of_before_in_order(driver: Driver) -> None:
    g = graph()
    g.add("a")
    batches = [[node("x", note, needs=["a"])], [node("y", note, needs=["x"])]]
    async with Runtime(driver, workflows=[g.graph]) as runtime:
        handle = await runtime.start(g.graph, None, id="i", completed={"a": 1, "x": 2}, submissions=batches)
        result = await handle.result(timeout=PATIENCE)
    assert log == [("y", {"x": 2})]
    assert isinstance(result, GraphResult)
    assert result.outputs == {"a": 1, "x": 2, "y": {"x": 2}}


async def test_load_workflow_resumed_of_what_is_all_done_runs_nothing(driver: Driver) -> None:
    g = graph()
    g.add("a")
    g.add("b", needs=["a"])
    async with Runtime(driver, workflows=[g.graph]) as runtime:
        result = await (await runtime.start(g.graph, None, id="i", completed={"a": 1, "b": 2})).result(timeout=PATIENCE)
    assert (g.ran, result.status, result.outputs) == ([], "succeeded", {"a": 1, "b": 2})


async def test_load_workflow_resumed_after_a_kill_is_the_same_run_and_needs_to_be_told_nothing() -> None:
    def made() -> Noting:
        g = graph()
        g.add("a", 1)
        g.add("b", needs=["a"])
        g.add("c", needs=["b"])
        return g

    async for death in deaths(made):
        assert by_status(death.result) == dict.fromkeys("abc", "completed")
        assert death.again == []


# install_workflow.


async def test_install_workflow_of_one_that_is_sound_drives_it(world: World) -> None:
    g = graph()
    g.add("a")
    assert (await run(world, g.graph)).status == "succeeded"
    assert g.ran == ["a"]


async def test_install_workflow_of_one_that_is_not_tells_all_that_is_wrong(world: World) -> None:
    g = graph(final="gone")
    g.add("a", next="nowhere", needs=["nobody"])
    async with Client(world.driver, clock=world.clock) as client:
        with pytest.raises(DefinitionError, match=r"(?s)nobody.*nowhere.*gone"):
            await client.start(g.graph, id="i")
        with pytest.raises(InstanceNotFoundError):
            await client.handle(g.graph, "i").info()


# spawn_ready_workflow_nodes.


async def test_spawn_ready_workflow_nodes_expands_controllers_first(world: World) -> None:
    """A tournament runs nothing itself: its entrants and judges are steps of the run as any others."""
    g = graph(limits=Limits(running=1))
    g.graph.tournament("best", [one, two], judge=picks)
    result = await run(world, g.graph)
    assert result.outputs["best"] == 1
    added = [path for path in started(await world.history()) if not path.startswith("g/best/")]
    assert len(added) == 3, "two entrants, and one who judges them"


async def test_spawn_ready_workflow_nodes_denies_a_quarantined_step_that_writes(world: World) -> None:
    g = graph()
    g.add("bad", trust="quarantined", access="write")
    g.add("reads", trust="quarantined")
    g.add("writes", access="write")
    g.add("after", needs=["bad"])
    result = await run(world, g.graph)
    assert sorted(g.ran) == ["reads", "writes"], "it is denied before it starts"
    assert by_status(result) == {"bad": "denied", "reads": "completed", "writes": "completed", "after": "skipped"}
    assert "quarantine" in result.outcomes["bad"].reason


async def test_spawn_ready_workflow_nodes_stops_the_round_when_it_has_to_defer(world: World) -> None:
    """The rest stays ready, in order; what is freed later goes to the first of them."""
    g = graph(limits=Limits(running=1))
    g.add("a", does=waits("a"))
    for name in "bcd":
        g.add(name)
    await waiting(world, g.graph)
    assert g.ran == ["a"]
    await world.send("a")
    result = await run(world, g.graph)
    assert [name for name in g.ran if name != "a"] == ["b", "c", "d"]
    assert result.status == "succeeded", "deferring is no failure"


async def test_spawn_ready_workflow_nodes_a_permanent_denial_starves_what_depends_on_it(world: World) -> None:
    g = graph(limits=Limits(starts=2))
    for name in "abc":
        g.add(name)
    g.add("d", needs=["c"])
    g.add("e", needs=["d"])
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "b": "completed", "c": "denied", "d": "skipped", "e": "skipped"}
    assert ("starts" in result.outcomes["c"].reason, "c" in result.outcomes["d"].reason) == (True, True)


@pytest.mark.parametrize(("depth", "is_allowed"), [(1, False), (2, True)])
async def test_spawn_ready_workflow_nodes_is_limited_in_depth(world: World, depth: int, is_allowed: bool) -> None:
    g = submitting([node("deep", grows)], limits=Limits(depth=depth))
    result = await run(world, g.graph)
    assert [bool(verdict) for verdict in verdicts] == ([True, is_allowed])
    assert ("deeper" in result.outcomes) == is_allowed


async def test_spawn_ready_workflow_nodes_tells_what_it_has_started(world: World) -> None:
    g = graph()
    g.add("a", does=waits("a"))
    g.add("b", does=waits("b"))
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        info = await client.handle(g.graph, "i").info()
    assert [wait.path for wait in info.waits] == ["g/a/~0/a", "g/b/~0/b"]


# workflow_budget.


async def test_workflow_budget_is_what_is_left_after_the_starts_of_the_same_round(world: World) -> None:
    left: list[Limits] = []

    async def looks(ctx: Context, args: Any) -> None:
        left.append(ctx.limits.left)
        await ctx.submit([node(f"of {ctx.path.split('/')[1]}", note)])
        left.append(ctx.limits.left)

    g = graph(limits=Limits(nodes=5, starts=9, running=4, depth=1))
    g.add("a", does=looks, retries=0)
    g.add("b")
    await run(world, g.graph)
    assert left[0] == Limits(running=2, nodes=3, starts=7, depth=1), "both roots are counted"
    assert left[1].nodes == 2, "and so is what was submitted"


# drive_workflow.


async def test_drive_workflow_starts_a_dependent_as_soon_as_its_own_needs_are_done(world: World) -> None:
    g = graph()
    g.add("slow", does=waits("slow"))
    g.add("quick")
    g.add("after quick", needs=["quick"])
    g.add("after both", needs=["after quick", "slow"])
    await waiting(world, g.graph)
    assert sorted(g.ran) == ["after quick", "quick", "slow"], "no layer waits for its slowest"
    await world.send("slow")
    await run(world, g.graph)
    assert g.ran[-1] == "after both"


async def test_drive_workflow_awaits_those_that_still_run(world: World) -> None:
    g = graph()
    g.add("a", does=waits("a"))
    g.add("b", does=waits("b"))
    await waiting(world, g.graph)
    await world.send("a")
    result = await world.once(g.graph, mode="yield")
    assert (result.status, [wait.path for wait in result.waits]) == (Status.WAITING, ["g/b/~0/b"])


async def test_drive_workflow_fills_a_slot_that_has_become_free_with_what_was_deferred() -> None:
    def made() -> Noting:
        g = graph(limits=Limits(running=1))
        for name in "abc":
            g.add(name)
        return g

    async for death in deaths(made):
        assert by_status(death.result) == dict.fromkeys("abc", "completed")
        assert death.again == []


async def test_drive_workflow_resumes_the_parent_when_nothing_runs_and_nothing_is_new(world: World) -> None:
    g = graph(status="lenient")
    g.add("a", does=raises)
    g.add("b", needs=["a"])
    g.add("c")

    @workflow
    async def parent(ctx: Context) -> Any:
        result = await ctx.graph("run", g.graph)
        return [result.status, by_status(result)]

    assert (await world.run(parent)).output == [
        "partial", {"a": "failed", "b": "skipped", "c": "completed"},
    ]  # fmt: skip


# finish_workflow.


async def test_finish_workflow_tells_what_completed_and_what_failed(world: World) -> None:
    g = graph()
    g.add("a", 1)
    g.add("b", fails="broken")
    g.add("c", needs=["b"])
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "b": "failed", "c": "skipped"}
    assert ("broken" in result.outcomes["b"].reason, "b" in result.outcomes["c"].reason) == (True, True)
    assert result.outputs == {"a": 1}


async def test_finish_workflow_clears_it_and_its_parent_may_load_another(world: World) -> None:
    g, h = graph(), graph()
    g.add("a", fails="no")
    h.add("a", 1)

    @workflow
    async def parent(ctx: Context) -> Any:
        try:
            await ctx.graph("first", g.graph)
        except GraphFailedError as error:
            first: Any = error.result
            return [first.status, (await ctx.graph("second", h.graph)).outputs]

    assert (await world.run(parent)).output == ["failed", {"a": 1}]


# advance_workflow.


async def test_advance_workflow_counts_a_completion_once_wherever_it_is_killed() -> None:
    """What has ended is never run again, and what depends on it starts once."""

    def made() -> Noting:
        g = graph()
        g.add("a", 1)
        g.add("b", 2)
        g.add("c", needs=["a", "b"])
        g.add("d", needs=["c"])
        return g

    async for death in deaths(made):
        assert {outcome.firings for outcome in death.result.outcomes.values()} == {1}
        assert death.result.outputs["c"] is None
        assert sorted(started(death.history)) == [f"g/{name}/~0" for name in "abcd"]
        assert death.again == []


async def test_advance_workflow_records_a_completion_and_starts_what_it_has_made_ready(world: World) -> None:
    g = graph()
    g.add("a", does=waits("a"))
    g.add("b", does=waits("b"), needs=["a"])
    await waiting(world, g.graph)
    await world.send("a", 1)
    await waiting(world, g.graph)
    history = await world.history()
    assert (history["g/a/~0"].value, sorted(started(history))) == (1, ["g/a/~0", "g/b/~0"])


async def test_advance_workflow_of_a_failure_starves_what_depends_on_it_and_nothing_else(world: World) -> None:
    g = graph()
    g.add("a", fails="no")
    g.add("b", 2)
    g.add("c", needs=["a"])
    g.add("d", needs=["b"])
    assert by_status(await run(world, g.graph)) == {
        "a": "failed", "b": "completed", "c": "skipped", "d": "completed",
    }  # fmt: skip
