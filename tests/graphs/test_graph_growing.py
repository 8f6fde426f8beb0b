"""Growing: steps that are added to a run by its own steps."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.graphs.running import Body, Noting, by_status, run
from tests.support import World
from workflow_sdk import Backoff, Context, CriticalError, Status, Verdict, workflow
from workflow_sdk.graphs import E, Graph, GraphResult, Limits, arc, node, quorum
from workflow_sdk.testing import VirtualClock, crash_everywhere

EXACT = Backoff(initial=1, factor=1, maximum=1, jitter=0)

log: list[Any] = []
"""What submitted steps did."""
events: dict[str, anyio.Event] = {}
verdicts: list[Verdict] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    events.clear()
    verdicts.clear()


async def note(ctx: Context, args: Any) -> Any:
    """Notes that it ran, and gives back its arguments."""
    log.append((ctx.path.split("/")[1], args))
    return args


async def sets(ctx: Context, args: Any) -> None:
    """Lets the one go on who submitted it."""
    events["go on"].set()


async def fails(ctx: Context, args: Any) -> None:
    """Fails for good."""
    raise CriticalError("no")


async def fails_once(ctx: Context, args: Any) -> int:
    """Fails at first."""
    log.append("attempt")
    if len(log) == 1:
        raise ValueError("not yet")
    return 1


def growing(*batches: Any, **options: Any) -> Noting:
    """A graph whose first step submits."""

    async def submits(ctx: Context, args: Any) -> None:
        for batch in batches:
            verdict = await ctx.submit(batch)
            verdicts.append(verdict)

    g = Noting(Graph("g", **options))
    g.add("a", does=submits)
    return g


async def test_submitted_steps_run_in_the_same_run_after_what_they_need(world: World) -> None:
    g = growing([node("x", note, args={"n": 1}), node("y", note, needs=["x"])])
    result = await run(world, g.graph)
    assert log == [("x", {"n": 1}), ("y", {"x": {"n": 1}})]
    assert verdicts == [Verdict.allow]
    assert by_status(result) == {"a": "completed", "x": "completed", "y": "completed"}
    assert result.outputs["y"] == {"x": {"n": 1}}
    assert {"g/x/~0", "g/y/~0"} <= {entry.path for entry in await world.history()}


async def test_ready_steps_start_at_once_beside_the_one_that_submits_them(world: World) -> None:
    async def submits(ctx: Context, args: Any) -> None:
        events["go on"] = anyio.Event()
        await ctx.submit([node("x", sets)])
        await events["go on"].wait()

    g = Noting(Graph("g"))
    g.add("a", does=submits)
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "x": "completed"}


@pytest.mark.law(15)
async def test_a_batch_may_name_steps_that_come_later_in_it(world: World) -> None:
    g = growing([node("last", note, needs=["first"]), node("first", note)])
    result = await run(world, g.graph)
    assert [name for name, _ in log] == ["first", "last"]
    assert result.status == "succeeded"


async def test_submitted_steps_may_need_what_has_long_been_done(world: World) -> None:
    async def submits(ctx: Context, args: Any) -> None:
        verdicts.append(await ctx.submit([node("x", note, needs=["b", "a"])]))

    g = Noting(Graph("g"))
    g.add("b", 7)
    g.add("a", does=submits, needs=["b"])
    result = await run(world, g.graph)
    assert log == [("x", {"b": 7, "a": None})]
    assert result.status == "succeeded"


@pytest.mark.law(4)
@pytest.mark.settings(mode="yield")
async def test_a_join_is_given_the_same_on_replay_though_what_was_submitted_has_its_need_done_again(
    world: World,
) -> None:
    async def gives(ctx: Context, args: Any) -> Any:
        return args

    async def submits(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 30)
        verdicts.append(await ctx.submit([node("x", note, next=arc("b", args=2))]))

    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)
        log.append(("m", args))

    g = Noting(Graph("g"))
    g.add("b", does=gives)
    g.add("a", does=submits)
    g.add("m", does=naps, needs=["b"])
    result = await run(world, g.graph, 1)
    assert verdicts[-1] == Verdict.allow
    assert (result.outcomes["b"].firings, result.outputs["b"]) == (2, 2)
    assert log == [("x", {}), ("m", {"b": 1})]


async def test_submitted_steps_may_need_what_has_failed_and_are_skipped(world: World) -> None:
    async def submits(ctx: Context, args: Any) -> None:
        verdicts.append(await ctx.submit([node("x", note, needs=["b"])]))

    g = Noting(Graph("g"))
    g.add("b", fails="no", next=arc("a", on="failed"))
    g.add("a", does=submits)
    result = await run(world, g.graph)
    assert log == []
    assert by_status(result) == {"b": "failed", "a": "completed", "x": "skipped"}
    assert "b" in result.outcomes["x"].reason


async def test_submitted_steps_may_have_arcs_guards_admission_and_joins(world: World) -> None:
    batch = [
        node(
            "x", note, args={"n": 1}, mode="inclusive", next=[arc("y", when=E.output.n == 1, args=E.output), arc("z")]
        ),
        node("y", note),
        node("z", note, admit=E.ctx.open),
        node("m", note, needs=["y", "z"]),
        node("q", note, needs=["y", "z"], join=quorum(1)),
    ]
    g = growing(batch, context={"open": True})
    result = await run(world, g.graph)
    assert verdicts == [Verdict.allow], verdicts
    assert set(by_status(result).values()) == {"completed"}
    assert ("y", {"n": 1}) in log
    assert ("m", {"y": {"n": 1}, "z": {}}) in log


async def test_submitted_steps_have_the_options_of_steps(world: World) -> None:
    g = growing([node("x", fails_once, retries=1, backoff=EXACT), node("y", fails_once, retries=0)])
    result = await run(world, g.graph)
    assert result.outcomes["x"].status == "completed"


async def test_a_submitted_step_that_fails_fails_the_graph(world: World) -> None:
    g = growing([node("x", fails), node("y", note, needs=["x"])])
    result = await run(world, g.graph)
    assert result.status == "failed"
    assert by_status(result) == {"a": "completed", "x": "failed", "y": "skipped"}


def other() -> Graph:
    """A graph to be submitted."""
    graph = Graph("other")
    graph.step("x", note)
    graph.step("y", note, needs=["x"])
    return graph


async def test_a_graph_is_flattened_into_the_same_run_and_never_stacked(world: World) -> None:
    g = growing(other())
    result = await run(world, g.graph)
    assert verdicts == [Verdict.allow], verdicts
    assert [name for name, _ in log] == ["x", "y"]
    assert set(result.outcomes) == {"a", "x", "y"}
    paths = {entry.path for entry in await world.history()}
    assert {"g/x/~0", "g/y/~0"} <= paths, "they are firings beside the others"


async def test_an_empty_batch_changes_nothing(world: World) -> None:
    g = growing([], [node("x", note)])
    result = await run(world, g.graph)
    assert set(result.outcomes) == {"a", "x"}
    assert result.status == "succeeded"


REFUSED: list[tuple[str, list[Any], str]] = [
    ("an unknown need", [node("x", note), node("y", note, needs=["nowhere"])], "nowhere"),
    ("an unknown target", [node("x", note), node("y", note, next="nowhere")], "nowhere"),
    ("a cycle of needs", [node("x", note, needs=["y"]), node("y", note, needs=["x"])], "x -> y"),
    ("a need of itself", [node("x", note, needs=["x"])], "x"),
    ("a name twice", [node("x", note), node("x", note)], "x"),
    ("a name that is there", [node("x", note), node("a", note)], "a"),
    ("too many", [node("x", note), node("y", note), node("z", note), node("w", note)], "nodes"),
]


@pytest.mark.parametrize(
    ("batch", "word"), [(batch, word) for _, batch, word in REFUSED], ids=[one[0] for one in REFUSED]
)
async def test_what_is_wrong_with_one_step_refuses_the_whole_batch_and_the_run_goes_on(
    world: World, batch: list[Any], word: str
) -> None:
    g = growing(batch, [node("good", note)], limits=Limits(nodes=4))
    result = await run(world, g.graph)
    refused, allowed = verdicts
    assert not refused
    assert refused.kind == "deny"
    assert word in refused.reason
    assert refused.stage
    assert allowed == Verdict.allow
    assert by_status(result) == {"a": "completed", "good": "completed"}, "nothing of the batch is there"
    assert result.status == "succeeded", "a refused submission alone is no failure"


@pytest.mark.parametrize("how", ["needs", "next"])
async def test_what_is_submitted_has_nothing_to_do_with_the_final_step(world: World, how: Any) -> None:
    """It would be run before all else is over; or what needs it, after the end."""
    g = growing([node("x", note, **{how: "end" if how == "next" else ["end"]})], final="end")
    g.add("end")
    result = await run(world, g.graph)
    assert not verdicts[0]
    assert "final" in verdicts[0].reason
    assert g.ran == ["a", "end"]
    assert result.status == "succeeded"


async def test_a_closure_that_can_not_be_found_again_refuses_the_batch(world: World) -> None:
    async def submits(ctx: Context, args: Any) -> None:
        async def inner(ctx: Context, args: Any) -> None: ...

        verdicts.append(await ctx.submit([node("x", note), node("y", inner)]))
        verdicts.append(await ctx.submit([node("z", lambda ctx, args: note(ctx, args))]))

    g = Noting(Graph("g"))
    g.add("a", does=submits)
    result = await run(world, g.graph)
    assert [bool(verdict) for verdict in verdicts] == [False, False]
    assert "inner" in verdicts[0].reason
    assert set(result.outcomes) == {"a"}
    assert result.status == "succeeded"


async def test_a_submission_is_made_once_however_often_its_firing_is_replayed(world: World) -> None:
    async def submits(ctx: Context, args: Any) -> None:
        verdicts.append(await ctx.submit([node("x", note)]))
        await ctx.sleep("nap", 60)
        verdicts.append(await ctx.submit([node("y", note)]))
        await ctx.sleep("more", 60)

    g = Noting(Graph("g"))
    g.add("a", does=submits)
    result = await run(world, g.graph)
    assert log == [("x", {}), ("y", {})]
    assert all(verdicts)
    assert result.outcomes["x"].firings == result.outcomes["y"].firings == 1


async def test_a_verdict_is_the_same_on_replay(world: World) -> None:
    async def submits(ctx: Context, args: Any) -> Any:
        first = await ctx.submit([node("x", note), node("y", note)])
        await ctx.sleep("nap", 60)
        second = await ctx.submit([node("x", note)])
        await ctx.sleep("more", 60)
        return [first.kind, first.reason, second.kind]

    g = Noting(Graph("g", limits=Limits(nodes=2)))
    g.add("a", does=submits)
    result = await run(world, g.graph)
    kind, reason, second = result.outputs["a"]
    assert (kind, second) == ("deny", "allow")
    assert "nodes" in reason


async def test_outside_a_graph_it_is_a_mistake(world: World) -> None:
    @workflow
    async def plain(ctx: Context) -> None:
        await ctx.submit([node("x", note)])

    result = await world.run(plain)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert (result.error.kind, "submit" in result.error.message) == ("definition", True)


async def submits_writer(ctx: Context, args: Any) -> None:
    """Submits a step that writes, from a step that read what can't be trusted."""
    verdicts.append(await ctx.submit([node("writer", note, access="write", trust="trusted"), node("reader", note)]))


@pytest.mark.law(18)
async def test_a_quarantined_step_that_writes_is_denied_before_it_starts(world: World) -> None:
    g = Noting(Graph("g"))
    g.add("bad", trust="quarantined", access="write")
    g.add("good", trust="quarantined")
    g.add("writer", access="write")
    g.add("after", needs=["bad"])
    result = await run(world, g.graph)
    assert sorted(g.ran) == ["good", "writer"]
    assert by_status(result) == {"bad": "denied", "good": "completed", "writer": "completed", "after": "skipped"}
    assert "quarantine" in result.outcomes["bad"].reason
    assert result.status == "failed"


@pytest.mark.law(18)
async def test_trust_is_inherited_by_what_is_submitted_and_can_not_be_given_back(world: World) -> None:
    g = Noting(Graph("g"))
    g.add("a", does=submits_writer, trust="quarantined")
    result = await run(world, g.graph)
    assert "writer" not in [name for name, _ in log]
    if verdicts[0]:
        assert by_status(result)["writer"] == "denied"
        assert "quarantine" in result.outcomes["writer"].reason
        assert by_status(result)["reader"] == "completed"
    else:
        assert "quarantine" in verdicts[0].reason + verdicts[0].stage


async def submits_submitter(ctx: Context, args: Any) -> None:
    """Submits one that submits."""
    verdicts.append(await ctx.submit([node("middle", submits_writer)]))


async def test_trust_is_inherited_over_generations(world: World) -> None:
    g = Noting(Graph("g"))
    g.add("a", does=submits_submitter, trust="quarantined")
    await run(world, g.graph)
    assert "writer" not in [name for name, _ in log]
    assert verdicts[0]


async def test_a_trusted_step_submits_steps_that_write(world: World) -> None:
    g = Noting(Graph("g"))
    g.add("a", does=submits_writer)
    assert by_status(await run(world, g.graph))["writer"] == "completed"


async def test_submitted_steps_obey_running(world: World) -> None:
    async def submits(ctx: Context, args: Any) -> None:
        await ctx.submit([node("x", note), node("y", note)])
        log.append("a still runs")

    g = Noting(Graph("g", limits=Limits(running=1)))
    g.add("a", does=submits)
    await run(world, g.graph)
    assert log == ["a still runs", ("x", {}), ("y", {})]


async def test_final_waits_for_what_was_submitted(world: World) -> None:
    g = growing([node("x", note)], final="end")
    g.add("end")
    result = await run(world, g.graph)
    assert g.ran == ["a", "end"]
    assert [name for name, _ in log] == ["x"]
    summary = g.args["end"][0]
    assert (summary.outputs if hasattr(summary, "outputs") else summary["outputs"]).keys() >= {"a", "x"}
    assert result.outcomes["end"].firings == 1


async def test_a_batch_submitted_while_others_run_is_joined_to_them(world: World) -> None:
    go_on = anyio.Event()

    async def slow(ctx: Context, args: Any) -> str:
        await go_on.wait()
        return "slow"

    async def submits(ctx: Context, args: Any) -> None:
        await ctx.submit([node("x", note, needs=["slow"])])
        go_on.set()

    g = Noting(Graph("g"))
    g.add("slow", does=slow)
    g.add("a", does=submits)
    result = await run(world, g.graph)
    assert log == [("x", {"slow": "slow"})]
    assert result.status == "succeeded"


async def test_generations_until_the_work_is_done(world: World) -> None:
    """As long as there is work, a step submits its successor."""
    g = Noting(Graph("g", limits=Limits(nodes=50)))
    g.add("a", does=grows_on)
    result = await run(world, g.graph, 20)
    assert len(result.outcomes) == 21
    assert result.status == "succeeded"


async def grows_on(ctx: Context, args: Any) -> None:
    """Submits one more, as long as its number is not 0."""
    left = args["n"] if isinstance(args, dict) else args
    if left:
        verdicts.append(await ctx.submit([node(f"next {left}", grows_on, args={"n": left - 1})]))


async def books(ctx: Context, args: Any) -> None:
    """Books, to be undone by a handler without a name."""
    await ctx.step("book", lambda: args["n"], rollback=lambda result: log.append(("undo", result)))


@pytest.mark.law(11)
@pytest.mark.settings(mode="yield")
async def test_what_submitted_steps_have_done_is_undone_by_a_later_run(world: World) -> None:
    async def fails_later(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)
        raise CriticalError("no")

    g = growing([node("x", books, args={"n": 5})])
    g.add("b", does=fails_later)
    assert (await run(world, g.graph)).status == "failed"
    assert log == [("undo", 5)]


async def done(ctx: Context, args: Any) -> str:
    """Is the quorum of what was submitted."""
    log.append("q")
    return "enough"


def submits_a_quorum(*needs: str) -> Body:
    """A body that submits a join by quorum, which one of these is enough for."""

    async def submits(ctx: Context, args: Any) -> None:
        assert await ctx.submit([node("q", done, needs=list(needs), join=quorum(1))])
        if "go on" in events:
            events["go on"].set()

    return submits


async def goes_on(ctx: Context, args: Any) -> str:
    """Is done when it is told so."""
    await events["go on"].wait()
    return "quick"


@pytest.mark.parametrize("waits", ["in its code", "for a time"])
async def test_a_submitted_quorum_cancels_what_was_under_way_before(world: World, waits: str) -> None:
    async def slow(ctx: Context, args: Any) -> None:
        try:
            await (anyio.sleep_forever() if waits == "in its code" else ctx.sleep("nap", 1000))
        finally:
            log.append("cancelled")

    events["go on"] = anyio.Event()
    g = Noting(Graph("g"))
    g.add("slow", does=slow)
    g.add("quick", does=goes_on)
    g.add("a", does=submits_a_quorum("slow", "quick"))
    result = await run(world, g.graph)
    assert by_status(result) == {"slow": "cancelled", "quick": "completed", "a": "completed", "q": "completed"}
    assert sorted(log) == ["cancelled", "q"]
    assert world.clock.time() < 1000 + VirtualClock().time()
    assert "g/slow/~0" not in {entry.path for entry in await world.history()}


async def test_a_submitted_quorum_that_is_there_already_cancels_what_is_under_way(world: World) -> None:
    async def slow(ctx: Context, args: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    g = Noting(Graph("g"))
    g.add("b", 7)
    g.add("slow", does=slow)
    g.add("a", does=submits_a_quorum("b", "slow"), needs=["b"])
    result = await run(world, g.graph)
    assert by_status(result) == {"b": "completed", "slow": "cancelled", "a": "completed", "q": "completed"}
    assert sorted(log) == ["cancelled", "q"]


async def test_who_submits_a_quorum_that_needs_it_no_more_is_cancelled(world: World) -> None:
    g = Noting(Graph("g"))
    g.add("b", 7)
    g.add("a", does=submits_a_quorum("b", "a"), needs=["b"])
    result = await run(world, g.graph)
    assert by_status(result) == {"b": "completed", "a": "cancelled", "q": "completed"}
    assert log == ["q"]
    assert "g/a/~0" not in {entry.path for entry in await world.history()}


async def test_what_a_submitted_quorum_cancels_gives_back_the_messages_that_it_had_taken(world: World) -> None:
    async def takes(ctx: Context, args: Any) -> None:
        await ctx.listen("word")
        await ctx.listen("never")

    async def submits(ctx: Context, args: Any) -> None:
        await ctx.listen("go")
        await submits_a_quorum("takes", "b")(ctx, args)

    async def listens(ctx: Context, args: Any) -> Any:
        return await ctx.listen("word")

    g = Noting(Graph("g"))
    g.add("b", 7)
    g.add("takes", does=takes)
    g.add("a", does=submits)
    g.add("then", does=listens, needs=["a"])
    result = (await world.run(g.graph, script=[("word", "hello"), ("go", None)])).output
    assert isinstance(result, GraphResult)
    assert by_status(result)["takes"] == "cancelled"
    assert result.outputs["then"] == "hello"


async def naps(ctx: Context, args: Any) -> str:
    """Is done after a while."""
    await ctx.sleep("nap", args["n"] if isinstance(args, dict) and "n" in args else 1000)
    return "awake"


@pytest.mark.law(7)
async def test_a_submitted_quorum_is_the_same_wherever_it_is_killed() -> None:
    g = Graph("g")
    g.step("a", submits_a_quorum("slow", "quick"))
    g.step("slow", naps)
    g.step("quick", naps, args={"n": 1})
    g.step("last", note, needs=["a"])
    report = await crash_everywhere(g, commits_max=20)
    assert len(report.runs) > 3
    assert report.clean.info.status is Status.COMPLETED
