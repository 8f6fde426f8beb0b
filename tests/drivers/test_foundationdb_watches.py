"""Waiting for changes: few watches, none lost, and what is done where there are none to be had."""

# pyright: reportPrivateUsage=false
# Some promises can only be seen from inside.

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from tests.drivers.fdb_double import Double
from tests.drivers.fdb_waiting import all_is_done
from tests.drivers.until import until
from tests.fdb_store import connected, hurry
from tests.patience import PATIENCE
from workflow_drivers.foundationdb import FoundationDBDriver
from workflow_drivers.foundationdb._binding import Transaction
from workflow_drivers.foundationdb._session import get_row
from workflow_sdk.driver import Batch
from workflow_sdk.errors import StorageError

pytestmark = pytest.mark.law(6)

KEY = b"k"


@pytest.fixture
def double() -> Double:
    return Double()


@asynccontextmanager
async def opened(double: Double) -> AsyncGenerator[FoundationDBDriver]:
    driver = await connected(double)
    try:
        yield driver
    finally:
        await driver.aclose()


async def put(driver: FoundationDBDriver, value: bytes | None, key: bytes = KEY) -> None:
    batch = Batch()
    if value is None:
        batch.clear(key)
    else:
        batch.set(key, value)
    await driver.commit(batch)


async def until_watched(double: Double, count: int = 1) -> None:
    await until(lambda: double.cluster.watched == count)


async def test_those_who_wait_for_one_key_share_a_watch(double: Double) -> None:
    async with opened(double) as driver:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(driver.changed, KEY, None)
            await until_watched(double)
            await all_is_done()
            assert (double.cluster.watched, driver.counts.watches) == (1, 1)
            await put(driver, b"1")
        assert (double.cluster.watched, driver._watches.count) == (0, 0)


async def test_the_watch_goes_with_the_last_who_waits(double: Double) -> None:
    async with opened(double) as driver:
        async with anyio.create_task_group() as tasks:
            first, second = anyio.CancelScope(), anyio.CancelScope()

            async def wait(scope: anyio.CancelScope) -> None:
                with scope:
                    await driver.changed(KEY, None)

            tasks.start_soon(wait, first)
            tasks.start_soon(wait, second)
            await until_watched(double)
            first.cancel()
            await all_is_done()
            assert double.cluster.watched == 1
            second.cancel()
            await until_watched(double, 0)
        assert driver._watches.count == 0

        def has_no_watches() -> bool:
            gc.collect()
            return not double.open().watches

        await until(has_no_watches)


async def test_a_watch_on_a_later_state_is_not_shared(double: Double) -> None:
    """Whoever has read the state before would wait for the change after the next one."""
    async with opened(double) as driver:
        await put(driver, b"old")
        place = driver._session.space.row(KEY)

        async def read(transaction: Transaction) -> tuple[Transaction, bytes | None]:
            return transaction, await get_row(transaction.snapshot, place)

        transaction, row = await driver._session.run("look for a change", read)
        await put(driver, b"new")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.changed, KEY, b"new")
            await until_watched(double)
            with anyio.fail_after(PATIENCE):
                await driver._watches.wait(transaction, place, row, 0)
            tasks.cancel_scope.cancel()


async def test_another_process_is_heard(double: Double) -> None:
    async with opened(double) as driver:
        other = await connected(double)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.changed, KEY, None)
            await until_watched(double)
            await put(other, b"1")
        await other.aclose()


async def test_a_large_value_is_seen_to_change(double: Double) -> None:
    async with opened(double) as driver:
        value = bytes(300_000)
        other = value[:-1] + b"x"
        await put(driver, value)
        changes: list[bytes | None] = []

        async def wait(seen: bytes) -> None:
            await driver.changed(KEY, seen)
            changes.append(await driver.get(KEY))

        for seen, new in ((value, other), (other, b"small"), (b"small", value), (value, None)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait, seen)
                await until_watched(double)
                await put(driver, seen)  # the same again: other chunks, another row, and no change
                await all_is_done()
                await put(driver, new)
        assert changes == [other, b"small", value, None]
        await driver.changed(KEY, value)


@pytest.mark.parametrize("code", [1007, 1009, 1025, 1031, 1037, 1101, 1500])
async def test_a_watch_that_fails_is_set_again(double: Double, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow_drivers.foundationdb._watch.FAILED_SECONDS", 0.001)
    async with opened(double) as driver:
        double.cluster.faults.add("watch", code, times=2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.changed, KEY, None)
            await until_watched(double)
            assert double.cluster.faults.left == 0
            assert driver.counts.watches == 3
            await put(driver, b"1")


async def test_a_watch_that_fails_while_it_waits_is_set_again(double: Double) -> None:
    async with opened(double) as driver:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.changed, KEY, None)
            tasks.start_soon(driver.changed, KEY, None)
            await until_watched(double)
            (watched,) = driver._watches._watched.values()
            watched.future.fail(1037)  # type: ignore[attr-defined]  # of the double
            await until(lambda: driver.counts.watches == 2)
            await until_watched(double)
            await put(driver, b"1")
        assert driver.counts.watches == 2


async def test_a_watch_that_is_lost_is_not_waited_for_for_ever(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(double) as driver:
        monkeypatch.setattr("workflow_drivers.foundationdb._watch.LOOK_SECONDS", 0.05)
        double.cluster.faults.add("watch", silent=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.changed, KEY, None)
            await until(lambda: not double.cluster.faults.left)
            await put(driver, b"1")


@pytest.mark.parametrize("code", [1032, 1034])
async def test_without_watches_it_is_asked_for_changes(
    double: Double, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(double) as driver:
        double.cluster.faults.add("watch", code)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(driver.changed, KEY, None)
            await until(lambda: driver.counts.polls > 3)
            assert double.cluster.watched == 0
            await put(driver, b"1")
        (warning,) = caplog.records
        assert f"refuses watches (error {code}" in warning.getMessage()
        # And later, watches are tried again.
        driver._watches._refused_until = 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.changed, KEY, b"1")
            await until_watched(double)
            await put(driver, b"2")


async def test_more_keys_than_watches(double: Double) -> None:
    async with opened(double) as driver:
        double.open().max_watches = 5
        keys = [b"%d" % number for number in range(12)]
        async with anyio.create_task_group() as tasks:
            for key in keys:
                tasks.start_soon(driver.changed, key, None)
            await until(lambda: driver.counts.polls)
            await all_is_done()
            assert double.cluster.watched <= 5
            batch = Batch()
            for key in keys:
                batch.set(key, b"v")
            await driver.commit(batch)


async def test_closing_ends_all_waits(double: Double) -> None:
    async with opened(double) as driver:
        double.cluster.faults.add("watch", 1032, skip=1)
        closed = 0

        async def wait(key: bytes) -> None:
            nonlocal closed
            with pytest.raises(StorageError, match="has been closed"):
                await driver.changed(key, None)
            closed += 1

        async with anyio.create_task_group() as tasks:
            for key in (b"watched", b"polled"):
                tasks.start_soon(wait, key)
                await all_is_done()
            await driver.aclose()
        assert closed == 2


async def test_a_cluster_that_stops_answering_ends_the_wait_only_when_it_is_asked(double: Double) -> None:
    """A watch that is set needs no answer; to look again does."""
    driver = await connected(double)
    failed: list[StorageError] = []

    async def wait() -> None:
        try:
            await driver.changed(KEY, None)
        except StorageError as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await until_watched(double)
        double.cluster.hang()
        hurry(driver, 0.05)
        await anyio.sleep(0.1)  # twice the time in which an answer is missed
        assert not failed
        driver._watches._wake(next(iter(driver._watches._watched.values())))
        await until(lambda: failed)
    double.cluster.answer()
    await driver.aclose()


async def test_an_unchanged_value_is_waited_for(double: Double) -> None:
    async with opened(double) as driver:
        await put(driver, b"1")
        waits = True

        async def wait() -> None:
            nonlocal waits
            await driver.changed(KEY, b"1")
            waits = False

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await until_watched(double)
            await all_is_done()
            assert waits
            tasks.cancel_scope.cancel()
