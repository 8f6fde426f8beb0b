"""The store in memory: a sorted map. For tests and demos; it ends with its process.

`memory://` is a fresh store, `memory://name` the one that this process has under that name. It runs on asyncio and on
trio, and handles of one named store may be used by several event loops, each in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, get_ident
from time import monotonic
from typing import Protocol, cast

import anyio
from anyio.lowlevel import checkpoint, current_token
from sortedcontainers import SortedDict, SortedList

from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Set, Write, check_limits
from workflow_sdk.errors import ConflictError, DefinitionError, StorageError

__all__ = ["MemoryDriver", "open"]

SCHEME = "memory://"

# Nothing here has to wait, and going round the event loop costs more than a commit does. Never going round would let
# one busy workflow starve all others. So a call does it when this much time has passed since the last one that did.
BUDGET_SECONDS = 0.001


class _Waiter:
    """One call of `changed`: what it has seen, and how to end its wait."""

    __slots__ = ("event", "since", "soon", "thread")

    def __init__(self, since: bytes | None) -> None:
        self.since = since
        self.event = anyio.Event()
        self.thread = get_ident()
        self.soon = _from_other_threads()

    def wake(self) -> None:
        """End the wait, whichever thread has made the change."""
        if self.thread == get_ident():
            self.event.set()
        else:
            with suppress(RuntimeError):  # that loop is over, and the wait with it
                self.soon(self.event.set)


class _AsyncioLoop(Protocol):
    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...


class _TrioToken(Protocol):
    def run_sync_soon(self, callback: Callable[[], object], /) -> object: ...


def _from_other_threads() -> Callable[[Callable[[], object]], object]:
    """How another thread has something called in this one's event loop, without waiting for it as `anyio` would."""
    native = current_token().native_token
    if hasattr(native, "run_sync_soon"):
        return cast("_TrioToken", native).run_sync_soon
    return cast("_AsyncioLoop", native).call_soon_threadsafe


class _Store:
    """The rows, and who waits for them. Nothing in it awaits; the lock is for handles in other threads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.rows: dict[bytes, bytes] = {}
        # Beside the dict, not a SortedDict: to set a key that exists, as most commits do, is then a plain dict's work.
        self._sorted: SortedList[bytes] = SortedList()
        self._new: list[bytes] = []
        """Keys that are not sorted in yet: nobody has asked for their order since they came."""
        self.appended = 0
        self.waiting: SortedDict[bytes, list[_Waiter]] = SortedDict()

    @property
    def keys(self) -> SortedList[bytes]:
        """All keys, in order."""
        if self._new:
            self._sorted.update(self._new)
            self._new.clear()
        return self._sorted

    def apply(self, batch: Batch) -> None:
        """Make the writes of the batch if its checks hold. It has been found to be within the limits."""
        rows = self.rows
        for key, expected in batch.checks:
            if rows.get(key) != expected:
                raise ConflictError(f"the key {key!r:.200} does not have the value that the batch was to find")
        writes = batch.writes
        for write in writes:
            # By exact type: as `match` or `isinstance` this loop takes half as long again.
            kind = type(write)
            if kind is Set:
                self._set(write[0], write[-1])
            elif kind is Append:
                self.appended += 1
                # 0x33 and 12 bytes: what `fdb.tuple` reads as a complete versionstamp.
                self._set(write[0] + b"\x33" + self.appended.to_bytes(12, "big"), write[-1])
            elif kind is Clear:
                if rows.pop(write[0], None) is not None:
                    self.keys.remove(write[0])
            else:
                self._clear_range(write[0], write[-1])
        if self.waiting:
            self._notice(writes)

    def scan(self, begin: bytes, end: bytes, limit: int | None, reverse: bool) -> list[tuple[bytes, bytes]]:
        """The rows from `begin` up to `end`, at most `limit` of them."""
        rows = self.rows
        found: list[tuple[bytes, bytes]] = []
        if begin >= end or (limit is not None and limit <= 0):
            return found
        for key in self.keys.irange(begin, end, (True, False), reverse):
            found.append((key, rows[key]))
            if len(found) == limit:
                break
        return found

    def _set(self, key: bytes, value: bytes) -> None:
        if key not in self.rows:
            self._new.append(key)
        self.rows[key] = value

    def _clear_range(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        for key in list(self.keys.irange(begin, end, (True, False))):
            del self.rows[key]
            self.keys.remove(key)

    def _notice(self, writes: list[Write]) -> None:
        """Wake those whose value the writes have changed from what they had seen."""
        for write in writes:
            if type(write) is ClearRange:
                keys = list(self.waiting.irange(write.begin, write.end, (True, False)))
            elif type(write) is Append:
                begin = write.prefix + b"\x33"
                keys = list(self.waiting.irange(begin, begin + b"\xff" * 12))
            else:
                keys = [write[0]] if write[0] in self.waiting else []
            for key in keys:
                value = self.rows.get(key)
                for waiter in self.waiting[key]:
                    if waiter.since != value:
                        waiter.wake()

    def await_change(self, key: bytes, waiter: _Waiter) -> None:
        self.waiting.setdefault(key, []).append(waiter)

    def forget(self, key: bytes, waiter: _Waiter) -> None:
        waiters = self.waiting[key]
        waiters.remove(waiter)
        if not waiters:
            del self.waiting[key]


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
            store.await_change(key, waiter)
        self._waiters.add(waiter)
        try:
            await waiter.event.wait()
        finally:
            self._waiters.discard(waiter)
            with store.lock:
                store.forget(key, waiter)
        self._check_open()

    async def sibling(self) -> MemoryDriver:
        """Another handle of the same store, for another thread."""
        self._check_open()
        return MemoryDriver(_store=self._store)

    async def aclose(self) -> None:
        """Let go of the store: a fresh one is gone, a named one stays, and so do its other handles."""
        if self._closed:
            return
        self._closed = True
        self._store = _Store()  # the rows of a fresh one are not held by a handle that is kept
        for waiter in list(self._waiters):
            waiter.wake()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("this memory store has been closed")

    async def _give_way(self) -> None:
        # Before the checkpoint, not after: the others run meanwhile, and their calls must not each give way at once.
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
