"""Law 1: whoever is cancelled while a commit is in flight writes nothing twice, and keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from tests.patience import PATIENCE
from tests.runtime.looking import Through
from workflow_sdk import (
    Backoff,
    Batch,
    Client,
    Context,
    Driver,
    Handle,
    InstanceInfo,
    Runtime,
    StaleError,
    Status,
    open_driver,
    run_workflow,
    workflow,
)
from workflow_sdk.changes.decide import DEATHS_MAX
from workflow_sdk.rows.keys import Field, InstanceKeys, WorkerKeys
from workflow_sdk.testing import FaultyDriver

COMMITS_MAX = 50

pytestmark = [pytest.mark.law(10)]


class Cancelling(Through):
    """Cancels its user in one commit, just before or just after it is applied; then others have their turn."""

    def __init__(self, driver: Driver, number: int, *, is_applied: bool, cancel: Callable[[], object]) -> None:
        super().__init__(driver)
        self.left = number
        self.is_applied = is_applied
        self.cancel = cancel
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def commit(self, batch: Batch, /) -> None:
        self.left -= 1
        if self.left:
            await self.driver.commit(batch)
            return
        if self.is_applied:
            await self.driver.commit(batch)
        if self.meanwhile is not None:
            with anyio.CancelScope(shield=True):
                await self.meanwhile()
        self.cancel()
        await anyio.lowlevel.checkpoint()
        if not self.is_applied:
            await self.driver.commit(batch)


@workflow
async def asks(ctx: Context) -> str:
    async def prepare() -> None:
        pass

    await ctx.step("prepare", prepare)
    done = await ctx.task("approve", type=str)
    return done.value


async def cancelled_at(driver: Driver, number: int, *, is_applied: bool) -> bool:
    """Cancel a run in one of its commits, and complete its task just then; whether it came to that commit."""
    completed: list[str] = []
    async with Client(driver) as client:

        async def complete() -> None:
            for task in (await client.tasks.list()).items:
                await client.tasks.complete(task.id, "yes", by="ann")
                completed.append(task.id)

        scope = anyio.CancelScope()
        through = Cancelling(driver, number, is_applied=is_applied, cancel=scope.cancel)
        through.meanwhile = complete
        with scope:
            await run_workflow(asks, driver=through, instance_id="i", mode="yield")
        result = await run_workflow(asks, driver=driver, instance_id="i")
        await complete()
        if result.status is Status.WAITING:
            result = await run_workflow(asks, driver=driver, instance_id="i")
        assert (result.status, result.output) == (Status.COMPLETED, "yes")
        assert len(completed) == 1, "the task was completed once"
        log = (await client.tasks.get(completed[0])).log
        assert [change.what for change in log] == ["created", "completed"]
        with pytest.raises(StaleError):
            await client.tasks.complete(completed[0], "no", by="ben")
        await client.delete("i")
    return through.left <= 0


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("is_applied", [True, False], ids=["applied", "not applied"])
async def test_a_run_cancelled_in_a_commit_writes_nothing_over_what_others_did_since(is_applied: bool) -> None:
    driver = await open_driver("memory://")
    number = 1
    while await cancelled_at(driver, number, is_applied=is_applied):
        number += 1
    assert 3 <= number < COMMITS_MAX


def task_of(task: asyncio.Task[None] | None) -> asyncio.Task[None]:
    assert task is not None, "a test is one"
    return task


async def deaths_of(driver: Driver) -> bytes | None:
    return await driver.get(InstanceKeys("i").field(Field.DEATHS))


@pytest.mark.parametrize("is_applied", [True, False], ids=["applied", "not applied"])
@pytest.mark.parametrize("native", [True, False], ids=["task", "scope"])
async def test_a_run_cancelled_while_it_claims_gives_the_instance_back(native: bool, is_applied: bool) -> None:
    driver = await open_driver("memory://")
    keys = InstanceKeys("i")
    for _ in range(2 * DEATHS_MAX):
        with anyio.CancelScope() as scope:
            cancel = task_of(asyncio.current_task()).cancel if native else scope.cancel
            through = Cancelling(driver, 1, is_applied=is_applied, cancel=cancel)
            try:
                await run_workflow(asks, driver=through, instance_id="i")
            except asyncio.CancelledError:
                if not native:
                    raise
                task_of(asyncio.current_task()).uncancel()
            else:
                raise AssertionError("it was cancelled")
        assert await driver.get(keys.lease) is None
        assert await deaths_of(driver) is None
    assert (await run_workflow(asks, driver=driver, instance_id="i")).status is Status.WAITING


@pytest.mark.usefixtures("host")
async def test_a_branch_that_loses_while_its_commit_is_in_flight_does_not_end_the_run() -> None:
    tries: list[int] = []

    async def work() -> None:
        pass

    async def flaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once more")

    @workflow
    async def races(ctx: Context) -> str:
        async def loses(ctx: Context) -> str:
            for number in range(1000):
                await ctx.step(f"work {number}", work)
            return "never"

        async def wins(ctx: Context) -> str:
            # Its second attempt succeeds without a commit: it wins while the other's is in flight.
            await ctx.step("flaky", flaky, repeatable=True, backoff=Backoff(initial=0.05, jitter=0))
            return "won"

        won = await ctx.race("race", {"loses": loses, "wins": wins})
        await ctx.step("after", work)
        return won.value

    driver = FaultyDriver(await open_driver("memory://"), latency=0.02)
    with anyio.fail_after(PATIENCE):
        result = await run_workflow(races, driver=driver, instance_id="i", mode="live")
    assert (result.status, result.output) == (Status.COMPLETED, "won")
    assert await driver.get(InstanceKeys("i").lease) is None


class Late(Through):
    """Cancels its user when a commit that it waits for has been applied."""

    def __init__(self, driver: Driver, part: bytes) -> None:
        super().__init__(driver)
        self.part = part
        """What the commit writes, or to which key."""
        self.cancel: Callable[[], object] | None = None

    async def commit(self, batch: Batch, /) -> None:
        await self.driver.commit(batch)
        if self.cancel is not None and any(self.part in part for write in batch.writes for part in write):
            cancel, self.cancel = self.cancel, None
            cancel()
            await anyio.lowlevel.checkpoint()


async def cancelled(driver: Late, call: Awaitable[object]) -> None:
    """Await the call, whose task is cancelled when its commit has been applied."""
    task = asyncio.ensure_future(call)
    driver.cancel = task.cancel
    with pytest.raises(asyncio.CancelledError):
        await task
    assert driver.cancel is None


@asynccontextmanager
async def aclosing_watch(handle: Handle[str]) -> AsyncGenerator[AsyncGenerator[InstanceInfo]]:
    """What is seen of an instance, until it is left."""
    seen = handle.watch()
    assert isinstance(seen, AsyncGenerator), "one that is to be closed"
    async with aclosing(seen):
        yield seen


@workflow
async def listens(ctx: Context) -> str:
    return await ctx.listen("go", type=str)


@pytest.mark.law(6)
@pytest.mark.parametrize("key", [None, "k"], ids=["handed over", "through the store"])
async def test_a_message_whose_sender_was_cancelled_is_looked_for(key: str | None) -> None:
    driver = Late(await open_driver("memory://"), b"the payload")
    with anyio.fail_after(PATIENCE):
        async with Runtime(driver, workflows=[listens]) as runtime:
            handle = await runtime.start(listens)
            async with aclosing_watch(handle) as seen:
                async for info in seen:
                    if info.status is Status.WAITING:
                        break
            await cancelled(driver, handle.send("go", "the payload", key=key))
            assert await handle.result() == "the payload"


@pytest.mark.law(6)
async def test_a_task_whose_completion_was_cancelled_is_looked_for() -> None:
    driver = Late(await open_driver("memory://"), b"the result")
    with anyio.fail_after(PATIENCE):
        async with Runtime(driver, workflows=[asks]) as runtime:
            handle = await runtime.start(asks)
            async with aclosing_watch(handle) as seen:
                async for info in seen:
                    if info.waits:
                        break
            (task,) = (await runtime.tasks.list()).items
            await cancelled(driver, runtime.tasks.complete(task.id, "the result", by="ann"))
            assert await handle.result() == "the result"


async def test_what_was_started_by_a_call_that_was_cancelled_is_run() -> None:
    driver = Late(await open_driver("memory://"), InstanceKeys("i").lease)
    with anyio.fail_after(PATIENCE):
        async with Runtime(driver, workflows=[listens]) as runtime:
            await cancelled(driver, runtime.start(listens, id="i"))
            assert runtime.resident == 1
    assert await driver.get(InstanceKeys("i").lease) is None


async def test_a_runtime_that_is_cancelled_as_it_opens_has_no_heartbeat() -> None:
    begin, end = WorkerKeys.heartbeats()
    driver = Late(await open_driver("memory://"), begin[:-1])
    await cancelled(driver, Runtime(driver, workflows=[listens]).__aenter__())
    assert await driver.scan(begin, end) == []
