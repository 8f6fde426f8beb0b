"""The rollback of a failed workflow: its compensations run newest first, and each is recorded when it is done."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from msgspec.structs import replace

from workflow_sdk.definitions import StepOptions, as_step_options
from workflow_sdk.errors import (
    AlreadyExistsError,
    ChildFailedError,
    DefinitionError,
    ErrorInfo,
    GraphFailedError,
    HistoryDivergedError,
    InstanceNotFoundError,
    JoinError,
    ListenTimeoutError,
    RaceError,
    StepError,
)
from workflow_sdk.instance.execution import Execution
from workflow_sdk.instance.loading import sequence_of
from workflow_sdk.instance.walk import Walk
from workflow_sdk.journal.compensation import Compensation, HandlerRef, Progress
from workflow_sdk.operations.calling import KEY, call, is_cancelled, is_failure, is_final, retried, with_key
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.handlers import REMEDY, Handler, find_handler
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.types import Wait
from workflow_sdk.operations.waiting import wait_for
from workflow_sdk.rows.keys import COMPENSATIONS, Field
from workflow_sdk.rows.status import Status
from workflow_sdk.values import SealedError
from workflow_sdk.values.failures import describe, pack_error_info, result_of, unpack_error_info
from workflow_sdk.values.hints import has_parameter, parameter_hint

UNDO = "~undo "
"""The prefix of a step's path that names its handler. No path begins like this, as `~` in a name is escaped."""
PAGE = 100

_OF_OPERATIONS = (StepError, ListenTimeoutError, ChildFailedError, InstanceNotFoundError, AlreadyExistsError)
"""The failures that carry the path of the operation that failed."""


class Unwinding:
    """Ends a workflow that failed: it runs the compensations that are left."""

    def __init__(self, execution: Execution, fn: Callable[[Scope], Awaitable[Any]], created_at: float) -> None:
        self._execution = execution
        self._fn = fn
        self._created_at = created_at
        self._walked = False

    async def fail(self, error: BaseException) -> None:
        """Record that the workflow failed with `error`, and roll it back."""
        execution = self._execution
        info = describe(error, execution.codec)
        result = result_of(info, execution.codec, None, failed_operations_of(error))
        if isinstance(error, GraphFailedError) and error.result is not None:
            # What its steps have come to is worth having.
            output, parts = getattr(error, "__stored__", None) or (execution.codec.encode(error.result), None)
            result = replace(result, output=output, parts=parts)
        execution.journal.set_row(Field.RESULT, result)
        if not execution.journal.compensations.count:
            await execution.finish(Status.FAILED)
            return
        execution.head.become(Status.ROLLING_BACK)
        await execution.parking.flush()
        await self.go_on()

    async def go_on(self) -> None:
        """Run the compensations that are left."""
        execution = self._execution
        # The generator is closed here even if the run is cancelled, and is not left to the event loop.
        async with aclosing(self._open()) as left:
            async for compensation in left:
                last = await self._undo(compensation)
                if last.progress is not Progress.DONE:
                    await self._stuck(last)
                    return
        cancelled = execution.journal.about.head.cancelled
        await execution.finish(Status.CANCELLED if cancelled else Status.ROLLED_BACK)

    async def _open(self) -> AsyncGenerator[Compensation, None]:
        """The compensations that are left, newest first."""
        execution = self._execution
        keys = execution.journal.keys
        begin, end = keys.range(COMPENSATIONS)
        while True:
            try:
                rows = await execution.session.driver.scan(begin, end, limit=PAGE, reverse=True)
            except Exception as error:  # noqa: BLE001  # the store failed
                execution.life.storage_failed(error)
                await execution.life.never()
            for key, raw in rows:
                compensation = Compensation.unpack(sequence_of(keys, key), raw)
                if compensation.progress is Progress.EXHAUSTED:
                    # Somebody has called `recover`, which gives it fresh attempts.
                    compensation = replace(compensation, progress=Progress.OPEN, attempts=0)
                if compensation.progress is not Progress.DONE:
                    yield compensation
            if len(rows) < PAGE:
                return
            end = rows[-1][0]

    async def _undo(self, compensation: Compensation) -> Compensation:
        """Run a handler until it is done or has no attempt left."""
        undoing = _Undoing(compensation, self._find)
        await undoing.until_due(self._execution)
        return await retried(self._execution, undoing)

    async def _stuck(self, compensation: Compensation) -> None:
        execution = self._execution
        original = execution.journal.about.result.error
        assert original is not None, "what is rolled back has failed"
        assert compensation.error is not None, "it has failed"
        last = unpack_error_info(compensation.error, execution.codec)
        info = ErrorInfo(
            last.type,
            f"the rollback of step {compensation.path!r} failed after {compensation.attempts} attempts, and nothing "
            f"older is undone before it: {last.message}",
            last.traceback,
            last.attributes,
            last.kind,
        )
        # The failed operation tells this from a mistake: an instance that is stuck for a mistake is tried at each
        # claim.
        result = result_of(info, execution.codec, original, [compensation.path])
        execution.journal.set_row(Field.RESULT, result)
        await execution.finish(Status.STUCK)

    async def _find(self, compensation: Compensation) -> tuple[Handler, object]:
        """Find the handler of a compensation, and the type hint of the step's value."""
        execution = self._execution
        handlers = execution.handlers
        if compensation.handler is not None:
            try:
                handler = _with_arguments(compensation.handler, execution)
            except HistoryDivergedError as error:
                execution.life.diverged(error)
                await execution.life.never()
            held = handlers.get(compensation.location)
            return handler, held[1] if held else parameter_hint(handler, 0)
        if compensation.location not in handlers and not self._walked:
            await self._walk()
            handlers = execution.handlers
        if compensation.location not in handlers:
            raise DefinitionError(
                f"the code has no rollback for step {compensation.path!r} any more; put it back. A handler that is "
                f"known by name is recorded: {REMEDY}"
            )
        return handlers[compensation.location]

    async def _walk(self) -> None:
        """Find the handlers that only the code of the workflow knows, by walking it over its history."""
        self._walked = True
        engine = self._execution
        walk = Walk(engine.session.driver, engine.journal, engine.codec, engine.known, engine.facts, self._created_at)
        try:
            found = await walk.find(self._fn)
        except Exception as error:  # noqa: BLE001  # the store failed: the walk itself lets no error of the author's code out
            engine.life.storage_failed(error)
            await engine.life.never()
        engine.handlers = found | engine.handlers


class _Waiting:
    """The place of a wait for the next attempt of a handler: its location and path are those of the step."""

    name = "rollback"

    def __init__(self, compensation: Compensation) -> None:
        self.location = compensation.location
        self.path = compensation.path


class _Undoing:
    """Calls one handler until it succeeds or has no attempt left."""

    def __init__(
        self, compensation: Compensation, find: Callable[[Compensation], Awaitable[tuple[Handler, object]]]
    ) -> None:
        self.record = compensation
        self.options = StepOptions()
        self._find = find

    @property
    def attempts(self) -> int:
        return self.record.attempts + 1

    def is_final(self, failure: BaseException) -> bool:
        return isinstance(failure, DefinitionError) or is_final(failure, self.options)

    async def until_due(self, engine: Engine) -> None:
        """Park until the next attempt is due."""
        record = self.record
        if record.retry_at is not None:
            await wait_for(engine, Wait(_Waiting(record), "retry", record.retry_at))

    async def attempt(self, engine: Engine) -> BaseException | None:
        record, calls = self.record, engine.calls
        path = f"{UNDO}{record.path}"
        is_told = engine.life.are_told
        self.options = StepOptions()
        token = current_scope.set(None)
        try:
            handler, hint = await self._find(record)
            self.options = as_step_options(handler, {})
            result = engine.codec.decode(record.result, hint)
            if is_told:
                await calls.tell(path, record.location)
            if has_parameter(handler, KEY, 1):
                handler = with_key(engine, record.path, handler, undoes=True)
            await call(engine.calls, handler, (result,), self.options.timeout)
        except SealedError as error:
            raise engine.life.misread(error, path) from None
        except BaseException as error:
            # A handler may raise anything.
            if not is_failure(error, lambda: engine.life.halted or is_cancelled()):
                raise
            if engine.life.halted:
                # The handler made a mistake, such as a duplicate name: that stops the instance, and costs no attempt.
                await engine.life.never()
            return error
        finally:
            current_scope.reset(token)
            if is_told:
                calls.survived(record.location)
        self.record = record.done()
        engine.journal.compensations.update(self.record)
        await engine.parking.flush()
        return None

    async def again(self, engine: Engine, failure: BaseException, when: float) -> None:
        self._failed(engine, failure, when)
        await self.until_due(engine)

    async def give_up(self, engine: Engine, failure: BaseException) -> None:
        self._failed(engine, failure, None)

    def _failed(self, engine: Engine, failure: BaseException, when: float | None) -> None:
        self.record = self.record.failed(pack_error_info(describe(failure, engine.codec), engine.codec), when)
        engine.journal.compensations.update(self.record)


def failed_operations_of(error: BaseException) -> list[str]:
    """The paths of the operations whose failures are in an error."""
    if isinstance(error, (JoinError, RaceError)):
        return [path for inner in error.errors.values() for path in failed_operations_of(inner)]
    if isinstance(error, GraphFailedError):
        return error.failed
    path = getattr(error, "path", None)
    return [path] if isinstance(error, _OF_OPERATIONS) and isinstance(path, str) and path else []


def _with_arguments(ref: HandlerRef, execution: Execution) -> Handler:
    found = find_handler(execution.known, ref)
    decode = execution.codec.decode
    if not ref.args and not ref.kwargs:
        return found
    return partial(found, *(decode(arg) for arg in ref.args), **{key: decode(value) for key, value in ref.kwargs})
