"""Functions that are parts of one firing: items, turns and tasks. Each is durable by itself: once done, it stays so.

A function without a ctx is a step. One with a ctx is called in a scope of its own, and what it changes in the graph's
context is recorded with what it returns, since it is not called again once that is recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, cast

from msgspec import Struct

from workflow_sdk.context import Context
from workflow_sdk.definitions import StepOptions
from workflow_sdk.errors import CodecError, DefinitionError, RollbackError, StepError
from workflow_sdk.graphs.bodies import args_hint, arguments_for, call_in, takes_ctx, unwrapped
from workflow_sdk.graphs.evaluating import Sees
from workflow_sdk.graphs.expressions import Template
from workflow_sdk.graphs.model import Condition, Node
from workflow_sdk.operations.attempt import Failure
from workflow_sdk.operations.calling import is_final
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import about, pack_error, unpack_error
from workflow_sdk.operations.scope import Scope, current_scope
from workflow_sdk.operations.types import Seat
from workflow_sdk.rows.retry import RetryAt, decide, seconds
from workflow_sdk.values.hints import return_hint


class PartSeat(Seat, Protocol):
    """What a part can do to its graph."""

    @property
    def engine(self) -> Engine:
        """What runs it."""
        ...

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The functions that expressions may call."""
        ...

    @property
    def changed(self) -> dict[str, Any]:
        """What it has changed in the graph's context."""
        ...

    def branch(self, location: bytes) -> PartSeat:
        """A seat for a part, which keeps its changes to itself until it is done."""
        ...

    def sees(self, args: bytes, **ended: Any) -> Sees:
        """What expressions see."""
        ...


class Work(Struct, frozen=True):
    """A firing whose code is ours."""

    node: Node
    ctx: Context
    args: Any
    values: Mapping[str, Any]
    """What the details of the step came to when it began."""
    seat: PartSeat


# What expressions come to inside a firing.


async def holds(ctx: Context, name: str, seat: PartSeat, condition: Condition, args: Any, **ended: Any) -> bool:
    """Whether a condition is true, now and in every replay."""
    found = await _asked(ctx, f"{name}:if", seat, condition, condition.test, args, **ended)
    return bool(found)


async def evaluated(ctx: Context, name: str, seat: PartSeat, template: Template, args: Any, **ended: Any) -> Any:
    """What a template comes to, now and in every replay."""
    return await _asked(ctx, name, seat, template, template.evaluate, args, **ended)


async def _asked(
    ctx: Context,
    name: str,
    seat: PartSeat,
    expression: Condition | Template,
    evaluate: Callable[[Any, Mapping[str, Callable[..., Any]]], Any],
    args: Any,
    **ended: Any,
) -> Any:
    codec = seat.engine.codec
    if ended.get("output") is not None:
        ended["output"] = codec.encode(ended["output"])
    sees = seat.sees(codec.encode(args), **ended)

    def ask() -> Any:
        found = sees.of(cast("Any", expression))
        if "ctx" in found:
            found["ctx"] = dict(seat.values)
        return evaluate(found, seat.functions)

    if expression.is_native or {"results", "state"} & {path[0] for path in expression.reads}:
        # What others do meanwhile changes that: the first answer is the one that counts.
        return await ctx.step(name, _answer(ask), retries=0, repeatable=True)
    return ask()


def _answer(ask: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def answer() -> Any:
        return ask()

    return answer


# Calling a part.


class Part(Struct, frozen=True):
    """A function to be called, under a name that nothing else in its scope has."""

    name: str
    fn: Callable[..., Any]
    args: Any
    options: StepOptions


async def run_part(ctx: Context, seat: PartSeat, part: Part) -> Any:
    """Call a part until it succeeds or has no attempt left; its value, as plain data."""
    if not takes_ctx(part.fn):
        return await _as_step(ctx, seat, part)
    attempts = 0
    while True:
        name = f"{part.name}:{attempts}" if attempts else part.name
        attempts += 1
        called: Callable[[Context], Awaitable[list[Any]]] = partial(_in_scope, seat, part)
        got = await ctx.attempt(name, called)
        if isinstance(got, Failure):
            raise got.error
        is_done, value, more = got.value
        if is_done:
            seat.patch(more)
            return value
        failure = unpack_error(value, seat.engine.codec)
        final = bool(more) or _is_final(failure, part.options)
        await _back_off(ctx, f"{name}:backoff", part.options, attempts, failure, final=final)


async def _back_off(
    ctx: Context, name: str, options: StepOptions, attempts: int, failure: Exception, *, final: bool
) -> None:
    """Wait until the next attempt is due. Raises the failure, if there is none."""
    chance, now = ctx.random.random(), ctx.now().timestamp()
    retries, backoff = options.retries, options.backoff
    decision = decide(attempts=attempts, retries=retries, final=final, backoff=backoff, now=now, chance=chance)
    if not isinstance(decision, RetryAt):
        raise failure
    await ctx.sleep(name, max(0, decision.when - now))


def _is_final(failure: Exception, options: StepOptions) -> bool:
    if isinstance(failure, TimeoutError) and str(failure).startswith(_LATE):
        return not options.retry_on_timeout
    return isinstance(failure, (StepError, DefinitionError, RollbackError)) or is_final(failure, options)


async def _as_step(ctx: Context, seat: PartSeat, part: Part) -> Any:
    arguments = arguments_for(part.fn, ctx, _given(seat.engine, part))
    options, fn = part.options, unwrapped(part.fn)
    value = await ctx.step(
        part.name,
        fn,
        *arguments,
        retries=options.retries,
        backoff=options.backoff,
        timeout=options.timeout,
        retry_on_timeout=options.retry_on_timeout,
        no_retry=options.no_retry,
        repeatable=options.repeatable,
        rollback=options.rollback,
    )
    return _plain(seat.engine, value, return_hint(fn))


def _given(engine: Engine, part: Part) -> Any:
    """The arguments of a part, as the types that its function asks for."""
    try:
        return engine.codec.decode_checked(engine.codec.encode(part.args), args_hint(part.fn))
    except CodecError as error:
        raise about(f"the arguments of {part.name!r}", error) from None


def _plain(engine: Engine, value: Any, hint: object) -> Any:
    return engine.codec.decode(engine.codec.encode(value, hint), plain=True)


_LATE = "it took longer than "


async def _in_scope(seat: PartSeat, part: Part, ctx: Context) -> list[Any]:
    """Call a part once, in its time: whether it is done, then its value and changes, or else its failure."""
    limit = part.options.timeout
    if limit is None:
        return await _call(seat, part, ctx)

    async def too_late(inner: Context) -> list[Any]:
        await inner.sleep("limit", limit)
        failure = TimeoutError(f"{_LATE}{seconds(limit, 'timeout'):g} s")
        return [False, pack_error(failure, seat.engine.codec), 0]

    branches: dict[str, Callable[[Context], Awaitable[list[Any]]]]
    branches = {"call": partial(_call, seat, part), "limit": too_late}
    return (await ctx.race("time", branches)).value


def here() -> Scope:
    """The scope whose code runs."""
    scope = current_scope.get()
    assert isinstance(scope, Scope), "a part has a scope"
    return scope


def own_seat(outer: PartSeat) -> PartSeat:
    """A seat for the scope whose code runs, so that what it changes in the context is its own until it is done."""
    scope = here()
    seat = scope.firing = outer.branch(scope.prefix)
    return seat


async def _call(seat: PartSeat, part: Part, ctx: Context) -> list[Any]:
    own, engine = own_seat(seat), seat.engine
    try:
        value = await call_in(ctx, part.fn, _given(engine, part))
        return [True, _plain(engine, value, return_hint(unwrapped(part.fn))), own.changed]
    except Exception as error:  # noqa: BLE001  # it is recorded, and raised where the part is awaited
        # What its operations have done is not to be done again: another attempt would come to the same.
        return [False, pack_error(error, engine.codec), here().count]
