"""An author's transaction in a cluster: exactly once whatever the cluster answers, and under a prefix of its own."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest

from tests.drivers.fdb_double import Double
from tests.drivers.fdb_waiting import all_is_done, do_not_wait_for_silence
from tests.fdb_store import connected, hurry
from tests.ledger import Gate, add, read
from tests.patience import PATIENCE
from workflow_drivers.foundationdb import FoundationDBDriver, UserTransaction
from workflow_drivers.foundationdb._keys import space_of
from workflow_drivers.foundationdb._user import after_all
from workflow_sdk.driver import Batch
from workflow_sdk.errors import ConflictError, StorageError, StorageLimitError

pytestmark = pytest.mark.law(1)


@asynccontextmanager
async def opened(double: Double, **changes: Any) -> AsyncGenerator[FoundationDBDriver]:
    driver = await connected(double, **changes)
    try:
        yield driver
    finally:
        double.cluster.answer()
        await driver.aclose()


def recording(number: int) -> Batch:
    batch = Batch()
    batch.check(b"lease", None)
    batch.set(b"record", b"%d" % number)
    batch.append(b"log", b"%d" % number)
    return batch


class Tries:
    """A function whose value is another one for each try, so that it shows which of them was recorded."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, transaction: UserTransaction) -> int:
        self.count += 1
        add(transaction, "a")
        transaction[b"try"] = b"%d" % self.count
        return self.count


async def told(driver: FoundationDBDriver) -> tuple[bytes | None, list[bytes], int, bytes | None]:
    """The record, how often it was made, the author's number, and the try that wrote it."""
    found: list[bytes | None] = []
    await driver.transact(lambda tr: found.append(tr[b"try"].value), lambda _: Batch())
    log = [value for _, value in await driver.scan(b"log", b"loh")]
    return await driver.get(b"record"), log, await read(driver, "a"), found[-1]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("code", [1021, 1025, 1031, 1039])
async def test_a_commit_without_an_answer_counts_once(code: int, applied: bool) -> None:
    double, tries = Double(), Tries()
    async with opened(double) as driver:
        double.cluster.faults.add("commit", code, applied=applied)
        await driver.transact(tries, recording)
        kept = b"1" if applied else b"2"
        assert await told(driver) == (kept, [kept], 1, kept)
        assert tries.count == int(kept)
        assert (driver.counts.unknown_results, driver.counts.unknown_applied) == (1, int(applied))


@pytest.mark.parametrize("code", [1025, 1031, 1039])
async def test_a_commit_that_comes_late_does_not_count(code: int) -> None:
    double, tries = Double(), Tries()
    async with opened(double) as driver:
        double.cluster.faults.add("commit", code, late=True)
        await driver.transact(tries, recording)
        double.cluster.arrive()
        await all_is_done()
        assert await told(driver) == (b"2", [b"2"], 1, b"2")


@pytest.mark.parametrize("code", [1007, 1009, 1020, 1037, 1051])
async def test_what_passes_is_tried_again_with_a_new_transaction(code: int) -> None:
    double, tries = Double(), Tries()
    async with opened(double) as driver:
        double.cluster.faults.add("commit", code, times=3)
        await driver.transact(tries, recording)
        assert await told(driver) == (b"4", [b"4"], 1, b"4")


async def test_so_is_what_fails_inside_the_function() -> None:
    double, tries = Double(), Tries()
    async with opened(double) as driver:
        double.cluster.faults.add("get", 1037)
        await driver.transact(tries, recording)
        assert await told(driver) == (b"2", [b"2"], 1, b"2")


async def test_a_conflict_on_what_the_function_has_read() -> None:
    double = Double()
    async with opened(double) as driver, opened(double) as other:
        seen: list[bytes | None] = []
        gate = Gate()

        def slow(transaction: UserTransaction) -> int:
            seen.append(transaction[b"price"].value)
            gate.wait()
            transaction[b"paid"] = seen[-1] or b""
            return len(seen)

        def price(transaction: UserTransaction) -> int:
            transaction[b"price"] = b"20"
            return 0

        async with anyio.create_task_group() as group:
            group.start_soon(driver.transact, slow, recording)
            await gate.reached()
            await other.transact(price, lambda _: Batch())
            gate.open()
        assert seen == [None, b"20"]
        assert driver.conflicts == 1


@pytest.mark.parametrize("applied", [False, True])
async def test_no_answer_at_all(applied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    double, tries = Double(), Tries()
    do_not_wait_for_silence(double, monkeypatch)
    async with opened(double, timeout=PATIENCE) as driver:
        double.cluster.faults.add("commit", silent=True, applied=applied)
        if applied:
            await driver.transact(tries, recording)
            assert await told(driver) == (b"1", [b"1"], 1, b"1")
        else:
            with pytest.raises(StorageError, match=f"within {PATIENCE:g} s"):
                await driver.transact(tries, recording)
            assert await told(driver) == (None, [], 0, None)


async def test_a_cluster_that_is_away_is_an_error_in_time_and_ends_the_thread() -> None:
    double = Double()
    ended = threading.Event()
    async with opened(double) as driver:

        def reading(transaction: UserTransaction) -> int:
            try:
                return len(transaction[b"a"].value or b"")
            finally:
                ended.set()

        double.cluster.hang()
        hurry(driver, 0.5)
        with pytest.raises(StorageError, match=r"0\.5 s"):
            await driver.transact(reading, recording)
        assert ended.wait(PATIENCE), "a cancelled transaction ends whoever waits for it"


async def test_the_authors_own_errors_pass_and_the_clusters_do_not() -> None:
    double = Double()
    async with opened(double) as driver:

        def wrong_range(transaction: UserTransaction) -> int:
            return len(list(transaction[b"z":b"a"]))

        with pytest.raises(double.FDBError) as caught:
            await driver.transact(wrong_range, recording)
        assert cast("Any", caught.value).code == 2005

        def too_large(transaction: UserTransaction) -> int:
            transaction[b"a"] = bytes(100_001)
            return 1

        with pytest.raises(StorageLimitError, match="2103"):
            await driver.transact(too_large, recording)

        def too_much(transaction: UserTransaction) -> int:
            for number in range(101):
                transaction[b"%d" % number] = bytes(100_000)
            return 1

        with pytest.raises(StorageLimitError, match="2101"):
            await driver.transact(too_much, recording)
        with pytest.raises(TypeError, match="a key is bytes"):
            await driver.transact(lambda tr: tr[cast("Any", "text")], recording)
        assert await driver.get(b"record") is None


async def test_a_lost_lease_undoes_it_also_after_a_commit_in_doubt() -> None:
    double, tries = Double(), Tries()
    async with opened(double) as driver, opened(double) as other:
        double.cluster.faults.add("commit", 1021)
        fenced = Batch()
        fenced.set(b"lease", b"other")

        def calling(transaction: UserTransaction) -> int:
            if tries.count == 1:
                gate.wait()
            return tries(transaction)

        gate = Gate()
        async with anyio.create_task_group() as group:

            async def fence() -> None:
                await gate.reached()
                await other.commit(fenced)
                gate.open()

            group.start_soon(fence)
            with pytest.raises(ConflictError, match="lease"):
                await driver.transact(calling, recording)
        assert await told(driver) == (None, [], 0, None)


async def test_values_that_would_have_to_be_written_ahead_are_too_large() -> None:
    def large(_: object) -> Batch:
        batch = Batch()
        batch.set(b"a", bytes(6_000_000))
        batch.set(b"b", bytes(6_000_000))
        return batch

    async with opened(Double()) as driver:
        with pytest.raises(StorageLimitError, match="10 MB"):
            await driver.transact(lambda tr: add(tr, "a"), large)
        assert await read(driver, "a") == 0


async def test_keys_of_authors_lie_beside_those_of_the_store() -> None:
    double = Double()
    async with opened(double, prefix="shop") as driver:
        seen: list[Any] = []

        def all_of_it(transaction: UserTransaction) -> int:
            for key in (b"", b"a", b"ab", b"b", b"\xff\xff"):
                transaction[key] = key
            transaction.add(b"n", (5).to_bytes(8, "little"))
            seen.append([row.key for row in transaction[:]])
            seen.append([row.key for row in transaction[b"a":b"b"]])
            seen.append([row.key for row in transaction[b"a":]])
            seen.append([row.key for row in transaction.get_range(limit=2, reverse=True)])
            seen.append([row.key for row in transaction.get_range_startswith(b"a")])
            seen.append([row.value for row in transaction.snapshot.get_range_startswith(b"\xff")])
            del transaction[b"ab"]
            del transaction[b"b":]
            seen.append([tuple(row) for row in transaction[:]])
            seen.append(transaction.prefix)
            return 1

        await driver.transact(all_of_it, recording)
        everything = [b"", b"a", b"ab", b"b", b"n", b"\xff\xff"]
        assert seen == [
            everything,
            [b"a", b"ab"],
            everything[1:],
            [b"\xff\xff", b"n"],
            [b"a", b"ab"],
            [b"\xff\xff"],
            [(b"", b""), (b"a", b"a")],
            space_of("shop").user,
        ]
        assert await driver.get(b"record") == b"1"
        assert len(await driver.scan(b"", b"\xff")) == 2, "of the author's keys, the store shows none"


class Recorder:
    """Stands for a transaction of the binding, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name == "snapshot":
            return self

        def call(*args: Any) -> Any:
            self.calls.append((name, *args))
            return []

        return call


class Key:
    def as_foundationdb_key(self) -> bytes:
        return b"key"


def test_every_call_goes_under_the_prefix() -> None:
    recorder = Recorder()
    transaction = UserTransaction(cast("Any", recorder), b"P")
    atomic = [
        "add", "bit_and", "bit_or", "bit_xor", "max", "min", "byte_max", "byte_min", "append_if_fits",
        "compare_and_clear", "set_versionstamped_value",
    ]  # fmt: skip
    for name in atomic:
        getattr(transaction, name)(b"k", b"v")
    assert recorder.calls == [(name, b"Pk", b"v") for name in atomic]
    recorder.calls.clear()
    transaction.set_versionstamped_key(b"k" + bytes(10) + (1).to_bytes(4, "little"), b"v")
    transaction.add_read_conflict_key(b"k")
    transaction.add_write_conflict_key(cast("Any", Key()))
    transaction.add_read_conflict_range(b"a", b"b")
    transaction.add_write_conflict_range(b"a", b"b")
    transaction.clear_range(b"a", b"b")
    transaction.clear_range_startswith(b"a\xff")
    transaction.clear_range()
    transaction.get(b"k")
    list(transaction.snapshot.get_range(b"a", None, 3, True, 1))
    assert recorder.calls == [
        ("set_versionstamped_key", b"Pk" + bytes(10) + (2).to_bytes(4, "little"), b"v"),
        ("add_read_conflict_key", b"Pk"),
        ("add_write_conflict_key", b"Pkey"),
        ("add_read_conflict_range", b"Pa", b"Pb"),
        ("add_write_conflict_range", b"Pa", b"Pb"),
        ("clear_range", b"Pa", b"Pb"),
        ("clear_range", b"Pa\xff", b"Pb"),
        ("clear_range", b"P", b"Q"),
        ("get", b"Pk"),
        ("get_range", b"Pa", b"Q", 3, True, 1),
    ]


def test_what_comes_after_a_prefix() -> None:
    assert after_all(b"a") == b"b"
    assert after_all(b"a\xff\xff") == b"b"
    assert after_all(b"\xff") is None
