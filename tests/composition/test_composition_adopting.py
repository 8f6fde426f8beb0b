"""A child that others have started: those who begin to wait do not disturb it, and all of them are told of its end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.composition.composing import left_behind, running, until_status
from tests.runtime.interleaving import Interleaved
from tests.runtime.parts import Stop
from workflow_sdk import (
    ChildFailedError,
    Client,
    Context,
    Driver,
    InstanceNotFoundError,
    InstanceStateError,
    Status,
    open_driver,
    workflow,
)
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(1)


async def give(value: Any) -> Any:
    return value


@workflow
async def brief(ctx: Context) -> str:
    await ctx.step("one", give, 1)
    await ctx.sleep("nap", 5)
    await ctx.step("two", give, 2)
    return "done"


@workflow
async def adopts(ctx: Context) -> str:
    try:
        return await ctx.child("kid", brief, id="kid")
    except ChildFailedError as error:
        return error.error.kind


async def test_what_it_is_doing_goes_on() -> None:
    stop = Stop()
    ran: list[str] = []

    async def charge() -> str:
        ran.append("charge")
        await stop.here()
        return "charged"

    @workflow
    async def charges(ctx: Context) -> str:
        return await ctx.step(charge)

    @workflow
    async def asks(ctx: Context) -> str:
        return await ctx.child("kid", charges, id="kid")

    driver = await open_driver("memory://")
    async with running(driver, [charges, asks]) as runtime:
        kid = await runtime.start(charges, id="kid")
        await stop.reached.wait()
        parents = [await runtime.start(asks) for _ in range(2)]
        for parent in parents:
            await until_status(parent, Status.WAITING)
        stop.go_on.set()
        assert [await one.result() for one in (kid, *parents)] == ["charged"] * 3
    assert ran == ["charge"]
    assert await left_behind(driver) == {}


async def test_adopted_at_any_moment_of_its_life() -> None:
    """Between any two calls of the store: the parent is told of its end, or finds it ended."""
    for after in (False, True):
        number = 0
        while True:
            number += 1
            inside = await open_driver("memory://")
            clock = VirtualClock(quiet=10)
            driver = Interleaved(inside, {}, after=after)
            async with running(inside, [adopts], clock) as parents:

                async def adopt(parents: Any = parents) -> None:
                    await parents.start(adopts, id="p")
                    for _ in range(40):
                        await anyio.lowlevel.checkpoint()

                driver.left[number] = adopt
                async with running(driver, [brief], clock) as children:
                    await children.start(brief, id="kid")
                    assert await children.handle(brief, "kid").result() == "done"
                if not driver.left:
                    assert await parents.handle(adopts, "p").result() == "done"
            async with running(inside, [brief, adopts], clock):
                pass
            assert await left_behind(inside) == {}, (after, number)
            if driver.left:
                break
        assert number > 20


async def test_adopted_while_it_is_cancelled() -> None:
    for number in range(1, 60):
        inside = await open_driver("memory://")
        clock = VirtualClock(quiet=10)

        async def cancel(inside: Driver = inside, clock: VirtualClock = clock) -> None:
            async with Client(inside, clock=clock) as client:
                with suppress(InstanceNotFoundError, InstanceStateError):
                    await client.handle(brief, "kid").cancel()

        driver = Interleaved(inside, {number: cancel})
        async with running(driver, [adopts], clock) as parents, running(inside, [brief], clock):
            assert await parents.run(adopts, id="p") in ("done", "cancelled")
        assert await left_behind(inside) == {}, number


async def test_started_by_many_at_once() -> None:
    """There is one of it, and all have its result."""

    @workflow
    async def asks(ctx: Context, number: int) -> list[str]:
        async def branch(ctx: Context, number: int) -> str:
            return await ctx.child("kid", brief, id="kid")

        return await ctx.map("all", branch, range(3))

    driver = await open_driver("memory://")
    clock = VirtualClock(quiet=10)
    async with running(driver, [brief, asks], clock) as one, running(driver, [brief, asks], clock) as two:
        handles = [await (one, two)[number % 2].start(asks, number) for number in range(10)]
        assert [await handle.result() for handle in handles] == [["done"] * 3] * 10
        assert len((await one.list(workflow="brief")).items) == 1
    assert await left_behind(driver) == {}


async def test_one_that_is_deleted_while_it_is_adopted_is_started_anew() -> None:
    for number in range(1, 30):
        inside = await open_driver("memory://")
        clock = VirtualClock(quiet=10)
        async with Client(inside, clock=clock) as client:
            await client.start(brief, id="kid")
            async with running(inside, [brief], clock):
                await client.handle(brief, "kid").result()

            async def delete(client: Client = client) -> None:
                with suppress(InstanceNotFoundError, InstanceStateError):
                    await client.delete("kid")

            driver = Interleaved(inside, {number: delete})
            async with running(driver, [adopts], clock) as parents, running(inside, [brief], clock):
                assert await parents.run(adopts, id="p") == "done"
        assert await left_behind(inside) == {}, number
