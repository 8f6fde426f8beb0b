"""Writing what changed. One flush is in flight per instance; those who ask meanwhile share the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import anyio

from workflow_sdk.core.journal import Journal, WriteSet
from workflow_sdk.driver import Batch, Clear, ClearRange, Driver, Set, Transacting

__all__ = ["Flusher", "fill"]


T = TypeVar("T")


def fill(batch: Batch, writes: WriteSet) -> None:
    """Put a write set into a batch."""
    for begin, end in writes.clears:
        batch.writes.append(ClearRange(begin, end))
    for key, value in writes.rows.items():
        batch.writes.append(Clear(key) if value is None else Set(key, value))


class Flusher:
    """Brings one instance's changes to the store, under its lease."""

    __slots__ = ("_driver", "_failed", "_journal", "_lease", "_next", "_writing", "_written", "is_broken")

    def __init__(self, driver: Driver, journal: Journal, lease: bytes, failed: Callable[[Exception], None]) -> None:
        self._driver = driver
        self._journal = journal
        self._lease = lease
        self._failed = failed
        self.is_broken: bool = False
        """A commit failed: nothing is written any more."""
        self._writing = False
        self._written: anyio.Event | None = None
        """Set when the flush that is in flight has landed, if anybody waits for that."""
        self._next: anyio.Event | None = None
        """Set when the flush after that has landed. Whoever made it writes it; others only wait."""

    async def flush(self, *, alone: bool = False) -> bool:
        """Return True once everything that changed so far is stored; False if that has failed.

        A cancelled flush is finished first: siblings may count on it. `alone` says that there are none; then the
        driver's own promise is enough, that a cancelled commit is decided when it returns.
        """
        if alone and not self._writing and self._next is None:
            await self._write()
            return not self.is_broken
        with anyio.CancelScope(shield=True):
            if self._next is not None:
                # Someone is about to write, and will take our changes along.
                await self._next.wait()
            elif self._writing:
                landed = self._next = anyio.Event()
                await self.until_landed()
                self._next = None
                try:
                    await self._write()
                finally:
                    landed.set()
            else:
                await self._write()
        return not self.is_broken

    async def until_landed(self) -> None:
        """Return when nothing is in flight."""
        while self._writing:
            if self._written is None:
                self._written = anyio.Event()
            await self._written.wait()

    async def _write(self) -> None:
        if self.is_broken or not self._journal.is_dirty:
            return
        error = await self._commit(Batch())
        if error is not None:
            self._break(error)

    async def commit(self, batch: Batch) -> None:
        """Write everything that changed, and what is in the batch already, in one commit."""
        error = await self.try_commit(batch)
        if error is not None:
            self._break(error)

    async def try_commit(self, batch: Batch) -> Exception | None:
        """Like `commit`, but a failure is returned, and left to the caller."""
        error: Exception | None = None  # a cancel scope may end a block early, as far as type checkers know
        with anyio.CancelScope(shield=True):
            await self.until_landed()
            error = await self._commit(batch)
        return error  # noqa: RET504  # as above

    async def transact(
        self, fn: Callable[[Any], T], rows: Callable[[T], list[tuple[bytes, bytes]]]
    ) -> Exception | None:
        """Like `try_commit`, in the transaction that `fn` is called with; `rows` of its value are written, too.

        Only where nothing is in flight.
        """
        assert not self._writing, "one flush is in flight per instance"
        journal, taken = self._journal, list[WriteSet]()

        def finish(value: T) -> Batch:
            written = rows(value)
            while taken:  # the try before this one came to nothing
                journal.restore(taken.pop())
            batch = Batch()
            batch.check(journal.keys.lease, self._lease)
            taken.append(journal.take())
            fill(batch, taken[-1])
            for key, raw in written:
                batch.set(key, raw)
            return batch

        self._writing = True
        try:
            with anyio.CancelScope(shield=True):
                await cast("Transacting", self._driver).transact(fn, finish)
                taken.clear()
        except Exception as error:  # noqa: BLE001  # of the author or of the store, which the caller can tell apart
            return error
        except BaseException:
            self.is_broken = True  # as in `_commit`: nobody knows what is stored
            raise
        finally:
            while taken:
                journal.restore(taken.pop())
            self._has_landed()
        return None

    def _break(self, error: Exception) -> None:
        self.is_broken = True
        self._failed(error)

    async def _commit(self, batch: Batch) -> Exception | None:
        journal = self._journal
        batch.checks.append((journal.keys.lease, self._lease))
        writes = journal.take()
        fill(batch, writes)
        self._writing = True
        try:
            await self._driver.commit(batch)
        except Exception as error:  # noqa: BLE001  # whatever the driver raises: the store failed, and nobody else did
            journal.restore(writes)
            return error
        except BaseException:
            # Not a cancellation, which does not come this far: whoever waits must not take it for stored.
            self.is_broken = True
            journal.restore(writes)
            raise
        finally:
            self._has_landed()
        return None

    def _has_landed(self) -> None:
        self._writing = False
        if self._written is not None:
            self._written.set()
            self._written = None
