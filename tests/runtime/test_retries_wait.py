"""A step that is to be tried again waits like everything else: seen by all, and in nobody's way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import anyio
import pytest

from tests.runtime.looking import Bench, dump
from tests.runtime.parts import Log, Rows, until_status
from tests.runtime.polling import until
from workflow_sdk import (
    Backoff,
    Client,
    Context,
    Driver,
    InstanceInfo,
    Runtime,
    Status,
    StepError,
    open_driver,
    run_workflow,
    workflow,
)
from workflow_sdk.instance.clock import Clock
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

BACKOFF = Backoff(initial=600, factor=2, maximum=3600, jitter=0)
log = Log()


def breaks() -> None:
    """Fails, each time with another error."""
    log.append("try")
    raise ValueError(f"failure {len(log)}")


@workflow
async def tries(ctx: Context) -> str:
    """Tries three times, half an hour altogether."""
    try:
        await ctx.step("step", breaks, retries=2, backoff=BACKOFF)
    except StepError as error:
        return f"{error.attempts} attempts, {error.error.message}"
    return "done"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()


def is_waiting(info: InstanceInfo, attempts: int, since: Any, *, backoff: float) -> bool:
    """Whether the wait says all there is to say."""
    (wait,) = info.waits
    assert wait.error is not None
    assert (wait.kind, wait.name, wait.path, wait.message) == ("retry", "step", "step", None)
    assert (wait.attempts, wait.error.type, wait.error.message) == (attempts, "ValueError", f"failure {attempts}")
    assert wait.until == info.wake_at == since + timedelta(seconds=backoff)
    assert wait.version == info.version
    assert info.attempts == {"step": attempts}
    assert info.status is Status.SLEEPING
    return True


async def test_evicted_after_each_try(driver: Driver) -> None:
    bench = Bench(driver, tries)
    tokens: list[str] = []
    for attempts, backoff in ((1, 600), (2, 1200)):
        await bench.go()
        info = await bench.info()
        assert is_waiting(info, attempts, bench.clock.now(), backoff=backoff)
        # Not due: it is run, and is evicted again.
        bench.clock.advance(backoff - 1)
        await bench.go()
        assert (await bench.info()).waits == info.waits
        assert len(log) == attempts
        assert (await Rows.of(driver)).leases == []
        tokens.append(info.waits[0].token)
        bench.clock.advance(1)
    assert (await bench.go()).output == "3 attempts, failure 3"
    assert len(set(tokens)) == 2
    assert (await bench.info()).waits == []


async def test_resident_evicted_and_taken_over(driver: Driver) -> None:
    async with Client(driver) as client, Runtime(driver, workflows=[tries]) as one:
        handle = await one.start(tries, id="i")
        await until_status(handle, Status.SLEEPING)
        info = await handle.info()
        assert [(wait.kind, wait.attempts) for wait in info.waits] == [("retry", 1)]

        async def away() -> bool:
            return (await Rows.of(driver)).leases == []

        async def there() -> bool:
            return not await away()

        other = client.handle(tries, "i")
        await other.evict()
        await until(away)
        assert (await other.info()).waits == info.waits
        await other.wake()
        await until(there)
        await until_status(other, Status.SLEEPING)
        assert (await other.info()).waits == info.waits
    again = await Bench(driver, tries).info()
    assert (again.waits, again.version) == (info.waits, info.version)
    assert log == ["try"]


async def test_whoever_waits_is_killed(driver: Driver) -> None:
    """The wait is in the store, whoever held it; nobody counts it as an attempt."""
    bench = Bench(driver, tries)
    faulty, clock = FaultyDriver(driver), cast("Clock", Late(bench.clock))

    async def run() -> None:
        with pytest.raises((SimulatedCrash, anyio.get_cancelled_exc_class())):
            await run_workflow(tries, driver=faulty, instance_id="i", clock=clock, mode="live")

    async with anyio.create_task_group() as group:
        group.start_soon(run)

        async def parked() -> bool:
            return bool((await dump(driver)) and (await bench.info()).waits)

        await until(parked)
        faulty.crashed = True
        group.cancel_scope.cancel()
    assert (await Rows.of(driver)).leases != [], "it had no time to give it back"
    info = await bench.info()
    assert is_waiting(info, 1, bench.clock.now(), backoff=600)
    await bench.go()
    after = await bench.info()
    assert (after.waits, after.version) == (info.waits, info.version)
    await bench.go(600)
    assert is_waiting(await bench.info(), 2, bench.clock.now(), backoff=1200)
    assert (await bench.go(1200)).output == "3 attempts, failure 3"


class Late:
    """A clock that does not jump for those who wait on this one."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    async def wait(self, event: anyio.Event, *_: Any, **__: Any) -> None:
        """Return when the event is set."""
        await event.wait()


async def test_nobody_sleeps_in_a_worker(driver: Driver) -> None:
    """Far more of them wait than there is room for, and none is in memory."""
    async with Runtime(driver, workflows=[tries], max_resident=0, concurrency=1) as runtime:
        handles = [await runtime.start(tries, id=str(number)) for number in range(20)]
        for handle in handles:
            await until_status(handle, Status.SLEEPING)

        async def away() -> bool:
            return (await Rows.of(driver)).leases == []

        await until(away)
        assert [(await handle.info()).waits[0].kind for handle in handles] == ["retry"] * 20


async def test_with_time_to_come() -> None:
    memory, clock = await open_driver("memory://"), VirtualClock(quiet=0.1)
    async with Runtime(memory, workflows=[tries], clock=clock, max_resident=0) as runtime:
        began = clock.time()
        assert await runtime.run(tries) == "3 attempts, failure 3"
        assert clock.time() == pytest.approx(began + 1800)
