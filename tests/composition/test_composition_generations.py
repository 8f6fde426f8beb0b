"""`ContinueAsNew`: a fresh history, and everything else as it was."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.composition.composing import Counted, left_behind, running, survive, until_input, until_status
from tests.support import World
from workflow_sdk import (
    Client,
    Context,
    ContinueAsNew,
    Runtime,
    Status,
    WorkflowFailedError,
    WorkflowStuckError,
    open_driver,
    workflow,
)
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

pytestmark = pytest.mark.law(1)


async def give(value: Any) -> Any:
    return value


@workflow
async def sums(ctx: Context, total: int) -> int | ContinueAsNew:
    """Adds what it is sent, one number in each generation, up to 100."""
    number = await ctx.listen("number", type=int)
    await ctx.step("rides along", give, number, repeatable=True)
    total = await ctx.step("add", give, total + number)
    return total if total >= 100 else ContinueAsNew(total)


async def test_it_keeps_the_messages(world: World) -> None:
    first = await world.once(sums, 0, mode="yield")
    assert (first.status, first.waiting_for) == (Status.WAITING, ["number"])
    for number in (30, 30, 30, 10, 50):
        await world.send("number", number)
    result = await world.run(sums, 0)
    assert result.output == 100
    async with Client(world.driver) as client:
        info = await client.handle(sums, "i").info()
    assert info.input == 90
    assert [entry.path for entry in await world.history()] == ["number", "rides along", "add"]
    assert await left_behind(world.driver) == {"inbox": 1}


async def test_who_waits_goes_on_waiting(world: World) -> None:
    driver = world.driver
    async with running(driver, [sums]) as runtime, Client(driver) as client:
        handle = await runtime.start(sums, 0, id="i")
        results: list[int] = []

        async def wait(by: Runtime | Client) -> None:
            results.append(await by.handle(sums, "i").result())

        versions: list[int] = []
        async with anyio.create_task_group() as group:
            group.start_soon(wait, runtime)
            group.start_soon(wait, client)
            for number in range(4):
                await until_input(handle, number * 25)
                await until_status(handle, Status.WAITING)
                versions.append((await handle.info()).version)
                await handle.send("number", 25)
                await handle.evict()
        assert results == [100, 100]
        assert sorted(set(versions)) == versions
    assert await left_behind(driver) == {}


async def test_what_everybody_sees_stays(world: World) -> None:
    driver = world.driver

    @workflow
    async def tells(ctx: Context, number: int) -> Any:
        seen.append((dict(ctx.state), ctx.reference))
        if number == 0:
            ctx.state["first"] = number
            ctx.reference = "order-7"
            ctx.progress(1, 3, "begun")
        ctx.state["now"] = number
        await ctx.step("a", give, number)
        await ctx.sleep("nap", 5)
        return "done" if number == 2 else ContinueAsNew(number + 1)

    seen: list[Any] = []
    async with running(driver, [tells], max_resident=0) as runtime:
        handle = await runtime.start(tells, 0)
        assert await handle.result() == "done"
        info = await handle.info()
        assert info.state == {"first": 0, "now": 2}
        assert info.reference == "order-7"
        assert info.progress is not None
        assert [found.id for found in (await runtime.list(reference="order-7")).items] == [handle.id]
    assert seen[-1] == ({"first": 0, "now": 1}, "order-7")
    assert await left_behind(driver) == {}


async def test_what_earlier_ones_did_is_not_undone(world: World) -> None:
    driver = world.driver
    undone: list[int] = []

    async def undo(value: int) -> None:
        undone.append(value)

    @workflow
    async def books(ctx: Context, number: int) -> ContinueAsNew:
        await ctx.step("book", give, number, rollback=undo)
        if number == 2:
            raise ValueError("no")
        return ContinueAsNew(number + 1)

    async with running(driver, [books]) as runtime:
        with pytest.raises(WorkflowFailedError) as caught:
            await runtime.run(books, 0)
    assert caught.value.status == Status.ROLLED_BACK
    assert undone == [2]


async def test_one_with_nothing_to_undo_fails(world: World) -> None:
    @workflow
    async def books(ctx: Context, number: int) -> ContinueAsNew:
        if number:
            raise ValueError("no")
        await ctx.step("book", give, number, rollback=give)
        return ContinueAsNew(1)

    assert (await world.run(books, 0)).status is Status.FAILED


@pytest.mark.parametrize("wrong", ["text", None, object()])
async def test_an_input_of_the_wrong_type_is_a_mistake(world: World, wrong: Any) -> None:
    mended: list[bool] = []

    @workflow
    async def counts(ctx: Context, number: int) -> Any:
        await ctx.step("a", give, number)
        if number == 1:
            return "done"
        return ContinueAsNew(1 if mended else wrong)

    result = await world.run(counts, 0)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert "ContinueAsNew" in result.error.message
    mended.append(True)
    assert (await world.run(counts, 0)).output == "done"


async def test_one_in_a_runtime_that_is_stuck_is_told(world: World) -> None:
    driver = world.driver

    @workflow
    async def counts(ctx: Context, number: int) -> ContinueAsNew:
        return ContinueAsNew("text")

    async with running(driver, [counts]) as runtime:
        with pytest.raises(WorkflowStuckError):
            await runtime.run(counts, 0)


async def test_it_restarts_with_what_it_began_with_at_last(world: World) -> None:
    driver = world.driver

    @workflow
    async def counts(ctx: Context, number: int) -> Any:
        ctx.state["seen"] = [*ctx.state.get("seen", []), number]
        await ctx.step("a", give, number)
        if number == 2:
            await ctx.listen("go")
            return ctx.state["seen"]
        return ContinueAsNew(number + 1)

    async with running(driver, [counts]) as runtime:
        handle = await runtime.start(counts, 0)
        for path in (None, "a", None):
            await until_status(handle, Status.WAITING)
            await handle.restart_from(path)
        await until_status(handle, Status.WAITING)
        await handle.send("go")
        assert await handle.result() == [0, 1, 2]


async def test_an_id_is_taken_by_what_it_was_started_with(world: World) -> None:
    """Whoever starts it again does not know how far it is."""
    driver = world.driver
    async with running(driver, [sums]) as runtime:
        handle = await runtime.start(sums, 0, id="i")
        await handle.send("number", 60)
        await until_input(handle, 60)
        again = await runtime.start(sums, 0, id="i")
        await again.send("number", 60)
        assert await handle.result() == 120


async def test_the_uuids_and_times_are_of_each_generation(world: World) -> None:
    @workflow
    async def draws(ctx: Context, before: list[str]) -> Any:
        before = [*before, str(ctx.uuid()), str(ctx.now())]
        await ctx.sleep("nap", 5)
        return before if len(before) == 6 else ContinueAsNew(before)

    drawn = (await world.run(draws, [])).output
    assert isinstance(drawn, list)
    assert len(set(drawn)) == 6


GENERATIONS = 300


@workflow
async def busy(ctx: Context, number: int) -> int | ContinueAsNew:
    async def turn(ctx: Context, _: int) -> int:
        return await ctx.step(f"turn {number}", give, number)

    ctx.state["number"] = number
    await ctx.map("map", turn, range(2))
    await ctx.step(f"step {number}", give, number, rollback=give)
    return number if number == GENERATIONS else ContinueAsNew(number + 1)


@pytest.mark.law(12, 21)
async def test_a_store_of_constant_size() -> None:
    sizes: list[int] = []

    class Sized(Counted):
        async def commit(self, batch: Any, /) -> None:
            await super().commit(batch)
            sizes.append(len(await self.driver.scan(b"", b"\xff")))

    driver = Sized(await open_driver("memory://"))
    async with running(driver, [busy]) as runtime:
        assert await runtime.run(busy, 0) == GENERATIONS
    assert len(sizes) > 3 * GENERATIONS
    assert max(sizes[20:]) == max(sizes[:20])


async def test_memory_that_does_not_grow() -> None:
    import gc
    import tracemalloc

    held: list[int] = []

    class Measured(Counted):
        async def commit(self, batch: Any, /) -> None:
            await super().commit(batch)
            if self.commits in (200, 1000):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])

    driver = Measured(await open_driver("memory://"))
    tracemalloc.start()
    try:
        async with running(driver, [busy]) as runtime:
            await runtime.run(busy, 0)
    finally:
        tracemalloc.stop()
    first, last = held
    assert last - first < 100_000


@workflow
async def waters(ctx: Context, number: int) -> int | ContinueAsNew:
    async def turn(ctx: Context, n: int) -> int:
        return await ctx.step("s", give, n)

    await ctx.map("map", turn, range(2))
    got = await ctx.listen("number", type=int)
    await ctx.sleep("nap", 5)
    return got if number == 2 else ContinueAsNew(number + got)


async def story(runtime: Runtime) -> None:
    handle = await runtime.start(waters, 0, id="i")
    for number in range(2):
        await handle.send("number", 1, key=str(number))
    await handle.send("number", 7, key="2")
    assert await handle.result() == 7


@pytest.mark.parametrize("side", ["crash_before", "crash_after"])
async def test_killed_at_any_commit(side: str) -> None:
    number, crashed = 0, True
    while crashed:
        number += 1
        driver = await open_driver("memory://")
        faulty = FaultyDriver(
            driver,
            crash_before=number if side == "crash_before" else None,
            crash_after=number if side == "crash_after" else None,
        )
        await survive(faulty, driver, [waters], story)
        crashed = faulty.crashed
        assert await left_behind(driver) == {}, number
    assert number > 12


async def test_killed_at_any_commit_of_a_single_run(world: World) -> None:
    number, crashed = 0, True
    while crashed:
        number += 1
        faulty = FaultyDriver(world.driver, crash_after=number)
        await world.once(waters, 2, id=f"{number}", mode="yield", driver=world.driver)
        await world.send("number", 3, id=f"{number}")
        try:
            await world.run(waters, 2, id=f"{number}", driver=faulty)
        except* SimulatedCrash:
            pass
        crashed = faulty.crashed
        world.clock = VirtualClock(quiet=10)
        assert (await world.run(waters, 2, id=f"{number}")).output == 3
