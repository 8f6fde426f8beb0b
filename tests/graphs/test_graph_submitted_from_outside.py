"""`client.submit`: steps that are added to a run from outside."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs.running import Noting, by_status, run, waiting
from tests.patience import PATIENCE
from tests.runtime.parts import until_status
from tests.support import World
from workflow_sdk import Client, Context, Driver, InstanceNotFoundError, Runtime, Status, workflow
from workflow_sdk.graphs import Graph, GraphResult, Limits, node

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
    ],
    ids=["unknown", "cycle", "twice"],
)
async def test_what_is_wrong_with_one_step_refuses_the_batch_and_the_run_goes_on(world: World, batch: Any) -> None:
    g = open_graph(limits=Limits(nodes=4))
    await waiting(world, g.graph)
    verdict = await submit(world, batch)
    assert (bool(verdict), verdict.kind) == (False, "deny")
    assert verdict.reason
    await world.send("answer", 1)
    result = await run(world, g.graph)
    assert by_status(result) == {"a": "completed"}
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


async def test_an_instance_that_is_no_graph_denies(world: World) -> None:
    @workflow
    async def plain(ctx: Context) -> Any:
        return await ctx.listen("answer")

    await world.once(plain, mode="yield")
    verdict = await submit(world, [node("x", note)])
    assert not verdict
