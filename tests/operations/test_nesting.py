"""Everything in everything, five deep."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support import World
from workflow_sdk import Break, Context, Continue, JoinError, RaceError, Status, StepError, Success, workflow

Inner = Callable[[Context], Awaitable[int]]
KINDS = ["loop", "join", "race", "map", "attempt"]

# Every kind in every kind, at every depth: the rotations of two orders, and each kind in itself.
FORWARDS = [KINDS[n:] + KINDS[:n] for n in range(5)]
BACKWARDS = [order[::2] + order[1::2] for order in (KINDS[n::-1] + KINDS[:n:-1] for n in range(5))]
ORDERS = [*FORWARDS, *BACKWARDS, *([kind] * 5 for kind in KINDS)]


async def within(ctx: Context, kind: str, inner: Inner) -> int:
    """Call `inner` inside an operation of that kind, twice or thrice where there can be several."""
    if kind == "join":
        return sum((await ctx.join("join", {"a": inner, "b": inner})).values())
    if kind == "map":

        async def item(ctx: Context, factor: int) -> int:
            return factor * await inner(ctx)

        return sum(await ctx.map("map", item, [1, 2]))
    if kind == "race":

        async def loser(ctx: Context) -> int:
            await inner(ctx)
            await ctx.sleep("lose", 100_000)
            return -1

        won = await ctx.race("race", {"winner": inner, "loser": loser})
        assert won.winner == "winner"
        return won.value
    if kind == "attempt":
        outcome = await ctx.attempt("attempt", inner)
        if isinstance(outcome, Success):
            return outcome.value
        raise outcome.error

    async def turn(ctx: Context, state: tuple[int, int]) -> Continue[tuple[int, int]] | Break[int]:
        turns, total = state
        total += await inner(ctx)
        return Break(total) if turns == 1 else Continue((turns + 1, total))

    return await ctx.loop("loop", turn, (0, 0), commit_interval=1)


FACTORS = {"loop": 2, "join": 2, "race": 1, "map": 3, "attempt": 1}


async def nest(ctx: Context, kinds: list[str], leaf: Inner) -> int:
    if not kinds:
        return await leaf(ctx)

    async def inner(ctx: Context) -> int:
        await ctx.step("in", lambda: None, repeatable=True)
        value = await nest(ctx, kinds[1:], leaf)
        await ctx.step("out", lambda: None, repeatable=True)
        return value

    return await within(ctx, kinds[0], inner)


def nested(kinds: list[str], leaf: Inner) -> Any:
    @workflow
    async def nests(ctx: Context) -> int:
        value = await nest(ctx, kinds, leaf)
        await ctx.sleep("pause", 10)
        return value

    return nests


@pytest.mark.parametrize("kinds", ORDERS, ids="-".join)
async def test_everything_in_everything(world: World, kinds: list[str]) -> None:
    ran: list[str] = []

    async def leaf(ctx: Context) -> int:
        path = ctx.path
        await ctx.step("first", ran.append, path)
        await ctx.sleep("nap", 10)
        return await ctx.step("second", lambda: 1)

    expected = 1
    for kind in kinds:
        expected *= FACTORS[kind]
    result = await world.run(nested(kinds, leaf))
    assert (result.status, result.output) == (Status.COMPLETED, expected)
    assert len(ran) == len(set(ran)), "no step ran twice"
    winners = [path for path in ran if "loser" not in path]
    assert len(winners) == 2 ** sum(kind in ("loop", "join", "map") for kind in kinds)
    history = await world.history()
    kept = [path for path in winners if f"{path}/first" in history]
    assert all(history[f"{path}/second"].value == 1 for path in kept)
    assert kept, "the last turns and all branches are kept"


@pytest.mark.parametrize("kinds", [list(pair) for pair in itertools.product(KINDS, KINDS)], ids="-".join)
async def test_messages_reach_every_depth(world: World, kinds: list[str]) -> None:
    async def leaf(ctx: Context) -> int:
        return await ctx.listen("m", type=int)

    # Losers listen, too: nobody but the winner of each race has its message in the end.
    workflow = nested(kinds, leaf)
    result: Any = await world.once(workflow, mode="yield")
    sent = 0
    while result.waiting_for:
        await world.send("m", 1)
        sent += 1
        assert sent < 50
        result = await world.once(workflow, mode="yield")
    expected = 1
    for kind in kinds:
        expected *= FACTORS[kind]
    assert (await world.run(workflow)).output == expected


@pytest.mark.parametrize("kinds", FORWARDS, ids="-".join)
async def test_a_failure_comes_up_through_everything(world: World, kinds: list[str]) -> None:
    def fail() -> None:
        raise ValueError("deep down")

    async def leaf(ctx: Context) -> int:
        await ctx.sleep("nap", 1)
        await ctx.step("fail", fail, retries=0)
        return 1

    caught: list[BaseException] = []

    @workflow
    async def nests(ctx: Context) -> str:
        try:
            await nest(ctx, kinds, leaf)
        except (StepError, JoinError, RaceError) as error:
            caught.append(error)
            await ctx.sleep("pause", 10)
            return "caught"
        return "not raised"

    result = await world.run(nests)
    assert result.output == "caught"
    for error in caught:
        innermost: BaseException = error
        while isinstance(innermost, BaseExceptionGroup):
            innermost = innermost.exceptions[0]
        assert isinstance(innermost, StepError)
        assert innermost.error.message == "deep down"
        assert innermost.path.endswith("/fail")
