"""One run of one instance: the author's coroutine on one side, and beside it a supervisor that wakes what is due.

Waiting parks a branch in memory. When every branch is parked the instance is idle: the supervisor records that, and
either waits in memory for the first thing to happen, or puts the instance away. Nothing of this is ever an exception
in the author's code: a run that is over unwinds it by cancellation.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from threading import get_ident
from typing import Any, Literal, NoReturn

import anyio
import anyio.from_thread

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.entries import Entry
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.keys import Field, WorkerKeys
from workflow_sdk.core.status import Status
from workflow_sdk.core.wire import pack_record, unpack_record
from workflow_sdk.driver import Batch, ConflictError, Driver
from workflow_sdk.execution.clock import Activity, Clock, Timeout
from workflow_sdk.execution.flushing import Flusher
from workflow_sdk.execution.mail import Mail
from workflow_sdk.execution.recall import read_branches, read_page
from workflow_sdk.execution.standing import Standing
from workflow_sdk.execution.threads import run_in_thread
from workflow_sdk.execution.waiting import Waits
from workflow_sdk.operations.engine import Facts, Unwound, Wait

__all__ = ["Execution", "Mode"]

Mode = Literal["yield", "live"]

_NEVER = -float("inf")


class Execution:
    """Runs one instance, once. It is the engine that operations talk to."""

    walking = False

    def __init__(
        self,
        *,
        driver: Driver,
        journal: Journal,
        codec: Codec,
        clock: Clock,
        facts: Facts,
        lease: bytes,
        mode: Mode,
        hosted: bool = False,
    ) -> None:
        self.driver = driver
        self.journal = journal
        self.codec = codec
        self.clock = clock
        self.facts = facts
        self.mode: Mode = mode
        self.mail: Mail = Mail(driver, journal)
        self._lease = lease
        self._hosted = hosted
        """A runtime runs it, which has a heartbeat for all it runs, and tells of messages."""
        self.draining: bool = False
        """Nothing new is begun: the instance is put away as soon as what is under way has ended."""
        self.on_rest: Callable[[bool], None] | None = None
        """Told when the instance becomes idle (True), and when it goes on."""
        self._worker = WorkerKeys(str(unpack_record(lease)[0]))
        self.standing: Standing = Standing(journal, facts, clock, self._worker, beats=not hosted)
        self.flusher: Flusher = Flusher(driver, journal, lease, self.storage_failed)
        self.now: Callable[[], float] = clock.time
        self.chance: Callable[[], float] = random.random
        self.active: int = 1
        self.handlers: dict[bytes, tuple[Callable[..., Any], object]] = {}
        self.failure: Exception | None = None
        """The store failed, or the lease is lost. Nothing more is written."""
        self.stuck: tuple[Exception, str] | None = None
        """What stopped the instance, and its kind: the author's mistake, or divergence."""
        self.is_away: bool = False
        """The instance was put away."""
        self.idle_result: tuple[Status, float | None, list[str]] | None = None
        """How the instance was put away."""
        self._cancel: anyio.CancelScope | None = None
        self._signal = anyio.Event()
        self._waits = Waits(journal)
        self._threads_busy = 0
        self._is_idle = False
        self._held = False
        """A branch was kept from going on."""
        self._is_over = False
        """Nobody wakes the branches any more."""
        self._thread = get_ident()
        """Of the event loop."""

    # What operations ask for.

    @property
    def halted(self) -> bool:
        return self.failure is not None or self.stuck is not None or self.is_away

    def time_limit(self, seconds: float) -> AbstractContextManager[Timeout]:
        return self.clock.timeout(seconds)

    async def in_thread(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._threads_busy += 1
        try:
            return await run_in_thread(fn, args)
        finally:
            self._threads_busy -= 1

    async def flush(self) -> None:
        if not await self.flusher.flush(alone=self.active == 1):
            await self.never()

    async def park(self, wait: Wait) -> None:
        if self.halted:
            await self.never()
        self._waits.add(wait)
        try:
            if self.active > 1:
                # Siblings go on. Else the commit that records the instance as idle takes our changes along.
                await self.flush()
                if wait.fired:
                    return
            wait.parked = True
            self.active -= 1
            self._signal.set()
            try:
                await wait.event.wait()
            finally:
                if not wait.fired:
                    self.active += 1
                    self._leave_idle()
            if self.halted or self._is_over:
                await self.never()
        finally:
            self._waits.remove(wait)
            if wait.messages and len(self.journal.inbox):
                # It may have been woken for a message that it has left to others.
                self._signal.set()

    def rest(self) -> None:
        self.active -= 1
        if self.active == 0:
            self._signal.set()

    def messages_came_back(self) -> None:
        self._signal.set()

    async def refresh_inbox(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self.mail.refresh()
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
            await self.never()

    async def branch_values(self, location: bytes) -> dict[bytes, Entry]:
        try:
            return await read_branches(self.driver, self.journal.keys, location)
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
            await self.never()

    async def keep_for_rollback(self, location: bytes) -> None:
        after: bytes | None = b""
        while after is not None:
            # In pages, each a commit of its own: they only copy what is there, and may be copied again.
            await self.flush()
            try:
                rows, after = await read_page(self.driver, self.journal.keys, location, after)
            except Exception as error:  # noqa: BLE001  # the store failed
                self.storage_failed(error)
                await self.never()
            self.journal.keep_in_attic(rows)

    def remember_handler(self, location: bytes, handler: Callable[..., Any], hint: object) -> None:
        self.handlers[location] = (handler, hint)

    def slip(self, error: Exception) -> Exception:
        if not self.halted:
            self.stuck = (error, "definition")
            self._stop()
        return error

    def diverged(self, error: Exception) -> None:
        if not self.halted:
            self.stuck = (error, "divergence")
            self._stop()

    def storage_failed(self, error: Exception) -> None:
        if not self.halted:
            self.failure = error
            self._stop()

    def walk_scope(self) -> AbstractContextManager[object]:
        raise AssertionError("only a walk is walked")

    async def never(self) -> NoReturn:
        if self.draining and not self.halted:
            self._held = True
            self.rest()
            await anyio.sleep_forever()
        if anyio.current_effective_deadline() == _NEVER:
            await anyio.sleep_forever()
        raise Unwound

    # The run.

    def poke(self) -> None:
        """A message may have come."""
        self.mail.has_come = True
        self._signal.set()

    def put_away(self) -> None:
        """Begin nothing new, and put the instance away once what is under way has ended."""
        self.mode = "yield"
        self.draining = True
        self._is_idle = False
        self._signal.set()

    @property
    def is_idle(self) -> bool:
        """Whether it waits in memory, and the store says so."""
        return self._is_idle

    async def run(self, root: Callable[[], Awaitable[None]]) -> None:
        """Run `root` to its end, or until the instance is put away or stopped."""
        async with anyio.create_task_group() as group:
            self._cancel = group.cancel_scope
            group.start_soon(self._supervise, group)
            if not self._hosted:
                group.start_soon(self._beat)
            # A task of its own: then whoever cancels this run cancels a scope around the author's code.
            group.start_soon(self._run_root, root)

    async def _beat(self) -> None:
        """Say that this run is alive, as long as it is."""
        seconds = float(unpack_record(self._lease)[2])
        while True:
            await anyio.sleep(seconds / 3)
            batch = Batch()
            batch.check(self.journal.keys.lease, self._lease)
            batch.set(self._worker.heartbeat, pack_record([self.clock.time() + seconds]))
            # A beat that fails is no failure of the run: its commits will tell.
            with suppress(Exception):
                await self.driver.commit(batch)

    async def _run_root(self, root: Callable[[], Awaitable[None]]) -> None:
        try:
            await root()
        except (Unwound, BaseExceptionGroup) as error:
            # What comes of the author's code after the run was stopped is ignored: a task group of its own hands on its
            # cancellation together with the mistake that stopped the run.
            over = (Unwound, Exception, anyio.get_cancelled_exc_class()) if self.halted else Unwound
            rest = None if isinstance(error, Unwound) else error.split(over)[1]
            if rest is not None:
                raise rest from None
        self._stop()

    def _stop(self) -> None:
        if get_ident() != self._thread:
            # A plain step made a mistake, in its worker thread. In a thread of the author's own the run stops with the
            # next operation.
            with suppress(RuntimeError):
                anyio.from_thread.run_sync(self._stop)
            return
        if self._cancel is not None:
            self._cancel.cancel()
        # Code that shields itself from the cancellation has to be told as well.
        self._waits.let_all_go()

    async def finish(self, status: Status) -> None:
        """The last commit: how the instance ended, and that it is nobody's any more."""
        self.standing.become(status)
        batch = Batch()
        self.standing.let_go(batch, None)
        await self.flusher.commit(batch)
        if self.failure is None:
            self.is_away = True

    def activity(self) -> Activity:
        """What is under way."""
        if self._threads_busy:
            return Activity.THREAD
        return Activity.CODE if self.active else Activity.NONE

    async def _supervise(self, group: anyio.abc.TaskGroup) -> None:
        try:
            await self._wake_what_is_due(group)
        finally:
            # Also if the run was cancelled from outside.
            self._is_over = True
            self._stop()

    async def _wake_what_is_due(self, group: anyio.abc.TaskGroup) -> None:
        while True:
            signal = self._signal = anyio.Event()
            if self.mail.has_come:
                await self.refresh_inbox()
                await self._check_lease()
            self._fire()
            if self.active == 0 and not self._is_idle:
                await self._become_idle()
                if self.halted:
                    self._stop()
                    return
                if not self._is_idle:
                    continue
            if self._waits.listens and not self.mail.is_watched and not self._hosted:
                self.mail.is_watched = True
                group.start_soon(self._watch, self.mail)
            await self.clock.wait(signal, self._waits.next_time, self.activity)

    async def _check_lease(self) -> None:
        """Whoever has taken the instance over may have taken the message, too: there would be nothing to wait for."""
        try:
            lost = await self.driver.get(self.journal.keys.lease) != self._lease
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
            return
        if lost:
            self.storage_failed(ConflictError("the lease is lost"))

    async def _watch(self, mail: Mail) -> None:
        try:
            await mail.watch()
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
        self._signal.set()

    def _fire(self) -> None:
        """Wake the branches whose time has come, or for whom there may be a message."""
        for wait in self._waits.due(self.clock.time()):
            self._wake(wait)
        for wait in self._waits.served():
            self._wake(wait)

    def _wake(self, wait: Wait) -> None:
        if wait.fired:
            return
        wait.fired = True
        if wait.parked:
            self.active += 1
        wait.event.set()
        self._leave_idle()

    def _leave_idle(self) -> None:
        """Something goes on: with the next commit, the instance is not stored as waiting any more."""
        if self._is_idle and self.on_rest is not None:
            self.on_rest(False)
        self._is_idle = False
        if self.standing.status is not Status.ROLLING_BACK:
            self.standing.become(Status.RUNNING)

    async def _become_idle(self) -> None:
        """Record that every branch is parked; in yield mode, put the instance away in the same commit."""
        if self.standing.status is not Status.ROLLING_BACK:
            self.standing.become(Status.WAITING if self._waits.listens else Status.SLEEPING)
        batch = Batch()
        if self.mode == "live":
            self._is_idle = True
            if self.on_rest is not None:
                self.on_rest(True)
            await self.flusher.commit(batch)
            return
        # What was kept from going on is due at once.
        when = self.clock.time() if self._held else self._waits.next_time
        batch.check(self.journal.keys.nudge, self.mail.nudge)
        self.standing.let_go(batch, when)
        error = await self.flusher.try_commit(batch)
        if error is None:
            self.idle_result = (self.standing.status, when, self._waits.messages)
            self.is_away = True
        elif not isinstance(error, ConflictError) or not await self._has_mail():
            self.storage_failed(error)
        else:
            # It is not put away after all, and what goes on now must not be stored as waiting.
            self.journal.set_field(Field.ALARM, None)
            self._leave_idle()

    async def _has_mail(self) -> bool:
        """After a conflict: whether it was a message that came meanwhile, which is taken in."""
        try:
            if await self.driver.get(self.journal.keys.lease) != self._lease:
                return False
            return await self.mail.refresh()
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
            return False
