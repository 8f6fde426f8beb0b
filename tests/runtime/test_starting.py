"""What is started where it can run is claimed in the same commit: all of that happens, or nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.patience import PATIENCE
from tests.runtime.counting import Counting
from tests.runtime.looking import Through
from tests.runtime.parts import Log, Rows, Stop, doubles
from tests.runtime.polling import settle, until
from workflow_sdk import (
    AlreadyExistsError,
    Batch,
    Client,
    Context,
    Driver,
    Runtime,
    Status,
    StorageError,
    Workflow,
    workflow,
)
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

pytestmark = pytest.mark.law(1)

log = Log()
stop = [Stop()]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    stop[0] = Stop()


@workflow
async def works(ctx: Context, what: str = "x") -> str:
    """A step that takes as long as it is told to."""

    async def work() -> str:
        log.append(ctx.instance_id)
        await stop[0].here()
        return what

    return await ctx.step("work", work)


@workflow
async def notes(ctx: Context, what: str) -> str:
    """Ends at once."""
    return str(await ctx.step("note", log.note, what))


@workflow
async def listens(ctx: Context) -> Any:
    """Ends with a message."""
    return await ctx.listen("m")


FLOWS: list[Workflow[Any, Any]] = [works, notes, listens, doubles]


async def is_new(driver: Driver, id: str) -> bool:
    """Whether there is nothing of the instance."""
    return (await Rows.of(driver)).of_instance(id) == []


async def test_it_is_one_commit(driver: Driver) -> None:
    counting = Counting(driver)
    async with Runtime(counting, workflows=FLOWS, lease_ttl=3600) as runtime:
        await counting.until_quiet()
        counting.__init__(driver)  # type: ignore[misc]
        handle = await runtime.start(works, id="i")
        assert (counting.commits, counting.gets, counting.scans) == (1, 0, 0)
        assert runtime.resident == 1
        rows = await Rows.of(driver)
        assert (rows.leases, rows.alarms) == ([("i",)], [])
        assert [id for _, id in rows.claimed] == ["i"]
        assert (await handle.info()).status is Status.RUNNING
        stop[0].go_on.set()
        assert await handle.result(timeout=PATIENCE) == "x"


@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
async def test_the_process_dies_with_that_commit(driver: Driver, kind: str) -> None:
    """It is there whole, or not at all; and what is there goes on elsewhere."""
    stop[0].go_on.set()
    clock = VirtualClock()
    faulty = FaultyDriver(driver, **{kind: 2})  # the first is the heartbeat
    with pytest.raises((SimulatedCrash, BaseExceptionGroup)):
        async with Runtime(faulty, workflows=FLOWS, clock=clock) as runtime:
            await runtime.start(works, "y", id="i")
    assert faulty.crashed
    assert log == []
    async with Client(driver) as client, Runtime(driver, workflows=FLOWS, clock=clock) as other:
        if kind == "crash_before":
            assert await is_new(driver, "i")
            await other.start(works, "y", id="i")
        assert await client.handle(works, "i").result(timeout=PATIENCE) == "y"
        assert log == ["i"]

        async def buried() -> bool:
            return len((await Rows.of(driver)).workers) == 1

        await until(buried)


async def test_that_commit_fails(driver: Driver) -> None:
    """Whoever starts it is told. There is nothing, and the slot is free again."""
    stop[0].go_on.set()
    faulty = FaultyDriver(driver, fail_at=[2, 3])
    async with Runtime(faulty, workflows=FLOWS, concurrency=1) as runtime:
        for _ in range(2):
            with pytest.raises(StorageError):
                await runtime.start(works, "y", id="i")
            assert await is_new(driver, "i")
            assert runtime.resident == 0
        assert await runtime.run(works, "y", id="i") == "y"
        assert [await runtime.run(doubles, number) for number in range(3)] == [0, 2, 4]
    assert log == ["i"]


class Unsure(FaultyDriver):
    """Some commits are made, and said to have failed."""

    unsure: frozenset[int] = frozenset()

    async def commit(self, batch: Any, /) -> None:
        """As the driver; then an error all the same."""
        await super().commit(batch)
        if self.commits in self.unsure:
            raise StorageError("nobody knows whether it was written")


async def test_nobody_knows_whether_it_was_started(driver: Driver) -> None:
    """It was: the same worker finds what is its own, and runs it."""
    stop[0].go_on.set()
    unsure = Unsure(driver)
    unsure.unsure = frozenset([2])
    async with Runtime(unsure, workflows=FLOWS, concurrency=1, clock=VirtualClock()) as runtime:
        with pytest.raises(StorageError):
            await runtime.start(works, "y", id="i")
        again = await runtime.start(works, "y", id="i")
        assert await again.result(timeout=PATIENCE) == "y"
        assert log == ["i"]


async def test_another_one_with_this_id(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS, concurrency=1) as runtime:
        handle = await runtime.start(works, "a", id="i")
        with pytest.raises(AlreadyExistsError, match="'b'"):
            await runtime.start(works, "b", id="i")
        with pytest.raises(AlreadyExistsError, match="'notes'"):
            await runtime.start(notes, "a", id="i")
        stop[0].go_on.set()
        assert await handle.result(timeout=PATIENCE) == "a"
        with pytest.raises(AlreadyExistsError):
            await runtime.start(works, "b", id="i")
        assert await runtime.run(works, "a", id="i") == "a"
        assert await runtime.run(doubles, 4) == 8, "none of them has kept the slot"
    assert log == ["i"]
    assert (await Rows.of(driver)).workers == []


async def test_the_same_id_from_two_runtimes(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as one, Runtime(driver, workflows=FLOWS) as two:
        results: list[Any] = []

        async def start(runtime: Runtime, id: str) -> None:
            results.append(await (await runtime.start(notes, id, id=id)).result(timeout=PATIENCE))

        async with anyio.create_task_group() as group:
            for number in range(30):
                for runtime in (one, two, one):
                    group.start_soon(start, runtime, str(number))
        assert sorted(results) == sorted(str(number) for number in range(30) for _ in range(3))
        assert sorted(log) == sorted(str(number) for number in range(30)), "each ran once"

        async def empty() -> bool:
            return one.resident == two.resident == 0

        await until(empty)


class Held(Through):
    """A driver that holds up the commit that starts an instance: before it is made, or once it is."""

    def __init__(self, driver: Driver, *, after: bool) -> None:
        super().__init__(driver)
        self.after = after
        self.stop = Stop()

    async def commit(self, batch: Batch, /) -> None:
        """As the driver."""
        if self.stop.reached.is_set() or InstanceKeys("i").lease not in [write[0] for write in batch.writes]:
            await self.driver.commit(batch)
        elif self.after:
            await self.driver.commit(batch)
            await self.stop.here()
        else:
            await self.stop.here()
            await self.driver.commit(batch)


async def test_somebody_else_starts_it_meanwhile(driver: Driver) -> None:
    """It is due before it is known that it was not started here: it takes one slot, and keeps it."""
    held = Held(driver, after=False)
    async with Client(driver) as client, Runtime(held, workflows=FLOWS, concurrency=2) as runtime:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: runtime.start(works, id="i"))
            await held.stop.reached.wait()
            await client.start(works, id="i")
            await settle(driver)
            held.stop.go_on.set()
        handles = [await runtime.start(works, id=id) for id in ("i", "a", "b")]

        async def is_full() -> bool:
            return len(log) >= 2

        await until(is_full)
        await settle(driver)
        begun = len(log)
        stop[0].go_on.set()
        assert [await handle.result(timeout=PATIENCE) for handle in handles] == ["x"] * 3
        assert begun == 2
    assert sorted(log) == ["a", "b", "i"]
    assert (await Rows.of(driver)).workers == []


async def test_a_message_comes_before_it_is_known_to_be_started(driver: Driver) -> None:
    """From somebody else, who sees in the store that it runs here."""
    held = Held(driver, after=True)
    async with Client(driver) as client, Runtime(held, workflows=FLOWS) as runtime:
        handle = client.handle(listens, "i")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: runtime.start(listens, id="i"))
            await held.stop.reached.wait()
            await handle.send("m", 5)
            await settle(driver)
            held.stop.go_on.set()
        assert await handle.result(timeout=PATIENCE) == 5


async def test_a_crowded_runtime_leaves_it_to_whoever_is_free(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS, concurrency=1) as runtime:
        busy = await runtime.start(works, id="busy")
        await stop[0].reached.wait()
        handles = [await runtime.start(notes, str(number), id=str(number)) for number in range(3)]
        await settle(driver)
        rows = await Rows.of(driver)
        assert rows.leases == [("busy",)]
        assert sorted(id for *_, id in rows.alarms) == ["0", "1", "2"]
        assert [(await handle.info()).status for handle in handles] == [Status.PENDING] * 3
        async with Runtime(driver, workflows=FLOWS):
            assert [await handle.result(timeout=PATIENCE) for handle in handles] == ["0", "1", "2"]
        late = await runtime.start(notes, "late")
        stop[0].go_on.set()
        assert await busy.result(timeout=PATIENCE) == "x"
        assert await late.result(timeout=PATIENCE) == "late", "and what nobody took is run here, when there is room"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_start_that_is_cancelled(driver: Driver, after: bool) -> None:
    """While it is being written: it is started all the same, and runs."""
    stop[0].go_on.set()
    held = Held(driver, after=after)
    async with (
        Client(driver) as client,
        Runtime(held, workflows=FLOWS, concurrency=1, clock=VirtualClock()) as runtime,
    ):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: runtime.start(works, "y", id="i"))
            await held.stop.reached.wait()
            group.cancel_scope.cancel()
            held.stop.go_on.set()
        assert await client.handle(works, "i").result(timeout=PATIENCE) == "y"
        assert await runtime.run(doubles, 2) == 4
        assert runtime.resident == 0
    assert (await Rows.of(driver)).workers == []


async def test_a_start_that_is_cancelled_at_once(driver: Driver) -> None:
    """It was started or it was not, as the store is quick or slow; if it was, somebody runs it."""
    stop[0].go_on.set()
    async with (
        Client(driver) as client,
        Runtime(driver, workflows=FLOWS, concurrency=1, clock=VirtualClock()) as runtime,
    ):
        for number in range(10):
            id = str(number)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(runtime.start, works, "y", id=id))
                for _ in range(number):
                    await checkpoint()
                group.cancel_scope.cancel()
            await settle(driver)
            if not await is_new(driver, id):
                assert await client.handle(works, id).result(timeout=PATIENCE) == "y"
        assert await runtime.run(doubles, 2) == 4
    assert (await Rows.of(driver)).workers == []


class Closed(Through):
    """A driver that holds up the commits that start instances, until it is opened."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.waiting: int = 0
        self.is_open: anyio.Event = anyio.Event()

    async def commit(self, batch: Batch, /) -> None:
        """As the driver."""
        written = {write[0] for write in batch.writes}
        if any(InstanceKeys(str(number)).lease in written for number in range(5)):
            self.waiting += 1
            await self.is_open.wait()
        await self.driver.commit(batch)


async def test_starting_while_it_shuts_down(driver: Driver) -> None:
    """Whatever was started is there, and nobody has it."""
    closed = Closed(driver)
    async with Client(driver) as client, anyio.create_task_group() as group:
        async with Runtime(closed, workflows=FLOWS, grace=PATIENCE) as runtime:

            async def start(number: int) -> None:
                await runtime.start(works, id=str(number))

            for number in range(5):
                group.start_soon(start, number)

            async def all_wait() -> bool:
                return closed.waiting == 5

            async def open_it() -> None:
                await settle(driver)
                closed.is_open.set()

            await until(all_wait)
            group.start_soon(open_it)
        rows = await Rows.of(driver)
        assert (rows.leases, rows.workers) == ([], [])
        assert log == [], "no step was begun"
        stop[0].go_on.set()
        async with Runtime(driver, workflows=FLOWS):
            for number in range(5):
                assert await client.handle(works, str(number)).result(timeout=PATIENCE) == "x"
