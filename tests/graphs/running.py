"""Graphs that note what they run, and running one to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Batch, Client, Context, CriticalError, Driver, Status, WorkflowFailedError
from workflow_sdk.driver import Set
from workflow_sdk.graphs import Graph, GraphResult
from workflow_sdk.testing import SimulatedCrash

__all__ = ["Body", "HeldScans", "Noting", "by_status", "ended", "run", "tell", "waiting"]

Body = Callable[[Context, Any], Awaitable[Any]]


class Noting:
    """A graph under construction, whose steps note that they ran, and with which arguments."""

    def __init__(self, graph: Graph | None = None, **options: Any) -> None:
        self.graph = graph or Graph("g", **options)
        self.ran: list[str] = []
        """Names of steps, each time that one began."""
        self.args: dict[str, list[Any]] = {}

    def body(self, name: str, value: Any = None, fails: str | None = None, does: Body | None = None) -> Body:
        """What a step runs: it gives back `value`, fails with that text, or does something else."""

        async def body(ctx: Context, args: Any) -> Any:
            self.ran.append(name)
            self.args.setdefault(name, []).append(args)
            if does is not None:
                return await does(ctx, args)
            if fails is not None:
                raise CriticalError(fails)
            return value

        body.__name__ = body.__qualname__ = name
        return body

    def add(
        self, name: str, value: Any = None, *, fails: str | None = None, does: Body | None = None, **options: Any
    ) -> None:
        """Declare a step."""
        self.graph.step(name, self.body(name, value, fails, does), **options)

    def count(self, name: str) -> int:
        """How often a step began."""
        return self.ran.count(name)


def tell(**given: Any) -> Body:
    """A body that patches the context of the graph."""

    async def patches(ctx: Context, args: Any) -> None:
        ctx.patch(**given)

    return patches


class HeldScans:
    """Hands everything on; one read of a range is held up until it is let go, and may find the worker dead then."""

    def __init__(self, driver: Driver, turns: int = 0) -> None:
        """`turns`: how many turns of the event loop each commit takes."""
        self.driver = driver
        self.turns = turns
        self.is_armed = self.is_dead = False
        self.held, self.let_go = anyio.Event(), anyio.Event()
        self.weights: list[int] = []
        """How many bytes of values each commit wrote."""

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`."""
        return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows of a range."""
        if self.is_armed:
            self.is_armed = False
            self.held.set()
            await self.let_go.wait()
        if self.is_dead:
            raise SimulatedCrash
        return await self.driver.scan(begin, end, limit=limit, reverse=reverse)

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch."""
        self.weights.append(sum(len(write.value) for write in batch.writes if isinstance(write, Set)))
        for _ in range(self.turns):
            await checkpoint()
        await self.driver.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value differs."""
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        """Close the store."""
        await self.driver.aclose()


async def run(world: World, graph: Graph, workload: Any = None, *, id: str = "i") -> GraphResult:
    """Run a graph to its end, and return what it has come to, however it ended."""
    with anyio.fail_after(PATIENCE):
        result = await world.run(graph, workload, id=id)
    if result.status is Status.COMPLETED:
        assert isinstance(result.output, GraphResult)
        return result.output
    assert result.status in (Status.FAILED, Status.ROLLED_BACK), result
    failed = (await ended(world, graph, id=id)).result
    assert isinstance(failed, GraphResult)
    return failed


async def ended(world: World, graph: Graph, *, id: str = "i") -> WorkflowFailedError:
    """The error of a graph that has failed."""
    async with Client(world.driver) as client:
        with pytest.raises(WorkflowFailedError) as failed:
            await client.handle(graph, id).result(timeout=PATIENCE)
    assert isinstance(failed.value.result, GraphResult), failed.value
    return failed.value


async def waiting(world: World, graph: Graph, workload: Any = None, *, id: str = "i") -> None:
    """Run a graph until nothing but a message or a patch can move it on."""
    with anyio.fail_after(PATIENCE):
        result = await world.once(graph, workload, id=id, mode="yield")
    assert result.status is Status.WAITING, result


def by_status(result: GraphResult) -> dict[str, str]:
    """How each step ended."""
    return {name: outcome.status for name, outcome in result.outcomes.items()}
