"""Batches against a cluster that fails at random: each is applied as often as it was said to be."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Sequence

import anyio
import pytest

from tests.chaos import effort
from tests.drivers.fdb_double import Double, failures
from tests.drivers.fdb_double.faults import Moment
from tests.drivers.fdb_waiting import all_is_done
from tests.fdb_store import connected, hurry
from tests.patience import PATIENCE
from workflow_drivers.foundationdb import FoundationDBDriver
from workflow_sdk.driver import Batch
from workflow_sdk.errors import ConflictError, StorageError

pytestmark = pytest.mark.law(1)

DRIVERS = 3
ROUNDS = 12
UNKNOWN = (1021, 1025, 1031, 1039)
PASSING = (1007, 1009, 1020, 1037, 1042)


class Ledger:
    """What was said of each batch."""

    def __init__(self) -> None:
        self.applied: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.open: set[bytes] = set()
        """Cancelled, or not known: once at most."""


def batch_of(name: bytes, dice: random.Random, seen: bytes | None) -> Batch:
    batch = Batch()
    if dice.random() < 0.7:
        batch.check(b"count", seen)
        batch.set(b"count", name)
    batch.append(b"log", name)
    if dice.random() < 0.2:
        batch.set(b"large", name * 40_000)
    return batch


async def work(number: int, driver: FoundationDBDriver, dice: random.Random, ledger: Ledger) -> None:
    for turn in range(ROUNDS):
        name = b"%d.%02d" % (number, turn)
        try:
            batch = batch_of(name, dice, await driver.get(b"count"))
        except StorageError:
            continue
        task = asyncio.ensure_future(driver.commit(batch))
        if dice.random() < 0.3:
            await asyncio.sleep(dice.random() / 200)
            task.cancel()
        try:
            await task
            ledger.applied.add(name)
        except ConflictError:
            ledger.refused.add(name)
        except StorageError as error:
            (ledger.open if "not known" in str(error) else ledger.refused).add(name)
        except asyncio.CancelledError:
            ledger.open.add(name)


def misfortune(double: Double, dice: random.Random) -> None:
    """Something goes wrong with one of the next calls."""
    moments: list[Moment] = ["get", "get_range", "commit", "commit", "commit", "commit"]
    moment = dice.choice(moments)
    if moment != "commit" or dice.random() < 0.3:
        double.cluster.faults.add(moment, dice.choice(PASSING), skip=dice.randrange(3))
        return
    code = dice.choice(UNKNOWN)
    kind = dice.choice(("applied", "lost", "late", "silent"))
    double.cluster.faults.add(
        "commit",
        code,
        skip=dice.randrange(3),
        applied=kind == "applied",
        late=kind == "late" and code != 1021,
        silent=kind == "silent",
    )


async def test_each_batch_is_applied_as_it_was_said() -> None:
    # Side by side, each with a cluster of its own: most of the time is waited for answers that don't come.
    seeds = range(effort(8))
    for some in batched(seeds, 8):
        async with anyio.create_task_group() as tasks:
            for seed in some:
                tasks.start_soon(check_one, seed)
    assert failures == []


def batched(seeds: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (seeds[begin : begin + size] for begin in range(0, len(seeds), size))


async def check_one(seed: int) -> None:
    dice = random.Random(seed)
    double = Double()
    ledger = Ledger()
    drivers = [await connected(double) for _ in range(DRIVERS)]
    for driver in drivers:
        hurry(driver, 0.4)
    watching = drivers[0]
    double.cluster.latency = 0.0005

    async def trouble() -> None:
        while True:
            misfortune(double, dice)
            await anyio.sleep(dice.random() / 100)
            if dice.random() < 0.3:
                double.cluster.arrive()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(trouble)
        async with anyio.create_task_group() as workers:
            for number, driver in enumerate(drivers):
                workers.start_soon(work, number, driver, random.Random(f"{seed}.{number}"), ledger)
        tasks.cancel_scope.cancel()
    while double.cluster.faults.left:
        for moment in ("get", "get_range", "commit"):
            double.cluster.faults.take(moment)
    double.cluster.arrive()
    await all_is_done()
    hurry(watching, PATIENCE)
    times = Counter(value for _, value in await watching.scan(b"log", b"loh"))
    assert max(times.values()) == 1, f"seed {seed}: none is applied twice"
    assert ledger.applied <= set(times), f"seed {seed}: what was said to be applied is"
    assert not ledger.refused & set(times), f"seed {seed}: what was said not to be applied isn't"
    assert set(times) <= ledger.applied | ledger.open, f"seed {seed}"
    for driver in drivers:
        await driver.aclose()
