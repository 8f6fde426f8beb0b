"""A system of instances that reach each other, on stores that fail, that speak of conflicts, and that are slow."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import pytest

from tests.laws.composed_system import SYSTEM, check, story
from tests.laws.composing import running
from tests.support import open_store
from workflow_sdk import Batch, Client, Context, Driver, Runtime, workflow
from workflow_sdk.core.keys import HISTORY, InstanceKeys
from workflow_sdk.driver import Set
from workflow_sdk.testing import FaultyDriver, VirtualClock

pytestmark = pytest.mark.law(1, 3)

COMMITS = 60
"""More than the system makes when nothing goes wrong."""


async def fresh(tmp_path: Path, name: object, store: str = "memory") -> Driver:
    directory = tmp_path / str(name)
    directory.mkdir()
    return await open_store(store, directory)


async def told(runtime: Runtime) -> None:
    """The story, by someone who begins again when the store refuses what he does."""
    while True:
        try:
            await story(runtime)
        except (OSError, RuntimeError):
            raise
        except Exception as error:
            if "was told to" not in str(error):
                raise
        else:
            return


@pytest.mark.parametrize("what", ["fail_at", "conflict_at"])
async def test_any_one_commit_fails(what: str, tmp_path: Path) -> None:
    for number in range(2, COMMITS):
        driver = await fresh(tmp_path, number)
        numbers = [number]
        faulty = FaultyDriver(
            driver,
            fail_at=numbers if what == "fail_at" else (),
            conflict_at=numbers if what == "conflict_at" else (),
        )
        try:
            async with running(faulty, SYSTEM) as runtime:
                await told(runtime)
            await check(driver)
        except BaseException as error:
            error.add_note(f"{what} {number}")
            raise


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("store", ["memory", "fdb"])
async def test_many_commits_fail(store: str, seed: int, tmp_path: Path) -> None:
    driver = await fresh(tmp_path, seed, store)
    faulty = FaultyDriver(driver, fail_at=0.04, conflict_at=0.1, latency=0.002, seed=seed)
    try:
        async with running(faulty, SYSTEM) as runtime:
            await told(runtime)
            # What is on its way then is to be stored.
            faulty._fails = faulty._conflicts = lambda number, batch: False  # pyright: ignore[reportPrivateUsage]
        await check(driver)
    finally:
        await driver.aclose()


@pytest.mark.parametrize("store", ["memory", "sqlite", "fdb"])
async def test_slow_stores(store: str, tmp_path: Path) -> None:
    driver = await fresh(tmp_path, store, store)
    try:
        for latency in (0.0001, 0.004):
            async with running(FaultyDriver(driver, latency=latency, seed=7), SYSTEM) as runtime:
                await story(runtime)
            await check(driver)
    finally:
        await driver.aclose()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("store", ["memory", "sqlite", "fdb"])
async def test_two_runtimes_on_one_store(store: str, seed: int, tmp_path: Path) -> None:
    """Each takes what it can get, puts away what it has at any time, and one of them is killed."""
    driver = await fresh(tmp_path, seed, store)
    clock = VirtualClock(quiet=10)
    random = Random(seed)
    try:
        async with running(
            FaultyDriver(driver, latency=0.002, seed=seed), SYSTEM, clock, max_resident=random.choice([0, 2, 100])
        ) as one:
            async with (
                running(driver, SYSTEM, clock, max_resident=random.choice([0, 2, 100])),
                anyio.create_task_group() as group,
            ):
                group.start_soon(told, one)
                await anyio.sleep(random.random() / 50)
            # The other has gone.
            await told(one)
        await check(driver)
    finally:
        await driver.aclose()


class OneAtATime(FaultyDriver):
    """Whoever reads gives way to others, and of the commits of `many`, there is only one at a time."""

    in_flight = 0
    most = 0

    async def get(self, key: bytes, /) -> bytes | None:
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        return await super().get(key)

    async def commit(self, batch: Batch, /) -> None:
        history = InstanceKeys("many").space + HISTORY
        mine = any(isinstance(write, Set) and write.key.startswith(history) for write in batch.writes)
        self.in_flight += mine
        self.most = max(self.most, self.in_flight)
        try:
            await super().commit(batch)
        finally:
            self.in_flight -= mine


@workflow
async def nothing(ctx: Context) -> None:
    """Ends at once."""


@workflow
async def many(ctx: Context) -> None:
    async def branch(ctx: Context, number: int) -> None:
        await ctx.step(f"step {number}", int)
        await ctx.child(f"child {number}", nothing)
        await ctx.step(f"last {number}", int)

    await ctx.map("all", branch, range(10))


@pytest.mark.parametrize("seed", range(4))
async def test_while_a_conflict_is_looked_at_nobody_else_writes(seed: int, tmp_path: Path) -> None:
    """What belongs together would go with two commits, of which one may fail."""
    driver = await fresh(tmp_path, seed)
    random = Random(seed)
    faulty = OneAtATime(driver, conflict_at=lambda number, _: number > 2 and random.random() < 0.2, latency=0.0001)
    async with Client(driver) as client:
        handle = await client.start(many, id="many")
        async with running(faulty, [many, nothing]):
            await handle.result()
    assert faulty.most == 1
