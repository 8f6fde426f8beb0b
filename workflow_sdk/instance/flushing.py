"""Writing what changed. One flush is in flight per instance; those who ask meanwhile share the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import anyio

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
from workflow_sdk.operations.calling import come_what_may
from workflow_sdk.rows.keys import Field

STAGED_MAX = 200
STAGED_BYTES_SOFT_MAX = 1_000_000
"""More than these do not go with one commit: stores limit the size of one."""


T = TypeVar("T")


class Flusher:
    """Brings one instance's changes to the store, under its lease."""

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
        """In the order in which they came. Made with the first: there may be thousands of instances."""
        self.is_writing: bool = False
        self._written: anyio.Event | None = None
        """Set when the flush that is in flight has landed, if anybody waits for that."""
        self._next: anyio.Event | None = None
        """Set when the flush after that has landed. Whoever made it writes it; others only wait."""
        self._cancelled: BaseException | None = None
        """A cancellation that came while a commit was in flight: raised once what depends on the commit is done."""

    async def flush(self, *, alone: bool = False, then: Callable[[], None] | None = None) -> bool:
        """Return True once everything that changed so far is stored; False if that has failed.

        A cancelled flush is finished first: siblings may count on it, and whoever writes next has to know what is
        stored. `alone` says that there are no siblings: then it costs no shield. `then` is called once it is stored,
        before a cancellation is raised.
        """
        if alone and not self.is_writing and self._next is None and not self._staged:
            # Nearly every step comes through here.
            if self._journal.unwritten.is_dirty and not self.is_broken:
                error = await self._commit()
                if error is not None:
                    self._break(error)
        else:
            # Nothing here is cancelled, but for those who only wait.
            with anyio.CancelScope(shield=True):
                await self._flush_with_others()
        if then is not None and not self.is_broken:
            then()
        if self._cancelled is not None:
            self._raise_cancelled()
        return not self.is_broken

    async def _flush_with_others(self) -> None:
        if self._next is not None:
            # Someone is about to write, and will take our changes along.
            await self._next.wait()
        elif self.is_writing:
            landed = self._next = anyio.Event()
            cancelled = await come_what_may(self.until_landed)
            self._next = None
            try:
                self._cancelled = await come_what_may(self._write) or self._cancelled or cancelled
            finally:
                landed.set()
        else:
            self._cancelled = await come_what_may(self._write) or self._cancelled

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
        """Have a change made by the next flush."""
        if self._staged is None:
            self._staged = deque()
        self._staged.append(staged)

    async def make(self, staged: Staged[Any], flush: Callable[[], Awaitable[object]] | None = None) -> None:
        """Have a change made by a flush, however often others change meanwhile what it reads."""
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
        """Those that go with one commit. They are taken out of what is staged."""
        found: list[Staged[Any]] = []
        weight = 0
        while self._staged and len(found) < STAGED_MAX and weight <= STAGED_BYTES_SOFT_MAX:
            one = self._staged.popleft()
            if one.is_wanted():
                found.append(one)
                weight += one.weight
        return found

    async def _commit_staged(self, staged: list[Staged[Any]]) -> Exception | None:
        """Make these changes, in one commit with all that changed in the instance; the error of the store, if any."""
        # From the first read to the end, there is no other commit of the instance.
        self.is_writing = True
        try:
            return await self._make(staged)
        except Exception as error:  # noqa: BLE001  # whatever the driver raises: the store failed, and nobody else did
            return error
        except BaseException:
            if not self.is_broken:
                # Cancelled while it reads: whoever insists finds them where they were.
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
                # What it does to others, and the record of that, is a change of the instance.
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
        """Make the changes that somebody still wants: which these are, and what they write."""
        while True:
            wanted = [one for one in staged if one.is_wanted()]
            changes, retries = [one.change for one in wanted], [one.retries for one in wanted]
            beside, outcomes = await try_all(self._driver, changes, retries)
            if all(one.is_wanted() for one in wanted):
                break
            # A race was decided while they were reading: who has lost does nothing any more.
        for one, outcome in zip(wanted, outcomes, strict=True):
            one.outcome = outcome
        return wanted, beside

    async def _has_lost(self) -> bool:
        return await self._driver.get(self._journal.keys.lease) != self._lease

    async def commit(self, change: Change[T] | None = None) -> None:
        """Write everything that changed, and make a change, in one commit."""
        error = await self.try_commit(change)
        if error is not None:
            self._break(error)

    async def try_commit(
        self, change: Change[T] | None = None, then: Callable[[T], None] | None = None, *, insisted: bool = False
    ) -> Exception | None:
        """Like `commit`, but a failure is returned, and left to the caller; so is what the change raises.

        A cancellation is raised when it is decided, and after `then`, which is called with what came of the change once
        it is stored. `insisted`: nothing of this is cancelled, the caller sees to that.
        """
        error: Exception | None = None  # a cancel scope may end a block early, as far as type checkers know

        async def commit() -> None:
            nonlocal error
            if self.is_writing:
                await self.until_landed()
            # Cancelled while the change reads, it is made anew; cancelled later, it is carried through.
            error = await (self._commit() if change is None else self._commit_with(change, then))

        if insisted:
            await commit()
        else:
            self._cancelled = await come_what_may(commit) or self._cancelled
        if self._cancelled is not None:
            if error is not None:
                self._break(error)  # whoever is cancelled can't see to it any more
            self._raise_cancelled()
        return error

    async def _commit_with(self, change: Change[T], then: Callable[[T], None] | None) -> Exception | None:
        """Write everything that changed with a change; or nothing, if that raises."""
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
        """Like `try_commit`, in the transaction that `fn` is called with; `rows` of its value are written, too.

        Only where nothing is in flight.
        """
        assert not self.is_writing, "one flush is in flight per instance"
        journal, taken = self._journal, list[WriteSet]()

        def finish(value: T) -> Batch:
            written = rows(value)
            while taken:  # the try before this one came to nothing
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
        except Exception as error:  # noqa: BLE001  # of the author or of the store, which the caller can tell apart
            return error
        except BaseException:
            # By somebody whom no shield keeps off. What the record is then, only the next run can read.
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
        """Write everything that changed, and what a batch has beside it."""
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
            # Whoever waits must not take it for stored.
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
        """Of a commit that was too large, tell what took the most room."""
        rows = [write for write in batch.writes if isinstance(write, Set)]
        if rows:
            key, raw = max(rows, key=lambda row: len(row.value))
            name = self._journal.unwritten.name_row(key, raw, self._journal.names)
            self.largest = f"{name} takes {len(raw):,} bytes of it"

    async def _carry_through(self, batch: Batch, writes: WriteSet) -> None:
        """After a commit that was cancelled: have it applied, unless it has been.

        What it wrote must not be written twice: others may have changed it since.
        """

        async def carry_through() -> None:
            if not await self._is_applied(batch, writes):
                await self._driver.commit(batch)

        await come_what_may(carry_through)

    async def _is_applied(self, batch: Batch, writes: WriteSet) -> bool:
        """Whether a commit that the store has decided was applied. What changes nothing, if done again, may be unsure.

        Only what changes the instance can be something that others change, too; and that is counted.
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
