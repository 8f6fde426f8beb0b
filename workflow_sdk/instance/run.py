"""One claimed instance, from loading it to releasing it, for runtimes and for `run_workflow`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import anyio
from msgspec import structs
from msgspec.structs import replace

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import Steps, change
from workflow_sdk.changes.claim import Claim, give_back
from workflow_sdk.changes.decide import take_back_death
from workflow_sdk.changes.instances import read_about, read_output, read_snapshot
from workflow_sdk.definitions import ContinueAsNew, Workflow
from workflow_sdk.driver import ConflictError, Driver
from workflow_sdk.errors import (
    CodecError,
    DefinitionError,
    ErrorInfo,
    LeaseLostError,
)
from workflow_sdk.instance.binding import bound
from workflow_sdk.instance.clock import Activity, Clock
from workflow_sdk.instance.execution import Execution, Mode
from workflow_sdk.instance.host import Host, Waiting
from workflow_sdk.instance.loading import load_for_run
from workflow_sdk.instance.messages import RunMessages
from workflow_sdk.instance.results import RunResult, innermost, stopping, stored_result
from workflow_sdk.instance.unwinding import Unwinding
from workflow_sdk.journal.journal import Journal
from workflow_sdk.operations.calling import come_what_may, is_failure_of_scope, take_back_cancellations
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.operations.inputs import encode_input
from workflow_sdk.operations.place import about
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.types import Facts, new_seed
from workflow_sdk.rows.instance import InstanceRows, Result
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import deadline_of, due_at_once
from workflow_sdk.values import Codec
from workflow_sdk.values.failures import describe, result_of, unpack_error_info

_log = logging.getLogger("workflow_sdk.execution")


class Run:
    """Loads one claimed instance, runs it, and releases it."""

    __slots__ = ("_checked", "_claimed", "_lease", "began_at", "codec", "driver", "execution", "journal", "workflow")

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        driver: Driver,
        keys: InstanceKeys,
        codec: Codec,
        known: KnownHandlers,
        clock: Clock,
        claimed: Claim,
        mode: Mode,
        host: Host,
    ) -> None:
        assert claimed.lease is not None, "only a claimed instance is run"
        self._lease = claimed.lease
        self.workflow: Workflow[Any, Any] = workflow
        self.driver: Driver = driver
        self.codec: Codec = codec
        self._claimed: Claim | None = claimed
        """The claim, until it is loaded: after that its rows must not take memory, as thousands of runs may wait."""
        self._checked = claimed.checked
        """Whether the input was checked against the workflow's annotation when the instance was started."""
        self.journal: Journal = Journal(keys)
        about, birth = claimed.about, claimed.about.birth
        self.began_at: float = about.began_at
        """When this generation of the instance began."""
        lenient = workflow.divergence == "lenient"
        self.execution: Execution = Execution(
            driver=driver,
            journal=self.journal,
            codec=codec,
            known=known,
            clock=clock,
            facts=Facts(
                keys.instance_id,
                workflow.name,
                workflow.version,
                about.head.created_at,
                lenient,
                birth.seed,
                birth.generation,
                birth.restarts,
            ),
            lease=claimed.lease,
            mode=mode,
            host=host,
        )

    async def go(self) -> None:
        """Run the instance, and release it whatever happens."""
        execution, is_loaded = self.execution, False
        try:
            try:
                await self._load()
                is_loaded = True
            except CodecError as error:
                execution.life.storage_failed(error)
            if execution.life.failure is None:
                await execution.session.host.run(execution, self._root)
            if execution.life.stuck is not None:
                await self._stick(*execution.life.stuck)
        except BaseException as error:
            reason = (
                innermost(cast("BaseExceptionGroup[BaseException]", error))
                if isinstance(error, BaseExceptionGroup)
                else error
            )
            if isinstance(reason, CodecError) and not execution.life.is_away:
                # An error of the engine: those of the author's code do not come here.
                execution.life.failed(reason)
            else:
                # A cancellation comes at an `await`, where the changes so far belong together and can be written. Any
                # other error may have come in the middle of a change.
                cancelled = is_loaded and isinstance(error, anyio.get_cancelled_exc_class())
                await self._release(write=cancelled and execution.life.failure is None and execution.life.stuck is None)
                raise
        if execution.life.failure is not None and not execution.life.is_away:
            failure = execution.life.failure
            stops = stopping(failure, execution.session.flusher.largest)
            if stops is not None and await self._stick_as_stored(*stops):
                return
            not_released = await self._release(write=False)
            reason = await self._why(failure, not_released)
            if isinstance(reason, LeaseLostError):
                await self._live_on()
            raise reason
        # Does nothing if the run has stored its last commit. If it was abandoned, the instance is released as due.
        await self._release(write=True)

    async def _stick_as_stored(self, error: Exception, kind: str) -> bool:
        """Store the instance as stuck, and otherwise leave it as the store has it; False if even that fails.

        The journal of this run is discarded: it has what can't be stored, or comes from what can't be read.
        """
        execution = self.execution
        with anyio.CancelScope(shield=True):
            try:
                found = await read_snapshot(self.driver, self.journal.keys)
            except Exception:  # noqa: BLE001  # the store failed, or rows can't be read: the first error counts
                return False
            if found.lease != self._lease:
                return False
            self.journal.unwritten.discard()
            self.journal.load(found.about)
            execution.life.reopen()
            await self._stick(error, kind)
        if execution.life.is_away:
            _log.error("instance %s is stuck: %s", self.journal.keys.instance_id, error)
        return execution.life.is_away

    @property
    def is_over(self) -> bool:
        """Whether the instance has ended or is stuck, and was not only evicted."""
        return self.execution.life.is_away and self.execution.parking.idle_result is None

    @property
    def ended(self) -> InstanceRows | None:
        """The rows of the instance, if it has ended or is stuck."""
        return self.journal.about if self.is_over else None

    @property
    def waiting(self) -> Waiting:
        """What has the timers of the instance."""
        return self.execution.parking

    @property
    def messages(self) -> RunMessages:
        """What messages are handed over to."""
        return self.execution.messages

    def look(self, *, lease: bool = True) -> None:
        """Have it read its messages and, with `lease`, find out whether the instance is still ours."""
        self.execution.parking.arrivals.signal(lease=lease)

    def evict(self) -> None:
        """Begin nothing new, and release the instance once what is under way has ended."""
        self.execution.parking.evict()

    def abandon(self) -> None:
        """End it: nothing of it is woken any more."""
        self.execution.life.abandon()

    def activity(self) -> Activity:
        """What is under way: code, a thread or nothing."""
        return self.execution.activity()

    async def result(self) -> RunResult[Any]:
        """How the run left the instance."""
        execution = self.execution
        id = self.journal.keys.instance_id
        if not execution.life.is_away:
            return RunResult(execution.head.status, wake_at=deadline_of(execution.clock.time()), instance_id=id)
        if execution.parking.idle_result is not None:
            status, wake_at, waiting_for = execution.parking.idle_result
            when = None if wake_at is None else deadline_of(wake_at)
            return RunResult(status, None, self._error(), when, waiting_for, id)
        about = self.journal.about
        output = await read_output(self.driver, self.journal.keys, about)
        return stored_result(self.workflow, self.codec, about, output, id)

    async def _load(self) -> None:
        journal, claimed = self.journal, self._claimed
        assert claimed is not None, "a run is loaded once"
        self._claimed = None
        if claimed.created:
            journal.load(claimed.about)
            return
        rows, about = claimed.rows, claimed.about
        if rows is None:
            # The worker that had the instance may have written until the claim was stored, so read again.
            about = await read_about(self.driver, journal.keys)
        await load_for_run(rows or self.driver, journal, about)
        if journal.history.loaded or about.birth.generation > 1:
            self._checked = True
        if rows is None:
            await self.execution.reader.refresh(with_lease=True)
        else:
            self.execution.reader.take_in(rows, claimed.stamp, claimed.sent)
        if journal.about.deaths.deaths:
            await self.execution.calls.beware(rows or self.driver, journal, self._lease.name)

    def _root(self) -> Awaitable[None]:
        if self.journal.about.status is Status.ROLLING_BACK:
            return Unwinding(self.execution, self._bound(), self.began_at).go_on()
        return self._generations()

    async def _generations(self) -> None:
        """Run the author's function, again whenever the instance starts over."""
        execution = self.execution
        again = True
        while again:
            scope = Scope(execution, b"", self.began_at)
            token = current_scope.set(scope)
            failure: BaseException | None = None
            value: Any = None
            try:
                value = await self._bound()(scope)
            except BaseException as error:
                # Anything that the author's code raises ends the workflow, except what the engine raises to unwind it.
                is_ours = execution.life.halted and not isinstance(error, Exception)
                if is_ours or not is_failure_of_scope(error, execution.life, is_own_task=True):
                    scope.forgotten()
                    raise
                failure = error
            finally:
                current_scope.reset(token)
            await take_back_cancellations(execution.life)
            if execution.life.halted or not scope.end(failure):
                return
            again = await self._end(value, failure)

    async def _end(self, value: Any, failure: BaseException | None) -> bool:
        """Record the outcome of the author's function; return whether the instance starts over."""
        execution = self.execution
        execution.state.show()
        if execution.life.halted:
            return False
        if failure is not None:
            await Unwinding(execution, self._bound(), self.began_at).fail(failure)
            return False
        if isinstance(value, ContinueAsNew):
            return await self._start_over(value)
        try:
            output, parts = self.workflow.write_output(self.codec, value)
        except CodecError as error:
            execution.life.mistake(about(f"the output of workflow {self.workflow.name!r}", error))
            return False
        self.journal.set_row(Field.RESULT, Result(output, parts=parts))
        await execution.finish(Status.COMPLETED)
        return False

    async def _start_over(self, again: ContinueAsNew) -> bool:
        """Begin a fresh history, in one commit; return False if the input is a mistake. The public state is kept."""
        execution, journal, workflow = self.execution, self.journal, self.workflow
        try:
            raw = encode_input(self.codec, workflow, again.input)
        except (CodecError, DefinitionError) as error:
            execution.life.mistake(DefinitionError(f"ContinueAsNew of workflow {workflow.name!r}: {error}"))
            return False
        # A run that has not used the public state hands on the one with which it began.
        base = journal.about.birth.base if execution.state.public is None else execution.state.public.whole()
        journal.start_over()
        journal.drop_endings()
        now = execution.clock.time()
        facts = replace(execution.facts, seed=new_seed(), generation=execution.facts.generation + 1)
        birth = journal.about.birth
        # The first input is kept: whoever starts the same instance again gives that one.
        first = birth.input if birth.first_input is None else birth.first_input
        journal.set_row(
            Field.BIRTH,
            structs.replace(
                birth,
                input=raw,
                seed=facts.seed,
                generation=facts.generation,
                began_at=float(now),
                first_input=first,
                base=base,
            ),
        )
        execution.begin_again(facts)
        self.began_at = now
        await execution.parking.flush()
        return True

    def _bound(self) -> Callable[[Scope], Awaitable[Any]]:
        """The author's function with the stored input, to be called with a scope."""
        raw, misread = self.journal.about.birth.input, self.execution.life.misread
        return bound(self.workflow, self.codec, raw, misread, checked=self._checked)

    async def _stick(self, error: Exception, kind: str) -> None:
        """Store the instance as stuck. Nothing that the run did since its last commit is kept."""
        execution = self.execution
        original = self.journal.about.result.error if execution.head.status is Status.ROLLING_BACK else None
        self.journal.unwritten.discard(keep_fields=True)
        self.journal.forget_waits()
        info = describe(error, self.codec, kind)
        self.journal.set_row(Field.RESULT, result_of(info, self.codec, original))
        execution.life.reopen()
        with anyio.CancelScope(shield=True):
            await execution.finish(Status.STUCK)

    def _error(self) -> ErrorInfo | None:
        error = self.journal.about.result.error
        return None if error is None else unpack_error_info(error, self.codec)

    async def _release(self, *, write: bool) -> Exception | None:
        """Release the instance as due, unless it was released; return the error if that fails.

        `write`: also write what changed. A cancellation that comes meanwhile is raised once this is done.
        """
        execution = self.execution
        # A commit that is in flight may change what is to be written, and may release the instance itself.
        cancelled: BaseException | None = None
        if execution.session.flusher.is_writing:
            cancelled = await come_what_may(execution.session.flusher.until_landed)
        not_released: Exception | None = None
        if not execution.life.is_away:
            if write:
                execution.head.due(due_at_once(execution.clock.time()))
                not_released = await execution.session.flusher.try_commit(self._give_back())
            else:
                self.journal.unwritten.discard()
                not_released = await execution.session.flusher.try_commit(self._give_back_as_stored())
            if isinstance(not_released, ConflictError) and write:
                await self._live_on()
        if cancelled is not None:
            raise cancelled
        return not_released

    @change
    def _give_back(self) -> Steps[None]:
        yield self.execution.head.let_go()

    @change
    def _give_back_as_stored(self) -> Steps[None]:
        """Release the instance as the store has it, without anything that this run remembers."""
        keys, host, now = self.journal.keys, self.execution.session.host, self.execution.clock.time()
        if not (yield from give_back(keys, self._lease, now, forgets_worker=not host.beats)):
            raise ConflictError("the lease is lost")

    async def _live_on(self) -> None:
        """Take back the death of this worker, in case whoever took the instance over has counted one."""
        now = self.execution.clock.time()
        with anyio.CancelScope(shield=True), suppress(Exception):  # the store failed: then it counts as a death
            await apply(self.driver, take_back_death(self.journal.keys.instance_id, self._lease.name, now))

    async def _why(self, error: Exception, not_released: Exception | None) -> Exception:
        """The error to raise for a failed commit. A conflict means a lost lease if releasing has failed, too."""
        if isinstance(error, ConflictError) and not_released is not None:
            try:
                lease = await self.driver.get(self.journal.keys.lease)
            except Exception:  # noqa: BLE001  # the store is down: only the conflict is known
                return error
            # Another lease, or None if the worker that took the instance over has released it by now.
            if lease != self._lease.pack():
                return LeaseLostError(
                    f"another worker has taken over instance {self.journal.keys.instance_id!r}; nothing was written"
                )
        return error
