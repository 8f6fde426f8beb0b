"""One firing: a step's code in a scope of its own, called until it succeeds or has no attempt left."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from msgspec.structs import replace

from workflow_sdk.context import Context
from workflow_sdk.definitions import StepOptions
from workflow_sdk.errors import (
    ChildFailedError,
    CodecError,
    DefinitionError,
    JoinError,
    ListenTimeoutError,
    RaceError,
    RollbackError,
    StepCriticalError,
    StepError,
    StepExhaustedError,
    StepTimeoutError,
)
from workflow_sdk.graphs.bodies import args_hint, arguments_for, output_hint, takes_ctx, unwrapped
from workflow_sdk.graphs.kinds import body_of
from workflow_sdk.graphs.marking import Firing
from workflow_sdk.graphs.model import Limits, Node, Used
from workflow_sdk.graphs.moves import Ended
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

_OF_OPERATIONS = (StepError, JoinError, RaceError, ListenTimeoutError, ChildFailedError, RollbackError)
"""Failures that are recorded where they happened: another attempt would come to the same."""


class GraphRuns(Protocol):
    """The run that a firing is a part of."""

    engine: Engine
    most: Limits

    def scope_of(self, number: int, firing: Firing, label: str, location: bytes) -> Scope:
        """A scope for the code of a firing."""
        ...

    def context_at(self, version: int) -> dict[str, Any]:
        """The graph's context, as a firing sees it that began with this version."""
        ...

    def change_firing(self, number: int, firing: Firing) -> None:
        """Record that a firing is tried again."""
        ...

    def submit(self, scope: Scope, seat: FiringSeat, nodes: Any) -> Coroutine[Any, Any, Any]:
        """Add steps to the run."""
        ...


class FiringSeat:
    """What the code of a firing can do to its graph."""

    __slots__ = ("_run", "firing", "number", "patches", "used")

    def __init__(self, run: GraphRuns, number: int, firing: Firing) -> None:
        self._run = run
        self.number = number
        self.firing = firing
        self.patches: dict[str, Any] = {}
        self.used: Limits = Limits(*firing.used)

    @property
    def values(self) -> Mapping[str, Any]:
        """The context of the graph, as the firing sees it."""
        return MappingProxyType({**self._run.context_at(self.firing.vars), **self.patches})

    @property
    def limits(self) -> Used:
        """What was used of the limits when the firing began, or has submitted last."""
        return Used(self.used, self._run.most)

    def patch(self, values: Mapping[str, Any]) -> None:
        """Change the context: for the firing at once, for others when it ends."""
        engine = self._run.engine
        try:
            raw = engine.codec.encode(dict(values))
        except CodecError as error:
            raise engine.life.mistake(about("a change of the graph's context", error)) from None
        self.patches.update(engine.codec.decode(raw, plain=True))

    def submit(self, scope: Scope, nodes: Any) -> Coroutine[Any, Any, Any]:
        """Add steps to the graph."""
        return self._run.submit(scope, self, nodes)


class FiringWork:
    """A firing, as something that is retried."""

    def __init__(self, run: GraphRuns, node: Node, number: int, firing: Firing, location: bytes, graph: str) -> None:
        self._run = run
        self.node = node
        self.number = number
        self.firing = firing
        self.location = location
        self.name = node.name
        self._label = join_path(escape(graph), join_path(escape(node.name), f"~{firing.count}"))
        self.options: StepOptions = node.options
        self.scope: Scope | None = None
        self.seat = FiringSeat(run, number, firing)
        self.ended: Ended | None = None
        """How it has ended, once it has."""

    # As something that waits, and as something that is retried.

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
        return isinstance(failure, (*_OF_OPERATIONS, DefinitionError)) or is_final(failure, self.options)

    async def again(self, engine: Engine, failure: BaseException, when: float) -> None:
        """Record a failed attempt, and return when it is to be tried again."""
        now = engine.clock.time()
        error = pack_error_info(describe(_shown(failure), engine.codec), engine.codec)
        engine.journal.history.trouble(self.location, EntryTrouble(self.path, self.firing.attempts, now, error))
        self._change(replace(self.firing, retry_at=when))
        if when <= now:
            await engine.parking.flush()
        elif self.scope is not None and self.scope.count:
            # What its operations have recorded is replayed: it is read again.
            await engine.parking.flush()
            await engine.stored.load_under(self.location)
        await self.until_due(engine)

    async def until_due(self, engine: Engine) -> None:
        """Park until the next attempt is due, and count it."""
        if self.firing.retry_at is not None:
            await wait_for(engine, Wait(self, "retry", self.firing.retry_at))
            self._change(replace(self.firing, retry_at=None, attempts=self.firing.attempts + 1))

    def _change(self, firing: Firing) -> None:
        self.firing = self.seat.firing = firing
        self._run.change_firing(self.number, firing)

    async def give_up(self, engine: Engine, failure: BaseException) -> None:
        """Note the failure that the graph sees."""
        error = self._outcome(engine, failure)
        info = error.error if isinstance(error, StepError) else describe(error, engine.codec)
        told = {
            "type": info.type,
            "message": info.message,
            "kind": info.kind,
            "attributes": dict(info.attributes),
        }
        event = "loop" if self.node.kind in ("each", "repeat") else "step"
        raw = pack_error(error, engine.codec)
        self.ended = Ended(self.number, is_done=False, error=told, raw_error=raw, event=event)

    def _outcome(self, engine: Engine, failure: BaseException) -> Exception:
        if isinstance(failure, (*_OF_OPERATIONS, DefinitionError)):
            return failure
        kind: type[StepError] = StepCriticalError if self.is_final(failure) else StepExhaustedError
        if isinstance(failure, TimedOut):
            kind = StepTimeoutError
        return kind(self.name, self.path, self.attempts, describe(_shown(failure), engine.codec))

    @staticmethod
    async def walk(walker: Walker, place: Place, node: Node, location: bytes, args: bytes) -> None:
        """Call the code of a firing over its history, for what it would have to undo."""
        scope = Scope(walker, location, place.scope.now, parent=place.scope, label=join_path(place.name, node.name))
        if node.fn is None or not takes_ctx(node.fn):
            return
        token = current_scope.set(scope)
        try:
            given = walker.codec.decode(args, args_hint(node.fn), plain=False)
            await unwrapped(node.fn)(*arguments_for(node.fn, Context(scope), given))
        finally:
            current_scope.reset(token)

    async def attempt(self, engine: Engine) -> BaseException | None:
        """Call its code once. None once it has succeeded, or what it failed with."""
        life = engine.life
        self.seat.patches.clear()
        scope = self.scope = self._run.scope_of(self.number, self.firing, self._label, self.location)
        scope.firing = self.seat
        token = current_scope.set(scope)
        is_told = life.are_told
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
        args = engine.codec.decode(self.firing.args, plain=True)
        fn: Callable[..., Any] | None = node.fn if node.kind == "step" else None
        if fn is None:
            raw = self.firing.details
            values = {} if raw is None else engine.codec.decode(raw, plain=True)
            return await self._in_time(engine, lambda: body_of(node)(ctx, args, values))
        hint = args_hint(fn)
        try:
            given = engine.codec.decode_checked(self.firing.args, hint)
        except CodecError as error:
            raise about(f"the arguments of step {scope.path!r}", error) from None
        called = unwrapped(fn)
        arguments = arguments_for(fn, ctx, given)
        if has_parameter(called, KEY, len(arguments)):
            called = with_key(engine, scope.path, called)
        if not takes_ctx(fn):
            return await call(engine, called, arguments, node.options.timeout)
        return await self._in_time(engine, lambda: called(*arguments))

    async def _in_time(self, engine: Engine, body: Callable[[], Any]) -> Any:
        """Run a body with operations in its time. What it has done when the time is over is forgotten."""
        timeout = self.node.options.timeout
        if timeout is None:
            return await body()
        scope = self.scope
        assert scope is not None, "a body has a scope"
        with engine.calls.time_limit(seconds(timeout, "timeout")) as limit:
            return await body()
        if not limit.cancelled_caught or engine.life.halted or scope.race.lost:
            await engine.life.never()
        scope.forgotten()
        await self._forget(engine, scope)
        raise TimedOut(f"it took longer than {seconds(timeout, 'timeout'):g} s")

    async def _forget(self, engine: Engine, scope: Scope) -> None:
        """Have the next attempt begin afresh: nothing of this one is replayed."""
        if scope.count:
            cleanups = engine.outside.abandon(self.location)
            engine.journal.takings.settle(self.location, give_back=True)
            engine.journal.history.clear_scope(self.location)
            engine.parking.fire()
            await engine.parking.flush()
            await engine.outside.clean_up(cleanups)

    def _succeed(self, engine: Engine, scope: Scope, value: Any) -> BaseException | None:
        node = self.node
        try:
            raw = engine.codec.encode(value, output_hint(node))
        except CodecError as error:
            return about(f"the value of step {scope.path!r}", error)
        if node.options.rollback is not None:
            register_handler(self, engine, node.options.rollback, value, output_hint(node))
        fold(scope, scope.prefix)
        event = "loop" if node.kind in ("each", "repeat") else "step"
        patches = dict(self.seat.patches)
        if node.kind == "call" and node.details.get("result"):
            patches[node.details["result"]] = engine.codec.decode(raw, plain=True)
        self.ended = Ended(self.number, is_done=True, output=raw, patches=patches or None, event=event)
        return None


def _shown(failure: BaseException) -> BaseException:
    """A failure as it is shown and stored. A timeout of ours is shown as that of the language."""
    return TimeoutError(str(failure)) if isinstance(failure, TimedOut) else failure
