"""Transactions are tried again as long as there is time, and it is counted what happens to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from workflow_drivers.foundationdb._binding import Binding, Database, Transaction, code_of
from workflow_drivers.foundationdb._keys import Space
from workflow_drivers.foundationdb._url import Settings
from workflow_drivers.foundationdb._waiting import ready
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

    async def run(self, what: str, body: Callable[[Transaction], Awaitable[T]], seconds: float | None = None) -> T:
        """Call `body` with a transaction, and again after errors that pass; return what it returns.

        Other errors, and the end of the time, are a StorageError. Since `body` may run many times, running it again
        must do no harm.
        """
        transaction = self.database.create_transaction()
        last: Exception | None = None
        with anyio.move_on_after(self.settings.timeout if seconds is None else seconds):
            for _ in range(TRIES_MAX):
                try:
                    return await body(transaction)
                except self.error as error:
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
            pause = transaction.on_error(error)
            await ready(pause)
            try:
                pause.wait()
            except self.error as refused:
                raise self.failure(what, refused) from error
        self.counts.retries += 1
        if code == NOT_COMMITTED:
            self.counts.conflicts += 1
        return transaction

    def time_up(self, what: str, last: Exception | None) -> StorageError:
        """The error of an operation that took too long."""
        seconds = f"within {self.settings.timeout:g} s (timeout)"
        if last is None:
            return StorageError(
                f"{self.settings} could not {what} {seconds}: no answer from the cluster. Is it up, and is the cluster "
                "file the right one?"
            )
        return self.failure(what, last, seconds)

    def failure(self, what: str, error: Exception | None, detail: str = "") -> StorageError:
        """A StorageError that says what was to be done, and what error of the binding prevented it."""
        text = f"{self.settings} could not {what}{detail and ' '}{detail}"
        if error is None:
            return StorageError(text)
        code = code_of(error)
        if code in _TOO_LARGE:
            failure: StorageError = StorageLimitError(
                f"{text}: {_TOO_LARGE[code]} is over FoundationDB's limit for it (error {code}); nothing was written"
            )
        else:
            failure = StorageError(f"{text}: FoundationDB's error {code}, {_description(error)}")
        failure.__cause__ = error
        return failure


def _description(error: Exception) -> str:
    text = getattr(error, "description", error)
    return text.decode() if isinstance(text, bytes) else str(text)
