"""Undoing what a failed workflow did: newest first, each handler a step, each written down when it is done."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from workflow_sdk.core.codec import SealedError
from workflow_sdk.core.compensation import Compensation, HandlerRef, Progress
from workflow_sdk.core.failures import describe, pack_error_info, unpack_error_info
from workflow_sdk.core.hints import has_parameter, parameter_hint
from workflow_sdk.core.keys import COMPENSATIONS, Field
from workflow_sdk.core.results import result_of
from workflow_sdk.core.retry import RetryAt, decide
from workflow_sdk.core.status import Status
from workflow_sdk.definitions import StepOptions, as_step_options
from workflow_sdk.errors import (
    AlreadyExistsError,
    ChildFailedError,
    DefinitionError,
    ErrorInfo,
    HistoryDivergedError,
    InstanceNotFoundError,
    JoinError,
    ListenTimeoutError,
    RaceError,
    StepError,
)
from workflow_sdk.execution.execution import Execution
from workflow_sdk.execution.load import sequence_of
from workflow_sdk.execution.walk import Walk
from workflow_sdk.operations.cancelling import is_cancelled, is_failure
from workflow_sdk.operations.engine import Wait
from workflow_sdk.operations.handlers import REMEDY, Handler, find_handler
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.step import KEY, attempt, is_final, warily, watched, with_key

__all__ = ["UNDO", "Unwinding"]

UNDO = "~undo "
"""Before the path of a step: its handler. No path begins like this, as `~` in a name is escaped."""
PAGE = 100

_OF_OPERATIONS = (StepError, ListenTimeoutError, ChildFailedError, InstanceNotFoundError, AlreadyExistsError)
"""Failures that know which operation they are of."""


class Unwinding:
    """The end of a workflow that failed."""

    def __init__(self, execution: Execution, fn: Callable[[Scope], Awaitable[Any]], created_at: float) -> None:
        self._execution = execution
        self._fn = fn
        self._created_at = created_at
        self._walked = False

    async def fail(self, error: BaseException) -> None:
        """The workflow ended with `error`."""
        execution = self._execution
        info = describe(error, execution.codec)
        execution.journal.set_row(Field.RESULT, result_of(info, execution.codec, None, culprits_of(error)))
        if not execution.journal.compensations:
            await execution.finish(Status.FAILED)
            return
        execution.standing.become(Status.ROLLING_BACK)
        await execution.flush()
        await self.go_on()

    async def go_on(self) -> None:
        """Undo what is left to be undone."""
        execution = self._execution
        # Closed here, also when the run is cancelled: an event loop that finds it left over complains.
        async with aclosing(self._open()) as left:
            async for compensation in left:
                last = await self._undo(compensation)
                if last.progress is not Progress.DONE:
                    await self._stuck(last)
                    return
        cancelled = execution.journal.about.head.cancelled
        await execution.finish(Status.CANCELLED if cancelled else Status.ROLLED_BACK)

    async def _open(self) -> AsyncGenerator[Compensation, None]:
        """What is left, newest first."""
        execution = self._execution
        keys = execution.journal.keys
        begin, end = keys.range(COMPENSATIONS)
        while True:
            try:
                rows = await execution.driver.scan(begin, end, limit=PAGE, reverse=True)
            except Exception as error:  # noqa: BLE001  # the store failed
                execution.storage_failed(error)
                await execution.never()
            for key, raw in rows:
                compensation = Compensation.unpack(sequence_of(keys, key), raw)
                if compensation.progress is Progress.EXHAUSTED:
                    # Someone has mended something and asked for another try: with fresh attempts.
                    compensation = replace(compensation, progress=Progress.OPEN, attempts=0)
                if compensation.progress is not Progress.DONE:
                    yield compensation
            if len(rows) < PAGE:
                return
            end = rows[-1][0]

    async def _undo(self, compensation: Compensation) -> Compensation:
        """Run a handler until it is done or has no attempt left."""
        execution = self._execution
        while True:
            while compensation.retry_at is not None and execution.now() < compensation.retry_at:
                await execution.park(
                    Wait(compensation.location, "retry", "rollback", compensation.path, compensation.retry_at)
                )
            failure: BaseException
            options = StepOptions()
            try:
                handler, hint = await self._find(compensation)
                options = as_step_options(handler, {})
                result = execution.codec.decode(compensation.result, hint)
                await watched(execution, f"{UNDO}{compensation.path}")
                if has_parameter(handler, KEY, 1):
                    handler = with_key(execution, compensation.path, handler, undoes=True)
                run = attempt(execution, None, handler, (result,), options)
                path = f"{UNDO}{compensation.path}"
                await (warily(execution, compensation.location, path, run) if execution.wary else run)
            except SealedError as error:
                execution.unreadable(error)
                await execution.never()
            except BaseException as error:
                # Whatever the author's handler raises.
                if not is_failure(error, lambda: execution.halted or is_cancelled()):
                    raise
                failure = error
            else:
                compensation = compensation.done()
                await self._record(compensation)
                return compensation
            if execution.halted:
                # A slip: it stops the instance, and is no failure of the handler.
                await execution.never()
            decision = decide(
                attempts=compensation.attempts + 1,
                retries=options.retries,
                final=isinstance(failure, DefinitionError) or is_final(failure, options),
                backoff=options.backoff,
                now=execution.now(),
                chance=execution.chance(),
            )
            info = pack_error_info(describe(failure, execution.codec), execution.codec)
            when = decision.when if isinstance(decision, RetryAt) else None
            compensation = compensation.failed(info, when)
            execution.journal.update(compensation)
            if when is None:
                return compensation

    async def _record(self, compensation: Compensation) -> None:
        self._execution.journal.update(compensation)
        await self._execution.flush()

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
        # That there is a culprit tells it from a slip, which is tried again by every run.
        result = result_of(info, execution.codec, original, [compensation.path])
        execution.journal.set_row(Field.RESULT, result)
        await execution.finish(Status.STUCK)

    async def _find(self, compensation: Compensation) -> tuple[Handler, object]:
        """The handler, and the type hint of the step's value."""
        execution = self._execution
        if compensation.handler is not None:
            try:
                handler = _with_arguments(compensation.handler, execution)
            except HistoryDivergedError as error:
                execution.diverged(error)
                await execution.never()
            held = execution.handlers.get(compensation.location)
            return handler, held[1] if held else parameter_hint(handler, 0)
        if compensation.location not in execution.handlers and not self._walked:
            self._walked = True
            walk = Walk(
                execution.driver,
                execution.journal,
                execution.codec,
                execution.known,
                execution.facts,
                self._created_at,
            )
            try:
                found = await walk.find(self._fn)
            except Exception as error:  # noqa: BLE001  # the store failed: the walk itself lets no error of the author's code out
                execution.storage_failed(error)
                await execution.never()
            execution.handlers = found | execution.handlers
        if compensation.location not in execution.handlers:
            raise DefinitionError(
                f"the code has no rollback for step {compensation.path!r} any more; put it back. A handler that is "
                f"known by name is recorded: {REMEDY}"
            )
        return execution.handlers[compensation.location]


def culprits_of(error: BaseException) -> list[str]:
    """The paths of the operations that an error tells of."""
    if isinstance(error, (JoinError, RaceError)):
        return [path for inner in error.errors.values() for path in culprits_of(inner)]
    path = getattr(error, "path", None)
    return [path] if isinstance(error, _OF_OPERATIONS) and isinstance(path, str) and path else []


def _with_arguments(ref: HandlerRef, execution: Execution) -> Handler:
    found = find_handler(execution.known, ref)
    decode = execution.codec.decode
    if not ref.args and not ref.kwargs:
        return found
    return partial(found, *(decode(arg) for arg in ref.args), **{key: decode(value) for key, value in ref.kwargs})
