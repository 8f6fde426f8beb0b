"""Writing what changed in a journal. One flush is in flight per instance; callers meanwhile share the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import anyio
from anyio.lowlevel import checkpoint

from workflow_sdk.changes.apply import BASELESS_MAX, Tries, moved_on, try_all
from workflow_sdk.changes.change import Change
from workflow_sdk.changes.trial import Trial
from workflow_sdk.driver import (
    Batch,
    Clear,
    ConflictError,
    Driver,
    Set,
    StorageLimitError,
    Transacting,
)
from workflow_sdk.errors import StorageError
from workflow_sdk.instance.staging import Staged, are_stored, fill, without_moved_on
from workflow_sdk.journal.journal import Journal
from workflow_sdk.journal.unwritten import WriteSet
from workflow_sdk.operations.calling import come_what_may, until_set
from workflow_sdk.rows.keys import Field

STAGED_MAX = 200
STAGED_BYTES_SOFT_MAX = 1_000_000
"""How many changes, of about how many bytes, go with one commit: stores limit the size of a commit."""

T = TypeVar("T")


class Flusher:
    """Writes the changes of one instance to the store, under its lease."""

    __slots__ = (
        "_cancelled",
        "_driver",
        "_failed",
        "_journal",
        "_lease",
        "_lease_key",
        "_next",
        "_staged",
        "_written",
        "is_broken",
        "is_writing",
        "largest",
    )

    def __init__(self, driver: Driver, journal: Journal, lease: bytes, failed: Callable[[Exception], None]) -> None:
        self._driver = driver
        self._journal = journal
        self._lease = lease
        self._lease_key = journal.keys.lease
        self._failed = failed
        self.is_broken: bool = False
        """A commit failed: nothing is written any more."""
        self.largest: str = ""
        """What took the most room in a commit that was too large for the store, in words."""
        self._staged: deque[Staged[Any]] | None = None
        """The staged changes, oldest first. Made with the first: there may be thousands of instances."""
        self.is_writing: bool = False
        self._written: anyio.Event | None = None
        """Set when the flush that is in flight has landed, if anybody waits for that."""
        self._next: anyio.Event | None = None
        """Set when the flush after that has landed. The caller that made the event writes it; others only wait."""
        self._cancelled: BaseException | None = None
        """A cancellation that came while a commit was in flight: raised once what depends on the commit is done."""

    async def flush(self, *, alone: bool = False, then: Callable[[], None] | None = None) -> bool:
        """Return True once everything that changed so far is stored; False if that has failed.

        A flush that is cancelled is finished before the cancellation is raised: other branches may rely on it, and the
        next flush has to know what is stored. `alone`: no other branch is active, so no shield is needed. `then` is
        called once everything is stored, before a cancellation is raised.
        """
        cancelled: BaseException | None = None
        if alone and not self.is_writing and self._next is None and not self._staged:
            # Nearly every step comes through here.
            if self._journal.unwritten.is_dirty and not self.is_broken:
                error = await self._commit()
                if error is not None:
                    self._break(error)
        elif self._next is not None:
            # Another caller waits to write the next flush, which takes along what changed until then.
            cancelled = await until_set(self._next)
        else:
            # Shielded: the caller that writes must not be cancelled in the middle, since others wait for its flush.
            with anyio.CancelScope(shield=True):
                await self._flush_with_others()
        if then is not None and not self.is_broken:
            then()
        if cancelled is not None:
            raise cancelled
        if self._cancelled is not None:
            self._raise_cancelled()
        return not self.is_broken

    async def _flush_with_others(self) -> None:
        landed = self._next = anyio.Event()
        cancelled = await come_what_may(self._gather)
        self._next = None
        try:
            self._cancelled = await come_what_may(self._write) or self._cancelled or cancelled
        finally:
            landed.set()

    async def _gather(self) -> None:
        """Wait for what is in flight, or else for those that are ready in this turn of the event loop, too."""
        if not self.is_writing:
            await checkpoint()
        await self.until_landed()

    def _raise_cancelled(self) -> None:
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None:
            raise cancelled

    async def until_landed(self) -> None:
        """Return when nothing is in flight."""
        while self.is_writing:
            if self._written is None:
                self._written = anyio.Event()
            await self._written.wait()

    def stage(self, staged: Staged[Any]) -> None:
        """Have the next flush make a change."""
        if self._staged is None:
            self._staged = deque()
        self._staged.append(staged)

    async def make(self, staged: Staged[Any], flush: Callable[[], Awaitable[object]] | None = None) -> None:
        """Have a change made, with as many flushes as it takes if others change what it reads."""
        flush = flush or self.flush
        self.stage(staged)
        await flush()
        while staged.has_moved_on:
            staged.try_again()
            self.stage(staged)
            await flush()

    async def _write(self) -> None:
        while not self.is_broken and (self._staged or self._journal.unwritten.is_dirty):
            staged = self._next_staged()
            if staged:
                error = await self._commit_staged(staged)
            elif self._journal.unwritten.is_dirty:
                error = await self._commit()
            else:
                return
            if error is not None:
                self._break(error)
                return
            if not self._staged:
                return

    def _next_staged(self) -> list[Staged[Any]]:
        """Take out the staged changes that go with one commit."""
        found, weight = list[Staged[Any]](), 0
        while self._staged and len(found) < STAGED_MAX and weight <= STAGED_BYTES_SOFT_MAX:
            one = self._staged.popleft()
            if one.is_wanted():
                found.append(one)
                weight += one.weight
        return found

    async def _commit_staged(self, staged: list[Staged[Any]]) -> Exception | None:
        """Make these changes in one commit with all that changed in the instance; return the error of the store."""
        # Set from the first read on: no other commit of the instance may come between the reads and this commit.
        self.is_writing = True
        try:
            return await self._make(staged)
        except Exception as error:  # noqa: BLE001  # whatever the driver raises: the store failed, and nobody else did
            return error
        except BaseException:
            if not self.is_broken:
                # Cancelled while reading. `come_what_may` calls again, and then finds the changes staged as before.
                self._staged = deque([*(one for one in staged if not one.is_over), *(self._staged or ())])
            raise
        finally:
            self._has_landed()

    async def _make(self, staged: list[Staged[Any]]) -> Exception | None:
        journal, baseless = self._journal, 0
        while True:
            wanted, beside = await self._try(staged)
            done = [one for one in wanted if one.outcome is not None and one.outcome.error is None]
            if not beside.writes and not journal.unwritten.is_dirty:
                are_stored(done)
                return None
            if beside.writes:
                # An effect on others counts as a change of the instance, since it comes with a record.
                journal.unwritten.touch()
            error = await self._commit(beside, done, still_writing=True)
            if not isinstance(error, ConflictError) or await self._has_lost():
                return error
            moved = await moved_on(self._driver, beside)
            baseless += not moved
            if baseless > BASELESS_MAX:
                return error
            staged = without_moved_on(wanted, moved) if moved else wanted

    async def _try(self, staged: list[Staged[Any]]) -> tuple[list[Staged[Any]], Batch]:
        """Run the changes that are still wanted; return these, and the batch of what they write."""
        while True:
            wanted = [one for one in staged if one.is_wanted()]
            changes, retries = [one.change for one in wanted], [one.retries for one in wanted]
            beside, outcomes = await try_all(self._driver, changes, retries)
            if all(one.is_wanted() for one in wanted):
                break
            # A race was decided during the reads: a branch that has lost must have no effect any more.
        for one, outcome in zip(wanted, outcomes, strict=True):
            one.outcome = outcome
        return wanted, beside

    async def _has_lost(self) -> bool:
        return await self._driver.get(self._journal.keys.lease) != self._lease

    async def commit(self, change: Change[T] | None = None) -> None:
        """Write everything that changed, together with what a change writes, in one commit."""
        error = await self.try_commit(change)
        if error is not None:
            self._break(error)

    async def try_commit(
        self, change: Change[T] | None = None, then: Callable[[T], None] | None = None, *, insisted: bool = False
    ) -> Exception | None:
        """Like `commit`, but return the error of the store, or of the change, and leave it to the caller.

        `then` is called with the value of the change once it is stored. A cancellation is raised after that.
        `insisted`: the caller already keeps off cancellations.
        """
        error: Exception | None = None  # a cancel scope may end a block early, as far as type checkers know

        async def commit() -> None:
            nonlocal error
            if self.is_writing:
                await self.until_landed()
            # If it is cancelled while the change reads, the change is made anew; if later, the commit is carried
            # through.
            error = await (self._commit() if change is None else self._commit_with(change, then))

        if insisted:
            await commit()
        else:
            self._cancelled = await come_what_may(commit) or self._cancelled
        if self._cancelled is not None:
            if error is not None:
                self._break(error)  # the caller is cancelled, and can't handle the error
            self._raise_cancelled()
        return error

    async def _commit_with(self, change: Change[T], then: Callable[[T], None] | None) -> Exception | None:
        """Write everything that changed together with a change; write nothing if the change raises."""
        tries = Tries(self._driver)
        self.is_writing = True
        try:
            while True:
                trial = Trial(self._driver, tries.failed)
                outcome = await trial.make(change)
                if outcome.error is not None:
                    return outcome.error
                beside = trial.batch()
                error = await self._commit(beside, still_writing=True)
                if error is None and then is not None:
                    then(outcome.get())
                if not isinstance(error, ConflictError) or await self._has_lost():
                    return error
                await tries.fail(beside, error)
        except Exception as error:  # noqa: BLE001  # whatever the driver raises: the store failed, and nobody else did
            return error
        finally:
            self._has_landed()

    async def transact(
        self, fn: Callable[[Any], T], rows: Callable[[T], list[tuple[bytes, bytes]]]
    ) -> Exception | None:
        """Like `try_commit`, in the transaction with which `fn` is called; also write the `rows` of its value.

        Only while no flush is in flight.
        """
        assert not self.is_writing, "one flush is in flight per instance"
        journal, taken = self._journal, list[WriteSet]()

        def finish(value: T) -> Batch:
            written = rows(value)
            while taken:  # the store calls this again for each try: the one before has failed
                journal.unwritten.restore(taken.pop())
            batch = Batch()
            batch.check(journal.keys.lease, self._lease)
            journal.unwritten.touch()
            taken.append(journal.unwritten.take())
            fill(batch, taken[-1])
            for key, raw in written:
                batch.set(key, raw)
            return batch

        self.is_writing = True
        try:
            with anyio.CancelScope(shield=True):
                await cast("Transacting", self._driver).transact(fn, finish)
                taken.clear()
        except Exception as error:  # noqa: BLE001  # of the author or the store: the caller can tell the two apart
            return error
        except BaseException:
            # Cancelled past the shield, by asyncio itself. Only the next run can find out what was stored.
            taken.clear()
            self._break(StorageError("the run was cancelled in a transaction, and does not know what it has stored"))
            raise
        finally:
            while taken:
                journal.unwritten.restore(taken.pop())
            self._has_landed()
        return None

    def _break(self, error: Exception) -> None:
        self.is_broken = True
        self._failed(error)

    async def _commit(
        self, beside: Batch | None = None, staged: Sequence[Staged[Any]] = (), *, still_writing: bool = False
    ) -> Exception | None:
        """Write everything that changed, with the checks and writes of another batch; return the error of the store."""
        journal = self._journal
        writes = self._journal.unwritten.take()
        batch = Batch()
        batch.checks.append((self._lease_key, self._lease))
        fill(batch, writes)
        if beside is not None:
            batch.checks.extend(beside.checks)
            batch.writes.extend(beside.writes)
        self.is_writing = True
        try:
            try:
                await self._driver.commit(batch)
            except anyio.get_cancelled_exc_class() as cancelled:
                self._cancelled = cancelled
                await self._carry_through(batch, writes)
        except Exception as error:  # noqa: BLE001  # whatever the driver raises: the store failed, and nobody else did
            if isinstance(error, StorageLimitError):
                self._note_largest(batch)
            journal.unwritten.restore(writes)
            return error
        except BaseException:
            # A second cancellation, say: nobody knows what is stored, so those who wait must not go on.
            self.is_broken = True
            journal.unwritten.restore(writes)
            raise
        else:
            if staged:
                are_stored(staged)
        finally:
            if not still_writing:
                self._has_landed()
        return None

    def _note_largest(self, batch: Batch) -> None:
        """Note what took the most room in a commit that was too large."""
        rows = [write for write in batch.writes if isinstance(write, Set)]
        if rows:
            key, raw = max(rows, key=lambda row: len(row.value))
            name = self._journal.unwritten.name_row(key, raw, self._journal.names)
            self.largest = f"{name} takes {len(raw):,} bytes of it"

    async def _carry_through(self, batch: Batch, writes: WriteSet) -> None:
        """After a commit that was cancelled: find out whether it was applied, and if not, commit it again.

        It must not be applied twice: others may have changed what it wrote since then.
        """

        async def carry_through() -> None:
            if not await self._is_applied(batch, writes):
                await self._driver.commit(batch)

        await come_what_may(carry_through)

    async def _is_applied(self, batch: Batch, writes: WriteSet) -> bool:
        """Whether a commit was applied; False also for one that does no harm if it is applied twice.

        Others can only have changed its writes since if it changes the instance, and such commits are counted.
        """
        journal, driver = self._journal, self._driver
        if await driver.get(journal.keys.lease) != self._lease:
            if Clear(journal.keys.lease) in batch.writes:
                return True
            raise ConflictError("the lease is lost")
        counted = journal.keys.field(Field.TALLY)
        return writes.counts and await driver.get(counted) == writes.rows[counted]

    def _has_landed(self) -> None:
        self.is_writing = False
        if self._written is not None:
            self._written.set()
            self._written = None
