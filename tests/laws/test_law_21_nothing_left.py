"""Law 21: what an instance keeps while it lives is bounded, and nothing of it is left when it was deleted.

The same is looked at after every test that has a store: `tests/leftovers.py`.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from tests.laws.counting_driver import rows_of
from tests.leftovers import check_ended, check_nothing_left, keys_of, leftovers
from tests.patience import PATIENCE
from tests.runtime.counting import Counting
from tests.runtime.parts import Rows, until_status
from tests.runtime.polling import until
from tests.runtime.shifted import ByHand
from tests.support import World
from workflow_sdk import (
    Break,
    Client,
    Context,
    Continue,
    ContinueAsNew,
    Driver,
    InstanceNotFoundError,
    Runtime,
    Status,
    Workflow,
    workflow,
)
from workflow_sdk.changes.tasks import ENDED_MAX
from workflow_sdk.changes.workers import Heartbeat, SignalRow
from workflow_sdk.driver import Batch
from workflow_sdk.rows.keys import ROOT, WorkerKeys
from workflow_sdk.rows.location import pack
from workflow_sdk.rows.wire import pack_record
from workflow_sdk.testing import FaultyDriver, SimulatedCrash


async def undo(value: Any) -> None:
    """Undoes a step."""


async def doubled(number: int) -> int:
    """A step."""
    return 2 * number


@workflow
async def child(ctx: Context) -> Any:
    """Waits."""
    ctx.reference = "child"
    return await ctx.listen("end")


@workflow
async def everything(ctx: Context, again: bool) -> Any:
    """Something of everything that leaves rows."""
    ctx.state = {"stage": "new"}
    ctx.reference = "order"
    ctx.progress(1, 2)
    await ctx.step("first", doubled, 1, rollback=undo)
    await ctx.continue_with("successor", child, id=f"successor {again}")

    async def turn(ctx: Context, state: int) -> Continue[int] | Break[int]:
        ctx.state["turn"] = state
        await ctx.step(f"in turn {state}", doubled, state)
        return Continue(state + 1) if state < 3 else Break(state)

    await ctx.loop("loop", turn, 0, commit_interval=2)

    async def takes(ctx: Context) -> None:
        await ctx.step("mine", doubled, 1, rollback=undo)
        await ctx.listen("one")
        await ctx.listen("never")

    async def has_child(ctx: Context) -> None:
        await ctx.child("child", child)

    async def has_task(ctx: Context) -> None:
        await ctx.task("task", assignee="me", roles=["clerk"])

    async def wins(ctx: Context) -> None:
        message = await ctx.listen_message("question")
        await message.reply("answer")

    await ctx.race("race", {"takes": takes, "child": has_child, "task": has_task, "wins": wins})
    if not again:
        return ContinueAsNew(True)
    return await ctx.listen("end")


FLOWS: list[Workflow[Any, Any]] = [everything, child]


async def fill(driver: Driver, **options: Any) -> None:
    """Run something of everything, and have it wait in the end."""
    async with Runtime(driver, workflows=FLOWS, **options) as runtime:
        handle = await runtime.start(everything, False, id="all")
        await runtime.schedule("schedule", child, every=timedelta(days=300))
        for _ in range(2):
            await until_status(handle, Status.WAITING)
            await handle.send("one", 1, key="once")
            assert await handle.ask("question", timeout=PATIENCE) == "answer"
        await until_status(handle, Status.WAITING)


async def ids(client: Client, *, live: bool = False) -> list[str]:
    """All instances, or those that have not ended."""
    return [info.id for info in (await client.list()).items if not (live and info.status.is_terminal)]


async def only_once_per_store(driver: Driver) -> bool:
    """Whether nothing is there but what is kept once per store or shard."""
    return all(isinstance(part, int) for key in await keys_of(driver) for part in key)


@pytest.mark.parametrize("end", ["complete", "cancel", "roll back"])
async def test_when_all_are_deleted_no_row_is_there(driver: Driver, end: str) -> None:
    await fill(driver)
    async with Runtime(driver, workflows=FLOWS), Client(driver) as client:
        for id in await ids(client, live=True):
            handle = client.handle("any", id)
            if end == "complete":
                await handle.send("end")
                await until_status(handle, Status.COMPLETED)
            elif not (await handle.info()).status.is_terminal:  # as a child of one that was cancelled is by now
                await handle.cancel(rollback=end == "roll back")
                await until_status(handle, Status.CANCELLED)
        await client.schedules.delete("schedule")
    await check_ended(driver)
    async with Client(driver) as client:
        for id in await ids(client):
            await client.delete(id)
    assert await only_once_per_store(driver)


async def test_what_is_forgotten_by_time_leaves_no_row(driver: Driver) -> None:
    clock = ByHand()
    await fill(driver, clock=clock, retention=5)
    async with Runtime(driver, workflows=FLOWS, clock=clock), Client(driver, clock=clock) as client:
        await client.schedules.delete("schedule")
        for id in await ids(client, live=True):
            await client.handle("any", id).cancel()

        async def are_forgotten() -> bool:
            clock.offset += 1
            return not await ids(client)

        await until(are_forgotten)
    assert await only_once_per_store(driver)


async def test_what_a_dead_worker_has_left_is_buried(world: World) -> None:
    @workflow(name="child")
    async def job(ctx: Context) -> Any:
        return await ctx.listen("end")

    try:
        await world.once(job, driver=FaultyDriver(world.driver, crash_after=1), mode="live")
    except* SimulatedCrash:
        pass
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(job, "i").send("end", 1)
    left = Rows(await rows_of(world.driver)).workers
    assert len(left) >= 4, "heartbeat, claim, stamp and signal"
    (dead,) = {row[0] for row in left}
    clock = ByHand()
    clock.offset = world.clock.time() - time.time()
    async with Runtime(world.driver, workflows=[job], clock=clock) as runtime:
        handle = runtime.handle(job, "i")

        async def is_over() -> bool:
            clock.offset += 10
            return (await handle.info()).status is Status.COMPLETED

        async def is_buried() -> bool:
            return all(row[0] != dead for row in Rows(await rows_of(world.driver)).workers)

        await until(is_over)
        await until(is_buried)
    assert Rows(await rows_of(world.driver)).workers == []


async def test_of_the_tasks_that_are_over_the_last_are_kept(driver: Driver) -> None:
    count = ENDED_MAX + 15

    @workflow
    async def job(ctx: Context) -> None:
        async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
            await ctx.task("task", payload=number)
            return Continue(number + 1) if number < count else Break()

        await ctx.loop("loop", turn, 0, commit_interval=5)

    sizes: list[int] = []
    done: list[str] = []
    async with Runtime(driver, workflows=[job]) as runtime:
        handle = await runtime.start(job, id="job")

        async def is_open() -> bool:
            return bool((await runtime.tasks.list()).items)

        for _ in range(count):
            await until(is_open)
            (task,) = (await runtime.tasks.list()).items
            await runtime.tasks.complete(task.id, by="me")
            done.append(task.id)
            sizes.append(sum(key[0] == 13 for key in await keys_of(driver)))
        await until(is_open)
        assert max(sizes) <= (ENDED_MAX + 1) * 6
        assert (await runtime.tasks.get(done[-1])).completed_by == "me"
        assert (await runtime.tasks.get(done[-ENDED_MAX])).log
        with pytest.raises(InstanceNotFoundError):
            await runtime.tasks.get(done[0])
        await handle.cancel()
        await runtime.delete("job")
    assert await only_once_per_store(driver)


async def test_a_living_instance_keeps_what_it_needs(driver: Driver) -> None:
    """However many turns it takes: its rows, and those of others that are about it."""
    taken: list[int] = []

    @workflow
    async def job(ctx: Context) -> None:
        async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
            await ctx.step(f"step {number}", doubled, number)
            message = await ctx.listen_message(f"listen {number}", "m")
            await message.reply(number)
            taken.append(number)

            async def quick(ctx: Context) -> None:
                await ctx.sleep("nap", 0)

            async def slow(ctx: Context) -> None:
                await ctx.listen("never")

            await ctx.race(f"race {number}", {"quick": quick, "slow": slow})
            return Continue(number + 1)

        await ctx.loop("loop", turn, 0, commit_interval=2, history_keep=2)

    counting = Counting(driver)
    sizes: list[int] = []
    async with Runtime(counting, workflows=[job]) as runtime:
        handle = await runtime.start(job, id="job")
        for number in range(40):
            assert await handle.ask("m", timeout=PATIENCE) == number
            await counting.until_quiet()
            # But for the signal and the counts of messages, which come as messages take one way or the other.
            counts = [key for key in await keys_of(driver) if key[2:4] in ((4, 21), (4, 30))]
            sizes.append(len(await keys_of(driver)) - len(counts))
    assert max(sizes[20:]) <= max(sizes[:20])


# That the look at every store sees what it is there for.


@pytest.mark.leaves("rows that are written here")
@pytest.mark.parametrize(
    "parts",
    [
        (1, "gone", 2, 0),
        (3, 1, 1.0, "gone"),
        (5, 1, 1, 1.0, "gone"),
        (5, 2, "completed", 1, 1.0, "gone"),
        (7, "gone", "gone"),
        (8, "gone"),
        (9, "gone", 1),
        (11, "reply"),
        (12, b"cleanup"),
        (13, 2, "gone", 0),
        (13, 9, "gone", 1.0, "task"),
        (14, 2, 1.0, "gone"),
        (15, 1, 1.0, "gone"),
        (99, "what is to come"),
    ],
)
async def test_a_row_that_belongs_to_nothing_is_seen(driver: Driver, parts: tuple[Any, ...]) -> None:
    await check_nothing_left(driver)
    batch = Batch()
    batch.set(ROOT + pack(parts), pack_record([]))
    batch.set(ROOT + pack((10, 3)), b"kept once per shard")
    await driver.commit(batch)
    assert leftovers(await keys_of(driver)) == [parts]


async def test_what_belongs_to_something_is_no_leftover(driver: Driver) -> None:
    await fill(driver)
    dead = WorkerKeys("dead")
    batch = Batch()
    batch.set(dead.heartbeat, Heartbeat(1.0, 1.0, 1).pack())
    batch.append(dead.signals, SignalRow("all").pack())
    await driver.commit(batch)
    assert leftovers(await keys_of(driver)) == []
