"""What is no divergence: finished operations with all they did, and loops, wherever they are loaded again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.laws.parts import give, refuse
from tests.laws.watching import everywhere
from tests.support import World
from workflow_sdk import (
    Break,
    Context,
    Continue,
    Failure,
    InstanceNotFoundError,
    JoinError,
    RaceError,
    Status,
    StepError,
    Workflow,
    workflow,
)

Body = Callable[[Context], Awaitable[Any]]

TURNS = 5

INTERVALS = [(1, None), (1, 0), (2, 0), (2, 1), (3, None), (3, 1), (20, None)]
"""After how many turns a loop stores its state, and how many turns it keeps."""


class Counted:
    """Steps that count how often they ran, by instance and path."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    async def _run(self, where: str) -> str:
        self.runs[where] += 1
        return where

    async def step(self, ctx: Context, name: str = "s") -> None:
        await ctx.step(name, self._run, f"{ctx.instance_id} {ctx.path}/{name}")


def looping(body: Body, interval: int, keep: int | None, turns: int = TURNS) -> Body:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await body(ctx)
        return Break(n) if n == turns - 1 else Continue(n + 1)

    return lambda ctx: ctx.loop("loop", turn, 0, commit_interval=interval, history_keep=keep)


def joins_and_sleeps(counted: Counted) -> Body:
    async def branch(ctx: Context) -> None:
        await counted.step(ctx)

    async def body(ctx: Context) -> None:
        await ctx.join("join", {"a": branch, "b": branch})
        await ctx.sleep("nap", 60)

    return body


def races_and_sleeps(counted: Counted) -> Body:
    async def steps(ctx: Context) -> None:
        await counted.step(ctx)

    async def body(ctx: Context) -> None:
        await ctx.race("race", {"a": steps, "b": lambda ctx: ctx.listen("never")})
        await ctx.sleep("nap", 60)

    return body


def loops_and_sleeps(counted: Counted) -> Body:
    async def inner(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await counted.step(ctx)
        return Break(n) if n == 2 else Continue(n + 1)

    async def body(ctx: Context) -> None:
        await ctx.loop("inner", inner, 0)
        await ctx.sleep("nap", 60)

    return body


def sleeps_in_everything(counted: Counted) -> Body:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await counted.step(ctx)
        await ctx.sleep("nap", 60)
        await counted.step(ctx, "t")
        return Break(n) if n == 1 else Continue(n + 1)

    async def loops(ctx: Context) -> int:
        return await ctx.loop("inner", turn, 0, commit_interval=1)

    async def body(ctx: Context) -> None:
        await counted.step(ctx)
        await ctx.join("join", {"a": loops, "b": lambda ctx: ctx.attempt("attempt", loops)})
        await ctx.map("map", lambda ctx, _: counted.step(ctx), range(2))
        await ctx.version("version", 2)
        await ctx.checkpoint("point")

    return body


def names_of_their_own(counted: Counted) -> Body:
    """Every turn calls its steps otherwise."""

    async def body(ctx: Context) -> None:
        turn = ctx.path.rpartition("~")[2]
        await counted.step(ctx, f"s{turn}")
        await ctx.join(f"join{turn}", {f"a{turn}": counted.step, "b": counted.step})
        await ctx.sleep(f"nap{turn}", 60)

    return body


BODIES: dict[str, Callable[[Counted], Body]] = {
    "join, sleep": joins_and_sleeps,
    "race, sleep": races_and_sleeps,
    "loop, sleep": loops_and_sleeps,
    "everything": sleeps_in_everything,
    "names": names_of_their_own,
}


def ending(body: Body) -> Workflow[None, str]:
    @workflow
    async def ends(ctx: Context) -> str:
        await body(ctx)
        return "end"

    return ends


async def check_end(world: World, workflow: Workflow[Any, Any], counted: Counted) -> None:
    result = await world.run(workflow)
    assert result.error is None, result.error
    assert (result.status, result.output) == (Status.COMPLETED, "end")
    assert not [entry.path for entry in await world.history() if "?" in entry.path], "names of what is kept are kept"
    assert set(counted.runs.values()) == {1}


@pytest.mark.parametrize(("interval", "keep"), INTERVALS)
@pytest.mark.parametrize("name", BODIES)
async def test_a_loop_resumes_at_every_wait(world: World, name: str, interval: int, keep: int | None) -> None:
    counted = Counted()
    await check_end(world, ending(looping(BODIES[name](counted), interval, keep)), counted)
    assert len(counted.runs) >= TURNS


@pytest.mark.parametrize(("interval", "keep"), [(1, 0), (2, 1)])
@pytest.mark.parametrize("name", BODIES)
async def test_a_loop_in_a_loop_resumes_at_every_wait(world: World, name: str, interval: int, keep: int | None) -> None:
    counted = Counted()
    inner = looping(BODIES[name](counted), interval, keep, turns=2)
    outer = looping(inner, interval, keep, turns=2)
    await check_end(world, ending(lambda ctx: ctx.join("around", {"a": outer, "b": inner})), counted)


@pytest.mark.parametrize("name", BODIES)
async def test_a_loop_resumes_after_every_crash(world: World, name: str) -> None:
    """A step runs twice only if it was not recorded."""
    counted = Counted()
    recorded: dict[str, set[str]] = {}
    loop = ending(looping(BODIES[name](counted), 1, 0, turns=2))

    async def check(id: str) -> None:
        try:
            history = await world.history(id)
        except InstanceNotFoundError:
            return
        assert history.status is not Status.STUCK, history.error
        if not history.status.is_terminal:
            recorded[id] = {entry.path for entry in history if entry.status.is_final}
            return
        assert history.status is Status.COMPLETED
        for path in recorded.get(id, ()):
            assert counted.runs[f"{id} {path}"] <= 1

    assert await everywhere(world, loop, check) >= 10


async def finished_loop(ctx: Context) -> None:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.step("s", give, n)
        return Break(n) if n == 4 else Continue(n + 1)

    await ctx.loop("op", turn, 0)


async def finished_join(ctx: Context) -> None:
    await ctx.join("op", {"a": finished_loop, "b": lambda ctx: ctx.step("s", give, 1)})


async def finished_race(ctx: Context) -> None:
    await ctx.race("op", {"a": finished_join, "b": lambda ctx: ctx.listen("never")})


async def finished_map(ctx: Context) -> None:
    await ctx.map("op", lambda ctx, n: finished_join(ctx), range(3))


async def finished_attempt(ctx: Context) -> None:
    await ctx.attempt("op", finished_race)


async def fails(ctx: Context) -> None:
    await ctx.step("s", give, 1)
    await ctx.step("t", refuse, retries=0)


async def failed_join(ctx: Context) -> None:
    with pytest.raises(JoinError):
        await ctx.join("op", {"a": fails, "b": finished_loop})


async def failed_race(ctx: Context) -> None:
    with pytest.raises(RaceError):
        await ctx.race("op", {"a": fails, "b": fails})


async def failed_attempt(ctx: Context) -> None:
    assert isinstance(await ctx.attempt("op", fails), Failure)


async def failed_loop(ctx: Context) -> None:
    async def turn(ctx: Context, state: None) -> None:
        await fails(ctx)

    with pytest.raises(StepError):
        await ctx.loop("op", turn)


FINISHED: dict[str, Body] = {
    "loop": finished_loop,
    "join": finished_join,
    "race": finished_race,
    "map": finished_map,
    "attempt": finished_attempt,
    "failed join": failed_join,
    "failed race": failed_race,
    "failed attempt": failed_attempt,
    "failed loop": failed_loop,
}


@pytest.mark.parametrize("name", FINISHED)
async def test_what_is_in_a_finished_operation_counts_as_visited(world: World, name: str) -> None:
    @workflow
    async def goes_on(ctx: Context) -> str:
        await FINISHED[name](ctx)
        await ctx.sleep("nap", 60)
        await ctx.step("new", give, 1)
        await ctx.sleep("nap again", 60)
        return "end"

    await world.once(goes_on, mode="yield")
    result = await world.run(goes_on)
    assert (result.output, result.error) == ("end", None)


@pytest.mark.parametrize("name", FINISHED)
async def test_so_does_what_is_in_one_within_a_loop(world: World, name: str) -> None:
    async def body(ctx: Context) -> None:
        await FINISHED[name](ctx)
        await ctx.sleep("nap", 60)

    result = await world.run(ending(looping(body, 2, None, turns=3)))
    assert (result.output, result.error) == ("end", None)
