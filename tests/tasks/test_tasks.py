"""Tasks for people: the list of them, and that each is done once, in time, by someone who may, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import Any

import anyio
import pytest

from tests.runtime.looking import Bench, dump
from tests.runtime.parts import Rows
from workflow_sdk import (
    Client,
    CodecError,
    Context,
    DefinitionError,
    Driver,
    InstanceNotFoundError,
    ListenTimeoutError,
    NotAuthorizedError,
    StaleError,
    Status,
    Task,
    TaskResult,
    Tasks,
    run_workflow,
    workflow,
)
from workflow_sdk.testing import VirtualClock

SIGNALS = 10
"""Rung for whoever waits for something to be due."""

Ask = dict[str, Any]


@workflow
async def asks(ctx: Context, ask: Ask) -> Any:
    """Asks for one thing."""
    ctx.reference = ask.get("reference")
    rest = {name: value for name, value in ask.items() if name not in ("reference", "name")}
    try:
        done = await ctx.task(ask.get("name", "task"), **rest)
    except ListenTimeoutError:
        return "late"
    return [done.value, done.by]


async def all_of(tasks: Tasks, **filters: Any) -> list[Task]:
    """What is listed, over all pages."""
    found: list[Task] = []
    cursor: str | None = None
    while True:
        page = await tasks.list(cursor=cursor, **filters)
        assert len(page.items) <= filters.get("limit", 100)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


async def the_only(tasks: Tasks) -> Task:
    """The one open task."""
    (task,) = (await tasks.list()).items
    return task


async def unchanged(driver: Driver, tasks: Tasks, id: str, error: type[Exception], match: str, **how: Any) -> None:
    """To complete it is an error, and changes nothing."""
    before = await dump(driver)
    with pytest.raises(error, match=match):
        await tasks.complete(id, "stale", **{"by": "mallory", **how})
    assert await dump(driver) == before


async def test_done_by_someone(driver: Driver) -> None:
    bench = Bench(driver, asks, {"payload": {"amount": 5}, "assignee": "ann", "roles": ["clerk"], "timeout": 60})
    async with Client(driver, clock=bench.clock) as client:
        assert (await bench.go()).status is Status.WAITING
        task = await the_only(client.tasks)
        (wait,) = (await bench.info()).waits
        assert (wait.kind, wait.target, wait.until) == ("task", task.id, task.until)
        now = bench.clock.now()
        assert task == Task(
            id=task.id,
            name="task",
            instance="i",
            path="task",
            payload={"amount": 5},
            assignee="ann",
            roles=("clerk",),
            reference=None,
            status=task.status,
            token=wait.token,
            created_at=now,
            until=now + timedelta(seconds=60),
        )
        assert task.status == "open"
        bench.clock.advance(1)
        await client.tasks.complete(task.id, {"paid": True}, by="bob", roles=["clerk"])
        assert (await client.tasks.list()).items == []
        done = await client.tasks.get(task.id)
        assert (done.status, done.completed_by, done.result) == ("completed", "bob", {"paid": True})
        assert done.ended_at == bench.clock.now()
        assert (await bench.go()).output == [{"paid": True}, "bob"]
        await client.delete("i")
        with pytest.raises(InstanceNotFoundError, match="there is no task"):
            await client.tasks.get(task.id)
    assert [key for key in (await Rows.of(driver)).keys if key[0] != SIGNALS] == []


@dataclass
class Receipt:
    """A result."""

    amount: int


async def test_what_the_workflow_gets(driver: Driver) -> None:
    @workflow
    async def typed(ctx: Context) -> list[Any]:
        done = await ctx.task("task", type=Receipt)
        assert isinstance(done, TaskResult)
        await ctx.sleep("nap", 1)
        return [done.value == done.result == Receipt(5), done.by, done.completed_at == ctx.now(), done.task_id]

    bench = Bench(driver, typed)
    async with Client(driver, clock=bench.clock) as client:
        await bench.go()
        task = await the_only(client.tasks)
        await client.tasks.complete(task.id, {"amount": 5}, by="ann")
        await bench.go()
        assert (await bench.go(1)).output == [True, "ann", False, task.id]


async def test_lists(driver: Driver) -> None:
    """Every filter alone and together, oldest first, in pages of every size."""
    clock = VirtualClock()
    kinds = list(product([None, "ann", "bob"], [[], ["clerk"], ["clerk", "boss"]], [None, "r1", "r2"]))
    for number, (assignee, roles, reference) in enumerate(kinds):
        ask = {"assignee": assignee, "roles": roles, "reference": reference, "payload": number}
        clock.advance(1)
        await run_workflow(asks, ask, driver=driver, instance_id=f"i{number}", clock=clock)
    async with Client(driver, clock=clock) as client:
        everything = await all_of(client.tasks)
        assert [task.payload for task in everything] == list(range(27))
        done = [task for task in everything if task.payload % 7 == 3]
        for task in done:
            await client.tasks.complete(task.id, by="x", roles=["clerk", "boss"])
        left = [task for task in everything if task not in done]
        ways = product([None, "ann", "carl"], [None, "clerk", "boss"], [None, "r1"], [None, "i5"], [1, 3, 100])
        for assignee, role, reference, instance, limit in ways:
            expected = [
                task.payload
                for task in left
                if assignee in (None, task.assignee)
                and (role is None or role in task.roles)
                and reference in (None, task.reference)
                and instance in (None, task.instance)
            ]
            found = await all_of(
                client.tasks, assignee=assignee, role=role, reference=reference, instance=instance, limit=limit
            )
            assert [task.payload for task in found] == expected
        page = await client.tasks.list(limit=1)
        bad: list[dict[str, Any]] = [{"limit": 0}, {"limit": 1001}, {"limit": True}, {"cursor": "x"}]
        bad.append({"cursor": page.cursor, "role": "clerk"})
        for wrong in bad:
            with pytest.raises(DefinitionError):
                await client.tasks.list(**wrong)


async def test_given_to_someone_else(driver: Driver) -> None:
    bench = Bench(driver, asks, {"assignee": "ann"})
    async with Client(driver, clock=bench.clock) as client:
        tasks = client.tasks
        await bench.go()
        task = await the_only(tasks)

        async def listed() -> list[str]:
            return [name for name in ("ann", "bob", "carl") if (await tasks.list(assignee=name)).items]

        assert await listed() == ["ann"]
        bench.clock.advance(1)
        await tasks.assign(task.id, "bob", by="boss")
        assert await listed() == ["bob"]
        log = (await tasks.get(task.id)).log
        await tasks.release(task.id)
        assert await listed() == []
        assert (await the_only(tasks)).assignee is None
        assert (await tasks.get(task.id)).log[:2] == log, "what has happened stays"
        async with anyio.create_task_group() as group:
            for name in ("bob", "carl"):
                group.start_soon(tasks.assign, task.id, name)
        (owner,) = await listed()
        bench.clock.advance(1)
        await tasks.complete(task.id, by="dora")
        assert await listed() == []
        log = (await tasks.get(task.id)).log
        assert [(change.what, change.by, change.to) for change in log] == [
            ("created", None, "ann"),
            ("assigned", "boss", "bob"),
            ("released", None, None),
            *(("assigned", None, name) for name in sorted(["bob", "carl"], key=owner.__eq__)),
            ("completed", "dora", None),
        ]
        assert [change.at for change in log] == sorted(change.at for change in log)
        before = await dump(driver)
        for late in (tasks.assign(task.id, "ann"), tasks.release(task.id)):
            with pytest.raises(StaleError, match="is completed by 'dora'"):
                await late
        with pytest.raises(InstanceNotFoundError):
            await tasks.assign("nothing", "ann")
        assert await dump(driver) == before
        assert (await bench.go()).output == [None, "dora"]


async def test_who_may(driver: Driver) -> None:
    bench = Bench(driver, asks, {"roles": ["clerk", "boss"]})
    async with Client(driver, clock=bench.clock) as client:
        await bench.go()
        task = await the_only(client.tasks)
        for roles in ([], ["guest"], "cler"):
            await unchanged(driver, client.tasks, task.id, NotAuthorizedError, "for 'clerk' or 'boss'", roles=roles)
        for wrong in ({"by": ""}, {"by": 5}, {"by": None}):
            await unchanged(driver, client.tasks, task.id, DefinitionError, "completed by someone", **wrong)
        before = await dump(driver)
        with pytest.raises(CodecError, match="the result of task"):
            await client.tasks.complete(task.id, object(), by="ann", roles="boss")
        with pytest.raises(DefinitionError):
            await client.tasks.assign(task.id, "")
        assert await dump(driver) == before
        await client.tasks.complete(task.id, 1, by="ann", roles="boss")
        # Who may is asked last: it is over for everybody.
        await unchanged(driver, client.tasks, task.id, StaleError, "is completed by 'ann'", roles=["clerk"])
        assert (await bench.go()).output == [1, "ann"]
        await unchanged(driver, client.tasks, task.id, StaleError, "is completed by 'ann'", roles=["clerk"])


async def test_too_late(driver: Driver) -> None:
    bench = Bench(driver, asks, {"timeout": 60})
    async with Client(driver, clock=bench.clock) as client:
        await bench.go()
        task = await the_only(client.tasks)
        bench.clock.advance(60)
        # Nobody has looked yet, but its time is over.
        await unchanged(driver, client.tasks, task.id, StaleError, "was over at")
        assert (await bench.go()).output == "late"
        await unchanged(driver, client.tasks, task.id, StaleError, "is expired")
        after = await client.tasks.get(task.id)
        assert (after.status, after.ended_at) == ("expired", bench.clock.now())
        assert [change.what for change in after.log] == ["created", "expired"]
        assert await all_of(client.tasks) == []


@pytest.mark.parametrize("how", ["cancel", "restart", "restart_from", "race", "delete"])
async def test_nobody_waits_for_it_any_more(driver: Driver, how: str) -> None:
    @workflow
    async def races(ctx: Context) -> Any:
        async def task(ctx: Context) -> Any:
            return (await ctx.task("task")).value

        async def message(ctx: Context) -> Any:
            return await ctx.listen("m")

        first = await ctx.race("race", {"task": task, "message": message})
        return [first.winner, await ctx.listen("end")]

    bench = Bench(driver, races)
    async with Client(driver, clock=bench.clock) as client:
        await bench.go()
        task = await the_only(client.tasks)
        handle = client.handle(races, "i")
        match how:
            case "restart":
                await handle.restart_from()
            case "restart_from":
                await handle.restart_from("race/task/task")
            case "race":
                await handle.send("m")
                await bench.go()
            case _:
                await handle.cancel()
        if how == "delete":
            await client.delete("i")
            await unchanged(driver, client.tasks, task.id, InstanceNotFoundError, "there is no task")
            assert [key for key in (await Rows.of(driver)).keys if key[0] != SIGNALS] == []
            return
        assert await all_of(client.tasks) == []
        await unchanged(driver, client.tasks, task.id, StaleError, "is cancelled")
        assert [change.what for change in (await client.tasks.get(task.id)).log] == ["created", "cancelled"]
        if how.startswith("restart"):
            await bench.go()
            again = await the_only(client.tasks)
            assert again.id != task.id
            await client.tasks.complete(again.id, 1, by="ann")
            await bench.go()
            await handle.send("end")
            assert (await bench.go()).output == ["task", None]
        await handle.cancel() if how == "race" else None
        await client.delete("i")
        assert (await Rows.of(driver)).of_instance("i") == []
        with pytest.raises(InstanceNotFoundError):
            await client.tasks.get(task.id)
