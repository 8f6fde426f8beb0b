"""Whoever waits for long is evicted, and can't be told from the others."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Log, Rows, naps, until_status
from tests.runtime.polling import settle, until
from tests.runtime.shifted import ByHand
from workflow_sdk import Context, Driver, Handle, Runtime, Status, Workflow, workflow
from workflow_sdk.testing import VirtualClock

pytestmark = [pytest.mark.law(6), pytest.mark.every_host]

log = Log()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()


@workflow
async def listens(ctx: Context) -> Any:
    """Notes each time its code is run, and waits for messages until it is told to stop."""
    log.append(ctx.instance_id)
    number = 0
    while await ctx.listen(f"wait {number}", "m") != "stop":
        number += 1
    return number


FLOWS: list[Workflow[Any, Any]] = [listens, naps]


async def until_resident(runtime: Runtime, count: int) -> None:
    """Return once it has so many in memory."""

    async def reached() -> bool:
        return runtime.resident == count

    await until(reached)


async def until_waiting(handle: Handle[Any], name: str) -> None:
    """Return once it waits for that."""

    async def waits() -> bool:
        return [wait.name for wait in (await handle.info()).waits] == [name]

    await until(waits)


async def test_idle_for_long(driver: Driver) -> None:
    clock = ByHand()
    async with Runtime(driver, workflows=FLOWS, max_idle=200, clock=clock) as runtime:
        began = clock.time()
        waits, sleeps = await runtime.start(listens, id="w"), await runtime.start(naps, 600, id="s")
        await until_status(waits, Status.WAITING)
        await until_status(sleeps, Status.SLEEPING)
        await settle(driver)
        clock.offset = 199
        await settle(driver)
        assert runtime.resident == 2
        assert [when for when, _ in (await Rows.of(driver)).alarms] == []
        clock.offset = 201
        await until_resident(runtime, 0)
        rows = await Rows.of(driver)
        assert (rows.leases, rows.claimed) == ([], [])
        ((when, id),) = rows.alarms
        assert id == "s"
        assert when - began == pytest.approx(600, abs=0.001), "due when it has slept enough"
        assert [(await handle.info()).status for handle in (waits, sleeps)] == [Status.WAITING, Status.SLEEPING]
        await waits.send("m", "stop")
        assert await waits.result(timeout=PATIENCE) == 0
        assert log == ["w", "w"]


async def test_a_sign_of_life_begins_the_time_anew(driver: Driver) -> None:
    clock = ByHand()
    async with Runtime(driver, workflows=FLOWS, max_idle=400, clock=clock) as runtime:
        lively, quiet = await runtime.start(listens, id="lively"), await runtime.start(listens, id="quiet")
        await until_status(lively, Status.WAITING)
        await until_status(quiet, Status.WAITING)
        await settle(driver)
        for number in range(7):
            clock.offset += 100
            await lively.send("m")
            await until_waiting(lively, f"wait {number + 1}")
            await settle(driver)  # from now on it is idle
        await until_resident(runtime, 1)
        assert [id for (id,) in (await Rows.of(driver)).leases] == ["lively"]
        clock.offset += 401
        await until_resident(runtime, 0)
        assert sorted(log) == ["lively", "quiet"]
        await quiet.send("m", "go on")
        await until_resident(runtime, 1)
        await until_waiting(quiet, "wait 1")
        assert sorted(log) == ["lively", "quiet", "quiet"]
        for handle in (lively, quiet):
            await handle.send("m", "stop")
        assert [await handle.result(timeout=PATIENCE) for handle in (lively, quiet)] == [7, 1]


async def test_not_idle_at_all(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS, max_idle=0) as runtime:
        handles = [await runtime.start(listens, id=str(number)) for number in range(10)]
        for handle in handles:
            await until_status(handle, Status.WAITING)
        await until_resident(runtime, 0)
        assert (await Rows.of(driver)).leases == []
        for text in ("go on", "stop"):
            async with anyio.create_task_group() as group:
                for handle in handles:
                    group.start_soon(handle.send, "m", text)
        assert [await handle.result(timeout=PATIENCE) for handle in handles] == [1] * 10
        assert await (await runtime.start(naps, 0.05)).result(timeout=PATIENCE) == "awake"
        await until_resident(runtime, 0)
        assert (await Rows.of(driver)).leases == []


async def test_on_a_virtual_clock(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not jump for the sake of this, but when it has, whoever was idle for long is evicted."""
    # However slow the machine is, it takes no time on this clock.
    monkeypatch.setattr("workflow_sdk.testing.clock.SHORT_SECONDS", PATIENCE)
    clock = VirtualClock()
    async with Runtime(driver, workflows=FLOWS, max_idle=60, clock=clock) as runtime:
        began = clock.time()
        handle = await runtime.start(listens, id="w")
        await until_status(handle, Status.WAITING)
        await settle(driver)
        assert (runtime.resident, clock.time()) == (1, began)
        clock.advance(60)
        await until_resident(runtime, 0)
        assert clock.time() - began == pytest.approx(60, abs=1)
        nap = await runtime.start(naps, 86_400, id="s")
        assert await nap.result(timeout=PATIENCE) == "awake"
        assert clock.time() - began == pytest.approx(86_460, abs=2)
        await handle.send("m", "stop")
        assert await handle.result(timeout=PATIENCE) == 0


async def test_a_nap_shorter_than_the_idle_time(driver: Driver) -> None:
    clock = VirtualClock()
    async with Runtime(driver, workflows=FLOWS, max_idle=60, clock=clock) as runtime:
        began = clock.time()
        assert await (await runtime.start(naps, 59)).result(timeout=PATIENCE) == "awake"
        assert clock.time() - began == pytest.approx(59, abs=1)
