"""Values that are larger than FoundationDB's, scans over several pages, and what is refused for its size."""

# pyright: reportPrivateUsage=false
# Some promises can only be seen from inside.

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import pytest

from tests.drivers.fdb_double import Double
from tests.fdb_store import connected, hurry
from workflow_drivers.foundationdb import FoundationDBDriver
from workflow_drivers.foundationdb._keys import ID_BYTES, end_of, read
from workflow_drivers.foundationdb._session import ready
from workflow_sdk.driver import Batch
from workflow_sdk.errors import ConflictError, StorageError, StorageLimitError

ROOT = b"\x02test\x00\x15"
ROWS, LARGE, CHUNKS, STAGED = (ROOT + bytes([number]) for number in (1, 2, 3, 5))


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


def sets(**rows: bytes) -> Batch:
    batch = Batch()
    for key, value in rows.items():
        batch.set(key.encode(), value)
    return batch


def count(double: Double, space: bytes) -> int:
    """How many rows of the cluster are in that part."""
    return sum(1 for _ in double.cluster.rows(space, end_of(space), double.cluster.now(), False))


def large(seed: int, size: int = 250_000) -> bytes:
    return os.urandom(16) + bytes([seed]) * (size - 16)


async def test_a_small_value_is_one_row(double: Double) -> None:
    async with opened(double) as driver:
        await driver.commit(sets(k=b"v"))
        rows = [key for key, _ in double.cluster.rows(ROOT, ROOT + b"\xff", double.cluster.now(), False)]
        slot, format = ROOT + b"\x04", ROOT + b"\x06format"
        assert [key[: len(slot)] if key.startswith(slot) else key for key in rows] == [ROWS + b"k", slot, format]
        reads = double.cluster.reads
        await driver.commit(sets(k=b"w"))
        assert double.cluster.reads == reads, "nothing is read for it"


@pytest.mark.parametrize("size", [99_999, 100_000, 200_000, 200_001])
async def test_large_values_are_in_chunks(double: Double, size: int) -> None:
    async with opened(double) as driver:
        value = large(1, size)
        await driver.commit(sets(a=b"1", k=value, z=b"2"))
        assert count(double, CHUNKS) == (0 if size < 100_000 else -(-size // 100_000))
        assert await driver.get(b"k") == value
        rows = [(b"a", b"1"), (b"k", value), (b"z", b"2")]
        assert await driver.scan(b"", b"\xff") == rows
        assert await driver.scan(b"", b"\xff", limit=2, reverse=True) == rows[:0:-1]
        batch = sets(k=b"small")
        batch.check(b"k", value[:-1] + b"x")
        with pytest.raises(ConflictError):
            await driver.commit(batch)


def set_small(batch: Batch) -> None:
    batch.set(b"k", b"small")


def set_large(batch: Batch) -> None:
    batch.set(b"k", large(2))


def clear(batch: Batch) -> None:
    batch.clear(b"k")


def clear_range(batch: Batch) -> None:
    batch.clear_range(b"a", b"z")


def clear_and_set(batch: Batch) -> None:
    batch.clear_range(b"a", b"z")
    batch.set(b"k", large(3))


def set_many(batch: Batch) -> None:
    for number in range(40):
        batch.set(b"k" + b"%d" % number, b"v")
    batch.set(b"k", b"small")


@pytest.mark.parametrize("change", [set_small, set_large, clear, clear_range, clear_and_set, set_many])
async def test_the_chunks_go_with_their_value(double: Double, change: Callable[[Batch], None]) -> None:
    async with opened(double) as driver:
        other = await connected(double)
        assert await other.get(b"k") is None
        await driver.commit(sets(k=large(1), kk=large(4)))
        batch = Batch()
        change(batch)
        await other.commit(batch)
        values = [value for _, value in await driver.scan(b"", b"\xff")]
        assert count(double, LARGE) == sum(1 for value in values if len(value) > 99_999)
        assert count(double, CHUNKS) == sum(3 for value in values if len(value) > 99_999)
        await other.aclose()


async def test_more_large_values_than_are_looked_for_at_once(double: Double) -> None:
    async with opened(double) as driver:
        many = {f"k{number:03}": large(1, 100_000) for number in range(30)}
        await driver.commit(sets(**many))
        double.cluster.page_bytes = 100
        await driver.commit(sets(**dict.fromkeys(many, b"small")))
        assert count(double, LARGE) == count(double, CHUNKS) == 0


async def test_large_values_can_be_appended(double: Double) -> None:
    async with opened(double) as driver:
        values = [large(1), b"small", large(2)]
        batch = Batch()
        for value in values:
            batch.append(b"q", value)
        await driver.commit(batch)
        rows = await driver.scan(b"q", b"r")
        assert [value for _, value in rows] == values
        assert [len(key) for key, _ in rows] == [14] * 3
        # Taken and put back under the same key, as a message is that a branch had taken.
        batch = Batch()
        batch.clear(rows[0][0])
        await driver.commit(batch)
        assert count(double, CHUNKS) == 3
        batch = Batch()
        batch.set(*rows[0])
        batch.check(*rows[2])
        await driver.commit(batch)
        assert await driver.scan(b"q", b"r") == rows
        batch = Batch()
        batch.clear_range(b"q", b"r")
        await driver.commit(batch)
        assert count(double, CHUNKS) == count(double, LARGE) == 0


async def test_two_drivers_that_store_a_large_value_at_one_key(double: Double) -> None:
    async with opened(double) as driver:
        other = await connected(double)
        await driver.commit(sets(k=large(1)))
        double.cluster.faults.add("commit", 1020)
        await other.commit(sets(k=large(2)))
        await driver.commit(sets(k=large(3)))
        assert count(double, CHUNKS) == 3
        await other.aclose()


@pytest.mark.parametrize("first", [set_large, set_small, clear])
@pytest.mark.parametrize("second", [set_large, set_small, clear])
async def test_two_drivers_that_replace_a_large_value_at_once(
    double: Double, first: Callable[[Batch], None], second: Callable[[Batch], None]
) -> None:
    """Each has found the same value to clear. Whoever comes second has to clear what the first has stored."""
    async with opened(double) as driver:
        other = await connected(double)
        await driver.commit(sets(k=large(1)))
        await other.commit(sets(other=large(1)))  # from now on, both know that there are large values
        double.cluster.latency = 0.005
        async with anyio.create_task_group() as tasks:
            for one, change in ((driver, first), (other, second)):
                batch = Batch()
                change(batch)
                tasks.start_soon(one.commit, batch)
        left = [value for _, value in await driver.scan(b"", b"\xff") if len(value) > 99_999]
        assert (count(double, LARGE), count(double, CHUNKS)) == (len(left), 3 * len(left))
        await other.aclose()


# Together too large for a transaction.


async def test_values_too_large_together_are_written_ahead(double: Double) -> None:
    async with opened(double) as driver:
        values = {name: large(seed, 4_000_000) for seed, name in enumerate(("a", "b", "c"))}
        await driver.commit(sets(**values))
        assert count(double, STAGED) == 0
        for name, value in values.items():
            assert await driver.get(name.encode()) == value
        assert [value for _, value in await driver.scan(b"", b"\xff")] == list(values.values())
        batch = sets(a=large(9, 10_000_000))
        batch.check(b"a", b"another")
        with pytest.raises(ConflictError):
            await driver.commit(batch)
        assert (count(double, STAGED), count(double, CHUNKS)) == (0, 120)


async def test_a_value_of_ten_megabytes(double: Double) -> None:
    async with opened(double) as driver:
        value = large(1, 10_000_000)
        await driver.commit(sets(k=value))
        assert await driver.get(b"k") == value
        double.cluster.faults.add("commit", 1021, applied=True, skip=10)
        batch = sets(k=large(2, 10_000_000))
        batch.check(b"k", value)
        await driver.commit(batch)
        assert (count(double, STAGED), count(double, CHUNKS), driver.unknown_results) == (0, 100, 1)


@pytest.mark.parametrize("first", [0x00, 0x7F, 0xFF])
async def test_what_was_written_ahead_by_a_crashed_process_is_swept_up(
    double: Double, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Whatever the random id of its chunks begins with."""
    draw = os.urandom
    monkeypatch.setattr(
        "workflow_drivers.foundationdb._keys.os",
        SimpleNamespace(urandom=lambda count: bytes([first]) + draw(count - 1)),
    )
    async with opened(double) as driver:
        double.cluster.faults.add("commit", 1500, skip=5)
        double.cluster.faults.add("get", 1500)  # nor can it be cleared
        with pytest.raises(StorageError, match="1500"):
            await driver.commit(sets(k=large(1, 10_000_000)))
        assert (count(double, STAGED), count(double, CHUNKS)) == (1, 50)
        await (await connected(double)).aclose()
        assert count(double, CHUNKS) == 50, "it could still be on its way"
        monkeypatch.setattr("workflow_drivers.foundationdb.STAGED_OLD_SECONDS", -1)
        await (await connected(double)).aclose()
        assert (count(double, STAGED), count(double, CHUNKS)) == (0, 0)
        assert await driver.scan(b"", b"\xff") == []


async def test_a_commit_does_not_happen_without_what_was_written_ahead(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that slept for hours, and wakes up just before the commit."""
    async with opened(double) as driver:

        async def swept(*args: object) -> None: ...

        monkeypatch.setattr("workflow_drivers.foundationdb._commit.Committer._stage", swept)
        with pytest.raises(StorageError, match="cleared before the commit came"):
            await driver.commit(sets(k=large(1, 10_000_000)))
        assert await driver.scan(b"", b"\xff") == []


# Limits.


async def test_limits_are_named_before_anything_is_written(double: Double) -> None:
    async with opened(double) as driver:
        commits = double.cluster.commits
        longest = 10_000 - len(ROWS)
        wrong: list[tuple[Batch, str]] = []
        for key in (b"k" * (longest + 1), b"k" * 10_000):
            batch = sets(a=b"1")
            batch.set(key, b"1")
            wrong.append((batch, f"key.*{longest:,} bytes.*10,000"))
        checking, appending, many, clearing = sets(a=b"1"), sets(a=b"1"), Batch(), sets(a=b"1")
        checking.check(b"k" * (longest + 1), None)
        appending.append(b"k" * (longest - 16), b"1")
        clearing.clear(b"k" * (longest + 1))
        for _ in range(65_537):
            many.append(b"q", b"")
        wrong += [(checking, "key"), (appending, f"{longest - 4:,}"), (many, "65,536"), (clearing, "key")]
        small = Batch()
        for number in range(120):
            small.set(b"%d" % number, bytes(99_000))
        wrong.append((small, "10,000,000.*FoundationDB"))
        for batch, says in wrong:
            with pytest.raises(StorageLimitError, match=f"{says}.*nothing was written"):
                await driver.commit(batch)
        assert double.cluster.commits == commits


async def test_what_is_just_within_the_limits_fits(double: Double) -> None:
    async with opened(double) as driver:
        longest = 10_000 - len(ROWS)
        batch = Batch()
        batch.set(b"k" * longest, large(1))
        batch.append(b"a" * (longest - 17), large(1))
        await driver.commit(batch)
        assert [len(key) for key, _ in await driver.scan(b"", b"\xff")] == [longest - 4, longest]
        nearly = {f"{number:03}": bytes(99_000) for number in range(100)}
        await driver.commit(sets(**nearly))
        keys = Batch()
        for number in range(10_000):
            keys.set(b"%0100d" % number, b"v" * 100)
        await driver.commit(keys)
        assert await driver.get(b"k" * 10_000) is None


# Scans.


async def test_scans_go_on_from_page_to_page(double: Double) -> None:
    async with opened(double) as driver:
        rows = [(b"%03d" % number, b"v" * 50) for number in range(100)]
        await driver.commit(sets(**{key.decode(): value for key, value in rows}))
        double.cluster.page_bytes = 500
        for limit in (None, 0, 1, 9, 10, 11, 99, 100, 101, 2**40):
            assert await driver.scan(b"", b"\xff", limit=limit) == rows[:limit]
            assert await driver.scan(b"", b"\xff", limit=limit, reverse=True) == rows[::-1][:limit]
        assert await driver.scan(b"010", b"090", reverse=True) == rows[89:9:-1]


async def test_a_scan_that_becomes_too_old_starts_again(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(double) as driver:
        await driver.commit(sets(**{f"{number:02}": b"old" for number in range(20)}))
        double.cluster.page_bytes = 20
        before = double.cluster.reads
        aged = False

        def ageing(job: Callable[[], object]) -> None:
            nonlocal aged
            if not aged and double.cluster.reads > before + 2:
                aged = True
                double.cluster.grow_older(6)
            request(job)

        request = double.cluster.request
        monkeypatch.setattr(double.cluster, "request", ageing)  # between two pages
        rows = await driver.scan(b"", b"\xff")
        assert aged
        assert [value for _, value in rows] == [b"old"] * 20
        assert driver.retries == 1


async def test_a_scan_sees_one_state_whatever_is_committed_meanwhile(double: Double) -> None:
    async with opened(double) as driver:
        other = await connected(double)
        names = [f"{number:02}" for number in range(20)]
        await driver.commit(sets(**dict.fromkeys(names, b"old")))
        double.cluster.page_bytes = 20
        double.cluster.latency = 0.001
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(other.commit, sets(**dict.fromkeys(names, b"new%d" % number)))
                rows = await driver.scan(b"", b"\xff")
                assert len({value for _, value in rows}) == 1
                assert len(rows) == 20
        await other.aclose()


async def test_a_scan_that_is_always_too_old_is_an_error(double: Double) -> None:
    async with opened(double) as driver:
        double.cluster.faults.add("get_range", 1007, times=200)
        hurry(driver, 1)
        with pytest.raises(StorageError, match="1007"):
            await driver.scan(b"", b"\xff")


async def test_a_row_of_another_making_is_told() -> None:
    too_large = b"\x01" + bytes(ID_BYTES) + b"\x7f" * 8 + bytes(32)
    for row in (b"", b"\x07x", b"\x01short", too_large):
        with pytest.raises(StorageError, match="not of this driver's making"):
            read(row)


async def test_another_format_is_not_touched(double: Double) -> None:
    async with opened(double):
        transaction = double.open().create_transaction()
        transaction.set(ROOT + b"\x06format", b"2")
        await ready(transaction.commit())
        with pytest.raises(StorageError, match="newer version"):
            await connected(double)


async def test_a_lost_chunk_is_told(double: Double) -> None:
    async with opened(double) as driver:
        await driver.commit(sets(k=large(1)))
        transaction = double.open().create_transaction()
        transaction.clear_range(CHUNKS, CHUNKS + b"\xff")
        await anyio.to_thread.run_sync(lambda: transaction.commit().wait())
        with pytest.raises(StorageError, match="lost a part"):
            await driver.get(b"k")
