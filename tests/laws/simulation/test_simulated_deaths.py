"""In the simulated world: runs that overlap, workers that stall and come back, and steps that kill their workers."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio

from tests.chaos import effort
from tests.laws.simulation.test_simulation import OUTPUT, TTL, Schedule, job
from tests.laws.simulation.world import Simulated, Worker, current, in_virtual_time
from workflow_sdk import Break, Client, Context, Continue, Runtime, Status, WorkflowSDKError, run_workflow, workflow
from workflow_sdk.rows.keys import TRIES, Field, InstanceKeys
from workflow_sdk.testing import SimulatedCrash

pytestmark = pytest.mark.law(10, 16, 17)

SCHEDULES = 80
BATCHES = 4


async def takes_long() -> str:
    """Longer than it takes for several hosts to come by."""
    await current.get().gate()
    await trio.sleep(50)
    await current.get().gate()
    return "long"


@workflow
async def long(ctx: Context) -> str:
    return await ctx.step("takes long", takes_long)


class Overlapping(Schedule):
    """Hosts that run an instance by themselves, whoever has it; and workers that stall, more often than not."""

    flows = (job, long)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.laws = type(self.laws)([*self.ids, "long"])

    async def trouble(self, nursery: trio.Nursery) -> None:
        for number in range(self.rng.randint(6, 16)):
            await trio.sleep(self.rng.expovariate(1 / 2))
            self.lost += 1
            if self.rng.random() < 0.3:
                self.rng.choice(self.workers).pause(self.rng.choice([TTL, 2 * TTL, 5 * TTL]))
            else:
                nursery.start_soon(self.host, self.worker(f"host {number}"))

    async def host(self, worker: Worker) -> None:
        """One call, which may lose the instance to the next one, or stall."""
        current.set(worker)
        run: Any = partial(
            run_workflow,
            driver=Simulated(self.laws, worker),
            mode=self.rng.choice(["yield", "live"]),
            clock=worker,
            lease_ttl=TTL,
        )
        with suppress(WorkflowSDKError):
            if self.rng.random() < 0.7:
                await run(long, instance_id="long")
            else:
                await run(job, self.rng.randint(0, 5), instance_id=self.rng.choice(self.ids))

    async def clients(self) -> None:
        healthy = Worker("client", self.rng, self.laws)
        async with Client(Simulated(self.laws, healthy), clock=healthy) as client:
            for id in self.ids:
                with suppress(WorkflowSDKError):  # a host has started it, with another input
                    await client.start(job, self.rng.randint(0, 5), id=id)
            await client.start(long, id="long")
            for message in (1, 2):
                for id in self.ids:
                    await trio.sleep(self.rng.expovariate(1 / 5))
                    await client.handle(job, id).send("m", message, key=f"m{message}")
            for id in self.ids:
                assert await client.handle(job, id).result() == OUTPUT
            assert await client.handle(long, "long").result() == "long"

    @property
    def reliable(self) -> bool:
        return False


class Killing(Schedule):
    """One instance has a step that kills its worker, beside branches that wait and get on. The others end."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.kills = 0
        self.ids = [*self.ids, "deadly"]
        self.laws = type(self.laws)(self.ids)
        self.laws.deadly = frozenset({"deadly"})
        self.born = 0

        @workflow(name="deadly")
        async def deadly(ctx: Context) -> str:
            async def kills(ctx: Context) -> str:
                await ctx.sleep("pause", 3)
                return await ctx.step("kills", self.kill)

            async def waits(ctx: Context) -> str:
                return await ctx.listen("never", type=str)

            async def beats(ctx: Context) -> str:
                async def turn(ctx: Context, state: None) -> Continue[None] | Break[str]:
                    await ctx.step("beat", self.beat)
                    await ctx.sleep("nap", 2)
                    return Continue(None)

                return await ctx.loop("loop", turn)

            return (await ctx.race("race", {"kills": kills, "waits": waits, "beats": beats})).value

        self.deadly = deadly

    async def beat(self) -> None:
        await current.get().gate()

    async def kill(self) -> str:
        worker = current.get()
        await worker.gate()
        await trio.sleep(5)  # its siblings get on meanwhile
        await worker.gate()
        self.kills += 1
        self.lost += 1
        worker.dead = True
        await worker.gate()
        raise AssertionError("nobody lives on")

    async def live(self, worker: Worker) -> None:
        while True:
            current.set(worker)
            with suppress(BaseExceptionGroup):
                try:
                    await self.serve(worker)
                except* SimulatedCrash:
                    pass
                except* WorkflowSDKError:
                    pass
            await trio.sleep(1)
            if worker.dead:
                self.born += 1
                worker = self.worker(f"born {self.born}")

    async def serve(self, worker: Worker) -> None:
        driver = Simulated(self.laws, worker)
        async with Runtime(driver, workflows=[job, self.deadly], clock=worker, lease_ttl=TTL):
            await trio.sleep_forever()

    async def trouble(self, nursery: trio.Nursery) -> None:
        """They have enough of it."""

    async def clients(self) -> None:
        healthy = Worker("client", self.rng, self.laws)
        async with Client(Simulated(self.laws, healthy), clock=healthy) as client:
            handle = await client.start(self.deadly, id="deadly")
            while (await handle.info()).status is not Status.STUCK:  # noqa: ASYNC110  # only the store knows
                await trio.sleep(1)
            error = (await handle.info()).error
            assert error is not None
            assert "'race/kills/kills'" in error.message
            self.ids.remove("deadly")
            await super().clients()

    async def look(self) -> None:
        await super().look()
        # Who is taken for dead and lives to kill itself later has not died of it yet.
        assert 5 <= self.kills <= (6 if self.reliable else 12)


def play(kind: type[Schedule], seed: int) -> None:
    schedule = kind(seed)
    try:
        in_virtual_time(seed, schedule.play)
    except BaseException as error:
        error.add_note(f"WORKFLOW_SDK_SEED={seed} plays it again; {schedule.laws.broken}")
        raise
    for id in schedule.ids:
        keys = InstanceKeys(id)
        rows: Any = schedule.laws.inner._store.rows  # pyright: ignore[reportPrivateUsage]  # nobody writes any more
        assert keys.field(Field.DEATHS) not in rows
        assert not [key for key in rows if key.startswith(keys.space + TRIES)]


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("kind", [Overlapping, Killing])
def test_schedules(kind: type[Schedule], batch: int) -> None:
    first = int(os.environ.get("WORKFLOW_SDK_SEED", "-1"))
    each = max(1, effort(SCHEDULES) // BATCHES)
    for seed in [first] if first >= 0 else range(batch * each, (batch + 1) * each):
        play(kind, seed)
