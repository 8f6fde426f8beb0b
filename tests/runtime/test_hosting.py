"""A runtime is opened and closed by whoever likes: what runs in it is not tied to one of their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.patience import PATIENCE
from workflow_drivers.memory import MemoryDriver
from workflow_sdk import Context, Runtime, Status, workflow
from workflow_sdk.worker.hosting import Hosting, new_hosting

pytestmark = [
    pytest.mark.usefixtures("host"),
    pytest.mark.every_host,
    pytest.mark.law(17),
    pytest.mark.settings(loop=("asyncio", "uvloop")),
]


@workflow
async def waits(ctx: Context) -> str:
    return str(await ctx.listen("go"))


async def in_a_task_of_its_own(work: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.create_task(work)


async def test_another_task_closes_it_than_the_one_that_has_opened_it() -> None:
    before = asyncio.all_tasks()
    driver = MemoryDriver()
    stack = AsyncExitStack()
    runtime = await in_a_task_of_its_own(stack.enter_async_context(Runtime(driver, workflows=[waits])))
    try:
        handle = await runtime.start(waits, id="i")
        await handle.send("go", "there")
        assert await handle.result(timeout=PATIENCE) == "there"
    finally:
        await in_a_task_of_its_own(stack.aclose())
    assert asyncio.all_tasks() == before
    async with Runtime(driver, workflows=[waits]) as again:
        assert (await again.handle(waits, "i").info()).status is Status.COMPLETED


async def test_an_error_that_is_let_out_ends_the_block() -> None:
    hosting = new_hosting()
    group = await hosting.open()

    async def fails() -> None:
        raise KeyError("of a task")

    async def block() -> None:
        try:
            group.start_soon(fails)
            await asyncio.sleep(PATIENCE)
        finally:
            await hosting.close()

    with pytest.raises(ExceptionGroup) as caught:
        await block()
    assert caught.group_contains(KeyError)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling(), "it goes on as if nothing had been cancelled"
    await anyio.lowlevel.checkpoint()


async def turns() -> None:
    """Let everybody else go on for a while."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def test_an_error_is_logged_even_where_the_task_that_opened_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise KeyError("of a task")

    async def opened() -> Hosting:
        hosting = new_hosting()
        (await hosting.open()).start_soon(fails)
        return hosting

    hosting: Hosting = await in_a_task_of_its_own(opened())
    while not caplog.records:  # the last callback of a task sets no event
        await anyio.lowlevel.checkpoint()
    (record,) = caplog.records
    assert "has stopped" in record.message
    assert record.exc_info is not None
    with pytest.raises(ExceptionGroup) as caught:
        await hosting.close()
    assert caught.group_contains(KeyError)


async def test_who_closes_it_can_be_cancelled_and_all_has_ended_before() -> None:
    hosting = new_hosting()
    group = await hosting.open()
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def takes_its_time() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await may_end.wait()
            ended.set()

    group.start_soon(takes_its_time)
    await anyio.lowlevel.checkpoint()
    closing = asyncio.create_task(hosting.close())
    await turns()
    closing.cancel()
    await turns()
    assert not closing.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert ended.is_set()


async def test_one_that_is_opened_in_a_cancelled_scope_leaves_nothing() -> None:
    before = asyncio.all_tasks()
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with Runtime(MemoryDriver(), workflows=[waits]):
            pytest.fail("it was cancelled")
    assert asyncio.all_tasks() == before
