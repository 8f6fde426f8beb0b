"""How many run at once, in which order, and that everybody gets a turn."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.fdb_store import CLUSTER_FILE
from tests.patience import PATIENCE
from tests.runtime.parts import Log, Rows, Stop, until_status
from tests.runtime.polling import settle, until
from tests.runtime.shifted import Shifted
from workflow_sdk import Break, Client, Context, Continue, Driver, Handle, Runtime, Status, Workflow, workflow

log = Log()
stop = [Stop()]

# A cluster is some milliseconds away.
pytestmark = pytest.mark.every_host


STEP_SECONDS = 0.05 if CLUSTER_FILE else 0.001
"""Not much less than what the commits around a step take: else few of them are under way at the same time."""


class Meter:
    """How many steps are under way, and how many there were at most."""

    def __init__(self, together: int = 0) -> None:
        self.now = 0
        self.most = 0
        self.together = together
        """None ends before so many were under way at once."""

    async def step(self, seconds: float | None = None) -> None:
        """A step."""
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await anyio.sleep(STEP_SECONDS if seconds is None else seconds)
            while self.most < self.together:  # noqa: ASYNC110  # whoever comes next may be the last of them
                await anyio.sleep(STEP_SECONDS)
        finally:
            self.now -= 1


meter = Meter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    stop[0] = Stop()
    meter.__init__()  # type: ignore[misc]  # the workflows know this one


@workflow
async def naps_and_works(ctx: Context, until: float) -> str:
    """Sleeps until a time, and does two steps."""
    await ctx.step("before", meter.step)
    when = ctx.now()
    await ctx.sleep_until("nap", when.fromtimestamp(until, when.tzinfo))
    await ctx.step("one", meter.step)
    await ctx.step("two", meter.step)
    return "done"


@workflow
async def listens_and_works(ctx: Context) -> str:
    """Waits for a message, and does two steps."""
    await ctx.listen("m")
    await ctx.step("one", meter.step)
    await ctx.step("two", meter.step)
    return "done"


@workflow
async def works(ctx: Context) -> str:
    """A step that takes as long as it is told to."""

    async def work() -> None:
        log.append(ctx.instance_id)
        meter.now += 1
        meter.most = max(meter.most, meter.now)
        try:
            await stop[0].here()
        finally:
            meter.now -= 1

    await ctx.step("work", work)
    return "worked"


@workflow
async def notes(ctx: Context, what: Any) -> None:
    """Notes that it was run."""

    async def note() -> None:
        log.append(what)

    await ctx.step("note", note)


@workflow
async def takes_all(ctx: Context, count: int) -> int:
    """Takes a message after the other, as many as it was told to."""

    async def body(ctx: Context, taken: int) -> Continue[int] | Break[int]:
        await ctx.listen("m")
        log.append(taken)
        return Continue(taken + 1) if taken + 1 < count else Break(taken + 1)

    return await ctx.loop("take", body, 0)


@workflow
async def joins(ctx: Context, count: int) -> int:
    """Twenty branches, with as many short steps each as it is told to."""

    async def note() -> None:
        log.append(ctx.instance_id)

    async def branch(ctx: Context, number: int) -> int:
        for step in range(count):
            await ctx.step(f"step {step}", note)
        return number

    return sum(await ctx.map("all", branch, range(20)))


FLOWS: list[Workflow[Any, Any]] = [naps_and_works, listens_and_works, works, notes, takes_all, joins]


@asynccontextmanager
async def in_time() -> AsyncGenerator[None]:
    """Whatever is inside has an end."""
    with anyio.fail_after(PATIENCE):
        yield


@pytest.mark.parametrize("concurrency", [1, 10])
@pytest.mark.parametrize("by", ["time", "message"])
async def test_residents_that_wake_queue_up(driver: Driver, by: str, concurrency: int) -> None:
    count = 100 if concurrency == 10 else 30
    clock = Shifted()
    async with Runtime(driver, workflows=FLOWS, concurrency=concurrency, clock=clock) as runtime, in_time():
        due = time.time() + 3600
        handles: list[Handle[Any]] = []
        for number in range(count):
            if by == "time":
                handles.append(await runtime.start(naps_and_works, due, id=str(number)))
            else:
                handles.append(await runtime.start(listens_and_works, id=str(number)))
        for handle in handles:
            await until_status(handle, Status.SLEEPING, Status.WAITING)
        assert runtime.resident == count
        meter.__init__(concurrency)  # type: ignore[misc]
        if by == "time":
            clock.offset = 3601
        else:
            async with anyio.create_task_group() as group:
                for handle in handles:
                    group.start_soon(handle.send, "m")
        assert [await handle.result() for handle in handles] == ["done"] * count
    assert meter.most == concurrency, "no more, and no fewer, if there is something to do"


async def is_free(runtime: Runtime, *, count: int) -> None:
    """The runtime has so many free slots, and no more."""
    meter.__init__()  # type: ignore[misc]
    stop[0] = Stop()
    handles = [await runtime.start(works, id=f"free {number}") for number in range(count + 2)]

    async def full() -> bool:
        return meter.now >= count

    await until(full)
    await settle(runtime.access.driver)
    assert meter.now == count
    stop[0].go_on.set()
    assert [await handle.result(timeout=PATIENCE) for handle in handles] == ["worked"] * (count + 2)
    assert meter.most == count


@pytest.mark.parametrize("how", ["evict", "cancel"])
async def test_who_is_taken_out_of_the_line_leaves_no_slot_taken(driver: Driver, how: str) -> None:
    async with Runtime(driver, workflows=FLOWS, concurrency=1) as runtime, in_time():
        waiting = [await runtime.start(listens_and_works, id=str(number)) for number in range(5)]
        for handle in waiting:
            await until_status(handle, Status.WAITING)
        busy = await runtime.start(works, id="busy")
        await stop[0].reached.wait()
        for handle in waiting:
            await handle.send("m")
        await settle(driver)
        for handle in waiting[:3]:
            await (handle.evict() if how == "evict" else handle.cancel())
        if how == "evict":

            async def gone() -> bool:
                return runtime.resident == 3

            await until(gone)
        assert meter.most == 1
        stop[0].go_on.set()
        assert await busy.result() == "worked"
        for number, handle in enumerate(waiting):
            if how == "cancel" and number < 3:
                assert (await handle.info()).status is Status.CANCELLED
            else:
                assert await handle.result() == "done"
        await is_free(runtime, count=1)


async def test_a_step_that_goes_on_while_its_instance_is_evicted_counts(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS, concurrency=1) as runtime, in_time():
        first = await runtime.start(works, id="first")
        await stop[0].reached.wait()
        await first.evict()
        second = await runtime.start(works, id="second")
        await settle(driver)
        assert log == ["first"], "it is still in its step"
        stop[0].go_on.set()
        assert [await first.result(), await second.result()] == ["worked"] * 2
        await is_free(runtime, count=1)
    assert meter.most == 1


async def test_starting_the_same_id_twice_takes_one_slot(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS, concurrency=2) as runtime, in_time():
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(lambda: runtime.start(works, id="same"))
        others = [await runtime.start(works, id=str(number)) for number in range(3)]
        await settle(driver)
        assert len(log) == 2
        assert meter.most == 2
        stop[0].go_on.set()
        assert [await handle.result() for handle in others] == ["worked"] * 3
        await is_free(runtime, count=2)


async def test_shutting_down_with_a_line(driver: Driver) -> None:
    """At once, and everything is given back: those that stood in line, and what was not claimed yet."""
    async with Client(driver) as client:
        due = [await client.start(notes, number, id=f"due {number}") for number in range(20)]
        with anyio.fail_after(PATIENCE):
            async with Runtime(driver, workflows=FLOWS, concurrency=1, grace=0.05) as runtime:
                for done in due:
                    await done.result()
                waiting = [await runtime.start(listens_and_works, id=str(number)) for number in range(5)]
                for handle in waiting:
                    await until_status(handle, Status.WAITING)
                await runtime.start(works, id="busy")
                await stop[0].reached.wait()
                late = [await client.start(notes, number, id=f"late {number}") for number in range(20)]
                for handle in waiting:
                    await handle.send("m")
        rows = await Rows.of(driver)
        assert (rows.leases, rows.workers) == ([], [])
        assert len(log) == 21, "nothing new was begun"
        stop[0].go_on.set()
        async with Runtime(driver, workflows=FLOWS, concurrency=1):
            for waited in (*waiting, *late):
                await waited.result(timeout=PATIENCE)
            assert await client.handle(works, "busy").result(timeout=PATIENCE) == "worked"


async def with_long_queues(driver: Driver, *ids: str, count: int) -> None:
    """There are instances with so many messages each, and nobody has begun to take them."""
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handles = [await runtime.start(takes_all, count, id=id) for id in ids]
        for handle in handles:
            await until_status(handle, Status.WAITING)
        listens = await runtime.start(listens_and_works, id="woken")
        await until_status(listens, Status.WAITING)
    async with Client(driver) as client:
        for id in ids:
            handle = client.handle(takes_all, id)
            for _ in range(count // 100):
                async with anyio.create_task_group() as group:
                    for _ in range(100):
                        group.start_soon(handle.send, "m")


async def has_begun(runtime: Runtime) -> None:
    """Return once the first message has been taken."""

    async def begun() -> bool:
        return len(log) > 0

    await until(begun)
    assert runtime.resident > 0


@pytest.mark.parametrize("kind", ["started later", "resident"])
async def test_a_long_queue_starves_nobody(driver: Driver, kind: str) -> None:
    count = 500
    await with_long_queues(driver, "long", count=count)
    async with in_time(), Runtime(driver, workflows=FLOWS, concurrency=1) as runtime:
        await has_begun(runtime)
        other: Handle[Any]
        if kind == "resident":
            other = runtime.handle(listens_and_works, "woken")
            await other.send("m")
        else:
            other = await runtime.start(notes, "other", id="other")
        await other.result()
        assert len(log) < count * 3 / 4
        assert await runtime.handle(takes_all, "long").result() == count


async def test_neither_residents_nor_what_is_due_starves(driver: Driver) -> None:
    """Two with long queues, one resident that is woken, and one that is yet to be claimed."""
    count = 500
    await with_long_queues(driver, "a", "b", count=count)
    async with (
        in_time(),
        Client(driver) as client,
        Runtime(driver, workflows=FLOWS, concurrency=1) as runtime,
    ):
        await has_begun(runtime)
        due = await client.start(notes, "due", id="due")
        await client.handle(listens_and_works, "woken").send("m")
        await client.handle(listens_and_works, "woken").result()
        await due.result()
        assert len(log) < 2 * count, "long before the others have taken all"
        assert [await client.handle(takes_all, id).result() for id in "ab"] == [count] * 2


async def test_a_wide_join_starves_nobody(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS, concurrency=1) as runtime, in_time():
        wide = await runtime.start(joins, 300, id="wide")

        async def begun() -> bool:
            return len(log) > 5

        await until(begun)
        other = await runtime.start(notes, "other", id="other")
        await other.result()
        assert (await wide.info()).status is Status.RUNNING
        assert await wide.result() == sum(range(20))
    assert log.index("other") < len(log) / 2


@pytest.mark.parametrize("concurrency", [1, 16])
async def test_in_order_of_time(driver: Driver, concurrency: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds that are due: their places are taken in order, whatever the order they were made in."""
    monkeypatch.setattr("workflow_sdk.worker.claiming.ALARMS_PAGE", 8)  # of which there are several in every shard
    count = 300
    order = [number * 617 % count for number in range(count)]

    class Backwards:
        def __init__(self) -> None:
            self.now = 0.0

        def time(self) -> float:
            return self.now

    clock: Any = Backwards()
    async with Client(driver, clock=clock) as client:

        async def create(numbers: list[int]) -> None:
            for number in numbers:
                clock.now = 1000.0 + number
                await client.start(notes, number, id=f"{number:04}")

        await create(order)
        async with Runtime(driver, workflows=FLOWS, concurrency=concurrency), in_time():

            async def all_done() -> bool:
                return len(log) == count

            await until(all_done)
    if concurrency == 1:
        assert log == list(range(count))
    else:
        assert sorted(abs(place - number) for place, number in enumerate(log))[-10] <= 8 * concurrency
