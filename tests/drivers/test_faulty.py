"""The driver that fails on demand fails there, and only there."""

# pyright: reportPrivateUsage=false
# That the chosen pauses repeat can only be seen from inside.

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest

from tests.drivers.jumping import run_without_waiting
from workflow_drivers.memory import MemoryDriver
from workflow_sdk.driver import Batch, Driver
from workflow_sdk.errors import ConflictError, StorageError
from workflow_sdk.testing import FaultyDriver, SimulatedCrash
from workflow_sdk.testing.contract import check_driver


def one(key: bytes) -> Batch:
    batch = Batch()
    batch.set(key, b"v")
    return batch


async def keys(driver: Driver) -> list[bytes]:
    return [key for key, _ in await driver.scan(b"", b"\xff")]


@pytest.mark.parametrize("latency", [0.0, 1e-9])
def test_without_faults_it_keeps_every_promise(latency: float) -> None:
    async def make() -> Driver:
        return FaultyDriver(MemoryDriver(), latency=latency, seed=1)

    async def check() -> None:
        await check_driver(make)

    passed: list[None] = [anyio.run(check, backend="trio")]
    assert passed == [None]


async def test_commits_fail_where_they_are_told_to() -> None:
    driver = FaultyDriver(MemoryDriver(), fail_at={2}, conflict_at=[3])
    await driver.commit(one(b"1"))
    with pytest.raises(StorageError, match="commit 2"):
        await driver.commit(one(b"2"))
    with pytest.raises(ConflictError, match="commit 3"):
        await driver.commit(one(b"3"))
    await driver.commit(one(b"4"))
    assert await keys(driver) == [b"1", b"4"]
    assert driver.commits == 4


@pytest.mark.parametrize("landed", [False, True])
async def test_a_crash_ends_everything(landed: bool) -> None:
    inner = MemoryDriver()
    driver = FaultyDriver(inner, crash_after=2) if landed else FaultyDriver(inner, crash_before=2)
    await driver.commit(one(b"1"))
    with pytest.raises(SimulatedCrash):
        await driver.commit(one(b"2"))
    assert await keys(driver.driver) == ([b"1", b"2"] if landed else [b"1"])
    for call in (driver.commit(one(b"3")), driver.get(b"1"), driver.scan(b"", b"\xff"), driver.changed(b"1", None)):
        with pytest.raises(SimulatedCrash):
            await call
    assert driver.commits == 2
    await driver.aclose()
    await driver.aclose()
    with pytest.raises(StorageError):
        await inner.get(b"1")


async def test_a_crash_after_a_refused_commit_is_still_a_crash() -> None:
    batch = one(b"1")
    batch.check(b"absent", b"something")
    driver = FaultyDriver(MemoryDriver(), crash_after=1)
    with pytest.raises(SimulatedCrash):
        await driver.commit(batch)
    assert await keys(driver.driver) == []


async def test_no_handler_of_errors_survives_a_crash() -> None:
    driver = FaultyDriver(MemoryDriver(), crash_before=1)

    async def author() -> None:
        try:
            await driver.commit(one(b"1"))
        except Exception:  # noqa: BLE001  # it must not get here
            pytest.fail("a dead process handles nothing")

    crashes = 0
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(author)
    except* SimulatedCrash:
        crashes += 1
    assert crashes == 1


async def test_who_is_in_the_middle_of_a_call_crashes_too() -> None:
    driver = FaultyDriver(MemoryDriver(), crash_after=2, latency=0.02)

    async def crashes() -> None:
        with pytest.raises(SimulatedCrash):
            await driver.commit(one(b"k"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(crashes)
        tasks.start_soon(crashes)
    assert await keys(driver.driver) == [b"k"]


def test_latency_is_waited_for() -> None:
    async def seconds() -> float:
        started = anyio.current_time()
        await FaultyDriver(MemoryDriver(), latency=3600).commit(one(b"k"))
        return anyio.current_time() - started

    assert 3600 <= run_without_waiting(seconds) < 3660


async def test_a_seed_makes_latency_random_and_repeatable() -> None:
    def pauses(seed: int) -> list[float | None]:
        driver = FaultyDriver(MemoryDriver(), latency=0.5, seed=seed)
        return [driver._pause(1, Batch()) for _ in range(5)]

    assert pauses(1) == pauses(1) != pauses(2)
    assert len(set(pauses(1))) == 5
    assert all(pause is not None and 0 <= pause <= 0.25 for pause in pauses(1))


async def test_commits_can_be_chosen_by_what_they_write() -> None:
    def writes_b(number: int, batch: Batch) -> bool:
        return any(write[0] == b"b" for write in batch.writes)

    driver = FaultyDriver(MemoryDriver(), fail_at=writes_b)
    for key in (b"a", b"c"):
        await driver.commit(one(key))
    with pytest.raises(StorageError, match="commit 3"):
        await driver.commit(one(b"b"))


async def test_a_process_can_die_where_it_writes_something() -> None:
    inner = MemoryDriver()
    driver = FaultyDriver(inner, crash_after=lambda number, batch: number >= 2)
    await driver.commit(one(b"a"))
    with pytest.raises(SimulatedCrash, match="commit 2"):
        await driver.commit(one(b"b"))
    with pytest.raises(SimulatedCrash, match="commit 2"):
        await driver.commit(one(b"c"))
    assert await keys(inner) == [b"a", b"b"]


async def test_chance_is_that_of_the_seed() -> None:
    async def failures(seed: int) -> list[int]:
        driver = FaultyDriver(MemoryDriver(), fail_at=0.3, conflict_at=0.1, seed=seed)
        found: list[int] = []
        for number in range(200):
            try:
                await driver.commit(one(b"%d" % number))
            except (StorageError, ConflictError):
                found.append(number)
        return found

    assert await failures(1) == await failures(1) != await failures(2)
    assert 40 < len(await failures(3)) < 110


def test_only_some_are_slow() -> None:
    async def seconds() -> list[float]:
        driver = FaultyDriver(MemoryDriver(), latency=3600, slow_at=[2])
        times = [anyio.current_time()]
        for key in (b"1", b"2", b"3"):
            await driver.commit(one(key))
            times.append(anyio.current_time())
        return [after - before for before, after in pairwise(times)]

    first, second, third = run_without_waiting(seconds)
    assert second >= 3600 > max(first, third)
