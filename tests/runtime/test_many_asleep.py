"""Many instances that sleep cost a runtime nothing until they are due, and then it goes through them."""

from __future__ import annotations

import os
import time
import tracemalloc

from anyio.lowlevel import checkpoint

from tests.chaos import effort
from tests.patience import PATIENCE
from tests.runtime.cloning import clone
from tests.runtime.counting import Counting
from tests.runtime.parts import Log, Rows, until_status
from tests.runtime.polling import settle, until
from tests.runtime.shifted import Shifted
from workflow_sdk import Client, Context, Driver, Runtime, Status, Workflow, workflow

ASLEEP = int(os.environ.get("WORKFLOW_SDK_ASLEEP", min(effort(3000), 20_000)))
DUE = ASLEEP // 10

NAP = 3600.0
LONG = 1_000_000.0
MAX_RESIDENT = 40
CONCURRENCY = 20


class Peaks:
    """What there was at most."""

    def __init__(self) -> None:
        self.running = 0
        self.most_running = 0
        self.most_resident = 0
        self.runtime: Runtime | None = None

    async def step(self, id: str) -> None:
        """A step."""
        assert self.runtime is not None
        log.append(id)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.most_resident = max(self.most_resident, self.runtime.resident)
        try:
            await checkpoint()
        finally:
            self.running -= 1


log = Log()
peaks = Peaks()


@workflow
async def sleeps(ctx: Context, seconds: float) -> None:
    """Sleeps, does a step, and ends."""
    await ctx.sleep("nap", seconds)
    await ctx.step("work", peaks.step, ctx.instance_id)


FLOWS: list[Workflow[float, None]] = [sleeps]


async def fill(driver: Driver) -> None:
    """Put many to sleep; the most of them for very long."""
    async with Runtime(driver, workflows=FLOWS) as runtime:
        for id, seconds in (("near", NAP), ("far", LONG)):
            handle = await runtime.start(sleeps, seconds, id=id)
            await until_status(handle, Status.SLEEPING)
    await clone(driver, "near", (f"near {number:06}" for number in range(1, DUE)))
    await clone(driver, "far", (f"far {number:06}" for number in range(1, ASLEEP - DUE)))
    await driver.scan(b"", b"\xff", limit=1)  # a store in memory sorts its keys when they are first asked for


async def test_many_asleep(driver: Driver) -> None:
    log.clear()
    peaks.__init__()  # type: ignore[misc]  # the workflow knows this one
    await fill(driver)
    counting, clock = Counting(driver), Shifted()
    tracemalloc.start()
    try:
        async with Runtime(
            counting,
            workflows=FLOWS,
            clock=clock,
            max_resident=MAX_RESIDENT,
            concurrency=CONCURRENCY,
            lease_ttl=3600,
        ) as runtime:
            await counting.until_quiet()
            calls, rows = counting.calls, counting.rows
            await settle(driver)
            memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert counting.calls == calls, "while nothing is due, it asks for nothing"
            assert runtime.resident == 0
            assert calls <= 150
            assert rows <= 50
            assert memory < 500_000
            peaks.runtime = runtime
            began = time.monotonic()
            clock.offset = NAP + 1

            async def all_done() -> bool:
                return len(log) >= DUE and runtime.resident == 0

            await until(all_done, 5 * PATIENCE)  # it is much
            took = time.monotonic() - began
            assert len(log) == len(set(log)) == DUE, "each once"
            assert peaks.most_running <= CONCURRENCY
            assert peaks.most_resident <= MAX_RESIDENT + CONCURRENCY
            print(
                f"{ASLEEP:,} asleep: {calls} calls, {rows} rows, {memory:,} bytes; {DUE:,} due in {took:.1f} s, "
                f"{counting.commits / DUE:.1f} commits each; most resident {peaks.most_resident}, "
                f"most running {peaks.most_running}"
            )
    finally:
        tracemalloc.stop()
    found = await Rows.of(driver)
    assert (found.leases, found.workers, len(found.alarms)) == ([], [], ASLEEP - DUE)
    async with Client(driver) as client:
        assert len((await client.list(status=Status.COMPLETED, limit=1000)).items) == min(DUE, 1000)
