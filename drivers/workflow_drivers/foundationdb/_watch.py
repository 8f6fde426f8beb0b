"""Waiting for changes: each key has one watch of FoundationDB, however many wait for it.

A watch reports a change of the value that its own transaction has read. So a waiter reads the row first, and shares a
watch only if that was set on the same row: then no change after either read is missed. When a watch ends, with an error
or without, all its waiters wake up and read the row again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import monotonic

import anyio

from workflow_drivers.foundationdb._binding import Future, Transaction, code_of
from workflow_drivers.foundationdb._session import Session, Waker

logger = logging.getLogger("workflow_drivers.foundationdb")

TOO_MANY_WATCHES = 1032
WATCHES_DISABLED = 1034
REFUSALS = (TOO_MANY_WATCHES, WATCHES_DISABLED)

# Because of a watch that got lost, a workflow would never go on. So every waiter looks again after this time.
LOOK_SECONDS = 60.0
# Where the cluster refuses watches: often at first, since an answer tends to come soon, then seldom.
POLL_SECONDS_MIN = 0.02
POLL_SECONDS_MAX = 1.0
REFUSED_SECONDS = 30.0  # for how long no watches are set after the cluster has refused one
FAILED_SECONDS = 0.1  # the pause after a watch that has failed, since its cause may last


@dataclass(slots=True, eq=False)
class _Watched:
    """A key that is watched, and who waits for it."""

    row: bytes | None
    future: Future
    keep: object  # the transaction and its commit: if they were freed before the watch is set, it would never be
    wakers: list[Waker] = field(default_factory=list[Waker])
    error: int = 0


class Watches:
    """The watches of one driver, for several event loops. FoundationDB calls back in its network thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = Lock()
        self._watched: dict[bytes, _Watched] = {}
        self._waiting: set[Waker] = set()
        self._refused_until = 0.0
        self._closed = False

    @property
    def count(self) -> int:
        """How many keys are watched."""
        return len(self._watched)

    async def wait(self, transaction: Transaction, key: bytes, row: bytes | None, looks: int) -> None:
        """Return when the key may have another row than `row`, which `transaction` has just read.

        This may return without a change, so the caller looks again. `looks` is how often it has done so.
        """
        waker = Waker()
        watched = self._join(transaction, key, row, waker)
        seconds = LOOK_SECONDS
        if watched is None:
            self._session.counts.polls += 1
            seconds = min(POLL_SECONDS_MIN * 2 ** min(looks, 10), POLL_SECONDS_MAX)
        try:
            with anyio.move_on_after(seconds):
                await waker.wait()
        finally:
            self._leave(key, watched, waker)
        if watched is not None and watched.error and watched.error not in REFUSALS and not self._closed:
            await anyio.sleep(FAILED_SECONDS)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            wakers = list(self._waiting)
            futures = [watched.future for watched in self._watched.values()]
            self._watched.clear()
        for future in futures:
            future.cancel()
        for waker in wakers:
            waker.wake()

    def _join(self, transaction: Transaction, key: bytes, row: bytes | None, waker: Waker) -> _Watched | None:
        """Have `waker` woken by the watch of this row, which is set if there is none. None if watches are refused."""
        with self._lock:
            self._waiting.add(waker)
            if self._closed:
                waker.wake()
            if monotonic() < self._refused_until:
                return None
            found = watched = self._watched.get(key)
            if watched is None or watched.row != row:
                # A watch on another row is about to report, or was set by a waiter that had read an older state. Its
                # waiters are woken below, and look again.
                future = transaction.watch(key)
                # The watch is set by the commit, which for a transaction that only reads needs no round trip. If the
                # commit fails, the watch does too, so nobody has to wait for it.
                watched = self._watched[key] = _Watched(row, future, (transaction, transaction.commit()))
                self._session.counts.watches += 1
            watched.wakers.append(waker)
        # Outside the lock, which `_ended` takes: a future that is ready calls back at once.
        if watched is not found:
            watched.future.on_ready(partial(self._ended, key, watched))
            if found is not None:
                self._wake(found)
                found.future.cancel()
        return watched

    def _leave(self, key: bytes, watched: _Watched | None, waker: Waker) -> None:
        with self._lock:
            self._waiting.discard(waker)
            if watched is None:
                return
            watched.wakers.remove(waker)
            is_last = not watched.wakers and self._watched.get(key) is watched
            if is_last:
                del self._watched[key]
        if is_last:
            watched.future.cancel()

    def _ended(self, key: bytes, watched: _Watched, future: Future) -> None:
        """Wake the waiters of a watch. Called in the network thread, or in that of whoever has cancelled the watch."""
        try:
            future.wait()
        except self._session.error as error:
            watched.error = code_of(error)
        is_first = False
        with self._lock:
            if self._watched.get(key) is watched:
                del self._watched[key]
            if watched.error in REFUSALS:
                # Under the lock, so that nobody sets a watch in between.
                is_first = monotonic() >= self._refused_until
                self._refused_until = monotonic() + REFUSED_SECONDS
        if is_first:
            logger.warning(
                "FoundationDB refuses watches (error %d: %s); %s asks for changes instead, for %g seconds",
                watched.error,
                "too many are set" if watched.error == TOO_MANY_WATCHES else "they are disabled",
                self._session.settings,
                REFUSED_SECONDS,
            )
        self._wake(watched)

    def _wake(self, watched: _Watched) -> None:
        with self._lock:
            wakers = list(watched.wakers)
        for waker in wakers:
            waker.wake()
