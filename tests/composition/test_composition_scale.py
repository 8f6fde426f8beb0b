"""Many children, and long chains of them: what they cost has a shape."""

from __future__ import annotations

import gc
from time import process_time
from typing import Any

import anyio
import pytest

from tests.composition.composing import Counted, ids_of, left_behind, running, until_count
from tests.patience import PATIENCE
from workflow_sdk import Client, Context, ContinueAsNew, Runtime, Status, open_driver, workflow
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(12)


@workflow
async def small(ctx: Context, number: int) -> int:
    return number * 2


@workflow
async def maps(ctx: Context, count: int) -> int:
    async def branch(ctx: Context, number: int) -> int:
        return await ctx.child("kid", small, number)

    return sum(await ctx.map("all", branch, range(count)))


async def cost(count: int, **options: Any) -> tuple[Counted, float]:
    """What so many children cost: calls of the store, and seconds of this process."""
    driver = Counted(await open_driver("memory://"))
    gc.collect()
    async with running(driver, [small, maps], **options) as runtime:
        began = process_time()
        assert await runtime.run(maps, count, id="p") == count * (count - 1)
        took = process_time() - began
    assert await left_behind(driver) == {}
    return driver, took


@pytest.mark.parametrize("options", [{}, {"max_resident": 50}, {"concurrency": 4}], ids=str)
async def test_five_hundred_children_cost_ten_times_as_much_as_fifty(options: dict[str, int]) -> None:
    few, _ = await cost(50, **options)
    many, _ = await cost(500, **options)
    print(
        f"{options}: calls {few.calls} {many.calls}, commits {few.commits} {many.commits}, rows {few.rows} {many.rows}"
    )
    assert many.calls <= 13 * few.calls
    assert many.commits <= 13 * few.commits
    assert many.rows <= 13 * few.rows
    assert many.commits <= 4 * 500


async def test_the_time_is_linear_too() -> None:
    """Nobody looks at all the children each time that one has ended."""
    _, few = await cost(200)
    _, many = await cost(2000)
    print(f"seconds: {few:.2f} {many:.2f}")
    assert many <= 25 * few


@workflow
async def chain(ctx: Context, depth: int) -> int:
    if depth == 0:
        return 0
    return 1 + await ctx.child("next", chain, depth - 1)


DEPTH = 1000


@pytest.mark.parametrize("options", [{}, {"max_resident": 20}], ids=str)
async def test_a_chain(options: dict[str, Any]) -> None:
    driver = Counted(await open_driver("memory://"))
    async with running(driver, [chain], **options) as runtime:
        assert await runtime.run(chain, DEPTH, id="top") == DEPTH
        print(f"chain {options}: calls {driver.calls}, commits {driver.commits}, rows {driver.rows}")
        assert driver.commits <= 8 * DEPTH
        assert driver.calls <= 30 * DEPTH
    assert await left_behind(driver) == {}
    async with Client(driver) as client:
        ids = [info.id for info in (await client.list(limit=1000)).items]
    assert max(map(len, ids)) <= 200


async def test_a_chain_that_is_cancelled_from_the_top() -> None:
    @workflow
    async def descends(ctx: Context, depth: int) -> None:
        if depth == 0:
            await ctx.listen("go")
        else:
            await ctx.child("next", descends, depth - 1)

    driver = Counted(await open_driver("memory://"))
    async with running(driver, [descends]) as runtime:
        top = await runtime.start(descends, 300, id="top")
        await until_count(driver, 301)
        await top.cancel()
        cancelled = await runtime.list(status=Status.CANCELLED, limit=1000)
        assert len(cancelled.items) == 301
    assert await left_behind(driver) == {}


async def test_a_chain_of_successors() -> None:
    @workflow
    async def next_one(ctx: Context, left: int) -> str:
        return "last" if left == 0 else await ctx.continue_with("next", next_one, left - 1)

    driver = Counted(await open_driver("memory://"))
    async with running(driver, [next_one]) as runtime:
        id = "first"
        await runtime.start(next_one, 500, id=id)
        for _ in range(500):
            id = await runtime.handle(next_one, id).result()
            assert len(id) <= 200
        assert await runtime.handle(next_one, id).result() == "last"
        assert runtime.resident == 0
    assert len(await ids_of(driver)) == 501
    assert await left_behind(driver) == {}


async def test_a_parent_that_starts_over_and_over_with_children() -> None:
    """Its own rows are of one generation; the children are its own affair."""

    @workflow
    async def gardener(ctx: Context, year: int) -> Any:
        await ctx.child("tree", small, year)
        return year if year == 50 else ContinueAsNew(year + 1)

    driver = Counted(await open_driver("memory://"))
    async with running(driver, [gardener, small]) as runtime:
        assert await runtime.run(gardener, 0, id="g") == 50
    async with Client(driver) as client:
        history = await client.handle(gardener, "g").history()
    assert [entry.path for entry in history] == ["tree"]
    assert len(await ids_of(driver)) == 52
    assert await left_behind(driver) == {}


async def test_a_thousand_that_are_cancelled_with_their_parent() -> None:
    @workflow
    async def waits(ctx: Context, number: int) -> None:
        await ctx.listen("go")

    @workflow
    async def many(ctx: Context, count: int) -> None:
        async def branch(ctx: Context, number: int) -> None:
            await ctx.child("kid", waits, number)

        await ctx.map("all", branch, range(count))

    async def calls(count: int) -> int:
        driver = Counted(await open_driver("memory://"))
        clock = VirtualClock(quiet=10)
        async with running(driver, [many, waits], clock) as runtime:
            top = await runtime.start(many, count)
            await until_asleep(runtime, count + 1)
            before = driver.calls
            await top.cancel()
            found = driver.calls - before
            for status in (Status.WAITING, Status.RUNNING, Status.PENDING):
                assert not (await runtime.list(status=status)).items
        assert await left_behind(driver) == {}
        return found

    few, most = await calls(50), await calls(500)
    print(f"cancelled: {few} {most}")
    # 9 to 13 for each, as the ends of a few of them share a commit or not.
    assert few <= 17 * 50
    assert most <= 17 * 500


async def until_asleep(runtime: Runtime, count: int) -> None:
    with anyio.fail_after(PATIENCE):
        while len((await runtime.list(status=Status.WAITING, limit=1000)).items) < count:  # noqa: ASYNC110
            await anyio.sleep(0.01)
