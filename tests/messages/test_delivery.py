"""Sending a message from outside: where it goes, what the sender is told, and that none is lost."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Batch,
    ConflictError,
    Context,
    Delivery,
    Driver,
    InstanceNotFoundError,
    Status,
    send_message,
    workflow,
)
from workflow_sdk.driver import Clear
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.testing import FaultyDriver

pytestmark = pytest.mark.law(6)

KEYS = InstanceKeys("i")


@workflow
async def listens(ctx: Context) -> list[Any]:
    first = await ctx.listen("first")
    return [first, await ctx.listen("second", ["second", "third"])]


async def test_an_unknown_instance(world: World) -> None:
    with pytest.raises(InstanceNotFoundError, match="'nobody'"):
        await send_message(world.driver, "nobody", "m")
    assert await world.driver.scan(b"", b"\xff") == []


@pytest.mark.parametrize("fails", [False, True])
async def test_an_ended_instance_is_closed(world: World, fails: bool) -> None:
    @workflow
    async def ends(ctx: Context) -> None:
        if fails:
            raise ValueError("no")

    await world.run(ends)
    before = await world.driver.scan(b"", b"\xff")
    assert await send_message(world.driver, "i", "m", 1) is Delivery.CLOSED
    assert await world.driver.scan(b"", b"\xff") == before, "nothing is stored"


async def test_the_sender_is_told_whether_it_is_waited_for(world: World) -> None:
    await world.once(listens, mode="yield")
    assert await send_message(world.driver, "i", "second") is Delivery.QUEUED
    assert await send_message(world.driver, "i", "first") is Delivery.ACCEPTED


async def test_a_stuck_instance_queues(world: World) -> None:
    @workflow
    async def mistakes(ctx: Context) -> None:
        await ctx.listen("m", timeout=5, default=None)
        await ctx.sleep("", 1)

    assert (await world.run(mistakes)).status is Status.STUCK
    assert await send_message(world.driver, "i", "m") is Delivery.QUEUED


async def test_concurrent_senders_keep_their_own_order(world: World) -> None:
    @workflow
    async def collects(ctx: Context) -> list[tuple[int, int]]:
        return await ctx.listen_many("m", count=60)

    await world.once(collects, mode="yield")

    async def sender(number: int) -> None:
        for n in range(20):
            await world.send("m", (number, n))

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(sender, number)
    output = (await world.run(collects)).output
    assert output is not None
    for number in range(3):
        assert [n for who, n in output if who == number] == list(range(20))


async def test_senders_while_it_runs(world: World) -> None:
    @workflow
    async def collects(ctx: Context) -> list[int]:
        got: list[int] = []
        for number in range(30):
            got.append(await ctx.listen(f"w{number}", "m", type=int))
            await ctx.step(f"s{number}", lambda: None)
        return got

    outputs: list[Any] = []

    async def run() -> None:
        outputs.append((await world.once(collects, mode="live")).output)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await world.until_waiting()
            for number in range(30):
                await world.send("m", number)
    assert outputs == [list(range(30))]


class Meanwhile:
    """Hands everything on to a driver; just before the instance is evicted, it sends a message."""

    def __init__(self, world: World, *messages: tuple[str, Any]) -> None:
        self.driver: Driver = world.driver
        self.world = world
        self.left = list(messages)

    async def commit(self, batch: Batch, /) -> None:
        if self.left and Clear(KEYS.lease) in batch.writes:
            await self.world.send(*self.left.pop(0))
        await self.driver.commit(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)


async def test_a_message_that_comes_while_it_is_evicted_is_not_lost(world: World) -> None:
    statuses: list[Status] = []

    @workflow
    async def looks(ctx: Context) -> list[Any]:
        async def look() -> None:
            statuses.append((await world.history()).status)

        first = await ctx.listen("first")
        await ctx.step("look", look)
        await ctx.step("look again", look)
        return [first, await ctx.listen("second")]

    driver: Any = Meanwhile(world, ("first", 1), ("other", 2), ("second", 3))
    result = await world.once(looks, driver=driver, mode="yield")
    assert (result.status, result.output, driver.left) == (Status.COMPLETED, [1, 3], [])
    assert statuses[-1] is Status.RUNNING, "what goes on is not stored as waiting"


async def test_a_message_that_comes_between_two_waits(world: World) -> None:
    driver: Any = Meanwhile(world, ("third", 3))
    result = await world.once(listens, driver=driver, mode="yield")
    assert (result.status, result.waiting_for, driver.left) == (Status.WAITING, ["first"], [])
    await world.send("first", 1)
    assert (await world.run(listens)).output == [1, 3]


async def test_a_conflict_that_is_none_is_not_tried_for_ever(world: World) -> None:
    await world.once(listens, mode="yield")
    driver = FaultyDriver(world.driver, conflict_at=range(1, 100))
    with anyio.fail_after(PATIENCE):
        with pytest.raises(ConflictError):
            await send_message(driver, "i", "first")


async def test_an_instance_that_ends_meanwhile_is_closed(world: World) -> None:
    await world.once(listens, mode="yield")
    for message in ("first", "second"):
        await world.send(message)

    class Ends(Meanwhile):
        async def commit(self, batch: Batch, /) -> None:
            await self.world.run(listens)
            await self.driver.commit(batch)

    driver: Any = Ends(world)
    assert await send_message(driver, "i", "late") is Delivery.CLOSED
