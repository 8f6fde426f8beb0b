"""`client.submit`: steps that are added to a run from outside."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.graphs.running import HeldScans, Noting, by_status, run, waiting
from tests.leftovers import keys_of
from tests.patience import PATIENCE
from tests.runtime.parts import until_status
from tests.support import World
from workflow_sdk import (
    Client,
    Context,
    Driver,
    InstanceNotFoundError,
    Runtime,
    Status,
    open_driver,
    run_workflow,
    workflow,
)
from workflow_sdk.graphs import E, Graph, GraphResult, Limits, node, quorum
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

log: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()


async def note(ctx: Context, args: Any) -> Any:
    """Notes that it ran."""
    log.append((ctx.path.split("/")[1], args))
    return args


async def asks(ctx: Context, args: Any) -> Any:
    """Keeps the graph going until it is answered."""
    return await ctx.listen("answer")


def open_graph(**options: Any) -> Noting:
    """A graph that waits."""
    g = Noting(Graph("g", **options))
    g.add("a", does=asks)
    return g


async def submit(world: World, nodes: Any, id: str = "i") -> Any:
    """From another client."""
    async with Client(world.driver) as client:
        return await submit_by(client, nodes, id)


async def submit_by(client: Any, nodes: Any, id: str = "i") -> Any:
    """From this client."""
    return await client.submit(id, nodes)


async def test_submitted_steps_run_beside_what_is_under_way(world: World) -> None:
    g = open_graph()
    await waiting(world, g.graph)
    verdict = await submit(world, [node("x", note, args={"n": 1}), node("y", note, needs=["x"])])
    assert verdict
    await waiting(world, g.graph)
    assert log == [("x", {"n": 1}), ("y", {"x": {"n": 1}})]
    await world.send("answer", 42)
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "x": "completed", "y": "completed"}


async def test_submitted_steps_may_need_what_is_still_under_way(world: World) -> None:
    g = open_graph()
    await waiting(world, g.graph)
    assert await submit(world, [node("x", note, needs=["a"])])
    await world.send("answer", 42)
    await run(world, g.graph)
    assert log == [("x", {"a": 42})]


async def test_a_worker_takes_them_up_at_once(driver: Driver) -> None:
    g = open_graph()
    async with Runtime(driver, workflows=[g.graph]) as runtime, Client(driver) as client:
        handle = await runtime.start(g.graph, id="i")
        await until_status(handle, Status.WAITING)
        assert await submit_by(client, [node("x", note)])
        await handle.send("answer", 1)
        result = await handle.result(timeout=PATIENCE)
        assert isinstance(result, GraphResult)
        assert result.outcomes["x"].status == "completed"


async def test_an_ended_instance_denies(world: World) -> None:
    g = Noting(Graph("g"))
    g.add("a")
    before = await run(world, g.graph)
    verdict = await submit(world, [node("x", note)])
    assert not verdict
    assert verdict.kind == "deny"
    assert verdict.reason
    assert await run(world, g.graph) == before
    assert log == []


async def test_an_unknown_instance_is_an_error(world: World) -> None:
    with pytest.raises(InstanceNotFoundError):
        await submit(world, [node("x", note)], "nobody")


async def test_an_empty_batch_changes_nothing(world: World) -> None:
    g = open_graph()
    await waiting(world, g.graph)
    before = await world.driver.scan(b"", b"\xff")
    await submit(world, [])
    assert await world.driver.scan(b"", b"\xff") == before


@pytest.mark.parametrize(
    "batch",
    [
        [node("x", note), node("y", note, needs=["nowhere"])],
        [node("x", note, needs=["y"]), node("y", note, needs=["x"])],
        [node("x", note), node("x", note)],
        [node("x", note, next="end")],
        [node("x", note, needs=["end"])],
    ],
    ids=["unknown", "cycle", "twice", "to the final step", "after the final step"],
)
async def test_what_is_wrong_with_one_step_refuses_the_batch_and_the_run_goes_on(world: World, batch: Any) -> None:
    g = open_graph(limits=Limits(nodes=4), final="end")
    g.add("end")
    await waiting(world, g.graph)
    verdict = await submit(world, batch)
    assert (bool(verdict), verdict.kind) == (False, "deny")
    assert verdict.reason
    await world.send("answer", 1)
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed", "end": "completed"}
    assert result.status == "succeeded"


async def test_a_name_that_is_there_refuses_the_batch(world: World) -> None:
    g = open_graph()
    await waiting(world, g.graph)
    assert not await submit(world, [node("x", note), node("a", note)])
    await world.send("answer", 1)
    assert by_status(await run(world, g.graph)) == {"a": "completed"}


async def test_too_many_refuse_the_batch(world: World) -> None:
    g = open_graph(limits=Limits(nodes=2))
    await waiting(world, g.graph)
    verdict = await submit(world, [node("x", note), node("y", note)])
    assert not verdict
    assert "nodes" in verdict.reason
    assert await submit(world, [node("x", note)])
    await world.send("answer", 1)
    assert by_status(await run(world, g.graph)) == {"a": "completed", "x": "completed"}


async def test_before_the_first_run_they_are_not_lost(world: World) -> None:
    g = open_graph()
    async with Client(world.driver) as client:
        await client.start(g.graph, id="i")
    assert await submit(world, [node("x", note)])
    await waiting(world, g.graph)
    assert log == [("x", {})]


@pytest.mark.law(4)
async def test_restarting_keeps_what_was_submitted_before(world: World) -> None:
    g = open_graph()
    await waiting(world, g.graph)
    assert await submit(world, [node("x", note, args={"n": 1})])
    await waiting(world, g.graph)
    await world.send("answer", 42)
    before = await run(world, g.graph)
    async with Client(world.driver) as client:
        await client.handle(g.graph, "i").restart_from("g/a/~0")
    assert await run(world, g.graph) == before
    assert log == [("x", {"n": 1})]


@pytest.mark.law(6)
async def test_while_the_first_run_begins_they_are_not_refused(world: World) -> None:
    """A worker has the instance, and has recorded nothing of the graph yet."""
    g = open_graph()
    with pytest.raises(BaseException, match="crashed"):  # it may be inside a group
        await world.once(g.graph, driver=FaultyDriver(world.driver, crash_before=2))
    assert (await world.history()).status is Status.RUNNING
    verdicts: list[Any] = []

    async def submits() -> None:
        verdicts.append(await submit(world, [node("x", note)]))
        await world.send("answer", 42)

    async with anyio.create_task_group() as group:
        group.start_soon(submits)
        await world.run(g.graph)
    assert by_status(await run(world, g.graph)) == {"a": "completed", "x": "completed"}
    assert [bool(verdict) for verdict in verdicts] == [True]


async def test_an_instance_that_is_no_graph_denies(world: World) -> None:
    @workflow
    async def plain(ctx: Context) -> Any:
        return await ctx.listen("answer")

    await world.once(plain, mode="yield")
    verdict = await submit(world, [node("x", note)])
    assert not verdict


# While nobody runs the graph, what was sent and not yet taken counts.


async def test_of_two_that_submit_at_once_while_nobody_runs_it_the_second_sees_the_first(world: World) -> None:
    g = open_graph()
    await waiting(world, g.graph)
    verdicts: dict[str, bool] = {}

    async def submits(who: str) -> None:
        verdicts[who] = bool(await submit(world, [node("x", note, args=who), node(who, note)]))

    async with anyio.create_task_group() as group:
        for who in "bcd":
            group.start_soon(submits, who)
    assert sorted(verdicts.values()) == [False, False, True]
    await waiting(world, g.graph)
    winner = next(who for who, is_allowed in verdicts.items() if is_allowed)
    assert sorted(log, key=str) == sorted([("x", winner), (winner, {})], key=str)


async def test_while_nobody_runs_it_a_batch_may_need_what_was_sent_before_it(world: World) -> None:
    g = open_graph(limits=Limits(nodes=3))
    await waiting(world, g.graph)
    assert await submit(world, [node("x", note)])
    assert not await submit(world, [node("x", note)])
    assert await submit(world, [node("y", note, needs=["x"])])
    assert "nodes" in (await submit(world, [node("z", note)])).reason
    await waiting(world, g.graph)
    assert log == [("x", {}), ("y", {"x": {}})]


async def test_before_the_first_run_a_batch_is_held_against_those_sent_before(world: World) -> None:
    g = open_graph()
    async with Client(world.driver) as client:
        await client.start(g.graph, id="i")
    assert await submit(world, [node("x", note, needs=["a"])])
    assert not await submit(world, [node("x", note)])
    assert not await submit(world, [node("y", note), node("y", note)])
    assert await submit(world, [node("y", note, needs=["x"])])
    await waiting(world, g.graph)
    await world.send("answer", 42)
    await run(world, g.graph)
    assert log == [("x", {"a": 42}), ("y", {"x": {"a": 42}})]


async def test_steps_that_were_allowed_come_before_those_that_a_step_submits_later(world: World) -> None:
    verdicts: list[bool] = []

    async def submits(ctx: Context, args: Any) -> None:
        await ctx.listen("answer")
        verdicts.append(bool(await ctx.submit([node("x", note, args="inside")])))

    g = Noting(Graph("g"))
    g.add("a", does=submits)
    await waiting(world, g.graph)
    await world.send("answer")
    assert await submit(world, [node("x", note, args="outside")])
    result = await run(world, g.graph)
    assert result.outputs["x"] == "outside"
    assert verdicts[-1] is False


async def test_nothing_that_is_submitted_needs_the_final_step_or_leads_to_it(world: World) -> None:
    g = open_graph(final="end")
    g.add("end")
    await waiting(world, g.graph)
    assert "final" in (await submit(world, [node("x", note, needs=["end"])])).reason
    assert "final" in (await submit(world, [node("y", note, next="end")])).reason
    await world.send("answer", 1)
    await run(world, g.graph)
    assert log == []
    assert g.ran.count("end") == 1


@pytest.mark.law(6)
async def test_what_was_allowed_before_the_last_firing_ends_is_run(world: World) -> None:
    """When it is loaded, the submission is there, and its only firing ends at once."""
    g = Noting(Graph("g"))
    g.add("a")
    async with Client(world.driver) as client:
        await client.start(g.graph, id="i")
    assert await submit(world, [node("x", note)])
    assert by_status(await run(world, g.graph)) == {"a": "completed", "x": "completed"}
    assert log == [("x", {})]


async def undone(value: Any) -> None:
    """Undoes nothing."""


@pytest.mark.law(6)
async def test_what_comes_while_the_last_end_is_decided_is_denied_or_run() -> None:
    """The end of `wins` cancels `loses`, and waits for a copy of its history; so does that of `last`, for that."""
    held = HeldScans(await open_driver("memory://"))
    go, ends = anyio.Event(), anyio.Event()

    async def wins(ctx: Context, args: Any) -> None:
        await ctx.step("bill", lambda: 1, rollback=undone)
        held.is_armed = True

    async def waits(ctx: Context, args: Any) -> None:
        await go.wait()
        ends.set()

    async def never(ctx: Context, args: Any) -> None:
        await ctx.listen("never")

    g = Noting(Graph("g", context={"wanted": False}))
    g.add("wins", does=wins)
    g.add("loses", does=never)
    g.add("last", does=waits)
    g.add("join", needs=["wins", "loses"], join=quorum(1), admit=E.ctx.wanted, on_deny="discard")
    verdicts, results = list[Any](), list[GraphResult]()
    async with Runtime(held, workflows=[g.graph]) as runtime, anyio.create_task_group() as group:

        async def submits() -> None:
            verdicts.append(await runtime.submit("i", [node("x", note)]))

        with anyio.fail_after(PATIENCE):
            handle = await runtime.start(g.graph, id="i")
            await held.held.wait()
            go.set()
            await ends.wait()
            await anyio.wait_all_tasks_blocked()
            group.start_soon(submits)
            await anyio.wait_all_tasks_blocked()
            held.let_go.set()
            results.append(await handle.result())
    (result,) = results
    (verdict,) = verdicts
    assert by_status(result) == {"wins": "completed", "loses": "cancelled", "last": "completed", "join": "denied"}
    assert not verdict
    assert log == []


async def dies_at(driver: Driver, when: str, number: int) -> bool:
    """A run whose worker dies at that commit, while somebody waits for the verdict on a batch; whether it died."""
    options: dict[str, Any] = {when: number}
    faulty, id = FaultyDriver(driver, **options), f"{when} {number}"
    g = open_graph()

    async def work() -> None:
        try:
            await run_workflow(g.graph, driver=faulty, instance_id=id, mode="live")
        except (SimulatedCrash, BaseExceptionGroup):
            await run_workflow(g.graph, driver=driver, instance_id=id, mode="live")

    async with Client(driver) as client:
        handle = await client.start(g.graph, id=id)
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await until_status(handle, Status.WAITING)
            with anyio.fail_after(PATIENCE):
                assert await client.submit(id, [node("x", note)])
            await handle.send("answer", 42)
        assert by_status(await handle.result(timeout=PATIENCE)) == {"a": "completed", "x": "completed"}
    return faulty.crashed


@pytest.mark.law(1)
@pytest.mark.parametrize("when", ["crash_before", "crash_after"])
async def test_the_verdict_comes_though_the_worker_dies(when: str) -> None:
    driver = await open_driver("memory://")
    number = 1
    while await dies_at(driver, when, number):
        number += 1
    assert number > 4
    assert log.count(("x", {})) >= number
    assert [key for key in await keys_of(driver) if key[0] == 11] == [], "no answer is left behind"
