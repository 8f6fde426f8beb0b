"""`run_workflow`: one instance, once, with no runtime around it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar, cast, overload
from uuid import uuid4

import anyio

from workflow_sdk.context import Context
from workflow_sdk.core.codec import VALUE_BYTES_MAX, Codec, SealedError, Wrappers
from workflow_sdk.core.failures import describe, unpack_error_info
from workflow_sdk.core.journal import Journal
from workflow_sdk.core.keys import Field, InstanceKeys, WorkerKeys, worker_keys
from workflow_sdk.core.names import name_problem
from workflow_sdk.core.retry import Duration, seconds
from workflow_sdk.core.shown import shown
from workflow_sdk.core.status import Status
from workflow_sdk.core.times import deadline_of, due_at_once
from workflow_sdk.core.wire import NewerFormatError, unpack_record
from workflow_sdk.definitions import ContinueAsNew, Workflow
from workflow_sdk.driver import Batch, ConflictError, Driver, StorageLimitError, is_driver
from workflow_sdk.errors import (
    CodecError,
    DefinitionError,
    ErrorInfo,
    HistoryDivergedError,
    InputError,
    LeaseLostError,
)
from workflow_sdk.execution.clock import Activity, Clock, TimeSource, clock_of, overseen
from workflow_sdk.execution.execution import Execution, Mode
from workflow_sdk.execution.family import Family
from workflow_sdk.execution.host import Alone, Host
from workflow_sdk.execution.insisting import come_what_may
from workflow_sdk.execution.lease import Claim, Claimant, claim, error_fields, forget_worker, new_seed
from workflow_sdk.execution.living import living
from workflow_sdk.execution.load import load_for_run
from workflow_sdk.execution.shown import Wait, read_troubles, read_waits
from workflow_sdk.execution.snapshot import read_fields, read_standing
from workflow_sdk.execution.survivors import take_back_death
from workflow_sdk.execution.unwinding import Unwinding
from workflow_sdk.operations.cancelling import is_failure_of_scope, take_back_cancellations
from workflow_sdk.operations.engine import Facts, Unwound
from workflow_sdk.operations.handlers import Handler, KnownHandlers
from workflow_sdk.operations.inputs import encode_input
from workflow_sdk.operations.outcome import about
from workflow_sdk.operations.scope import Scope, current_scope

__all__ = ["Run", "RunResult", "check_value_bytes", "run_workflow"]

_log = logging.getLogger("workflow_sdk.execution")

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")

LEASE_SECONDS = 10.0
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


@overload
async def run_workflow(
    workflow: Workflow[InputT, OutputT],
    input: InputT,
    *,
    driver: Driver,
    instance_id: str | None = None,
    mode: Mode = "yield",
    clock: TimeSource | None = None,
    lease_ttl: Duration = LEASE_SECONDS,
    max_value_bytes: int = VALUE_BYTES_MAX,
    codec: Wrappers | None = None,
    handlers: Iterable[Handler] = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> RunResult[OutputT]: ...
@overload
async def run_workflow(
    workflow: Workflow[Any, OutputT],
    *,
    driver: Driver,
    instance_id: str | None = None,
    mode: Mode = "yield",
    clock: TimeSource | None = None,
    lease_ttl: Duration = LEASE_SECONDS,
    max_value_bytes: int = VALUE_BYTES_MAX,
    codec: Wrappers | None = None,
    handlers: Iterable[Handler] = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> RunResult[OutputT]: ...
async def run_workflow(
    workflow: Workflow[Any, Any],
    input: Any = None,
    *,
    driver: Driver,
    instance_id: str | None = None,
    mode: Mode = "yield",
    clock: TimeSource | None = None,
    lease_ttl: Duration = LEASE_SECONDS,
    max_value_bytes: int = VALUE_BYTES_MAX,
    codec: Wrappers | None = None,
    handlers: Iterable[Handler] = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> RunResult[Any]:
    """Run an instance until it ends or, in `mode="yield"`, until all it does is wait; go on where it was.

    An id that is new starts an instance; an old one goes on with the input it was started with. The run takes the
    instance over at once, whoever has it: of two runs of one id, the older can't write any more, and raises
    `LeaseLostError`. How the workflow ended is in the result, failure included; what is raised is a mistake of the
    call, a failure of the store, or the cancellation of the run. `handlers` are functions that undo steps, and that
    the store may name: beside those in the module of the workflow, and those that are decorated with `@step`.

    Its children are run by the same call: in `mode="yield"` as far as they go, in `mode="live"` until they end.
    `workflows` are those of children that the code starts by name. A child that another worker runs is left to it.
    """
    _check_call(workflow, instance_id, mode, max_value_bytes)
    if not is_driver(driver):
        raise DefinitionError(f"driver is an open store, as `await open_driver(url)` gives it, not {shown(driver)}")
    keys = InstanceKeys(instance_id if instance_id is not None else str(uuid4()))
    clock = clock_of(clock)
    values = Codec(max_value_bytes=max_value_bytes, wrapper=codec)
    ttl = seconds(lease_ttl, "lease_ttl")
    if ttl <= 0:
        raise DefinitionError(f"lease_ttl is longer than nothing, not {lease_ttl!r}")
    driver = overseen(driver, clock)
    call = _Call(driver, clock, values, _given(handlers), ttl, mode, Family(driver, clock, [*workflows]))
    call.family.meet(workflow)
    try:
        if mode == "live":
            root = partial(call.run_once, workflow, keys, _everybody, input, creates=True)
            return await call.family.together(root, call.run_once)
        return await call.run(workflow, keys, _everybody, input, creates=True)
    except BaseExceptionGroup as group:
        raise _innermost(group) from None


def _given(handlers: Iterable[Handler]) -> Iterable[Handler]:
    """The same, to be gone through more than once."""
    return handlers if isinstance(handlers, KnownHandlers) else tuple(handlers)


def _everybody(worker: str) -> bool:
    return True


def _nobody(worker: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Call:
    """What one call of `run_workflow` runs its instance and the children of that with."""

    driver: Driver
    clock: Clock
    codec: Codec
    handlers: Iterable[Handler]
    ttl: float
    mode: Mode
    family: Family

    async def run(
        self,
        workflow: Workflow[Any, Any],
        keys: InstanceKeys,
        takes_over: Callable[[str], bool],
        value: object = None,
        *,
        creates: bool = False,
    ) -> RunResult[Any]:
        """Run an instance and its children as far as they go."""
        while True:
            left = await self.run_once(workflow, keys, takes_over, value, creates=creates)
            children = await self.family.as_far_as_they_go(left, self._run_child)
            if not any(child.status.is_terminal for child in children):
                break
            # It goes on by itself, unless somebody else has it by now.
            takes_over, creates = _nobody, False
        times = [child.wake_at for child in (left, *children) if child.wake_at is not None]
        waits = [wait for child in (left, *children) for wait in child.waits]
        return replace(left, wake_at=min(times, default=None), waits=waits)

    async def _run_child(self, id: str) -> RunResult[Any] | None:
        return await self.family.run_child(id, self.run)

    async def run_once(
        self,
        workflow: Workflow[Any, Any],
        keys: InstanceKeys,
        takes_over: Callable[[str], bool],
        value: object = None,
        *,
        creates: bool = False,
    ) -> RunResult[Any]:
        """Run one instance until it ends or waits."""
        driver, clock, codec, worker = self.driver, self.clock, self.codec, worker_keys(uuid4().hex)
        known = KnownHandlers.of(workflow, self.handlers)
        # Before the first heartbeat is stored, since others may see that at once.
        with clock.life(worker.worker), living(worker.worker):
            claimant = Claimant(
                driver,
                keys,
                workflow,
                codec,
                clock.time,
                self.ttl,
                worker=worker.worker,
                takes_over=takes_over,
                is_alive=clock.is_alive,
                creates=creates,
            )
            while True:
                claimed = await claim(claimant, value)
                if claimed.lease is None:
                    return await self._shown(_stored(workflow, codec, claimed.fields, keys.instance_id))
                host = Alone(driver, clock, worker, self.ttl, self.family)
                run = Run(workflow, driver, keys, codec, known, clock, claimed, self.mode, host)
                try:
                    await run.go()
                except LeaseLostError:
                    if not await _goes_on(driver, clock, keys, worker):
                        raise
                except BaseExceptionGroup as group:
                    raise _innermost(group) from None
                else:
                    return await self._shown(run.result())

    async def _shown(self, result: RunResult[Any]) -> RunResult[Any]:
        """With what is awaited."""
        if result.status.is_terminal or result.status is Status.STUCK:
            return result
        keys = InstanceKeys(result.instance_id)
        fields = await read_fields(self.driver, keys)
        seed: bytes = unpack_record(fields[Field.BIRTH])[1] if Field.BIRTH in fields else b""
        troubles = await read_troubles(self.driver, keys)
        return replace(result, waits=await read_waits(self.driver, keys, self.codec, troubles, seed))


async def _goes_on(driver: Driver, clock: Clock, keys: InstanceKeys, worker: WorkerKeys) -> bool:
    """After the lease was lost: whether that was a decision about the instance, and nobody else runs it.

    Returns when it is to be looked at again. Who was asked for an instance also runs what a decision makes of it.
    """
    while True:
        found = await read_standing(driver, keys)
        if found.lease is not None or Field.STATUS not in found.fields:
            return False
        status = Status(unpack_record(found.fields[Field.STATUS])[0])
        if status is Status.CANCELLED:
            # Nothing of this run is left that would clear them.
            batch = Batch()
            forget_worker(batch, worker)
            await driver.commit(batch)
            return True
        if status not in (Status.RUNNING, Status.ROLLING_BACK) or Field.ALARM not in found.fields:
            return False
        due = float(unpack_record(found.fields[Field.ALARM])[0])
        if due <= clock.time():
            return True
        # It was taken away to be changed, which takes another commit.
        await _until_changed(driver, clock, keys.field(Field.VERSION), found.fields[Field.VERSION], due)


async def _until_changed(driver: Driver, clock: Clock, key: bytes, since: bytes, due: float) -> None:
    """Return when the value of the key differs from `since`, or when it is due."""
    told = anyio.Event()

    async def tell() -> None:
        await driver.changed(key, since)
        told.set()

    async with anyio.create_task_group() as group:
        group.start_soon(tell)
        await clock.wait(told, due, lambda: Activity.NONE)
        group.cancel_scope.cancel()


def _check_call(workflow: object, instance_id: object, mode: str, max_value_bytes: object) -> None:
    if not isinstance(workflow, Workflow):
        raise DefinitionError(f"run_workflow takes a function decorated with @workflow, not {shown(workflow)}")
    if mode not in ("yield", "live"):
        raise DefinitionError(f'mode is "yield" or "live", not {shown(mode)}')
    if instance_id is not None and name_problem(instance_id) is not None:
        raise DefinitionError(
            f"an instance id is a text of 1 to 1000 characters, which can be encoded; not {instance_id!r:.100}"
        )
    check_value_bytes(max_value_bytes)


def check_value_bytes(size: object) -> None:
    """The limit of an author's values is one that every store can keep."""
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= VALUE_BYTES_LIMIT:
        raise DefinitionError(f"max_value_bytes is at most {VALUE_BYTES_LIMIT:,}, not {shown(size)}")


def _innermost(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception in a group of one: task groups wrap what passes through them."""
    if len(group.exceptions) != 1:
        return group
    (inside,) = group.exceptions
    return (
        _innermost(cast("BaseExceptionGroup[BaseException]", inside))
        if isinstance(inside, BaseExceptionGroup)
        else inside
    )


def _stored(workflow: Workflow[Any, Any], codec: Codec, fields: dict[Field, bytes], id: str) -> RunResult[Any]:
    """The result of an instance that is not running, from what is recorded."""
    status = Status(unpack_record(fields[Field.STATUS])[0])
    if status is Status.COMPLETED:
        output = codec.decode(unpack_record(fields[Field.OUTPUT])[0], workflow.output_hint)
        return RunResult(status, output, instance_id=id)
    error = unpack_record(fields[Field.ERROR])[0] if Field.ERROR in fields else None
    info = None if error is None else unpack_error_info(error, codec)
    return RunResult(status, error=info, instance_id=id)


def _generation(fields: dict[Field, bytes], created_at: float) -> tuple[int, float]:
    """How often the instance has begun, and when at last."""
    raw = fields.get(Field.GENERATION)
    if raw is None:
        return 1, float(created_at)
    generation, at = unpack_record(raw)
    return int(generation), float(at)


def _restarts(fields: dict[Field, bytes]) -> int:
    raw = fields.get(Field.RESTARTS)
    return 0 if raw is None else int(unpack_record(raw)[0])


class Run:
    """One claimed instance, from loading it to giving it back."""

    __slots__ = ("_checks_input", "began_at", "claimed", "codec", "driver", "execution", "journal", "workflow")

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
        self.workflow: Workflow[Any, Any] = workflow
        self.driver: Driver = driver
        self.codec: Codec = codec
        self.claimed: Claim = claimed
        self.journal: Journal = Journal(keys)
        created_at, seed = unpack_record(claimed.fields[Field.BIRTH])
        generation, began_at = _generation(claimed.fields, created_at)
        self._checks_input = False
        """Whether it begins with an input that nobody has checked."""
        self.began_at: float = began_at
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
                float(created_at),
                lenient,
                seed,
                generation,
                _restarts(claimed.fields),
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
            reason = _innermost(error) if isinstance(error, BaseExceptionGroup) else error
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
            except Exception:  # noqa: BLE001  # the store failed, or the fields can't be read: what is known is the first error
                return False
            if found.lease != self.claimed.lease:
                return False
            self.journal.discard()
            self.journal.load_fields(found.fields)
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
        return _stored(self.workflow, self.codec, self.journal.fields, id)

    async def _load(self) -> None:
        journal = self.journal
        if self.claimed.created:
            journal.load_fields(self.claimed.fields)
            return
        rows = self.claimed.rows
        fields = self.claimed.fields
        if rows is None:
            # Whoever had it may have written until it was claimed.
            fields = await read_fields(self.driver, journal.keys)
        await load_for_run(rows or self.driver, journal, fields)
        self._checks_input = not (self.claimed.checked or journal.loaded or Field.GENERATION in fields)
        if rows is None:
            await self.execution.mail.refresh(standing=True)
        else:
            self.execution.mail.take_in(rows, self.claimed.nudge, self.claimed.sent)
            self.claimed.rows = None
        if Field.DEATHS in journal.fields:
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
        self.journal.set_field(Field.OUTPUT, [raw])
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
        base = None if execution.world is None else execution.world.whole()
        journal.start_over()
        journal.drop_endings()
        now = execution.now()
        facts = replace(execution.facts, seed=new_seed(), generation=execution.facts.generation + 1)
        if Field.FIRST not in journal.fields:
            # Whoever starts it again asks for this one.
            journal.set_field(Field.FIRST, journal.get_field(Field.INPUT))
        journal.set_field(Field.INPUT, [raw])
        journal.set_field(Field.BIRTH, [facts.created_at, facts.seed])
        journal.set_field(Field.GENERATION, [facts.generation, now])
        if base is not None or Field.BASE in journal.fields:
            journal.set_field(Field.BASE, None if base is None else [base])
        execution.begin_again(facts)
        self.began_at = now
        await execution.flush()
        return True

    def _bound(self) -> Callable[[Scope], Awaitable[Any]]:
        """The author's function, of a scope, with the input that is stored."""
        fn = self.workflow.fn
        raw = unpack_record(self.journal.fields[Field.INPUT])[0]
        if not self.workflow.takes_input:
            if self._checks_input:
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
                if self._checks_input and self._is_a_value(raw):
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
        failed = self.journal.get_field(Field.ERROR) if execution.standing.status is Status.ROLLING_BACK else None
        original = None if failed is None else cast("list[object]", failed[0])
        self.journal.discard(keep_fields=True)
        self.journal.forget_waits()
        info = describe(error, self.codec, kind)
        self.journal.set_field(Field.ERROR, error_fields(info, self.codec, original))
        execution.is_away = False
        with anyio.CancelScope(shield=True):
            execution.stuck = None
            await execution.finish(Status.STUCK)

    def _error(self) -> ErrorInfo | None:
        raw = self.journal.get_field(Field.ERROR)
        return None if raw is None else unpack_error_info(raw[0], self.codec)

    async def _release(self, *, write: bool) -> Exception | None:
        """Give the instance back; whoever comes next goes on. The error, as far as the store does not let us.

        Nothing cancels that: a cancellation that comes meanwhile is raised once it is done.
        """
        execution = self.execution
        # What is in flight may change what is to be written; and may put it away.
        cancelled = await come_what_may(execution.flusher.until_landed)
        not_released: Exception | None = None
        if not execution.is_away:
            if not write:
                self.journal.discard()
            batch = Batch()
            execution.standing.let_go(batch, due_at_once(execution.now()))
            not_released = await execution.flusher.try_commit(batch)
            if isinstance(not_released, ConflictError) and write:
                await self._live_on()
        if cancelled is not None:
            raise cancelled
        return not_released

    async def _live_on(self) -> None:
        """Others have taken the instance over: say that this worker has not died, if they took it for dead."""
        now = self.execution.now()
        with anyio.CancelScope(shield=True), suppress(Exception):  # the store failed: then it counts as a death
            await take_back_death(self.driver, self.journal.keys.instance_id, self.claimed.lease or b"", now)

    async def _why(self, error: Exception, not_released: Exception | None) -> Exception:
        """What to raise for a failed commit: a conflict means that the lease is lost, if it can't be given back."""
        if isinstance(error, ConflictError) and not_released is not None:
            try:
                lease = await self.driver.get(self.journal.keys.lease)
            except Exception:  # noqa: BLE001  # the store is down: what is known is the conflict
                return error
            # None: whoever took it over has given it back by now.
            if lease != self.claimed.lease:
                return LeaseLostError(
                    f"another worker has taken over instance {self.journal.keys.instance_id!r}; nothing was written"
                )
        return error
