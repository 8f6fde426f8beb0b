"""The double, continued: ranges, versionstamps, watches, and errors on demand."""

# pyright: reportPrivateUsage=false
# `_get_range` is private in the binding too.

from __future__ import annotations

import threading
import time

import pytest

from tests.drivers.fdb_double import Database, Double, FDBError, Future, KeySelector, StreamingMode, network
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


# Ranges.


def test_ranges_come_in_pages(database: Database) -> None:
    """`get_range`: limit, reverse, and a `more` that tells of what is left; "exact" gives a limit in one page."""
    put(database, **{f"{number:02}": bytes(10) for number in range(50)})
    database.cluster.page_bytes = 100
    for limit in (0, 1, 8, 9, 50, 60):
        for reverse in (False, True):
            transaction = database.create_transaction()
            keys = [row.key for row in transaction.get_range(b"", b"\xff", limit=limit, reverse=reverse)]
            expected = [b"%02d" % number for number in range(50)]
            assert keys == (expected[::-1] if reverse else expected)[: limit or None]
    first, last = KeySelector.first_greater_or_equal(b""), KeySelector.first_greater_or_equal(b"\xff")
    transaction = database.create_transaction()
    _, count, more = transaction._get_range(first, last, 0, StreamingMode.want_all, 1, False).wait()
    assert (0 < count < 50, bool(more)) == (True, True)
    _, count, _ = transaction._get_range(first, last, 40, StreamingMode.exact, 1, False).wait()
    assert count == 40


@pytest.mark.parametrize(
    ("selector", "key"),
    [
        (KeySelector.first_greater_or_equal(b"b"), b"b"),
        (KeySelector.first_greater_than(b"b"), b"d"),
        (KeySelector.last_less_than(b"b"), b"a"),
        (KeySelector.last_less_or_equal(b"b"), b"b"),
        (KeySelector.first_greater_or_equal(b"c"), b"d"),
        (KeySelector.last_less_than(b"a"), b""),
        (KeySelector.first_greater_than(b"d"), b"\xff"),
    ],
)
def test_key_selectors(database: Database, selector: KeySelector, key: bytes) -> None:
    """Documented: "Developer guide: key selectors"."""
    put(database, a=b"1", b=b"1", d=b"1")
    assert database.create_transaction().get_key(selector).value == key


# Versionstamps.


def stamped(prefix: bytes, number: int = 0) -> bytes:
    return prefix + bytes(10) + number.to_bytes(2, "big") + len(prefix).to_bytes(4, "little")


def test_versionstamped_keys_sort_by_their_commits(database: Database) -> None:
    """Documented: "A versionstamp is a 10 byte, unique, ... increasing value for each committed transaction. The
    first 8 bytes are the committed version"; the index is four bytes, little-endian, trimmed off.
    """
    version = 0
    for turn in range(3):
        transaction = database.create_transaction()
        for number in range(2):
            transaction.set_versionstamped_key(stamped(b"q", number), b"%d.%d" % (turn, number))
        transaction.commit().wait()
        version = transaction.get_committed_version()
    rows = list(database.create_transaction().get_range(b"q", b"r"))
    assert [row.value for row in rows] == [b"0.0", b"0.1", b"1.0", b"1.1", b"2.0", b"2.1"]
    assert rows[-1].key == b"q" + version.to_bytes(8, "big") + bytes(2) + b"\x00\x01"


def test_a_versionstamp_needs_its_place(database: Database) -> None:
    """Documented: "If the index plus 10 bytes points past the end of the key", it is an error."""
    transaction = database.create_transaction()
    transaction.set_versionstamped_key(b"q" + bytes(10) + (2).to_bytes(4, "little"), b"v")
    assert code(transaction.commit()) == 2000


def test_versionstamped_keys_cannot_be_read_before_the_commit(database: Database) -> None:
    """Documented: "an attempt to do so will result in an accessed_unreadable error"."""
    transaction = database.create_transaction()
    transaction.set_versionstamped_key(stamped(b"q"), b"v")
    with pytest.raises(FDBError, match="1036"):
        list(transaction.get_range(b"q", b"r"))
    assert code(transaction.get(b"q" + b"\xff" * 10 + b"\x00\x00")) == 1036
    assert transaction.get(b"other").value is None


def test_versionstamped_keys_are_writes(database: Database) -> None:
    reading = database.create_transaction()
    list(reading.get_range(b"q", b"r"))
    writing = database.create_transaction()
    writing.set_versionstamped_key(stamped(b"q"), b"v")
    writing.commit().wait()
    reading.set(b"k", b"1")
    assert code(reading.commit()) == 1020


# Watches.


def watched(database: Database, key: bytes = b"k") -> Future:
    transaction = database.create_transaction()
    future = transaction.watch(key)
    transaction.commit().wait()
    settle()
    return future


def test_a_watch_reports_a_change(database: Database) -> None:
    """Documented: "A watch will report a change in relation to the key's value as readable by that transaction"."""
    future = watched(database)
    put(database, other=b"1")
    settle()
    assert not future.is_ready()
    put(database, k=b"1")
    assert code(future) == 0


def test_a_watch_reports_what_changed_before_it_was_set(database: Database) -> None:
    transaction = database.create_transaction()
    assert transaction.get(b"k").value is None
    put(database, k=b"1")
    future = transaction.watch(b"k")
    settle()
    assert not future.is_ready(), "until the transaction that created it has been committed, it will not report"
    transaction.commit().wait()
    assert code(future) == 0


def test_a_watch_compares_values(database: Database) -> None:
    """Documented: "If the value changes and then changes back", it "might not report the change"."""
    put(database, k=b"1")
    future = watched(database)
    put(database, k=b"1")
    settle()
    assert not future.is_ready()


def test_watches_are_limited(database: Database) -> None:
    """Documented: "no more than 10,000 watches"; cancelled ones don't count."""
    database.max_watches = 2
    first, _second = watched(database), watched(database)
    assert code(database.create_transaction().watch(b"k")) == 1032
    first.cancel()
    settle()
    third = watched(database)
    assert not third.is_ready()


def test_watches_need_their_transaction(database: Database) -> None:
    """Documented: "If an uncommitted transaction is reset or destroyed, then any watches it created will be set with"
    the error transaction_cancelled; one that fails sets its watches with its error; none without read-your-writes.
    """
    transaction = database.create_transaction()
    future = transaction.watch(b"k")
    settle()
    del transaction
    assert code(future) == 1025
    transaction = database.create_transaction()
    future = transaction.watch(b"k")
    transaction.set(b"x", b"1")
    put(database, k=b"1")
    assert code(transaction.commit()) == 1020, "a watch has read its key"
    assert code(future) == 1020
    transaction = database.create_transaction()
    transaction.options.set_read_your_writes_disable()
    assert code(transaction.watch(b"k")) == 1034


# Errors on demand.


def test_errors_by_number_and_moment(database: Database) -> None:
    faults = database.cluster.faults
    faults.add("get", 1009, skip=1, times=2)
    transaction = database.create_transaction()
    assert [code(transaction.get(b"k")) for _ in range(4)] == [0, 1009, 1009, 0]
    assert (faults.left, len(faults.happened)) == (0, 2)


@pytest.mark.parametrize("applied", [False, True])
def test_an_unknown_result(database: Database, applied: bool) -> None:
    """Documented: "a client may be unable to determine whether a transaction succeeded"."""
    database.cluster.faults.add("commit", 1021, applied=applied)
    transaction = database.create_transaction()
    transaction.set(b"k", b"1")
    assert code(transaction.commit()) == 1021
    assert database.create_transaction().get(b"k").value == (b"1" if applied else None)


def test_a_late_commit_conflicts_as_any(database: Database) -> None:
    """Documented: "the commit may have occurred or may occur in the future"."""
    for other in (False, True):
        database.cluster.faults.add("commit", 1031, late=True)
        transaction = database.create_transaction()
        transaction.get(b"k").wait()
        transaction.set(b"late%d" % other, b"1")
        assert code(transaction.commit()) == 1031
        if other:
            put(database, k=b"1")
        database.cluster.arrive()
        settle()
        assert database.create_transaction().get(b"late%d" % other).value == (None if other else b"1")


def test_a_commit_goes_on_asking_for_its_version(database: Database) -> None:
    """`Transaction::commit` keeps what it has begun, and `ReadYourWritesTransaction::cancel` ends only the wait for it.
    `simulateTimeoutInFlightCommit` there says what follows: "this transaction could get a read version _after_"."""
    transaction = database.create_transaction()
    transaction.add_read_conflict_key(b"k")
    transaction.set(b"k", b"late")
    database.cluster.faults.add("read_version", late=True, silent=True)
    transaction.commit()
    settle()
    transaction.cancel()
    put(database, k=b"1")
    database.cluster.arrive()
    settle()
    assert database.create_transaction().get(b"k").value == b"late"


def test_silence_and_slowness(database: Database) -> None:
    database.cluster.faults.add("get", silent=True)
    transaction = database.create_transaction()
    never, soon = transaction.get(b"k"), transaction.get(b"k")
    soon.wait()
    assert not never.is_ready()
    database.cluster.latency = 0.02
    started = time.monotonic()
    database.create_transaction().get(b"k").wait()
    assert time.monotonic() - started >= 0.02
