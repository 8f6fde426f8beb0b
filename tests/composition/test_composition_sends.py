"""`ctx.send`: to whomever, it is delivered once, and what became of it is recorded."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.composition.composing import Counted, left_behind, running
from tests.support import World
from workflow_sdk import (
    Batch,
    Client,
    Context,
    Driver,
    Handle,
    InstanceNotFoundError,
    Runtime,
    Status,
    Workflow,
    open_driver,
    workflow,
)
from workflow_sdk.driver import Append
from workflow_sdk.rows.keys import INBOX
from workflow_sdk.testing import FaultyDriver, VirtualClock

pytestmark = pytest.mark.law(1)


@workflow
async def hears(ctx: Context, count: int) -> list[Any]:
    return await ctx.listen_many("all", "word", count=count)


@workflow
async def tells(ctx: Context, to: str) -> str:
    return await ctx.send("tell", to, "word", f"from {ctx.instance_id}")


@workflow
async def sleeps(ctx: Context) -> Any:
    await ctx.sleep("long", 3600)
    return await ctx.listen("word")


@workflow
async def mistakes(ctx: Context) -> Any:
    """It is stuck, until it is mended."""
    await ctx.step("a", int)
    if not mended:
        await ctx.step("a", int)
    return await ctx.listen("word")


mended: list[bool] = []
FLOWS: list[Workflow[Any, Any]] = [hears, tells, sleeps, mistakes]


async def test_to_itself(world: World) -> None:
    @workflow
    async def alone(ctx: Context) -> list[Any]:
        first = await ctx.send("tell", ctx.instance_id, "word", 1)

        async def hear(ctx: Context) -> Any:
            return await ctx.listen("word")

        async def tell(ctx: Context) -> Any:
            await ctx.listen("go", timeout=5, default=None)
            await ctx.send("tell", ctx.instance_id, "other", 2)
            return "sent"

        async def other(ctx: Context) -> Any:
            return await ctx.listen("other")

        return [first, await ctx.join("all", {"hear": hear, "tell": tell, "other": other})]

    result = await world.run(alone)
    assert result.output == ["queued", {"hear": 1, "tell": "sent", "other": 2}]
    assert await left_behind(world.driver) == {}


async def test_to_one_that_waits_and_by_its_handle(world: World) -> None:
    assert (await world.once(hears, 1, id="ear", mode="yield")).status is Status.WAITING
    async with Client(world.driver, clock=world.clock) as client:
        handle = client.handle(hears, "ear")

        @workflow
        async def tells_handle(ctx: Context) -> str:
            return await ctx.send("tell", handle, "word", 7)

        assert (await world.run(tells_handle, id="mouth")).output == "accepted"
    assert (await world.run(hears, 1, id="ear")).output == [7]
    assert await left_behind(world.driver) == {}


async def test_to_one_that_has_ended(world: World) -> None:
    await world.run(hears, 1, id="ear", script=[("word", 1)])
    assert (await world.run(tells, "ear", id="mouth")).output == "closed"
    assert (await world.history("mouth"))["tell"].value == "closed"
    assert await left_behind(world.driver) == {}


async def test_to_nobody_is_recorded_and_replays_the_same(world: World) -> None:
    caught: list[str] = []

    @workflow
    async def lost(ctx: Context) -> str:
        try:
            await ctx.send("tell", "nobody", "word")
        except InstanceNotFoundError as error:
            caught.append(str(error))
        await ctx.sleep("nap", 5)
        return "over it"

    assert (await world.once(lost, mode="yield")).status is Status.SLEEPING
    async with Client(world.driver, clock=world.clock) as client:
        await client.start(hears, 1, id="nobody")
    assert (await world.run(lost)).output == "over it"
    assert len(set(caught)) == 1
    assert "'nobody'" in caught[0]


async def test_to_nobody_fails_the_workflow_and_recover_sends_again(world: World) -> None:
    result = await world.run(tells, "nobody")
    assert result.status is Status.FAILED
    assert result.error is not None
    assert result.error.type.endswith("InstanceNotFoundError")
    async with Client(world.driver, clock=world.clock) as client:
        await client.start(hears, 1, id="nobody")
        await client.handle(tells, "i").recover()
    assert (await world.run(tells, "nobody")).output == "queued"


async def send_through(runtime: Runtime, to: str) -> str:
    handle: Handle[Any] = await runtime.start(tells, to)
    return str(await handle.result())


async def test_to_a_resident_one(world: World) -> None:
    async with running(world.driver, FLOWS) as runtime:
        ear = await runtime.start(hears, 2, id="ear")
        while (await ear.info()).status is not Status.WAITING:  # any process may change it
            await anyio.lowlevel.checkpoint()
        assert await send_through(runtime, "ear") == "accepted"
        assert await send_through(runtime, "ear") == "accepted"
        assert len(await ear.result()) == 2
    assert await left_behind(world.driver) == {}


async def test_to_one_in_another_runtime_and_to_one_evicted(world: World) -> None:
    clock = VirtualClock(quiet=10)
    async with running(world.driver, [hears], clock) as there, running(world.driver, [tells], clock) as here:
        ear = await there.start(hears, 2, id="ear")
        while (await ear.info()).status is not Status.WAITING:  # any process may change it
            await anyio.lowlevel.checkpoint()
        assert await send_through(here, "ear") == "accepted"
        await ear.evict()
        while there.resident:  # it takes its time
            await anyio.lowlevel.checkpoint()
        assert await send_through(here, "ear") == "accepted"
        assert len(await ear.result()) == 2
    assert await left_behind(world.driver) == {}


async def test_to_a_pending_one_a_sleeping_one_and_a_stuck_one(world: World) -> None:
    mended.clear()
    clock = VirtualClock(quiet=10)
    async with Client(world.driver, clock=clock) as client:
        await client.start(hears, 1, id="pending")
        await client.start(sleeps, id="sleeping")
        stuck = await client.start(mistakes, id="stuck")
        async with running(world.driver, [mistakes], clock):
            while (await stuck.info()).status is not Status.STUCK:  # any process may change it
                await anyio.lowlevel.checkpoint()
        async with running(world.driver, [tells], clock) as here:
            assert [await send_through(here, to) for to in ("pending", "sleeping", "stuck")] == ["queued"] * 3
        assert (await stuck.info()).status is Status.STUCK
        mended.append(True)
        async with running(world.driver, FLOWS, clock):
            await stuck.recover()
            assert len(await client.handle(hears, "pending").result()) == 1
            assert str(await client.handle(sleeps, "sleeping").result()).startswith("from")
            assert str(await stuck.result()).startswith("from")
    assert await left_behind(world.driver) == {}


async def test_many_senders_at_once(world: World) -> None:
    """From this runtime and another; and the one that they all reach is evicted again and again."""
    clock = VirtualClock(quiet=10)
    slow = FaultyDriver(world.driver, latency=0.001, seed=3)
    async with running(slow, FLOWS, clock, max_resident=8) as one, running(world.driver, FLOWS, clock) as two:
        ear = await one.start(hears, 40, id="ear")
        for number in range(40):
            await (one, two)[number % 2].start(tells, "ear", id=f"mouth {number}")
            if number % 8 == 0:
                await ear.evict()
        assert sorted(await ear.result()) == sorted(f"from mouth {number}" for number in range(40))
        for number in range(40):
            await one.handle(tells, f"mouth {number}").result()
    assert await left_behind(world.driver) == {}


class Appends(Counted):
    """Notes how many messages each commit appends to inboxes."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.appended: list[int] = []

    async def commit(self, batch: Batch, /) -> None:
        count = sum(isinstance(write, Append) and write.prefix.endswith(INBOX) for write in batch.writes)
        await super().commit(batch)
        if count:
            self.appended.append(count)


async def test_branches_that_send_to_the_same_one_at_once() -> None:
    """What one of them finds is changed by the other, in the same commit."""

    @workflow
    async def chorus(ctx: Context) -> list[str]:
        async def tell(ctx: Context, number: int) -> str:
            return await ctx.send("tell", "ear", "word", number)

        return await ctx.map("all", tell, range(20))

    driver = Appends(await open_driver("memory://"))
    async with running(driver, [hears, chorus]) as runtime:
        ear = await runtime.start(hears, 20, id="ear")
        assert set(await runtime.run(chorus)) <= {"accepted", "queued"}
        assert sorted(await ear.result()) == list(range(20))
    assert sum(driver.appended) == 20
    assert await left_behind(driver) == {}


async def test_what_branches_send_to_the_same_one_goes_in_one_commit() -> None:
    """While that one stands still."""

    @workflow
    async def chorus(ctx: Context) -> list[str]:
        async def tell(ctx: Context, number: int) -> str:
            return await ctx.send("tell", "ear", "word", number)

        return await ctx.map("all", tell, range(20))

    inside = await open_driver("memory://")
    async with Client(inside) as client:
        ear = await client.start(hears, 20, id="ear")
        driver = Appends(inside)
        async with running(FaultyDriver(driver, latency=0.001), [chorus]) as runtime:
            await runtime.run(chorus)
        # They are ready in one turn of the event loop.
        assert driver.appended == [20]
        async with running(driver, [hears]):
            assert sorted(await ear.result()) == list(range(20))


async def test_the_branches_reach_different_ones_in_one_commit() -> None:
    @workflow
    async def chorus(ctx: Context) -> list[str]:
        async def tell(ctx: Context, number: int) -> str:
            return await ctx.send("tell", f"ear {number}", "word", number)

        return await ctx.map("all", tell, range(20))

    inside = await open_driver("memory://")
    async with Client(inside) as client:
        for number in range(20):
            await client.start(hears, 1, id=f"ear {number}")
        driver = Appends(inside)
        async with running(FaultyDriver(driver, latency=0.001), [chorus]) as runtime:
            await runtime.run(chorus)
        # They are ready in one turn of the event loop.
        assert driver.appended == [20]
        async with running(driver, [hears]):
            heard = [await client.handle(hears, f"ear {number}").result() for number in range(20)]
    assert heard == [[number] for number in range(20)]


@pytest.mark.parametrize("target", ["", "\ud800", 7, None])
async def test_a_target_that_is_none_is_a_mistake(world: World, target: Any) -> None:
    @workflow
    async def tells_it(ctx: Context) -> None:
        await ctx.send("tell", target, "word")

    result = await world.run(tells_it)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert "send 'tell'" in result.error.message


async def test_one_that_loses_its_race_sends_nothing_any_more(world: World) -> None:
    await world.once(hears, 1, id="ear", mode="yield")

    @workflow
    async def races(ctx: Context) -> str:
        async def late(ctx: Context) -> None:
            await ctx.sleep("nap", 50)
            await ctx.send("tell", "ear", "word", "late")

        async def early(ctx: Context) -> str:
            return await ctx.send("tell", "ear", "word", "early")

        return (await ctx.race("race", {"late": late, "early": early})).winner

    assert (await world.run(races)).output == "early"
    assert (await world.run(hears, 1, id="ear")).output == ["early"]
    assert await left_behind(world.driver) == {}
