"""`run_workflow`: one instance, once."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.shifted import ByHand
from tests.support import World
from workflow_sdk import (
    AlreadyExistsError,
    Client,
    ConflictError,
    Context,
    DefinitionError,
    ErrorInfo,
    LeaseLostError,
    PayloadTooLargeError,
    RunResult,
    Status,
    StepCriticalError,
    StorageError,
    run_workflow,
    workflow,
)
from workflow_sdk.changes.instances import read_about
from workflow_sdk.driver import Batch, Clear
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.testing import FaultyDriver

LEASE = InstanceKeys("i").lease


@workflow
async def echo(ctx: Context, value: Any) -> Any:
    return await ctx.step("same", lambda: value)


@workflow
async def typed(ctx: Context, number: int) -> int:
    return await ctx.step("same", lambda: number)


@workflow
async def waits(ctx: Context, message: str) -> Any:
    await ctx.step("before", lambda: None)
    return await ctx.listen(message, timeout=60, default="none")


async def test_a_completed_run(world: World) -> None:
    assert await world.once(echo, (1, "a")) == RunResult(Status.COMPLETED, (1, "a"))


async def test_a_failed_run(world: World) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        raise KeyError("no")

    result = await world.once(fails)
    assert (result.status, result.output, result.wake_at, result.waiting_for) == (Status.FAILED, None, None, [])
    assert isinstance(result.error, ErrorInfo)
    assert (result.error.type, result.error.message, result.error.kind) == ("KeyError", "'no'", "expression")
    assert await world.once(fails) == result


async def test_a_run_that_waits(world: World) -> None:
    result = await world.once(waits, "m", mode="yield")
    when = datetime.fromtimestamp(world.clock.time(), UTC) + timedelta(minutes=1)
    assert result == RunResult(Status.WAITING, None, None, when, ["m"])


async def test_live_waits_where_yield_returns(world: World) -> None:
    result = await world.once(waits, "m")
    if world.setting.mode == "live":
        assert result == RunResult(Status.COMPLETED, "none")
    else:
        assert result.status is Status.WAITING


async def test_an_ended_instance_is_not_run_again(world: World) -> None:
    ran: list[int] = []

    @workflow
    async def once(ctx: Context) -> int:
        ran.append(1)
        return len(ran)

    assert [(await world.once(once)).output for _ in range(3)] == [1, 1, 1]
    assert ran == [1]


async def test_the_stored_input_wins(world: World) -> None:
    @workflow
    async def remembers(ctx: Context, value: Any) -> Any:
        await ctx.listen("go", timeout=5, default=None)
        return value

    await world.once(remembers, {"first": (1,)}, mode="yield")
    assert (await world.run(remembers, "second")).output == {"first": (1,)}


async def test_every_id_is_an_instance_of_its_own(world: World) -> None:
    for id in ("a", "a/b", "a\x00b", "ä", "x" * 1000):
        assert (await world.once(echo, id, id=id)).output == id
    for id in ("a", "a/b", "a\x00b", "ä", "x" * 1000):
        assert (await world.once(echo, "later", id=id)).output == id


async def test_without_an_id_it_is_a_new_instance(world: World) -> None:
    first = await run_workflow(echo, 1, driver=world.driver)
    second = await run_workflow(echo, 2, driver=world.driver)
    assert (first.output, second.output) == (1, 2)


async def test_an_id_belongs_to_one_workflow(world: World) -> None:
    await world.once(waits, "m", mode="yield")
    with pytest.raises(AlreadyExistsError, match="instance 'i' runs workflow 'waits', not 'echo'"):
        await world.once(echo, 1)
    assert (await world.run(waits)).output == "none"


@pytest.mark.parametrize(
    "options",
    [
        *({"mode": "fast"}, {"instance_id": ""}, {"instance_id": "x" * 1001}, {"instance_id": 3}),
        *({"max_value_bytes": 0}, {"max_value_bytes": 10_000_001}, {"lease_ttl": "1"}),
    ],
    ids=str,
)
async def test_a_wrong_call_is_raised(world: World, options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        await run_workflow(echo, 1, driver=world.driver, **options)
    assert await world.driver.scan(b"", b"\xff") == [], "nothing is written"


async def test_only_a_workflow_is_run(world: World) -> None:
    with pytest.raises(DefinitionError, match="decorated with @workflow"):
        await run_workflow(cast("Any", echo.fn), 1, driver=world.driver)


async def test_values_have_a_limit(world: World) -> None:
    async def run(size: int, limit: int, id: str) -> RunResult[str]:
        @workflow(name="large")
        async def large(ctx: Context, given: bytes) -> str:
            try:
                await ctx.step("big", lambda: b"x" * size)
            except StepCriticalError as error:
                return error.error.type
            return "stored"

        return await run_workflow(large, b"", driver=world.driver, instance_id=id, max_value_bytes=limit)

    assert (await run(100, 200, "a")).output == "stored"
    assert (await run(300, 200, "b")).output == "workflow_sdk.errors.PayloadTooLargeError"
    assert (await run(2_100_000, 10_000_000, "c")).output == "stored"
    with pytest.raises(PayloadTooLargeError, match="the input of workflow 'echo'"):
        await run_workflow(echo, b"x" * 300, driver=world.driver, max_value_bytes=200)


@pytest.mark.law(10)
async def test_nobody_holds_an_instance_that_is_evicted(world: World) -> None:
    held: list[bool] = []

    async def look() -> None:
        held.append(await world.driver.get(LEASE) is not None)

    @workflow
    async def looks(ctx: Context) -> None:
        await ctx.step("look", look)
        await ctx.sleep("nap", 60)
        await ctx.step("again", look)

    assert (await world.once(looks, mode="yield")).status is Status.SLEEPING
    assert await world.driver.get(LEASE) is None
    assert (await world.run(looks)).status is Status.COMPLETED
    assert await world.driver.get(LEASE) is None
    assert held == [True, True]


async def test_nobody_holds_a_stuck_instance(world: World) -> None:
    @workflow
    async def mistakes(ctx: Context) -> None:
        await ctx.sleep("", 1)

    assert (await world.once(mistakes)).status is Status.STUCK
    assert await world.driver.get(LEASE) is None


async def test_cancelling_the_host_gives_the_instance_back(world: World) -> None:
    log: list[str] = []
    under_way = anyio.Event()

    async def second() -> None:
        log.append("second")
        if log.count("second") == 1:
            under_way.set()
            await anyio.sleep_forever()

    @workflow
    async def works(ctx: Context) -> str:
        await ctx.step("first", lambda: log.append("first"))
        await ctx.step("second", second)
        return "done"

    async with anyio.create_task_group() as group:
        group.start_soon(world.once, works)
        await under_way.wait()
        assert await world.driver.get(LEASE) is not None
        group.cancel_scope.cancel()
    assert await world.driver.get(LEASE) is None
    assert (await world.history())["first"].value is None
    assert (await world.run(works)).output == "done"
    assert log == ["first", "second", "second"]


async def test_cancelling_a_host_that_waits_gives_the_instance_back(world: World) -> None:
    @workflow
    async def listens(ctx: Context) -> Any:
        return await ctx.listen("m")

    async with anyio.create_task_group() as group:

        async def run() -> None:
            await world.once(listens, mode="live")

        group.start_soon(run)
        await world.until_waiting()
        group.cancel_scope.cancel()
    assert await world.driver.get(LEASE) is None
    await world.send("m", 5)
    assert (await world.run(listens)).output == 5


@pytest.mark.law(5)
async def test_the_cancellation_stays_a_cancellation(world: World) -> None:
    under_way = anyio.Event()

    async def hang() -> None:
        under_way.set()
        await anyio.sleep_forever()

    @workflow
    async def swallows(ctx: Context) -> str:
        try:
            await ctx.step("hangs", hang)
        except Exception:  # noqa: BLE001  # never sees the engine's own business
            return "swallowed"
        return "returned"

    returned: list[object] = []

    async def run() -> None:
        returned.append(await run_workflow(swallows, driver=world.driver, instance_id="i"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await under_way.wait()
        group.cancel_scope.cancel()
    assert returned == []
    assert (await world.history()).status is Status.RUNNING


@pytest.mark.law(10)
async def test_a_second_run_takes_the_instance_over(world: World) -> None:
    go_on = anyio.Event()
    under_way = anyio.Event()
    lost: list[BaseException] = []

    async def slow() -> str:
        if under_way.is_set():
            return "second run"
        under_way.set()
        await go_on.wait()
        return "first run"

    @workflow
    async def works(ctx: Context) -> str:
        return await ctx.step("slow", slow)

    async def first() -> None:
        try:
            await world.once(works)
        except LeaseLostError as error:
            lost.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await under_way.wait()
        assert (await world.once(works)).output == "second run"
        go_on.set()
    assert "another worker has taken over instance 'i'" in str(lost[0])
    assert (await world.history())["slow"].value == "second run"


@pytest.mark.parametrize(("faults", "error"), [({"fail_at": [2]}, StorageError), ({"conflict_at": [2]}, ConflictError)])
async def test_a_failure_of_the_store_is_raised(world: World, faults: dict[str, Any], error: type[Exception]) -> None:
    ran: list[int] = []

    @workflow
    async def works(ctx: Context) -> int:
        try:
            await ctx.step("s", ran.append, 1)
        except Exception:  # noqa: BLE001  # a storage failure is not the step's
            ran.append(-1)
        return len(ran)

    with pytest.raises(error, match="commit 2 was told"):
        await world.once(works, driver=FaultyDriver(world.driver, **faults))
    assert (await world.run(works)).output == 2
    assert ran == [1, 1]


class Zip:
    """A wrapper of values."""

    def encode(self, data: bytes, /) -> bytes:
        return zlib.compress(data)

    def decode(self, data: bytes, /) -> bytes:
        return zlib.decompress(data)


async def test_values_can_be_wrapped(world: World) -> None:
    text = "secret " * 100

    @workflow
    async def speaks(ctx: Context, given: str) -> str:
        said = await ctx.step("say", lambda: given)
        await ctx.sleep("nap", 1)
        return said

    result: RunResult[str] = RunResult(Status.PENDING)
    while result.status is not Status.COMPLETED:
        world.clock.advance(1)
        result = await run_workflow(
            speaks, text, driver=world.driver, instance_id="i", clock=world.clock, codec=Zip(), mode="yield"
        )
    assert result.output == text
    assert not any(b"secret secret" in value for _, value in await world.driver.scan(b"", b"\xff"))


async def test_the_alarm_of_a_second_try_is_stored_whole(world: World) -> None:
    """Putting away fails, and what is written instead has an alarm that stands in both places."""
    clock, driver = world.clock, world.driver
    keys = InstanceKeys("i")

    @workflow
    async def naps(ctx: Context) -> None:
        await ctx.sleep("nap", 5)

    def puts_away(number: int, batch: Batch) -> bool:
        if Clear(keys.lease) not in batch.writes or clock.time() > began:
            return False
        clock.advance(5)
        return True

    began = clock.time()
    with pytest.raises(StorageError, match="told to fail"):
        await world.once(naps, driver=FaultyDriver(driver, fail_at=puts_away), mode="yield")
    alarm = (await read_about(driver, keys)).head.alarm
    assert alarm is not None
    assert await driver.get(keys.alarm(alarm)) is not None


@pytest.mark.law(6)
async def test_a_timer_that_is_due_while_the_instance_is_evicted(world: World) -> None:
    """The store takes longer to write than the instance is to sleep."""
    clock = ByHand()

    class Slow(FaultyDriver):
        async def commit(self, batch: Batch) -> None:
            clock.offset += 5
            await super().commit(batch)
            clock.offset += 5

    @workflow
    async def naps(ctx: Context) -> None:
        await ctx.sleep("nap", 1)

    result: RunResult[None] = RunResult(Status.PENDING)
    with anyio.fail_after(PATIENCE):
        while result.status is not Status.COMPLETED:
            result = await run_workflow(naps, driver=Slow(world.driver), instance_id="i", mode="yield", clock=clock)
            assert result.status in (Status.SLEEPING, Status.COMPLETED)


@pytest.mark.law(6)
async def test_a_timer_is_kept_when_putting_away_is_overtaken_by_a_message(world: World) -> None:
    """The instance goes on with the message, and with its timer while it still runs."""
    ran: list[str] = []
    clock, timer_ran = ByHand(), anyio.Event()

    @workflow
    async def two(ctx: Context) -> None:
        async def naps(ctx: Context) -> None:
            await ctx.sleep("nap", 60)
            ran.append("timer")
            timer_ran.set()

        async def listens(ctx: Context) -> None:
            await ctx.listen("m")
            await ctx.step("long", slowly)
            ran.append("step")

        await ctx.join("both", {"naps": naps, "listens": listens})

    async def slowly() -> None:
        clock.offset = 61
        await timer_ran.wait()

    keys = InstanceKeys("i")
    told = False

    class Told(FaultyDriver):
        async def commit(self, batch: Batch) -> None:
            nonlocal told
            if Clear(keys.lease) in batch.writes and not told:
                told = True
                async with Client(world.driver) as client:
                    await client.handle(two, "i").send("m")
            await super().commit(batch)

    with anyio.fail_after(PATIENCE):
        result = await run_workflow(two, driver=Told(world.driver), instance_id="i", mode="yield", clock=clock)
    assert told
    assert (result.status, ran) == (Status.COMPLETED, ["timer", "step"])
