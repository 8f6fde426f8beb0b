"""The store in memory: a sorted map. For tests and demos; it ends with its process.

`memory://` is a fresh store, `memory://name` the one that this process has under that name. It runs on asyncio and on
trio, and handles of one named store may be used by several event loops, each in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from threading import Lock, get_ident
from time import monotonic

import anyio
from anyio.lowlevel import checkpoint
from sortedcontainers import SortedList

from workflow_sdk.driver import (
    Batch,
    Clear,
    ClearRange,
    Set,
    Waiters,
    Write,
    caller_from_threads,
    check_limits,
    unmet_check,
)
from workflow_sdk.errors import DefinitionError, StorageError

SCHEME = "memory://"

# Nothing here has to wait, and a turn of the event loop costs more than a commit. But a driver that never gave way
# would let one busy workflow starve all others. So a call gives way when this much time has passed since the last did.
BUDGET_SECONDS = 0.001


class _Waiter:
    """One call of `changed`: the value that it has seen, and how to end its wait."""

    __slots__ = ("event", "since", "soon", "thread")

    def __init__(self, since: bytes | None) -> None:
        self.since = since
        self.event = anyio.Event()
        self.thread = get_ident()
        self.soon = caller_from_threads()

    def wake(self) -> None:
        """End the wait, whichever thread has made the change."""
        if self.thread == get_ident():
            self.event.set()
        else:
            with suppress(RuntimeError):  # that loop is over, and the wait with it
                self.soon(self.event.set)


class _Store:
    """The rows, and who waits for a change of them. Nothing here awaits; the lock is for handles in other threads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.rows: dict[bytes, bytes] = {}
        # Beside the dict, not a SortedDict: to set a key that exists, as most commits do, is then a plain dict's work.
        self._sorted: SortedList[bytes] = SortedList()
        # Nobody may ask for the order before many of the keys that come are gone again.
        self._new: set[bytes] = set()
        """Keys that came since the order was asked for last."""
        self._gone: set[bytes] = set()
        """Keys among the sorted ones that went since then. One that came again is in both."""
        self.appended = 0
        self.waiting = Waiters[_Waiter]()

    @property
    def keys(self) -> SortedList[bytes]:
        """All keys, in order."""
        if self._gone:
            # What went and came again is at its place.
            came_again = self._gone & self._new
            self._new -= came_again
            for key in self._gone - came_again:
                self._sorted.remove(key)
            self._gone.clear()
        if self._new:
            self._sorted.update(self._new)
            self._new.clear()
        return self._sorted

    def apply(self, batch: Batch) -> None:
        """Make the writes of the batch, which is within the limits, if its checks hold."""
        rows = self.rows
        for key, expected in batch.checks:
            if rows.get(key) != expected:
                raise unmet_check(key)
        for write in batch.writes:
            # By exact type: as `match` or `isinstance` this loop takes half as long again.
            kind = type(write)
            if kind is Clear:
                if rows.pop(write[0], None) is not None:
                    self._went(write[0])
            elif kind is ClearRange:
                self._clear_range(write[0], write[-1])
            else:
                key = write[0] if kind is Set else self._next_key(write[0])
                if key not in rows:
                    self._new.add(key)
                rows[key] = write[-1]
        if self.waiting.by_key:
            self._notice(batch.writes)

    def scan(self, begin: bytes, end: bytes, limit: int | None, reverse: bool) -> list[tuple[bytes, bytes]]:
        """The rows from `begin` up to `end`, at most `limit` of them."""
        keys = self.keys.irange(begin, end, (True, False), reverse) if begin < end else ()
        most = None if limit is None else max(limit, 0)
        return [(key, self.rows[key]) for key in islice(keys, most)]

    def _clear_range(self, begin: bytes, end: bytes) -> None:
        for key, _ in self.scan(begin, end, None, False):
            del self.rows[key]
            self._went(key)

    def _went(self, key: bytes) -> None:
        if key in self._new:
            self._new.remove(key)
        else:
            self._gone.add(key)

    def _next_key(self, prefix: bytes) -> bytes:
        self.appended += 1
        # 0x33 and 12 bytes: what `fdb.tuple` reads as a complete versionstamp.
        return prefix + b"\x33" + self.appended.to_bytes(12, "big")

    def _notice(self, writes: Iterable[Write]) -> None:
        """Wake those who have seen another value of a key than is there after the writes."""
        for key in self.waiting.touched(writes):
            value = self.rows.get(key)
            for waiter in self.waiting.by_key[key]:
                if waiter.since != value:
                    waiter.wake()


class MemoryDriver:
    """A handle of a store in memory; without `store`, of a fresh one."""

    def __init__(self, *, _store: _Store | None = None) -> None:
        self._store = _Store() if _store is None else _store
        self._closed = False
        self._due = 0.0
        self._waiters: set[_Waiter] = set()

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None."""
        self._check_open()
        if monotonic() >= self._due:
            await self._give_way()
        with self._store.lock:  # another thread may be in the middle of a batch
            return self._store.rows.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows from `begin`, up to `end` and without it, in byte order (or its reverse), of one state."""
        self._check_open()
        if monotonic() >= self._due:
            await self._give_way()
        with self._store.lock:
            return self._store.scan(begin, end, limit, reverse)

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch, whole, or raise: ConflictError if a check did not hold.

        A cancelled commit did not happen: the one place where it can be cancelled comes before the first write.
        """
        self._check_open()
        check_limits(batch)
        if monotonic() >= self._due:
            await self._give_way()
        with self._store.lock:
            self._store.apply(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Return once the value of `key` differs from `since`, whichever handle changed it."""
        self._check_open()
        if monotonic() >= self._due:
            await self._give_way()
        store = self._store
        with store.lock:
            if store.rows.get(key) != since:
                return
            waiter = _Waiter(since)
            store.waiting.add(key, waiter)
        self._waiters.add(waiter)
        try:
            await waiter.event.wait()
        finally:
            self._waiters.discard(waiter)
            with store.lock:
                store.waiting.discard(key, waiter)
        self._check_open()

    async def sibling(self) -> MemoryDriver:
        """Another handle of the same store, for another thread."""
        self._check_open()
        return MemoryDriver(_store=self._store)

    async def aclose(self) -> None:
        """Close this handle: a fresh store is gone then, a named one stays, and so do its other handles."""
        if self._closed:
            return
        self._closed = True
        self._store = _Store()  # so that a closed handle that is kept does not keep the rows
        for waiter in list(self._waiters):
            waiter.wake()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("this memory store has been closed")

    async def _give_way(self) -> None:
        # Before the checkpoint, not after: the others run meanwhile, and each of their calls would give way, too.
        self._due = monotonic() + BUDGET_SECONDS
        await checkpoint()
        self._check_open()


_named: dict[str, _Store] = {}
_named_lock = Lock()


async def open(url: str) -> MemoryDriver:
    """Open the store that `url` names: `memory://` a fresh one, `memory://name` one shared in this process.

    A named store keeps its rows until the process ends, whether or not it is open.
    """
    name = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME):
        raise DefinitionError(f"the URL of a store in memory starts with {SCHEME}, unlike {url!r}")
    if "?" in name:
        raise DefinitionError(f"a store in memory has no options, unlike {url!r}")
    if not name:
        return MemoryDriver()
    with _named_lock:
        return MemoryDriver(_store=_named.setdefault(name, _Store()))
