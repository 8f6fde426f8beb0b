"""Every kind of outcome that an operation can have, and a witness of what the author sees of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import anyio

from tests.support import World
from workflow_sdk import (
    Backoff,
    Break,
    Context,
    Continue,
    CriticalError,
    JoinError,
    ListenTimeoutError,
    RaceError,
    RollbackError,
    Status,
    StepCriticalError,
    StepExhaustedError,
    StepTimeoutError,
    workflow,
)

AT_ONCE = Backoff(initial=0)


class Color(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Order:
    id: str
    lines: tuple[Point, ...]
    color: Color = Color.RED


class CardDeclined(Exception):
    def __init__(self, code: int, amounts: tuple[int, ...]) -> None:
        super().__init__(code, amounts)
        self.code = code
        self.amounts = amounts


async def order() -> Order:
    return Order("o-1", (Point(1, 2), Point(3, 4)))


async def point() -> Point:
    return Point(1, 2)


class Unreachable(RollbackError):
    """A failure with an attribute that can't be stored."""

    connection: object = None


async def unreachable() -> int:
    failure = Unreachable("no answer")
    failure.connection = object()
    raise failure


async def declined() -> int:
    raise CardDeclined(7, (1, 2))


async def critical() -> int:
    raise CriticalError("never again")


async def rollback() -> int:
    raise RollbackError("unwind")


async def slow() -> int:
    await anyio.sleep(3600)
    return 1


async def unencodable() -> Any:
    return object()


def gives(value: Any) -> Callable[[], Awaitable[Any]]:
    async def give() -> Any:
        return value

    return give


Case = Callable[[Context], Awaitable[Any]]


def step(fn: Callable[[], Awaitable[Any]], **options: Any) -> Case:
    async def run(ctx: Context) -> Any:
        return await ctx.step("case", fn, **options)

    return run


DECLINED = step(declined, retries=0)
CRITICAL = step(critical)
TIMEOUT = step(slow, timeout=1, retry_on_timeout=False)


async def join_of_failures(ctx: Context) -> Any:
    return await ctx.join("case", {"a": DECLINED, "b": CRITICAL, "c": step(point)})


async def race_of_failures(ctx: Context) -> Any:
    return await ctx.race("case", {"a": DECLINED, "b": CRITICAL})


async def map_of_failures(ctx: Context) -> Any:
    async def one(ctx: Context, n: int) -> Any:
        return await (DECLINED if n else CRITICAL)(ctx)

    return await ctx.map("case", one, range(3))


async def nested_failures(ctx: Context) -> Any:
    return await ctx.join("case", {"j": join_of_failures, "r": race_of_failures, "t": step(gives(1))})


async def failing_loop(ctx: Context) -> Any:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        if n == 2:
            await DECLINED(ctx)
        return Continue(n + 1)

    return await ctx.loop("case", turn, 0)


async def author_failing_loop(ctx: Context) -> Any:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        raise CardDeclined(n, (n,))

    return await ctx.loop("case", turn, 0)


async def rollback_in_join(ctx: Context) -> Any:
    return await ctx.join("case", {"a": step(rollback), "b": DECLINED})


async def rollback_in_race(ctx: Context) -> Any:
    return await ctx.race("case", {"a": step(rollback)})


async def rollback_in_attempt(ctx: Context) -> Any:
    return await ctx.attempt("case", step(rollback))


async def author_error_in_branch(ctx: Context) -> Any:
    async def branch(ctx: Context) -> Any:
        raise CardDeclined(3, (4, 5))

    return await ctx.join("case", {"a": branch})


async def large_join_failure(ctx: Context) -> Any:
    """Outcomes that do not stand in the entry of the join."""
    large = step(gives("x" * 200_000))
    return await ctx.join("case", {"a": large, "b": DECLINED})


async def listen_in_time(ctx: Context) -> Any:
    return await ctx.listen("case", timeout=10)


async def default_of_listen(ctx: Context) -> Any:
    return await ctx.listen("case", timeout=10, default=(1, 2))


async def many_in_time(ctx: Context) -> Any:
    return await ctx.listen_many("case", count=2, timeout=10)


FAILURES: dict[str, tuple[type[Exception], Case]] = {
    "exhausted": (StepExhaustedError, step(declined, retries=2, backoff=AT_ONCE)),
    "critical": (StepCriticalError, CRITICAL),
    "no retry": (StepCriticalError, step(declined, no_retry=CardDeclined)),
    "timeout": (StepTimeoutError, TIMEOUT),
    "timeout retried": (StepTimeoutError, step(slow, timeout=1, retry_on_timeout=True, retries=1, backoff=AT_ONCE)),
    "rollback": (RollbackError, step(rollback)),
    "rollback with a connection": (Unreachable, step(unreachable)),
    "unencodable": (StepCriticalError, step(unencodable)),
    "join": (JoinError, join_of_failures),
    "race": (RaceError, race_of_failures),
    "map": (JoinError, map_of_failures),
    "nested": (JoinError, nested_failures),
    "loop": (StepExhaustedError, failing_loop),
    "loop of author": (CardDeclined, author_failing_loop),
    "rollback in join": (RollbackError, rollback_in_join),
    "rollback in race": (RollbackError, rollback_in_race),
    "rollback in attempt": (RollbackError, rollback_in_attempt),
    "author in branch": (JoinError, author_error_in_branch),
    "large join": (JoinError, large_join_failure),
    "listen": (ListenTimeoutError, listen_in_time),
}


async def loop_of_tuples(ctx: Context) -> Any:
    async def turn(ctx: Context, state: tuple[int, ...]) -> Continue[tuple[int, ...]] | Break[tuple[int, ...]]:
        assert type(state) is tuple
        return Break(state) if len(state) == 3 else Continue((*state, len(state)))

    return await ctx.loop("case", turn, ())


async def join_of_values(ctx: Context) -> Any:
    return await ctx.join("case", {"a": step(order), "b": step(gives((1, {2})))})


async def race_of_values(ctx: Context) -> Any:
    return await ctx.race("case", {"a": step(gives((1, 2)))})


async def map_of_values(ctx: Context) -> Any:
    async def one(ctx: Context, n: int) -> tuple[int, int]:
        return (n, n)

    return await ctx.map("case", one, range(3))


async def success(ctx: Context) -> Any:
    return await ctx.attempt("case", step(order))


async def failure(ctx: Context) -> Any:
    return await ctx.attempt("case", join_of_failures)


async def facts(ctx: Context) -> Any:
    await ctx.step("case", point)
    return ctx.now(), ctx.uuid(), ctx.random.random(), ctx.random.random()


VALUES: dict[str, Case] = {
    "tuple": step(gives((1, ("a", b"b"), None))),
    "set": step(gives({1, 2})),
    "int keys": step(gives({1: "a", 2: (3,)})),
    "ordered": step(gives(OrderedDict(b=1, a=2))),
    "times": step(gives([datetime(2030, 1, 1, tzinfo=UTC), date(2030, 1, 1), timedelta(seconds=1.5)])),
    "numbers": step(gives([2**100, Decimal("1.10"), 1.0, True, UUID(int=5)])),
    "dataclass": step(order),
    "named tuple": step(point),
    "loop": loop_of_tuples,
    "join": join_of_values,
    "race": race_of_values,
    "map": map_of_values,
    "success": success,
    "failure": failure,
    "default": default_of_listen,
    "many in time": many_in_time,
    "facts": facts,
}


def facts_of(outcome: Any) -> Any:
    """What can be known of an outcome: types and content, all the way down."""
    if isinstance(outcome, Exception):
        inner = getattr(outcome, "errors", {})
        state = {name: value for name, value in vars(outcome).items() if name not in ("errors", "__notes__")}
        # Exceptions are compared by what they hold.
        args = () if inner else outcome.args
        return (
            type(outcome),
            str(outcome),
            repr(args),
            {name: facts_of(value) for name, value in state.items()},
            [(name, facts_of(error)) for name, error in inner.items()],
        )
    if isinstance(outcome, (list, tuple)):
        return type(outcome), [facts_of(item) for item in outcome]
    if isinstance(outcome, dict):
        return type(outcome), [(facts_of(key), facts_of(value)) for key, value in outcome.items()]
    if hasattr(outcome, "error"):
        return type(outcome), facts_of(outcome.error)
    return type(outcome), outcome


class Witness:
    """Runs a case, and writes down what the author sees, each time."""

    def __init__(self, world: World, case: Case) -> None:
        self.world = world
        self.case = case
        self.seen: list[Any] = []
        self.outcomes: list[Any] = []

        @workflow
        async def witnessed(ctx: Context) -> str:
            try:
                outcome = await self.case(ctx)
            except Exception as error:  # noqa: BLE001  # any outcome
                outcome = error
            await self.see(ctx.instance_id, outcome)
            await ctx.sleep("later", 60)
            return "end"

        self.workflow = witnessed

    async def see(self, id: str, outcome: Any) -> None:
        entry = (await self.world.history(id))["case"]
        assert entry.status.is_final, "it is recorded before it is seen"
        self.outcomes.append(outcome)
        self.seen.append(facts_of(outcome))

    async def check(self) -> Any:
        """See it for the first time, and again after every reload; return the outcome."""
        while not self.seen:
            result = await self.world.once(self.workflow, mode="yield")
            assert result.wake_at is not None
            self.world.clock.advance(result.wake_at.timestamp() - self.world.clock.time())
        result = await self.world.run(self.workflow)
        assert (result.status, result.output) == (Status.COMPLETED, "end")
        assert len(self.seen) > 1
        assert all(seen == self.seen[0] for seen in self.seen)
        return self.outcomes[-1]
