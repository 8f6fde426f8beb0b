"""Instances that have ended are forgotten when their time is over."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest

from tests.runtime.polling import until
from workflow_sdk import Client, Context, DefinitionError, InstanceNotFoundError, Runtime, Status, workflow
from workflow_sdk.driver import Driver
from workflow_sdk.rows.keys import ROOT
from workflow_sdk.rows.location import subtree
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(21)

HOUR = 3600.0


@workflow
async def quick(ctx: Context, order: int = 0) -> int:
    ctx.reference = "r"
    if order < 0:
        raise ValueError("no such order")
    return order


@workflow(retention=timedelta(days=2))
async def kept(ctx: Context) -> str:
    return await ctx.listen("go", type=str)


async def pass_time(clock: VirtualClock, duration: float) -> None:
    """Let time pass, and whoever waits for it do what it has to."""
    clock.advance(duration)
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


async def ids(client: Client) -> list[str]:
    return [info.id for info in (await client.list()).items]


async def until_left(client: Client, *left: str) -> None:
    async def is_so() -> bool:
        return await ids(client) == [*left]

    await until(is_so)


async def rows(driver: Driver) -> list[bytes]:
    """All there is in the store, but for what is of workers, and signals."""
    found = [key for key, _ in await driver.scan(*subtree(ROOT))]
    kept = [b"\x15" + bytes([part]) for part in (1, 3, 5, 12, 13, 15)]
    return [key for key in found if key[len(ROOT) : len(ROOT) + 2] in kept]


async def test_what_has_ended_is_forgotten_with_everything_about_it(driver: Driver) -> None:
    clock = VirtualClock()
    async with Runtime(driver, workflows=[quick, kept], clock=clock, retention=HOUR) as runtime:
        assert await (await runtime.start(quick, 1, id="a")).result() == 1
        with pytest.raises(Exception, match="no such order"):
            await (await runtime.start(quick, -1, id="b")).result()
        late = await runtime.start(kept, id="c")
        await late.send("go", "now")
        assert await late.result() == "now"
        await pass_time(clock, HOUR - 1)
        assert await ids(runtime) == ["a", "b", "c"]
        await pass_time(clock, 60)
        await until_left(runtime, "c")
        with pytest.raises(InstanceNotFoundError):
            await runtime.handle(quick, "a").info()
        await pass_time(clock, 48 * HOUR)
        await until_left(runtime)
        assert await rows(driver) == []


async def test_what_runs_again_is_kept_and_two_workers_are_no_harm(driver: Driver) -> None:
    clock = VirtualClock()
    async with (
        Runtime(driver, workflows=[quick], clock=clock, retention=HOUR) as runtime,
        Runtime(driver, workflows=[quick], clock=clock, retention=HOUR),
    ):
        handle = await runtime.start(quick, 7, id="a")
        assert await handle.result() == 7
        await pass_time(clock, HOUR / 2)
        await handle.restart_from()
        assert await handle.result() == 7
        await pass_time(clock, HOUR / 2 + 40)
        assert (await handle.info()).status is Status.COMPLETED, "its time begins with its end"
        await pass_time(clock, HOUR)
        await until_left(runtime)


async def test_a_cancelled_one_is_forgotten_too(driver: Driver) -> None:
    clock = VirtualClock()
    async with Client(driver, clock=clock) as client:
        handle = await client.start(kept, id="a")
        await handle.cancel()
        async with Runtime(driver, workflows=[kept], clock=clock):
            await pass_time(clock, 47 * HOUR)
            assert await ids(client) == ["a"]
            await pass_time(clock, 2 * HOUR)
            await until_left(client)


@workflow
async def parent(ctx: Context) -> None:
    await ctx.child("child", kept_elsewhere)


@workflow
async def kept_elsewhere(ctx: Context) -> None:
    """Of a runtime that is not there."""


async def test_a_child_that_nobody_ran_is_forgotten_like_its_parent(driver: Driver) -> None:
    clock = VirtualClock()
    async with Runtime(driver, workflows=[parent], clock=clock, retention=HOUR) as runtime:
        handle = await runtime.start(parent, id="a")
        await until_left(runtime, "a", "a/child")
        await handle.cancel()
        await pass_time(clock, HOUR + 60)
        await until_left(runtime)


async def test_without_retention_it_is_kept(driver: Driver) -> None:
    clock = VirtualClock()
    async with Runtime(driver, workflows=[quick], clock=clock) as runtime:
        assert await (await runtime.start(quick, 1, id="a")).result() == 1
        await pass_time(clock, 10_000 * HOUR)
        assert await ids(runtime) == ["a"]


def test_a_retention_is_a_duration() -> None:
    with pytest.raises(DefinitionError, match="retention"):
        Runtime("memory://", workflows=[quick], retention=-1)
    with pytest.raises(DefinitionError, match="retention"):
        workflow(retention=-1.0)
