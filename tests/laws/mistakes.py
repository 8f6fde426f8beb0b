"""The mistakes an author can make in the code of a workflow, each with what is to be said about it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio

from workflow_sdk import (
    Break,
    CodecError,
    ConcurrentOperationError,
    Context,
    Continue,
    DefinitionError,
    DuplicateNameError,
    PayloadTooLargeError,
)

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001  # that is the mistake
LARGE = "x" * 2_000_001


async def give(value: Any = 1) -> Any:
    """A step."""
    return value


async def part(ctx: Context, item: Any = None) -> Any:
    """A branch."""
    return item


def returns(value: Any) -> Callable[..., Awaitable[Any]]:
    """A branch, or the body of a loop."""

    async def fn(ctx: Context, state: Any = None) -> Any:
        return value

    return fn


@dataclass(frozen=True)
class Wrong:
    """A mistake."""

    id: str
    make: Callable[[Any], Awaitable[object]]
    """Makes it. The ctx is of no type here, since the type checkers find most of these mistakes."""
    name: str | None
    """Of the operation that the message is to name with its path."""
    says: tuple[str, ...]
    """What else it is to say."""
    error: type[Exception] = DefinitionError


RAN: list[str] = []
"""Steps of mistakes that were run. None is to be."""


async def must_not_run() -> None:
    """A step that is a mistake."""
    RAN.append("it")


async def duplicate(ctx: Context) -> None:
    await ctx.step("twice", give)
    await ctx.step("twice", must_not_run)


async def duplicate_of_another_kind(ctx: Context) -> None:
    await ctx.step("twice", give)
    await ctx.sleep("twice", 1)


async def duplicate_of_a_derived_name(ctx: Context) -> None:
    await ctx.step(give)
    await ctx.step(give)
    await ctx.step("give:1", must_not_run)


async def duplicate_of_the_first_derived_name(ctx: Context) -> None:
    await ctx.step(give)
    await ctx.step("give", must_not_run)


async def forgotten_before_another(ctx: Context) -> None:
    ctx.step("forgotten", give)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    await ctx.step("next", give)


async def forgotten_at_the_end(ctx: Context) -> None:
    ctx.step("forgotten", give)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


async def gathered(ctx: Context) -> None:
    both = [ctx.step("one", give), ctx.step("two", give)]
    async with anyio.create_task_group() as group:
        for each in both:
            group.start_soon(lambda: each)  # noqa: B023  # it is never reached


async def side_by_side(ctx: Context) -> None:
    async def slow() -> None:
        await anyio.sleep_forever()  # the mistake ends it

    async def run(name: str) -> None:
        await ctx.step(name, slow)

    async with anyio.create_task_group() as group:
        group.start_soon(run, "one")
        group.start_soon(run, "two")


async def inside_a_step(ctx: Context) -> None:
    async def outer() -> None:
        await ctx.step("inner", must_not_run)

    await ctx.step("outer", outer)


async def inside_a_plain_step(ctx: Context) -> None:
    def outer() -> None:
        ctx.step("inner", give)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]

    await ctx.step("outer", outer)


async def on_the_outer_ctx_in_a_branch(ctx: Context) -> None:
    async def branch(inner: Context) -> None:
        await ctx.step("outside", must_not_run)

    await ctx.join("join", {"a": branch})


async def on_the_outer_ctx_in_a_turn(ctx: Context) -> None:
    async def turn(inner: Context, state: Any) -> Break[None]:
        await ctx.step("outside", must_not_run)
        return Break()

    await ctx.loop("loop", turn)


async def on_the_outer_ctx_in_an_attempt(ctx: Context) -> None:
    async def fn(inner: Context) -> None:
        await ctx.step("outside", must_not_run)

    await ctx.attempt("attempt", fn)


async def on_the_ctx_of_a_sibling(ctx: Context) -> None:
    ready, done = anyio.Event(), anyio.Event()
    held: list[Context] = []

    async def owner(inner: Context) -> None:
        held.append(inner)
        ready.set()
        await done.wait()

    async def thief(inner: Context) -> None:
        await ready.wait()
        try:
            await held[0].step("stolen", must_not_run)
        finally:
            done.set()

    await ctx.join("join", {"owner": owner, "thief": thief})


async def on_a_finished_ctx(ctx: Context) -> None:
    held: list[Context] = []

    async def fn(inner: Context) -> None:
        held.append(inner)

    await ctx.attempt("attempt", fn)
    await held[0].step("late", must_not_run)


SCOPES = [
    Wrong("duplicate", duplicate, "twice", ("used before", "name of its own"), DuplicateNameError),
    Wrong("duplicate of another kind", duplicate_of_another_kind, "twice", ("sleep",), DuplicateNameError),
    Wrong("duplicate of a derived name", duplicate_of_a_derived_name, "give:1", (), DuplicateNameError),
    Wrong("duplicate of a first name", duplicate_of_the_first_derived_name, "give", (), DuplicateNameError),
    Wrong(
        "forgotten before another",
        forgotten_before_another,
        "forgotten",
        ("next'", "await"),
        ConcurrentOperationError,
    ),
    Wrong("forgotten at the end", forgotten_at_the_end, "forgotten", ("await",), ConcurrentOperationError),
    Wrong("gathered", gathered, "one", ("two", "await"), ConcurrentOperationError),
    Wrong("side by side", side_by_side, None, ("one'", "two'", "under way", "ctx.join"), ConcurrentOperationError),
    Wrong("inside a step", inside_a_step, "inner", ("inside a step",)),
    Wrong("inside a plain step", inside_a_plain_step, "inner", ("inside a step",)),
    Wrong(
        "outer ctx in a branch",
        on_the_outer_ctx_in_a_branch,
        "outside",
        ("use the ctx that its function is given",),
        ConcurrentOperationError,
    ),
    Wrong("outer ctx in a turn", on_the_outer_ctx_in_a_turn, "outside", ("ctx",), ConcurrentOperationError),
    Wrong("outer ctx in an attempt", on_the_outer_ctx_in_an_attempt, "outside", ("ctx",), ConcurrentOperationError),
    Wrong("ctx of a sibling", on_the_ctx_of_a_sibling, "join/owner/stolen", ("another branch",)),
    Wrong("finished ctx", on_a_finished_ctx, "attempt/late", ("finished",)),
]

TIMES = [
    Wrong("naive", lambda ctx: ctx.sleep_until("nap", NAIVE), "nap", ("aware", "datetime.now(UTC)")),
    Wrong("no time", lambda ctx: ctx.sleep_until("nap", 5), "nap", ("datetime",)),
    Wrong("naive until", lambda ctx: ctx.listen("wait", until=NAIVE), "wait", ("takes an aware datetime",)),
    Wrong("NaN", lambda ctx: ctx.sleep("nap", math.nan), "nap", ("duration", "seconds", "nan")),
    Wrong("infinity", lambda ctx: ctx.sleep("nap", math.inf), "nap", ("duration", "seconds", "inf")),
    Wrong("no duration", lambda ctx: ctx.sleep("nap", "5"), "nap", ("timedelta", "'5'")),
    Wrong("bool", lambda ctx: ctx.sleep("nap", True), "nap", ("number of seconds",)),
    Wrong("None", lambda ctx: ctx.sleep("nap", None), "nap", ("duration", "None")),
    Wrong("timedelta.max", lambda ctx: ctx.sleep("nap", timedelta.max), "nap", ()),
    Wrong(
        "no duration as timeout",
        lambda ctx: ctx.listen("wait", timeout="1"),
        "wait",
        ("is a number of seconds or a timedelta",),
    ),
    Wrong("NaN timeout", lambda ctx: ctx.listen("wait", timeout=math.nan), "wait", ("nan",)),
    Wrong(
        "timeout and until",
        lambda ctx: ctx.listen("wait", timeout=5, until=datetime(2030, 1, 1, tzinfo=UTC)),
        "wait",
        ("not both",),
    ),
]

OPTIONS = [
    Wrong(
        "unknown option", lambda ctx: ctx.step("s", give, retry=3), None, ("has no option retry", "retries", "partial")
    ),
    Wrong("retries=-1", lambda ctx: ctx.step("s", give, retries=-1), None, ("retries is a number", "0 or more", "-1")),
    Wrong("retries=1.5", lambda ctx: ctx.step("s", give, retries=1.5), None, ("retries", "1.5")),
    Wrong("timeout=0", lambda ctx: ctx.step("s", give, timeout=0), None, ("timeout", "must be positive")),
    Wrong("timeout=-1", lambda ctx: ctx.step("s", give, timeout=timedelta(seconds=-1)), None, ("timeout",)),
    Wrong("timeout=nan", lambda ctx: ctx.step("s", give, timeout=math.nan), None, ("timeout", "nan")),
    Wrong("no_retry=5", lambda ctx: ctx.step("s", give, no_retry=5), None, ("no_retry takes exception types",)),
    Wrong("no_retry=(3,)", lambda ctx: ctx.step("s", give, no_retry=(3,)), None, ("no_retry takes exception types",)),
    Wrong("backoff=5", lambda ctx: ctx.step("s", give, backoff=5), None, ("backoff takes a Backoff",)),
    Wrong("rollback=5", lambda ctx: ctx.step("s", give, rollback=5), None, ("rollback takes a function",)),
    Wrong("no function", lambda ctx: ctx.step("s"), None, ("s'", "no function")),
    Wrong("a number to run", lambda ctx: ctx.step("s", 5), None, ("s'", "no function")),
    Wrong("nothing to run", lambda ctx: ctx.step(5), None, ("no function to run", "ctx.step(name, fn, *args)")),
    Wrong("version=0", lambda ctx: ctx.version("v", 0), "v", ("from 1 on", "0")),
    Wrong("version=True", lambda ctx: ctx.version("v", True), "v", ("whole numbers",)),
    Wrong("version=-1", lambda ctx: ctx.version("v", -1), "v", ("from 1 on", "-1")),
    Wrong("version=1.5", lambda ctx: ctx.version("v", 1.5), "v", ("whole numbers",)),
    Wrong("version=None", lambda ctx: ctx.version("v", None), "v", ("whole numbers",)),
    Wrong("version='1'", lambda ctx: ctx.version("v", "1"), "v", ("whole numbers",)),
    Wrong("removed what", lambda ctx: ctx.removed("r", "stp"), "r", ("stp", "the kind is one of step, loop, sleep")),
    Wrong("removed branch", lambda ctx: ctx.removed("r", "branch"), "r", ("branch",)),
    Wrong("removed nothing", lambda ctx: ctx.removed("r", ""), "r", ("the kind is one of step, loop, sleep",)),
    Wrong(
        "limit=0", lambda ctx: ctx.join("j", {"a": part}, limit=0), "j", ("limit is a number of branches from 1 on",)
    ),
    Wrong("map limit=0", lambda ctx: ctx.map("m", part, [1], limit=0), "m", ("limit is a number of branches",)),
    Wrong("limit=-1", lambda ctx: ctx.map("m", part, [1], limit=-1), "m", ("limit is a number of branches",)),
    Wrong("limit=1.5", lambda ctx: ctx.map("m", part, [1], limit=1.5), "m", ("limit is a number of branches",)),
    Wrong("limit=True", lambda ctx: ctx.map("m", part, [1], limit=True), "m", ("limit is a number of branches",)),
    Wrong("interval=0", lambda ctx: ctx.loop("l", part, commit_interval=0), "l", ("commit_interval", "0")),
    Wrong("interval=1.5", lambda ctx: ctx.loop("l", part, commit_interval=1.5), "l", ("commit_interval",)),
    Wrong("interval=True", lambda ctx: ctx.loop("l", part, commit_interval=True), "l", ("commit_interval",)),
    Wrong("keep=-1", lambda ctx: ctx.loop("l", part, history_keep=-1), "l", ("history_keep", "-1")),
    Wrong("count=10**30", lambda ctx: ctx.listen_many("l", count=10**30), "l", ("a count of 1 or more, up to", "000")),
    Wrong("count=0", lambda ctx: ctx.listen_many("l", count=0), "l", ("a count of 1 or more", "0")),
    Wrong("no messages", lambda ctx: ctx.listen("l", []), "l", ("listens to no message",)),
    Wrong("message=''", lambda ctx: ctx.listen("l", ""), "l", ("can't be called ''",)),
    Wrong("message with a number", lambda ctx: ctx.listen("l", (3,)), "l", ("can't be called 3",)),
    Wrong("messages=5", lambda ctx: ctx.listen("l", 5), "l", ("message", "5")),
    Wrong("empty message", lambda ctx: ctx.listen("l", ["a", ""]), "l", ("''", "empty")),
]

BRANCHES = [
    Wrong("empty race", lambda ctx: ctx.race("r", {}), "r", ("no branches",)),
    Wrong("racers in a list", lambda ctx: ctx.race("r", [part]), "r", ("dict of name: function, not list",)),
    Wrong("racer without name", lambda ctx: ctx.race("r", {"": part}), "r", ("can't be called ''", "empty")),
    Wrong("racer with a number", lambda ctx: ctx.race("r", {1: part}), "r", ("can't be called 1", "int")),
    Wrong("racer that is no function", lambda ctx: ctx.race("r", {"a": 3}), "r", ("'a' is not a function but int",)),
    Wrong("branches in a list", lambda ctx: ctx.join("j", [part]), "j", ("dict of name: function, not list",)),
    Wrong("branch without name", lambda ctx: ctx.join("j", {"": part}), "j", ("can't be called ''", "empty")),
    Wrong("branch with a number", lambda ctx: ctx.join("j", {3: part}), "j", ("can't be called 3", "int")),
    Wrong("branch with a long name", lambda ctx: ctx.join("j", {"x" * 1001: part}), "j", ("1000",)),
    Wrong("branch with half a character", lambda ctx: ctx.join("j", {"\ud800": part}), "j", ("surrogate",)),
    Wrong("branch that is no function", lambda ctx: ctx.join("j", {"a": 5}), "j", ("'a' is not a function but int",)),
    Wrong("map over nothing", lambda ctx: ctx.map("m", part, None), "m", ("items", "NoneType")),
    Wrong("map of no function", lambda ctx: ctx.map("m", 5, [1]), "m", ("function", "int")),
    Wrong("loop of no function", lambda ctx: ctx.loop("l", 5), "l", ("function", "int")),
    Wrong("attempt of no function", lambda ctx: ctx.attempt("a", None), "a", ("function", "NoneType")),
    Wrong(
        "None with a state",
        lambda ctx: ctx.loop("l", returns(None), 5),
        "l",
        ("turn 0", "returned None, and the loop has a state", "Continue(state)"),
    ),
    Wrong(
        "another return",
        lambda ctx: ctx.loop("l", returns(7), 5),
        "l",
        ("turn 0", "returned int; a body returns Continue(state) or Break(value)"),
    ),
    Wrong("a type returned", lambda ctx: ctx.loop("l", returns(Break), 5), "l", ("turn 0", "Break(value)")),
]

VALUES = [
    Wrong("first state", lambda ctx: ctx.loop("l", part, object()), "l", ("the first state of", "object"), CodecError),
    Wrong("state", lambda ctx: ctx.loop("l", returns(Continue(object()))), "l", ("the state of",), CodecError),
    Wrong("value of a loop", lambda ctx: ctx.loop("l", returns(Break(object()))), "l", ("the value of",), CodecError),
    Wrong(
        "value of a branch",
        lambda ctx: ctx.join("j", {"a": returns(object())}),
        "j/a",
        ("the value of branch",),
        CodecError,
    ),
    Wrong("value of a racer", lambda ctx: ctx.race("r", {"a": returns(object())}), "r/a", ("value",), CodecError),
    Wrong("value of an item", lambda ctx: ctx.map("m", part, [1, object()]), "m/1", ("value",), CodecError),
    Wrong("value of an attempt", lambda ctx: ctx.attempt("a", returns(object())), "a", ("value",), CodecError),
    Wrong("large first state", lambda ctx: ctx.loop("l", part, LARGE), "l", ("2,000,000",), PayloadTooLargeError),
    Wrong(
        "large state",
        lambda ctx: ctx.loop("l", returns(Continue(LARGE))),
        "l",
        ("max_value_bytes",),
        PayloadTooLargeError,
    ),
    Wrong("large end", lambda ctx: ctx.loop("l", returns(Break(LARGE))), "l", ("reference",), PayloadTooLargeError),
    Wrong("large branch", lambda ctx: ctx.join("j", {"a": returns(LARGE)}), "j/a", ("limit",), PayloadTooLargeError),
    Wrong("large attempt", lambda ctx: ctx.attempt("a", returns(LARGE)), "a", ("limit",), PayloadTooLargeError),
]

OPERATIONS: dict[str, Callable[[Any, Any], Awaitable[object]]] = {
    "step": lambda ctx, name: ctx.step(name, give),
    "loop": lambda ctx, name: ctx.loop(name, part),
    "sleep": lambda ctx, name: ctx.sleep(name, 1),
    "sleep_until": lambda ctx, name: ctx.sleep_until(name, datetime(2030, 1, 1, tzinfo=UTC)),
    "listen": lambda ctx, name: ctx.listen(name, "message"),
    "listen without messages": lambda ctx, name: ctx.listen(name),
    "join": lambda ctx, name: ctx.join(name, {"a": part}),
    "race": lambda ctx, name: ctx.race(name, {"a": part}),
    "map": lambda ctx, name: ctx.map(name, part, [1]),
    "attempt": lambda ctx, name: ctx.attempt(name, part),
    "version": lambda ctx, name: ctx.version(name, 1),
    "checkpoint": lambda ctx, name: ctx.checkpoint(name),
}
BAD_NAMES: dict[str, tuple[Any, str]] = {
    "empty": ("", "empty"),
    "long": ("x" * 1001, "at most 1000 characters"),
    "half a character": ("\ud800", "surrogate"),
    "None": (None, "not NoneType"),
    "bytes": (b"name", "not bytes"),
}


def _with_name(call: Callable[[Any, Any], Awaitable[object]], name: Any) -> Callable[[Any], Awaitable[object]]:
    return lambda ctx: call(ctx, name)


def mistakes_of_names(operation: str) -> list[Wrong]:
    """The operation with every name that no operation can have."""
    return [
        Wrong(f"{operation} with name: {what}", _with_name(OPERATIONS[operation], name), None, (says,))
        for what, (name, says) in BAD_NAMES.items()
        # A step takes its name from its function if it is given none.
        if not (operation == "step" and not isinstance(name, str))
    ]


MISTAKES = [*SCOPES, *TIMES, *OPTIONS, *BRANCHES, *VALUES]
