"""A runtime or client is opened by one block at a time, and by as many as one likes one after the other."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from workflow_sdk import Client, Context, DefinitionError, Runtime, Status, open_driver, workflow

pytestmark = [pytest.mark.law(17)]


async def double(number: int) -> int:
    return 2 * number


@workflow
async def doubles(ctx: Context, number: int) -> int:
    await ctx.listen("go")
    return await ctx.step("double", double, number)


@pytest.mark.every_host
@pytest.mark.usefixtures("host")
async def test_a_runtime_runs_what_there_is_each_time_it_is_opened() -> None:
    driver = await open_driver("memory://")
    runtime = Runtime(driver, workflows=[doubles])
    with anyio.fail_after(PATIENCE):
        async with runtime:
            await runtime.start(doubles, 1, id="before")
            await runtime.handle(doubles, "before").send("go")
            assert await runtime.handle(doubles, "before").result() == 2
            await runtime.start(doubles, 2, id="between")
        async with Client(driver) as client:
            await client.handle(doubles, "between").send("go")
        for number in (3, 4):
            async with runtime:
                assert await runtime.handle(doubles, "between").result() == 4
                handle = await runtime.start(doubles, number)
                await handle.send("go")
                assert await handle.result() == 2 * number
    assert runtime.resident == 0
    await driver.aclose()


def test_in_another_event_loop() -> None:
    """As a test client of a web framework does, which starts the application anew for every test."""
    runtime = Runtime("memory://", workflows=[doubles])

    async def once() -> int:
        with anyio.fail_after(PATIENCE):
            async with runtime:
                handle = await runtime.start(doubles, 21, id="i")
                assert (await handle.info()).status is not Status.COMPLETED
                await handle.send("go")
                return await handle.result()

    assert [asyncio.run(once()), asyncio.run(once())] == [42, 42]


@pytest.mark.every_host
@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("cls", [Runtime, Client])
async def test_two_blocks_at_once_are_a_mistake(cls: Any) -> None:
    """And the one that is open goes on."""
    driver = await open_driver("memory://")
    client: Client = Runtime(driver, workflows=[doubles]) if cls is Runtime else Client(driver)
    with anyio.fail_after(PATIENCE):
        async with client, Runtime(driver, workflows=[doubles]):
            with pytest.raises(DefinitionError, match="is open already; leave its block first"):
                await client.__aenter__()
            handle = await client.start(doubles, 21)
            await handle.send("go")
            assert await handle.result() == 42
    await driver.aclose()


async def test_one_that_could_not_be_opened_may_be_opened_later(tmp_path: Any) -> None:
    runtime = Runtime(f"sqlite:///{tmp_path}/missing/store.db", workflows=[doubles])
    for _ in range(2):
        with pytest.raises(Exception, match="missing"):
            await runtime.__aenter__()
    (tmp_path / "missing").mkdir()
    async with runtime:
        assert (await (await runtime.start(doubles, 1)).info()).status is not Status.FAILED
