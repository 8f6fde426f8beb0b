"""A batch is applied exactly once and reported as it is, whatever the cluster answers, or doesn't."""

# pyright: reportPrivateUsage=false
# Some promises can only be seen from inside.

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.drivers.fdb_double import Double
from tests.drivers.fdb_waiting import all_is_done, do_not_wait_for_silence
from tests.fdb_store import connected, hurry
from tests.patience import PATIENCE
from workflow_drivers.foundationdb import FoundationDBDriver
from workflow_sdk.driver import Batch
from workflow_sdk.errors import ConflictError, StorageError, StorageLimitError

pytestmark = pytest.mark.law(1)

Rows = list[tuple[bytes, bytes]]

# After these the binding can't tell whether the commit has happened: the documentation of `commit_unknown_result`, of
# `transaction_timed_out`, `transaction_cancelled` and `cluster_version_changed` says so.
UNKNOWN = [1021, 1025, 1031, 1039, 1500]
LATE = [1025, 1031, 1039]
PASSING = [1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1213, 1223, 1235]


@asynccontextmanager
async def opened(double: Double, **changes: Any) -> AsyncGenerator[FoundationDBDriver]:
    driver = await connected(double, **changes)
    try:
        yield driver
    finally:
        double.cluster.answer()
        await driver.aclose()


def counting(seen: bytes | None, value: bytes) -> Batch:
    """A batch that can't be applied twice without it being seen: a check of what it sets, and an append."""
    batch = Batch()
    batch.check(b"count", seen)
    batch.set(b"count", value)
    batch.append(b"log", value)
    return batch


async def logged(driver: FoundationDBDriver) -> list[bytes]:
    return [value for _, value in await driver.scan(b"log", b"loh")]


async def eventually(double: Double) -> None:
    """Let the commits that are on their way come."""
    double.cluster.arrive()
    await all_is_done()


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("code", UNKNOWN)
async def test_a_commit_without_an_answer_is_applied_once(code: int, applied: bool) -> None:
    double = Double()
    async with opened(double) as driver:
        await driver.commit(counting(None, b"1"))
        double.cluster.faults.add("commit", code, applied=applied)
        if code == 1500 and not applied:  # it is none that is tried again; but what is reported of it is so
            with pytest.raises(StorageError, match="1500"):
                await driver.commit(counting(b"1", b"2"))
            assert await logged(driver) == [b"1"]
        else:
            await driver.commit(counting(b"1", b"2"))
            assert await driver.get(b"count") == b"2"
            assert await logged(driver) == [b"1", b"2"]
        assert driver.unknown_results == 1
        assert driver.counts.unknown_applied == int(applied)


@pytest.mark.parametrize("applied", [False, True])
async def test_several_tries_without_an_answer(applied: bool) -> None:
    double = Double()
    async with opened(double) as driver:
        double.cluster.faults.add("commit", 1021, times=3)
        double.cluster.faults.add("commit", 1021, applied=applied)
        double.cluster.faults.add("get", 1007, times=2)
        double.cluster.faults.add("commit", 1020, times=1)
        await driver.commit(counting(None, b"1"))
        assert await logged(driver) == [b"1"]


@pytest.mark.parametrize("code", LATE)
async def test_a_commit_that_comes_late_does_not_come_twice(code: int) -> None:
    double = Double()
    async with opened(double) as driver:
        double.cluster.faults.add("commit", code, late=True)
        await driver.commit(counting(None, b"1"))
        await eventually(double)
        assert await logged(driver) == [b"1"]


@pytest.mark.parametrize("code", LATE)
async def test_what_is_reported_as_a_failure_never_happens(code: int) -> None:
    """The first try is on its way when the second fails for good. The doubt is ended before that is told."""
    double = Double()
    async with opened(double) as driver:
        batch = Batch()
        batch.append(b"log", b"never")  # it reads nothing that others write: only the slot can keep it off
        double.cluster.faults.add("commit", code, late=True)
        double.cluster.faults.add("get", 1500, skip=1)
        with pytest.raises(StorageError, match="1500") as caught:
            await driver.commit(batch)
        assert "not known" not in str(caught.value)
        await eventually(double)
        assert await logged(driver) == []


@pytest.mark.parametrize("code", LATE)
async def test_what_is_reported_as_a_conflict_never_happens(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    double = Double()
    async with opened(double) as driver, opened(double) as other:
        double.cluster.faults.add("commit", code, late=True)
        again = driver._session.again

        async def meanwhile(*args: Any) -> Any:
            await other.commit(counting(None, b"1"))
            return await again(*args)

        monkeypatch.setattr(driver._session, "again", meanwhile)
        with pytest.raises(ConflictError):
            await driver.commit(counting(None, b"never"))
        await eventually(double)
        assert await logged(driver) == [b"1"]


async def test_a_late_commit_without_checks_is_kept_off_by_its_slot() -> None:
    """It conflicts with nothing but the slot: a batch that appends has read nothing else."""
    double = Double()
    async with opened(double) as driver:
        batch = Batch()
        batch.append(b"log", b"1")
        double.cluster.faults.add("commit", 1031, late=True)
        await driver.commit(batch)
        await eventually(double)
        assert await logged(driver) == [b"1"]


async def test_checks_that_fail_because_of_the_first_try_are_no_conflict() -> None:
    double = Double()
    async with opened(double) as driver:
        double.cluster.faults.add("commit", 1021, applied=True)
        await driver.commit(counting(None, b"1"))
        double.cluster.faults.add("commit", 1031, applied=True)
        await driver.commit(counting(b"1", b"2"))
        assert await logged(driver) == [b"1", b"2"]
        with pytest.raises(ConflictError):
            await driver.commit(counting(b"1", b"3"))


@pytest.mark.parametrize("applied", [False, True])
async def test_the_end_of_the_tries_is_the_truth(applied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is reported after the last try: the batch is applied if and only if it says so."""
    monkeypatch.setattr("workflow_drivers.foundationdb._session.TRIES_MAX", 3)
    double = Double()
    async with opened(double) as driver:
        double.cluster.faults.add("commit", 1021, times=2)
        double.cluster.faults.add("commit", 1021, applied=applied)
        if applied:
            await driver.commit(counting(None, b"1"))
        else:
            with pytest.raises(StorageError, match=r"after 3 tries.*1021"):
                await driver.commit(counting(None, b"1"))
        assert await logged(driver) == [b"1"] * applied


@pytest.mark.parametrize("code", PASSING)
async def test_errors_that_pass_are_tried_again(code: int) -> None:
    double = Double()
    async with opened(double) as driver:
        double.cluster.faults.add("get", code, times=2)
        double.cluster.faults.add("commit", code, times=2)
        await driver.commit(counting(None, b"1"))
        assert await logged(driver) == [b"1"]
        assert driver.unknown_results == 0
        assert driver.retries >= 4
        assert (driver.conflicts > 0) == (code == 1020)


async def test_a_conflict_is_tried_again_and_a_failed_check_is_not() -> None:
    double = Double()
    async with opened(double) as driver:
        double.cluster.faults.add("commit", 1020)
        await driver.commit(counting(None, b"1"))
        assert driver.conflicts == 1
        commits = double.cluster.commits
        with pytest.raises(ConflictError, match="count"):
            await driver.commit(counting(None, b"1"))
        assert (driver.conflicts, double.cluster.commits) == (1, commits)
        assert driver.counts.checks_failed == 1


async def test_an_error_that_does_not_pass_is_told() -> None:
    double = Double()
    async with opened(double) as driver:
        double.cluster.faults.add("get", 1500)
        with pytest.raises(StorageError, match=r"could not read.*1500.*Platform error"):
            await driver.get(b"k")


# No answer at all.


async def test_a_cluster_that_does_not_answer_is_an_error_in_time() -> None:
    double = Double()
    async with opened(double) as driver:
        await driver.commit(counting(None, b"1"))
        double.cluster.hang()
        hurry(driver, 0.2)
        with anyio.fail_after(PATIENCE):
            for call in (driver.get(b"k"), driver.scan(b"", b"\xff"), driver.changed(b"count", b"1")):
                with pytest.raises(StorageError, match=r"within 0\.2 s \(timeout\): no answer"):
                    await call
            # The version that the commit needs does not come, so that nothing was sent and nothing is in doubt.
            with pytest.raises(StorageError, match=r"could not commit within 0\.2 s") as caught:
                await driver.commit(counting(b"1", b"2"))
        assert "not known" not in str(caught.value)
        double.cluster.answer()
        hurry(driver, PATIENCE)
        assert await driver.get(b"count") == b"1"


async def test_a_cluster_that_does_not_answer_is_an_error_when_it_is_opened() -> None:
    double = Double()
    double.cluster.hang()
    with anyio.fail_after(PATIENCE), pytest.raises(StorageError, match=r"could not open the store.*Is it up"):
        await connected(double, timeout=0.05)


@pytest.mark.parametrize("applied", [False, True])
async def test_a_commit_that_is_not_answered_is_looked_into(applied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    double = Double()
    do_not_wait_for_silence(double, monkeypatch)
    async with opened(double, timeout=PATIENCE) as driver:
        double.cluster.faults.add("commit", applied=applied, late=not applied, silent=True)
        if applied:
            await driver.commit(counting(None, b"1"))
        else:
            with pytest.raises(StorageError, match="could not commit within"):
                await driver.commit(counting(None, b"1"))
        await eventually(double)
        assert await logged(driver) == [b"1"] * applied
        assert driver.unknown_results == 1


async def test_if_it_cannot_be_looked_into_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Double()
    do_not_wait_for_silence(double, monkeypatch)
    monkeypatch.setattr("workflow_drivers.foundationdb._commit.SETTLING", 0.5 / PATIENCE)  # half a second for looking
    async with opened(double, timeout=PATIENCE) as driver:
        double.cluster.faults.add("commit", silent=True, late=True)
        double.cluster.faults.add("get", silent=True, skip=2)
        with pytest.raises(StorageError, match="Whether the batch was applied is not known"):
            await driver.commit(counting(None, b"1"))
        # The slot is nobody's any more: the next who had it would take the one before for its own.
        await driver.commit(counting(None, b"2"))
        await eventually(double)
        assert await logged(driver) == [b"2"]


async def test_a_slow_cluster_is_waited_for() -> None:
    double = Double()
    async with opened(double) as driver:
        double.cluster.latency = 0.03
        await driver.commit(counting(None, b"1"))
        assert await driver.get(b"count") == b"1"


@pytest.mark.parametrize("code", [0, 1025, 1031])
async def test_a_commit_that_still_has_to_learn_its_version_does_not_come_late(code: int) -> None:
    """The client goes on asking for it after the transaction was cancelled, and the version is then a newer one than
    that of any commit: the slot would not keep it off."""
    double = Double()
    async with opened(double, timeout=0.3) as driver:
        await driver.commit(counting(None, b"1"))
        batch = Batch()
        batch.append(b"log", b"2")
        double.cluster.faults.add("read_version", code, late=True, silent=not code)
        if code:
            await driver.commit(batch)
        else:
            with pytest.raises(StorageError, match="could not commit within") as caught:
                await driver.commit(batch)
            assert "not known" not in str(caught.value)
        await eventually(double)
        assert await logged(driver) == [b"1", b"2"][: 1 + bool(code)]


# Cancellation.


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("once", [False, True])
async def test_a_commit_cancelled_under_way_is_decided_when_it_returns(once: bool, applied: bool) -> None:
    double = Double()
    async with opened(double) as driver:
        code = 0 if applied else 1031
        for number in range(12):
            await driver.commit(counting(await driver.get(b"count"), b"before"))
            double.cluster.latency = 0.002
            if code:
                double.cluster.faults.add("commit", code, late=True)
            before = await logged(driver)
            task = asyncio.ensure_future(driver.commit(counting(b"before", b"%d" % number)))
            await asyncio.sleep(number / 1500)
            was_done = task.done()
            task.cancel()
            if not once:
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
            assert was_done or task.cancelled()
            double.cluster.latency = 0.0
            after = await logged(driver)
            assert after in (before, [*before, b"%d" % number])
            await eventually(double)
            assert await logged(driver) == after, "it has happened when it returns, or never will"
            while double.cluster.faults.left:
                double.cluster.faults.take("commit")


async def test_cancelled_reads_take_their_futures_along() -> None:
    double = Double()
    async with opened(double) as driver:
        double.cluster.hang()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.scan, b"", b"\xff")
            await all_is_done()
            tasks.cancel_scope.cancel()
        double.cluster.answer()
        assert await driver.get(b"k") is None


# Slots.


def slots(double: Double) -> int:
    return sum(
        1 for _ in double.cluster.rows(b"\x02test\x00\x15\x04", b"\x02test\x00\x15\x05", double.cluster.now(), False)
    )


async def test_slots_do_not_pile_up_and_go_with_their_driver() -> None:
    double = Double()
    async with opened(double) as driver:
        for number in range(20):
            batch = Batch()
            batch.set(b"k", b"%d" % number)
            await driver.commit(batch)
        assert slots(double) == 1
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                batch = Batch()
                batch.set(b"%d" % number, b"v")
                tasks.start_soon(driver.commit, batch)
        assert slots(double) == 5
    assert slots(double) == 0


async def test_slots_of_crashed_processes_are_swept_up(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Double()
    crashed = await connected(double)
    batch = Batch()
    batch.set(b"k", b"v")
    await crashed.commit(batch)
    async with opened(double):
        assert slots(double) == 1
    monkeypatch.setattr("workflow_drivers.foundationdb.SLOTS_OLD_SECONDS", -1)
    async with opened(double):
        assert slots(double) == 0
    await crashed.commit(batch)


async def test_what_cannot_be_swept_is_no_hindrance(caplog: pytest.LogCaptureFixture) -> None:
    double = Double()
    double.cluster.faults.add("get_range", 1500)
    async with opened(double) as driver:
        assert await driver.get(b"k") is None
    assert "could not be cleared" in caplog.text


async def test_automatic_idempotency_is_asked_for_where_it_is_wanted() -> None:
    double = Double()
    async with opened(double, automatic_idempotency=True) as driver:
        double.cluster.faults.add("commit", 1021, applied=True)
        await driver.commit(counting(None, b"1"))
        assert driver.unknown_results == 0
        double.cluster.faults.add("commit", 1031, applied=True)
        await driver.commit(counting(b"1", b"2"))
        assert (driver.unknown_results, await logged(driver)) == (1, [b"1", b"2"])


async def test_limits_that_only_the_cluster_knows_are_named() -> None:
    double = Double()
    async with opened(double) as driver:
        double.cluster.faults.add("commit", 2101)
        with pytest.raises(StorageLimitError, match=r"2101.*nothing was written"):
            await driver.commit(counting(None, b"1"))
        assert driver.unknown_results == 0
