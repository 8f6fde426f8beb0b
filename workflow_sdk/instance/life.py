"""Whether one run of an instance goes on, and what has ended it.

Nothing of this is ever an exception in the author's code: a run that is over unwinds it by cancellation.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import get_ident
from typing import Any, NoReturn, Protocol

import anyio
import anyio.from_thread
import anyio.lowlevel

from workflow_sdk.errors import CodecError, HistoryDivergedError
from workflow_sdk.instance.flushing import Flusher
from workflow_sdk.instance.host import Host
from workflow_sdk.operations.scope import current_scope
from workflow_sdk.operations.types import Facts, Probe, Unwound, probe
from workflow_sdk.values import SealedError

_log = logging.getLogger("workflow_sdk.runtime")

_NEVER = -float("inf")

UNWOUND_MAX = 100
"""How often code in one scope may come to an operation after its run is over: to clean up, in a few places."""
UNWOUND_SECONDS = 1.0
"""After that, how long each takes."""


class Branches(Protocol):
    """The branches of a run."""

    def let_all_go(self) -> None:
        """The run is over: wake every branch, which finds that there is nothing to go on with."""
        ...

    async def hold(self) -> None:
        """Park a branch that may not go on, though the run does. Does not return."""
        ...


class Deaths(Protocol):
    """Under which workers have died, and of what."""

    def forget(self) -> None:
        """The instance has got past what workers died of."""
        ...


class RunLife:
    """Of one run. What ends it is noted here, and cancels the author's code."""

    __slots__ = (
        "_cancel",
        "_facts",
        "_host",
        "_thread",
        "_unwound_at",
        "are_told",
        "branches",
        "deaths",
        "draining",
        "failure",
        "flusher",
        "halted",
        "is_away",
        "is_over",
        "stuck",
        "watched",
    )

    def __init__(self, facts: Facts, host: Host) -> None:
        self._facts = facts
        self._host = host
        self.draining: bool = False
        """Nothing new is begun: the instance is evicted as soon as what is under way has ended."""
        self.halted: bool = False
        """Whether the run is over: nothing may be done any more. One of the next three says what has ended it."""
        self.failure: Exception | None = None
        """The store failed, or the lease is lost. Nothing more is written."""
        self.stuck: tuple[Exception, str] | None = None
        """What stopped the instance, and its kind: the author's mistake, or divergence."""
        self.is_away: bool = False
        """Whether the last commit is stored: the instance was released."""
        self.is_over: bool = False
        """Nobody wakes the branches any more."""
        self.watched: Probe | None = probe.get()
        """A test that sees what is called."""
        self.deaths: Deaths | None = None
        """There if workers have died under the instance: then what is called is noted before."""
        self.are_told: bool = self.watched is not None
        """Somebody is to be told of each call before it is made."""
        self.branches: Branches | None = None
        """The branches of the run."""
        self.flusher: Flusher | None = None
        """What writes."""
        self._cancel: anyio.CancelScope | None = None
        self._unwound_at: dict[int, int] | None = None
        """How often code was unwound, by the scope it is in."""
        self._thread = get_ident()
        """Of the event loop."""

    @property
    def is_broken(self) -> bool:
        """Whether a commit has failed: nothing is written any more."""
        return self.flusher is not None and self.flusher.is_broken

    @property
    def is_dry(self) -> bool:
        """Whether nothing is called, since a test only replays."""
        return self.watched is not None and self.watched.dry

    def is_cancelled(self) -> bool:
        """Whether the run or the branch has been cancelled, and not only by code of the author's own."""
        return anyio.current_effective_deadline() == _NEVER or self._host.is_cancelled

    # What ends it.

    def mistake(self, error: Exception) -> BaseException:
        """The author made a mistake: the instance becomes stuck. Returns what is to be raised."""
        if self.halted:
            return Unwound()
        self._stick(error, "definition")
        return error

    def diverged(self, error: Exception) -> None:
        """The code does not fit its history: the instance becomes stuck."""
        if not self.halted:
            self._stick(error, "consistency")

    def _stick(self, error: Exception, kind: str) -> None:
        self.stuck = (error, kind)
        self.halted = True
        self.stop()

    def storage_failed(self, error: Exception) -> None:
        """The store failed, or the lease is lost: the run ends, and writes nothing more."""
        if not self.halted:
            self.failed(error)
            self.stop()

    def failed(self, error: Exception) -> None:
        """Note that the run has failed, unless it had before."""
        self.failure = self.failure or error
        self.halted = True

    def went_away(self) -> None:
        """Note that the last commit is stored."""
        self.is_away = self.halted = True

    def reopen(self) -> None:
        """Have one more commit written, whatever has ended the run: the instance is to be stored as stuck."""
        self.failure = self.stuck = None
        self.is_away = self.halted = False

    def misread(self, error: CodecError, what: str) -> BaseException:
        """A row can't be read. If others have the key to it, the instance is given back to them."""
        if isinstance(error, SealedError):
            self.storage_failed(error)
        else:
            self.diverged(HistoryDivergedError(f"{what}: {error}"))
        return Unwound()

    def stop(self) -> None:
        """End the run: cancel the author's code, and wake what shields itself from that."""
        if get_ident() != self._thread:
            # A plain step made a mistake, in its worker thread. In a thread of the author's own the run stops with the
            # next operation.
            with suppress(RuntimeError):
                anyio.from_thread.run_sync(self.stop)
            return
        if self._cancel is not None:
            self._cancel.cancel()
        # Code that shields itself from the cancellation has to be told as well.
        self._let_all_go()

    def _let_all_go(self) -> None:
        if self.branches is not None:
            self.branches.let_all_go()

    def get_past_deaths(self) -> None:
        """Whatever workers have died of, the instance has got past it: all of it has come to an end, or waits."""
        if self.deaths is not None:
            self.deaths.forget()
            self.deaths = None
            self.are_told = self.watched is not None

    def abandon(self) -> None:
        """Nobody wakes its branches any more: it is over."""
        self.is_over = True
        self.stop()

    async def run(self, root: Callable[[], Awaitable[None]]) -> None:
        """Run `root` to its end, or until the instance is released or stopped."""
        # One frame for all of this: there may be thousands of them.
        with anyio.CancelScope() as self._cancel:
            try:
                try:
                    await root()
                except (Unwound, BaseExceptionGroup) as error:
                    self._unwinds(error)
                # Nothing is left in here that would have to be cancelled.
                self._let_all_go()
            finally:
                self.is_over = True

    def _unwinds(self, error: Unwound | BaseExceptionGroup[Any]) -> None:
        """What comes of the author's code after the run was stopped is ignored: a task group of its own hands on its
        cancellation together with the mistake that stopped the run.
        """

        def is_of_no_matter(error: BaseException) -> bool:  # Python 3.11 splits groups by plain functions only
            return self._is_of_no_matter(error)

        rest = None if isinstance(error, Unwound) else error.split(is_of_no_matter)[1]
        if rest is not None:
            raise rest from None

    def _is_of_no_matter(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return False
        return isinstance(error, Unwound) or (self.halted and not isinstance(error, (KeyboardInterrupt, GeneratorExit)))

    async def never(self) -> NoReturn:
        """Wait to be cancelled: the run is over, or this branch is, or nothing new begins."""
        await self._slow_down()
        if (self.draining or self.is_dry) and not self.halted and self.branches is not None:
            await self.branches.hold()
        if anyio.current_effective_deadline() == _NEVER:
            await anyio.sleep_forever()
        # Nothing is cancelled here, behind a shield of the author's: others get their turn all the same.
        await anyio.lowlevel.cancel_shielded_checkpoint()
        raise Unwound

    async def _slow_down(self) -> None:
        """Code comes here once, and is unwound. What comes again and again catches that, and is slowed down."""
        where = id(current_scope.get())
        if self._unwound_at is None:
            self._unwound_at = {}
        count = self._unwound_at[where] = self._unwound_at.get(where, 0) + 1
        if count <= UNWOUND_MAX:
            return
        if count == UNWOUND_MAX + 1:
            _log.error(
                "workflow %r catches what ends it, in instance %s, again and again; an `except BaseException` has to "
                "raise what it has caught",
                self._facts.workflow_name,
                self._facts.instance_id,
            )
        with anyio.CancelScope(shield=True):
            await anyio.sleep(UNWOUND_SECONDS)
