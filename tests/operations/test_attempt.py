"""`ctx.attempt`: a named scope whose failure is data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.hasty_clock import hasty_clock
from tests.support import World
from workflow_sdk import (
    Context,
    EntryStatus,
    Failure,
    JoinError,
    Kind,
    ListenTimeoutError,
    RaceError,
    RollbackError,
    StepCriticalError,
    StepExhaustedError,
    StepTimeoutError,
    Success,
    workflow,
)
from workflow_sdk.errors import CriticalError


@dataclass
class Receipt:
    total: int


def fail(error: Exception) -> None:
    raise error


async def exhausted(ctx: Context) -> None:
    await ctx.step("s", fail, ValueError("no"), retries=0)


async def critical(ctx: Context) -> None:
    await ctx.step("s", fail, CriticalError("no"))


async def timed_out(ctx: Context) -> None:
    await ctx.step("s", anyio.sleep_forever, timeout=5)


async def no_message(ctx: Context) -> None:
    await ctx.listen("m", timeout=5)


async def join_failed(ctx: Context) -> None:
    await ctx.join("j", {"a": exhausted, "b": critical})


async def race_failed(ctx: Context) -> None:
    await ctx.race("r", {"a": exhausted, "b": critical})


async def map_failed(ctx: Context) -> None:
    async def one(ctx: Context, n: int) -> None:
        await exhausted(ctx)

    await ctx.map("m", one, [1, 2])


@pytest.mark.parametrize("value", [None, 3, (1, (2,)), Receipt(3)], ids=str)
async def test_a_success_carries_the_value(world: World, value: Any) -> None:
    async def fn(ctx: Context) -> Any:
        await ctx.step("s", lambda: None)
        return value

    @workflow
    async def tries(ctx: Context) -> Any:
        outcome = await ctx.attempt("try", fn)
        assert isinstance(outcome, Success)
        assert outcome.ok
        await ctx.sleep("pause", 60)
        assert type(outcome.value) is type(value)
        return outcome.value

    assert (await world.run(tries)).output == value
    history = await world.history()
    assert [entry.path for entry in history] == ["try", "try/s", "pause"]
    assert (history["try"].kind, history["try"].status) == (Kind.ATTEMPT, EntryStatus.COMPLETED)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (exhausted, StepExhaustedError),
        (critical, StepCriticalError),
        (timed_out, StepTimeoutError),
        (no_message, ListenTimeoutError),
        (join_failed, JoinError),
        (race_failed, RaceError),
        (map_failed, JoinError),
    ],
)
async def test_a_failure_is_what_try_would_have_caught(
    world: World, fn: Callable[[Context], Awaitable[None]], kind: type[Exception]
) -> None:
    world.clock = hasty_clock()
    seen: list[Exception] = []

    @workflow
    async def tries(ctx: Context) -> bool:
        outcome = await ctx.attempt("try", fn)
        assert isinstance(outcome, Failure)
        seen.append(outcome.error)
        await ctx.sleep("pause", 60)
        try:
            await fn(ctx)
        except kind as error:
            return outcome.ok or type(error) is not type(outcome.error)
        return True

    assert (await world.run(tries)).output is False
    assert {type(error) for error in seen} == {kind}
    assert (await world.history())["try"].status is EntryStatus.FAILED


async def test_the_failure_carries_its_facts(world: World) -> None:
    @workflow
    async def tries(ctx: Context) -> list[Any]:
        outcome = await ctx.attempt("try", exhausted)
        await ctx.sleep("pause", 60)
        match outcome:
            case Failure(StepExhaustedError() as error):
                return [error.path, error.attempts, error.error.type, error.error.message]
            case _:
                return []

    assert (await world.run(tries)).output == ["try/s", 1, "ValueError", "no"]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyError("k"), RollbackError("enough")], ids=repr)
async def test_other_exceptions_pass_through(world: World, error: Exception) -> None:
    seen: list[Exception] = []

    async def fn(ctx: Context) -> None:
        await ctx.step("s", lambda: 1)
        raise error

    @workflow
    async def tries(ctx: Context) -> str:
        try:
            await ctx.attempt("try", fn)
        except type(error) as passed:
            seen.append(passed)
            await ctx.sleep("pause", 60)
            return str(passed)
        return "caught"

    assert (await world.run(tries)).output == str(error)
    assert {type(passed) for passed in seen} == {type(error)}
    assert (await world.history())["try"].status is EntryStatus.FAILED


async def test_names_inside_are_their_own(world: World) -> None:
    async def fn(ctx: Context) -> int:
        return await ctx.step("s", lambda: 1)

    @workflow
    async def tries(ctx: Context) -> int:
        outer = await ctx.step("s", lambda: 2)
        first = await ctx.attempt("first", fn)
        second = await ctx.attempt("second", fn)
        assert isinstance(first, Success)
        assert isinstance(second, Success)
        return outer + first.value + second.value

    assert (await world.run(tries)).output == 4
    assert [entry.path for entry in await world.history()] == ["s", "first", "first/s", "second", "second/s"]


async def test_an_attempt_goes_on_where_it_was(world: World) -> None:
    ran: list[str] = []

    async def fn(ctx: Context) -> str:
        await ctx.step("before", ran.append, "before")
        got = await ctx.listen("m", type=str)
        await ctx.step("after", ran.append, got)
        return got

    @workflow
    async def tries(ctx: Context) -> str:
        outcome = await ctx.attempt("try", fn)
        return outcome.value if isinstance(outcome, Success) else "failed"

    assert (await world.run(tries, script=[("m", "hello")])).output == "hello"
    assert ran == ["before", "hello"]
