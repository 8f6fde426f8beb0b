"""A runtime that looks away for too long is buried by the others. It lives, and finds its way back."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.rows import about
from tests.runtime.counting import Counting
from tests.runtime.mortal import TTL, Mortal
from tests.runtime.parts import Log, Rows, Stop, doubles, until_status
from tests.runtime.polling import settle, until
from tests.runtime.shifted import ByHand, Shifted
from workflow_sdk import (
    Batch,
    Client,
    Context,
    Driver,
    Handle,
    Runtime,
    Status,
    StorageError,
    Workflow,
    WorkflowStuckError,
    workflow,
)
from workflow_sdk.changes.workers import Heartbeat
from workflow_sdk.rows.instance import Lease
from workflow_sdk.rows.keys import InstanceKeys, WorkerKeys
from workflow_sdk.testing import VirtualClock

pytestmark = [pytest.mark.law(10, 20), pytest.mark.every_host]

log = Log()
stop = [Stop()]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    stop[0] = Stop()


@workflow
async def works(ctx: Context) -> str:
    """A step, one that takes as long as it is told to, and another."""

    async def middle() -> str:
        log.append("b")
        await stop[0].here()
        return "b"

    await ctx.step("a", log.note, "a")
    await ctx.step("b", middle)
    return str(await ctx.step("c", log.note, "c"))


@workflow
async def listens(ctx: Context) -> Any:
    """Waits for two messages."""
    return [await ctx.listen("m"), await ctx.listen("n", "m")]


FLOWS: list[Workflow[Any, Any]] = [works, listens, doubles]


class Stalling:
    """A driver that holds up whatever is written through it while it is told to."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.go_on = anyio.Event()
        self.go_on.set()

    def stall(self) -> None:
        """From now on."""
        self.go_on = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    async def get(self, key: bytes, /) -> bytes | None:
        """As the driver."""
        await self.go_on.wait()
        return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """As the driver."""
        await self.go_on.wait()
        return await self.driver.scan(begin, end, limit=limit, reverse=reverse)

    async def commit(self, batch: Batch, /) -> None:
        """As the driver."""
        await self.go_on.wait()
        await self.driver.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """As the driver."""
        await self.driver.changed(key, since)
        await self.go_on.wait()

    async def aclose(self) -> None:
        """As the driver."""


async def lease_of(driver: Driver, id: str) -> str | None:
    """Which worker has it."""
    raw = await driver.get(InstanceKeys(id).lease)
    return None if raw is None else Lease.unpack(raw).worker


async def until_lost(driver: Driver, id: str, worker: str | None) -> None:
    """Return once somebody else has it, or nobody."""

    async def lost() -> bool:
        return await lease_of(driver, id) != worker

    await until(lost)


async def bury(driver: Driver, worker: str) -> None:
    """Have a worker be taken for dead: what it said of itself is long ago."""
    batch = Batch()
    batch.set(WorkerKeys(worker).heartbeat, Heartbeat(1.0, 1.0, 1).pack())
    await driver.commit(batch)


async def test_stalled_for_longer_than_its_lease(driver: Driver) -> None:
    """What it had is run by another; when it goes on it drops it, and who waits in its process has the output."""
    stalling: Any = Stalling(driver)
    results: list[Any] = []

    async def wait_for(handle: Handle[Any]) -> None:
        results.append(await handle.result(timeout=PATIENCE))

    clock = ByHand()
    async with Runtime(stalling, workflows=FLOWS, clock=clock) as one:
        busy, waiting = await one.start(works, id="busy"), await one.start(listens, id="waiting")
        await until_status(waiting, Status.WAITING)
        await stop[0].reached.wait()
        older, stop[0] = stop[0], Stop()
        stop[0].go_on.set()
        me = await lease_of(driver, "busy")
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for, busy)
            group.start_soon(wait_for, waiting)
            await settle(driver)
            stalling.stall()
            async with Runtime(driver, workflows=FLOWS, clock=clock) as two:
                await settle(driver)
                await clock.go_on(60, 3, driver)
                for id in ("busy", "waiting"):
                    await until_lost(driver, id, me)
                assert await two.handle(works, "busy").result(timeout=PATIENCE) == "c"
                await two.handle(listens, "waiting").send("m", 1)
                await two.handle(listens, "waiting").send("m", 2)
                assert await two.handle(listens, "waiting").result(timeout=PATIENCE) == [1, 2]
                stalling.go_on.set()
                older.go_on.set()

                async def dropped() -> bool:
                    return one.resident == 0

                await until(dropped)
        assert sorted(results, key=str) == [[1, 2], "c"]
        assert log == ["a", "b", "b", "c"]
        assert await one.run(doubles, 4) == 8, "it goes on"
    rows = await Rows.of(driver)
    assert (rows.leases, rows.alarms, rows.workers) == ([], [], [])


async def test_only_its_heartbeat_is_gone(driver: Driver) -> None:
    """Nobody has taken anything over yet: it keeps what it has, and says that it lives."""
    clock = ByHand()
    async with Runtime(driver, workflows=FLOWS, clock=clock) as one:
        handle = await one.start(listens, id="i")
        await until_status(handle, Status.WAITING)
        me = await lease_of(driver, "i")
        assert me is not None
        batch = Batch()
        batch.clear(WorkerKeys(me).heartbeat)
        await driver.commit(batch)
        await settle(driver)  # it has begun to count the time to its next heartbeat
        clock.offset = 9

        async def beats() -> bool:
            return await driver.get(WorkerKeys(me).heartbeat) is not None

        await until(beats)
        assert one.resident == 1
        await handle.send("m", 1)
        await handle.send("m", 2)
        assert await handle.result(timeout=PATIENCE) == [1, 2]


async def test_a_clock_that_is_ahead(driver: Driver) -> None:
    """It takes nobody for dead, and everything is right."""
    stop[0].go_on.set()
    async with Runtime(driver, workflows=FLOWS, lease_ttl=30) as one:
        waiting = await one.start(listens, id="waiting")
        await until_status(waiting, Status.WAITING)
        me = await lease_of(driver, "waiting")
        async with Runtime(driver, workflows=FLOWS, lease_ttl=0.3, clock=Shifted(60.0)) as ahead:
            handles: list[Handle[Any]] = [
                await runtime.start(works, id=f"{runtime is one} {number}")
                for number in range(5)
                for runtime in (one, ahead)
            ]
            assert [await handle.result(timeout=PATIENCE) for handle in handles] == ["c"] * 10
            assert await lease_of(driver, "waiting") == me
            async with anyio.create_task_group() as group:
                for number in (1, 2):
                    await waiting.send("m", number)
                group.start_soon(waiting.result, PATIENCE)
            assert await ahead.handle(listens, "waiting").result(timeout=PATIENCE) == [1, 2]
            assert log.count("c") == 10

            async def empty() -> bool:
                return one.resident == ahead.resident == 0

            await until(empty)
    rows = await Rows.of(driver)
    assert rows.leases == []


async def test_what_is_due_and_what_was_left_at_once(driver: Driver) -> None:
    """Both wait for a turn for the one place there is."""
    clock = ByHand()
    async with Client(driver, clock=clock) as client, anyio.create_task_group() as group:
        mortal = Mortal(driver, FLOWS, clock)
        group.start_soon(mortal.live)
        await mortal.is_open.wait()
        left = [await mortal.runtime.start(listens, id=f"left {number}") for number in range(5)]
        for handle in left:
            await until_status(handle, Status.WAITING)
        counting = Counting(driver)
        async with Runtime(counting, workflows=FLOWS, concurrency=1, clock=clock):
            busy = await client.start(works, id="busy")
            await stop[0].reached.wait()
            due = [await client.start(doubles, number, id=f"due {number}") for number in range(20)]
            mortal.die()
            await counting.until_quiet()
            scans = counting.scans
            await clock.go_on(2 * TTL, TTL / 3, driver)
            await counting.until_quiet()
            assert counting.scans > scans, "it has found what was left"
            stop[0].go_on.set()
            assert await busy.result(timeout=PATIENCE) == "c"
            assert [await handle.result(timeout=PATIENCE) for handle in due] == [2 * number for number in range(20)]
            for number in range(5):
                inherited = client.handle(listens, f"left {number}")
                await inherited.send("m", 1)
                await inherited.send("m", 2)
                assert await inherited.result(timeout=PATIENCE) == [1, 2]
            await mortal.until_forgotten(driver)
    assert (await Rows.of(driver)).workers == []


class Failing:
    """A driver that refuses to write while it is told to."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    async def commit(self, batch: Batch, /) -> None:
        """As the driver, or not at all."""
        if self.fails:
            raise StorageError("the store takes nothing")
        await self.driver.commit(batch)


async def deaths(driver: Driver, id: str) -> int:
    """How many it has been counted."""
    return len((await about(driver, id)).deaths.deaths)


async def test_taking_back_ones_own_is_no_death(driver: Driver) -> None:
    """However often the store has failed, and however late the worker comes back to it."""
    failing: Any = Failing(driver)
    async with Runtime(failing, workflows=FLOWS, clock=VirtualClock(quiet=PATIENCE)) as runtime:
        handle = await runtime.start(works, id="i")
        for _ in range(7):
            with anyio.fail_after(PATIENCE):
                await stop[0].reached.wait()
            older, stop[0] = stop[0], Stop()
            failing.fails = True
            older.go_on.set()

            async def dropped() -> bool:
                return runtime.resident == 0

            await until(dropped)
            failing.fails = False
            assert await deaths(driver, "i") == 0
        stop[0].go_on.set()
        assert await handle.result(timeout=PATIENCE) == "c"
    assert log == ["a", *["b"] * 8, "c"]


async def test_five_deaths_are_enough(driver: Driver) -> None:
    clock = VirtualClock(quiet=PATIENCE)
    async with Client(driver, clock=clock) as client:
        handle = await client.start(works, id="i")
        for number in range(5):
            async with anyio.create_task_group() as group:
                mortal = Mortal(driver, FLOWS, clock)
                group.start_soon(mortal.live)
                with anyio.fail_after(PATIENCE):
                    await stop[0].reached.wait()
                assert await deaths(driver, "i") == number
                stop[0] = Stop()
                mortal.die()
        async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
            with pytest.raises(WorkflowStuckError, match="5 workers in a row died"):
                await handle.result(timeout=PATIENCE)
            assert runtime.resident == 0
            assert (await Rows.of(driver)).leases == []
            stop[0].go_on.set()
            await handle.recover()
            assert await handle.result(timeout=PATIENCE) == "c"
            assert await deaths(driver, "i") == 0
    assert log == ["a", *["b"] * 6, "c"]
