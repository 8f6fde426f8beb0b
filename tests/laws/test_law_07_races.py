"""A race ends when it is won: its losers are cancelled at once, and one commit settles it."""

from __future__ import annotations

import time
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.laws.parts import NAP_SECONDS, Branch, endless, give, nap
from tests.laws.watching import Change, WatchedDriver
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Context,
    Status,
    read_history,
    run_workflow,
    workflow,
)


class Slow:
    """A step that takes its time, and writes down how it ended."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.begun = anyio.Event()

    async def run(self) -> str:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.ends.append("cancelled")
            raise
        self.ends.append("finished")
        return "slow"

    async def branch(self, ctx: Context) -> str:
        return await ctx.step("slow", self.run)


async def test_the_sleep_wins_at_once_by_the_clock_on_the_wall(world: World) -> None:
    slow = Slow()

    @workflow
    async def racing(ctx: Context) -> tuple[str, str]:
        result = await ctx.race("race", {"slow": slow.branch, "nap": nap})
        return result.winner, result.value

    begun = time.monotonic()
    with anyio.fail_after(PATIENCE):
        result = await run_workflow(racing, driver=world.driver, instance_id="i", mode=world.setting.mode)
    assert result.output == ("nap", "rested")
    assert slow.ends == ["cancelled"]
    assert time.monotonic() - begun >= NAP_SECONDS


async def test_one_commit_settles_the_race(world: World) -> None:
    async def loser(ctx: Context) -> Any:
        await ctx.step("booked", give, 1, rollback=give)
        await ctx.listen("first", "word")
        await ctx.listen("second", "word")
        await endless(ctx)

    async def winner(ctx: Context) -> str:
        return await ctx.listen("go", type=str)

    @workflow
    async def racing(ctx: Context) -> Any:
        return (await ctx.race("race", {"loser": loser, "winner": winner})).value

    driver = WatchedDriver(world.driver, turns=1)
    await world.once(racing, driver=driver, mode="yield")
    for message in ("word", "word", "go"):
        await world.send(message, message)
        await world.once(racing, driver=driver, mode="yield")
    (settled,) = driver.of("race")
    (decided,) = [change for change in driver.changes if change.is_final("race/winner")]
    (returned,) = [change for change in driver.changes if change.returned]
    assert settled is decided
    assert settled is returned
    assert returned.returned == ["word", "word"]
    assert settled.cleared
    assert not [path for path in settled.entries if path.startswith("race/loser")]
    # Nothing of it was cleared, or given back, before.
    assert not any(change.cleared for change in driver.changes[: driver.changes.index(settled)])
    history = await world.history()
    assert [entry.path for entry in history] == ["race", "race/winner", "race/winner/go"]
    assert [item.path for item in history.compensations] == ["race/loser/booked"]


async def test_a_loser_that_swallows_its_cancellation_does_nothing_any_more(world: World) -> None:
    ran: list[str] = []

    async def work(name: str) -> str:
        ran.append(name)
        return name

    async def stubborn(ctx: Context) -> str:
        try:
            await endless(ctx)
        except BaseException:  # noqa: BLE001  # the worst an author can write
            await ctx.step("revenge", work, "revenge")
        return "I have won"

    async def cleans_up(ctx: Context) -> None:
        try:
            await endless(ctx)
        finally:
            await ctx.step("clean up", work, "clean up")

    @workflow
    async def racing(ctx: Context) -> str:
        branches: dict[str, Branch] = {"stubborn": stubborn, "cleans up": cleans_up, "nap": nap}
        return (await ctx.race("race", branches)).winner

    assert (await world.run(racing)).output == "nap"
    assert ran == []
    assert [entry.path for entry in await world.history()] == ["race", "race/nap", "race/nap/nap"]


async def test_of_branches_that_end_together_one_wins(world: World) -> None:
    def steps(n: int) -> Branch:
        return lambda ctx: ctx.step("s", give, n)

    @workflow
    async def racing(ctx: Context) -> tuple[str, int]:
        result = await ctx.race("race", {str(n): steps(n) for n in range(5)})
        await ctx.sleep("nap", 60)
        return result.winner, result.value

    driver = WatchedDriver(world.driver, turns=2)
    result = await world.run(racing, driver=driver)
    assert result.output is not None
    winner, value = result.output
    assert winner == str(value)
    assert [entry.path for entry in await world.history()] == ["race", f"race/{winner}", f"race/{winner}/s", "nap"]


@pytest.mark.parametrize("inner", ["join", "map", "race"])
async def test_a_race_is_lost_while_an_outcome_in_the_loser_is_being_stored(world: World, inner: str) -> None:
    """What waits for its own branches in the loser comes to nothing: neither to a value, nor to an error."""
    decided = anyio.Event()
    came: list[object] = []

    async def one(ctx: Context, item: int = 0) -> int:
        return await ctx.step("step", give, item)

    async def side_by_side(ctx: Context) -> Any:
        if inner == "map":
            return await ctx.map("inner", one, [1])
        return await (ctx.join if inner == "join" else ctx.race)("inner", {"one": one})

    async def slow(ctx: Context) -> None:
        try:
            came.append(await side_by_side(ctx))
        except Exception as error:  # noqa: BLE001  # none is to come
            came.append(error)

    async def quick(ctx: Context) -> str:
        await decided.wait()
        return "won"

    async def decide(change: Change) -> None:
        if any(path.endswith("/step") for path in change.entries):
            decided.set()
            for _ in range(10):
                await anyio.lowlevel.checkpoint()

    @workflow
    async def job(ctx: Context) -> str:
        return (await ctx.race("race", {"slow": slow, "quick": quick})).winner

    result = await world.once(job, driver=WatchedDriver(world.driver, before=decide))
    assert (result.status, result.output) == (Status.COMPLETED, "quick")
    assert came == []
    assert [entry.path for entry in await read_history(world.driver, "i")] == ["race", "race/quick"]
