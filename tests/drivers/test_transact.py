"""What every driver promises that lets others write in its transactions."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.drivers.until import some_turns
from tests.ledger import Gate, add, read
from tests.patience import PATIENCE
from tests.support import open_store
from workflow_sdk import open_driver
from workflow_sdk.driver import Batch, Driver, Transacting, transacting
from workflow_sdk.errors import ConflictError, StorageError, StorageLimitError
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

pytestmark = pytest.mark.law(1)


@pytest.fixture(params=["sqlite", "fdb"])
def store(request: pytest.FixtureRequest) -> str:
    """A kind of store in which authors can write, too."""
    return str(request.param)


@asynccontextmanager
async def opened(store: str, folder: Path) -> AsyncGenerator[Driver]:
    driver = await open_store(store, folder)
    try:
        yield driver
    finally:
        await driver.aclose()


def of(driver: Driver) -> Transacting:
    found = transacting(driver)
    assert found is not None
    return found


def recording(number: int) -> Batch:
    batch = Batch()
    batch.set(b"record", b"%d" % number)
    return batch


async def test_both_are_written(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:
        await of(driver).transact(lambda tr: add(tr, "a", 3), recording)
        assert await driver.get(b"record") == b"3"
        assert await read(driver, "a") == 3
        await of(driver).transact(lambda tr: add(tr, "a", 4), recording)
        assert await driver.get(b"record") == b"7"


async def test_what_the_function_raises_undoes_it(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:
        mine = ValueError("no")

        def fails(transaction: Any) -> int:
            add(transaction, "a")
            raise mine

        with pytest.raises(ValueError, match="no") as caught:
            await of(driver).transact(fails, recording)
        assert caught.value is mine
        assert await read(driver, "a") == 0
        assert await driver.get(b"record") is None


async def test_what_becomes_of_its_value_can_undo_it(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:

        def refuse(_: object) -> Batch:
            raise KeyError("can't be recorded")

        with pytest.raises(KeyError):
            await of(driver).transact(lambda tr: add(tr, "a"), refuse)
        assert await read(driver, "a") == 0


async def test_a_check_that_does_not_hold_undoes_it(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:

        def checking(number: int) -> Batch:
            batch = recording(number)
            batch.check(b"lease", b"mine")
            return batch

        with pytest.raises(ConflictError, match="lease"):
            await of(driver).transact(lambda tr: add(tr, "a"), checking)
        assert await read(driver, "a") == 0
        assert await driver.get(b"record") is None


async def test_a_batch_over_the_limits_undoes_it(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:

        def large(_: object) -> Batch:
            batch = Batch()
            batch.set(b"record", bytes(10_000_001))
            return batch

        with pytest.raises(StorageLimitError, match="10,000,000"):
            await of(driver).transact(lambda tr: add(tr, "a"), large)
        assert await read(driver, "a") == 0


async def test_a_large_value_goes_along(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:

        def large(_: object) -> Batch:
            batch = Batch()
            batch.set(b"record", bytes(9_000_000))
            return batch

        await of(driver).transact(lambda tr: add(tr, "a"), large)
        assert await read(driver, "a") == 1
        assert await driver.get(b"record") == bytes(9_000_000)


async def test_the_function_has_a_thread_and_what_becomes_of_it_the_event_loop(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:
        threads: list[int] = []

        def called(transaction: Any) -> int:
            threads.append(threading.get_ident())
            return add(transaction, "a")

        def finish(number: int) -> Batch:
            threads.append(threading.get_ident())
            return recording(number)

        await of(driver).transact(called, finish)
        assert threads[0] != threads[1] == threading.get_ident()


async def test_many_at_once_are_one_after_the_other(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:
        seen: list[int] = []
        values: dict[int, int] = {}

        def finish(number: int) -> Batch:
            batch = Batch()
            batch.set(b"n%d" % number, b"")
            return batch

        async def one(task: int) -> None:
            def called(transaction: Any) -> int:
                values[task] = add(transaction, "a")
                return values[task]

            await of(driver).transact(called, finish)
            seen.append(values[task])

        async with anyio.create_task_group() as group:
            for task in range(20):
                group.start_soon(one, task)
        assert sorted(seen) == list(range(1, 21))
        assert len(await driver.scan(b"n", b"o")) == 20
        assert await read(driver, "a") == 20


async def test_beside_commits(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:

        async def commit(number: int) -> None:
            batch = Batch()
            batch.append(b"log", b"%d" % number)
            await driver.commit(batch)

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(commit, number)
                if number % 5 == 0:
                    group.start_soon(of(driver).transact, lambda tr: add(tr, "a"), recording)
        assert len(await driver.scan(b"log", b"loh")) == 30
        assert await read(driver, "a") == 6


async def test_who_waits_for_a_change_hears_of_it(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:
        heard: list[bytes | None] = []

        async def wait() -> None:
            await driver.changed(b"record", None)
            heard.append(await driver.get(b"record"))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await some_turns()
                await driver.get(b"record")  # reads are made in their order: the one that the wait begins with is over
                await some_turns()
                assert heard == []
                await of(driver).transact(lambda tr: add(tr, "a"), recording)
        assert heard == [b"1"]


async def test_an_iterator_that_ends_in_the_function_is_an_error_like_others(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:
        with anyio.fail_after(PATIENCE), pytest.raises(RuntimeError, match="StopIteration"):
            await of(driver).transact(lambda tr: add(tr, "a") and next(iter(())), recording)
        assert await read(driver, "a") == 0


async def test_a_cancelled_one_is_decided(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:
        gate = Gate()

        def waits(transaction: Any) -> int:
            number = add(transaction, "a")
            gate.wait()
            return number

        async with anyio.create_task_group() as group:
            group.start_soon(of(driver).transact, waits, recording)
            await gate.reached()
            group.cancel_scope.cancel()
            gate.open()
        written = await driver.get(b"record")
        assert await read(driver, "a") == int(written or b"0")


async def test_not_after_it_is_closed(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:
        await driver.aclose()
        with pytest.raises(StorageError, match="closed"):
            await of(driver).transact(lambda tr: add(tr, "a"), recording)


async def test_a_faulty_driver_counts_it_as_a_commit(store: str, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as driver:
        for faulty, error, expected in (
            (FaultyDriver(driver, fail_at=[1]), StorageError, 0),
            (FaultyDriver(driver, conflict_at=[1]), ConflictError, 0),
            (FaultyDriver(driver, crash_before=1), SimulatedCrash, 0),
            (FaultyDriver(driver, crash_after=1), SimulatedCrash, 1),
        ):
            with pytest.raises(error):
                await of(faulty).transact(lambda tr: add(tr, "a"), recording)
            assert await read(driver, "a") == expected


async def test_not_every_driver_does() -> None:
    memory = await open_driver("memory://")
    assert transacting(memory) is None
    assert transacting(FaultyDriver(memory)) is None
