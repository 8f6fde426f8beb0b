"""A system of instances that reach each other, on stores that fail, that speak of conflicts, and that are slow."""

from __future__ import annotations

from random import Random

import anyio
import anyio.lowlevel
import pytest

from tests.composition.composed_system import SYSTEM, check, story
from tests.composition.composing import running
from tests.laws.counting_driver import WatchedDriver
from tests.support import World
from workflow_sdk import Batch, Client, Context, Runtime, open_driver, workflow
from workflow_sdk.driver import Set
from workflow_sdk.rows.keys import HISTORY, InstanceKeys
from workflow_sdk.testing import FaultyDriver, VirtualClock

pytestmark = pytest.mark.law(1, 3)

COMMITS = 60
"""More than the system makes when nothing goes wrong."""


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
async def test_any_one_commit_fails(what: str) -> None:
    for number in range(2, COMMITS):
        driver = await open_driver("memory://")
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
async def test_many_commits_fail(world: World, seed: int) -> None:
    faulty = FaultyDriver(world.driver, fail_at=0.04, conflict_at=0.1, latency=0.002, seed=seed)
    async with running(faulty, SYSTEM) as runtime:
        await told(runtime)
        # What is on its way then is to be stored.
        faulty._fails = faulty._conflicts = lambda number, batch: False  # pyright: ignore[reportPrivateUsage]
    await check(world.driver)


@pytest.mark.parametrize("latency", [0.0001, 0.004])
async def test_slow_stores(world: World, latency: float) -> None:
    async with running(FaultyDriver(world.driver, latency=latency, seed=7), SYSTEM) as runtime:
        await story(runtime)
    await check(world.driver)


@pytest.mark.parametrize("seed", range(6))
async def test_two_runtimes_on_one_store(world: World, seed: int) -> None:
    """Each takes what it can get, puts away what it has at any time, and one of them goes in the middle."""
    clock = VirtualClock(quiet=10)
    random = Random(seed)
    gone, gone_at = anyio.Event(), random.randrange(2, 25)

    async def count(number: int) -> None:
        if number == gone_at:
            gone.set()

    store = WatchedDriver(world.driver, count)
    slow = FaultyDriver(store, latency=0.002, seed=seed)
    async with running(slow, SYSTEM, clock, max_resident=random.choice([0, 2, 100])) as one:
        async with (
            running(store, SYSTEM, clock, max_resident=random.choice([0, 2, 100])),
            anyio.create_task_group() as group,
        ):
            group.start_soon(told, one)
            await gone.wait()  # at a commit of either
            group.cancel_scope.cancel()
        await told(one)
    await check(world.driver)


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
async def test_while_a_conflict_is_looked_at_nobody_else_writes(seed: int) -> None:
    """What belongs together would go with two commits, of which one may fail."""
    driver = await open_driver("memory://")
    random = Random(seed)
    faulty = OneAtATime(driver, conflict_at=lambda number, _: number > 2 and random.random() < 0.2, latency=0.0001)
    async with Client(driver) as client:
        handle = await client.start(many, id="many")
        async with running(faulty, [many, nothing]):
            await handle.result()
    assert faulty.most == 1
