"""One run of one instance: the author's coroutine on one side, and on the other a host that wakes what is due.

Waiting parks a branch in memory. When every branch is parked the instance is idle: the last one to park records that,
and the instance either waits in memory for the first thing to happen, or is put away. Nothing of this is ever an
exception in the author's code: a run that is over unwinds it by cancellation.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any, NoReturn, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.deaths import tries_in
from workflow_sdk.changes.workers import beat_with_lease
from workflow_sdk.core.answers import Answer, is_answer
from workflow_sdk.core.codec import Codec, SealedError
from workflow_sdk.core.entries import Entry
from workflow_sdk.core.instance import CountRow, Lease
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.keys import TRIES, Field, WorkerKeys, worker_keys
from workflow_sdk.core.limits import counted
from workflow_sdk.core.world import World
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import ConflictError, Driver, StorageLimitError, transacting
from workflow_sdk.errors import CodecError, HistoryDivergedError
from workflow_sdk.execution.clock import Activity, Clock, Timeout
from workflow_sdk.execution.flushing import Flusher
from workflow_sdk.execution.host import Host
from workflow_sdk.execution.idling import TURN_SECONDS, Mode
from workflow_sdk.execution.load import Scannable
from workflow_sdk.execution.mail import Mail
from workflow_sdk.execution.probe import Probe, probe
from workflow_sdk.execution.recall import read_branches, read_page
from workflow_sdk.execution.sorting import Sorting
from workflow_sdk.execution.standing import Standing
from workflow_sdk.execution.threads import Call, Threads
from workflow_sdk.execution.wariness import Wariness
from workflow_sdk.operations.engine import Facts, Unwound, Wait
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.operations.place import Place
from workflow_sdk.operations.scope import current_scope

__all__ = ["Execution", "Mode"]

T = TypeVar("T")
S = TypeVar("S")

_log = logging.getLogger("workflow_sdk.runtime")

_NEVER = -float("inf")

UNWOUND_MAX = 100
"""How often code in one scope may come to an operation after its run is over: to clean up, in a few places."""
UNWOUND_SECONDS = 1.0
"""After that, how long each takes."""

WAITS_UNSEEN_SECONDS = 1.0
"""How long a step waits for a thread before everybody can see that it does."""

_NO_HANDLERS: dict[bytes, tuple[Callable[..., Any], object]] = {}
"""Shared by all, and never written to."""


class Execution(Sorting):
    """Runs one instance, once. It is the engine that operations talk to."""

    __slots__ = (
        "_cancel",
        "_checks",
        "_reading",
        "_thread",
        "_threads_busy",
        "_unwound_at",
        "handlers",
        "known",
        "stuck",
        "wary",
        "watched",
        "world",
    )

    walking = False

    # The types of the bases, for checkers that would infer others from what is assigned here.
    active: int
    failure: Exception | None

    def __init__(
        self,
        *,
        driver: Driver,
        journal: Journal,
        codec: Codec,
        known: KnownHandlers,
        clock: Clock,
        facts: Facts,
        lease: Lease,
        mode: Mode,
        host: Host,
    ) -> None:
        worker, fence = worker_keys(lease.worker), lease.pack()
        super().__init__(
            driver=driver,
            codec=codec,
            journal=journal,
            clock=clock,
            facts=facts,
            lease=fence,
            mode=mode,
            host=host,
            mail=Mail(driver, journal),
            standing=Standing(journal, facts, clock, worker, beats=not host.beats),
            flusher=Flusher(driver, journal, fence, self.storage_failed),
        )
        self.known: KnownHandlers = known
        self.handlers: dict[bytes, tuple[Callable[..., Any], object]] = _NO_HANDLERS
        self.world: World | None = None
        self.wary: Wariness | None = None
        """There if workers have died under the instance: then what is executed is noted."""
        self.stuck: tuple[Exception, str] | None = None
        """What stopped the instance, and its kind: the author's mistake, or divergence."""
        self.watched: Probe | None = probe.get()
        self._cancel: anyio.CancelScope | None = None
        self._threads_busy = 0
        self._unwound_at: dict[int, int] | None = None
        """How often code was unwound, by the scope it is in."""
        self._reading = False
        self._checks = False
        """Whether the lease is to be looked at with the mail."""
        self._thread = get_ident()
        """Of the event loop."""

    # What operations ask for.

    @property
    def halted(self) -> bool:
        return self.failure is not None or self.stuck is not None or self.is_away

    @property
    def is_broken(self) -> bool:
        return self.flusher.is_broken

    def is_cancelled(self) -> bool:
        return anyio.current_effective_deadline() == _NEVER or self.host.is_cancelled

    def chance(self) -> float:
        if self.watched is not None and self.watched.seed is not None:
            return 0.5  # no run of a test is to differ from another by chance
        return random.random()

    def time_limit(self, seconds: float) -> AbstractContextManager[Timeout]:
        return self.clock.timeout(seconds)

    async def thread_for(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Awaitable[Any]]:
        threads, call = self.host.threads, Call(fn, args)
        await anyio.lowlevel.checkpoint_if_cancelled()
        if not threads.take(call):
            self._threads_busy += 1
            try:
                await self._wait_for_thread(threads, call)
            finally:
                self._threads_busy -= 1
        return partial(self._in_thread, threads, call)

    async def _in_thread(self, threads: Threads, call: Call) -> Any:
        self._threads_busy += 1
        try:
            return await threads.run(call)
        finally:
            self._threads_busy -= 1

    async def _wait_for_thread(self, threads: Threads, call: Call) -> None:
        """Wait until a thread is free; whoever looks is told, if that takes long."""
        with anyio.move_on_after(WAITS_UNSEEN_SECONDS) as brief:
            await threads.wait(call)
        if brief.cancelled_caught:
            await self._wait_visibly(threads, call)
        if self.draining:
            # Nothing new is begun. It has not been called, and is when the instance is run again.
            threads.give_back(call)
            await self.never()

    async def _wait_visibly(self, threads: Threads, call: Call) -> None:
        step = current_scope.get()
        if not isinstance(step, Place):
            await threads.wait(call)
            return
        _log.warning(
            "%s of instance %s waits for a thread: all %d are taken by plain functions that have not returned",
            step.what,
            self.facts.instance_id,
            threads.most,
        )
        wait = Wait(step.location, "thread", step.name, step.path, messages=())
        self._waits.show(wait)
        try:
            await self.flush(stay=True)
            await threads.wait(call)
        finally:
            self._waits.hide(wait)

    async def flush(self, *, stay: bool = False) -> None:
        if self.world is not None:
            self.show()
            if self.halted:
                await self.never()
        if not await self.flusher.flush(alone=self.active == 1):
            await self.never()
        if self.host.crowded and not stay and monotonic() - self._since > TURN_SECONDS:
            await self._let_others_go()

    @property
    def transacts(self) -> bool:
        return transacting(self.driver) is not None

    async def transact(
        self, fn: Callable[[Any], T], rows: Callable[[T], list[tuple[bytes, bytes]]], goes_on: Callable[[], bool]
    ) -> None:
        raised: list[Exception] = []

        def call(transaction: object) -> T:
            return _note(raised, fn, transaction)

        def outcome(value: T) -> list[tuple[bytes, bytes]]:
            return _note(raised, rows, value)

        await self.flusher.until_landed()
        if self.halted or not goes_on():
            await self.never()
        self._threads_busy += 1
        try:
            error = await self.flusher.transact(call, outcome)
        finally:
            self._threads_busy -= 1
        if error is None:
            return
        if isinstance(error, _Carried):
            raise error.raised
        if error in raised or isinstance(error, StorageLimitError):
            raise error
        self.storage_failed(error)
        await self.never()

    async def answer(self, key: bytes, raw: bytes) -> None:
        take = self.host.answers.pop(key, None)
        if take is not None:
            self.journal.write_outside(key, None)
            self.show()
            # Once it is stored it is handed over, before anything can come in between: nobody would answer again.
            if not await self.flusher.flush(alone=self.active == 1, then=partial(take, Answer(raw).pack())):
                await self.never()
            return
        try:
            asked = await self.driver.get(key)
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
            await self.never()
        if asked is not None and not is_answer(asked):
            self.journal.write_outside(key, Answer(raw).pack())
        await self.flush()

    @property
    def handed(self) -> int | None:
        """How many messages were handed over to it in this process; None if they are not counted there."""
        return self.journal.about.handed

    @handed.setter
    def handed(self, count: int | None) -> None:
        self.journal.about.set(Field.HANDED, None if count is None else CountRow(count))

    @property
    def message_count(self) -> int:
        """How many messages it has not taken, as far as is known here."""
        return max(0, sum(map(counted, self.mail.sent.values())) + (self.handed or 0) - self.journal.taken)

    def messages_came_back(self) -> None:
        self.fire()

    async def refresh_inbox(self) -> None:
        if not await self._read_mail():
            await self.never()

    async def _read_mail(self) -> bool:
        """Take in what has come; False if the run is over."""
        try:
            with anyio.CancelScope(shield=True):
                await self.mail.refresh(standing=True)
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
        return not self.halted

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
        if self.handlers is _NO_HANDLERS:
            self.handlers = {}
        self.handlers[location] = (handler, hint)

    def slip(self, error: Exception) -> BaseException:
        if self.halted:
            return Unwound()
        self.stuck = (error, "definition")
        self._stop()
        return error

    def diverged(self, error: Exception) -> None:
        if not self.halted:
            self.stuck = (error, "consistency")
            self._stop()

    def storage_failed(self, error: Exception) -> None:
        if not self.halted:
            self.failure = error
            self._stop()

    def unreadable(self, error: Exception) -> None:
        self.storage_failed(error)

    def walk_scope(self) -> AbstractContextManager[object]:
        raise AssertionError("only a walk is walked")

    async def never(self) -> NoReturn:
        await self._hold_back()
        dry = self.watched is not None and self.watched.dry
        if (self.draining or dry) and not self.halted:
            self._held = True
            self.rest()
            try:
                await anyio.sleep_forever()
            finally:
                # Of a race that was decided meanwhile: whoever ran this branch counts it off.
                self.active += 1
        if anyio.current_effective_deadline() == _NEVER:
            await anyio.sleep_forever()
        # Nothing is cancelled here, behind a shield of the author's: others get their turn all the same.
        await anyio.lowlevel.cancel_shielded_checkpoint()
        raise Unwound

    async def _hold_back(self) -> None:
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
                self.facts.workflow_name,
                self.facts.instance_id,
            )
        with anyio.CancelScope(shield=True):
            await anyio.sleep(UNWOUND_SECONDS)

    async def note_try(self, location: bytes, path: str) -> None:
        if self.wary is not None:
            self.wary.note(location, path)
            await self.flush(stay=True)

    def survived(self, location: bytes) -> None:
        if self.wary is not None:
            self.wary.survived(location)
            if self.active == 1:
                # Nothing else is under way.
                self.get_past_deaths()

    def get_past_deaths(self) -> None:
        if self.wary is not None:
            self.wary.end()
            self.wary = None

    def meet(self, workflow: Workflow[Any, Any]) -> None:
        self.host.meet(workflow)

    # What its host asks for.

    @property
    def children(self) -> Iterable[str]:
        """The instances that it waits for."""
        return [what.id for what in self.journal.outside.values() if what.kind == "child"]

    async def beware(self, store: Scannable) -> None:
        """Workers have died under the instance: from now on, note what is executed."""
        keys = self.journal.keys
        tries = tries_in(keys, await store.scan(*keys.range(TRIES)))
        self.wary = Wariness(self.journal, Lease.unpack(self.lease).name, tries)

    def poke(self, *, lease: bool = True) -> None:
        """A message may have come; with `lease`, the instance may also have been taken away."""
        self.mail.has_come = True
        self._checks = self._checks or lease
        if not self._reading and not self.halted:
            self._reading = True
            self.host.spawn(self._take_mail)

    async def _take_mail(self) -> None:
        self._busy += 1
        try:
            while not self.halted and (self.mail.has_come or await self._sort()):
                if not self.mail.has_come:
                    continue
                checked, self._checks = self._checks, False
                try:
                    await self.mail.refresh(standing=checked)
                except Exception as error:  # noqa: BLE001  # the store failed
                    self.storage_failed(error)
                    return
                if checked and self.mail.lease != self.lease:
                    # Whoever has taken the instance over may have taken the message, too: there would be nothing to
                    # wait for. What is in flight is refused, and ends first.
                    await self.flusher.until_landed()
                    self.storage_failed(ConflictError("the lease is lost"))
                if checked and self.mail.evicted == self.lease and not self.halted:
                    self.journal.write_outside(self.journal.keys.evicted, None)
                    self.host.evict(self)
        finally:
            self._reading = False
            self._busy -= 1

    async def _sort(self) -> bool:
        """Wake those for whom there is mail; whether there may be more for others."""
        self.fire()
        return not self.halted and await self.sort_mail()

    async def watch_mail(self) -> None:
        """Return once a message may have come, and was taken in."""
        try:
            await self.mail.watch()
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
        else:
            self.mail.has_come = self._checks = True
            await self._take_mail()

    async def beat(self, worker: WorkerKeys, heartbeat: bytes) -> None:
        """Say that its worker lives, as long as the lease is held."""
        await apply(self.driver, beat_with_lease(self.journal.keys, self.lease, worker, heartbeat))

    async def run(self, root: Callable[[], Awaitable[None]]) -> None:
        """Run `root` to its end, or until the instance is put away or stopped."""
        # One frame for all of this: there may be thousands of them.
        with anyio.CancelScope() as self._cancel:
            try:
                try:
                    await root()
                except (Unwound, BaseExceptionGroup) as error:
                    self._unwinds(error)
                self._stop()
            finally:
                self._is_over = True

    def abandon(self) -> None:
        """Nobody wakes its branches any more: it is over."""
        self._is_over = True
        self._stop()

    def give_back(self) -> None:
        """End the run. It gives the instance back, and what was under way runs again later."""
        self._stop()

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
        self._my_turn()

    def begin_again(self, facts: Facts) -> None:
        """Nothing is left of what was done before, but what the world may see."""
        self.facts = facts
        self.handlers = _NO_HANDLERS
        self.world = None
        self.get_past_deaths()

    def see_world(self) -> World:
        if self.world is None:
            try:
                self.world = World.since_the_start(self.codec, self.journal.about)
            except SealedError as error:
                self.unreadable(error)
                raise Unwound from None
            except CodecError as error:
                # No failure of the author's, who must not see it.
                self.diverged(
                    HistoryDivergedError(f"the ctx.state with which the instance started over can't be read: {error}")
                )
                raise Unwound from None
        return self.world

    def show(self) -> None:
        """Have the world see what was assigned, with the next commit."""
        if self.world is None or self.journal.loaded:
            # While history is walked over again, not everything is assigned yet.
            return
        before = self.journal.about.shown.reference
        try:
            state, shown = self.world.shown()
        except CodecError as error:
            self.slip(error)
            return
        self.journal.show(Field.STATE, state)
        self.journal.show(Field.SHOWN, shown)
        after = self.journal.about.shown.reference
        if after != before:
            self.standing.refer(before, after)

    def activity(self) -> Activity:
        """What is under way."""
        if self._threads_busy:
            return Activity.THREAD
        # What is over is still being unwound.
        return Activity.CODE if self.active or self._busy or self.halted else Activity.NONE


class _Carried(Exception):
    """Something that is no `Exception`, raised by an author's function in the hands of the store."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(raised)
        self.raised = raised


def _note(raised: list[Exception], fn: Callable[[S], T], value: S) -> T:
    """What `fn` returns. What it raises is noted, to be told from what the store raises."""
    try:
        return fn(value)
    except Exception as error:
        raised[:] = [error]
        raise
    except BaseException as error:  # noqa: BLE001  # it is raised again, where it can do no harm
        # Anything else would end the thread of the store, or leave its transaction open.
        raise _Carried(error) from None
