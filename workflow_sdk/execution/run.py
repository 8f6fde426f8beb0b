"""One claimed instance, from loading it to giving it back: what whoever runs instances has in common."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

import anyio
from msgspec import structs

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import Steps, change
from workflow_sdk.changes.claim import Claim, give_back
from workflow_sdk.changes.deaths import take_back_death
from workflow_sdk.changes.snapshot import read_about, read_standing
from workflow_sdk.context import Context
from workflow_sdk.core.codec import Codec, SealedError
from workflow_sdk.core.failures import describe, unpack_error_info
from workflow_sdk.core.instance import InstanceRows, Result
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.keys import Field, InstanceKeys
from workflow_sdk.core.results import result_of
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Status
from workflow_sdk.core.times import deadline_of, due_at_once
from workflow_sdk.core.wire import NewerFormatError
from workflow_sdk.definitions import ContinueAsNew, Workflow
from workflow_sdk.driver import ConflictError, Driver, StorageLimitError
from workflow_sdk.errors import (
    CodecError,
    DefinitionError,
    ErrorInfo,
    HistoryDivergedError,
    InputError,
    LeaseLostError,
)
from workflow_sdk.execution.clock import Clock
from workflow_sdk.execution.execution import Execution, Mode
from workflow_sdk.execution.host import Host
from workflow_sdk.execution.insisting import come_what_may
from workflow_sdk.execution.load import load_for_run
from workflow_sdk.execution.probe import new_seed
from workflow_sdk.execution.shown import Wait
from workflow_sdk.execution.unwinding import Unwinding
from workflow_sdk.operations.cancelling import is_failure_of_scope, take_back_cancellations
from workflow_sdk.operations.engine import Facts, Unwound
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.operations.inputs import encode_input
from workflow_sdk.operations.outcome import about
from workflow_sdk.operations.scope import Scope, current_scope

__all__ = ["VALUE_BYTES_LIMIT", "Run", "RunResult", "check_value_bytes", "innermost", "stored_result"]

_log = logging.getLogger("workflow_sdk.execution")

OutputT = TypeVar("OutputT")

VALUE_BYTES_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True)
class RunResult(Generic[OutputT]):
    """How one run of an instance left it."""

    status: Status
    output: OutputT | None = None
    error: ErrorInfo | None = None
    wake_at: datetime | None = None
    """When the first timer or retry is due."""
    waiting_for: list[str] = field(default_factory=list[str])
    """The names of the messages that are awaited."""
    instance_id: str = field(default="", compare=False)
    waits: list[Wait] = field(default_factory=list[Wait], compare=False)
    """Everything that is awaited, by the instance itself and by its children that were run with it."""


def check_value_bytes(size: object) -> None:
    """The limit of an author's values is one that every store can keep."""
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= VALUE_BYTES_LIMIT:
        raise DefinitionError(f"max_value_bytes is at most {VALUE_BYTES_LIMIT:,}, not {shown(size)}")


def innermost(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception in a group of one: task groups wrap what passes through them."""
    if len(group.exceptions) != 1:
        return group
    (inside,) = group.exceptions
    return (
        innermost(cast("BaseExceptionGroup[BaseException]", inside))
        if isinstance(inside, BaseExceptionGroup)
        else inside
    )


def stored_result(workflow: Workflow[Any, Any], codec: Codec, about: InstanceRows, id: str) -> RunResult[Any]:
    """The result of an instance that is not running, from what is recorded."""
    status, result = about.status, about.result
    if status is Status.COMPLETED:
        output = None if result.output is None else codec.decode(result.output, workflow.output_hint)
        return RunResult(status, output, instance_id=id)
    info = None if result.error is None else unpack_error_info(result.error, codec)
    return RunResult(status, error=info, instance_id=id)


class Run:
    """One claimed instance, from loading it to giving it back."""

    __slots__ = ("_lease", "began_at", "claimed", "codec", "driver", "execution", "journal", "workflow")

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
        self.claimed: Claim = claimed
        self.journal: Journal = Journal(keys)
        about, birth = claimed.about, claimed.about.birth
        self.began_at: float = about.began_at
        """When this generation of it has begun."""
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
        """Run, and give the instance back whatever happens."""
        execution = self.execution
        try:
            try:
                await self._load()
            except CodecError as error:
                execution.storage_failed(error)
            if execution.failure is None:
                await execution.host.run(execution, self._root)
            if execution.stuck is not None:
                await self._stick(*execution.stuck)
        except BaseException as error:
            reason = (
                innermost(cast("BaseExceptionGroup[BaseException]", error))
                if isinstance(error, BaseExceptionGroup)
                else error
            )
            if isinstance(reason, CodecError) and not execution.is_away:
                # Of the engine: what the author's code raises does not come here.
                execution.failure = execution.failure or reason
            else:
                # Cancelled between two awaits, all that changed belongs together. Anything else can come out of the
                # middle.
                cancelled = isinstance(error, anyio.get_cancelled_exc_class())
                await self._release(write=cancelled and execution.failure is None and execution.stuck is None)
                raise
        if execution.failure is not None and not execution.is_away:
            failure = execution.failure
            stops = self._stops(failure)
            if stops is not None and await self._stick_as_stored(*stops):
                return
            not_released = await self._release(write=False)
            reason = await self._why(failure, not_released)
            if isinstance(reason, LeaseLostError):
                await self._live_on()
            raise reason
        # If it was given up, nothing is to be changed any more, and whoever comes next goes on.
        await self._release(write=True)

    def _stops(self, reason: Exception) -> tuple[Exception, str] | None:
        """What would fail again however often it is tried, in words for people, and its kind; None for all else."""
        if isinstance(reason, StorageLimitError):
            largest = self.execution.flusher.largest
            return StorageLimitError(
                f"a commit is too large for the store: {reason}{largest and f' ({largest})'}; have it record less, "
                "with fewer messages in one `listen_many` or a reference in place of a large value, and run it with "
                "changed code, or `recover` it"
            ), "definition"
        if isinstance(reason, CodecError) and not isinstance(reason, (NewerFormatError, SealedError)):
            return CodecError(
                f"what is stored of it can't be read: {reason}; mend the row, or put it back from a backup, and "
                "`recover` the instance"
            ), "consistency"
        return None

    async def _stick_as_stored(self, error: Exception, kind: str) -> bool:
        """Have the instance stuck, and otherwise as the store has it; False if it can't be written even so.

        What this run remembers is forgotten: it is what can't be stored, or comes from what can't be read.
        """
        execution = self.execution
        with anyio.CancelScope(shield=True):
            try:
                found = await read_standing(self.driver, self.journal.keys)
            except Exception:  # noqa: BLE001  # the store failed, or its rows can't be read: what is known is the first error
                return False
            if found.lease != self._lease:
                return False
            self.journal.discard()
            self.journal.load(found.about)
            execution.failure = None
            await self._stick(error, kind)
        if execution.is_away:
            _log.error("instance %s is stuck: %s", self.journal.keys.instance_id, error)
        return execution.is_away

    @property
    def is_over(self) -> bool:
        """Whether the instance has ended or is stuck, and was not only put away."""
        return self.execution.is_away and self.execution.idle_result is None

    def result(self) -> RunResult[Any]:
        """How the run left the instance."""
        execution = self.execution
        id = self.journal.keys.instance_id
        if not execution.is_away:
            return RunResult(execution.standing.status, wake_at=deadline_of(execution.now()), instance_id=id)
        if execution.idle_result is not None:
            status, wake_at, waiting_for = execution.idle_result
            when = None if wake_at is None else deadline_of(wake_at)
            return RunResult(status, None, self._error(), when, waiting_for, id)
        return stored_result(self.workflow, self.codec, self.journal.about, id)

    async def _load(self) -> None:
        journal = self.journal
        if self.claimed.created:
            journal.load(self.claimed.about)
            return
        rows = self.claimed.rows
        about = self.claimed.about
        if rows is None:
            # Whoever had it may have written until it was claimed.
            about = await read_about(self.driver, journal.keys)
        await load_for_run(rows or self.driver, journal, about)
        if journal.loaded or about.birth.generation > 1:
            self.claimed.checked = True
        if rows is None:
            await self.execution.mail.refresh(standing=True)
        else:
            self.execution.mail.take_in(rows, self.claimed.nudge, self.claimed.sent)
            self.claimed.rows = None
        if journal.about.deaths.deaths:
            await self.execution.beware(rows or self.driver)

    def _root(self) -> Awaitable[None]:
        if self.claimed.status is Status.ROLLING_BACK:
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
                # Whatever the author's code raises ends the workflow.
                is_ours = execution.halted and not isinstance(error, Exception)
                if is_ours or not is_failure_of_scope(error, execution, is_own_task=True):
                    scope.forgotten()
                    raise
                failure = error
            finally:
                current_scope.reset(token)
            await take_back_cancellations(execution)
            if execution.halted or not scope.end(failure):
                return
            again = await self._end(value, failure)

    async def _end(self, value: Any, failure: BaseException | None) -> bool:
        """Record what the author's function has come to; whether the instance starts over."""
        execution = self.execution
        execution.show()
        if execution.halted:
            return False
        if failure is not None:
            await Unwinding(execution, self._bound(), self.began_at).fail(failure)
            return False
        if isinstance(value, ContinueAsNew):
            return await self._start_over(value)
        try:
            raw = self.codec.encode(value, self.workflow.output_hint)
        except CodecError as error:
            execution.slip(about(f"the output of workflow {self.workflow.name!r}", error))
            return False
        self.journal.set_row(Field.RESULT, Result(raw))
        await execution.finish(Status.COMPLETED)
        return False

    async def _start_over(self, again: ContinueAsNew) -> bool:
        """A fresh history, in one commit. What the instance is for the world, it remains."""
        execution, journal, workflow = self.execution, self.journal, self.workflow
        try:
            raw = encode_input(self.codec, workflow, again.input)
        except (CodecError, DefinitionError) as error:
            execution.slip(DefinitionError(f"ContinueAsNew of workflow {workflow.name!r}: {error}"))
            return False
        # A run that has not looked at the state hands on what it began with.
        base = journal.about.birth.base if execution.world is None else execution.world.whole()
        journal.start_over()
        journal.drop_endings()
        now = execution.now()
        facts = replace(execution.facts, seed=new_seed(), generation=execution.facts.generation + 1)
        birth = journal.about.birth
        # Whoever starts it again asks for the first one.
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
        await execution.flush()
        return True

    def _bound(self) -> Callable[[Scope], Awaitable[Any]]:
        """The author's function, of a scope, with the input that is stored."""
        fn = self.workflow.fn
        raw = self.journal.about.birth.input
        if not self.workflow.takes_input:
            if not self.claimed.checked:
                return lambda scope: fn(Context(scope, *self._no_input(raw)))
            return lambda scope: fn(Context(scope))
        default = self.workflow.default_input

        def call(scope: Scope) -> Awaitable[Any]:
            try:
                if default is not None and self.codec.decode(raw, plain=True) is None:
                    # It was started by someone who does not know the workflow.
                    return fn(Context(scope), default)
                value = self.codec.decode_checked(raw, self.workflow.input_hint)
            except SealedError as error:
                self.execution.unreadable(error)
                raise Unwound from None
            except CodecError as error:
                if not self.claimed.checked and self._is_a_value(raw):
                    raise InputError(f"the input of workflow {self.workflow.name!r}: {error}") from None
                self.execution.diverged(
                    HistoryDivergedError(
                        f"the input of the instance can't be read as the type that the workflow gives it now: {error}"
                    )
                )
                raise Unwound from None
            return fn(Context(scope), value)

        return call

    def _no_input(self, raw: bytes) -> tuple[()]:
        """Nothing, if that is what a workflow was given that takes no input."""
        given = self.codec.decode(raw, plain=True)
        if given is not None:
            raise InputError(f"workflow {self.workflow.name!r} takes no input, and was given {given!r:.100}")
        return ()

    def _is_a_value(self, raw: bytes) -> bool:
        """Whether the bytes are some value, whatever its type. If not they are damaged."""
        try:
            self.codec.decode(raw, plain=True)
        except CodecError:
            return False
        return True

    async def _stick(self, error: Exception, kind: str) -> None:
        """The code is wrong. Nothing it did since the last commit is kept; it is run again once it is mended."""
        execution = self.execution
        original = self.journal.about.result.error if execution.standing.status is Status.ROLLING_BACK else None
        self.journal.discard(keep_fields=True)
        self.journal.forget_waits()
        info = describe(error, self.codec, kind)
        self.journal.set_row(Field.RESULT, result_of(info, self.codec, original))
        execution.is_away = False
        with anyio.CancelScope(shield=True):
            execution.stuck = None
            await execution.finish(Status.STUCK)

    def _error(self) -> ErrorInfo | None:
        error = self.journal.about.result.error
        return None if error is None else unpack_error_info(error, self.codec)

    async def _release(self, *, write: bool) -> Exception | None:
        """Give the instance back; whoever comes next goes on. The error, as far as the store does not let us.

        Nothing cancels that: a cancellation that comes meanwhile is raised once it is done.
        """
        execution = self.execution
        # What is in flight may change what is to be written; and may put it away.
        cancelled = await come_what_may(execution.flusher.until_landed)
        not_released: Exception | None = None
        if not execution.is_away:
            if write:
                execution.standing.due(due_at_once(execution.now()))
                not_released = await execution.flusher.try_commit(self._give_back())
            else:
                self.journal.discard()
                not_released = await execution.flusher.try_commit(self._give_back_as_stored())
            if isinstance(not_released, ConflictError) and write:
                await self._live_on()
        if cancelled is not None:
            raise cancelled
        return not_released

    @change
    def _give_back(self) -> Steps[None]:
        yield self.execution.standing.let_go()

    @change
    def _give_back_as_stored(self) -> Steps[None]:
        """Nothing that this run remembers is written: the status of the instance is what the store has."""
        keys, host, now = self.journal.keys, self.execution.host, self.execution.now()
        if not (yield from give_back(keys, self._lease, now, forgets_worker=not host.beats)):
            raise ConflictError("the lease is lost")

    async def _live_on(self) -> None:
        """Others have taken the instance over: say that this worker has not died, if they took it for dead."""
        now = self.execution.now()
        with anyio.CancelScope(shield=True), suppress(Exception):  # the store failed: then it counts as a death
            await apply(self.driver, take_back_death(self.journal.keys.instance_id, self._lease.name, now))

    async def _why(self, error: Exception, not_released: Exception | None) -> Exception:
        """What to raise for a failed commit: a conflict means that the lease is lost, if it can't be given back."""
        if isinstance(error, ConflictError) and not_released is not None:
            try:
                lease = await self.driver.get(self.journal.keys.lease)
            except Exception:  # noqa: BLE001  # the store is down: what is known is the conflict
                return error
            # None: whoever took it over has given it back by now.
            if lease != self._lease.pack():
                return LeaseLostError(
                    f"another worker has taken over instance {self.journal.keys.instance_id!r}; nothing was written"
                )
        return error
