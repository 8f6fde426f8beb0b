"""Finding the functions that undo steps, where only the workflow's code knows them.

The code is walked over its history again: finished operations answer from the record, and nothing is done that is not
recorded. Finished scopes are entered, too, since that is where the steps are. The walk of a scope ends with the first
operation that has no outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from math import inf
from typing import Any, NoReturn, TypeVar, cast

import anyio

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.entries import Entry
from workflow_sdk.core.inbox import Fit, InboxMessage
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.outside import Ending
from workflow_sdk.core.status import Kind
from workflow_sdk.core.tasks import TaskRow
from workflow_sdk.core.world import World
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.execution.load import load_for_walk
from workflow_sdk.operations.cancelling import is_cancelled, is_failure_of_scope
from workflow_sdk.operations.engine import Effect, Facts, Start, TimeLimit, Unwound, Wait
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.operations.scope import Scope, current_scope

__all__ = ["Walk"]

T = TypeVar("T")

SLIPS_MAX = 100
"""After so many mistakes of the author the walk ends."""


class Walk:
    """An engine that does nothing and records nothing."""

    walking = True
    is_broken = False
    halted = False
    draining = False
    active = 1
    wary = None
    watched = None

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
        self.world: World | None = None
        self._now = started_at
        self._ends: dict[bytes, dict[bytes, Entry]] = {}
        """The outcomes of branches, by the location of their join, race or map."""
        self._scopes: list[anyio.CancelScope] = []
        self._unreadable: Exception | None = None
        self._slips = 0

    async def find(self, fn: Callable[[Scope], Awaitable[Any]]) -> dict[bytes, tuple[Callable[..., Any], object]]:
        """The handlers of the steps in the history, by location."""
        await load_for_walk(self._driver, self.journal)
        self._ends = {
            scope: {segment: entry for segment, entry in entries.items() if entry.kind is Kind.BRANCH}
            for scope, entries in self.journal.loaded.items()
        }
        with self.walk_scope():
            scope = Scope(self, b"", self._now)
            token = current_scope.set(scope)
            try:
                await fn(scope)
            finally:
                current_scope.reset(token)
        if self._unreadable is not None:
            # What was found is not all there is.
            raise self._unreadable
        if self.world is not None:
            # Scopes that are still open have assigned what is recorded nowhere else.
            self.world.restore(self.journal.about)
        return self.handlers

    def remember_handler(self, location: bytes, handler: Callable[..., Any], hint: object) -> None:
        self.handlers[location] = (handler, hint)

    @contextmanager
    def walk_scope(self) -> Generator[object]:
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                yield scope
            except BaseException as error:
                # How the code ended is recorded; only its steps are wanted here.
                if not _is_unwound(error) and not is_failure_of_scope(error, self):
                    raise
            finally:
                self._scopes.pop()

    def is_cancelled(self) -> bool:
        return is_cancelled()

    async def never(self) -> NoReturn:
        self._scopes[-1].cancel()
        if anyio.current_effective_deadline() == -inf:
            await anyio.sleep_forever()
        # The code shields itself from the cancellation.
        raise Unwound

    async def branch_values(self, location: bytes) -> dict[bytes, Entry]:
        return self._ends.get(location, {})

    # What a walk comes to never does any of these.

    def now(self) -> float:
        return self._now

    def chance(self) -> float:
        return 0.5

    def slip(self, error: Exception) -> BaseException:
        self._slips += 1
        if self._slips <= SLIPS_MAX:
            return error
        # The code catches them, and would go on for ever.
        self._scopes[-1].cancel()
        return Unwound()

    def diverged(self, error: Exception) -> None:
        """The walk of the scope ends where the code no longer fits."""

    def unreadable(self, error: Exception) -> None:
        self._unreadable = error

    def rest(self) -> None:
        """Nobody counts."""

    def will_listen(self, messages: tuple[str, ...], type: object) -> None:
        """Nobody does."""

    def lacks_mail(self, messages: tuple[str | bytes, ...], found: list[InboxMessage], count: int) -> bool:
        return False

    async def read_mail(self, messages: tuple[str | bytes, ...]) -> None:
        """There are no messages."""

    async def set_aside(self, fit: Fit) -> bool:
        return False

    async def reopen_task(self, id: str, name: str, message: InboxMessage, result: bytes, reason: str) -> None:
        raise AssertionError("a walk waits for nothing")

    def messages_came_back(self) -> None:
        """Nobody waits."""

    async def answer(self, key: bytes, raw: bytes) -> None:
        """It was given."""

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        """Nothing is run."""

    async def note_try(self, location: bytes, path: str) -> None:
        raise AssertionError("a walk calls nothing")

    def survived(self, location: bytes) -> None:
        raise AssertionError("a walk calls nothing")

    async def refresh_inbox(self) -> None:
        """There are no messages."""

    async def flush(self, *, stay: bool = False) -> None:
        """There is nothing to store."""

    async def park(self, wait: Wait) -> None:
        await self.never()

    async def post(self, target: str, message: str, payload: bytes, effect: Effect) -> None:
        raise AssertionError("a walk sends nothing")

    async def begin(self, start: Start, effect: Effect) -> Ending | None:
        raise AssertionError("a walk starts nothing")

    async def expire(self, effect: Effect) -> bool:
        raise AssertionError("a walk waits for nothing")

    def open_task(self, row: TaskRow, location: bytes) -> None:
        raise AssertionError("a walk asks nobody")

    async def expire_task(self, id: str, effect: Effect) -> bool:
        raise AssertionError("a walk asks nobody")

    def abandon_outside(self, location: bytes, *, rollback: bool = False) -> list[bytes]:
        return []

    async def run_errands(self, errands: list[bytes]) -> None:
        """There are none."""

    def see_world(self) -> World:
        if self.world is None:
            self.world = World.since_the_start(self.codec, self.journal.about)
        return self.world

    @property
    def transacts(self) -> bool:
        raise AssertionError("a walk runs no transaction")

    async def transact(
        self, fn: Callable[[Any], T], rows: Callable[[T], list[tuple[bytes, bytes]]], goes_on: Callable[[], bool]
    ) -> None:
        raise AssertionError("a walk runs no transaction")

    async def keep_for_rollback(self, location: bytes) -> None:
        """Nothing is cleared."""

    def time_limit(self, seconds: float) -> AbstractContextManager[TimeLimit]:
        raise AssertionError("a walk runs no step")

    async def thread_for(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Awaitable[Any]]:
        raise AssertionError("a walk runs no step")


def _is_unwound(error: BaseException) -> bool:
    """Whether it comes of `never`, through code that shields itself. A task group hands it on with cancellations."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.split((Unwound, anyio.get_cancelled_exc_class()))[1] is None
    return isinstance(error, Unwound)
