"""In the simulated world: random graphs, which come to the same whatever happens to those who run them.

Each has a cycle, a fork with branches of several kinds, joins, steps that are submitted from inside and outside, and an
admission that is opened from outside. What it has to come to is what one worker comes to who is left in peace.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
import trio

from tests.chaos import effort
from tests.laws.simulation.test_simulation import Schedule, ran, work
from tests.laws.simulation.world import Laws, Simulated, Worker, current, in_virtual_time
from tests.leftovers import check_nothing_left
from workflow_sdk import Backoff, Client, Context, CriticalError
from workflow_sdk.driver import Batch, Set
from workflow_sdk.graphs import E, Graph, GraphResult, Limits, arc, node, quorum
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.keys import HISTORY, INBOX, MARKINGS, InstanceKeys
from workflow_sdk.rows.location import segments
from workflow_sdk.rows.status import Kind

pytestmark = pytest.mark.law(1, 10, 20, 21)

SCHEDULES = 120
BATCHES = 4
RACING = ("quick", "slow")
"""Which of them wins depends on who is held up."""
SHORT = Backoff(initial=2, factor=1, maximum=2, jitter=0)


# The graphs.


def begins(ctx: Context) -> tuple[str, int]:
    """Note that the body of a firing is called; the step, and the number of the firing."""
    _, step, count = ctx.path.split("/")
    worker = current.get()
    worker.laws.begins(ctx.instance_id, f"firing {step} {count[1:]}", worker.name)
    return step, int(count[1:])


async def busy(ctx: Context, args: Any) -> str:
    """A body with steps and waits: how many, follows from its name."""
    step, count = begins(ctx)
    chance = Random(f"{ctx.instance_id} {step}")
    for number in range(chance.randint(0, 2)):
        name = f"{step} {number}"
        await ctx.step(name, work, ctx.instance_id, f"{name} {count}", chance.randint(0, 4))
        await ctx.sleep(f"pause {number}", chance.randint(1, 9))
    return f"{step} {count}"


async def counts(ctx: Context, args: Any) -> int:
    """One pass of the cycle."""
    await busy(ctx, args)
    ctx.patch(n=ctx.vars["n"] + 1)
    return int(ctx.vars["n"])


async def flaky(ctx: Context, args: Any) -> str:
    """A body that is called three times, or more often."""
    begins(ctx)
    await current.get().gate()
    ran[f"{ctx.instance_id} flaky"] += 1
    if ran[f"{ctx.instance_id} flaky"] < 3:
        raise ValueError("not yet")
    return "at last"


async def wrong(ctx: Context, args: Any) -> None:
    """A body that fails, after all that it does."""
    await busy(ctx, args)
    raise CriticalError("as always")


async def grows(ctx: Context, args: Any) -> bool:
    """A body that submits steps."""
    await busy(ctx, args)
    nodes = [node("last", busy, needs=["late", "later"]), node("late", busy, needs=["a"]), node("later", busy)]
    return bool(await ctx.submit(nodes))


def random_graph(chance: Random, name: str) -> Graph:
    """A graph that comes to the same in whatever order its firings end."""
    turns = chance.randint(1, 3)
    graph = Graph(
        name,
        context={"n": 0, "open": False},
        limits=Limits(running=chance.choice([None, None, 1, 2])),
        final=chance.choice([None, "final"]),
        functions=[busy],
    )
    branches = ["a", "flaky", "wrong", "gated", "grows", *RACING]
    graph.step("count", counts, next=[arc("count", when=E.ctx.n < turns), arc("fork")])
    arcs = [arc(branch, args={"n": E.ctx.n}) for branch in chance.sample(branches, len(branches))]
    graph.step("fork", busy, mode="inclusive", next=[*arcs, arc("b", when=E.ctx.n < chance.randint(1, 4))])
    for branch in ("a", "b", *RACING):
        graph.step(branch, busy)
    graph.step("flaky", flaky, retries=3, backoff=SHORT)
    graph.step("wrong", wrong, retries=0, next=arc("mend", on="failed"))
    graph.step("mend", busy)
    graph.step("gated", busy, admit=E.ctx.open)
    graph.step("grows", grows)
    graph.step("meet", busy, needs=["a", "flaky"], next="after")
    graph.step("after", busy)
    graph.step("some", busy, needs=["b", "wrong", "gated"], join="alive")
    graph.step("first", busy, needs=["a", "flaky"], join=quorum(1))
    graph.step("won", busy, needs=list(RACING), join=quorum(1))
    if graph.settings["final"] is not None:
        graph.step("final", busy)
    return graph


# The world.


class FiringLaws(Laws):
    """Firings whose end is committed are not called again, either."""

    def _note(self, id: str, keys: InstanceKeys, batch: Batch, who: str) -> None:
        super()._note(id, keys, batch, who)
        entries = keys.space + HISTORY
        for write in batch.writes:
            if isinstance(write, Set) and write.key.startswith(entries):
                entry, last = Entry.unpack(write.value), list(segments(write.key[len(entries) :]))[-1]
                if entry.kind is Kind.FIRING and entry.is_final:
                    assert isinstance(last, tuple), "a firing has a number"
                    self._done.add((id, f"firing {self._names[id][last[0]]} {last[1]}"))


class Graphs(Schedule):
    """Workers that run graphs. `calm`: nothing happens to them."""

    def __init__(self, seed: int, *, calm: bool = False) -> None:
        super().__init__(seed)
        self.calm = calm
        self.laws = FiringLaws(self.ids)
        self.graphs = {id: random_graph(Random(f"{seed} {id}"), f"graph of {id}") for id in self.ids}
        self.flows = tuple(self.graphs.values())
        self.results: dict[str, Any] = {}

    def worker(self, name: str) -> Worker:
        made = super().worker(name)
        if self.calm:
            made.skew = made.slow = made.fails = 0.0
        return made

    async def trouble(self, nursery: trio.Nursery) -> None:
        if not self.calm:
            await super().trouble(nursery)

    async def clients(self) -> None:
        healthy = Worker("client", self.rng, self.laws)
        async with Client(Simulated(self.laws, healthy), clock=healthy) as client:
            for id, graph in self.graphs.items():
                await client.start(graph, id=id)
            for id, graph in self.graphs.items():
                await trio.sleep(self.rng.expovariate(1 / 5))
                assert await client.submit(id, [node("outside", busy), node("needs a", busy, needs=["a", "outside"])])
                await client.handle(graph, id).patch(open=True)
            for id, graph in self.graphs.items():
                self.results[id] = told(await client.handle(graph, id).result())

    async def look(self) -> None:
        for id in self.ids:
            keys = InstanceKeys(id)
            for part in (INBOX, MARKINGS):
                assert await self.laws.inner.scan(*keys.range(part)) == []
        if self.reliable:
            # Each once, and again only for those who were lost in the middle of it.
            assert max([0, *(count - 1 for name, count in ran.items() if not name.endswith("flaky"))]) <= self.lost
        await check_nothing_left(self.laws.inner)


def told(result: GraphResult) -> Any:
    """What a graph has come to, without what depends on who was held up."""
    ends = {name: (one.status, one.firings) for name, one in result.outcomes.items() if name not in RACING}
    assert "completed" in [result.outcomes[name].status for name in RACING]
    outputs = {name: output for name, output in result.outputs.items() if name not in RACING}
    return result.status, ends, outputs


def play(seed: int, *, calm: bool = False) -> dict[str, Any]:
    """What the graphs of a seed come to."""
    schedule = Graphs(seed, calm=calm)
    try:
        in_virtual_time(seed, schedule.play)
    except BaseException as error:
        error.add_note(f"WORKFLOW_SDK_SEED={seed} plays it again, calm={calm}; {schedule.laws.broken}")
        raise
    return schedule.results


@pytest.mark.parametrize("batch", range(BATCHES))
def test_graphs_come_to_the_same_whatever_happens_to_their_workers(batch: int) -> None:
    first = int(os.environ.get("WORKFLOW_SDK_SEED", "-1"))
    each = max(1, effort(SCHEDULES) // BATCHES)
    for seed in [first] if first >= 0 else range(batch * each, (batch + 1) * each):
        assert play(seed) == play(seed, calm=True), f"WORKFLOW_SDK_SEED={seed} plays it again"
