"""Tasks in loops, branches and races; results that do not fit; and mistakes in asking."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.looking import Bench
from tests.runtime.parts import until_status
from tests.runtime.polling import until
from tests.tasks.test_tasks import all_of, the_only, unchanged
from workflow_sdk import (
    Backoff,
    Break,
    Client,
    Context,
    Continue,
    Driver,
    Runtime,
    StaleError,
    Status,
    workflow,
)
from workflow_sdk.testing import VirtualClock


async def test_every_turn_asks_anew(driver: Driver) -> None:
    @workflow
    async def turns(ctx: Context) -> Any:
        async def body(ctx: Context, found: list[Any]) -> Continue[list[Any]] | Break[list[Any]]:
            done = await ctx.task("task")
            found = [*found, done.task_id]
            return Continue(found) if len(found) < 5 else Break(found)

        return await ctx.loop("turns", body, [], commit_interval=2)

    bench = Bench(driver, turns)
    seen: list[str] = []
    async with Client(driver, clock=bench.clock) as client:
        for _ in range(5):
            await bench.go()
            seen.append((await the_only(client.tasks)).id)
            await client.tasks.complete(seen[-1], by="ann")
        assert (await bench.go()).output == seen
        assert len(set(seen)) == 5
        assert [(await client.tasks.get(id)).path for id in seen] == [f"turns/~{turn}/task" for turn in range(5)]


async def test_many_at_once(driver: Driver) -> None:
    """A join of people; done from where it runs, and from where nothing does, in any order."""

    @workflow
    async def all_ask(ctx: Context, count: int) -> list[Any]:
        async def one(ctx: Context, number: int) -> Any:
            return (await ctx.task("task", payload=number)).value

        return await ctx.map("all", one, range(count))

    async with Runtime(driver, workflows=[all_ask]) as runtime, Client(driver) as client:
        handle = await runtime.start(all_ask, 30, id="i")

        async def there() -> bool:
            return len((await client.tasks.list()).items) == 30

        await until(there)
        await until_status(handle, Status.WAITING)
        found = await all_of(client.tasks, limit=7)
        assert sorted(task.payload for task in found) == list(range(30))
        async with anyio.create_task_group() as group:
            for number, task in enumerate(reversed(found)):
                tasks = (runtime if number % 2 else client).tasks
                group.start_soon(partial(tasks.complete, task.id, task.payload * 2, by="ann"))
        assert await handle.result(timeout=PATIENCE) == [number * 2 for number in range(30)]
        assert await all_of(client.tasks) == []


async def test_the_result_is_of_another_type(driver: Driver) -> None:
    """It is set aside, and the task is open again."""

    @workflow
    async def typed(ctx: Context) -> Any:
        return (await ctx.task("task", type=int)).value

    bench = Bench(driver, typed)
    async with Client(driver, clock=bench.clock) as client:
        await bench.go()
        task = await the_only(client.tasks)
        await client.tasks.complete(task.id, "five", by="ann")
        assert (await bench.go()).status is Status.WAITING
        assert await the_only(client.tasks) == task
        await client.tasks.complete(task.id, 5, by="ann")
        assert (await bench.go()).output == 5


MISTAKES: list[dict[str, Any]] = [
    {"payload": object()},
    {"payload": "x" * 2_100_000},
    {"assignee": ""},
    {"assignee": 5},
    {"roles": [""]},
    {"roles": [5]},
    {"timeout": 5, "until": VirtualClock().now()},
    {"timeout": "5"},
    {"until": VirtualClock().now().replace(tzinfo=None)},
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: "-".join(mistake))
async def test_mistakes(driver: Driver, mistake: dict[str, Any]) -> None:
    @workflow
    async def wrong(ctx: Context) -> Any:
        return await ctx.task("task", **mistake)

    result = await Bench(driver, wrong).go()
    assert (result.status, result.error and result.error.kind) == (Status.STUCK, "definition")
    assert result.error is not None
    assert "task 'task'" in result.error.message
    async with Client(driver) as client:
        assert await all_of(client.tasks) == []


async def test_a_race_of_people(driver: Driver) -> None:
    """The first wins; the tasks of the others are taken off the list, and a step that is retried meanwhile goes on."""

    def breaks() -> None:
        raise ValueError("no")

    @workflow
    async def races(ctx: Context) -> Any:
        async def one(ctx: Context) -> Any:
            return (await ctx.task("task")).value

        async def retries(ctx: Context) -> Any:
            await ctx.step("step", breaks, retries=9, backoff=Backoff(initial=60, factor=1, jitter=0))

        won = await ctx.race("race", {"a": one, "b": one, "c": retries})
        return [won.winner, won.value]

    async with Runtime(driver, workflows=[races]) as runtime:
        handle = await runtime.start(races, id="i")
        await until_status(handle, Status.WAITING)
        first, second = (await runtime.tasks.list()).items
        if first.path != "race/a/task":
            first, second = second, first
        await runtime.tasks.complete(second.id, "b was it", by="bob")
        assert await handle.result(timeout=PATIENCE) == ["b", "b was it"]
        assert await all_of(runtime.tasks) == []
        await unchanged(driver, runtime.tasks, first.id, StaleError, "is cancelled")
