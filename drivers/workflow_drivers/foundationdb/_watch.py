"""Who waits for which key: one watch of FoundationDB per key, however many wait.

A watch reports a change of the value that its own transaction has read. So a waiter reads the row first, and shares the
watch that is there only if that was set on the same row: whatever was committed after either read is then reported. A
watch that ends, with an error or without, wakes all its waiters, and each of them looks again.
"""

from __future__ import annotations

import logging
from threading import Lock
from time import monotonic

import anyio

from workflow_drivers.foundationdb._binding import Future, Transaction, code_of
from workflow_drivers.foundationdb._session import Session
from workflow_drivers.foundationdb._waiting import Waker

logger = logging.getLogger("workflow_drivers.foundationdb")

TOO_MANY_WATCHES = 1032
WATCHES_DISABLED = 1034
REFUSALS = (TOO_MANY_WATCHES, WATCHES_DISABLED)

# A watch that went missing would be a workflow that never goes on. So everyone looks again after this, watch or no.
LOOK_SECONDS = 60.0
# Where the cluster refuses watches: often at first, since an answer tends to come soon, then seldom.
POLL_SECONDS_MIN = 0.02
POLL_SECONDS_MAX = 1.0
REFUSED_SECONDS = 30.0
"""How long it is not asked for watches again."""
FAILED_SECONDS = 0.1
"""The pause after a watch that has failed: what has ended it may last."""


class _Watched:
    """A key that is watched, and who waits for it."""

    __slots__ = ("error", "future", "keep", "row", "wakers")

    def __init__(self, row: bytes | None, future: Future, keep: object) -> None:
        self.row = row
        self.future = future
        self.keep = keep
        """The transaction and its commit: if they went away before the watch is set, so would the watch."""
        self.wakers: list[Waker] = []
        self.error: int = 0


class Watches:
    """The watches of one driver. Callable from several event loops; callbacks come in the network thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = Lock()
        self._watched: dict[bytes, _Watched] = {}
        self._pollers: set[Waker] = set()
        self._refused_until = 0.0
        self._closed = False

    @property
    def count(self) -> int:
        """How many keys are watched."""
        return len(self._watched)

    async def wait(self, transaction: Transaction, key: bytes, row: bytes | None, looks: int) -> None:
        """Return when the key may have another row than `row`, which `transaction` has just read there.

        It may return without a change, so the caller looks again; `looks` says how often it has.
        """
        waker = Waker()
        watched = self._join(transaction, key, row, waker)
        if watched is None:
            await self._poll(waker, looks)
            return
        try:
            with anyio.move_on_after(LOOK_SECONDS):
                await waker.wait()
        finally:
            self._leave(key, watched, waker)
        if watched.error and watched.error not in REFUSALS and not self._closed:
            await anyio.sleep(FAILED_SECONDS)

    def close(self) -> None:
        """End all waits."""
        with self._lock:
            self._closed = True
            wakers = [*self._pollers, *(waker for watched in self._watched.values() for waker in watched.wakers)]
            futures = [watched.future for watched in self._watched.values()]
            self._watched.clear()
        for future in futures:
            future.cancel()
        for waker in wakers:
            waker.wake()

    def _join(self, transaction: Transaction, key: bytes, row: bytes | None, waker: Waker) -> _Watched | None:
        """Wait with the others for this row of the key; None while the cluster refuses watches."""
        old: _Watched | None = None
        with self._lock:
            if monotonic() < self._refused_until:
                return None
            watched = self._watched.get(key)
            if watched is None or watched.row != row:
                # A watch on another row is about to report, or was set by someone who had read an older state. Those
                # who wait for it are woken and look again.
                old = watched
                future = transaction.watch(key)
                # The watch is set by the commit, which for a transaction that only reads asks nobody. If it fails, so
                # does the watch.
                watched = self._watched[key] = _Watched(row, future, (transaction, transaction.commit()))
                self._session.counts.watches += 1
            else:
                future = None
            watched.wakers.append(waker)
            if self._closed:
                waker.wake()
        # Outside the lock: a future that is ready calls back at once.
        if future is not None:
            set_now = watched
            future.on_ready(lambda ended: self._ended(key, set_now, ended))
        if old is not None:
            self._wake(old)
            old.future.cancel()
        return watched

    def _leave(self, key: bytes, watched: _Watched, waker: Waker) -> None:
        with self._lock:
            watched.wakers.remove(waker)
            is_last = not watched.wakers and self._watched.get(key) is watched
            if is_last:
                del self._watched[key]
        if is_last:
            watched.future.cancel()

    def _ended(self, key: bytes, watched: _Watched, future: Future) -> None:
        """In the network thread, or in that of whoever has cancelled the watch."""
        try:
            future.wait()
        except self._session.error as error:
            watched.error = code_of(error)
        is_first = False
        with self._lock:
            if self._watched.get(key) is watched:
                del self._watched[key]
            if watched.error in REFUSALS:
                # Noted before anyone else could set a watch.
                is_first = monotonic() >= self._refused_until
                self._refused_until = monotonic() + REFUSED_SECONDS
        if is_first:
            self._warn(watched.error)
        self._wake(watched)

    def _wake(self, watched: _Watched) -> None:
        with self._lock:
            wakers = list(watched.wakers)
        for waker in wakers:
            waker.wake()

    def _warn(self, code: int) -> None:
        reason = "too many are set" if code == TOO_MANY_WATCHES else "they are disabled"
        logger.warning(
            "FoundationDB refuses watches (error %d: %s); %s asks for changes instead, for %g seconds",
            code,
            reason,
            self._session.settings,
            REFUSED_SECONDS,
        )

    async def _poll(self, waker: Waker, looks: int) -> None:
        self._session.counts.polls += 1
        with self._lock:
            self._pollers.add(waker)
            if self._closed:
                waker.wake()
        try:
            with anyio.move_on_after(min(POLL_SECONDS_MIN * 2 ** min(looks, 10), POLL_SECONDS_MAX)):
                await waker.wait()
        finally:
            with self._lock:
                self._pollers.discard(waker)
