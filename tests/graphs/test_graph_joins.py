"""Joins: which firings belong together, when a join fires, and when it can't any more."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.graphs.running import Body, Noting, by_status, run, waiting
from tests.laws.counting_driver import WatchedDriver
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Backoff, Client, Context, CriticalError, open_driver, run_workflow
from workflow_sdk.driver import Batch, Clear, Set
from workflow_sdk.graphs import E, arc, node, quorum
from workflow_sdk.graphs.rows import FIRINGS
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.keys import HISTORY, MARKINGS, InstanceKeys
from workflow_sdk.rows.location import unpack
from workflow_sdk.rows.status import Kind

EXACT = Backoff(initial=1, factor=1, maximum=1, jitter=0)


def until(event: anyio.Event, value: Any = None) -> Body:
    """A body that waits for what happens elsewhere."""

    async def waits(ctx: Context, args: Any) -> Any:
        await event.wait()
        return value

    return waits


def opens(event: anyio.Event, value: Any = None) -> Body:
    """A body that lets another go on."""

    async def sets(ctx: Context, args: Any) -> Any:
        event.set()
        return value

    return sets


# All of them.


async def test_a_join_fires_once_when_all_it_needs_have_succeeded_with_their_outputs(world: World) -> None:
    g = Noting()
    g.add("a", next=["b", "c"], mode="inclusive")
    g.add("b", {"x": 1})
    g.add("c", [2])
    g.add("m", "joined", needs=["b", "c"], next="d")
    g.add("d")
    result = await run(world, g.graph)
    assert g.args["m"] == [{"b": {"x": 1}, "c": [2]}]
    assert g.ran[-2:] == ["m", "d"]
    assert result.outcomes["m"].firings == result.outcomes["d"].firings == 1
    assert result.status == "succeeded"


async def test_initial_tokens_share_one_fork_instance(world: World) -> None:
    g = Noting()
    g.add("a", 1)
    g.add("b", 2)
    g.add("c", 3)
    g.add("m", needs=["a", "c"])
    g.add("n", needs=["b", "m"])
    await run(world, g.graph)
    assert g.args["m"] == [{"a": 1, "c": 3}]
    assert g.args["n"] == [{"b": 2, "m": None}]


async def test_one_need_is_enough_for_needs(world: World) -> None:
    g = Noting()
    g.add("a", 1)
    g.add("b", needs=["a"])
    await run(world, g.graph)
    assert g.args["b"] == [{"a": 1}]


async def test_a_diamond_fires_its_end_once(world: World) -> None:
    g = Noting()
    g.add("a", 1)
    g.add("b", 2, needs=["a"])
    g.add("c", 3, needs=["a"])
    g.add("d", needs=["b", "c"])
    result = await run(world, g.graph)
    assert g.args["d"] == [{"b": 2, "c": 3}]
    assert result.outcomes["d"].firings == 1


async def test_a_dependent_starts_as_soon_as_its_own_needs_are_done(world: World) -> None:
    """No barrier between layers: `slow` goes on only after the whole other branch has run."""
    go_on = anyio.Event()
    g = Noting()
    g.add("fast")
    g.add("slow", does=until(go_on))
    g.add("f2", needs=["fast"])
    g.add("f3", does=opens(go_on), needs=["f2"])
    g.add("m", needs=["slow", "f3"])
    result = await run(world, g.graph)
    assert g.ran[-1] == "m"
    assert result.status == "succeeded"


@pytest.mark.law(6)
async def test_a_slow_branch_holds_up_no_other_that_is_joined_later(world: World) -> None:
    go_on = anyio.Event()
    g = Noting()
    g.add("a", next=["slow", "fast"], mode="inclusive")
    g.add("slow", does=until(go_on))
    g.add("fast", next="f2")
    g.add("f2", next="f3")
    g.add("f3", does=opens(go_on))
    g.add("m", needs=["slow", "f3"])
    assert (await run(world, g.graph)).status == "succeeded"
    assert g.ran[-1] == "m"


async def test_a_join_waits_for_retries(world: World) -> None:
    async def fails_once(ctx: Context, args: Any) -> int:
        if g.count("b") == 1:
            raise ValueError("not yet")
        return 2

    g = Noting()
    g.add("a", 1)
    g.add("b", does=fails_once, backoff=EXACT)
    g.add("m", needs=["a", "b"])
    await run(world, g.graph)
    assert g.args["m"] == [{"a": 1, "b": 2}]


async def test_a_join_may_be_needed_itself_by_several(world: World) -> None:
    g = Noting()
    for name in "abcd":
        g.add(name, name)
    g.add("ab", "ab", needs=["a", "b"])
    g.add("cd", "cd", needs=["c", "d"])
    g.add("x", needs=["ab", "cd"])
    g.add("y", needs=["ab", "d"])
    await run(world, g.graph)
    assert g.args["x"] == [{"ab": "ab", "cd": "cd"}]
    assert g.args["y"] == [{"ab": "ab", "d": "d"}]


# What can no longer happen.


async def test_a_join_whose_need_has_failed_is_skipped_with_the_reason(world: World) -> None:
    g = Noting()
    g.add("a")
    g.add("b", fails="no")
    g.add("m", needs=["a", "b"])
    g.add("n", needs=["m"])
    result = await run(world, g.graph)
    assert sorted(g.ran) == ["a", "b"]
    assert by_status(result) == {"a": "completed", "b": "failed", "m": "skipped", "n": "skipped"}
    assert "b" in result.outcomes["m"].reason
    assert "m" in result.outcomes["n"].reason
    assert result.status == "failed"


async def test_a_join_whose_branch_was_not_taken_is_skipped_with_the_reason_and_alone_is_no_failure(
    world: World,
) -> None:
    g = Noting()
    g.add("a", 1, mode="inclusive", next=[arc("b"), arc("c", when=E.output == 2), arc("d")])
    g.add("b")
    g.add("c")
    g.add("d")
    g.add("m", needs=["b", "c"])
    result = await run(world, g.graph)
    assert sorted(g.ran) == ["a", "b", "d"]
    assert by_status(result)["m"] == "skipped"
    assert by_status(result)["c"] == "never_reached"
    assert "c" in result.outcomes["m"].reason
    assert result.status == "succeeded"


async def test_a_join_whose_branch_ended_before_it_is_skipped(world: World) -> None:
    g = Noting()
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", 1, next=[arc("b2", when=E.output == 2)])
    g.add("b2")
    g.add("c")
    g.add("m", needs=["b2", "c"])
    result = await run(world, g.graph)
    assert by_status(result) == {
        "a": "completed",
        "b": "completed",
        "c": "completed",
        "b2": "never_reached",
        "m": "skipped",
    }
    assert "b2" in result.outcomes["m"].reason


async def test_a_failure_that_is_handled_still_leaves_the_join_skipped(world: World) -> None:
    g = Noting()
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", fails="no", next=arc("mend", on="failed"))
    g.add("c")
    g.add("mend")
    g.add("m", needs=["b", "c"])
    result = await run(world, g.graph)
    assert by_status(result)["m"] == "skipped"
    assert by_status(result)["mend"] == "completed"
    assert result.status == "succeeded"


async def test_a_join_whose_need_was_denied_and_dropped_is_skipped(world: World) -> None:
    g = Noting(context={"open": False})
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", admit=E.ctx.open, on_deny="discard")
    g.add("c")
    g.add("m", needs=["b", "c"])
    result = await run(world, g.graph)
    assert by_status(result)["m"] == "skipped"
    assert "b" in result.outcomes["m"].reason
    assert result.status == "succeeded"


async def test_a_join_of_a_pending_token_is_not_skipped_but_waits(world: World) -> None:
    g = Noting(context={"open": False})
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", 1, admit=E.ctx.open)
    g.add("c", 2)
    g.add("m", needs=["b", "c"])
    await waiting(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").patch(open=True)
    result = await run(world, g.graph)
    assert g.args["m"] == [{"b": 1, "c": 2}]
    assert result.status == "succeeded"


async def test_a_join_is_not_skipped_as_long_as_a_cycle_may_still_lead_to_its_need(world: World) -> None:
    """`b` is tried again by way of `mend` after its failure: only then it can be judged whether `m` fires."""

    async def fails_first(ctx: Context, args: Any) -> int:
        if g.count("b") == 1:
            raise CriticalError("not yet")
        return 1

    g = Noting()
    g.add("a", mode="inclusive", next=["b", "c"])
    g.add("b", does=fails_first, next=arc("mend", on="failed"))
    g.add("mend", next="b")
    g.add("c", 2)
    g.add("m", needs=["b", "c"])
    result = await run(world, g.graph)
    assert g.ran.count("b") == 2
    assert result.outcomes["b"].status == "completed"
    assert result.outcomes["m"].status == "completed"
    assert g.args["m"] == [{"b": 1, "c": 2}]


# Alive.


async def test_alive_fires_when_all_that_will_still_happen_are_done(world: World) -> None:
    go_on = anyio.Event()
    g = Noting()
    g.add("a", 1, mode="inclusive", next=[arc("b"), arc("c", when=E.output == 2), arc("d"), arc("e")])
    g.add("b", 1)
    g.add("c")
    g.add("d", fails="no", next=arc("f", on="failed"))
    g.add("e", 5, does=until(go_on, 5))
    g.add("f", does=opens(go_on))
    g.add("m", needs=["b", "c", "d", "e"], join="alive")
    result = await run(world, g.graph)
    assert g.args["m"] == [{"b": 1, "e": 5}]
    assert result.outcomes["m"].firings == 1
    assert result.status == "succeeded"


async def test_alive_is_skipped_if_none_is_done(world: World) -> None:
    g = Noting()
    g.add("a", 1, mode="inclusive", next=[arc("b", when=E.output == 2), arc("c", when=E.output == 3), arc("d")])
    for name in "bcd":
        g.add(name)
    g.add("m", needs=["b", "c"], join="alive")
    result = await run(world, g.graph)
    assert by_status(result)["m"] == "skipped"
    assert result.outcomes["m"].reason
    assert result.status == "succeeded"


@pytest.mark.law(6)
async def test_alive_may_join_exclusive_branches(world: World) -> None:
    g = Noting()
    g.add("a", 1, next=[arc("b", when=E.output == 1), arc("c")])
    g.add("b", "b")
    g.add("c", "c")
    g.add("m", needs=["b", "c"], join="alive")
    result = await run(world, g.graph)
    assert g.args["m"] == [{"b": "b"}]
    assert result.status == "succeeded"


async def test_all_of_exclusive_branches_is_refused_as_it_can_never_complete(world: World) -> None:
    g = Noting()
    g.add("a", 1, next=[arc("b", when=E.output == 1), arc("c")])
    g.add("b")
    g.add("c")
    g.add("m", needs=["b", "c"])
    assert [problem for problem in g.graph.validate() if "m" in problem.where]


async def test_a_cycle_of_needs_is_refused(world: World) -> None:
    g = Noting()
    g.add("a")
    g.add("b", needs=["a", "c"])
    g.add("c", needs=["b"])
    assert g.graph.validate()


@pytest.mark.settings(mode="yield")
async def test_alive_fires_once_however_often_the_instance_was_loaded_while_its_needs_ended(world: World) -> None:
    """One need has failed before the first wait, one is done after it, the last after the second."""

    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)

    g = Noting()
    g.add("a", does=naps)
    g.add("b", fails="no")
    g.add("d", does=naps, needs=["a"])
    g.add("m", needs=["a", "b", "d"], join="alive")
    result = await run(world, g.graph)
    assert (g.count("m"), result.outcomes["m"].firings) == (1, 1)


# A quorum.


@pytest.mark.law(7)
async def test_a_quorum_fires_at_the_nth_and_what_serves_nothing_else_is_cancelled(world: World) -> None:
    cancelled: list[str] = []
    began = anyio.Event()

    async def hangs(ctx: Context, args: Any) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append("c")

    g = Noting()
    g.add("a", 1, does=until(began, 1))
    g.add("b", 2, does=until(began, 2))
    g.add("c", does=hangs)
    g.add("m", needs=["a", "b", "c"], join=quorum(2))
    result = await run(world, g.graph)
    assert g.args["m"] == [{"a": 1, "b": 2}]
    assert cancelled == ["c"]
    assert by_status(result) == {"a": "completed", "b": "completed", "c": "cancelled", "m": "completed"}
    assert result.outcomes["c"].reason
    assert result.status == "succeeded"
    assert "c" not in result.outputs


async def test_a_loser_that_is_parked_is_cancelled_too(world: World) -> None:
    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 10_000)

    began = world.clock.time()
    g = Noting()
    g.add("a", 1)
    g.add("b", does=naps)
    g.add("m", needs=["a", "b"], join=quorum(1))
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "b": "cancelled", "m": "completed"}
    assert world.clock.time() - began < 10_000


async def test_a_pending_token_that_serves_only_a_quorum_is_cancelled(world: World) -> None:
    g = Noting(context={"open": False})
    g.add("a", 1)
    g.add("b", admit=E.ctx.open)
    g.add("m", needs=["a", "b"], join=quorum(1))
    result = await run(world, g.graph)
    assert g.ran == ["a", "m"]
    assert by_status(result) == {"a": "completed", "b": "cancelled", "m": "completed"}
    assert result.status == "succeeded"


async def test_what_serves_something_else_too_is_not_cancelled(world: World) -> None:
    go_on = anyio.Event()
    g = Noting()
    g.add("start", mode="inclusive", next=["a", "b", "c", "e"])
    g.add("a", 1)
    g.add("b", does=until(go_on, 2))
    g.add("c", does=until(go_on, 3), next="d")
    g.add("d")
    g.add("e", does=until(anyio.Event()))
    g.add("m", does=opens(go_on), needs=["a", "b", "c", "e"], join=quorum(1))
    g.add("other", needs=["b"])
    result = await run(world, g.graph)
    assert by_status(result) == {
        **dict.fromkeys(("start", "a", "b", "c", "d", "m", "other"), "completed"),
        "e": "cancelled",
    }


async def test_a_branch_behind_a_need_of_the_quorum_is_cancelled_wherever_it_is(world: World) -> None:
    """`c1` leads only to `c2`, which only the join needs: it is cancelled though it is no need itself."""
    g = Noting()
    g.add("a", mode="inclusive", next=["b", "c1"])
    g.add("b", 1)
    g.add("c1", does=lambda ctx, args: ctx.sleep("nap", 10_000), next="c2")
    g.add("c2")
    g.add("m", needs=["b", "c2"], join=quorum(1))
    began = world.clock.time()
    result = await run(world, g.graph)
    assert by_status(result) == {
        "a": "completed",
        "b": "completed",
        "m": "completed",
        "c1": "cancelled",
        "c2": result.outcomes["c2"].status,
    }
    assert result.outcomes["c2"].firings == 0
    assert world.clock.time() - began < 10_000


async def test_a_quorum_that_can_not_be_reached_is_skipped(world: World) -> None:
    g = Noting()
    g.add("a", 1)
    g.add("b", fails="no")
    g.add("c", fails="no")
    g.add("m", needs=["a", "b", "c"], join=quorum(2))
    result = await run(world, g.graph)
    assert by_status(result)["m"] == "skipped"
    assert result.outcomes["m"].reason
    assert result.status == "failed"


@pytest.mark.law(7)
async def test_a_quorum_fires_once_though_more_are_done_at_the_same_time(world: World) -> None:
    g = Noting()
    for name in "abcdef":
        g.add(name)
    g.add("m", needs=list("abcdef"), join=quorum(2))
    result = await run(world, g.graph)
    assert result.outcomes["m"].firings == 1
    assert len(g.args["m"]) == 1
    assert len(g.args["m"][0]) == 2


@pytest.mark.law(4)
@pytest.mark.settings(mode="yield")
async def test_a_quorum_fires_once_though_another_is_done_after_the_instance_was_loaded(world: World) -> None:
    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)

    g = Noting()
    g.add("a")
    g.add("b", does=naps)
    g.add("m", needs=["a", "b"], join=quorum(1))
    g.add("other", needs=["b"])
    result = await run(world, g.graph)
    assert by_status(result) == dict.fromkeys(("a", "b", "m", "other"), "completed")
    assert (g.count("m"), result.outcomes["m"].firings) == (1, 1)


@pytest.mark.law(7)
async def test_a_quorum_cancels_only_what_is_of_its_own_fork_instance(world: World) -> None:
    async def naps(ctx: Context, args: Any) -> Any:
        await ctx.sleep("nap", args["n"])
        return args["n"]

    g = Noting()
    g.add("a", mode="inclusive", next=[arc("spread", args={"n": n}) for n in (1, 100)])
    g.add("spread", mode="inclusive", next=[arc("x", args=E.args), arc("y", args={"n": E.args.n + 1000})])
    g.add("x", does=naps)
    g.add("y", does=naps)
    g.add("m", needs=["x", "y"], join=quorum(1))
    result = await run(world, g.graph)
    assert g.args["m"] == [{"x": 1}, {"x": 100}]
    assert (result.outcomes["y"].status, result.outcomes["y"].firings) == ("cancelled", 2)


async def test_a_cancelled_firing_is_undone_like_any_other_if_the_graph_fails(world: World) -> None:
    undone: list[Any] = []

    async def undo(result: Any) -> None:
        undone.append(result)

    async def books(ctx: Context, args: Any) -> None:
        await ctx.step("book", lambda: "booked", rollback=undo)
        booked.set()
        await ctx.sleep("nap", 10_000)

    booked = anyio.Event()
    g = Noting()
    g.add("a", does=until(booked))
    g.add("b", does=books)
    g.add("m", needs=["a", "b"], join=quorum(1), fails="no")
    assert (await run(world, g.graph)).status == "failed"
    assert undone == ["booked"]


@pytest.mark.law(7, 11)
@pytest.mark.settings(mode="yield")
async def test_a_cancelled_firing_is_undone_also_by_a_run_that_has_not_seen_it(world: World) -> None:
    """The handler has no name, so that the code has to be called over what the firing has done."""
    undone: list[Any] = []

    async def books(ctx: Context, args: Any) -> None:
        await ctx.step("book", lambda: "booked", rollback=lambda result: undone.append(result))
        await ctx.sleep("nap", 10_000)

    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)

    async def fails_later(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)
        raise CriticalError("no")

    g = Noting()
    g.add("a", does=naps)
    g.add("b", does=books)
    g.add("m", does=fails_later, needs=["a", "b"], join=quorum(1))
    assert (await run(world, g.graph)).status == "failed"
    assert undone == ["booked"]


@pytest.mark.law(7)
async def test_no_part_of_an_end_is_stored_by_who_submits_while_a_loser_is_cancelled() -> None:
    """The history of the loser is read before it is cancelled: meanwhile nothing is written of the end that does it."""
    booked, reads = anyio.Event(), anyio.Event()
    commits: list[tuple[int, list[Kind]]] = []
    keys = InstanceKeys("i")

    class Slow(WatchedDriver):
        async def scan(self, begin: bytes, end: bytes, /, **options: Any) -> list[tuple[bytes, bytes]]:
            rows = await super().scan(begin, end, **options)
            if booked.is_set() and begin.startswith(keys.space + HISTORY):
                reads.set()
                for _ in range(200):  # turns of the event loop, in which the other one submits
                    await anyio.lowlevel.checkpoint()
            return rows

        async def commit(self, batch: Batch, /) -> None:
            marking, entries = keys.space + MARKINGS, keys.space + HISTORY
            gone = [write.key.partition(b"\x02\x00")[2] for write in batch.writes if isinstance(write, Clear)
                    and write.key.startswith(marking)]  # fmt: skip
            kinds = [Entry.unpack(write.value).kind for write in batch.writes if isinstance(write, Set)
                     and write.key.startswith(entries)]  # fmt: skip
            commits.append((sum(unpack(key)[0] == FIRINGS for key in gone), kinds))
            await super().commit(batch)

    async def books(ctx: Context, args: Any) -> None:
        await ctx.step("book", lambda: "booked", rollback=lambda result: None)
        booked.set()
        await anyio.sleep_forever()

    async def submits(ctx: Context, args: Any) -> None:
        await reads.wait()
        await ctx.submit([node("late", echo, args={"n": 1})])

    g = Noting()
    g.add("a", does=until(booked))
    g.add("b", does=books)
    g.add("c", does=submits)
    g.add("m", needs=["a", "b"], join=quorum(1))
    with anyio.fail_after(PATIENCE):
        await run_workflow(g.graph, driver=Slow(await open_driver("memory://")), instance_id="i", mode="live")
    assert 2 in [gone for gone, _ in commits], "the end and the cancelled one go together"
    assert all(Kind.FIRING in kinds for gone, kinds in commits if gone), commits
    assert sum(Kind.SUBMIT in kinds for _, kinds in commits) == 1


async def test_a_message_that_a_cancelled_firing_has_taken_is_there_for_others(world: World) -> None:
    async def takes(ctx: Context, args: Any) -> None:
        await ctx.listen("message")
        await ctx.sleep("nap", 10_000)

    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)

    g = Noting()
    g.add("a", does=naps)
    g.add("b", does=takes)
    g.add("m", does=lambda ctx, args: ctx.listen("message"), needs=["a", "b"], join=quorum(1))
    async with Client(world.driver) as client:
        await client.start(g.graph, id="i")
    await world.send("message", 5)
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "b": "cancelled", "m": "completed"}
    assert result.outputs["m"] == 5


@pytest.mark.parametrize("count", [0, -1, 1.5, "2"])
def test_a_quorum_is_a_number_from_1_on(count: Any) -> None:
    with pytest.raises(Exception, match="quorum"):
        quorum(count)


async def test_a_quorum_of_more_than_there_are_is_refused(world: World) -> None:
    g = Noting()
    g.add("a")
    g.add("m", needs=["a"], join=quorum(2))
    assert g.graph.validate()


# Fork instances.


async def echo(ctx: Context, args: Any) -> Any:
    """Gives back what it was given."""
    return args["n"]


def spreading() -> Noting:
    """`spread` is fired three times; each firing is a fork of its own, joined by `m`."""
    g = Noting()
    g.add("a", mode="inclusive", next=[arc("spread", args={"n": n}) for n in (1, 2, 3)])
    arcs = [arc("x", args={"n": E.args.n}), arc("y", args={"n": E.args.n * 10})]
    g.add("spread", mode="inclusive", next=arcs)
    g.add("x", does=echo)
    g.add("y", does=echo)
    g.add("m", needs=["x", "y"])
    return g


async def test_a_join_fires_once_for_each_fork_instance_with_what_belongs_together(world: World) -> None:
    g = spreading()
    result = await run(world, g.graph)
    assert sorted(g.args["m"], key=lambda args: args["x"]) == [{"x": n, "y": 10 * n} for n in (1, 2, 3)]
    assert result.outcomes["m"].firings == 3


@pytest.mark.law(13)
async def test_fork_instances_stay_apart_whatever_the_order_in_which_their_branches_end(world: World) -> None:
    async def slow_if_odd(ctx: Context, args: Any) -> Any:
        await ctx.sleep("nap", 100 - args["n"])
        return args["n"]

    async def slow(ctx: Context, args: Any) -> Any:
        await ctx.sleep("nap", args["n"])
        return args["n"]

    g = Noting()
    g.add("a", mode="inclusive", next=[arc("spread", args={"n": n}) for n in (1, 2, 3)])
    g.add("spread", mode="inclusive", next=[arc("x", args=E.args), arc("y", args=E.args)])
    g.add("x", does=slow_if_odd)
    g.add("y", does=slow)
    g.add("m", needs=["x", "y"])
    await run(world, g.graph)
    assert sorted(args["x"] - args["y"] for args in g.args["m"]) == [0, 0, 0]


async def test_in_one_fork_instance_a_join_is_skipped_while_it_fires_in_another(world: World) -> None:
    g = Noting()
    g.add("a", mode="inclusive", next=[arc("spread", args={"n": n}) for n in (1, 2)])
    arcs = [arc("x", args=E.args), arc("y", when=E.args.n == 2, args=E.args)]
    g.add("spread", mode="inclusive", next=arcs)
    g.add("x", does=echo)
    g.add("y", does=echo)
    g.add("m", needs=["x", "y"])
    result = await run(world, g.graph)
    assert g.args["m"] == [{"x": 2, "y": 2}], "x of the first is not joined to y of the second"
    assert result.outcomes["m"].firings == 1


async def test_a_second_pass_through_a_cycle_never_mixes_with_the_first(world: World) -> None:
    async def counts(ctx: Context, args: Any) -> Any:
        ctx.patch(n=ctx.vars["n"] + 1)
        return ctx.vars["n"]

    g = Noting(context={"n": 0})
    g.add("begin", next="spread")
    g.add("spread", does=counts, mode="inclusive", next=[arc(to, args={"n": E.output}) for to in "xy"])
    g.add("x", does=echo)
    g.add("y", does=echo)
    g.add("m", needs=["x", "y"], next=[arc("spread", when=E.ctx.n < 3), arc("end")])
    g.add("end")
    result = await run(world, g.graph)
    assert g.args["m"] == [{"x": n, "y": n} for n in (1, 2, 3)]
    assert (result.outcomes["m"].firings, result.outcomes["end"].firings) == (3, 1)
    assert result.status == "succeeded"


async def test_results_of_an_earlier_pass_are_not_counted_in_a_later_one(world: World) -> None:
    """In the second pass `y` is not taken: the `y` of the first does not stand in for it."""

    async def counts(ctx: Context, args: Any) -> Any:
        ctx.patch(n=ctx.vars["n"] + 1)
        return ctx.vars["n"]

    g = Noting(context={"n": 0})
    g.add("begin", next="spread")
    arcs = [arc("x", args={"n": E.output}), arc("y", when=E.output == 1, args={"n": E.output}), arc("z")]
    g.add("spread", does=counts, mode="inclusive", next=arcs)
    g.add("x", does=echo)
    g.add("y", does=echo)
    g.add("z")
    g.add("m", needs=["x", "y"], next=[arc("spread", when=E.ctx.n < 2)])
    result = await run(world, g.graph)
    assert g.args["m"] == [{"x": 1, "y": 1}]
    assert g.count("x") == 2
    assert (result.outcomes["m"].status, result.outcomes["m"].firings) == ("completed", 1), "the last firing counts"
    assert result.status == "succeeded"


async def test_several_firings_of_one_need_count_once_and_the_first_of_them(world: World) -> None:
    go_on = anyio.Event()
    g = Noting()
    g.add("a", mode="inclusive", next=[arc("x", args={"n": 1}), arc("slow"), arc("y")])
    g.add("slow", does=until(go_on), next=arc("x", args={"n": 2}))
    g.add("x", does=echo)
    g.add("y", does=opens(go_on, "y"))
    g.add("m", needs=["x", "y"])
    result = await run(world, g.graph)
    assert g.args["m"] == [{"x": 1, "y": "y"}]
    assert (result.outcomes["x"].firings, result.outcomes["m"].firings) == (2, 1)
    assert result.outputs["x"] == 2, "the last firing counts for the outcome"


@pytest.mark.law(1)
async def test_a_need_that_is_done_again_while_the_join_waits_is_not_counted_again(world: World) -> None:
    async def naps(ctx: Context, args: Any) -> None:
        await ctx.sleep("nap", 60)

    g = Noting()
    g.add("a", mode="inclusive", next=[arc("x", args={"n": 1}), arc("slow")])
    g.add("slow", does=naps, next=arc("x", args={"n": 2}))
    g.add("x", does=echo, next=arc("y", when=E.output == 2))
    g.add("y", "y")
    g.add("m", needs=["x", "y"])
    result = await run(world, g.graph)
    assert g.args["m"] == [{"x": 1, "y": "y"}]
    assert (result.outcomes["x"].firings, result.outcomes["m"].firings) == (2, 1)


@pytest.mark.law(13)
async def test_a_join_pops_to_the_innermost_fork_that_dominates_its_needs(world: World) -> None:
    """`inner` is joined for each token of `a`, `outer` once for all of it."""
    g = Noting()
    g.add("start", mode="inclusive", next=["side", "a"])
    g.add("side", "side")
    g.add("a", mode="inclusive", next=["x", "y"])
    g.add("x", "x")
    g.add("y", "y")
    g.add("inner", "inner", needs=["x", "y"])
    g.add("outer", needs=["inner", "side"], next="after")
    g.add("after")
    result = await run(world, g.graph)
    assert g.args["inner"] == [{"x": "x", "y": "y"}]
    assert by_status(result)["outer"] == "completed", result.outcomes["outer"].reason
    assert g.args["outer"] == [{"inner": "inner", "side": "side"}]
    assert result.outcomes["after"].firings == 1


async def test_two_inner_joins_are_joined_by_an_outer_one(world: World) -> None:
    g = Noting()
    g.add("start", mode="inclusive", next=["a", "b"])
    g.add("a", mode="inclusive", next=["a1", "a2"])
    g.add("b", mode="inclusive", next=["b1", "b2"])
    for name in ("a1", "a2", "b1", "b2"):
        g.add(name, name)
    g.add("ma", "ma", needs=["a1", "a2"])
    g.add("mb", "mb", needs=["b1", "b2"])
    g.add("m", needs=["ma", "mb"])
    result = await run(world, g.graph)
    assert by_status(result)["m"] == "completed", result.outcomes["m"].reason
    assert g.args["m"] == [{"ma": "ma", "mb": "mb"}]
    assert result.outcomes["m"].firings == 1


async def test_steps_between_an_inner_join_and_the_outer_one(world: World) -> None:
    g = Noting()
    g.add("start", mode="inclusive", next=["side", "a"])
    g.add("side", "side")
    g.add("a", mode="inclusive", next=["x", "y"])
    g.add("x", "x")
    g.add("y", "y")
    g.add("inner", "inner", needs=["x", "y"], next="tail")
    g.add("tail", "tail")
    g.add("outer", needs=["tail", "side"])
    result = await run(world, g.graph)
    assert by_status(result)["outer"] == "completed", result.outcomes["outer"].reason
    assert g.args["outer"] == [{"tail": "tail", "side": "side"}]


async def test_a_join_over_two_levels_of_forks(world: World) -> None:
    """`m` needs a step of the inner fork and one of the outer: it belongs to the outer."""
    g = Noting()
    g.add("start", mode="inclusive", next=["side", "a"])
    g.add("side", "side")
    g.add("a", mode="inclusive", next=["x", "y"])
    g.add("x", "x")
    g.add("y", "y")
    g.add("m", needs=["x", "side"])
    result = await run(world, g.graph)
    assert g.args["m"] == [{"x": "x", "side": "side"}]
    assert result.outcomes["m"].firings == 1
    assert result.status == "succeeded"


async def test_a_firing_that_emits_one_token_opens_no_fork_instance(world: World) -> None:
    g = Noting()
    g.add("start", mode="inclusive", next=["a", "b"])
    g.add("a", 1, mode="inclusive", next=[arc("x", when=E.output == 1), arc("y", when=E.output == 2)])
    g.add("b", "b")
    g.add("x", "x")
    g.add("y", "y")
    g.add("m", needs=["x", "b"])
    result = await run(world, g.graph)
    assert g.args["m"] == [{"x": "x", "b": "b"}]
    assert result.status == "succeeded"


@pytest.mark.law(4)
async def test_joins_go_on_after_a_wait_in_every_branch(world: World) -> None:
    async def naps(ctx: Context, args: Any) -> Any:
        await ctx.sleep("nap", args["n"])
        return args["n"]

    g = Noting()
    g.add("a", mode="inclusive", next=[arc("x", args={"n": 5}), arc("y", args={"n": 500})])
    g.add("x", does=naps)
    g.add("y", does=naps)
    g.add("m", needs=["x", "y"])
    result = await run(world, g.graph)
    assert g.args["m"] == [{"x": 5, "y": 500}]
    assert result.outcomes["x"].firings == 1
