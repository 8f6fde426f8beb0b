"""Random machines under two workers that die, on stores that fail: each commit is what a plain reference says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import aclosing
from random import Random
from typing import Any

import anyio
import pytest

from tests.chaos import effort
from tests.machines.judged import Judge, Judged
from tests.machines.random_tables import Go, Work, random_event, random_manifest, targets_of, work
from workflow_sdk import Client, Driver, Runtime, StorageError, open_driver
from workflow_sdk.changes.deliver import Delivery
from workflow_sdk.client.watching import wait_idly
from workflow_sdk.errors import ConflictError
from workflow_sdk.machines import Executor, Intent, executor
from workflow_sdk.machines.rows import intent_key
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock
from workflow_sdk.testing._cells_seen import ALL, Found

pytestmark = pytest.mark.law(1, 10, 21)

SEEDS = 120
DEATHS = 2
"""How often each worker dies."""
EVENTS = 12
LOOKS_MAX = 200


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Deaths and failures on purpose are no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Play:
    """One seed, played."""

    def __init__(self, seed: int, driver: Driver) -> None:
        self.chance = Random(seed)
        self.manifest = random_manifest(seed)
        self.judge = Judge(self.manifest)
        self.store = driver
        self.driver: Any = Judged(driver, self.judge)
        self.clock = VirtualClock(quiet=0.02)
        self.sent: list[tuple[str, str]] = []
        self._is_over = anyio.Event()
        self._living = 0

    def executors(self) -> list[Executor]:
        """What is done may be done twice, by whoever has it."""

        @executor(work, timeout=3600)
        async def do(params: Work, intent: Intent) -> Any:
            self.judge.calls(intent.id)
            if await self.store.get(intent_key(intent.id)) is None and not self.judge.settled[intent.id]:
                self.judge.broken.append(f"intent {intent.id} is begun, and is not in the store")
            for number in range(params.pause):
                await anyio.sleep(0.001)
                await intent.send(number)
            if params.ends == "late":
                await wait_idly(self.clock, anyio.Event(), self.clock.time() + 100)
            if params.ends == "error":
                raise ValueError("as it was told")
            return "no number" if params.ends == "misfit" else params.pause

        return [do]

    def faulty(self, *, dies: bool) -> FaultyDriver:
        """How one process sees the store."""
        chance, crash = self.chance, self.chance.randint(1, 60)
        share = chance.choice([0.0, 0.0, 0.05])
        crashes: dict[str, int] = {chance.choice(["crash_before", "crash_after"]): crash} if dies else {}
        return FaultyDriver(
            self.driver,
            fail_at=share,
            conflict_at=chance.choice([0.0, 0.05]),
            latency=0.004,
            slow_at=chance.choice([0.0, 0.1, 0.5]),
            seed=chance.getrandbits(32),
            **crashes,
        )

    async def live(self) -> None:
        """One worker after another, each in the place of the one before, which has died."""
        for life in range(DEATHS + 1):
            while not await self._live_once(self.faulty(dies=life < DEATHS)):
                pass
        self._living -= 1

    async def _live_once(self, faulty: FaultyDriver) -> bool:
        """Whether it has lived: if not, the store failed when it began."""
        runtime = Runtime(
            faulty, machines=self.manifest, executors=self.executors(), clock=self.clock, max_resident=self.residents
        )
        try:
            async with runtime:
                await self._is_over.wait()
        except* SimulatedCrash:
            pass
        except* (StorageError, ConflictError):
            pass
        return faulty.crashed or self._is_over.is_set()

    @property
    def residents(self) -> int:
        """How many cells a worker may keep in memory."""
        return self.chance.choice([0, 1, 100])

    async def send(self, client: Client) -> None:
        """Send events, each at least once, with the same id."""
        for number in range(EVENTS):
            go = random_event(self.chance, number)
            self.sent += [(target, go.tag) for target in targets_of(go)]
            for _ in range(self.chance.choice([1, 1, 2])):
                await self._send(client, go, f"id {number}")
            await self._settle_some(client)
            if self.chance.random() < 0.3:
                await wait_idly(self.clock, anyio.Event(), self.clock.time() + self.chance.choice([0.5, 20]))

    async def _send(self, client: Client, go: Go, id: str) -> None:
        while True:
            try:
                told = await client.emit(go, id=id)
            except (StorageError, ConflictError):
                continue
            assert set(told) <= {Delivery.ACCEPTED, Delivery.QUEUED, Delivery.DUPLICATE, Delivery.CLOSED}
            return

    async def _settle_some(self, client: Client) -> None:
        """Answers from outside: of effects that are open, that were settled, and that nobody has asked for."""
        ids = [*self.judge.recorded, "nobody's"]
        for id in self.chance.choices(ids, k=self.chance.choice([0, 0, 1, 3])):
            was_settled = id not in self.judge.recorded or self.judge.settled[id] > 0
            try:
                told = await client.settle(id, 5)
            except (StorageError, ConflictError):
                continue
            if was_settled:
                assert told is Delivery.STALE

    async def until_still(self) -> None:
        """Until nothing is to be done, and no timer is set."""
        store, found = self.clock.oversee(self.driver), Found()
        for _ in range(LOOKS_MAX):
            await wait_idly(self.clock, anyio.Event(), self.clock.time() + 7)
            found = Found.among(await store.scan(*ALL))
            if not found.intents and found.is_still([work.name], self.clock.time()):
                return
        raise AssertionError(f"never still: {found.queued}, {found.intents}")

    async def play(self) -> None:
        """All of it."""
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(self.live)
            async with Client(self.faulty(dies=False), clock=self.clock, machines=self.manifest) as client:
                await self.send(client)
            await self.until_still()
            self._is_over.set()
        await self.judge.judge_the_end(self.store, self.sent)


async def play(seed: int) -> int:
    """Play a seed; how many transitions it took."""
    async with aclosing(await open_driver("memory://")) as driver:
        found = Play(seed, driver)
        try:
            with anyio.fail_after(60):
                await found.play()
        except BaseException as error:
            error.add_note(f"seed {seed}: {found.judge.broken[:5]}")
            raise
        return found.judge.transitions


async def test_random_machines_whose_workers_die() -> None:
    assert sum([await play(seed) for seed in range(effort(SEEDS))]) > 10 * effort(SEEDS), "there was something to do"


@pytest.mark.deep
async def test_more_random_machines_whose_workers_die() -> None:
    for seed in range(effort(SEEDS), effort(10 * SEEDS)):
        await play(seed)
