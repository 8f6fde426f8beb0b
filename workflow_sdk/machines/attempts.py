"""The attempts of an executor at one effect: as many as its options allow, counted over all workers."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import anyio
from msgspec.structs import replace

from workflow_sdk.changes.apply import apply
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.instance.clock import Activity, Clock, Timeout
from workflow_sdk.instance.threads import Call, Threads
from workflow_sdk.machines import canonical
from workflow_sdk.machines.cell import Answer
from workflow_sdk.machines.executor import Executor
from workflow_sdk.machines.rows import IntentRow
from workflow_sdk.machines.schemas import plain
from workflow_sdk.machines.settling import next_attempt, send_frame
from workflow_sdk.machines.surroundings import Surroundings
from workflow_sdk.machines.views import Intent
from workflow_sdk.operations.calling import TimedOut, call, is_failure, is_final
from workflow_sdk.rows.retry import RetryAt, decide
from workflow_sdk.rows.wire import time_of
from workflow_sdk.values.basics import error_text

_log = logging.getLogger("workflow_sdk.machines")


class Calls:
    """The threads and the time of all executors of one worker."""

    def __init__(self, clock: Clock, threads: Threads, activity: Callable[[], Activity]) -> None:
        self._clock = clock
        self._threads = threads
        self._activity = activity
        self.in_threads: int = 0
        """How many run in threads."""
        self.resting: int = 0
        """How many wait for their next attempt."""

    def time_limit(self, seconds: float) -> AbstractContextManager[Timeout]:
        """Cancel the block once it has taken this long."""
        return self._clock.timeout(seconds)

    async def thread_for(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Awaitable[Any]]:
        """Take a worker thread for a plain function; return what runs it there."""
        one = Call(fn, args)
        if not self._threads.take(one):
            await self._threads.wait(one)
        return partial(self._in_thread, one)

    async def _in_thread(self, one: Call) -> Any:
        self.in_threads += 1
        try:
            return await self._threads.run(one)
        finally:
            self.in_threads -= 1

    async def rest(self, until: float) -> None:
        """Wait for the time of the next attempt."""
        self.resting += 1
        try:
            await self._clock.wait(anyio.Event(), until, self._activity)
        finally:
            self.resting -= 1


class Attempts:
    """The attempts of one executor at one effect."""

    def __init__(self, around: Surroundings, executor: Executor, id: str, intent: IntentRow, calls: Calls) -> None:
        self._around = around
        self._executor = executor
        self._id = id
        self._calls = calls
        self.intent: IntentRow = intent
        """As the store has it."""

    async def make(self) -> Answer | None:
        """Call the executor until it has an answer, or no attempt left; None if the effect is not ours any more."""
        options, clock = self._executor.options, self._around.clock
        while True:
            answer, failure = await self._attempt()
            if failure is None:
                return answer
            decision = decide(
                attempts=self.intent.failed + 1,
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
            mine = self.intent
            # Written before the wait: whoever takes the effect over meanwhile knows of the failure. An executor that
            # comes to an end, even to this one, is not what workers have died of.
            self.intent = replace(mine, attempt=mine.attempt + 1, failed=mine.failed + 1, deaths=0)
            if not await apply(self._around.driver, next_attempt(self._id, self.intent)):
                return None
            await self._calls.rest(decision.when)

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
