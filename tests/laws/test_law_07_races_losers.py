"""What losers of a race had: messages they took go back in order, compensations they earned stay."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.laws.parts import Branch, endless, give, refuse
from tests.laws.watching import crash_at, everywhere
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Break, Context, Continue, Status, workflow

UNDONE: list[str] = []


async def undo(value: str) -> None:
    """A handler that is importable by name, as it must be in loops."""
    UNDONE.append(value)


async def takes(ctx: Context) -> None:
    """Takes two of the words, and then waits for ever."""
    await ctx.listen("one", "word")
    await ctx.listen("two", "word")
    await endless(ctx)


async def takes_many(ctx: Context) -> None:
    await ctx.listen_many("both", "word", count=2)
    await endless(ctx)


async def takes_in_loop(ctx: Context) -> None:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.listen("word")
        return Break(n) if n == 1 else Continue(n + 1)

    # Pruned as it goes: what a turn has taken is known after its history is gone.
    await ctx.loop("loop", turn, 0, commit_interval=1, history_keep=0)
    await endless(ctx)


async def takes_in_join(ctx: Context) -> None:
    async def one(ctx: Context) -> None:
        await ctx.listen("word")

    await ctx.join("join", {"a": one, "b": one})
    await endless(ctx)


async def takes_in_race(ctx: Context) -> None:
    async def two(ctx: Context) -> None:
        await ctx.listen("one", "word")
        await ctx.listen("two", "word")

    assert (await ctx.race("inner", {"two": two, "endless": endless})).winner == "two"
    await endless(ctx)


async def takes_in_attempt(ctx: Context) -> None:
    async def one(ctx: Context) -> None:
        await ctx.listen("word")

    await ctx.attempt("attempt", one)
    await ctx.join("join", {"a": lambda ctx: ctx.attempt("deep", one)})
    await endless(ctx)


async def takes_and_fails(ctx: Context) -> None:
    await ctx.listen("one", "word")
    await ctx.listen("two", "word")
    raise ValueError("out of the race")


TAKERS: dict[str, Branch] = {
    "listen": takes,
    "listen_many": takes_many,
    "loop": takes_in_loop,
    "join": takes_in_join,
    "race": takes_in_race,
    "attempt": takes_in_attempt,
    "failed": takes_and_fails,
}


@pytest.mark.parametrize("reload", [True, False])
@pytest.mark.parametrize("name", TAKERS)
async def test_messages_of_losers_go_back_in_order(world: World, name: str, reload: bool) -> None:
    async def winner(ctx: Context) -> str:
        return await ctx.listen("go", type=str)

    @workflow
    async def racing(ctx: Context) -> list[int]:
        result = await ctx.race("race", {"taker": TAKERS[name], "winner": winner})
        assert result.winner == "winner"
        return await ctx.listen_many("words", "word", count=3, type=int)

    await world.once(racing, mode="yield")
    for number in (1, 2, 3):
        await world.send("word", number)
    if reload:
        result = await world.once(racing, mode="yield")
        assert "go" in result.waiting_for
    await world.send("go", "go")
    with anyio.fail_after(PATIENCE):
        result = await world.run(racing)
    assert (result.status, result.output) == (Status.COMPLETED, [1, 2, 3])


async def test_messages_of_the_winner_stay_taken(world: World) -> None:
    async def winner(ctx: Context) -> Any:
        inner = await ctx.race("inner", {"a": lambda ctx: ctx.listen("word", type=int), "b": endless})
        return inner.value + await ctx.listen("second", "word", type=int)

    async def branch(ctx: Context) -> Any:
        return (await ctx.race("race", {"winner": winner, "endless": endless})).value

    @workflow
    async def racing(ctx: Context) -> tuple[Any, Any]:
        total = (await ctx.join("join", {"a": branch}))["a"]
        return total, await ctx.listen("word", timeout=1, default="none left")

    result = await world.run(racing, script=[("word", 1), ("word", 2)])
    assert result.output == (3, "none left")


async def test_a_message_that_comes_back_resumes_who_waits_for_it(world: World) -> None:
    """Also while the branch that was in the race goes on to work."""
    resumed = anyio.Event()

    async def wait() -> None:
        await resumed.wait()

    async def note() -> None:
        resumed.set()

    async def takes_one(ctx: Context) -> None:
        await ctx.listen("word")
        await endless(ctx)

    async def races(ctx: Context) -> None:
        result = await ctx.race("race", {"taker": takes_one, "nap": lambda ctx: ctx.sleep("nap", 60)})
        assert result.winner == "nap"
        await ctx.step("works", wait)

    async def waits(ctx: Context) -> str:
        await ctx.sleep("later", 30)
        word = await ctx.listen("word", type=str)
        await ctx.step("note", note)
        return word

    @workflow
    async def both(ctx: Context) -> str:
        return str((await ctx.join("join", {"races": races, "waits": waits}))["waits"])

    with anyio.fail_after(PATIENCE):
        await world.once(both, mode="yield")
        await world.send("word", "hello")
        result = await world.run(both)
    assert result.output == "hello"


@pytest.mark.parametrize("number", range(1, 12))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_no_crash_loses_or_doubles_a_message(world: World, number: int, when: str) -> None:
    @workflow
    async def racing(ctx: Context) -> tuple[str, list[int]]:
        result = await ctx.race("race", {"taker": takes_in_loop, "nap": lambda ctx: ctx.sleep("nap", 60)})
        return result.winner, await ctx.listen_many("words", "word", count=3, type=int)

    await world.once(racing, mode="yield")
    for word in (1, 2, 3):
        await world.send("word", word)
    await crash_at(world, racing, number, when)
    result = await world.run(racing)
    assert result.output == ("nap", [1, 2, 3])


async def earns(ctx: Context) -> None:
    await ctx.step("earned", give, "earned", rollback=undo)
    await endless(ctx)


async def earns_here(ctx: Context) -> None:
    async def local(value: str) -> None:
        UNDONE.append(value)

    await ctx.step("earned", give, "earned", rollback=local)
    await endless(ctx)


async def earns_in_loop(ctx: Context) -> None:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.step("earned", give, "earned", rollback=undo)
        return Break(n)

    await ctx.loop("loop", turn, 0, commit_interval=1, history_keep=0)
    await endless(ctx)


async def earns_in_join(ctx: Context) -> None:
    await ctx.join("join", {"a": earns_here, "b": endless})


async def earns_in_race(ctx: Context) -> None:
    """It loses the inner race first, and the outer one with its winner."""
    await ctx.race("inner", {"a": earns_here, "b": lambda ctx: ctx.sleep("nap", 5)})
    await endless(ctx)


async def earns_in_attempt(ctx: Context) -> None:
    await ctx.attempt("attempt", lambda ctx: ctx.step("earned", give, "earned", rollback=undo))
    await endless(ctx)


async def earns_and_fails(ctx: Context) -> None:
    async def local(value: str) -> None:
        UNDONE.append(value)

    await ctx.step("earned", give, "earned", rollback=local)
    raise ValueError("out of the race")


EARNERS: dict[str, Branch] = {
    "importable": earns,
    "local": earns_here,
    "loop": earns_in_loop,
    "join": earns_in_join,
    "race": earns_in_race,
    "attempt": earns_in_attempt,
    "failed": earns_and_fails,
}


@pytest.mark.parametrize("name", EARNERS)
async def test_compensations_of_losers_stay(world: World, name: str) -> None:
    """In their place among the others, which are undone newest first."""
    UNDONE.clear()

    async def local(value: str) -> None:
        UNDONE.append(value)

    async def nap(ctx: Context) -> None:
        await ctx.sleep("nap", 60)

    @workflow
    async def racing(ctx: Context) -> None:
        await ctx.step("before", give, "before", rollback=local)
        result = await ctx.race("race", {"earner": EARNERS[name], "nap": nap})
        assert result.winner == "nap"
        await ctx.step("after", give, "after", rollback=undo)
        await ctx.sleep("later", 60)
        await ctx.step("fail", refuse, retries=0)

    result = await world.run(racing)
    assert (result.status, UNDONE) == (Status.ROLLED_BACK, ["after", "earned", "before"])


@pytest.mark.parametrize("name", ["importable", "local", "loop", "race"])
async def test_no_crash_loses_a_compensation_of_a_loser(world: World, name: str) -> None:
    async def nap(ctx: Context) -> None:
        await ctx.sleep("nap", 60)

    @workflow
    async def racing(ctx: Context) -> None:
        await ctx.race("race", {"earner": EARNERS[name], "nap": nap})
        await ctx.step("fail", refuse, retries=0)

    async def check(id: str) -> None:
        result = await world.run(racing, id=id)
        assert (result.status, set(UNDONE)) == (Status.ROLLED_BACK, {"earned"})
        # Twice if it was done, and that was not recorded.
        assert len(UNDONE) <= 2

    async def prepare(id: str) -> None:
        UNDONE.clear()

    assert await everywhere(world, racing, check, prepare=prepare) >= 8
