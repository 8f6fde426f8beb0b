"""`run_workflow` of an instance with children and tasks: it runs the children, and says what all of them wait for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Rows
from tests.support import World
from workflow_sdk import (
    ChildFailedError,
    Client,
    Context,
    DefinitionError,
    RunResult,
    Runtime,
    Status,
    Workflow,
    run_workflow,
    workflow,
)
from workflow_sdk.instance.execution import Mode
from workflow_sdk.testing import FaultyDriver, SimulatedCrash


async def once(
    world: World, flow: Workflow[Any, Any], value: Any = None, *, mode: Mode = "yield", **options: Any
) -> RunResult[Any]:
    """One call, on the clock of the test."""
    options = {"driver": world.driver, "clock": world.clock, "instance_id": "i", "mode": mode, **options}
    run: Any = run_workflow
    with anyio.fail_after(PATIENCE):
        result: RunResult[Any] = await run(flow, value, **options)
    return result


@workflow
async def doubles(ctx: Context, number: int) -> int:
    return await ctx.step("double", lambda: 2 * number)


@workflow
async def naps(ctx: Context, seconds: float) -> str:
    await ctx.sleep("nap", seconds)
    return "awake"


@workflow
async def listens(ctx: Context) -> str:
    return await ctx.listen("word", type=str)


@workflow
async def asks(ctx: Context) -> str:
    return (await ctx.task("approve", type=str)).value


@workflow
async def breaks(ctx: Context) -> None:
    raise ValueError("broken")


@workflow
async def family(ctx: Context, depth: int) -> int:
    """A child in a child, and so on."""
    return 0 if not depth else 1 + await ctx.child("inner", family, depth - 1)


async def test_children_run_in_the_same_call(world: World) -> None:
    @workflow
    async def parent(ctx: Context) -> list[int]:
        async def branch(ctx: Context, number: int) -> int:
            return await ctx.child("child", doubles, number)

        first = await ctx.child("first", doubles, 100)
        return [first, *await ctx.map("all", branch, [1, 2, 3])]

    result = await once(world, parent, mode=world.setting.mode)
    assert (result.status, result.output, result.waits) == (Status.COMPLETED, [200, 2, 4, 6], [])
    rows = await Rows.of(world.driver)
    assert (rows.leases, rows.alarms, rows.workers) == ([], [], [])


async def test_children_of_children(world: World) -> None:
    assert (await once(world, family, 5, mode=world.setting.mode)).output == 5


async def test_what_children_wait_for_is_in_the_result(world: World) -> None:
    @workflow
    async def parent(ctx: Context) -> dict[str, Any]:
        return await ctx.join(
            "all",
            {
                "naps": lambda ctx: ctx.child("naps", naps, 60),
                "listens": lambda ctx: ctx.child("listens", listens),
                "asks": lambda ctx: ctx.child("asks", asks),
                "doubles": lambda ctx: ctx.child("doubles", doubles, 4),
                "task": lambda ctx: ctx.task("sign"),
                "later": lambda ctx: ctx.sleep("later", 3600),
            },
        )

    began = datetime.fromtimestamp(world.clock.time(), UTC)
    result = await once(world, parent)
    assert result.status is Status.WAITING
    assert result.waiting_for == []
    kinds = sorted(wait.kind for wait in result.waits)
    assert kinds == ["child", "child", "child", "message", "task", "task", "timer", "timer"]
    assert result.wake_at == began + timedelta(seconds=60), "that of a child is the first"
    async with Client(world.driver, clock=world.clock) as client:
        tasks = {wait.name: wait.target or "" for wait in result.waits if wait.kind == "task"}
        assert sorted(tasks) == ["approve", "sign"]
        for id in tasks.values():
            await client.tasks.complete(id, "yes", by="me")
        children = {wait.name: wait.target or "" for wait in result.waits if wait.kind == "child"}
        await client.handle(listens, children["listens"]).send("word", "said")
    world.clock.advance(60)
    result = await once(world, parent)
    assert [(wait.kind, wait.path) for wait in result.waits] == [("timer", "all/later/later")]
    assert result.status is Status.SLEEPING
    world.clock.advance(3600)
    result = await once(world, parent)
    assert result.output is not None
    assert result.output["listens"] == "said"
    assert (result.output["naps"], result.output["asks"], result.output["doubles"]) == ("awake", "yes", 8)


async def test_live_lasts_until_they_end(world: World) -> None:
    @workflow
    async def parent(ctx: Context) -> list[str]:
        return [await ctx.child("naps", naps, 5000), await ctx.child("listens", listens)]

    results: list[RunResult[Any]] = []

    async def run() -> None:
        results.append(await once(world, parent, mode="live"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await world.until_waiting("i/listens")
        await world.send("word", "said", id="i/listens")
    assert results[0].output == ["awake", "said"]
    rows = await Rows.of(world.driver)
    assert (rows.leases, rows.alarms, rows.workers) == ([], [], [])


async def test_a_child_that_fails(world: World) -> None:
    @workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.child("child", breaks)
        except ChildFailedError as error:
            return error.error.message
        return "no"

    assert (await once(world, parent, mode=world.setting.mode)).output == "broken"


async def test_children_given_by_name(world: World) -> None:
    @workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.child("child", "doubles", 21)

    result = await once(world, parent)
    assert result.status is Status.WAITING
    assert [(wait.kind, wait.target) for wait in result.waits] == [("child", "i/child")]
    assert (await once(world, parent, mode=world.setting.mode, workflows=[doubles])).output == 42


async def test_a_name_that_only_a_replay_has_met(world: World) -> None:
    """Each call learns the workflows of children from the code, also where their children have ended long ago."""

    @workflow
    async def parent(ctx: Context) -> list[int]:
        first = await ctx.child("first", doubles, 1)
        await ctx.sleep("pause", 60)
        return [first, await ctx.child("second", "doubles", 2)]

    assert (await once(world, parent)).status is Status.SLEEPING
    world.clock.advance(61)
    result = await once(world, parent)
    assert (result.status, result.output) == (Status.COMPLETED, [2, 4])


async def test_the_workflows_have_different_names(world: World) -> None:
    other: Workflow[Any, Any] = workflow(name="doubles")(naps.fn)
    for wrong in ([doubles, other], [naps.fn]):
        with pytest.raises(DefinitionError):
            await once(world, doubles, 1, workflows=wrong)
    assert await world.driver.scan(b"", b"\xff") == []


async def test_a_cancel_of_the_parent_ends_the_child(world: World) -> None:
    @workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.child("child", listens)

    results: list[RunResult[Any]] = []

    async def run() -> None:
        results.append(await once(world, parent, mode="live"))

    async with anyio.create_task_group() as group, Client(world.driver, clock=world.clock) as client:
        group.start_soon(run)
        await world.until_waiting("i/child")
        await client.handle(parent, "i").cancel()
    assert results[0].status is Status.CANCELLED
    assert (await world.history("i/child")).status is Status.CANCELLED


async def test_an_evict_of_the_parent_puts_the_child_away(world: World) -> None:
    @workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.child("child", listens)

    results: list[RunResult[Any]] = []

    async def run() -> None:
        results.append(await once(world, parent, mode="live"))

    async with anyio.create_task_group() as group, Client(world.driver, clock=world.clock) as client:
        group.start_soon(run)
        await world.until_waiting("i/child")
        await client.handle(parent, "i").evict()
    assert results[0].status is Status.WAITING
    assert (await Rows.of(world.driver)).leases == []
    await world.send("word", "said", id="i/child")
    assert (await once(world, parent)).output == "said"


async def test_a_child_of_a_worker_is_left_to_it(world: World) -> None:
    """A runtime that knows the child runs it; the call that knows only the parent waits for that."""

    @workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.child("child", "doubles", 8)

    async with Runtime(world.driver, workflows=[doubles], clock=world.clock):
        assert (await once(world, parent, mode="live")).output == 16


async def test_after_a_crash_in_a_child(world: World) -> None:
    """The process of both is gone, and the next call goes on with both at once."""
    driver = FaultyDriver(world.driver)
    ran: list[str] = []

    async def dies() -> str:
        ran.append("dies")
        if len(ran) == 1:
            driver.crash()
        return "done"

    @workflow
    async def child(ctx: Context) -> str:
        return await ctx.step("dies", dies)

    @workflow
    async def parent(ctx: Context) -> str:
        return await ctx.child("child", child)

    try:
        await once(world, parent, driver=driver, mode=world.setting.mode)
    except* SimulatedCrash:
        pass
    assert (await once(world, parent, mode=world.setting.mode)).output == "done"
    assert ran == ["dies", "dies"]
