"""Commits: a batch is applied exactly once or not at all, and what callers are told of it is true.

A commit can end without an answer (`commit_unknown_result`, and others), and by FoundationDB's documentation it may
even happen later. So every batch writes its number into a slot that it alone has (see `_tokens.py`), and declares that
it has read that slot. Then:

- Whoever reads the number in the slot knows that the batch was applied. The checks of a batch that is tried again may
  fail because it was applied the first time, so the slot is looked at before them.
- Of two tries, at most one is applied: both have read the slot, and both write to it. Whichever comes first, the
  other conflicts with it. For that, each has to have its read version before it is sent off.
- Before anything but success is reported of a batch in doubt, another number is written into the slot. Once that is
  committed, no try that is still on its way can be applied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic

import anyio

from workflow_drivers.foundationdb._binding import Future, Transaction, Value, code_of
from workflow_drivers.foundationdb._plan import Plan
from workflow_drivers.foundationdb._reading import get_row
from workflow_drivers.foundationdb._session import TRIES_MAX, Session, TimeUpError
from workflow_drivers.foundationdb._staging import check_staged, stage, unstage
from workflow_drivers.foundationdb._tokens import Token, Tokens
from workflow_drivers.foundationdb._values import holds
from workflow_drivers.foundationdb._waiting import all_ready, committed, ready, settled
from workflow_drivers.foundationdb._writing import LargeValues, write
from workflow_sdk.driver import unmet_check
from workflow_sdk.errors import StorageError, StorageLimitError

WHAT = "commit"

# What a commit may answer that says: it did not happen and will not. By FoundationDB's documentation, these are the
# ones that its predicate "retryable, not committed" is true for, and the mistakes of a caller from 2000 on. Whatever
# else it answers leaves the batch in doubt.
NOT_HAPPENED = frozenset({1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223, 1235})
MISTAKES = range(2000, 3000)

# The part of `timeout` that is kept for ending the doubt about a commit that has not answered.
SETTLING = 0.2


class Committer:
    """Applies batches through one driver's slots."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._large = LargeValues(session)
        self._tokens = Tokens(session.space)

    async def commit(self, plan: Plan) -> None:
        """Apply the plan, or raise why not. If cancelled, this still returns only when that is decided."""
        if plan.is_staged:
            try:
                await stage(self._session, plan.blobs)
                await self._apply(plan)
            except Exception:
                with suppress(Exception):  # what can't be cleared now is cleared by whoever opens the store later
                    await unstage(self._session, [blob.about.id for blob in plan.blobs])
                raise
        else:
            await self._apply(plan)

    async def transact(self, make: Callable[[Transaction], Awaitable[Plan]]) -> None:
        """Apply the plan that `make` returns for a transaction in which it has read and written before.

        `make` is called for each try, and may return something else each time. So each try has a number of its own, and
        a try that is in doubt is settled before the next one: what is recorded has to be what was applied.
        """
        session = self._session
        deadline = monotonic() + session.settings.timeout * (1 - SETTLING)
        transaction = session.database.create_transaction()
        last: Exception | None = None
        for _ in range(TRIES_MAX):
            token = self._tokens.take()
            try:
                await self._apply_once(transaction, make, token, deadline)
                return
            except TimeUpError:
                raise session.time_up(WHAT, last) from None
            except session.error as error:
                if code_of(error) in MISTAKES:
                    failure = session.failure(WHAT, error)
                    # Most likely a mistake of the author's function, which gets the error of the binding.
                    raise failure if isinstance(failure, StorageLimitError) else error from None
                last = error
            finally:
                self._tokens.give_back(token)
            if monotonic() >= deadline:
                raise session.time_up(WHAT, last)
            transaction = await session.again(WHAT, transaction, last)
        raise session.failure(WHAT, last, f"after {TRIES_MAX} tries")

    async def _apply_once(
        self, transaction: Transaction, make: Callable[[Transaction], Awaitable[Plan]], token: Token, deadline: float
    ) -> None:
        """Make one try. TimeUpError, or an error of the binding, says that it was not applied and never will be."""
        plan: Plan | None = None
        try:
            with anyio.move_on_after(deadline - monotonic()) as scope:
                plan = await make(transaction)
                plan.is_shared = True
                if plan.is_staged:
                    # What is written ahead now is not there yet in the state that the transaction reads.
                    raise StorageLimitError(
                        "values of more than 10 MB together can't be stored in one transaction with others' writes; "
                        "nothing was written"
                    )
                await self._prepare(transaction, plan, token)
                await self._end(transaction.commit(), transaction, token, scope.deadline)
                self._applied(plan)
                return
            raise TimeUpError
        except BaseException as error:  # noqa: BLE001  # `_report` raises it, unless the batch was applied
            applied = await self._outcome(plan, token)
            if not isinstance(error, self._session.error):
                transaction.cancel()  # so that a thread of the author's that still waits for a read goes on
            self._report(applied, error)

    async def forget_slots(self, seconds: float) -> None:
        """Clear the slots of this driver that no commit has at the moment."""
        keys = self._tokens.take_all()

        async def body(transaction: Transaction) -> None:
            for key in keys:
                transaction.clear(key)
            await committed(transaction)

        if keys:
            await self._session.run("clear its own marks", body, seconds)

    async def _apply(self, plan: Plan) -> None:
        token = self._tokens.take()
        try:
            await self._in_time(plan, token)
        except BaseException as error:  # noqa: BLE001  # as above
            self._report(await self._outcome(plan, token), error)
        finally:
            self._tokens.give_back(token)

    async def _in_time(self, plan: Plan, token: Token) -> None:
        seconds = self._session.settings.timeout * (1 - SETTLING)
        last: list[Exception] = []
        with anyio.move_on_after(seconds) as scope, suppress(TimeUpError):
            await self._try(plan, token, scope.deadline, last)
            return
        raise self._session.time_up(WHAT, last[-1] if last else None)

    async def _try(self, plan: Plan, token: Token, deadline: float, errors: list[Exception]) -> None:
        session = self._session
        transaction = session.database.create_transaction()
        for _ in range(TRIES_MAX):
            try:
                if await self._prepare(transaction, plan, token):
                    token.is_in_doubt = False
                    self._applied_before(plan)
                    return
                if plan.writes:
                    await self._end(transaction.commit(), transaction, token, deadline)
                    self._applied(plan)
                return
            except session.error as error:
                errors.append(error)
                transaction = await session.again(WHAT, transaction, error)
        raise session.failure(WHAT, errors[-1], f"after {TRIES_MAX} tries")

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
            await check_staged(session, transaction, plan.blobs)
        if plan.is_marked:
            large = await self._large.look(transaction, plan)
            write(session, transaction, plan, large, not self._large.exist, token)
        return False

    async def _read(self, transaction: Transaction, plan: Plan, token: Token) -> tuple[bytes | None, list[Value]]:
        """What the slot holds, if that is in doubt, and the rows that the plan checks."""
        marks: list[Value] = []
        if token.is_in_doubt:
            marks.append(transaction.get(token.key))
        elif plan.is_marked:
            # As if it had been read. Before the write, or it would have no effect.
            transaction.add_read_conflict_key(token.key)
        reads = [transaction.get(key) for key, _ in plan.checks]
        if not marks and not reads:
            # A commit that has read nothing asks for its version itself, and goes on doing so when it is given up. It
            # would come with a newer one than what ends the doubt about it, and conflict with nothing.
            version = transaction.get_read_version()
            await ready(version)
            version.wait()
        await all_ready([*marks, *reads])
        return marks[0].value if marks else None, reads

    async def _end(self, future: Future, transaction: Transaction, token: Token, deadline: float) -> None:
        """Wait for the end of a commit that was sent off, even if the caller is cancelled meanwhile."""
        was_in_doubt, token.is_in_doubt = token.is_in_doubt, True
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

    async def _outcome(self, plan: Plan | None, token: Token) -> bool | None:
        """Whether a commit that ended with an error was applied all the same; None if that can't be found out."""
        applied = await self._settle(token) if token.is_in_doubt else False
        if applied and plan is not None:
            self._applied_before(plan)
        return applied

    def _report(self, applied: bool | None, error: BaseException) -> None:
        """Raise what callers are told of a commit that ended with `error`; nothing, if it was applied all the same."""
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
        found: list[bool] = []

        async def body(transaction: Transaction) -> None:
            value = await get_row(transaction, token.key)
            if value != token.value:
                # A try that is still on its way has read the slot, and conflicts with this.
                transaction.set(token.key, self._tokens.next_value())
                await committed(transaction)
            found.append(value == token.value)

        cancelled: BaseException | None = None
        deadline = monotonic() + session.settings.timeout * SETTLING
        with anyio.CancelScope(shield=True), suppress(StorageError):
            while not found and (seconds := deadline - monotonic()) > 0:
                try:
                    await session.run(WHAT, body, seconds)
                except anyio.get_cancelled_exc_class() as caught:
                    cancelled = caught  # asyncio's own, of the task, which no shield keeps off: this begins again
        if found:
            token.is_in_doubt = False
        if cancelled is not None:
            raise cancelled
        return found[-1] if found else None

    def _applied_before(self, plan: Plan) -> None:
        self._session.counts.unknown_applied += 1
        self._applied(plan)

    def _applied(self, plan: Plan) -> None:
        self._session.counts.commits += 1
        if plan.blobs:
            self._large.exist = True
