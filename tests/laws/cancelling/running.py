"""Runs of one instance, cancelled: `run_workflow` in both modes, in whatever state the instance is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import anyio

from tests.laws.cancelling.stage import Case, Stage
from workflow_sdk import (
    Backoff,
    Break,
    Context,
    Continue,
    ContinueAsNew,
    CriticalError,
    Status,
    Workflow,
    run_workflow,
    workflow,
)
from workflow_sdk.instance.execution import Mode
from workflow_sdk.testing import FaultyDriver

__all__ = ["RUNNING", "Stages", "asks", "child", "fails", "order", "parent", "peer", "waits"]


class Stages:
    """Where steps are counted: workflows know nothing of the test that runs them."""

    now: Stage


def note(name: str) -> str:
    """A step."""
    Stages.now.done[name] += 1
    return name


async def charge(name: str) -> str:
    """A step of its own."""
    await anyio.lowlevel.checkpoint()
    return note(name)


async def refund(name: str) -> None:
    """Undoes one."""
    note(f"undo {name}")


@workflow
async def peer(ctx: Context) -> str:
    """Is told."""
    return await ctx.listen("told", type=str)


@workflow
async def waits(ctx: Context) -> str:
    """Charges, and waits."""
    await ctx.step("charge", charge, "charge", rollback=refund)
    return await ctx.listen("go", type=str)


@workflow
async def child(ctx: Context, name: str) -> str:
    """Is a child of `order`."""
    return await ctx.step("work", charge, name)


@workflow
async def order(ctx: Context) -> str:
    """Does most of what there is, and waits for a message in between."""
    await ctx.step("charge", charge, "charge", rollback=refund)
    await ctx.send("tell", "peer", "told", "paid")

    async def wins(ctx: Context) -> str:
        await ctx.step("first", charge, "first", repeatable=True)
        return await ctx.step("won", charge, "won")

    async def loses(ctx: Context) -> str:
        return await ctx.listen("never", type=str)

    await ctx.race("race", {"wins": wins, "loses": loses})
    said = await ctx.listen("go", type=str)

    async def branch(ctx: Context, name: str) -> str:
        await ctx.sleep("nap", 0)
        return await ctx.step("ship", charge, name)

    await ctx.map("ship", branch, ["a", "b", "c"])
    await ctx.continue_with("next", child, "later", id="later")
    ctx.state["said"] = said
    return said


@workflow
async def asks(ctx: Context) -> str:
    """Has somebody do something."""
    await ctx.step("charge", charge, "charge")
    return (await ctx.task("approve", type=str, payload="please")).value


@workflow
async def parent(ctx: Context) -> str:
    """Has a child."""
    return await ctx.child("child", child, "child", id="child")


@workflow
async def fails(ctx: Context) -> None:
    """Fails, and undoes what it did."""
    await ctx.step("one", charge, "one", rollback=refund)
    await ctx.step("two", charge, "two", rollback=refund)
    raise CriticalError("no")


@workflow
async def retries(ctx: Context) -> str:
    """Fails once."""

    async def flaky() -> str:
        note("flaky")
        if Stages.now.done["flaky"] == 1:
            raise ValueError("once more")
        return "done"

    return await ctx.step("flaky", flaky, backoff=Backoff(initial=0.001, jitter=0))


@workflow
async def mistakes(ctx: Context) -> None:
    """Is stuck."""
    await ctx.step("one", charge, "one")
    await ctx.step("one", charge, "two")


@workflow
async def again(ctx: Context, turn: int) -> Any:
    """Starts over."""
    await ctx.step("turn", charge, f"turn {turn}")
    return turn if turn == 3 else ContinueAsNew(turn + 1)


@workflow
async def loops(ctx: Context) -> int:
    """Turns."""

    async def body(ctx: Context, turn: int) -> Any:
        await ctx.step("turn", charge, f"turn {turn}")
        return Break(turn) if turn == 3 else Continue(turn + 1)

    return await ctx.loop("loop", body, 0, commit_interval=2)


INPUTS: dict[str, Any] = {"again": 1}


def _call(workflow: Workflow[Any, Any], mode: Mode) -> Callable[[Stage], Awaitable[object]]:
    async def call(stage: Stage) -> object:
        Stages.now = stage
        return await run_workflow(workflow, INPUTS.get(workflow.name), driver=stage.driver, instance_id="i", mode=mode)

    return call


async def _with_peer(stage: Stage) -> None:
    Stages.now = stage
    await stage.run(peer, "peer")


async def _gone(stage: Stage, workflow: Workflow[Any, Any] = order) -> None:
    """The instance waits for a message, which has come."""
    await _with_peer(stage)
    await stage.run(workflow, "i")
    stage.done.clear()
    async with stage.client() as client:
        await client.handle(workflow, "i").send("go", "gone")


async def _sends_go(stage: Stage) -> None:
    await stage.until("i", Status.WAITING)
    async with stage.client() as client:
        await client.handle(order, "i").send("go", "gone", key="once")
    await anyio.sleep_forever()


async def _completes(stage: Stage) -> None:
    """Somebody who completes tasks as soon as there are any."""
    async with stage.client() as client:
        while True:
            for task in (await client.tasks.list()).items:
                await client.tasks.complete(task.id, "yes", by="ann")
            await anyio.sleep(0.001)


def _check(
    workflow: Workflow[Any, Any], status: Status, output: object = None, most: int = 2, least: int = 1
) -> Callable[[Stage], Awaitable[None]]:
    """What was cancelled is free; and run to its end, it ends as if nothing had happened."""

    async def check(stage: Stage) -> None:
        outcome = stage.outcome
        await stage.no_worker()
        if await stage.status("i") is not None:
            await stage.is_free("i")
        elif not outcome.was_cancelled:
            raise AssertionError("it was run")
        result = await _to_its_end(stage, workflow)
        assert (result.status, result.output) == (status, output)
        await stage.no_worker()
        if workflow is order:
            async with stage.client() as client:
                assert (await stage.run(peer, "peer")).output == "paid"
                # Sent once.
                assert await client.handle(peer, "peer").result() == "paid"
            assert (await stage.run(child, "later")).output == "later"
        if workflow is asks:
            async with stage.client() as client:
                (task,) = [await client.tasks.get(key[2]) for key in await stage.parts(13) if key[1] == 1]
                assert [change.what for change in task.log] == ["created", "completed"]
        # What was under way when it was cancelled is done again, once; and nothing else is.
        again = {name: times for name, times in stage.done.items() if times > 1 and name != "flaky"}
        assert sum(again.values()) - len(again) <= 3, f"done again: {again}"
        check_messages = await stage.parts(11, 12)
        assert check_messages == []
        await stage.nothing_left()

    return check


async def _to_its_end(stage: Stage, workflow: Workflow[Any, Any]) -> Any:
    result: Any = None
    for _ in range(100):
        result = await run_workflow(workflow, INPUTS.get(workflow.name), driver=stage.driver, instance_id="i")
        async with stage.client() as client:
            if result.status is Status.WAITING and workflow in (order, waits):
                await client.handle(workflow, "i").send("go", "gone", key="once")
            elif result.status is Status.WAITING and workflow is asks:
                for task in (await client.tasks.list()).items:
                    await client.tasks.complete(task.id, "yes", by="ann")
            elif result.status is Status.WAITING and workflow is parent:
                await stage.run(child, "child")
            elif result.status in (Status.SLEEPING, Status.ROLLING_BACK):
                await anyio.sleep(0.001)
            else:
                return result
    raise AssertionError("no end")


async def _failing(stage: Stage) -> object:
    """The store fails in the middle: what is to be raised is looked for."""
    Stages.now = stage
    driver = FaultyDriver(stage.driver, fail_at=lambda _, batch: any(b"paid" in write[-1] for write in batch.writes))
    return await run_workflow(order, driver=driver, instance_id="i")


def _both(
    name: str,
    workflow: Workflow[Any, Any],
    status: Status,
    output: object = None,
    beside: Callable[[Stage], Coroutine[Any, Any, None]] | None = None,
    prepare: Callable[[Stage], Awaitable[None]] = _with_peer,
) -> list[Case]:
    check = _check(workflow, status, output)
    return [
        Case(f"{name} in yield", _call(workflow, "yield"), check, prepare),
        Case(f"{name} in live", _call(workflow, "live"), check, prepare, beside),
    ]


RUNNING = [
    *_both("order", order, Status.COMPLETED, "gone", _sends_go),
    *_both("order goes on", order, Status.COMPLETED, "gone", None, _gone),
    *_both("task", asks, Status.COMPLETED, "yes", _completes),
    *_both("rollback", fails, Status.ROLLED_BACK),
    *_both("retry", retries, Status.COMPLETED, "done"),
    *_both("mistake", mistakes, Status.STUCK),
    *_both("again", again, Status.COMPLETED, 3),
    *_both("loop", loops, Status.COMPLETED, 3),
    Case("parent in yield", _call(parent, "yield"), _check(parent, Status.COMPLETED, "child"), _with_peer),
    Case("store fails", _failing, _check(order, Status.COMPLETED, "gone"), _with_peer),
    Case(
        "ended",
        _call(waits, "yield"),
        _check(waits, Status.COMPLETED, "gone"),
        partial(_gone, workflow=waits),
    ),
]
