"""The double does what FoundationDB's documentation says. Each test quotes what it stands for."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.drivers.fdb_double import (
    Database,
    Double,
    FDBError,
    Future,
    Transaction,
    failures,
    network,
)
from tests.patience import PATIENCE


@pytest.fixture
def database() -> Database:
    return Double().open()


def code(future: Future) -> int:
    """What it fails with; 0 if it doesn't."""
    try:
        future.wait()
    except FDBError as error:
        return error.code
    return 0


def put(database: Database, **rows: bytes) -> None:
    transaction = database.create_transaction()
    for key, value in rows.items():
        transaction.set(key.encode(), value)
    transaction.commit().wait()


def settle() -> None:
    """Let the network thread do what it has to do."""
    done = threading.Event()
    network.post(done.set)
    assert done.wait(PATIENCE)


# Futures. "The C API: Future".


def test_callbacks_run_in_the_network_thread(database: Database) -> None:
    """... "take place on the thread on which fdb_run_network() was invoked"."""
    threads: list[threading.Thread] = []
    database.cluster.latency = 0.01
    future = database.create_transaction().get(b"k")
    done = threading.Event()
    future.on_ready(lambda _: threads.append(threading.current_thread()))
    future.on_ready(lambda _: done.set())
    assert done.wait(PATIENCE)
    assert threads == [network.thread]
    assert threads[0] is not threading.current_thread()


def test_a_callback_of_a_ready_future_may_run_at_once(database: Database) -> None:
    """... "If the Future is already ready, the call may occur in the current thread before this function returns"."""
    future = Future()
    future.set(1)
    threads: list[threading.Thread] = []
    future.on_ready(lambda _: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_what_a_callback_raises_does_not_end_the_network_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """impl.py: "Discarding uncaught exception from user FDB callback"."""
    future = Future()
    future.on_ready(lambda _: 1 / 0)
    network.post(future.set)
    future.wait()
    settle()
    assert "ZeroDivisionError" in failures.pop()
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_cancelled_future_fails(database: Database) -> None:
    """... "all operations waiting on it will fail with operation_cancelled"."""
    database.cluster.hang()
    future = database.create_transaction().get(b"k")
    future.cancel()
    assert code(future) == 1101
    database.cluster.answer()


async def test_waiting_in_an_event_loop_is_a_mistake(database: Database) -> None:
    database.cluster.latency = 0.05
    future = database.create_transaction().get(b"k")
    with pytest.raises(AssertionError, match="not ready"):
        future.wait()


def test_an_error_has_a_number_and_a_text() -> None:
    error = FDBError(1020)
    assert error.code == 1020
    assert b"conflict" in error.description
    assert repr(error) == "FDBError(1020)"
    assert "1020" in str(error)


# Transactions. "Developer guide: transactions", "Python API".


def test_writes_are_seen_after_the_commit_and_all_at_once(database: Database) -> None:
    """... "once a transaction has been successfully committed, all subsequently created transactions will see"."""
    writing, reading = database.create_transaction(), database.create_transaction()
    writing.set(b"a", b"1")
    writing.set(b"b", b"1")
    assert reading.get(b"a").value is None
    writing.commit().wait()
    assert reading.get(b"b").value is None, "an otherwise-unchanging version of the database"
    later = database.create_transaction()
    assert [(row.key, row.value) for row in later.get_range(b"a", b"c")] == [(b"a", b"1"), (b"b", b"1")]
    assert later.get(b"a").present()


def test_a_transaction_reads_its_own_writes(database: Database) -> None:
    """... "Read operations do see the effects of previous write operations on the same transaction"."""
    put(database, a=b"1", b=b"1", c=b"1")
    transaction = database.create_transaction()
    transaction.set(b"d", b"2")
    transaction.clear(b"a")
    transaction.clear_range(b"b", b"c")
    assert transaction.get(b"a").value is None
    assert transaction.get(b"d").value == b"2"
    assert [row.key for row in transaction.get_range(b"a", b"z")] == [b"c", b"d"]
    assert [row.key for row in transaction.get_range(b"a", b"z", reverse=True)] == [b"d", b"c"]


def read_key(transaction: Transaction) -> None:
    transaction.get(b"k").wait()


def read_range(transaction: Transaction) -> None:
    list(transaction.get_range(b"a", b"z"))


def read_snapshot(transaction: Transaction) -> None:
    transaction.snapshot.get(b"k").wait()
    list(transaction.snapshot.get_range(b"a", b"z"))


def declare_key(transaction: Transaction) -> None:
    transaction.get_read_version().wait()
    transaction.add_read_conflict_key(b"k")


def declare_range(transaction: Transaction) -> None:
    transaction.get_read_version().wait()
    transaction.add_read_conflict_range(b"a", b"z")


def write_only(transaction: Transaction) -> None:
    transaction.get_read_version().wait()


def declare_after_writing(transaction: Transaction) -> None:
    transaction.get_read_version().wait()
    transaction.set(b"k", b"own")
    transaction.add_read_conflict_key(b"k")


@pytest.mark.parametrize(
    ("reads", "conflicts"),
    [
        (read_key, True),
        (read_range, True),
        (read_snapshot, False),
        (declare_key, True),
        (declare_range, True),
        (write_only, False),
        (declare_after_writing, False),
    ],
)
def test_what_was_read_must_not_have_been_written(database: Database, reads: Any, conflicts: bool) -> None:
    """... "strictly serializable reads" conflict, snapshot reads do not, and "adds a key to the transaction's read
    conflict ranges as if you had read the key"; what it has written itself, it does not depend on.
    """
    transaction = database.create_transaction()
    reads(transaction)
    put(database, k=b"other")
    transaction.set(b"new", b"1")
    assert code(transaction.commit()) == (1020 if conflicts else 0)


def test_a_cleared_range_and_a_declared_write_conflict_with_reads(database: Database) -> None:
    """... "as if you had written the key"; a range that is cleared is written, whether something was there or not."""
    for write in ("clear", "declare"):
        reading, writing = database.create_transaction(), database.create_transaction()
        reading.get(b"k").wait()
        if write == "clear":
            writing.clear_range(b"a", b"z")
        else:
            writing.add_write_conflict_key(b"k")
        writing.commit().wait()
        reading.set(b"x", b"1")
        assert code(reading.commit()) == 1020


def test_reading_alone_never_conflicts(database: Database) -> None:
    """... "Read-only transactions do not modify the database when committed"."""
    transaction = database.create_transaction()
    transaction.get(b"k").wait()
    put(database, k=b"1")
    assert code(transaction.commit()) == 0
    with pytest.raises(FDBError, match="2021"):
        transaction.get_committed_version()


def test_the_committed_version_grows(database: Database) -> None:
    versions: list[int] = []
    for _ in range(3):
        transaction = database.create_transaction()
        transaction.set(b"k", b"1")
        transaction.commit().wait()
        versions.append(transaction.get_committed_version())
    assert versions == sorted(set(versions))
    assert database.create_transaction().get_read_version().wait() >= versions[-1]


def test_after_five_seconds_it_is_too_old(database: Database) -> None:
    """Documented: "subsequent reads ... will usually raise a transaction_too_old", and so do commits."""
    put(database, k=b"1")
    reading, writing = database.create_transaction(), database.create_transaction()
    for transaction in (reading, writing):
        transaction.get(b"k").wait()
    database.cluster.grow_older(6)
    assert code(reading.get(b"other")) == 1007
    with pytest.raises(FDBError, match="1007"):
        list(reading.get_range(b"a", b"z"))
    writing.set(b"k", b"2")
    assert code(writing.commit()) == 1007
    put(database, k=b"3")
    assert database.create_transaction().get(b"k").value == b"3", "what is old is forgotten, what is newest never"


def test_on_error_waits_and_resets_what_can_be_tried_again(database: Database) -> None:
    """... "on_error": "if the error is retryable, the transaction will be reset", else the error is raised again."""
    put(database, k=b"1")
    transaction = database.create_transaction()
    transaction.set(b"k", b"2")
    transaction.on_error(FDBError(1020)).wait()
    assert transaction.get(b"k").value == b"1"
    for wrong in (1025, 1031, 1500, 2101):
        transaction = database.create_transaction()
        assert code(transaction.on_error(wrong)) == wrong
        assert code(transaction.get(b"k")) == 1025, "puts a transaction into an error state, since API version 610"
        assert code(transaction.on_error(1020)) == 1025


def test_a_transaction_is_not_used_during_its_commit(database: Database) -> None:
    """... "both the commit and the operation will raise a used_during_commit error"."""
    database.cluster.hang()
    transaction = database.create_transaction()
    transaction.set(b"k", b"1")
    transaction.commit()
    assert code(transaction.get(b"k")) == 2017
    database.cluster.answer()


def test_a_transaction_is_not_used_after_its_commit_either(database: Database) -> None:
    """... "Transactions no longer reset after a successful commit", since API version 410."""
    transaction = database.create_transaction()
    transaction.set(b"k", b"1")
    transaction.commit().wait()
    assert code(transaction.get(b"k")) == 2017
    transaction.reset()
    assert transaction.get(b"k").value == b"1"


def test_a_cancelled_transaction(database: Database) -> None:
    """... "All pending or future uses of the transaction will raise" transaction_cancelled."""
    database.cluster.hang()
    transaction = database.create_transaction()
    pending = transaction.get(b"k")
    transaction.cancel()
    assert code(pending) == 1025
    assert code(transaction.get(b"k")) == 1025
    transaction.reset()
    database.cluster.answer()
    assert transaction.get(b"k").value is None


def test_a_timeout_ends_the_commit_which_may_happen_all_the_same(database: Database) -> None:
    """... of the option `timeout`, and of automatic idempotency: "may have already succeeded or may succeed"."""
    database.cluster.latency = 1.0
    transaction = database.create_transaction()
    transaction.options.set_timeout(10)
    transaction.set(b"k", b"1")
    assert code(transaction.commit()) == 1031
    database.cluster.latency = 0.0
    give_up = time.monotonic() + PATIENCE
    while database.create_transaction().get(b"k").value is None:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert database.create_transaction().get(b"k").value == b"1"


# Limits. "Known limitations".


def test_keys_values_and_transactions_have_limits(database: Database) -> None:
    """... "Keys cannot exceed 10,000 bytes in size. Values cannot exceed 100,000 bytes in size"; 10,000,000 bytes."""
    for key, value, wrong in (
        (b"k" * 10_000, b"v" * 100_000, 0),
        (b"k" * 10_001, b"", 2102),
        (b"k", b"v" * 100_001, 2103),
        (b"\xff", b"", 2004),
    ):
        transaction = database.create_transaction()
        transaction.set(key, value)
        assert code(transaction.commit()) == wrong
    assert database.create_transaction().get(b"k" * 10_001).value is None
    transaction = database.create_transaction()
    for number in range(99):
        transaction.set(b"%d" % number, bytes(100_000))
    assert 9_900_000 < transaction.get_approximate_size().wait() < 9_920_000
    assert code(transaction.commit()) == 0
    transaction = database.create_transaction()
    for number in range(100):
        transaction.set(b"%d" % number, bytes(100_000))
    assert code(transaction.commit()) == 2101


def test_conflict_ranges_count(database: Database) -> None:
    """`size_limit`: "all keys and values written or mutated, all key ranges cleared, and all read and write conflict
    ranges".
    """
    for act in ("set", "clear_range", "add_read_conflict_range"):
        transaction = database.create_transaction()
        transaction.options.set_size_limit(1000)
        transaction.set(b"k", b"v")
        getattr(transaction, act)(b"a" * 500, b"b" * 500)
        assert code(transaction.commit()) == 2101
    with pytest.raises(FDBError, match="2006"):
        database.create_transaction().options.set_size_limit(10_000_001)


def test_a_range_the_wrong_way_round(database: Database) -> None:
    """Documented: "inverted_range: Range begin key larger than end key"."""
    transaction = database.create_transaction()
    transaction.clear_range(b"b", b"a")
    transaction.set(b"k", b"1")
    assert code(transaction.commit()) == 2005
    with pytest.raises(FDBError, match="2005"):
        list(database.create_transaction().get_range(b"b", b"a"))
