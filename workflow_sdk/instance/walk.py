"""Finding handlers that only the workflow's code knows, such as lambdas.

A walk calls the code once more over its history: finished operations return what is recorded, and nothing new is done.
Unlike a replay, a walk also enters finished scopes, since the steps are in there. The walk of a scope ends at the first
operation that has no outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from math import inf
from typing import Any, NoReturn, cast

import anyio

from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError
from workflow_sdk.instance.loading import load_for_walk
from workflow_sdk.journal.journal import Journal
from workflow_sdk.journal.public_state import PublicState
from workflow_sdk.operations.calling import is_cancelled, is_failure_of_scope
from workflow_sdk.operations.engine import Composite, Verb
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.operations.public_state import unfold
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.types import Facts, Unwound
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.status import Kind
from workflow_sdk.values import Codec, SealedError

MISTAKES_MAX = 100
"""After so many mistakes of the author the walk ends."""


class Walk:
    """An engine that walks the code through all recorded scopes. It does nothing new, and records nothing."""

    transacts = True

    def __init__(
        self,
        driver: Driver,
        journal: Journal,
        codec: Codec,
        known: KnownHandlers,
        facts: Facts,
        started_at: float,
    ) -> None:
        self._driver = driver
        self.journal: Journal = Journal(journal.keys)
        self.journal.about = journal.about.copy()
        self.codec = codec
        self.known = known
        self.facts = facts
        self.handlers: dict[bytes, tuple[Callable[..., Any], object]] = {}
        self.life: WalkLife = WalkLife()
        self.state: WalkState = WalkState(codec, self.journal)
        self.clock: WalkTime = WalkTime(started_at)
        self._started_at = started_at
        self._ends: dict[bytes, dict[bytes, Entry]] = {}
        """The outcomes of branches, by the location of their join, race or map."""

    async def find(self, fn: Callable[[Scope], Awaitable[Any]]) -> dict[bytes, tuple[Callable[..., Any], object]]:
        """The handlers of the steps in the history, by location."""
        await load_for_walk(self._driver, self.journal)
        self._ends = {
            scope: {segment: entry for segment, entry in entries.items() if entry.kind is Kind.BRANCH}
            for scope, entries in self.journal.history.loaded.items()
        }
        with self.walk_scope():
            scope = Scope(self, b"", self._started_at)
            token = current_scope.set(scope)
            try:
                await fn(scope)
            finally:
                current_scope.reset(token)
        if self.life.unreadable is not None:
            # Part of the history could not be read, so handlers may be missing.
            raise self.life.unreadable
        if self.state.public is not None:
            # What open scopes have assigned is in no row of their own, but in the public state as it was last stored.
            self.state.public.restore(self.journal.about)
        return self.handlers

    @contextmanager
    def walk_scope(self) -> Generator[object]:
        """A cancel scope that ends the code inside where its record ends."""
        with anyio.CancelScope() as scope:
            self.life.scopes.append(scope)
            try:
                yield scope
            except BaseException as error:
                # How the code ended does not matter here: that is recorded, and only the handlers are wanted.
                if not _is_unwound(error) and not is_failure_of_scope(error, self.life):
                    raise
            finally:
                self.life.scopes.pop()

    async def begin(self, verb: Verb) -> NoReturn:
        """The record ends here."""
        await self.life.never()

    async def resume(self, verb: Verb, entry: Entry) -> NoReturn:
        """The record ends here."""
        await self.life.never()

    async def reenter(self, verb: Composite, location: bytes, entry: Entry) -> Entry:
        """Walk through the scopes inside. The record ends here if the operation is not finished."""
        await verb.walk(self, entry)
        if not entry.is_final:
            await self.life.never()
        await verb.recall(self, entry)
        # What the code has assigned in there once more, maybe in another order, is as it is recorded.
        unfold(self, [location])
        return entry

    @property
    def stored(self) -> Walk:
        """Everything was read before the walk."""
        return self

    async def archive(self, location: bytes) -> None:
        """Nothing is cleared."""

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """Do nothing: a walk runs no children."""

    async def passed_over(self, location: bytes) -> None:
        """Do nothing: the run that goes on with the instance ends such children and tasks."""

    async def answer(self, key: bytes, raw: bytes, is_asked: bool | None = None) -> None:
        """Do nothing: the answer was given already."""

    async def branch_values(self, location: bytes) -> dict[bytes, Entry]:
        """The outcomes of branches, which were read with all the rest."""
        return self._ends.get(location, {})

    async def read(self, part: bytes) -> list[tuple[bytes, bytes]]:
        """The rows of the instance's own space whose keys begin with `part`, by what follows it."""
        begin = self.journal.keys.space + part
        return [(key[len(begin) :], raw) for key, raw in await self._driver.scan(begin, begin + b"\xff")]

    async def shared(self, key: bytes) -> bytes | None:
        """A row that all instances share."""
        return await self._driver.get(key)

    async def load_under(self, location: bytes) -> None:
        """All of it was loaded."""

    def remember_handler(self, location: bytes, handler: Callable[..., Any], hint: object) -> None:
        """Keep the handler of the step at a location: this is what the walk is for."""
        self.handlers[location] = (handler, hint)


class WalkTime:
    """The clock of a walk, which always shows when the instance began."""

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at

    def time(self) -> float:
        """Seconds since 1970."""
        return self._started_at


class WalkState:
    """The public state, as the code assigns it during a walk."""

    def __init__(self, codec: Codec, journal: Journal) -> None:
        self._codec = codec
        self._journal = journal
        self.public: PublicState | None = None

    def see(self) -> PublicState:
        """The public state."""
        if self.public is None:
            self.public = PublicState.since_the_start(self._codec, self._journal.about)
        return self.public


class WalkLife:
    """The life of a walk: each scope ends where its record ends."""

    halted = False
    acts = False
    draining = False
    are_told = False
    is_broken = False

    def __init__(self) -> None:
        self.scopes: list[anyio.CancelScope] = []
        self.unreadable: CodecError | None = None
        """The error for a row that only workers with another codec can read; None if there was none."""
        self._mistakes = 0

    def is_cancelled(self) -> bool:
        """Whether the walk is cancelled."""
        return is_cancelled()

    def mistake(self, error: Exception) -> BaseException:
        """Return the error to raise in the code. Unlike in a run, the code may catch it and go on."""
        self._mistakes += 1
        if self._mistakes <= MISTAKES_MAX:
            return error
        # The code catches these errors in a loop, and would go on for ever.
        self.scopes[-1].cancel()
        return Unwound()

    def diverged(self, error: Exception) -> None:
        """Do nothing: the walk of a scope ends where the code does not fit its history."""

    def misread(self, error: CodecError, what: str) -> BaseException:
        """Return the error to raise in the code. A row that needs another codec also fails the whole walk."""
        if isinstance(error, SealedError):
            self.unreadable = error
        return error

    async def never(self) -> NoReturn:
        """End the walk of a scope."""
        self.scopes[-1].cancel()
        if anyio.current_effective_deadline() == -inf:
            await anyio.sleep_forever()
        # The code shields itself from the cancellation, so it is unwound by an exception.
        raise Unwound


def _is_unwound(error: BaseException) -> bool:
    """Whether it comes of `never`, through code that shields itself. A task group hands it on with cancellations."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.split((Unwound, anyio.get_cancelled_exc_class()))[1] is None
    return isinstance(error, Unwound)
