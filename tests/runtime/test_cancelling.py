"""Cancelling from outside: it wins over whatever is on its way, and is done once it has returned."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.interleaving import Interleaved
from tests.runtime.parts import Log, Rows, Stop, until_status
from tests.runtime.polling import settle, until
from tests.settings import Host
from workflow_sdk import (
    Client,
    Context,
    Driver,
    EntryStatus,
    Handle,
    InstanceStateError,
    Runtime,
    Status,
    WorkflowCancelledError,
    open_driver,
    run_workflow,
    workflow,
)

pytestmark = pytest.mark.law(9)

log = Log()


async def undo(what: str) -> None:
    """A rollback."""
    log.append(f"undo {what}")


@workflow
async def books(ctx: Context, then: str) -> str:
    """Does two things that can be undone, and then waits, sleeps, works or ends."""
    for what in ("flight", "hotel"):
        await ctx.step(what, log.note, what, rollback=undo)
    if then == "waits":
        await ctx.listen("m")
    if then == "sleeps":
        await ctx.sleep("nap", 600)
    if then == "works":
        await ctx.step("work", stops[0].here)
    return "done"


stops = [Stop()]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    stops[0] = Stop()


async def expect_cancelled(handle: Handle[Any]) -> None:
    """It is over, as the world sees it."""
    with pytest.raises(WorkflowCancelledError) as caught:
        await handle.result(timeout=PATIENCE)
    error = caught.value.error
    assert error is not None
    assert (caught.value.status, error.kind) == ("cancelled", "cancelled")
    info = await handle.info()
    assert (info.status, info.waits, info.wake_at, info.output) == (Status.CANCELLED, [], None, None)


async def reach(handle: Handle[Any], then: str) -> None:
    """Return once the instance is there."""
    if then == "works":
        with anyio.fail_after(PATIENCE):
            await stops[0].reached.wait()
    else:
        await until_status(handle, Status.WAITING if then == "waits" else Status.SLEEPING)


@pytest.mark.parametrize("max_resident", [0, 10])
@pytest.mark.parametrize("rollback", [False, True])
@pytest.mark.parametrize("then", ["waits", "sleeps", "works"])
async def test_whatever_it_does(driver: Driver, then: str, rollback: bool, max_resident: int) -> None:
    async with Runtime(driver, workflows=[books], max_resident=max_resident) as runtime:
        handle = await runtime.start(books, then, id="i")
        await reach(handle, then)
        await handle.cancel(rollback=rollback)
        await expect_cancelled(handle)
        await handle.cancel(rollback=rollback)
        await handle.cancel(rollback=not rollback)
        await expect_cancelled(handle)
        assert log == ["flight", "hotel", *(["undo hotel", "undo flight"] if rollback else [])]
        history = await handle.history()
        progress = {item.path: item.progress for item in history.compensations}
        assert set(progress.values()) == ({"done"} if rollback else {"open"})
        if then == "works":
            assert "work" not in history or history["work"].status is not EntryStatus.COMPLETED
    rows = await Rows.of(driver)
    assert (rows.leases, rows.alarms, rows.workers) == ([], [], [])


async def test_a_running_step_is_cancelled_soon(driver: Driver) -> None:
    ended = anyio.Event()

    @workflow
    async def hangs(ctx: Context) -> None:
        async def hang() -> None:
            try:
                stops[0].reached.set()
                await anyio.sleep_forever()
            finally:
                ended.set()

        await ctx.step("hang", hang)

    async with Runtime(driver, workflows=[hangs]) as runtime:
        handle = await runtime.start(hangs)
        await stops[0].reached.wait()
        await handle.cancel()
        with anyio.fail_after(PATIENCE):
            await ended.wait()
        await expect_cancelled(handle)


async def test_before_it_has_begun(driver: Driver) -> None:
    async with Client(driver) as client:
        handle = await client.start(books, "waits")
        await handle.cancel(rollback=True)
        await expect_cancelled(handle)
        async with Runtime(driver, workflows=[books]):
            await settle(driver)
        await expect_cancelled(handle)
    assert (log, (await Rows.of(driver)).alarms) == ([], [])


async def test_an_instance_of_a_stranger(driver: Driver) -> None:
    """A run without a runtime has it; the client only has the store. The run ends with a result."""
    statuses: list[Status] = []

    async def run() -> None:
        statuses.append((await run_workflow(books, "waits", driver=driver, instance_id="i", mode="live")).status)

    async with Client(driver) as client, anyio.create_task_group() as group:
        handle = client.handle(books, "i")
        group.start_soon(run)

        async def begun() -> bool:
            return bool(log[1:])

        await until(begun)
        await until_status(handle, Status.WAITING)
        await handle.cancel()
        await expect_cancelled(handle)
    assert statuses == [Status.CANCELLED]


async def test_what_has_ended_stays_as_it_ended(driver: Driver) -> None:
    async with Runtime(driver, workflows=[books]) as runtime:
        handle = await runtime.start(books, "ends")
        assert await handle.result(timeout=PATIENCE) == "done"
        with pytest.raises(InstanceStateError, match="is completed"):
            await handle.cancel(rollback=True)
        assert await handle.result() == "done"


async def test_while_it_is_cancelled_with_a_rollback(driver: Driver) -> None:
    """The second cancel changes nothing, with or without a rollback of its own."""
    slow = Stop()

    async def undo_slowly(result: object) -> None:
        await slow.here()
        log.append("undone")

    @workflow
    async def one(ctx: Context) -> None:
        await ctx.step("do", lambda: 1, rollback=undo_slowly)
        await ctx.listen("m")

    async with Runtime(driver, workflows=[one]) as runtime:
        handle = await runtime.start(one)
        await until_status(handle, Status.WAITING)
        await handle.cancel(rollback=True)
        assert (await handle.info()).status is Status.ROLLING_BACK
        with anyio.fail_after(PATIENCE):
            await slow.reached.wait()
        await handle.cancel()
        await handle.cancel(rollback=True)
        slow.go_on.set()
        await expect_cancelled(handle)
    assert log == ["undone"]


@pytest.mark.parametrize("rollback", [False, True])
@pytest.mark.parametrize("then", ["waits", "ends"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_it_wins_over_any_flush(host: Host, then: str, rollback: bool, after: bool) -> None:
    """Cancelled before, or after, every call to the store."""
    number, was_late = 0, False
    while not was_late and number < 60:
        number += 1
        log.clear()
        memory = await open_driver("memory://")
        outcomes: list[str] = []
        async with Client(memory) as client:
            handle = await client.start(books, then, id="i")

            async def cancel(handle: Handle[str] = handle, outcomes: list[str] = outcomes) -> None:
                try:
                    await handle.cancel(rollback=rollback)
                    outcomes.append("cancelled")
                except InstanceStateError:
                    outcomes.append("completed")

            driver = Interleaved(memory, {number: cancel}, after=after)
            async with Runtime(driver, workflows=[books]):
                if then == "ends":
                    await until_status(handle, Status.COMPLETED, Status.CANCELLED)
                else:
                    await until_status(handle, Status.WAITING, Status.CANCELLED)
                    await settle(memory)
                if not outcomes:
                    was_late = True
                    await cancel()
                if outcomes == ["cancelled"]:
                    await expect_cancelled(handle)
                    await check_undone(handle, rollback)
            assert (await handle.info()).status == outcomes[0], "it stays so"
        rows = await Rows.of(memory)
        assert (rows.leases, rows.alarms, rows.workers) == ([], [], [])
        await memory.aclose()
    assert number > 10


async def check_undone(handle: Handle[str], rollback: bool) -> None:
    """What was done and recorded is undone, if that was asked for, and once."""
    history = await handle.history()
    recorded = [item.path for item in history.compensations]
    undone = [line.removeprefix("undo ") for line in log if line.startswith("undo ")]
    assert undone == (sorted(recorded, reverse=True) if rollback else [])
