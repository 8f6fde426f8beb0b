"""What happens in one transaction at a time: waiting for the binding's futures, tries, and reads of one state.

A future becomes ready in the binding's network thread, which all event loops of a process share. All that happens
there is that the loop which waits is told, by callback: no thread waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from workflow_drivers.foundationdb._binding import Binding, Database, Future, Reads, Settings, Transaction, code_of
from workflow_drivers.foundationdb._keys import Large, Space, read
from workflow_sdk.driver import caller_from_threads
from workflow_sdk.errors import StorageError, StorageLimitError

T = TypeVar("T")

TRIES_MAX = 100
"""The most tries of a transaction. With the pauses of the binding, time is up long before, unless they are 0."""

NOT_COMMITTED = 1020
CANCELLED = 1025
TIMED_OUT = 1031
_TOO_LARGE = {2101: "a transaction", 2102: "a key", 2103: "a value"}

# Errors that the binding's `on_error` gives up on, though a new transaction may succeed. They come from time limits
# that somebody else has set in the binding, as this driver sets none. A commit that runs out of time may still happen.
_ONLY_THIS_TRANSACTION = {CANCELLED, TIMED_OUT}
_PAUSE_SECONDS = 0.05

CHUNKS_AT_ONCE = 100  # how many are read together: 10 MB, about as many as the largest value has
LIMIT_MAX = 2**31 - 1  # what the library takes: its limit is an `int` of C, where a larger one would wrap around


class Waker:
    """An event of the event loop in which it is made. Any thread can set it."""

    __slots__ = ("_event", "_soon")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._soon = caller_from_threads()

    def wake(self, _: object = None) -> None:
        """End the wait. Callable from any thread; a callback of futures."""
        # In a loop that has been closed nobody waits. The network thread must not get its error.
        with suppress(RuntimeError):
            self._soon(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()


async def ready(*futures: Future) -> None:
    """Return when all are ready. If the wait is cancelled, so are they."""
    try:
        for future in futures:
            if not future.is_ready():
                waker = Waker()
                future.on_ready(waker.wake)
                await waker.wait()
    except BaseException:
        for future in futures:
            future.cancel()
        raise


async def result(future: Future) -> Any:
    """Wait for the future; return what it holds, or raise the binding's error."""
    await ready(future)
    return future.wait()


async def settled(future: Future, deadline: float) -> BaseException | None:
    """Wait until the future is ready or the deadline has come; return the last cancellation that came meanwhile.

    This is for commits. One that is under way can't be called back, and whoever gave up on it could not know what is
    stored. So a cancellation waits, and the caller raises it afterwards.
    """
    cancelled: BaseException | None = None
    if future.is_ready():
        return None
    waker = Waker()
    future.on_ready(waker.wake)
    with anyio.CancelScope(shield=True, deadline=deadline) as scope:
        while not future.is_ready():
            try:
                await waker.wait()
            except anyio.get_cancelled_exc_class() as caught:
                if scope.cancel_called:
                    raise
                cancelled = caught  # asyncio's own, of the task, which no shield keeps off
    return cancelled


async def get_row(reads: Reads, key: bytes) -> bytes | None:
    """The row at a key of the cluster."""
    future = reads.get(key)
    await ready(future)
    return future.value


@dataclass(slots=True)
class Counts:
    """What happened since the driver was opened."""

    commits: int = 0
    conflicts: int = 0
    """Transactions that lost against another one and were tried again."""
    checks_failed: int = 0
    retries: int = 0
    """Transactions that were tried again for any reason, conflicts included."""
    unknown_results: int = 0
    """Commits that ended without an answer."""
    unknown_applied: int = 0
    """How many of those were found to have been applied."""
    watches: int = 0
    polls: int = 0


class TimeUpError(Exception):
    """The deadline has come, and it is known that nothing was applied, or the caller finds out."""


class Session:
    """A store in a cluster, and the rules by which its transactions are tried again."""

    def __init__(self, binding: Binding, database: Database, settings: Settings, space: Space) -> None:
        self.binding = binding
        self.database = database
        self.settings = settings
        self.space = space
        self.counts = Counts()
        self.error = binding.FDBError

    async def run(
        self,
        what: str,
        body: Callable[[Transaction], Awaitable[T]],
        seconds: float | None = None,
        raised: Container[int] = (),
    ) -> T:
        """Call `body` with a transaction, and again after errors that pass; return what it returns.

        Other errors, and the end of the time, are a StorageError; the codes in `raised` are raised as they are. Since
        `body` may run many times, running it again must do no harm.
        """
        transaction = self.database.create_transaction()
        last: Exception | None = None
        with anyio.move_on_after(self.settings.timeout if seconds is None else seconds), suppress(TimeUpError):
            for _ in range(TRIES_MAX):
                try:
                    return await body(transaction)
                except self.error as error:
                    if code_of(error) in raised:
                        raise
                    last = error
                    transaction = await self.again(what, transaction, error)
            raise self.failure(what, last, f"after {TRIES_MAX} tries")
        raise self.time_up(what, last)

    async def again(self, what: str, transaction: Transaction, error: Exception) -> Transaction:
        """Wait as long as the binding says, and return a transaction for another try. StorageError if none helps."""
        code = code_of(error)
        if code in _ONLY_THIS_TRANSACTION:
            await anyio.sleep(_PAUSE_SECONDS)
            transaction = self.database.create_transaction()
        else:
            try:
                await result(transaction.on_error(error))
            except self.error as refused:
                raise self.failure(what, refused) from error
        self.counts.retries += 1
        if code == NOT_COMMITTED:
            self.counts.conflicts += 1
        return transaction

    def time_up(self, what: str, last: Exception | None) -> StorageError:
        return self.failure(what, last, f"within {self.settings.timeout:g} s (timeout)")

    def failure(self, what: str, error: Exception | None, detail: str = "") -> StorageError:
        """A StorageError that says what was to be done, and what error of the binding, or its silence, prevented it."""
        text = f"{self.settings} could not {what}{detail and ' '}{detail}"
        if error is None:
            return StorageError(f"{text}: no answer from the cluster. Is it up, and is the cluster file the right one?")
        code = code_of(error)
        if code in _TOO_LARGE:
            failure: StorageError = StorageLimitError(
                f"{text}: {_TOO_LARGE[code]} is over FoundationDB's limit for it (error {code}); nothing was written"
            )
        else:
            description = getattr(error, "description", error)
            said = description.decode() if isinstance(description, bytes) else description
            failure = StorageError(f"{text}: FoundationDB's error {code}, {said}")
        failure.__cause__ = error
        return failure

    async def get_value(self, reads: Reads, key: bytes) -> bytes | None:
        """The value at a key of the store."""
        row = await get_row(reads, self.space.rows + key)
        return None if row is None else (await self._values(reads, [row]))[0]

    async def scan_rows(
        self, reads: Reads, begin: bytes, end: bytes, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows between two keys of the cluster, read page by page.

        The iterator of the public `get_range` blocks its thread between pages. So this makes the calls that it makes,
        whose result is `(rows, count, more)`.
        """
        found: list[tuple[bytes, bytes]] = []
        if begin >= end or limit == 0:
            return found
        selectors, mode = self.binding.KeySelector, self.binding.StreamingMode.want_all
        first, last = selectors.first_greater_or_equal(begin), selectors.first_greater_or_equal(end)
        page = 1
        while True:
            left = 0 if limit is None else min(limit - len(found), LIMIT_MAX)  # 0 is no limit
            future = reads._get_range(first, last, left, mode, page, reverse)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # see above
            rows, _, more = await result(future)
            found += [(row.key, row.value) for row in rows]
            if not rows or not more or len(found) == limit:
                return found
            # As the iterator does it. The end of a range is not in it, so in reverse the last row ends the next page.
            if reverse:
                last = selectors.first_greater_or_equal(rows[-1].key)
            else:
                first = selectors.first_greater_than(rows[-1].key)
            page += 1

    async def scan_values(
        self, reads: Reads, begin: bytes, end: bytes, limit: int | None, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        """The rows between two keys of the store, with their values."""
        base = self.space.rows
        rows = await self.scan_rows(reads, base + begin, base + end, limit, reverse)
        values = await self._values(reads, [row for _, row in rows])
        return [(key[len(base) :], value) for (key, _), value in zip(rows, values, strict=True)]

    async def _values(self, reads: Reads, rows: Sequence[bytes]) -> list[bytes]:
        """The values in rows. Large ones are put together from their chunks."""
        found: list[Any] = [read(row) for row in rows]
        large = [(at, value) for at, value in enumerate(found) if isinstance(value, Large)]
        chunks = await self._chunks(reads, [value for _, value in large])
        for at, value in large:
            found[at] = joined = b"".join([chunks.popleft() for _ in range(value.count)])
            if len(joined) != value.size:
                raise StorageError(
                    f"{self.settings} has lost a part of a value: {len(joined):,} of {value.size:,} bytes"
                )
        return found

    async def _chunks(self, reads: Reads, values: Sequence[Large]) -> deque[bytes]:
        """The chunks of values. Several are read at once, but not all."""
        places = [self.space.chunk(value.id, number) for value in values for number in range(value.count)]
        chunks: deque[bytes] = deque()
        for start in range(0, len(places), CHUNKS_AT_ONCE):
            futures = [reads.get(place) for place in places[start : start + CHUNKS_AT_ONCE]]
            await ready(*futures)
            chunks.extend(future.value or b"" for future in futures)
        return chunks
