"""`Runtime.start(completed=, submissions=)`: going on from what another system has done."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs.flows import two
from tests.graphs.running import Noting
from tests.patience import PATIENCE
from workflow_sdk import Context, DefinitionError, Driver, Handle, Runtime
from workflow_sdk.graphs import GraphResult

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


async def test_a_plain_workflow_takes_neither(driver: Driver) -> None:
    async with Runtime(driver, workflows=[two]) as runtime:
        with pytest.raises((DefinitionError, TypeError)):
            await start(runtime, two, 1, completed={"a": 1})
