"""Running executors: for one worker, those of effects that its cells have asked for, and those that are queued."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import anyio
from msgspec.structs import replace

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.deliver import Delivery
from workflow_sdk.client.directory import first_time
from workflow_sdk.client.watching import Watch, wait_idly
from workflow_sdk.driver import StorageLimitError
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.instance.clock import Activity, Timeout
from workflow_sdk.instance.threads import Call, Threads
from workflow_sdk.machines import canonical
from workflow_sdk.machines.cell import Answer
from workflow_sdk.machines.effects import timer
from workflow_sdk.machines.emitting import OtherManifestError
from workflow_sdk.machines.executor import Executor
from workflow_sdk.machines.rows import IntentRow, all_executed, queue_of, signal_key
from workflow_sdk.machines.schemas import plain
from workflow_sdk.machines.settling import drop_queued, next_attempt, queue_again, send_frame, settle, take_intent
from workflow_sdk.machines.surroundings import Surroundings
from workflow_sdk.machines.views import Intent
from workflow_sdk.operations.calling import TimedOut, call, is_failure, is_final
from workflow_sdk.rows.keys import ROOT, WorkerKeys, last_of
from workflow_sdk.rows.location import pack, subtree, unpack
from workflow_sdk.rows.retry import RetryAt, decide
from workflow_sdk.rows.wire import damaged, time_of
from workflow_sdk.values.basics import error_text
from workflow_sdk.worker.residents import Residents

_log = logging.getLogger("workflow_sdk.machines")

AT_ONCE: Final = 512
"""How many executors run at the same time."""
PAGE: Final = 64
"""How many queued effects are taken at once."""


class Executing:
    """Runs the executors of one worker."""

    def __init__(self, around: Surroundings, executors: Iterable[Executor], residents: Residents, watch: Watch) -> None:
        self._around = around
        self._executors: Mapping[str, Executor] = {one.effect.name: one for one in executors}
        self._residents = residents
        self._watch = watch
        self._running: dict[str, anyio.CancelScope] = {}
        self._signals: dict[str, bytes | None] = {}
        self._rung = anyio.Event()
        """Set when something may have been queued."""
        self._ended = anyio.Event()
        self._dropped = anyio.Event()
        """Set when this worker has an effect that it does not run any more."""
        self._heard: dict[str, anyio.Event] = {}
        """One event for each effect whose signal has changed, set when that is read again."""
        self._room = anyio.Semaphore(AT_ONCE)
        self._in_threads = 0
        self._waiting = 0
        """How many wait for their next attempt."""
        self._taking = 0
        """How many effects are being taken, and do not run yet."""
        self._is_stopping = False
        self._gives_back = False
        around.begin = self.begin
        around.queued = lambda effect: self._rung.set()

    # One effect.

    def begin(self, id: str, intent: IntentRow) -> None:
        """Run an effect that this worker has taken."""
        if id in self._running:
            return
        scope = self._running[id] = anyio.CancelScope()
        if self._gives_back:
            scope.cancel()
        self._residents.host.spawn(partial(self._serve, id, intent))

    async def _serve(self, id: str, intent: IntentRow) -> None:
        scope = self._running[id]
        answer: Answer | None = None
        try:
            with scope:
                async with self._room:
                    run = _Attempts(self._around, self._executors[intent.effect], id, intent, self)
                    answer = await run.make()
            if answer is not None:
                await self._settle_somehow(id, answer, intent)
            elif scope.cancel_called:
                with anyio.CancelScope(shield=True):
                    await apply(self._around.driver, queue_again(id, self._around.worker, intent.claim))
        except Exception:  # noqa: BLE001  # the store failed: a look finds the effect, and runs it again
            self._dropped.set()
            _log.warning(
                "effect %s (intent %s) could not be settled; it is run again", intent.effect, id, exc_info=True
            )
        finally:
            del self._running[id]
            self._one_less()

    def _one_less(self) -> None:
        """Note that something has ended that the end of the worker may wait for."""
        self._ended.set()
        self._residents.one_ended()

    async def _settle_somehow(self, id: str, answer: Answer, mine: IntentRow) -> None:
        """Settle an effect that was done. Were it run again because its answer finds no room, that would never end."""
        try:
            await self._settle(id, answer, mine)
        except (CodecError, StorageLimitError) as error:
            told = Answer("fault", f"the answer can't be stored: {error}", answer.executor)
            await self._settle(id, told, mine)

    async def _settle(self, id: str, answer: Answer, mine: IntentRow | None) -> bool:
        """Settle an effect; False if it is settled, or not ours any more."""
        around = self._around
        now = around.clock.time()
        told = await apply(around.driver, settle(id, answer, around.codec, now, around.is_here, mine))
        if told.posted.is_stored:
            around.tell(told.id, told.posted.worker)
        return told.delivery is not Delivery.STALE

    # As calls of the engine take it.

    def time_limit(self, seconds: float) -> AbstractContextManager[Timeout]:
        """Cancel the block once it has taken this long."""
        return self._around.clock.timeout(seconds)

    async def thread_for(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Awaitable[Any]]:
        """Take a worker thread for a plain function; return what runs it there."""
        threads, one = self._residents.host.threads, Call(fn, args)
        if not threads.take(one):
            await threads.wait(one)
        return partial(self._in_thread, threads, one)

    async def _in_thread(self, threads: Threads, one: Call) -> Any:
        self._in_threads += 1
        try:
            return await threads.run(one)
        finally:
            self._in_threads -= 1

    def activity(self) -> Activity:
        """What is under way."""
        if self._in_threads:
            return Activity.THREAD
        return Activity.CODE if len(self._running) > self._waiting else Activity.NONE

    async def rest(self, until: float) -> None:
        """Wait for the time of the next attempt."""
        self._waiting += 1
        try:
            await self._around.clock.wait(anyio.Event(), until, self.activity)
        finally:
            self._waiting -= 1

    # The loops.

    async def listen(self, effect: str) -> None:
        """Return once an effect was queued, and was seen to be."""
        await self._around.driver.changed(signal_key(effect), self._signals.get(effect))
        self._rung.set()
        # Called again before the signal was read again, `changed` would return at once, for the same effect.
        heard = self._heard[effect] = anyio.Event()
        await heard.wait()

    async def take_what_is_queued(self) -> None:
        """Take queued effects that there are executors for, and settle due timers; return to be called again."""
        around = self._around
        self._rung = anyio.Event()
        until: float | None = None
        with self._residents.looks():
            for effect in (timer.name, *self._executors):
                self._signals[effect] = await around.driver.get(signal_key(effect))
                if effect in self._heard:
                    self._heard.pop(effect).set()
            try:
                for effect in self._executors:
                    await self._take(effect)
            except OtherManifestError:
                around.fenced()
            until = await self._settle_timers()
        await around.clock.wait(self._rung, until, self.activity)

    async def _take(self, effect: str) -> None:
        around = self._around
        begin, end = subtree(queue_of(effect))
        while not self._is_stopping:
            rows = await around.driver.scan(begin, end, limit=PAGE)
            for key, _ in rows:
                if self._is_stopping:
                    return
                await self._take_one(last_of(key), key)
            if len(rows) < PAGE:
                return
            begin = rows[-1][0] + b"\x00"

    async def _take_one(self, id: str, place: bytes) -> None:
        around = self._around
        self._taking += 1
        try:
            taken = await apply(around.driver, take_intent(id, around.worker, around.active))
            if taken is not None:
                self.begin(id, taken)
            else:
                await apply(around.driver, drop_queued(id, place))
        finally:
            self._taking -= 1
            self._one_less()

    async def _settle_timers(self) -> float | None:
        """Settle the timers that are due; return when the next one is."""
        around, prefix = self._around, queue_of(timer.name)
        begin, end = subtree(prefix)
        while True:
            if self._is_stopping:
                return None  # those that are due are left to others
            now = around.clock.time()
            rows = await around.driver.scan(begin, prefix + pack((now,)) + b"\xff", limit=PAGE)
            for key, _ in rows:
                if not await self._settle(last_of(key), Answer("ok"), None):
                    await apply(around.driver, drop_queued(last_of(key), key))
            if len(rows) < PAGE:
                break
            begin = rows[-1][0] + b"\x00"
        return await first_time(around.driver, begin, end, _due_of)

    async def take_what_was_left(self, ttl: float) -> None:
        """Give back what dead workers ran, and what this one has and does not run; return to be called again."""
        around = self._around
        # Who is dead is found out beside this.
        await self._watch.until_looked()
        self._dropped = dropped = anyio.Event()
        may_die = False
        with self._residents.looks():
            before = set(self._running)
            rows = await around.driver.scan(*all_executed())
            for key, _ in rows:
                worker, id = _executed(key)
                if worker == around.worker:
                    if id in before or id in self._running:
                        continue
                elif not await self._is_dead(worker):
                    may_die = may_die or not around.clock.is_alive(worker)
                    continue
                await apply(around.driver, queue_again(id, worker))
                self._rung.set()
        # Lazily, so that a virtual clock does not jump to the next pass, unless that may find a death.
        next_pass = around.clock.monotonic() + ttl / 3
        await wait_idly(around.clock, dropped, by=next_pass if may_die else None, lazily=next_pass)

    async def _is_dead(self, worker: str) -> bool:
        if worker in self._watch.dead:
            return True
        if self._around.clock.is_alive(worker):
            return False
        # A worker writes a heartbeat before it takes anything.
        return await self._around.driver.get(WorkerKeys(worker).heartbeat) is None

    # The end of the worker.

    @property
    def is_running(self) -> bool:
        """Whether an executor runs, or waits for its next attempt, or an effect is being taken."""
        return bool(self._running or self._taking)

    def take_nothing(self) -> None:
        """Take no effect any more."""
        self._is_stopping = True
        self._around.effects = frozenset()

    async def give_back(self) -> None:
        """Cancel what runs, and give it back, so that others run it."""
        self._gives_back = True
        for scope in list(self._running.values()):
            scope.cancel()
        while self.is_running:
            self._ended = anyio.Event()
            await self._ended.wait()


class _Attempts:
    """The attempts of one executor at one effect."""

    def __init__(self, around: Surroundings, executor: Executor, id: str, intent: IntentRow, calls: Executing) -> None:
        self._around = around
        self._executor = executor
        self._id = id
        self._calls = calls
        self.intent = intent
        """As the store has it."""

    async def make(self) -> Answer | None:
        """Call the executor until it has an answer, or no attempt left; None if the effect is not ours any more."""
        options, clock = self._executor.options, self._around.clock
        first = self.intent.attempt
        while True:
            answer, failure = await self._attempt()
            if failure is None:
                return answer
            decision = decide(
                attempts=self.intent.attempt - first + 1,
                retries=options.retries,
                final=is_final(failure, options),
                backoff=options.backoff,
                now=clock.time(),
                chance=random.random(),
            )
            if not isinstance(decision, RetryAt):
                return answer
            _log.warning(
                "effect %s (intent %s) has failed, and is tried again: %s", self.intent.effect, self._id, failure
            )
            await self._calls.rest(decision.when)
            self.intent = replace(self.intent, attempt=self.intent.attempt + 1)
            if not await apply(self._around.driver, next_attempt(self._id, self.intent)):
                return None

    async def _attempt(self) -> tuple[Answer, BaseException | None]:
        executor, name = self._executor, self._executor.name
        try:
            params = executor.effect.params.decode(self._around.codec.unseal(self.intent.params))
            value = await call(self._calls, executor.fn, (params, self._view(params)), executor.options.timeout)
        except TimedOut as error:
            return Answer("timeout", str(error), name), error
        except Exception as error:  # noqa: BLE001  # an author's function may raise anything
            return Answer("error", error_text(error), name), error
        except BaseException as error:
            # As of `sys.exit`. A cancellation that is not ours is one, too: it awaited something that was cancelled.
            if not is_failure(error):
                raise
            return Answer("fault", error_text(error), name), error
        try:
            data = plain(value)
            canonical.bare(data)
        except CodecError as error:
            return Answer("fault", f"the answer is no usable one: {error}", name), None
        return Answer("ok", data, name), None

    def _view(self, params: Any) -> Intent:
        row = self.intent
        return Intent(
            self._id,
            row.effect,
            params,
            row.machine,
            self._key(),
            row.issuer,
            row.sequence,
            row.attempt,
            recorded_at=time_of(row.at),
            sending=partial(self._send, row),
        )

    def _key(self) -> Any:
        """Of the cell that asked for it, or the id of the instance."""
        around, row = self._around, self.intent
        if row.key is None:
            return None
        key = around.codec.unseal(row.key)
        if row.token is not None:
            return canonical.restored(key)
        machine = around.manifest.machines.get(row.machine)
        return None if machine is None else machine.key_of(key)

    async def _send(self, intent: IntentRow, value: Any) -> None:
        around = self._around
        data = around.codec.seal(canonical.bare(plain(value)))
        sent = await apply(around.driver, send_frame(self._id, intent, data, around.clock.time()))
        if not sent:
            raise DefinitionError(f"intent {self._id}: attempt {intent.attempt} is over, and can't send any more")


def _executed(key: bytes) -> tuple[str, str]:
    parts = unpack(key[len(ROOT) :])
    return str(parts[-2]), str(parts[-1])


def _due_of(key: bytes) -> float:
    parts = unpack(key[len(ROOT) :])
    if len(parts) != 5 or not isinstance(parts[3], (int, float)):
        raise damaged("the time of an effect")
    return float(parts[3])
