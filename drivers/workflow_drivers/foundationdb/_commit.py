"""A batch is applied exactly once, and what is reported of it is so.

A commit can end without an answer (`commit_unknown_result`, and others), and by FoundationDB's documentation it may
even happen later. So every batch writes its number into a slot that it alone has (see `_tokens.py`), and declares that
it has read that slot. Then:

- Whoever reads the number there knows that the batch was applied. The checks of a batch that is tried again may fail
  because it was applied the first time, so the slot is looked at before them.
- Of two tries, one at most is applied: both have read the slot, and both write to it. Whichever comes first, the
  other conflicts with it. For that, each has to know the version that it has read before it is sent off.
- Before anything but success is reported of a batch in doubt, something else is written into the slot. Once that is
  committed, no try that is still on its way can be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import NoReturn

import anyio

from workflow_drivers.foundationdb._binding import Future, Transaction, code_of
from workflow_drivers.foundationdb._plan import Plan
from workflow_drivers.foundationdb._session import TRIES_MAX, Session, TimeUpError
from workflow_drivers.foundationdb._staging import check_staged, stage, unstage
from workflow_drivers.foundationdb._tokens import Token, Tokens
from workflow_drivers.foundationdb._values import holds
from workflow_drivers.foundationdb._waiting import all_ready, ready, settled
from workflow_drivers.foundationdb._writing import LargeValues, write
from workflow_sdk.errors import ConflictError, StorageError, StorageLimitError

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
        """Apply the plan, or raise why it isn't. Cancelled while it is decided, it returns when that is done."""
        if plan.is_staged:
            try:
                await stage(self._session, plan.blobs)
                await self._apply(plan)
            except Exception:
                with suppress(Exception):  # what can't be cleared now is later, and why not is no news
                    await unstage(self._session, [blob.about.id for blob in plan.blobs])
                raise
        else:
            await self._apply(plan)

    async def transact(self, make: Callable[[Transaction], Awaitable[Plan]]) -> None:
        """Apply the plan that `make` gives for a transaction which it may read and write before.

        It is called for each try, and each has a number of its own: what is reported is what the one that was applied
        has made. So a try that is in doubt is settled before there is another.
        """
        session = self._session
        deadline = monotonic() + session.settings.timeout * (1 - SETTLING)
        transaction = session.database.create_transaction()
        last: Exception | None = None
        for _ in range(TRIES_MAX):
            token = self._tokens.take()
            try:
                if await self._applied_once(transaction, make, token, deadline):
                    return
            except session.error as error:
                if code_of(error) in MISTAKES:
                    failure = session.failure(WHAT, error)
                    # Of the function's, most likely: it is told what it did.
                    raise failure if isinstance(failure, StorageLimitError) else error from None
                last = error
            finally:
                self._tokens.give_back(token)
            if last is None or monotonic() >= deadline:
                raise session.time_up(WHAT, last)
            transaction = await session.again(WHAT, transaction, last)
        raise session.failure(WHAT, last, f"after {TRIES_MAX} tries")

    async def _applied_once(
        self, transaction: Transaction, make: Callable[[Transaction], Awaitable[Plan]], token: Token, deadline: float
    ) -> bool:
        """Whether one try was applied: False if time is up. Raises the binding's error, if that says that it wasn't."""
        plan: Plan | None = None
        error: BaseException | None = None
        try:
            with anyio.move_on_after(deadline - monotonic()) as scope, suppress(TimeUpError):
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
                return True
        except BaseException as caught:  # noqa: BLE001  # raised below, once it is known what became of the commit
            error = caught
        applied = await self._settle(token) if token.is_in_doubt else False
        if applied and plan is not None:
            self._applied_before(plan)
        if not isinstance(error, self._session.error):
            transaction.cancel()  # whatever still waits for it, in a thread, is to end
        if error is not None and not isinstance(error, Exception):
            raise error
        if applied is None:
            raise self._unknown(error or self._session.time_up(WHAT, None)) from error
        if error is not None and not applied:
            raise error
        return applied

    async def forget_slots(self, seconds: float) -> None:
        """Clear what this driver's slots hold, of those that nobody has."""
        keys = self._tokens.take_all()

        async def body(transaction: Transaction) -> None:
            for key in keys:
                transaction.clear(key)
            future = transaction.commit()
            await ready(future)
            future.wait()

        if keys:
            await self._session.run("clear its own marks", body, seconds)

    async def _apply(self, plan: Plan) -> None:
        token = self._tokens.take()
        try:
            await self._in_time(plan, token)
        except BaseException as error:
            if token.is_in_doubt:
                applied = await self._settle(token)
                if applied:
                    self._applied_before(plan)
                if isinstance(error, Exception):
                    if applied:
                        return
                    if applied is None:
                        raise self._unknown(error) from error
            raise
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
        """Read what has to be read, and make the writes. True: it has been applied already."""
        session = self._session
        if session.settings.automatic_idempotency:
            transaction.options.set_automatic_idempotency()
        marks: list[Future] = []
        mark = None
        if token.is_in_doubt:
            mark = transaction.get(token.key)
            marks.append(mark)
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
        if mark is not None and mark.value == token.value:
            return True
        for (key, expected), read in zip(plan.checks, reads, strict=True):
            if not holds(read.value, expected):
                session.counts.checks_failed += 1
                self._refuse(key)
        if plan.is_staged:
            await check_staged(session, transaction, plan.blobs)
        if plan.is_marked:
            large = await self._large.look(transaction, plan)
            write(session, transaction, plan, large, not self._large.exist, token)
        return False

    async def _end(self, future: Future, transaction: Transaction, token: Token, deadline: float) -> None:
        """Wait for the end of a commit, even if nobody is interested in it any more."""
        was_in_doubt, token.is_in_doubt = token.is_in_doubt, True
        cancelled = await settled(future, deadline)
        if not future.is_ready():
            transaction.cancel()  # it may still happen
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

    async def _settle(self, token: Token) -> bool | None:
        """End the doubt: whether the batch was applied; if not, it never will be. None: it can't be found out."""
        session = self._session
        found: list[bool] = []

        async def body(transaction: Transaction) -> None:
            value = transaction.get(token.key)
            await ready(value)
            if value.value != token.value:
                transaction.set(token.key, self._tokens.next_value())
                future = transaction.commit()
                await ready(future)
                future.wait()
            found.append(value.value == token.value)

        cancelled: BaseException | None = None
        deadline = monotonic() + session.settings.timeout * SETTLING
        with anyio.CancelScope(shield=True), suppress(StorageError):
            while not found and (seconds := deadline - monotonic()) > 0:
                try:
                    await session.run(WHAT, body, seconds)
                except anyio.get_cancelled_exc_class() as caught:
                    cancelled = caught  # of the task itself, which no shield keeps off; it can be begun again
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

    def _unknown(self, error: Exception) -> StorageError:
        return StorageError(f"{error}. Whether the batch was applied is not known")

    def _refuse(self, key: bytes) -> NoReturn:
        own = key.removeprefix(self._session.space.rows)
        raise ConflictError(f"the key {own!r:.200} does not have the value that the batch was to find")
