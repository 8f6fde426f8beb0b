"""Whether one run of an instance goes on, and what has ended it.

The author's code never sees the end of a run as an exception: it is unwound by cancellation.
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
"""How often the code of one scope may call an operation after its run is over, as cleaning up may do."""
UNWOUND_SECONDS = 1.0
"""How long each such call takes after that."""


class Branches(Protocol):
    """The branches of a run."""

    def let_all_go(self) -> None:
        """Wake every branch, since the run is over: each then finds that it can't go on."""
        ...

    async def hold(self) -> None:
        """Park a branch that may not go on although the run is not over. Does not return."""
        ...


class Deaths(Protocol):
    """The deaths of workers under the instance."""

    def forget(self) -> None:
        """Forget the deaths, since the instance has got past the operations under which they happened."""
        ...


class RunLife:
    """The life of one run: what ends the run is noted here, and cancels the author's code."""

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
        """Whether the run is over: no operation may do anything more. One of the next three says what has ended it."""
        self.failure: Exception | None = None
        """The store failed, or the lease is lost. Nothing more is written."""
        self.stuck: tuple[Exception, str] | None = None
        """The error that makes the instance stuck, and its kind: a mistake of the author, or a divergence."""
        self.is_away: bool = False
        """Whether the last commit is stored: the instance was released."""
        self.is_over: bool = False
        """Whether nobody wakes the branches any more."""
        self.watched: Probe | None = probe.get()
        """The probe of a test, which sees what is called; None outside of such a test."""
        self.deaths: Deaths | None = None
        """Set if workers have died under the instance: then each call is noted in the store before it is made."""
        self.are_told: bool = self.watched is not None
        """Whether `watched` or `deaths` is to be told of each call before it is made."""
        self.branches: Branches | None = None
        """The branches of the run."""
        self.flusher: Flusher | None = None
        """What writes to the store."""
        self._cancel: anyio.CancelScope | None = None
        self._unwound_at: dict[int, int] | None = None
        """How often code was unwound, by the id of the scope that it is in."""
        self._thread = get_ident()
        """The thread of the event loop."""

    @property
    def is_broken(self) -> bool:
        """Whether a commit has failed: nothing is written any more."""
        return self.flusher is not None and self.flusher.is_broken

    @property
    def is_dry(self) -> bool:
        """Whether this is a dry run: a test replays, and nothing is called."""
        return self.watched is not None and self.watched.dry

    def is_cancelled(self) -> bool:
        """Whether the run or the branch has been cancelled from outside the author's code."""
        return anyio.current_effective_deadline() == _NEVER or self._host.is_cancelled

    # What ends it.

    def mistake(self, error: Exception) -> BaseException:
        """Have the instance become stuck because of a mistake of the author; return the error to raise."""
        if self.halted:
            return Unwound()
        self._stick(error, "definition")
        return error

    def diverged(self, error: Exception) -> None:
        """Have the instance become stuck, since the code does not fit its history."""
        if not self.halted:
            self._stick(error, "consistency")

    def _stick(self, error: Exception, kind: str) -> None:
        self.stuck = (error, kind)
        self.halted = True
        self.stop()

    def storage_failed(self, error: Exception) -> None:
        """End the run, since the store failed or the lease is lost. Nothing more is written."""
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
        """Allow one more commit, whatever has ended the run, to store the instance as stuck."""
        self.failure = self.stuck = None
        self.is_away = self.halted = False

    def misread(self, error: CodecError, what: str) -> BaseException:
        """End the run because of an unreadable row; return the error to raise.

        If the row needs the codec of other workers, the instance is left to them; otherwise it becomes stuck.
        """
        if isinstance(error, SealedError):
            self.storage_failed(error)
        else:
            self.diverged(HistoryDivergedError(f"{what}: {error}"))
        return Unwound()

    def stop(self) -> None:
        """End the run: cancel the author's code, and wake branches that shield themselves from that."""
        if get_ident() != self._thread:
            # A plain step made a mistake in its worker thread, so this is called from there. In a thread that the
            # author has started, this can't reach the event loop: then the run stops at its next operation.
            with suppress(RuntimeError):
                anyio.from_thread.run_sync(self.stop)
            return
        if self._cancel is not None:
            self._cancel.cancel()
        # Branches in a shield of the author's are not reached by the cancellation.
        self._let_all_go()

    def _let_all_go(self) -> None:
        if self.branches is not None:
            self.branches.let_all_go()

    def get_past_deaths(self) -> None:
        """Forget the deaths of workers, since every operation under which one died has ended, or waits."""
        if self.deaths is not None:
            self.deaths.forget()
            self.deaths = None
            self.are_told = self.watched is not None

    def abandon(self) -> None:
        """End the run: the host does not wake its branches any more."""
        self.is_over = True
        self.stop()

    async def run(self, root: Callable[[], Awaitable[None]]) -> None:
        """Run `root` to its end, or until the instance is released or stopped."""
        # One coroutine instead of several: there may be thousands of runs, and each frame takes memory.
        with anyio.CancelScope() as self._cancel:
            try:
                try:
                    await root()
                except (Unwound, BaseExceptionGroup) as error:
                    self._unwinds(error)
                # The author's function has ended. Branches that it left behind in a shield of its own are woken.
                self._let_all_go()
            finally:
                self.is_over = True

    def _unwinds(self, error: Unwound | BaseExceptionGroup[Any]) -> None:
        """Raise what the author's code raised while it unwound, without the parts that do not matter.

        A task group of the author's raises its cancellation in one group with the mistake that has stopped the run.
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
        """Wait to be cancelled, since the run is over, this branch is, or nothing new begins."""
        await self._slow_down()
        if (self.draining or self.is_dry) and not self.halted and self.branches is not None:
            await self.branches.hold()
        if anyio.current_effective_deadline() == _NEVER:
            await anyio.sleep_forever()
        # Behind a shield of the author's no cancellation comes, so `Unwound` unwinds the code. A loop of the author's
        # may catch that again and again: the checkpoint lets other tasks run all the same.
        await anyio.lowlevel.cancel_shielded_checkpoint()
        raise Unwound

    async def _slow_down(self) -> None:
        """Slow down code that comes here again and again, since it catches what unwinds it. Most code comes once."""
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
