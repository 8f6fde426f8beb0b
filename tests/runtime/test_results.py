"""Waiting for how an instance ends, where it runs: that costs nothing, and survives whatever happens to it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.counting import Counting
from tests.runtime.parts import Stop, until_status
from tests.runtime.polling import settle, until
from workflow_sdk import (
    Context,
    Driver,
    Handle,
    InstanceNotFoundError,
    Runtime,
    Status,
    Workflow,
    WorkflowCancelledError,
    WorkflowFailedError,
    workflow,
)

stop = [Stop()]
fails = [True]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    stop[0] = Stop()
    fails[0] = True


@workflow
async def listens(ctx: Context) -> Any:
    """Waits for a message."""
    return await ctx.listen("m")


@workflow
async def fails_first(ctx: Context) -> str:
    """Fails as long as it is told to."""
    await stop[0].here()
    if fails[0]:
        raise ValueError("not yet")
    return "at last"


FLOWS: list[Workflow[Any, Any]] = [listens, fails_first]


async def wait_into(handle: Handle[Any], got: list[Any]) -> None:
    """Wait, and note the output."""
    got.append(await handle.result(timeout=PATIENCE))


async def test_it_asks_the_store_for_nothing(driver: Driver) -> None:
    counting, got = Counting(driver), list[Any]()
    async with Runtime(counting, workflows=FLOWS, lease_ttl=3600) as runtime, anyio.create_task_group() as group:
        handle = await runtime.start(listens, id="i")
        await until_status(handle, Status.WAITING)
        await counting.until_quiet()
        before = counting.calls
        for _ in range(100):
            group.start_soon(wait_into, handle, got)
        await counting.until_quiet()
        assert counting.calls == before
        await handle.send("m", "all of you")

        async def all_have_it() -> bool:
            return len(got) == 100

        await until(all_have_it)
        assert counting.calls - before <= 10, "the message, and the end"
        assert got == ["all of you"] * 100


async def test_waiters_that_give_up(driver: Driver) -> None:
    """The others have it all the same, and the instance does not notice."""
    got: list[Any] = []
    async with Runtime(driver, workflows=FLOWS) as runtime, anyio.create_task_group() as group:
        handle = await runtime.start(listens, id="i")
        await until_status(handle, Status.WAITING)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await handle.result(timeout=0.01)
        async with anyio.create_task_group() as giving_up:
            for _ in range(5):
                giving_up.start_soon(wait_into, handle, [])
                group.start_soon(wait_into, handle, got)
            await settle(driver)
            giving_up.cancel_scope.cancel()
        assert runtime.resident == 1
        await handle.send("m", 1)
        assert await handle.result(timeout=PATIENCE) == 1
    assert got == [1] * 5


async def test_evicted_and_ended_by_another(driver: Driver) -> None:
    got: list[Any] = []
    async with Runtime(driver, workflows=FLOWS) as one:
        handle = await one.start(listens, id="i")
        await until_status(handle, Status.WAITING)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(wait_into, handle, got)
            await settle(driver)
            await handle.evict()

            async def gone() -> bool:
                return one.resident == 0

            await until(gone)
            assert got == []
            # Whichever of them takes it.
            async with Runtime(driver, workflows=FLOWS) as two:
                await two.handle(listens, "i").send("m", 7)
                assert await two.handle(listens, "i").result(timeout=PATIENCE) == 7
        assert got == [7] * 3
        assert await handle.result(timeout=PATIENCE) == 7


async def test_evicted_again_and_again(driver: Driver) -> None:
    got: list[Any] = []
    async with Runtime(driver, workflows=FLOWS, max_resident=0) as runtime, anyio.create_task_group() as group:
        handles = [await runtime.start(listens, id=str(number)) for number in range(10)]
        for handle in handles:
            group.start_soon(wait_into, handle, got)
            await until_status(handle, Status.WAITING)
        for number, handle in enumerate(handles):
            await handle.wake()
            await handle.send("m", number)
    assert sorted(got) == list(range(10))


async def test_shut_down_while_waited_for(driver: Driver) -> None:
    """The wait goes on from the store, as long as that is open."""
    got: list[Any] = []
    async with anyio.create_task_group() as group, Runtime(driver, workflows=FLOWS) as two:
        async with Runtime(driver, workflows=FLOWS) as one:
            handle = await one.start(listens, id="i")
            await until_status(handle, Status.WAITING)
            group.start_soon(wait_into, handle, got)
            await settle(driver)
        await two.handle(listens, "i").send("m", "later")
        assert await two.handle(listens, "i").result(timeout=PATIENCE) == "later"
    assert got == ["later"]


async def test_failed_and_recovered(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(fails_first, id="i")
        stop[0].go_on.set()
        for _ in range(2):
            with pytest.raises(WorkflowFailedError, match="not yet"):
                await handle.result(timeout=PATIENCE)
        stop[0] = Stop()
        await handle.recover()
        got: list[Any] = []
        async with anyio.create_task_group() as group:
            group.start_soon(wait_into, handle, got)
            with anyio.fail_after(PATIENCE):
                await stop[0].reached.wait()
            fails[0] = False
            stop[0].go_on.set()
        assert got == ["at last"]


@pytest.mark.parametrize("how", ["cancel", "restart", "delete"])
async def test_what_people_decide(driver: Driver, how: str) -> None:
    """Those who wait are told, or go on waiting."""
    got: list[Any] = []
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(listens, id="i")
        await until_status(handle, Status.WAITING)

        async def wait() -> None:
            try:
                got.append(await handle.result(timeout=PATIENCE))
            except (WorkflowCancelledError, InstanceNotFoundError) as error:
                got.append(type(error))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(wait)
            await settle(driver)
            if how == "restart":
                await handle.restart_from()
                await until_status(handle, Status.WAITING)
                assert got == []
                await handle.send("m", "again")
            else:
                await handle.cancel()
                if how == "delete":
                    await runtime.delete("i")
        if how == "delete":
            assert set(got) <= {WorkflowCancelledError, InstanceNotFoundError}
            assert len(got) == 3
        else:
            assert got == ["again" if how == "restart" else WorkflowCancelledError] * 3

        async def gone() -> bool:
            return runtime.resident == 0

        await until(gone)
