"""Tasks while workers and those who complete them die, and while two things happen to one at the same moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.runtime.interleaving import Interleaved
from tests.runtime.looking import Bench, Through
from tests.runtime.polling import until
from tests.tasks.test_tasks import all_of, the_only
from workflow_sdk import (
    Batch,
    Client,
    Context,
    Driver,
    ListenTimeoutError,
    RunResult,
    Runtime,
    StaleError,
    Status,
    Tasks,
    open_driver,
    read_history,
    run_workflow,
    workflow,
)
from workflow_sdk.rows.keys import CLEANUPS, last_of
from workflow_sdk.rows.location import subtree
from workflow_sdk.rows.outside import Cleanup, TaskRow, TaskStatus, all_tasks_of, task_key
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

LIMIT = 60.0


@workflow
async def asks(ctx: Context) -> Any:
    """Asks for something, in time."""
    try:
        done = await ctx.task("task", timeout=LIMIT)
    except ListenTimeoutError:
        return "late"
    return done.value


@workflow
async def asks_twice(ctx: Context) -> list[Any]:
    """Asks two people at once, and then one of them again; and someone who loses a race."""

    async def one(ctx: Context) -> Any:
        return (await ctx.task("one")).value

    async def two(ctx: Context) -> Any:
        return (await ctx.task("two")).value

    async def loses(ctx: Context) -> Any:
        return (await ctx.task("loses", timeout=10**6)).value

    both = await ctx.join("both", {"one": one, "two": two})
    won = await ctx.race("race", {"wins": one, "loses": loses})
    try:
        await ctx.task("late", timeout=5)
    except ListenTimeoutError:
        return [both, won.value, "late"]
    return []


async def complete_all(tasks: Tasks) -> bool:
    """Do what there is to do, but for what nobody does; whether there was anything."""
    todo = [task for task in await all_of(tasks) if task.name in ("one", "two")]
    for task in todo:
        await tasks.complete(task.id, task.path, by="ann")
    return bool(todo)


async def check(driver: Driver) -> None:
    """For every wait there is a task, and for every task a wait, or it was done; or a cleanup says that it is over."""
    rows = await driver.scan(b"", b"\xff")
    tasks = {task.path: task for _, raw in rows_of(rows, task_key("")[:-2]) for task in [TaskRow.unpack(raw)]}
    history = await read_history(driver, "i")
    waiting = {entry.path for entry in history if entry.kind == "task" and entry.status == "waiting"}
    opened = {path for path, task in tasks.items() if task.status is TaskStatus.OPEN}
    cleanups = {tasks_by_id(tasks)[Cleanup.unpack(raw).id] for _, raw in rows_of(rows, CLEANUPS)}
    assert waiting <= tasks.keys()
    assert opened == waiting - {path for path in waiting if tasks[path].status is TaskStatus.COMPLETED} | cleanups


def rows_of(rows: list[tuple[bytes, bytes]], prefix: bytes) -> list[tuple[bytes, bytes]]:
    """Those with this prefix."""
    return [(key, raw) for key, raw in rows if key.startswith(prefix)]


def tasks_by_id(tasks: dict[str, TaskRow]) -> dict[str, str]:
    """Their paths."""
    return {task.id: path for path, task in tasks.items()}


async def task_ids(driver: Driver) -> list[str]:
    """All tasks that there ever were."""
    return [last_of(key) for key, _ in await driver.scan(*subtree(all_tasks_of("i")))]


class Checked(Through):
    """A driver, with a look at everything after each commit."""

    async def commit(self, batch: Batch, /) -> None:
        """As the driver."""
        await self.driver.commit(batch)
        await check(self.driver)


@pytest.mark.parametrize("when", ["crash_before", "crash_after"])
@pytest.mark.parametrize("who", ["worker", "completer"])
async def test_whoever_dies(who: str, when: str) -> None:
    """At whichever commit: it all ends the same, and no task is done twice, or left on the list."""
    number, crashed = 0, True
    while crashed:
        number += 1
        crashed = await whoever_dies(who, when, number)
    assert number > (10 if who == "worker" else 3)


async def whoever_dies(who: str, when: str, number: int) -> bool:
    """One run; whether anybody died."""
    memory, clock = await open_driver("memory://"), VirtualClock(quiet=10)
    options: dict[str, Any] = {when: number}
    faulty = FaultyDriver(Checked(memory), **options)

    def store(mine: str) -> Driver:
        return faulty if who == mine and not faulty.crashed else memory

    result: RunResult[Any] = RunResult(Status.PENDING)
    for _ in range(20):
        with suppress(SimulatedCrash):
            result = await run_workflow(asks_twice, driver=store("worker"), instance_id="i", clock=clock)
        if result.status.is_terminal:
            break
        with suppress(SimulatedCrash):
            async with Client(store("completer"), clock=clock) as client:
                if not await complete_all(client.tasks):
                    clock.advance(5)
    both = {"one": "both/one/one", "two": "both/two/two"}
    assert result.output == [both, "race/wins/one", "late"]
    # What a worker that died has left to be done is done by any runtime that comes by.
    async with Runtime(memory, workflows=[asks_twice], clock=clock) as runtime:

        async def empty() -> bool:
            return await all_of(runtime.tasks) == []

        await until(empty)
        found = [await runtime.tasks.get(id) for id in await task_ids(memory)]
    assert sorted((task.path, task.status.value) for task in found if task.name != "loses") == [
        ("both/one/one", "completed"),
        ("both/two/two", "completed"),
        ("late", "expired"),
        ("race/wins/one", "completed"),
    ]
    assert {task.status.value for task in found if task.name == "loses"} <= {"cancelled"}
    for task in found:
        assert [change.what for change in task.log] == ["created", task.status.value]
    return faulty.crashed


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("interrupted", ["worker", "completer"])
async def test_at_the_same_moment(driver: Driver, interrupted: str, after: bool) -> None:
    """Its time is over, and someone has done it who does not know that yet: exactly one of the two wins."""
    outcomes: set[str] = set()
    for number in range(1, 40):
        calls, outcome = await at_the_same_moment(driver, f"i{after}{number}", interrupted, after, number)
        outcomes.add(outcome)
        if calls < number:
            break
    assert outcomes == {"late", "done"}


async def at_the_same_moment(driver: Driver, id: str, interrupted: str, after: bool, number: int) -> tuple[int, str]:
    """Who comes second comes before or after a call of the other one."""
    clock, slow = VirtualClock(quiet=10), VirtualClock(quiet=10)

    async def go(store: Driver) -> Any:
        return (await run_workflow(asks, driver=store, instance_id=id, clock=clock)).output

    await go(driver)
    clock.advance(LIMIT)
    found: list[str] = []
    async with Client(driver, clock=slow) as client:
        task = await the_only(client.tasks)

    async def complete(store: Driver) -> None:
        # By this clock, there is some time left.
        slow.advance(LIMIT - 1 - (slow.time() - task.created_at.timestamp()))
        async with Client(store, clock=slow) as client:
            try:
                await client.tasks.complete(task.id, "done", by="ann")
            except StaleError:
                found.append("stale")
            else:
                found.append("done")

    first: Callable[[Driver], Awaitable[Any]] = go if interrupted == "worker" else complete
    second = complete if interrupted == "worker" else go
    inside = Interleaved(driver, {number: lambda: second(driver)}, after=after)
    await first(inside)
    for deed in list(inside.left.values()):
        await deed()
    output = await go(driver)
    async with Client(driver, clock=clock) as client:
        status = (await client.tasks.get(task.id)).status
        assert await all_of(client.tasks) == []
    assert (output, found, status) in (("late", ["stale"], "expired"), ("done", ["done"], "completed"))
    return inside.calls, str(output)


async def test_one_of_many(driver: Driver) -> None:
    """However the calls of those who complete one task fall: it is done by one of them."""
    for number in range(1, 12):
        bench = Bench(driver, asks)
        await run_workflow(asks, driver=driver, instance_id=f"m{number}", clock=bench.clock)
        async with Client(driver, clock=bench.clock) as one:
            task = await the_only(one.tasks)

            async def ann(id: str = task.id, one: Client = one) -> None:
                await one.tasks.complete(id, "ann", by="ann")

            inside = Interleaved(driver, {number: ann})
            async with Client(inside, clock=bench.clock) as other:
                try:
                    await other.tasks.complete(task.id, "bob", by="bob")
                    winner = "bob"
                except StaleError:
                    winner = "ann"
            assert (number <= inside.calls) == (winner == "ann")
            result = await run_workflow(asks, driver=driver, instance_id=f"m{number}", clock=bench.clock)
            assert result.output == winner
