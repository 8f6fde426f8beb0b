"""A runtime leaves alone what it was not given the code of."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.counting import Counting
from tests.runtime.mortal import TTL, Mortal
from tests.runtime.parts import Rows, doubles, naps, until_status
from tests.runtime.polling import settle
from tests.runtime.shifted import ByHand
from workflow_sdk import Client, Context, Driver, Runtime, Status, workflow

pytestmark = [pytest.mark.law(18), pytest.mark.every_host]


@workflow
async def listens(ctx: Context) -> Any:
    """Waits for a message."""
    return await ctx.listen("m")


async def test_it_waits_for_someone_who_knows_it(driver: Driver) -> None:
    async with Client(driver) as client:
        handle = await client.start("listens", id="i")
        async with Runtime(driver, workflows=[doubles]) as runtime:
            assert await runtime.run(doubles, 1) == 2
            await settle(driver)
            info = await handle.info()
            assert (info.status, info.error) == (Status.PENDING, None)
            assert [info.id for info in (await runtime.list(workflow="listens")).items] == ["i"]
            assert (await Rows.of(driver)).leases == []
            async with Runtime(driver, workflows=[listens]):
                await until_status(handle, Status.WAITING)
            await handle.send("m", 1)
            await settle(driver)
            assert (await handle.info()).status is Status.WAITING
        async with Runtime(driver, workflows=[listens]):
            assert await handle.result(timeout=PATIENCE) == 1


async def test_many_of_them_are_not_in_the_way(driver: Driver) -> None:
    async with Client(driver) as client, Runtime(driver, workflows=[doubles], concurrency=3) as runtime:
        for number in range(20):
            await client.start(naps, number)
        for number in range(10):
            assert (
                await runtime.handle(doubles, (await runtime.start(doubles, number)).id).result(timeout=PATIENCE)
                == 2 * number
            )
        assert len((await client.list(status=Status.PENDING)).items) == 20


async def test_what_a_dead_worker_has_left(driver: Driver) -> None:
    """It stays where it is until someone comes who knows it."""
    clock = ByHand()
    async with Client(driver) as client, anyio.create_task_group() as group:
        mortal = Mortal(driver, [naps], clock)
        group.start_soon(mortal.live)
        await mortal.is_open.wait()
        handle = await mortal.runtime.start(naps, 60, id="i")
        await until_status(handle, Status.SLEEPING)
        mortal.die()
        counting = Counting(driver)
        async with Runtime(counting, workflows=[doubles], lease_ttl=TTL, clock=clock):
            await counting.until_quiet()
            clock.offset = 61
            await clock.go_on(2 * TTL, TTL / 3, driver)
            await counting.until_quiet()
            assert (await client.handle(naps, "i").info()).status is Status.SLEEPING
            async with Runtime(driver, workflows=[naps], lease_ttl=TTL, clock=clock):
                await settle(driver)
                # Who has come just now watches for a lease before it takes anybody for dead.
                await clock.go_on(2 * TTL, TTL / 3, driver)
                assert await client.handle(naps, "i").result(timeout=PATIENCE) == "awake"
