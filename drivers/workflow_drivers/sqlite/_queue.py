"""Group commit: batches that wait while a transaction is being written go together into the next.

A commit is waiting, then taken, then reported. Waiting commits are in a queue that the event loop fills and the
writer's thread empties. The thread takes as late as it can, when it already holds the file's lock for writing: all that
have come until then share the one `fsync`, and a commit that is cancelled before can still be withdrawn. It goes on
by itself until the queue is empty, so that there is no turn of the event loop between two transactions, and no task.

What is small and expected to be short is committed in the event loop, by the first who waits, once everything else
that is ready has had its turn: what comes of that joins it. Where many come at once, they go to the thread, which
writes while the event loop goes on. See `_pace`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from threading import Lock
from time import monotonic

import anyio

from workflow_drivers.sqlite._file import is_busy, patiently
from workflow_drivers.sqlite._pace import Pace
from workflow_drivers.sqlite._thread import ConnectionThread
from workflow_drivers.sqlite._writing import WriteSession
from workflow_sdk.driver import Batch
from workflow_sdk.errors import StorageError

# A group must not keep others waiting for long, nor SQLite spill many pages: these are some 10 to 50 ms of writing.
GROUP_BATCHES_MAX = 1024
GROUP_BYTES_MAX = 8_000_000

SHORT_SECONDS = 0.0005
"""As long as this, a commit may hold up the event loop: no longer than many a callback."""
HERE_MOST = 64
"""After so many in the event loop, one is made in the thread, where the log may be copied into the database."""
# What is few and small enough for the event loop: some 50 us of statements.
HERE_BATCHES_MAX = 4
HERE_WRITES_MAX = 32
HERE_BYTES_MAX = 64_000


class _Commit:
    """A batch, and the future of the caller who waits for it."""

    __slots__ = ("batch", "error", "future", "reported", "since", "size")

    def __init__(self, batch: Batch, size: int, future: asyncio.Future[None]) -> None:
        self.batch = batch
        self.size = size
        self.since = monotonic()
        self.future = future
        self.error: Exception | None = None
        self.reported = False


class CommitQueue:
    """Commits through one connection, in the order in which they were asked for."""

    def __init__(
        self, session: WriteSession, thread: ConnectionThread, written: Callable[[Sequence[Batch]], None]
    ) -> None:
        self._session = session
        self._thread = thread
        self._written = written
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        # Both are guarded by the lock. While `running`, somebody will look at the queue again: the thread by itself, or
        # the event loop in its next turn.
        self._waiting: deque[_Commit] = deque()
        self._running = False
        self._pace = Pace(SHORT_SECONDS, possible=session.settings.inline, most=HERE_MOST)
        self._leads = False
        """Whether the first commit in the queue will look at it in the next turn of the event loop."""

    async def commit(self, batch: Batch, size: int) -> None:
        """Commit the batch, or raise why not. If cancelled, this still returns only when that is decided."""
        commit = _Commit(batch, size, self._loop.create_future())
        is_first = self._enter(commit)
        try:
            if is_first and self._leads:
                await asyncio.sleep(0)  # whoever else is ready to commit joins meanwhile
                # No longer, if one that joined was cancelled, or the queue closed: then the thread has it all.
                if self._leads:
                    self._run_here()
            if not commit.reported:
                await commit.future
        except asyncio.CancelledError:
            if is_first:
                self.hand_over()  # those who have joined must not wait for one that is gone
            if not self._withdraw(commit):
                await self._decided(commit)
            raise
        if commit.error is not None:
            raise commit.error

    def _enter(self, commit: _Commit) -> bool:
        """Put the commit in the queue; if it is the first there, have somebody look at the queue, and return True."""
        with self._lock:
            self._waiting.append(commit)
            is_first, self._running = not self._running, True
        if is_first and self._pace.is_short:
            self._leads = True
        elif is_first:
            self._thread.post(self._run)
        return is_first

    def hand_over(self) -> None:
        """Have the thread commit what waits for the event loop, before anything that it is given after this."""
        if self._leads:
            self._leads = False
            self._thread.post(self._run)

    def _run_here(self) -> None:
        """Commit what waits, in the event loop; if it is too much for that, in the thread."""
        with self._lock:
            is_small = (
                0 < len(self._waiting) <= HERE_BATCHES_MAX
                and sum(len(commit.batch.writes) for commit in self._waiting) <= HERE_WRITES_MAX
                and sum(commit.size for commit in self._waiting) <= HERE_BYTES_MAX
            )
        if not is_small:
            self.hand_over()
            return
        began = monotonic()
        try:
            self._session.begin(copies=False)
        except Exception:  # noqa: BLE001  # another process is in the way, or worse: the thread has the time to find out
            self.hand_over()
            return
        self._leads = False
        commits = self._take()
        errors = self._written_or_not(commits)
        self._pace.note(monotonic() - began, here=True)
        self._more()  # notes that nobody runs: nothing can have come, since callers are in the thread that we are in
        self._report(commits, errors)

    def _withdraw(self, commit: _Commit) -> bool:
        with self._lock:
            if commit in self._waiting:
                self._waiting.remove(commit)
                return True
        return False

    async def _decided(self, commit: _Commit) -> None:
        # The batch is being written. If the caller went on now, it could not know what it would read next. The wait is
        # short, since the lock of the file is already held.
        with anyio.CancelScope(shield=True):
            while not commit.reported:
                commit.future = self._loop.create_future()  # the one before was cancelled
                with suppress(asyncio.CancelledError):
                    await commit.future

    def _report(self, commits: Sequence[_Commit], errors: Sequence[Exception | None]) -> None:
        """In the event loop: tell those who wait."""
        batches: list[Batch] = []
        for commit, error in zip(commits, errors, strict=True):
            commit.reported = True
            commit.error = error
            if error is None:
                batches.append(commit.batch)
            if not commit.future.done():
                commit.future.set_result(None)
        self._written(batches)

    # What follows runs in the thread.

    def _run(self) -> None:
        more = self._more()
        while more:
            began = monotonic()
            try:
                patiently(self._session.begin, self._in_time)
            except Exception as error:  # noqa: BLE001  # whatever it is, those who wait must hear of it
                self._refuse(error)
                more = self._more()
                continue
            commits = self._take()  # none, if all have been withdrawn by now; then nothing is written
            errors = self._written_or_not(commits)
            # Many at once are worth the way to the thread, however short they took: there will be as many again.
            seconds = monotonic() - began if len(commits) <= HERE_BATCHES_MAX else inf
            self._pace.note(seconds, here=False)
            more = self._more()
            # Last of all: it wakes the event loop, which would then compete with us for the interpreter.
            self._loop.call_soon_threadsafe(self._report, commits, errors)

    def _written_or_not(self, commits: Sequence[_Commit]) -> Sequence[Exception | None]:
        """Write what was taken, in the transaction that was begun; why not, for each."""
        try:
            return self._session.write([commit.batch for commit in commits])
        except Exception as error:  # noqa: BLE001  # whatever it is, those who wait must hear of it
            return [self._failure(error) for _ in commits]

    def _more(self) -> bool:
        with self._lock:
            self._running = bool(self._waiting)
            return self._running

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

    def _in_time(self) -> bool:
        """Whether there is time left for the commit that waits longest."""
        with self._lock:
            return bool(self._waiting) and not self._is_late(self._waiting[0])

    def _is_late(self, commit: _Commit) -> bool:
        return monotonic() - commit.since >= self._session.settings.busy_timeout

    def _refuse(self, error: Exception) -> None:
        # If the file is busy, it fails those whose time is up; in any other case, all.
        refused: list[_Commit] = []
        with self._lock:
            while self._waiting and (not is_busy(error) or self._is_late(self._waiting[0])):
                refused.append(self._waiting.popleft())
        self._loop.call_soon_threadsafe(self._report, refused, [self._failure(error) for _ in refused])

    def _failure(self, error: Exception) -> StorageError:
        return self._session.failure("write", error)
