"""`client.submit`: steps that are added to a run from outside."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs.running import Noting
from tests.support import World
from workflow_sdk import Client, Context
from workflow_sdk.graphs import Graph

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
