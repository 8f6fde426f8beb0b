"""Law 17: a commit that the store refuses as too large makes its instance stuck, once; it is not tried for ever."""

from __future__ import annotations

from typing import Any

import pytest

from tests.laws.counting_driver import WatchedDriver, rows_of
from tests.patience import PATIENCE
from tests.runtime.counting import Counting
from tests.runtime.parts import Rows, until_status
from tests.runtime.shifted import ByHand
from tests.support import World
from workflow_sdk import (
    Batch,
    Client,
    Context,
    ContinueAsNew,
    Driver,
    ErrorInfo,
    RunResult,
    Runtime,
    Status,
    StorageLimitError,
    Workflow,
    run_workflow,
    workflow,
)
from workflow_sdk.worker.claims import RETRY_SECONDS

LIMIT = 20_000


class SmallStore(WatchedDriver):
    """A store that refuses every batch of more than a few bytes, until it is made larger."""

    limit = LIMIT

    async def commit(self, batch: Batch, /) -> None:
        """As the driver inside, unless the batch is too large."""
        size = sum(len(part) for write in batch.writes for part in write)
        if size > self.limit:
            raise StorageLimitError(f"a batch of {size:,} bytes is over the limit of {self.limit:,} bytes")
        await super().commit(batch)


def check_told(result: RunResult[Any]) -> ErrorInfo:
    """It is stuck, and says what for and what to do."""
    assert result.status is Status.STUCK
    error = result.error
    assert error is not None
    assert error.type == "workflow_sdk.errors.StorageLimitError"
    assert error.kind == "definition"
    assert "over the limit of" in error.message
    assert "recover" in error.message
    return error


async def recovered(world: World, flow: Workflow[Any, Any]) -> RunResult[Any]:
    """What comes of the instance once the store takes more."""
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(flow, "i").recover()
    return await world.once(flow, mode="yield")


async def test_many_large_messages_taken_at_once(world: World) -> None:
    steps: list[str] = []

    @workflow
    async def job(ctx: Context) -> int:
        await ctx.step("first", lambda: steps.append("first"))
        messages = await ctx.listen_many("messages", "message", count=10, type=str)
        return sum(map(len, messages))

    small = SmallStore(world.driver)
    assert (await world.once(job, driver=small, mode="yield")).status is Status.WAITING
    for number in range(10):
        await world.send("message", str(number) * 3_000)
    error = check_told(await world.once(job, driver=small, mode="yield"))
    assert "listen 'messages'" in error.message
    small.reset()
    again = await world.once(job, driver=small, mode="yield")
    assert (again.status, small.commits) == (Status.STUCK, []), "it is not tried again by itself"
    assert (await recovered(world, job)).output == 30_000, "no message is lost"
    assert steps == ["first"]


async def test_the_output(world: World) -> None:
    calls: list[int] = []

    @workflow
    async def job(ctx: Context) -> str:
        await ctx.step("step", lambda: calls.append(1))
        return "x" * LIMIT

    check_told(await world.run(job, driver=SmallStore(world.driver)))
    assert (await recovered(world, job)).output == "x" * LIMIT
    assert calls == [1]


async def test_the_state_that_everybody_may_see(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> str:
        ctx.reference = "large"
        ctx.state = {"text": "x" * LIMIT}
        await ctx.sleep("nap", 1)
        return "done"

    check_told(await world.run(job, driver=SmallStore(world.driver)))
    async with Client(world.driver) as client:
        assert (await client.handle(job, "i").info()).state == {}
        assert not (await client.list(reference="large")).items, "no index tells what the instance does not"
    result = await recovered(world, job)
    assert result.status is Status.SLEEPING
    assert (await world.run(job)).output == "done"


async def test_starting_over_with_a_large_input(world: World) -> None:
    @workflow
    async def job(ctx: Context, text: str) -> Any:
        return len(text) if text else ContinueAsNew("x" * LIMIT)

    check_told(await world.run(job, "", driver=SmallStore(world.driver)))
    assert (await recovered(world, job)).output == LIMIT


async def test_a_message_to_another(world: World) -> None:
    @workflow
    async def listens(ctx: Context) -> int:
        return len(await ctx.listen("message"))

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.send("send", "other", "message", "x" * LIMIT)

    assert (await world.once(listens, id="other", mode="yield")).status is Status.WAITING
    error = check_told(await world.run(job, driver=SmallStore(world.driver)))
    assert error.message
    assert (await recovered(world, job)).status is Status.COMPLETED
    assert (await world.once(listens, id="other", mode="yield")).output == LIMIT


async def test_becoming_idle(world: World) -> None:
    """The commit that evicts an instance is no other than the rest."""

    @workflow
    async def job(ctx: Context) -> Any:
        ctx.state = {"text": "x" * LIMIT}
        return await ctx.listen("message")

    check_told(await world.run(job, driver=SmallStore(world.driver)))
    assert (await recovered(world, job)).status is Status.WAITING


async def test_it_leaves_no_row_of_its_worker(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> str:
        return "x" * LIMIT

    check_told(await world.run(job, driver=SmallStore(world.driver)))
    rows = Rows(await rows_of(world.driver))
    assert (rows.workers, rows.leases, rows.alarms) == ([], [], [])


async def test_while_it_rolls_back(world: World) -> None:
    """Stuck, and then it goes on rolling back."""
    undone: list[str] = []

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("a", lambda: "a", rollback=lambda value: undone.append(value))
        await ctx.step("b", lambda: "b", rollback=lambda value: undone.append(value))
        raise ValueError("x" * 5_000)

    small = SmallStore(world.driver)
    small.limit = 4_000
    check_told(await world.run(job, driver=small))
    result = await recovered(world, job)
    assert result.status is Status.ROLLED_BACK
    assert undone == ["b", "a"]


@pytest.mark.parametrize("spare", [0, 20])
async def test_a_value_at_the_largest_limit(driver: Driver, spare: int) -> None:
    """Its own size is allowed, and with what stands around it in its row it is too large for the store."""
    calls: list[int] = []

    async def large() -> bytes:
        calls.append(1)
        return b"x" * (9_999_995 - spare)

    @workflow
    async def job(ctx: Context) -> int:
        return len(await ctx.step("large", large))

    result = await run_workflow(job, driver=driver, instance_id="i", max_value_bytes=10_000_000)
    check_told(result)
    assert calls == [1]
    again = await run_workflow(job, driver=driver, instance_id="i", max_value_bytes=10_000_000)
    assert (again.status, calls) == (Status.STUCK, [1])


async def test_in_a_runtime_it_is_tried_once(driver: Driver) -> None:
    """And others are served."""
    calls: list[int] = []
    clock = ByHand()

    @workflow
    async def job(ctx: Context) -> str:
        await ctx.step("step", lambda: calls.append(1))
        return "x" * LIMIT

    @workflow
    async def other(ctx: Context) -> str:
        return "done"

    counting = Counting(SmallStore(driver))
    async with Runtime(counting, workflows=[job, other], clock=clock, lease_ttl=3600) as runtime:
        handle = await runtime.start(job)
        await until_status(handle, Status.STUCK)
        assert await (await runtime.start(other)).result(timeout=PATIENCE) == "done"
        await counting.until_quiet()
        before = counting.commits
        for _ in range(5):
            clock.offset += RETRY_SECONDS
            await counting.until_quiet()
        assert counting.commits == before
        assert runtime.resident == 0
        assert calls == [1]
