"""A system of instances that reach each other in every way there is, and how it ends."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tests.composition.composing import ids_of, left_behind
from workflow_sdk import (
    ChildFailedError,
    Client,
    Context,
    ContinueAsNew,
    Driver,
    Runtime,
    Status,
    Workflow,
    WorkflowCancelledError,
    workflow,
)

__all__ = ["SYSTEM", "check", "story"]

MESSAGES = 7


@workflow
async def receives(ctx: Context) -> list[Any]:
    """Takes everything that the system sends."""
    return [await ctx.listen(f"take {number}", "note") for number in range(MESSAGES)]


@workflow
async def works(ctx: Context, number: int) -> int:
    await ctx.send("tell", "receives", "note", f"works {number}")
    return number * 10


@workflow
async def fails(ctx: Context) -> None:
    raise ValueError("no luck")


@workflow
async def dawdles(ctx: Context) -> None:
    await ctx.sleep("long", 50_000)


@workflow
async def follows(ctx: Context, generation: int) -> int | ContinueAsNew:
    await ctx.send("tell", "receives", "note", f"follows {generation}")
    return generation if generation == 2 else ContinueAsNew(generation + 1)


@workflow
async def leads(ctx: Context) -> list[Any]:
    async def child(ctx: Context, number: int) -> int:
        return await ctx.child("work", works, number)

    async def slow(ctx: Context) -> None:
        await ctx.child("dawdle", dawdles)

    async def quick(ctx: Context) -> None:
        await ctx.sleep("nap", 5)

    done: list[Any] = await ctx.map("all", child, [1, 2, 3])
    await ctx.send("tell", "receives", "note", "leads")
    try:
        await ctx.child("hopeless", fails)
    except ChildFailedError as error:
        done.append(error.error.message)
    done.append((await ctx.race("race", {"slow": slow, "quick": quick})).winner)
    done.append(await ctx.continue_with("then", follows, 0))
    return done


SYSTEM: list[Workflow[Any, Any]] = [receives, works, fails, dawdles, follows, leads]
IDS = [
    "lead",
    "lead/all/0/work",
    "lead/all/1/work",
    "lead/all/2/work",
    "lead/hopeless",
    "lead/race/slow/dawdle",
    "lead/then",
    "receives",
]


async def story(runtime: Runtime) -> None:
    """Start it, and wait for the ends of those that nobody else waits for."""
    box = await runtime.start(receives, id="receives")
    lead = await runtime.start(leads, id="lead")
    await lead.result()
    await box.result()
    assert await runtime.handle(follows, "lead/then").result() == 2
    # It was asked to end when its race was over, and does so by itself.
    with suppress(WorkflowCancelledError):
        await runtime.handle(dawdles, "lead/race/slow/dawdle").result()


async def check(driver: Driver) -> None:
    """It has ended as it always does, and nothing is left of it."""
    assert await ids_of(driver) == IDS
    async with Client(driver) as client:
        box = await client.handle(receives, "receives").result()
        follow = [f"follows {number}" for number in range(3)]
        assert sorted(box) == [*follow, "leads", *(f"works {number}" for number in (1, 2, 3))]
        lead = await client.handle(leads, "lead").result()
        assert lead == [10, 20, 30, "no luck", "quick", "lead/then"]
        dawdle = await client.handle(dawdles, "lead/race/slow/dawdle").info()
        assert dawdle.status is Status.CANCELLED
    assert await left_behind(driver) == {}
