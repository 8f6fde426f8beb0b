"""Writing what changed. One flush is in flight per instance; those who ask meanwhile share the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

import anyio

from workflow_sdk.core.journal import Journal, WriteSet
from workflow_sdk.core.keys import Field
from workflow_sdk.driver import (
    Batch,
    Clear,
    ClearRange,
    ConflictError,
    Driver,
    Set,
    StorageLimitError,
    Transacting,
)
from workflow_sdk.errors import StorageError
from workflow_sdk.execution.insisting import come_what_may

__all__ = ["Flusher", "Part", "PartState", "fill"]

PARTS_MAX = 200
PARTS_BYTES_SOFT_MAX = 1_000_000
"""More than these do not go with one commit: stores limit the size of one."""
BASELESS_MAX = 3
"""How often a store may speak of a conflict where none is to be seen."""


T = TypeVar("T")


class PartState(Enum):
    """What became of a part."""

    STAGED = 1
    STORED = 2
    MOVED_ON = 3
    """What it reaches is not as it was when the part was made."""
    WITHDRAWN = 4
    """Nobody wants it any more."""


@dataclass(slots=True)
class Part:
    """Something that an instance does to another one, and the record of it: both in one commit, or neither."""

    target: str
    """Which instance it reaches: a commit reaches each only once."""
    batch: Batch
    """What is written there, and what has to hold for that."""
    rows: Callable[[int], list[tuple[bytes, bytes]]]
    """The record, given how many commits have changed the instance with this one."""
    stored: Callable[[], None]
    """Called once both are in the store."""
    is_wanted: Callable[[], bool]
    weight: int = 0
    """About how many bytes it has."""
    state: PartState = PartState.STAGED


_as_set = cast(
    "Callable[[tuple[bytes, bytes | None]], Set]",
    partial(tuple.__new__, Set),  # pyright: ignore[reportUnknownMemberType]  # of a tuple of anything
)
"""A row as a write, without a call of Python's for each."""


def fill(batch: Batch, writes: WriteSet) -> None:
    """Put a write set into a batch."""
    if writes.checks:
        batch.checks.extend(writes.checks.items())
    for begin, end in writes.clears:
        batch.writes.append(ClearRange(begin, end))
    if None in writes.rows.values():
        batch.writes.extend(Clear(key) if value is None else Set(key, value) for key, value in writes.rows.items())
    else:
        batch.writes.extend(map(_as_set, writes.rows.items()))


def _first_wanted(parts: deque[Part]) -> Part | None:
    """The first of them that somebody wants still. It is taken out, with those before it."""
    while parts:
        part = parts.popleft()
        if part.is_wanted():
            return part
        part.state = PartState.WITHDRAWN
    return None


class Flusher:
    """Brings one instance's changes to the store, under its lease."""

    __slots__ = (
        "_baseless",
        "_cancelled",
        "_driver",
        "_failed",
        "_journal",
        "_lease",
        "_next",
        "_parts",
        "_writing",
        "_written",
        "is_broken",
        "largest",
    )

    def __init__(self, driver: Driver, journal: Journal, lease: bytes, failed: Callable[[Exception], None]) -> None:
        self._driver = driver
        self._journal = journal
        self._lease = lease
        self._failed = failed
        self.is_broken: bool = False
        """A commit failed: nothing is written any more."""
        self.largest: str = ""
        """What took the most room in a commit that was too large for the store, in words."""
        self._parts: dict[str, deque[Part]] = {}
        """What is staged, by the target: those that have waited longest first."""
        self._baseless = 0
        """How often the store has spoken of a conflict where none was to be seen."""
        self._writing = False
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
        if alone and not self._writing and self._next is None:
            # Nearly every step comes through here.
            if self._parts or self.is_broken:
                await self._write()
            elif self._journal.is_dirty:
                error = await self._commit(Batch())
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
        elif self._writing:
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
        while self._writing:
            if self._written is None:
                self._written = anyio.Event()
            await self._written.wait()

    def stage(self, part: Part) -> None:
        """Have a part written by the next flush."""
        self._parts.setdefault(part.target, deque()).append(part)

    async def _write(self) -> None:
        while not self.is_broken and (self._parts or self._journal.is_dirty):
            parts = self._next_parts()
            if not parts and not self._journal.is_dirty:
                return
            error = await self._commit(Batch(), parts)
            if error is not None and (error := await self._reconsider(error, parts)) is not None:
                self._break(error)
                return
            if not self._parts:
                return

    async def _reconsider(self, error: Exception, parts: list[Part]) -> Exception | None:
        """After a commit that failed: the error, unless some of the parts can't be written any more, and others may."""
        if not parts or not isinstance(error, ConflictError):
            return error
        # Until it is clear what goes with the next commit, there is none.
        self._writing = True
        try:
            if await self._has_lost():
                return error
            moved_on = await self._moved_on(parts)
        except Exception as failure:  # noqa: BLE001  # the store failed
            return failure
        finally:
            self._has_landed()
        self._baseless = 0 if moved_on else self._baseless + 1
        again: dict[str, deque[Part]] = {}
        for part in parts:
            if part.state is PartState.STAGED:
                again[part.target] = self._parts.pop(part.target, deque())
                again[part.target].appendleft(part)
        self._parts = {**again, **self._parts}
        return error if self._baseless > BASELESS_MAX else None

    def _next_parts(self) -> list[Part]:
        """Those that go with one commit. They are taken out of what is staged."""
        found: list[Part] = []
        weight = 0
        for target in list(islice(self._parts, PARTS_MAX)):
            queue = self._parts.pop(target)
            part = _first_wanted(queue)
            if part is not None:
                found.append(part)
                weight += part.weight
            if queue:
                # After those that were not reached this time.
                self._parts[target] = queue
            if weight > PARTS_BYTES_SOFT_MAX:
                break
        return found

    async def _has_lost(self) -> bool:
        return await self._driver.get(self._journal.keys.lease) != self._lease

    async def _moved_on(self, parts: list[Part]) -> bool:
        """Find the parts that can't be written any more; False if there are none."""
        for part in parts:
            for key, expected in part.batch.checks:
                if await self._driver.get(key) != expected:
                    part.state = PartState.MOVED_ON
                    break
        return any(part.state is PartState.MOVED_ON for part in parts)

    async def commit(self, batch: Batch) -> None:
        """Write everything that changed, and what is in the batch already, in one commit."""
        error = await self.try_commit(batch)
        if error is not None:
            self._break(error)

    async def try_commit(self, batch: Batch, then: Callable[[], None] | None = None) -> Exception | None:
        """Like `commit`, but a failure is returned, and left to the caller.

        A cancellation is raised when it is decided, and after `then`, which is called once it is stored.
        """
        error: Exception | None = None  # a cancel scope may end a block early, as far as type checkers know
        cancelled: BaseException | None = None
        with anyio.CancelScope(shield=True):
            cancelled = await come_what_may(self.until_landed)
            error = await self._commit(batch)
        self._cancelled = self._cancelled or cancelled
        if error is None and then is not None:
            then()
        if self._cancelled is not None:
            if error is not None:
                self._break(error)  # whoever is cancelled can't see to it any more
            self._raise_cancelled()
        return error

    async def may_try_again(self, error: Exception, batch: Batch) -> bool:
        """After a commit with checks of others: whether it was these that did not hold, and not our own."""
        if not isinstance(error, ConflictError) or await self._has_lost():
            return False
        own = self._journal.keys.lease
        for key, expected in batch.checks:
            if key != own and await self._driver.get(key) != expected:
                return True
        self._baseless += 1
        return self._baseless <= BASELESS_MAX

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
            journal.touch()
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
            # By somebody whom no shield keeps off. What the record is then, only the next run can read.
            taken.clear()
            self._break(StorageError("the run was cancelled in a transaction, and does not know what it has stored"))
            raise
        finally:
            while taken:
                journal.restore(taken.pop())
            self._has_landed()
        return None

    def _break(self, error: Exception) -> None:
        self.is_broken = True
        self._failed(error)

    async def _commit(self, batch: Batch, parts: list[Part] | None = None) -> Exception | None:
        journal = self._journal
        batch.checks.append((journal.keys.lease, self._lease))
        if parts:
            journal.touch()
        writes = journal.take()
        fill(batch, writes)
        for part in parts or ():
            batch.checks.extend(part.batch.checks)
            batch.writes.extend(part.batch.writes)
            for key, raw in part.rows(journal.version):
                batch.set(key, raw)
        self._writing = True
        try:
            try:
                await self._driver.commit(batch)
            except anyio.get_cancelled_exc_class() as cancelled:
                self._cancelled = cancelled
                await self._carry_through(batch, writes)
        except Exception as error:  # noqa: BLE001  # whatever the driver raises: the store failed, and nobody else did
            if isinstance(error, StorageLimitError):
                self._note_largest(batch)
            journal.restore(writes)
            return error
        except BaseException:
            # Whoever waits must not take it for stored.
            self.is_broken = True
            journal.restore(writes)
            raise
        else:
            for part in parts or ():
                part.state = PartState.STORED
                part.stored()
        finally:
            self._has_landed()
        return None

    def _note_largest(self, batch: Batch) -> None:
        """Of a commit that was too large, tell what took the most room."""
        rows = [write for write in batch.writes if isinstance(write, Set)]
        if rows:
            key, raw = max(rows, key=lambda row: len(row.value))
            self.largest = f"{self._journal.name_row(key, raw)} takes {len(raw):,} bytes of it"

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
        self._writing = False
        if self._written is not None:
            self._written.set()
            self._written = None
