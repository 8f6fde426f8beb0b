"""One firing: a step's code in a scope of its own, called until it succeeds or has no attempt left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace as with_kind
from functools import partial
from typing import Any

from msgspec.structs import replace

from workflow_sdk.context import Context
from workflow_sdk.definitions import StepOptions
from workflow_sdk.errors import (
    ChildFailedError,
    CodecError,
    CriticalError,
    DefinitionError,
    ErrorInfo,
    GraphFailedError,
    JoinError,
    ListenTimeoutError,
    RaceError,
    RollbackError,
    StepCriticalError,
    StepError,
    StepExhaustedError,
    StepTimeoutError,
)
from workflow_sdk.graphs.bodies import (
    Calling,
    args_hint,
    arguments_for,
    awaited,
    calling_of,
    takes_ctx,
    unwrapped,
)
from workflow_sdk.graphs.deadline import Deadline
from workflow_sdk.graphs.expressions import ExpressionError
from workflow_sdk.graphs.failures import told
from workflow_sdk.graphs.kinds import body_of
from workflow_sdk.graphs.model import Node
from workflow_sdk.graphs.moves import Ended
from workflow_sdk.graphs.parts import Work
from workflow_sdk.graphs.rows import Firing
from workflow_sdk.graphs.seat import FiringSeat, GraphRuns
from workflow_sdk.graphs.walking import WalkSeat
from workflow_sdk.instance.unwinding import failed_operations_of
from workflow_sdk.operations.calling import (
    KEY,
    TimedOut,
    as_exception,
    call,
    is_failure_of_scope,
    is_final,
    take_back_cancellations,
    with_key,
)
from workflow_sdk.operations.engine import Engine, Walker
from workflow_sdk.operations.place import Place, about, pack_error
from workflow_sdk.operations.public_state import fold
from workflow_sdk.operations.rollback import register_handler
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.types import Wait
from workflow_sdk.operations.waiting import wait_for
from workflow_sdk.rows.entries import EntryTrouble
from workflow_sdk.rows.location import escape, join_path
from workflow_sdk.rows.retry import seconds
from workflow_sdk.values.failures import describe, pack_error_info
from workflow_sdk.values.hints import has_parameter

_OF_OPERATIONS = (
    StepError,
    JoinError,
    RaceError,
    ListenTimeoutError,
    ChildFailedError,
    GraphFailedError,
    RollbackError,
)
"""Failures that are recorded where they happened: another attempt would come to the same."""
_FINAL = (*_OF_OPERATIONS, DefinitionError, ExpressionError)
_OF_PARTS = ("each", "repeat", "sequence")
"""Kinds whose options are those of each of their parts."""


def _options_of(node: Node) -> StepOptions:
    """The options of a firing as a whole. What its parts have done is not done again, so it is tried once."""
    if node.kind in ("step", "call"):
        return node.options
    return StepOptions(retries=0) if node.kind in _OF_PARTS else node.options.override({"retries": 0})


class FiringWork:
    """A firing, as something that is retried."""

    def __init__(self, run: GraphRuns, node: Node, number: int, firing: Firing, location: bytes, graph: str) -> None:
        self._run = run
        self.node = node
        self.number = number
        self.location = location
        self.name: str = node.name
        self._label = f"{escape(graph)}/{escape(node.name)}/~{firing.count}"
        self.options: StepOptions = _options_of(node)
        self.scope: Scope | None = None
        self.seat: FiringSeat = FiringSeat(run, number, firing, location)
        self.ended: Ended | None = None
        """How it has ended, once it has."""

    # As something that waits, and as something that is retried.

    @property
    def firing(self) -> Firing:
        """The firing as it is now."""
        return self.seat.firing

    @property
    def path(self) -> str:
        """Its path."""
        scope = self.scope or self._run.scope_of(self.number, self.firing, self._label, self.location)
        return scope.path

    @property
    def attempts(self) -> int:
        """How often it was tried."""
        return self.firing.attempts

    @property
    def record(self) -> Ended | None:
        """How it has ended."""
        return self.ended

    def is_final(self, failure: BaseException) -> bool:
        """Whether another attempt would not mend a failure."""
        return isinstance(failure, _FINAL) or is_final(failure, self.options)

    async def again(self, engine: Engine, failure: BaseException, when: float) -> None:
        """Record a failed attempt, and return when it is to be tried again."""
        now = engine.clock.time()
        error = pack_error_info(self._described(engine, failure), engine.codec)
        engine.journal.history.trouble(self.location, EntryTrouble(self.path, self.firing.attempts, now, error))
        self._change(replace(self.firing, retry_at=when, since=_next_version(engine)))
        has_operations = self.scope is not None and self.scope.count > 0
        if when <= now or has_operations:
            # No wait may store it: without this, a worker that dies in the next attempt is forgotten.
            await engine.parking.flush()
        if has_operations:
            # What they have recorded is replayed.
            engine.journal.history.forget_loaded(self.location)
            await engine.stored.load_under(self.location)
        await self.until_due(engine)

    async def until_due(self, engine: Engine) -> None:
        """Park until the next attempt is due, and count it."""
        if self.firing.retry_at is not None:
            await wait_for(engine, Wait(self, "retry", self.firing.retry_at, since=self.firing.since))
            now = engine.clock.time()
            tried = replace(self.firing, retry_at=None, tried_at=now, attempts=self.firing.attempts + 1, since=0)
            self._change(tried)

    def _change(self, firing: Firing) -> None:
        self.seat.firing = replace(firing, args=self._run.args_of(self.number, firing))
        self._run.change_firing(self.number, self.firing)

    async def give_up(self, engine: Engine, failure: BaseException) -> None:
        """Note the failure that the graph sees."""
        error = self._outcome(engine, failure)
        raw = pack_error(error, engine.codec)
        unwinds = isinstance(error, RollbackError)
        self.ended = Ended(self.number, is_done=False, error=told(error, engine.codec), raw_error=raw, unwinds=unwinds)
        self.ended.operations = tuple(failed_operations_of(error))

    def _outcome(self, engine: Engine, failure: BaseException) -> Exception:
        if isinstance(failure, _FINAL):
            return failure
        kind: type[StepError] = StepCriticalError if self.is_final(failure) else StepExhaustedError
        if isinstance(failure, TimedOut):
            kind = StepTimeoutError
        return kind(self.name, self.path, self.attempts, self._described(engine, failure))

    def _described(self, engine: Engine, failure: BaseException) -> ErrorInfo:
        info = describe(_shown(failure), engine.codec)
        # Whatever a transport fails with, it is the call that failed; unless it says that this is the answer.
        is_of_transport = self.node.kind == "call" and not isinstance(failure, CriticalError)
        return with_kind(info, kind="transport") if is_of_transport and info.kind == "application" else info

    @staticmethod
    async def walk(
        walker: Walker, place: Place, node: Node, location: bytes, args: bytes, context: Mapping[str, Any]
    ) -> None:
        """Call the code of a firing over its history, for what it would have to undo."""
        scope = Scope(walker, location, place.scope.now, parent=place.scope, label=join_path(place.name, node.name))
        if node.kind != "step" or node.fn is None or not takes_ctx(node.fn):
            return
        scope.firing = WalkSeat(context)
        token = current_scope.set(scope)
        try:
            given = walker.codec.decode(args, args_hint(node.fn), plain=False)
            await awaited(unwrapped(node.fn), *arguments_for(node.fn, Context(scope), given))
        finally:
            current_scope.reset(token)

    async def attempt(self, engine: Engine) -> BaseException | None:
        """Call its code once. None once it has succeeded, or what it failed with."""
        life = engine.life
        self.seat.begin()
        scope = self.scope = self._run.scope_of(self.number, self.firing, self._label, self.location)
        scope.firing = self.seat
        token = current_scope.set(scope)
        # A body that is replayed begins nothing itself: its operations do.
        is_told = life.are_told and not scope.unvisited
        if life.halted or life.draining or scope.race.lost:
            await life.never()
        try:
            if is_told:
                await engine.calls.tell(scope.path, self.location)
            value = await self._call(engine, scope)
        except BaseException as error:
            if not is_failure_of_scope(error, life, is_own_task=True):
                scope.forgotten()
                raise
            return await self._failed(engine, scope, error)
        finally:
            current_scope.reset(token)
            if is_told:
                engine.calls.survived(self.location)
        await take_back_cancellations(life)
        if scope.race.lost or not scope.end(None):
            await life.never()
        return self._succeed(engine, scope, value)

    async def _failed(self, engine: Engine, scope: Scope, error: BaseException) -> BaseException:
        await take_back_cancellations(engine.life)
        if scope.race.lost:
            scope.forgotten()
            await engine.life.never()
        if not isinstance(error, TimedOut) and not scope.end(error):
            await engine.life.never()
        return error if isinstance(error, Exception) else as_exception(error, f"step {scope.path!r}")

    async def _call(self, engine: Engine, scope: Scope) -> Any:
        """Call the code of the step with its arguments, in the time that it has."""
        node, ctx = self.node, Context(scope)
        if node.kind == "step" and node.fn is not None:
            return await self._call_function(engine, scope, ctx, calling_of(node.fn), None)
        raw = self.firing.details
        values: dict[str, Any] = {} if raw is None else engine.codec.decode(raw, plain=True)
        if node.kind == "call":
            fn = self._run.around.transport(node.details["transport"])
            payload = engine.codec.encode(values["payload"]) if "payload" in values else None
            return await self._call_function(engine, scope, ctx, calling_of(fn), payload)
        args = self._run.around.args_of(self.firing)
        return await self._in_time(engine, body_of(Work(node, ctx, args, values, self.seat)))

    async def _call_function(
        self, engine: Engine, scope: Scope, ctx: Context, calling: Calling, payload: bytes | None
    ) -> Any:
        """Call a function of the author's with a payload, or with the arguments of the firing."""
        called = calling.fn
        given: tuple[Any, ...] = (ctx,) if calling.takes_ctx else ()
        if calling.takes_args:
            try:
                given = (*given, self._argument(engine, calling.args_hint, payload))
            except CodecError as error:
                raise about(f"the arguments of step {scope.path!r}", error) from None
        if has_parameter(called, KEY, len(given)):
            called = with_key(engine, scope.path, called)
        if not calling.takes_ctx:
            return await call(engine.calls, called, given, self.options.timeout)
        if self.options.timeout is None:
            return await awaited(called, *given)
        return await self._in_time(engine, lambda: awaited(called, *given))

    def _argument(self, engine: Engine, hint: object, payload: bytes | None) -> Any:
        raw, around = payload or self._run.args_of(self.number, self.firing), self._run.around
        if not raw and hint is Any:
            return around.args_of(self.firing)
        return engine.codec.decode_checked(raw or around.raw_args_of(self.firing), hint)

    async def _in_time(self, engine: Engine, body: Callable[[], Any]) -> Any:
        """Run a body in its time. What it has recorded stays: the next attempt replays it."""
        scope, timeout = self.scope, self.options.timeout
        if timeout is None or scope is None:
            return await body()
        now, firing = engine.clock.time(), self.firing
        began = firing.at if firing.tried_at is None else firing.tried_at
        if not scope.unvisited and now > began:
            # Nothing is recorded of this attempt: if an earlier run has begun it, it begins anew.
            began = now
            self._change(replace(firing, tried_at=now, since=_next_version(engine)))
        elif not firing.since:
            self._change(replace(firing, since=_next_version(engine)))
        limit = Deadline(self, engine, scope, began + seconds(timeout, "timeout"), self.firing.since)
        if await limit.run(body):
            return limit.value
        raise TimedOut(f"it took longer than {seconds(timeout, 'timeout'):g} s")

    def _succeed(self, engine: Engine, scope: Scope, value: Any) -> BaseException | None:
        node = self.node
        try:
            hint = Any if node.fn is None or node.kind != "step" else calling_of(node.fn).output_hint
            raw = engine.codec.encode(value, hint)
        except CodecError as error:
            return about(f"the value of step {scope.path!r}", error)
        event = "loop" if node.kind in ("each", "repeat") else "step"
        patches = self.seat.changed
        if node.kind == "call" and node.details.get("result"):
            patches[node.details["result"]] = engine.codec.decode(raw, plain=True)

        # Others may store what there is before the end of this firing is, so it is recorded with that.
        record: Callable[[], None] | None = None
        if self.options.rollback is not None or engine.state.public is not None:
            record = partial(self._record, engine, scope, value, hint)
        self.ended = Ended(self.number, is_done=True, output=raw, patches=patches or None, event=event, record=record)
        return None

    def _record(self, engine: Engine, scope: Scope, value: Any, hint: Any) -> None:
        """Record how it is undone, and what its code has assigned."""
        if self.options.rollback is not None:
            register_handler(self, engine, self.options.rollback, value, hint)
        fold(scope, scope.prefix)


def _next_version(engine: Engine) -> int:
    """The version that the instance has with the next commit that changes it."""
    return engine.journal.unwritten.version + 1


def _shown(failure: BaseException) -> BaseException:
    """A failure as it is shown and stored. A timeout of ours is shown as that of the language."""
    return TimeoutError(str(failure)) if isinstance(failure, TimedOut) else failure
