"""Commits: a batch is applied exactly once or not at all, and what callers are told of it is true.

A commit can end without an answer (`commit_unknown_result`, and others), and by FoundationDB's documentation it may
even happen later. So every batch writes its number into a slot that it alone has, and declares that it has read that
slot. Then:

- Whoever reads the number in the slot knows that the batch was applied. The checks of a batch that is tried again may
  fail because it was applied the first time, so the slot is looked at before them.
- Of two tries, at most one is applied: both have read the slot, and both write to it. Whichever comes first, the
  other conflicts with it. For that, each has to have its read version before it is sent off.
- Before anything but success is reported of a batch in doubt, another number is written into the slot. Once that is
  committed, no try that is still on its way can be applied.

A slot is used again by the next commit, so there are only as many slots as there were commits at once.

Values that are too large together for one transaction are staged: their chunks are written ahead, in transactions of
their own. Nobody sees the chunks before the commit that makes them the value of a key. Until then, their ids are on a
list, with the time. The commit takes them off the list, and fails if they are not on it any more.

The slots and the staged chunks of a process that died stay. Whoever opens the store later clears them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic

import anyio

from workflow_drivers.foundationdb._binding import Transaction, Value, code_of
from workflow_drivers.foundationdb._keys import Blob, Space, Token, Tokens, holds, time_now
from workflow_drivers.foundationdb._plan import Plan, plan_of
from workflow_drivers.foundationdb._session import Session, TimeUpError, get_row, ready, result, settled
from workflow_sdk.driver import Batch, unmet_check
from workflow_sdk.errors import StorageError, StorageLimitError

WHAT = "commit"

# What a commit may answer that says: it did not happen and will not. By FoundationDB's documentation, these are the
# ones that its predicate "retryable, not committed" is true for, and the mistakes of a caller from 2000 on. Whatever
# else it answers leaves the batch in doubt.
NOT_HAPPENED = frozenset({1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223, 1235})
MISTAKES = range(2000, 3000)

# The part of `timeout` that is kept for ending the doubt about a commit that has not answered.
SETTLING = 0.2

TRANSACTION_CHUNKS = 10  # chunks are written ahead a megabyte at a time, as FoundationDB's makers recommend
STAGED_OLD_SECONDS = 3_600.0  # when staged chunks are nobody's any more: much longer than anybody's `timeout`

# More keys than this are not asked for one by one: the range around them is read, which is mostly empty.
POINTS_MAX = 16
IN_RANGE_MAX = 200

# How long a driver remembers that there are no large values, since every commit would read the same key. The cost: in
# the first seconds after the first large value of a store, another driver that overwrites it leaves its chunks there.
# They are cleared when something is written at that key again.
NO_LARGE_SECONDS = 10.0


class Committer:
    """Applies batches through one driver's slots."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tokens = Tokens(session.space)
        self._has_large = False  # as far as it is known
        self._asked_for_large = float("-inf")

    async def commit(self, batch: Batch) -> None:
        """Apply the batch, or raise why not. If cancelled, this still returns only when that is decided."""
        plan = plan_of(batch, self._session.space)
        if not batch:
            return
        if not plan.is_staged:
            await self._apply(plan)
            return
        try:
            await self._stage(plan.blobs)
            await self._apply(plan)
        except Exception:
            with suppress(Exception):  # what can't be cleared now is cleared by whoever opens the store later
                for blob in plan.blobs:
                    await unstage(self._session, blob.about.id)
            raise

    async def transact(self, make: Callable[[Transaction], Awaitable[Batch]]) -> None:
        """Apply the batch that `make` returns for a transaction in which it has read and written before.

        `make` is called for each try, and may return something else each time. So each try has a number of its own, and
        a try that is in doubt is settled before the next one: what is recorded has to be what was applied.
        """
        session = self._session
        seconds = session.settings.timeout * (1 - SETTLING)
        deadline = anyio.current_time() + seconds

        async def body(transaction: Transaction) -> None:
            plan: Plan | None = None
            token = self._tokens.take()
            try:
                plan = plan_of(await make(transaction), session.space)
                plan.is_shared = True
                if plan.is_staged:
                    # What is written ahead now is not there yet in the state that the transaction reads.
                    raise StorageLimitError(
                        "values of more than 10 MB together can't be stored in one transaction with others' writes; "
                        "nothing was written"
                    )
                await self._prepare(transaction, plan, token)
                await self._end(transaction, plan, token, deadline)
            except BaseException as error:  # noqa: BLE001  # `_report` raises it, unless the batch was applied
                if not isinstance(error, session.error):
                    transaction.cancel()  # so that a thread of the author's that still waits for a read goes on
                await self._report(plan, token, error)
            finally:
                self._tokens.give_back(token)

        try:
            await session.run(WHAT, body, seconds, raised=MISTAKES)
        except session.error as error:
            failure = session.failure(WHAT, error)
            # Most likely a mistake of the author's function, which gets the error of the binding.
            raise failure if isinstance(failure, StorageLimitError) else error from None

    async def forget_slots(self, seconds: float) -> None:
        """Clear the slots of this driver that no commit has at the moment."""
        keys = self._tokens.take_all()

        async def body(transaction: Transaction) -> None:
            for key in keys:
                transaction.clear(key)
            await result(transaction.commit())

        if keys:
            await self._session.run("clear its own marks", body, seconds)

    async def _apply(self, plan: Plan) -> None:
        seconds = self._session.settings.timeout * (1 - SETTLING)
        deadline = anyio.current_time() + seconds
        token = self._tokens.take()

        async def body(transaction: Transaction) -> None:
            if await self._prepare(transaction, plan, token):
                token.is_in_doubt = False
                self._applied(plan, after_doubt=True)
            elif plan.writes:
                await self._end(transaction, plan, token, deadline)

        try:
            await self._session.run(WHAT, body, seconds)
        except BaseException as error:  # noqa: BLE001  # as above
            await self._report(plan, token, error)
        finally:
            self._tokens.give_back(token)

    async def _prepare(self, transaction: Transaction, plan: Plan, token: Token) -> bool:
        """Read and check what has to be, and make the writes. True: nothing is to do, the batch was applied before."""
        session = self._session
        if session.settings.automatic_idempotency:
            transaction.options.set_automatic_idempotency()
        mark, reads = await self._read(transaction, plan, token)
        if mark == token.value:
            return True
        for (key, expected), read in zip(plan.checks, reads, strict=True):
            if not holds(read.value, expected):
                session.counts.checks_failed += 1
                raise unmet_check(key.removeprefix(session.space.rows))
        if plan.is_staged:
            await self._check_staged(transaction, plan.blobs)
        if plan.writes:
            large = await self._large_to_clear(transaction, plan)
            if plan.blobs and not self._has_large:
                transaction.set(session.space.has_large, b"")
            _write(transaction, session.space, plan, large)
            transaction.set(token.key, token.value)
        return False

    async def _read(self, transaction: Transaction, plan: Plan, token: Token) -> tuple[bytes | None, list[Value]]:
        """What the slot holds, if that is in doubt, and the rows that the plan checks."""
        marks: list[Value] = []
        if token.is_in_doubt:
            marks.append(transaction.get(token.key))
        elif plan.writes:
            # As if it had been read. Before the write, or it would have no effect.
            transaction.add_read_conflict_key(token.key)
        reads = [transaction.get(key) for key, _ in plan.checks]
        if not marks and not reads:
            # A commit that has read nothing asks for its version itself, and goes on doing so when it is given up. It
            # would come with a newer one than what ends the doubt about it, and conflict with nothing.
            await result(transaction.get_read_version())
        await ready(*marks, *reads)
        return marks[0].value if marks else None, reads

    async def _end(self, transaction: Transaction, plan: Plan, token: Token, deadline: float) -> None:
        """Commit, and wait for the end of that even if the caller is cancelled meanwhile."""
        was_in_doubt, token.is_in_doubt = token.is_in_doubt, True
        future = transaction.commit()
        cancelled = await settled(future, deadline)
        if not future.is_ready():
            transaction.cancel()  # which does not call the commit back: it may still happen
            self._session.counts.unknown_results += 1
            if cancelled is not None:
                raise cancelled
            raise TimeUpError
        try:
            future.wait()
        except self._session.error as error:
            if (code := code_of(error)) in NOT_HAPPENED or code in MISTAKES:
                token.is_in_doubt = was_in_doubt
            else:
                self._session.counts.unknown_results += 1
            if cancelled is not None:
                raise cancelled from error
            raise
        token.is_in_doubt = False
        if cancelled is not None:
            raise cancelled
        self._applied(plan)

    async def _report(self, plan: Plan | None, token: Token, error: BaseException) -> None:
        """Raise what callers are told of a commit that ended with `error`; nothing, if it was applied all the same."""
        applied = await self._settle(token) if token.is_in_doubt else False
        if applied and plan is not None:
            self._applied(plan, after_doubt=True)
        if not isinstance(error, Exception):
            raise error  # a cancellation goes on, whatever became of the commit
        if applied is None:
            known = self._session.time_up(WHAT, None) if isinstance(error, TimeUpError) else error
            raise StorageError(f"{known}. Whether the batch was applied is not known") from error
        if not applied:
            raise error

    async def _settle(self, token: Token) -> bool | None:
        """End the doubt: return whether the batch was applied. If not, it never will be. None: no answer in time."""
        session = self._session

        async def body(transaction: Transaction) -> bool:
            value = await get_row(transaction, token.key)
            if value != token.value:
                # A try that is still on its way has read the slot, and conflicts with this.
                transaction.set(token.key, self._tokens.next_value())
                await result(transaction.commit())
            return value == token.value

        applied: bool | None = None
        cancelled: BaseException | None = None
        deadline = monotonic() + session.settings.timeout * SETTLING
        with anyio.CancelScope(shield=True), suppress(StorageError):
            while applied is None and (seconds := deadline - monotonic()) > 0:
                try:
                    applied = await session.run(WHAT, body, seconds)
                except anyio.get_cancelled_exc_class() as caught:
                    cancelled = caught  # asyncio's own, of the task, which no shield keeps off: this begins again
        if applied is not None:
            token.is_in_doubt = False
        if cancelled is not None:
            raise cancelled
        return applied

    def _applied(self, plan: Plan, *, after_doubt: bool = False) -> None:
        self._session.counts.unknown_applied += after_doubt
        self._session.counts.commits += 1
        self._has_large |= bool(plan.blobs)

    async def _large_to_clear(self, transaction: Transaction, plan: Plan) -> list[tuple[bytes, bytes]]:
        """The large values that the plan overwrites or clears: their keys, and the ids of their chunks.

        To find them, the keys that have large values are kept a second time, in a range of their own, which is mostly
        empty. As long as no large value was ever stored, it is not read at all.
        """
        space = self._session.space
        if not self._has_large and monotonic() - self._asked_for_large > NO_LARGE_SECONDS:
            self._has_large = await get_row(transaction.snapshot, space.has_large) is not None
            self._asked_for_large = monotonic()
        if not self._has_large and not plan.blobs:
            return []
        found: list[tuple[bytes, bytes]] = []
        for begin, end in plan.ranges:
            # Not from the snapshot: if somebody stores a large value there meanwhile, this commit has to conflict. Else
            # it would clear the value and leave its chunks.
            rows = await self._session.scan_rows(transaction, space.large + begin, space.large + end)
            found += [(key.removeprefix(space.large), id) for key, id in rows]
        return found + await self._large_at(transaction, [*plan.clears, *(key for key, _ in plan.sets)])

    async def _large_at(self, transaction: Transaction, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        # From the snapshot: a value that is overlooked here stays listed as large, and is found by the next commit that
        # writes there. A value that is found has to be there still at the commit, which `_write` sees to.
        reads, base = transaction.snapshot, self._session.space.large
        if len(keys) > POINTS_MAX:
            first, last = base + min(keys), base + max(keys) + b"\x00"
            rows = await self._session.scan_rows(reads, first, last, IN_RANGE_MAX)
            if len(rows) < IN_RANGE_MAX:
                wanted = set(keys)
                found = [(key[len(base) :], id) for key, id in rows]
                return [(key, id) for key, id in found if key in wanted]
        futures = [reads.get(base + key) for key in keys]
        await ready(*futures)
        return [(key, id) for key, future in zip(keys, futures, strict=True) if (id := future.value) is not None]

    async def _stage(self, blobs: Sequence[Blob]) -> None:
        for blob in blobs:
            chunks = list(enumerate(blob.chunks()))
            for start in range(0, len(chunks), TRANSACTION_CHUNKS):
                await self._write_ahead(blob.about.id, chunks[start : start + TRANSACTION_CHUNKS])

    async def _write_ahead(self, id: bytes, chunks: Sequence[tuple[int, bytes]]) -> None:
        """Write chunks. This may take as long as a whole operation, since a large value is much to write."""
        space = self._session.space

        async def body(transaction: Transaction) -> None:
            # Writing this twice changes nothing, so a commit without an answer is simply tried again.
            transaction.set(space.staged + id, time_now())
            for number, chunk in chunks:
                transaction.set(space.chunk(id, number), chunk)
            await result(transaction.commit())

        await self._session.run("write a large value", body)

    async def _check_staged(self, transaction: Transaction, blobs: Sequence[Blob]) -> None:
        """Have the transaction fail unless the chunks are still there when it commits."""
        futures = [transaction.get(self._session.space.staged + blob.about.id) for blob in blobs]
        await ready(*futures)
        if any(future.value is None for future in futures):
            raise StorageError(
                f"{self._session.settings}: large values that had been written ahead were cleared before the commit "
                f"came, which was more than {STAGED_OLD_SECONDS:g} s later; nothing was written"
            )


async def unstage(session: Session, id: bytes) -> None:
    """Clear chunks that are not needed any more. Those that a commit has taken off the list meanwhile stay."""
    space = session.space

    async def body(transaction: Transaction) -> None:
        if await get_row(transaction, space.staged + id) is not None:
            transaction.clear(space.staged + id)
            transaction.clear_range(*space.chunks_of(id))
            await result(transaction.commit())

    await session.run("clear a large value", body)


def _write(transaction: Transaction, space: Space, plan: Plan, large: Sequence[tuple[bytes, bytes]]) -> None:
    """Make the writes of the plan, and clear the chunks of the `large` values that it overwrites or clears."""
    for begin, end in plan.ranges:
        transaction.clear_range(space.rows + begin, space.rows + end)
    for key in plan.clears:
        transaction.clear(space.rows + key)
    for key, id in large:
        # Another commit that replaces the value at the same time has found the same chunks. The second one has to clear
        # the chunks of the first instead, so it must conflict. Before the write, or this would have no effect.
        transaction.add_read_conflict_key(space.large + key)
        transaction.clear(space.large + key)
        transaction.clear_range(*space.chunks_of(id))
    for key, row in plan.sets:
        if isinstance(row, bytes):
            transaction.set(space.rows + key, row)
        else:
            # As above, of two commits that store a large value where there was none.
            transaction.add_read_conflict_key(space.large + key)
            transaction.set(space.rows + key, row.about.row)
            transaction.set(space.large + key, row.about.id)
    for place, place_among_large, row in plan.appends:
        if isinstance(row, bytes):
            transaction.set_versionstamped_key(place, row)
        else:
            transaction.set_versionstamped_key(place, row.about.row)
            transaction.set_versionstamped_key(place_among_large, row.about.id)
    for blob in plan.blobs:
        _write_blob(transaction, space, blob, plan.is_staged)


def _write_blob(transaction: Transaction, space: Space, blob: Blob, is_staged: bool) -> None:
    if is_staged:
        transaction.clear(space.staged + blob.about.id)
        return
    for number, chunk in enumerate(blob.chunks()):
        transaction.set(space.chunk(blob.about.id, number), chunk)
