"""Runtimes on a clock that jumps: nothing takes time, and nobody is taken for dead who isn't."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Log, Rows, naps, until_status
from workflow_sdk import Backoff, Context, Driver, Runtime, Status, Workflow, run_workflow, send_message, workflow
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock
from workflow_sdk.testing.clock import IDLE_TURNS

pytestmark = pytest.mark.law(20)

DAY = 86_400
log = Log()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()


async def email(what: str) -> str:
    log.append(what)
    return what


@workflow
async def trial(ctx: Context) -> list[str]:
    sent = [await ctx.step("welcome", email, "welcome")]
    for week in range(1, 13):
        await ctx.sleep(f"week {week}", 7 * DAY)
        sent.append(await ctx.step(f"tip {week}", email, f"tip {week}"))
    await ctx.sleep("the end", 6 * DAY)
    return sent


@workflow
async def waits(ctx: Context) -> Any:
    log.append("run")
    return await ctx.listen("m")


FLOWS: list[Workflow[Any, Any]] = [trial, naps, waits]


async def test_ninety_days_take_no_time(driver: Driver) -> None:
    clock = VirtualClock()
    began = clock.time()
    with anyio.fail_after(PATIENCE):
        async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
            assert len(await (await runtime.start(trial)).result()) == 13
    assert clock.time() - began == pytest.approx(90 * DAY, abs=PATIENCE)
    assert len(log) == 13


async def test_several_runtimes_keep_what_they_have(driver: Driver) -> None:
    clock = VirtualClock()
    async with (
        Runtime(driver, workflows=FLOWS, clock=clock) as one,
        Runtime(driver, workflows=FLOWS, clock=clock) as two,
    ):
        first, second = await one.start(trial, id="1"), await two.start(trial, id="2")
        idle = await one.start(waits, id="idle")
        await until_status(idle, Status.WAITING)
        leases = {tuple(row) for row in (await Rows.of(driver)).leases}
        await first.result(timeout=PATIENCE)
        await second.result(timeout=PATIENCE)
        assert log.count("run") == 1
        assert {tuple(row) for row in (await Rows.of(driver)).leases} <= leases
        clock.advance(365 * DAY)
        with anyio.fail_after(PATIENCE):
            while one.resident or two.resident:  # noqa: ASYNC110  # what has been idle for so long is evicted
                await anyio.sleep(0.001)
        assert (await Rows.of(driver)).leases == []
        await idle.send("m", "hello")
        assert await idle.result(timeout=PATIENCE) == "hello"


@pytest.mark.parametrize("apart", [False, True], ids=["one runtime", "two runtimes"])
async def test_what_is_on_its_way_takes_no_time(driver: Driver, apart: bool) -> None:
    """Between two who talk there are moments in which neither has anything to do."""
    clock, rounds = VirtualClock(), 20

    async def send(to: str) -> None:
        await send_message(driver, to, "ball", clock=clock)

    @workflow
    async def serves(ctx: Context) -> float:
        began = ctx.now()
        for ball in range(rounds):
            await ctx.step(f"throw {ball}", send, "returns")
            await ctx.listen(f"catch {ball}", "ball", timeout=3600)
        return (ctx.now() - began).total_seconds()

    @workflow
    async def returns(ctx: Context) -> None:
        for ball in range(rounds):
            await ctx.listen(f"catch {ball}", "ball")
            await ctx.step(f"throw {ball}", send, "serves")

    flows: list[Workflow[Any, Any]] = [serves, returns, naps]
    async with (
        Runtime(driver, workflows=flows, clock=clock) as here,
        Runtime(driver, workflows=flows, clock=clock) as there,
    ):
        await here.start(naps, DAY, id="naps")
        await (there if apart else here).start(returns, id="returns")
        took = await (await here.start(serves, id="serves")).result(timeout=PATIENCE)
    assert took < 60


async def test_time_does_not_run_away(driver: Driver) -> None:
    clock = VirtualClock()
    async with (
        Runtime(driver, workflows=FLOWS, clock=clock, lease_ttl=36_000) as one,
        Runtime(driver, workflows=FLOWS, clock=clock, lease_ttl=36_000),
    ):
        handle = await one.start(waits, id="w")
        await until_status(handle, Status.WAITING)
        began = clock.time()
        async with anyio.create_task_group() as group:

            async def beside() -> None:
                await run_workflow(waits, driver=driver, instance_id="beside", mode="live", clock=clock)

            group.start_soon(beside)
            with anyio.fail_after(PATIENCE):
                while log.count("run") < 2:  # noqa: ASYNC110  # a list sets no event
                    await anyio.sleep(0.001)
            await until_status(one.handle(waits, "beside"), Status.WAITING)
            for _ in range(50 * IDLE_TURNS):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert clock.time() - began < PATIENCE, "no more than on the wall"


@pytest.mark.parametrize("beside", [False, True])
async def test_what_the_dead_have_left_is_taken_over_in_time(driver: Driver, beside: bool) -> None:
    clock = VirtualClock()
    began = clock.time()
    faulty = FaultyDriver(driver, crash_after=3)
    try:
        async with Runtime(faulty, workflows=FLOWS, clock=clock, lease_ttl=30) as dead:
            await dead.start(trial, id="t")
            await anyio.sleep(PATIENCE)
    except* SimulatedCrash:
        pass
    assert faulty.crashed
    assert [id for (id,) in (await Rows.of(driver)).leases] == ["t"]
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        handle = runtime.handle(trial, "t")
        if beside:
            assert await runtime.run(naps, 3600) == "awake"
        assert len(await handle.result(timeout=PATIENCE)) == 13
    assert clock.time() - began == pytest.approx(90 * DAY, abs=3700 if beside else 45)


async def test_a_store_that_fails_for_a_while(driver: Driver) -> None:
    """Pauses before the next try are times on the clock, too."""
    clock = VirtualClock()
    faulty = FaultyDriver(driver, fail_at=range(4, 12))
    with anyio.fail_after(PATIENCE):
        async with Runtime(faulty, workflows=FLOWS, clock=clock) as runtime:
            handle = await runtime.start(trial, id="t")
            assert len(await handle.result()) == 13


async def test_retries_are_waits_on_it(driver: Driver) -> None:
    clock = VirtualClock()
    began = clock.time()
    times: list[float] = []

    async def flaky() -> str:
        times.append(clock.time() - began)
        if len(times) < 4:
            raise OSError("not yet")
        return "at last"

    @workflow
    async def persistent(ctx: Context) -> str:
        return await ctx.step("flaky", flaky, backoff=Backoff(initial=3600, factor=2, maximum=DAY, jitter=0))

    async with Runtime(driver, workflows=[persistent], clock=clock) as runtime:
        assert await runtime.run(persistent) == "at last"
    assert times == pytest.approx([0, 3600, 3 * 3600, 7 * 3600], abs=2)


async def test_one_that_dies_beside_another_is_noticed(driver: Driver) -> None:
    clock = VirtualClock()
    began = clock.time()
    faulty = FaultyDriver(driver)
    async with Runtime(driver, workflows=FLOWS, clock=clock, lease_ttl=30) as runtime:
        assert await runtime.run(naps, 3600) == "awake"

        async def dies() -> None:
            try:
                async with Runtime(faulty, workflows=FLOWS, clock=clock, lease_ttl=30) as dead:
                    await dead.start(waits, id="w")
                    await until_status(dead.handle(waits, "w"), Status.WAITING)
                    faulty.crash()
            except* SimulatedCrash:
                pass

        await dies()
        handle = runtime.handle(waits, "w")
        await handle.send("m", "hello")
        assert await handle.result(timeout=PATIENCE) == "hello"
    assert clock.time() - began <= 3600 + 40
