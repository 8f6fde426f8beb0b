"""Reads and commits: which are made in the event loop, and which in the thread of their connection.

The way to a thread and back costs two wake-ups, 50 to 80 us on the machines that we know. A read that finds its rows in
memory takes less, and so does a commit on a fast disk: 20 to 200 us. Both are better made in the event loop. On a slow
disk, a commit takes milliseconds, in which everything else would stand still, so the way to the thread is worth it.
Which it is can only be measured.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from time import monotonic
from typing import Any

from workflow_drivers.sqlite._file import ConnectionThread, finished, is_busy, patiently
from workflow_drivers.sqlite._writing import GET, SCAN, SCAN_REVERSE, write
from workflow_sdk.driver import Batch
from workflow_sdk.errors import ConflictError

SHORT_ENOUGH = 8
"""How many in a row have to be short before the next one is made in the event loop."""
IS_POSSIBLE = sqlite3.threadsafety == 3
"""Whether this SQLite lets several threads use a connection, one after the other."""

READ_SECONDS = 0.0001
"""How long a read may hold up the event loop."""
HERE_ROWS_MAX = 64
"""A scan of more rows than this is made in the thread."""

COMMIT_SECONDS = 0.0005
"""As long as this, a commit may hold up the event loop: no longer than many a callback."""
HERE_MOST = 64
"""After so many in the event loop, one is made in the thread, where the log may be copied into the database."""
# What is few and small enough for the event loop: some 50 us of statements.
HERE_BATCHES_MAX = 4
HERE_WRITES_MAX = 32
HERE_BYTES_MAX = 64_000

# A group must not keep others waiting for long, nor SQLite spill many pages: these are some 10 to 50 ms of writing.
GROUP_BATCHES_MAX = 1024
GROUP_BYTES_MAX = 8_000_000


class Pace:
    """How long what one connection did took of late."""

    __slots__ = ("_here", "_most", "_seconds", "_short", "is_short")

    def __init__(self, seconds: float, *, possible: bool, most: float = inf) -> None:
        self._seconds = seconds if possible and IS_POSSIBLE else -inf
        """What takes no longer is short."""
        self._most = most
        """After so many in a row in the event loop, one goes to the thread."""
        self._short = 0
        """How many in a row were short."""
        self._here = 0
        """How many in a row were made in the event loop."""
        self.is_short = False
        """Whether the next one may be made in the event loop."""

    def note(self, seconds: float, *, here: bool) -> None:
        """Note how long something took, and whether it was done in the event loop."""
        self._here = self._here + 1 if here else 0
        self._short = self._short + 1 if seconds <= self._seconds else 0
        self.is_short = self._short >= SHORT_ENOUGH and self._here < self._most


class Reader:
    """Reads through one connection. Each sees the state of the last commit."""

    def __init__(self, thread: ConnectionThread) -> None:
        self._session = thread.session
        self.thread = thread
        self._pace = Pace(READ_SECONDS, possible=self._session.settings.inline)
        self._lock = Lock()
        """Held by who uses the connection. The event loop never waits for it."""
        self._data_version: object = None

    async def get(self, key: bytes) -> bytes | None:
        """The value of `key`."""
        rows = await self._read(GET, (key,), (key,))
        return rows[0][0] if rows else None

    async def scan(self, begin: bytes, end: bytes, limit: int | None, reverse: bool) -> list[tuple[bytes, bytes]]:
        """The rows from `begin` up to `end`, at most `limit` of them."""
        most = -1 if limit is None else max(limit, 0)  # to SQLite, a negative limit is none
        few = most if 0 <= most <= HERE_ROWS_MAX else HERE_ROWS_MAX + 1
        return await self._read(SCAN_REVERSE if reverse else SCAN, (begin, end, most), (begin, end, few))

    async def _read(self, sql: str, parameters: tuple[object, ...], few: tuple[object, ...]) -> list[Any]:
        """The rows of a statement; `few` are its parameters with which it finds at most one row too many to be here."""
        if self._pace.is_short and self._lock.acquire(blocking=False):
            try:
                rows = self._rows(sql, few, here=True)
            except Exception:  # noqa: BLE001  # it is tried again in the thread, which has the time to wait
                rows = None
            finally:
                self._lock.release()
            if rows is not None and len(rows) <= HERE_ROWS_MAX:
                await asyncio.sleep(0)
                return rows
        return await self.thread.call(self._in_thread, sql, parameters)

    def _in_thread(self, sql: str, parameters: tuple[object, ...]) -> list[Any]:
        with self._lock:
            return self._session.patiently("read", lambda: self._rows(sql, parameters, here=False))

    def _rows(self, sql: str, parameters: tuple[object, ...], *, here: bool) -> list[Any]:
        began = monotonic()
        try:
            rows = self._session.read(sql, parameters)
        finally:
            self._pace.note(monotonic() - began, here=here)
        for row in rows:  # in a damaged file they may be of anything
            if type(row[0]) is not bytes or type(row[-1]) is not bytes:
                raise self._session.failure("read", TypeError("it holds a row that is not of bytes"))
        return rows

    def peek(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        """In the thread: the values of `keys`, or nothing if no process has committed since the last call."""
        with self._lock:
            version = self._session.patiently("read", lambda: self._session.read("PRAGMA data_version", ()))
        if version == self._data_version:
            return []
        # A commit between the two statements is seen by the second one. It also changes the version, so the next call
        # looks again, which is one time too many but never too late.
        found = [(key, self._in_thread(GET, (key,))) for key in keys]
        self._data_version = version
        return [(key, rows[0][0] if rows else None) for key, rows in found]


@dataclass(slots=True, eq=False)
class _Commit:
    """A batch, and the future of the caller who waits for it."""

    batch: Batch
    size: int
    future: asyncio.Future[None]
    since: float = field(default_factory=monotonic)


class CommitQueue:
    """Group commit: batches that wait while a transaction is being written go together into the next.

    A commit is waiting, then taken, then reported. Waiting commits are in a queue that the event loop fills and the
    writer's thread empties. The thread takes as late as it can, when it already holds the file's lock for writing: all
    that have come until then share the one `fsync`, and a commit that is cancelled before can still be withdrawn. It
    goes on by itself until the queue is empty, so that there is no turn of the event loop between two transactions,
    and no task.

    What is small and expected to be short is committed in the event loop, by the first who waits, once everything else
    that is ready has had its turn: what comes of that joins it. Where many come at once, they go to the thread, which
    writes while the event loop goes on.
    """

    def __init__(self, thread: ConnectionThread, written: Callable[[Sequence[Batch]], None]) -> None:
        self._session = thread.session
        self._thread = thread
        self._written = written
        self._loop = asyncio.get_running_loop()
        self.transactions = 0
        """How many were committed."""
        self._lock = Lock()
        # Both are guarded by the lock. While `running`, somebody will look at the queue again: the thread by itself, or
        # the event loop in its next turn.
        self._waiting: deque[_Commit] = deque()
        self._running = False
        self._pace = Pace(COMMIT_SECONDS, possible=self._session.settings.inline, most=HERE_MOST)
        self._leads = False
        """Whether the first commit in the queue will look at it in the next turn of the event loop."""

    async def commit(self, batch: Batch, size: int) -> None:
        """Commit the batch, or raise why not. If cancelled, this still returns only when that is decided."""
        commit = _Commit(batch, size, self._loop.create_future())
        with self._lock:
            self._waiting.append(commit)
            is_first, self._running = not self._running, True
        if is_first:
            self._leads = self._pace.is_short
            if not self._leads:
                self._thread.post(self._run)
        try:
            if is_first and self._leads:
                await asyncio.sleep(0)  # whoever else is ready to commit joins meanwhile
                # No longer, if one that joined was cancelled, or the queue closed: then the thread has it all.
                if self._leads:
                    self._run_here()
            await commit.future
        except asyncio.CancelledError:
            if is_first:
                self.hand_over()  # those who have joined must not wait for one that is gone
            if not self._withdraw(commit):
                # The batch is being written. If the caller went on now, it could not know what it would read next. The
                # wait is short, since the lock of the file is already held.
                if commit.future.cancelled():
                    commit.future = self._loop.create_future()
                with suppress(Exception):  # whatever came of it, the caller was cancelled
                    await finished(commit.future)
            raise

    def hand_over(self) -> None:
        """Have the thread commit what waits for the event loop, before anything that it is given after this."""
        if self._leads:
            self._leads = False
            self._thread.post(self._run)

    def _run_here(self) -> None:
        """Commit what waits, in the event loop; if it is too much for that, in the thread."""
        # The thread looks at the queue only after `hand_over`, so the lock is not needed.
        commits = list(self._waiting)
        writes = size = 0
        for commit in commits:
            writes += len(commit.batch.writes)
            size += commit.size
        if len(commits) > HERE_BATCHES_MAX or writes > HERE_WRITES_MAX or size > HERE_BYTES_MAX:
            self.hand_over()
            return
        began = monotonic()
        try:
            self._session.begin(copies=False)
        except Exception:  # noqa: BLE001  # another process is in the way, or worse: the thread has the time to find out
            self.hand_over()
            return
        self._leads = False
        self._waiting.clear()
        errors = self._write(commits)
        self._pace.note(monotonic() - began, here=True)
        self._running = False  # nothing can have come, since callers are in the thread that we are in
        self._report(commits, errors)

    def _withdraw(self, commit: _Commit) -> bool:
        with self._lock:
            if commit in self._waiting:
                self._waiting.remove(commit)
                return True
        return False

    def _report(self, commits: Sequence[_Commit], errors: Sequence[Exception | None]) -> None:
        """In the event loop: tell those who wait."""
        batches: list[Batch] = []
        for commit, error in zip(commits, errors, strict=True):
            if commit.future.cancelled():  # its caller will wait for another one, if it does not find it here
                commit.future = self._loop.create_future()
            if error is None:
                batches.append(commit.batch)
                commit.future.set_result(None)
            else:
                is_conflict = isinstance(error, ConflictError)
                commit.future.set_exception(error if is_conflict else self._session.failure("write", error))
                commit.future.exception()  # asyncio would log one that nobody asks for, since the caller was cancelled
        self._written(batches)

    def _write(self, commits: Sequence[_Commit]) -> Sequence[Exception | None]:
        """Write what was taken, in the transaction that was begun; why not, for each."""
        try:
            errors = write(self._session.cursor, [commit.batch for commit in commits])
        except Exception as error:  # noqa: BLE001  # whatever it is, those who wait must hear of it
            return [error] * len(commits)
        self.transactions += 1
        return errors

    # What follows runs in the thread.

    def _run(self) -> None:
        more = self._more()
        while more:
            commits, errors = self._group()
            more = self._more()
            # Last of all: it wakes the event loop, which would then compete with us for the interpreter.
            self._loop.call_soon_threadsafe(self._report, commits, errors)

    def _more(self) -> bool:
        with self._lock:
            self._running = bool(self._waiting)
            return self._running

    def _group(self) -> tuple[Sequence[_Commit], Sequence[Exception | None]]:
        began = monotonic()
        try:
            patiently(self._session.begin, self._in_time)
        except Exception as error:  # noqa: BLE001  # as above
            refused = self._refused(error)
            return refused, [error] * len(refused)
        commits = self._take()  # none, if all have been withdrawn by now; then nothing is written
        errors = self._write(commits)
        # Many at once are worth the way to the thread, however short they took: there will be as many again.
        self._pace.note(monotonic() - began if len(commits) <= HERE_BATCHES_MAX else inf, here=False)
        return commits, errors

    def _take(self) -> list[_Commit]:
        taken: list[_Commit] = []
        size = 0
        with self._lock:
            while self._waiting and len(taken) < GROUP_BATCHES_MAX:
                size += self._waiting[0].size
                if taken and size > GROUP_BYTES_MAX:
                    break
                taken.append(self._waiting.popleft())
        return taken

    def _refused(self, error: Exception) -> list[_Commit]:
        """Take those whom the error is for: if the file is busy, those whose time is up; in any other case, all."""
        refused: list[_Commit] = []
        with self._lock:
            while self._waiting and (not is_busy(error) or self._is_late(self._waiting[0])):
                refused.append(self._waiting.popleft())
        return refused

    def _in_time(self) -> bool:
        """Whether there is time left for the commit that waits longest."""
        with self._lock:
            return bool(self._waiting) and not self._is_late(self._waiting[0])

    def _is_late(self, commit: _Commit) -> bool:
        return monotonic() - commit.since >= self._session.settings.busy_timeout
