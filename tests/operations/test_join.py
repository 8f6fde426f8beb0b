"""`ctx.join`: branches side by side, all of which finish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Context,
    EntryStatus,
    JoinError,
    Kind,
    ListenTimeoutError,
    RollbackError,
    Status,
    StepError,
    StepExhaustedError,
    workflow,
)

Branch = Callable[[Context], Awaitable[Any]]


@dataclass
class Part:
    name: str


def fail(text: str) -> None:
    raise ValueError(text)


def stepping(*names: str, value: Any = None) -> Branch:
    async def branch(ctx: Context) -> Any:
        for name in names:
            await ctx.step(name, str, name)
        return value

    return branch


def failing(text: str) -> Branch:
    async def branch(ctx: Context) -> None:
        await ctx.step("fails", fail, text, retries=0)

    return branch


def joining(branches: dict[str, Branch], **options: Any) -> Any:
    @workflow
    async def joins(ctx: Context) -> Any:
        value = await ctx.join("join", branches, **options)
        await ctx.sleep("pause", 60)
        return value

    return joins


async def test_values_by_name(world: World) -> None:
    branches = {"b": stepping("x", "y", value=(1, 2)), "a/b": stepping("x", value=None), "c": stepping(value=Part("c"))}
    result = await world.run(joining(branches))
    assert result.output == {"b": (1, 2), "a/b": None, "c": Part("c")}
    assert list(result.output or ()) == ["b", "a/b", "c"]
    history = await world.history()
    assert [entry.path for entry in history] == [
        *("join", "join/b", "join/b/x", "join/b/y", "join/a%2Fb", "join/a%2Fb/x", "join/c", "pause")
    ]
    assert (history["join"].kind, history["join/b"].kind) == (Kind.JOIN, Kind.BRANCH)


async def test_branches_run_side_by_side(world: World) -> None:
    met = {name: anyio.Event() for name in "ab"}

    def meeting(mine: str, other: str) -> Branch:
        async def meet() -> str:
            met[mine].set()
            await met[other].wait()
            return mine

        async def branch(ctx: Context) -> str:
            return await ctx.step("meet", meet)

        return branch

    with anyio.fail_after(PATIENCE):
        result = await world.run(joining({"a": meeting("a", "b"), "b": meeting("b", "a")}))
    assert result.output == {"a": "a", "b": "b"}


@pytest.mark.law(6)
async def test_a_branch_waits_alone(world: World) -> None:
    times: dict[str, float] = {}
    began = world.clock.time()

    def note(name: str) -> None:
        times[name] = world.clock.time() - began

    def sleeping(name: str, seconds: float) -> Branch:
        async def branch(ctx: Context) -> None:
            for n in range(2):
                await ctx.sleep(f"nap {n}", seconds)
                await ctx.step(f"s {n}", note, f"{name}{n}")

        return branch

    await world.run(joining({"a": sleeping("a", 10), "b": sleeping("b", 25), "c": stepping("x")}))
    assert times == {"a0": 10, "a1": 20, "b0": 25, "b1": 50}


@pytest.mark.law(6)
async def test_a_message_resumes_its_own_branch(world: World) -> None:
    async def listens(ctx: Context) -> Any:
        first = await ctx.listen("m")
        return await ctx.step("double", lambda: first * 2)

    async def sleeps(ctx: Context) -> str:
        await ctx.sleep("nap", 3600)
        return "slept"

    @workflow
    async def joins(ctx: Context) -> Any:
        return await ctx.join("join", {"listens": listens, "sleeps": sleeps})

    first = await world.once(joins, mode="yield")
    assert (first.status, first.waiting_for) == (Status.WAITING, ["m"])
    assert first.wake_at is not None
    await world.send("m", 21)
    second = await world.once(joins, mode="yield")
    assert (second.status, second.wake_at) == (Status.SLEEPING, first.wake_at)
    assert (await world.run(joins)).output == {"listens": 42, "sleeps": "slept"}


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 100])
async def test_never_more_than_limit_at_once(world: World, limit: int) -> None:
    under_way: set[str] = set()
    most = [0]

    def branch(name: str) -> Branch:
        async def work() -> None:
            under_way.add(name)
            most[0] = max(most[0], len(under_way))
            for _ in range(3):
                await anyio.lowlevel.checkpoint()

        async def branch(ctx: Context) -> str:
            await ctx.step("first", work)
            await ctx.sleep("nap", 5)
            await ctx.step("second", work)
            under_way.discard(name)
            return name

        return branch

    names = [f"b{n}" for n in range(10)]
    result = await world.run(joining({name: branch(name) for name in names}, limit=limit))
    assert result.output == {name: name for name in names}
    assert most == [min(limit, 10)]


async def test_all_finish_and_failures_are_collected(world: World) -> None:
    finished: list[str] = []
    seen: list[JoinError] = []

    async def slow(ctx: Context) -> None:
        await ctx.sleep("nap", 60)
        await ctx.step("done", finished.append, "slow")

    async def late(ctx: Context) -> None:
        await ctx.listen("never", timeout=5)

    @workflow
    async def joins(ctx: Context) -> list[str]:
        try:
            await ctx.join("join", {"bad": failing("one"), "slow": slow, "late": late})
        except JoinError as error:
            seen.append(error)
        await ctx.sleep("pause", 60)
        return sorted(seen[-1].errors)

    result = await world.run(joins)
    assert result.output == ["bad", "late"]
    assert finished == ["slow"]
    assert len(seen) == (2 if world.setting.mode == "yield" else 1)
    for error in seen:
        assert isinstance(error, ExceptionGroup)
        assert [type(inner) for inner in error.exceptions] == [StepExhaustedError, ListenTimeoutError]
        bad = error.errors["bad"]
        assert isinstance(bad, StepError)
        assert (bad.path, bad.error.message) == ("join/bad/fails", "one")
        assert "join 'join': 2 of 3 branches failed: bad, late" in str(error)
    history = await world.history()
    statuses = [history[path].status for path in ("join", "join/bad", "join/slow")]
    assert statuses == [EntryStatus.FAILED, EntryStatus.FAILED, EntryStatus.COMPLETED]


async def test_except_star_reaches_the_failures(world: World) -> None:
    @workflow
    async def joins(ctx: Context) -> list[str]:
        caught: list[str] = []
        try:
            await ctx.join("join", {"bad": failing("one"), "worse": failing("two"), "odd": odd})
        except* StepError as group:
            caught += [f"step {name}" for name in getattr(group, "errors", ())]
        except* LookupError as group:
            caught += [f"lookup {name}" for name in getattr(group, "errors", ())]
        return caught

    async def odd(ctx: Context) -> None:
        raise KeyError("odd")

    assert (await world.run(joins)).output == ["step bad", "step worse", "lookup odd"]


async def test_a_rollback_error_passes_through(world: World) -> None:
    async def unwinds(ctx: Context) -> None:
        raise RollbackError("enough")

    result = await world.run(joining({"bad": failing("one"), "unwinds": unwinds, "fine": stepping("x")}))
    assert result.status is Status.FAILED
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("workflow_sdk.errors.RollbackError", "enough")


async def test_finished_branches_do_not_run_again(world: World) -> None:
    ran: list[str] = []

    async def quick(ctx: Context) -> str:
        await ctx.step("s", ran.append, "quick")
        ran.append("body")
        return "quick"

    async def slow(ctx: Context) -> str:
        await ctx.sleep("nap", 60)
        return "slow"

    @workflow
    async def joins(ctx: Context) -> Any:
        return await ctx.join("join", {"quick": quick, "slow": slow})

    assert (await world.once(joins, mode="yield")).status is Status.SLEEPING
    assert (await world.run(joins)).output == {"quick": "quick", "slow": "slow"}
    assert ran == ["quick", "body"]


async def test_a_join_of_nothing(world: World) -> None:
    result = await world.run(joining({}))
    assert result.output == {}
    assert [entry.path for entry in await world.history()] == ["join", "pause"]


@pytest.mark.law(8)
async def test_the_order_of_branches_may_change(world: World) -> None:
    async def slow(ctx: Context) -> str:
        await ctx.sleep("nap", 60)
        return "slow"

    branches: dict[str, Branch] = {"a": stepping("x", value="a"), "b": slow, "c": stepping("x", value="c")}
    assert (await world.once(joining(branches), mode="yield")).status is Status.SLEEPING
    turned = dict(reversed(branches.items()))
    world.clock.advance(60)
    await world.once(joining(turned), mode="yield")
    result = await world.run(joining({name: branches[name] for name in "bca"}))
    assert result.output == {"b": "slow", "c": "c", "a": "a"}


async def test_large_outcomes(world: World) -> None:
    branches = {f"b{n}": stepping("x", value=bytes([n]) * 60_000) for n in range(4)}
    result = await world.run(joining(branches | {"bad": stepping("y", value="z" * 100_000)}))
    assert result.output == {f"b{n}": bytes([n]) * 60_000 for n in range(4)} | {"bad": "z" * 100_000}


async def test_five_hundred_branches(world: World) -> None:
    result = await world.run(joining({f"b{n}": stepping("x", value=n) for n in range(500)}))
    assert result.output == {f"b{n}": n for n in range(500)}
