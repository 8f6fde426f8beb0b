"""The client: transactions, with what they have read and what they will write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import random
from threading import Lock
from typing import Any

from tests.drivers.fdb_double.cluster import Cluster, Commit, Mutation, Range
from tests.drivers.fdb_double.errors import RETRYABLE, FDBError
from tests.drivers.fdb_double.network import Future, Value, failed, network, pass_on_error
from tests.drivers.fdb_double.options import Limits, TransactionOptions
from tests.drivers.fdb_double.own_writes import overlaid, overlaid_rows
from tests.drivers.fdb_double.ranges import FDBRange, KeySelector, KeyValue, StreamingMode, TransactionRead
from tests.drivers.fdb_double.sending import arrive, make_sure, with_conflict

__all__ = ["Database", "Transaction"]

KEY_BYTES_MAX = 10_000
VALUE_BYTES_MAX = 100_000
BACKOFF_SECONDS = 0.002
MUTATION_BYTES, RANGE_BYTES = 48, 32
"""What the client's own structures count for in the size of a transaction."""


class Database:
    """A connection. All handles of one cluster file are one, as in the binding."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.watches = 0
        self.max_watches = 10_000

    def create_transaction(self) -> Transaction:
        return Transaction(self)

    def watch_ended(self, _: Future) -> None:
        """One less of those that have not yet reported."""
        self.watches -= 1


class Transaction:
    """Reads of one version, and writes that are made at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cluster = database.cluster
        self.limits = Limits()
        self.options = TransactionOptions(self)
        self._backoff = BACKOFF_SECONDS
        self._versioning = Lock()
        """Between whoever reads and the network thread, which brings the version."""
        self._clear()

    def _clear(self) -> None:
        self.limits.reset()
        self._version: int | None = None
        self._waiting: list[Callable[[int], object]] | None = None
        self._reading: list[Future] = []
        self._mutations: list[Mutation] = []
        self._read_conflicts: list[Range] = []
        self._write_conflicts: list[Range] = []
        self._written: set[bytes] = set()
        self._unset: list[tuple[bytes, bytes | None, Future]] = []
        """Watches, until the commit."""
        self._broken = 0
        """What every further use answers."""
        self._wrong = 0
        """What the commit answers, for a call that had nothing to answer itself."""
        self._committing = False
        """Also when it has ended: only `on_error` or `reset` give the transaction another life."""
        self._committed: tuple[int, bytes] | None = None

    @property
    def snapshot(self) -> TransactionRead:
        # Made each time: a transaction that nobody has is to go at once, as in the binding.
        return TransactionRead(self, True)

    # Reads.

    def get(self, key: bytes) -> Value:
        return self.read_key(key, False)

    def get_key(self, selector: KeySelector) -> Value:
        return self.read_selector(selector)

    def get_range(
        self,
        begin: bytes | KeySelector,
        end: bytes | KeySelector,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = StreamingMode.iterator,
    ) -> FDBRange:
        return TransactionRead(self, False).get_range(begin, end, limit, reverse, streaming_mode)

    def _get_range(
        self, begin: KeySelector, end: KeySelector, limit: int, streaming_mode: int, iteration: int, reverse: bool
    ) -> Future:
        return self.read_range(begin, end, limit, streaming_mode, iteration, reverse, False)

    def get_read_version(self) -> Future:
        return self._read("read_version", Future(), lambda version, future: future.set(version))

    def read_key(self, key: bytes, is_snapshot: bool) -> Value:
        future = Value()
        if len(key) > KEY_BYTES_MAX:
            future.set(None)
            return future
        if not is_snapshot:
            self.add_read_conflict_key(key)

        def answer(version: int, _: Future) -> None:
            future.set(overlaid(self._mutations, version, key, self._cluster.value(key, version)))

        self._read("get", future, answer)
        return future

    def read_selector(self, selector: KeySelector) -> Value:
        future = Value()
        self._read(
            "get", future, lambda _, f: f.set(self._cluster.key_from(selector.key, selector.or_equal, selector.offset))
        )
        return future

    def read_range(
        self,
        begin: KeySelector,
        end: KeySelector,
        limit: int,
        mode: int,
        iteration: int,
        reverse: bool,
        is_snapshot: bool,
    ) -> Future:
        assert iteration >= 1, "pages are numbered from 1"
        assert 0 <= limit < 2**31, "an int of C"
        low, high = self._edge(begin), self._edge(end)
        if low > high:
            return failed(2005)
        if not is_snapshot and low < high:
            # Of what is behind the last row of a page it says nothing. The rest is a page of its own.
            self._read_conflicts.append((low, high))

        def answer(version: int, future: Future) -> None:
            if limit == 0 and mode == StreamingMode.exact:
                raise FDBError(2012)
            rows: list[KeyValue] = []
            size = 0
            for key, value in overlaid_rows(
                self._mutations, version, self._cluster.rows(low, high, version, reverse), low, high, reverse
            ):
                full = mode != StreamingMode.exact and size >= self._cluster.page_bytes
                if full or (limit and len(rows) == limit):
                    future.set((rows, len(rows), 1))
                    return
                rows.append(KeyValue(key, value))
                size += len(key) + len(value)
            future.set((rows, len(rows), 0))

        return self._read("get_range", Future(), answer)

    def _read(self, moment: Any, future: Future, answer: Callable[[int, Future], object]) -> Future:
        if self._refused(future):
            return future
        self._reading.append(future)

        def run(version: int) -> None:
            fault = self._cluster.faults.take(moment)
            if fault is not None and fault.silent:
                return
            try:
                if fault is not None:
                    raise FDBError(fault.code)
                answer(version, future)
            except FDBError as error:
                future.fail(error.code)

        with self._versioning:
            version, waiting = self._version, self._waiting
            if version is None:
                if waiting is None:
                    fresh: list[Callable[[int], object]] = [run]
                    self._waiting = fresh
                    self._cluster.request(lambda: self._got_version(fresh))
                else:
                    waiting.append(run)
        if version is not None:
            self._cluster.request(lambda: run(version))
        return future

    def _got_version(self, waiting: list[Callable[[int], object]]) -> None:
        version = self._cluster.read_version()
        with self._versioning:
            # Whoever reads later does not wait with these any more.
            if self._waiting is waiting:
                self._version, self._waiting = version, None
        for run in waiting:
            run(version)

    def _edge(self, selector: KeySelector) -> bytes:
        assert selector.offset == 1, "ranges here begin and end at the first key from somewhere on"
        return selector.key + b"\x00" if selector.or_equal else selector.key

    # Writes.

    def set(self, key: bytes, value: bytes) -> None:
        if self._may_write(key, value):
            self._mutations.append(("set", key, value))
            self._write_conflicts.append((key, key + b"\x00"))
            self._written.add(key)

    def clear(self, key: bytes) -> None:
        if len(key) <= KEY_BYTES_MAX and self._may_write(key, b""):
            self._mutations.append(("clear", key, key + b"\x00"))
            self._write_conflicts.append((key, key + b"\x00"))
            self._written.add(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        if begin > end:
            self._wrong = self._wrong or 2005
        elif begin < end and self._may_write(begin[:KEY_BYTES_MAX], b""):
            self._mutations.append(("clear", begin, end))
            self._write_conflicts.append((begin, end))

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        # The four bytes of the offset count as part of the key here.
        if self._may_write(key, value):
            place = int.from_bytes(key[-4:], "little")
            if len(key) < 14 or place + 14 > len(key):
                self._wrong = self._wrong or 2000
                return
            self._mutations.append(("stamped", key, value))

    def add(self, key: bytes, param: bytes) -> None:
        # It conflicts with those who read the key, and with nobody who does the same.
        if self._may_write(key, param):
            self._mutations.append(("add", key, param))
            self._write_conflicts.append((key, key + b"\x00"))

    def add_read_conflict_key(self, key: bytes) -> None:
        self.add_read_conflict_range(key, key + b"\x00")

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        # What it has written itself does not depend on what others write there.
        if not (begin in self._written and end == begin + b"\x00"):
            self._read_conflicts.append((begin, end))

    def add_write_conflict_key(self, key: bytes) -> None:
        self._write_conflicts.append((key, key + b"\x00"))

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._write_conflicts.append((begin, end))

    def _may_write(self, key: bytes, value: bytes) -> bool:
        if self._committing:
            self._broken = 2017
            return False
        for wrong, code in (
            (key >= b"\xff", 2004),
            (len(key) > KEY_BYTES_MAX, 2102),
            (len(value) > VALUE_BYTES_MAX, 2103),
        ):
            if wrong:
                self._wrong = self._wrong or code
                return False
        return True

    # Watches.

    def watch(self, key: bytes) -> Future:
        future = Future()
        if self.limits.no_read_your_writes:
            return failed(1034)
        if self._database.watches >= self._database.max_watches:
            return failed(1032)
        self._database.watches += 1
        # Not with the transaction: the watch outlives it.
        future.on_ready(self._database.watch_ended)
        # It reads the value that it compares with, and so conflicts.
        self.add_read_conflict_key(key)

        def answer(version: int, read: Future) -> None:
            self._unset.append(
                (key, overlaid(self._mutations, version, key, self._cluster.value(key, version)), future)
            )
            read.set()

        reading = self._read("watch", Future(), answer)
        reading.on_ready(lambda read: pass_on_error(read, future))
        return future

    # The end.

    def get_approximate_size(self) -> Future:
        future = Future()
        future.set(self._size())
        return future

    def _size(self) -> int:
        size = sum(MUTATION_BYTES + len(first) + len(second) for _, first, second in self._mutations)
        ranges = [*self._read_conflicts, *self._write_conflicts]
        return size + sum(RANGE_BYTES + len(begin) + len(end) for begin, end in ranges)

    def commit(self) -> Future:
        future = Future()
        if self._refused(future):
            return future
        self._committing = True
        # Reads that are still on their way come first: the network thread does one thing after the other.
        if not self._mutations and not self._write_conflicts and not self._wrong:
            self._after_reads(lambda: self._committed_nothing(future))
        elif self._wrong or self._size() > self.limits.size:
            self._fail(future, self._wrong or 2101)
        else:
            sent = (list(self._read_conflicts), list(self._write_conflicts), list(self._mutations))
            if self._version is not None:
                version = self._version
                self._cluster.request(lambda: self._send(future, Commit(version, *sent)))
            else:
                self._cluster.request(lambda: self._send_at_newest(future, *sent))
        if self.limits.milliseconds:
            network.post(lambda: self._fail(future, 1031), self.limits.milliseconds / 1000)
        return future

    def _after_reads(self, then: Callable[[], object]) -> None:
        waiting = [read for read in self._reading if not read.is_ready()]
        if not waiting:
            network.post(then)
        else:
            waiting[-1].on_ready(lambda _: network.post(lambda: self._after_reads(then)))

    def _committed_nothing(self, future: Future) -> None:
        for key, value, watch in self._unset:
            self._cluster.request(partial(self._cluster.watch, key, value, watch))
        self._unset = []
        future.set()

    def _send_at_newest(
        self, future: Future, reads: list[Range], writes: list[Range], mutations: list[Mutation]
    ) -> None:
        """In the network thread: what has read nothing takes its version now, even if it is cancelled meanwhile."""
        fault = self._cluster.faults.take("read_version")
        if fault is None:
            self._send(future, Commit(self._cluster.read_version(), reads, writes, mutations))
            return
        if fault.late:
            self._cluster.faults.late.append(
                lambda: arrive(
                    self._cluster, with_conflict(Commit(self._cluster.read_version(), reads, writes, mutations))
                )
            )
        if not fault.silent:
            self._fail(future, fault.code)

    def _send(self, future: Future, commit: Commit) -> None:
        """In the network thread: the commit is with the cluster."""
        fault = self._cluster.faults.take("commit")
        commit = with_conflict(commit)
        if fault is not None and fault.late:
            self._cluster.faults.late.append(partial(arrive, self._cluster, commit))
        if fault is not None and not fault.applied:
            if fault.code == 1021:
                make_sure(self._cluster, commit)
            if not fault.silent:
                self._fail(future, fault.code)
            return
        try:
            done = self._cluster.commit(commit)
        except FDBError as error:
            self._fail(future, error.code)
            return
        if fault is None:
            self._committed = done
            for key, value, watch in self._unset:
                self._cluster.watch(key, value, watch)
            self._unset = []
            future.set()
        elif self.limits.is_idempotent and fault.code == 1021:
            future.set()
        elif not fault.silent:
            self._fail(future, fault.code)

    def _fail(self, future: Future, code: int) -> None:
        for _, _, watch in self._unset:
            watch.fail(code)
        self._unset = []
        future.fail(code)

    def get_committed_version(self) -> int:
        if self._committed is None:
            raise FDBError(2021)
        return self._committed[0]

    def on_error(self, error: FDBError | int) -> Future:
        code = error.code if isinstance(error, FDBError) else error
        future = Future()
        fault = self._cluster.faults.take("on_error")
        if fault is not None and not fault.silent:
            future.fail(fault.code)
        elif self._broken:
            future.fail(self._broken)
        elif code not in RETRYABLE:
            self.cancel()
            future.fail(code)
        elif fault is None:
            pause = self._backoff * random()
            self._backoff = min(self._backoff * 2, 1.0)
            self.reset(keep_backoff=True)
            network.post(future.set, pause)
        return future

    def reset(self, *, keep_backoff: bool = False) -> None:
        self._end(1025)
        if not keep_backoff:
            self._backoff = BACKOFF_SECONDS
        self._clear()

    def cancel(self) -> None:
        """All that is under way ends with 1025. A commit that was sent may happen all the same."""
        self._end(1025)
        self._broken = 1025

    def _end(self, code: int) -> None:
        for future in [*self._reading, *(watch for _, _, watch in self._unset)]:
            if not future.is_ready():
                network.post(partial(future.fail, code))
        self._reading, self._unset = [], []

    def __del__(self) -> None:
        self._end(1025)

    def _refused(self, future: Future) -> bool:
        if self._committing:
            self._broken = 2017
        if self._broken:
            future.fail(self._broken)
        return bool(self._broken)
