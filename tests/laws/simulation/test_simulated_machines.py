"""In the simulated world: random machines, judged at every commit by a plain reference.

Workers die, stand still for longer than a lease and come back with effects and transitions that others have by then;
clocks are wrong; every event is sent twice; effects are settled from outside as well, early, late and again.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
import trio

from tests.chaos import effort
from tests.laws.simulation.test_simulation import RIGHT_AT, TTL, WRONG, Schedule
from tests.laws.simulation.world import Laws, Simulated, Worker, current, in_virtual_time
from tests.machines.judged import Judge
from tests.machines.random_tables import Work, random_event, random_manifest, targets_of, work
from workflow_sdk import Client, Runtime, WorkflowSDKError
from workflow_sdk.changes.deliver import Delivery
from workflow_sdk.driver import Batch
from workflow_sdk.machines import Executor, Intent, Manifest, executor
from workflow_sdk.machines.rows import intent_key
from workflow_sdk.testing import SimulatedCrash
from workflow_sdk.testing._cells_seen import ALL, Found

pytestmark = pytest.mark.law(1, 10, 20, 21)

SCHEDULES = 240
BATCHES = 4
EVENTS = 10


class Judging(Laws):
    """The store, and a judge of what is committed to it."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__([])
        self.judge = Judge(manifest)

    def commit(self, batch: Batch, who: str) -> None:
        super().commit(batch, who)
        self.judge.saw(batch)
        if self.judge.broken and not self.broken:
            self.broken.append(f"{who}, at {trio.current_time()}: {self.judge.broken[0]}")


class Cells(Schedule):
    """One seed of random machines."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.manifest = random_manifest(seed)
        self.ids = []
        self.laws: Judging = Judging(self.manifest)
        self.events = [random_event(Random(f"event {number} of {seed}"), number) for number in range(EVENTS)]

    @property
    def judge(self) -> Judge:
        """Who looks at every commit."""
        return self.laws.judge

    def executors(self) -> list[Executor]:
        """They run in the process that has them: while it stands still, so do they."""

        @executor(work, retries=self.rng.choice([0, 0, 1]), timeout=self.rng.choice([None, None, 60]))
        async def do(params: Work, intent: Intent) -> Any:
            worker = current.get()
            await worker.gate()
            self.judge.calls(intent.id)
            for number in range(params.pause):
                await trio.sleep(worker.rng.expovariate(1 / 4))
                await intent.send(number)
            await trio.sleep(3 * TTL if params.ends == "late" else 0)
            await worker.gate()
            if params.ends == "error":
                raise ValueError("as it was told")
            return "no number" if params.ends == "misfit" else params.pause

        return [do]

    async def live(self, worker: Worker) -> None:
        """One process, until it is dead."""
        current.set(worker)
        max_resident, max_idle = self.rng.choice([0, 1, 100]), self.rng.choice([1, 300])
        while not worker.dead:
            runtime = Runtime(
                Simulated(self.laws, worker),
                machines=self.manifest,
                executors=self.executors(),
                clock=worker,
                lease_ttl=TTL,
                max_resident=max_resident,
                max_idle=max_idle,
            )
            try:
                async with runtime:
                    await trio.sleep_forever()
            except* SimulatedCrash:
                pass
            except* WorkflowSDKError:
                self.lost += 1  # the store failed when it began
            await trio.sleep(1)

    async def clients(self) -> None:
        """Events, each twice with the same id, and answers to effects. One of the clocks is wrong."""
        right, wrong = Worker("client", self.rng, self.laws), Worker("another client", self.rng, self.laws)
        wrong.skew = self.rng.uniform(-WRONG, WRONG)
        async with (
            Client(Simulated(self.laws, right), clock=right, machines=self.manifest) as one,
            Client(Simulated(self.laws, wrong), clock=wrong, machines=self.manifest) as other,
        ):
            for number, go in enumerate(self.events):
                await trio.sleep(self.rng.expovariate(1 / 5))
                for _ in range(2):
                    await self.rng.choice([one, other]).emit(go, id=f"event {number}")
                await self._settle_some(self.rng.choice([one, other]))
        await trio.sleep_until(RIGHT_AT + 10 * TTL)
        while not await self._is_still():  # noqa: ASYNC110  # only the store knows
            await trio.sleep(TTL)

    async def _settle_some(self, client: Client) -> None:
        for id in self.rng.choices([*self.judge.recorded, "nobody's"], k=self.rng.choice([0, 1, 2])):
            was_settled = id not in self.judge.recorded or self.judge.settled[id] > 0
            told = await client.settle(id, 5)
            if was_settled:
                assert told is Delivery.STALE

    async def _is_still(self) -> bool:
        found = Found.among(await self.laws.inner.scan(*ALL))
        return not found.intents and found.is_still([work.name], trio.current_time())

    async def look(self) -> None:
        sent = [(target, go.tag) for go in self.events for target in targets_of(go)]
        await self.judge.judge_the_end(self.laws.inner, sent)
        rows = await self.laws.inner.scan(*ALL)
        assert not [key for key, _ in rows if key == intent_key("nobody's")]


def play(seed: int) -> list[tuple[float, str]]:
    schedule = Cells(seed)
    try:
        found: list[tuple[float, str]] = in_virtual_time(seed, schedule.play)
    except BaseException as error:
        error.add_note(f"WORKFLOW_SDK_SEED={seed} plays it again; {schedule.laws.broken}")
        raise
    return found


@pytest.mark.parametrize("batch", range(BATCHES))
def test_schedules(batch: int) -> None:
    first = int(os.environ.get("WORKFLOW_SDK_SEED", "-1"))
    each = max(1, effort(SCHEDULES) // BATCHES)
    for seed in [first] if first >= 0 else range(batch * each, (batch + 1) * each):
        assert play(seed), "something was committed"


def test_a_seed_is_a_schedule() -> None:
    play(3)  # what is done once in a process is done by now
    assert play(3) == play(3)
    assert play(3) != play(4)
