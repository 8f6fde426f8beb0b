"""A race that is decided while its instance is being evicted, when losers have been kept from going on."""

from __future__ import annotations

import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Stop
from tests.runtime.polling import settle, until
from workflow_sdk import Context, Driver, Runtime, workflow

pytestmark = [pytest.mark.law(7), pytest.mark.every_host]


@pytest.mark.parametrize("losers", [1, 2, 3])
async def test_it_leaves_once_what_is_under_way_has_ended(driver: Driver, losers: int) -> None:
    # Steps that are under way when it is to be evicted: of the losers, of the winner, and beside the race.
    loses, wins, works = Stop(), Stop(), Stop()
    began: list[str] = []
    ended: list[str] = []

    async def step(name: str, stop: Stop) -> str:
        began.append(name)
        await stop.go_on.wait()
        ended.append(name)
        return name

    async def losing(ctx: Context) -> str:
        await ctx.step("first", step, "loser", loses)
        return await ctx.step("second", step, "never", loses)

    async def winning(ctx: Context) -> str:
        return await ctx.step("first", step, "winner", wins)

    async def races(ctx: Context) -> str:
        result = await ctx.race("race", {f"{number}": losing for number in range(losers)} | {"wins": winning})
        return await ctx.step("after", step, result.value, wins)

    async def beside(ctx: Context) -> str:
        return await ctx.step("works", step, "works", works)

    @workflow
    async def both(ctx: Context) -> list[str]:
        results = await ctx.join("both", {"races": races, "beside": beside})
        return [results["races"], results["beside"]]

    async with Runtime(driver, workflows=[both], grace=PATIENCE) as runtime:
        handle = await runtime.start(both)

        async def all_began() -> bool:
            return len(began) == losers + 2

        await until(all_began)
        await handle.evict()
        await settle(driver)
        loses.go_on.set()
        await settle(driver)
        wins.go_on.set()
        await settle(driver)
        assert sorted(began) == ["loser"] * losers + ["winner", "works"], "nothing new is begun"
        works.go_on.set()
        assert await handle.result(timeout=PATIENCE) == ["winner", "works"]
    assert sorted(ended) == sorted(["loser"] * losers + ["winner", "works", "winner"])
