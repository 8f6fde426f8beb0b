"""`Runtime.start(completed=, submissions=)`: going on from what another system has done."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs.flows import two
from tests.graphs.running import Noting, by_status
from tests.patience import PATIENCE
from workflow_sdk import Client, Context, DefinitionError, Driver, Handle, Runtime
from workflow_sdk.graphs import E, Graph, GraphResult, Limits, arc, node

log: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()


async def note(ctx: Context, args: Any) -> Any:
    """Notes that it ran."""
    log.append((ctx.path.split("/")[1], args))
    return args


async def start(client: Any, graph: Any, workload: Any = None, **given: Any) -> Handle[Any]:
    """Start it with what was done before."""
    handle = await client.start(graph, workload, id="i", **given)
    assert isinstance(handle, Handle)
    return handle


async def resumed(driver: Driver, g: Noting, workload: Any = None, **given: Any) -> GraphResult:
    """How it ends when it is started with what was done before."""
    async with Runtime(driver, workflows=[g.graph]) as runtime:
        handle = await start(runtime, g.graph, workload, **given)
        result = await handle.result(timeout=PATIENCE)
    assert isinstance(result, GraphResult)
    return result


async def test_completed_steps_are_not_run_and_their_outputs_are_read(driver: Driver) -> None:
    g = Noting(Graph("g"))
    g.add("a", "fresh a")
    g.add("b", "fresh b")
    g.add("c", needs=["a", "b"])
    result = await resumed(driver, g, completed={"a": "old a"})
    assert g.ran == ["b", "c"]
    assert g.args["c"] == [{"a": "old a", "b": "fresh b"}]
    assert set(by_status(result).values()) == {"completed"}
    assert result.outputs["a"] == "old a"


async def test_if_all_is_completed_nothing_runs(driver: Driver) -> None:
    g = Noting(Graph("g"))
    g.add("a")
    g.add("b", needs=["a"])
    result = await resumed(driver, g, completed={"a": 1, "b": 2})
    assert g.ran == []
    assert (result.status, result.outputs) == ("succeeded", {"a": 1, "b": 2})


async def test_the_arcs_of_completed_steps_are_followed(driver: Driver) -> None:
    g = Noting(Graph("g"))
    g.add("a", next=[arc("b", when=E.output == 1, args={"n": E.output}), arc("c")])
    g.add("b")
    g.add("c")
    result = await resumed(driver, g, completed={"a": 1})
    assert g.ran == ["b"]
    assert g.args["b"] == [{"n": 1}]
    assert result.status == "succeeded"


@pytest.mark.law(1)
async def test_a_chain_of_completed_steps_goes_on_at_its_end(driver: Driver) -> None:
    g = Noting(Graph("g"))
    g.add("a", next="b")
    g.add("b", next="c")
    g.add("c", next="d")
    g.add("d")
    await resumed(driver, g, completed={"a": None, "b": None})
    assert g.ran == ["c", "d"]


async def test_submissions_are_applied_in_order_before_it_goes_on(driver: Driver) -> None:
    g = Noting(Graph("g"))
    g.add("a", 1)
    batches = [[node("x", note, needs=["a"])], [node("y", note, needs=["x"])]]
    result = await resumed(driver, g, completed={"a": 5, "x": 6}, submissions=batches)
    assert g.ran == []
    assert log == [("y", {"x": 6})]
    assert set(by_status(result)) == {"a", "x", "y"}


async def test_a_completed_name_that_no_step_has_is_refused_before_anything_is_written(driver: Driver) -> None:
    g = Noting(Graph("g"))
    g.add("a")
    async with Runtime(driver, workflows=[g.graph]) as runtime:
        with pytest.raises(DefinitionError, match="nowhere"):
            await start(runtime, g.graph, completed={"nowhere": 1})
        assert not (await runtime.list()).items


async def test_a_submission_that_is_refused_is_told_before_anything_is_written(driver: Driver) -> None:
    g = Noting(Graph("g", limits=Limits(nodes=1)))
    g.add("a")
    async with Runtime(driver, workflows=[g.graph]) as runtime:
        with pytest.raises(DefinitionError, match="nodes"):
            await start(runtime, g.graph, submissions=[[node("x", note)]])
        assert not (await runtime.list()).items


async def test_completed_is_kept_with_the_instance_and_survives_another_worker(driver: Driver) -> None:
    g = Noting(Graph("g"))
    g.add("a")
    g.add("b", needs=["a"])
    async with Client(driver) as client:
        await start(client, g.graph, completed={"a": 3})
    async with Runtime(driver, workflows=[g.graph]) as runtime:
        await runtime.handle(g.graph, "i").result(timeout=PATIENCE)
    assert g.ran == ["b"]
    assert g.args["b"] == [{"a": 3}]


async def test_a_plain_workflow_takes_neither(driver: Driver) -> None:
    async with Runtime(driver, workflows=[two]) as runtime:
        with pytest.raises((DefinitionError, TypeError)):
            await start(runtime, two, 1, completed={"a": 1})
