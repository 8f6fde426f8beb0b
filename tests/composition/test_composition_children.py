"""`ctx.child`: started once, waited for wherever the parent is, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.composition.composing import ids_of, left_behind, running, until_status, until_there
from tests.support import World
from workflow_sdk import (
    AlreadyExistsError,
    Break,
    ChildFailedError,
    Client,
    Context,
    Continue,
    ContinueAsNew,
    Status,
    Workflow,
    WorkflowFailedError,
    workflow,
)
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(1)


@dataclass
class Order:
    item: str
    when: datetime


@dataclass
class Receipt:
    order: Order
    total: int


NOW = datetime(2030, 1, 1, tzinfo=UTC)


@workflow
async def sells(ctx: Context, order: Order) -> Receipt:
    assert isinstance(order, Order)
    return Receipt(order, 7)


@workflow
async def waits(ctx: Context, number: int = 0) -> Any:
    return await ctx.listen("go")


@workflow
async def fails(ctx: Context) -> None:
    raise ValueError("no luck")


@workflow
async def adopts(ctx: Context, id: str) -> Any:
    try:
        return await ctx.child("child", waits, 1, id=id)
    except (ChildFailedError, AlreadyExistsError) as error:
        return f"{type(error).__name__}: {error}"


async def test_by_function_and_by_name(world: World) -> None:
    driver = world.driver

    @workflow
    async def asks(ctx: Context) -> list[str]:
        order = Order("book", NOW)
        one = await ctx.child("one", sells, order)
        two = await ctx.child("two", "sells", order)
        return [f"{type(one).__name__} {one.order.when:%Y}", f"{type(two).__name__} {two['total']}"]

    async with running(driver, [asks, sells]) as runtime:
        assert await runtime.run(asks, id="asks") == ["Receipt 2030", "dict 7"]
    assert await ids_of(driver) == ["asks", "asks/one", "asks/two"]
    assert await left_behind(driver) == {}


async def test_with_a_run_of_its_own_for_each(world: World) -> None:
    @workflow
    async def asks(ctx: Context) -> int:
        # By its name: the call does not know it, and leaves it to others.
        return int((await ctx.child("one", "sells", Order("book", NOW)))["total"])

    first = await world.once(asks, mode="yield")
    assert (first.status, first.waiting_for) == (Status.WAITING, [])
    info = (await Client(world.driver).__aenter__()).handle(asks, "i")
    (wait,) = (await info.info()).waits
    assert (wait.kind, wait.name, wait.path) == ("child", "one", "one")
    assert (await world.run(sells, id="i/one")).output == Receipt(Order("book", NOW), 7)
    assert (await world.run(asks)).output == 7
    assert await left_behind(world.driver) == {}


async def test_one_that_runs_already_is_adopted_and_all_get_its_result(world: World) -> None:
    driver = world.driver
    async with running(driver, [adopts, waits]) as runtime:
        child = await runtime.start(waits, 1, id="kid")
        await until_status(child, Status.WAITING)
        parents = [await runtime.start(adopts, "kid", id=f"parent {number}") for number in range(3)]
        for parent in parents:
            await until_status(parent, Status.WAITING)
        await until_status(child, Status.WAITING)
        await child.send("go", "done")
        assert [await parent.result() for parent in parents] == ["done"] * 3
        assert await runtime.run(adopts, "kid") == "done", "it has ended, and its result is there"
    assert await left_behind(driver) == {}


async def test_one_that_has_failed_or_is_another_is_recorded_as_that(world: World) -> None:
    driver = world.driver

    @workflow
    async def asks(ctx: Context) -> list[str]:
        found: list[str] = []
        asked: list[tuple[Workflow[Any, Any], Any, str]]
        asked = [(fails, None, "failed"), (fails, None, "other"), (waits, 2, "kid")]
        for number, (flow, value, id) in enumerate(asked):
            try:
                await ctx.child(f"child {number}", flow, value, id=id)
            except (ChildFailedError, AlreadyExistsError) as error:
                found.append(f"{type(error).__name__}: {error}")
            try:
                await ctx.continue_with(f"next {number}", flow, value, id=id)
            except AlreadyExistsError as error:
                found.append(f"{type(error).__name__}: {error}")
        await ctx.sleep("nap", 50)
        seen.append(found)
        return found

    seen: list[list[str]] = []
    async with running(driver, [asks, waits, fails, sells], max_idle=1) as runtime:
        with pytest.raises(WorkflowFailedError):
            await runtime.run(fails, id="failed")
        await runtime.run(sells, Order("a", NOW), id="other")
        kid = await runtime.start(waits, 1, id="kid")
        found = await runtime.run(asks)
        await kid.send("go")
        await kid.result()
    assert len(found) == 5
    assert found[0].startswith("ChildFailedError: child 'failed' failed: ValueError: no luck")
    assert all("'other' runs workflow 'sells', not 'fails'" in text for text in found[1:3])
    assert all("was started with the input 1, not 2" in text for text in found[3:])
    assert await left_behind(driver) == {}


async def test_the_input_may_come_in_other_clothes(world: World) -> None:
    """As a tuple or a list, as a dataclass or by the name of its workflow."""
    driver = world.driver

    @workflow
    async def lists(ctx: Context, numbers: list[int]) -> list[int]:
        return numbers

    @workflow
    async def asks(ctx: Context) -> list[Any]:
        one: list[Any] = [await ctx.child("one", "lists", (1, 2), id="lists")]
        one.append(await ctx.child("two", lists, [1, 2], id="lists"))
        return one

    async with running(driver, [asks, lists]) as runtime:
        assert await runtime.run(asks) == [[1, 2], [1, 2]]


async def test_its_own_id_is_no_child(world: World) -> None:
    """It would wait for itself for ever."""
    driver = world.driver

    @workflow
    async def narcissus(ctx: Context) -> str:
        try:
            await ctx.child("me", narcissus, id=ctx.instance_id)
        except AlreadyExistsError as error:
            return str(error)
        return "no"

    async with running(driver, [narcissus]) as runtime:
        assert "itself" in await runtime.run(narcissus, id="me")


async def test_ids_are_of_the_place(world: World) -> None:
    driver = world.driver

    @workflow
    async def name(ctx: Context) -> str:
        return ctx.instance_id

    @workflow
    async def asks(ctx: Context, generation: int) -> Any:
        async def turn(ctx: Context, ids: list[str]) -> Any:
            ids = [*ids, await ctx.child("a/b", name)]
            return Break(ids) if len(ids) == 3 else Continue(ids)

        async def branch(ctx: Context, _: int) -> str:
            return await ctx.child("kid", name)

        ids = await ctx.loop("loop", turn, [], commit_interval=1)
        ids += await ctx.map("map", branch, range(2))
        return ids if generation == 2 else ContinueAsNew(generation + 1)

    async with running(driver, [asks, name]) as runtime:
        ids = await runtime.run(asks, 1, id="p")
        second = ["p:2/loop/~0/a%2Fb", "p:2/loop/~1/a%2Fb", "p:2/loop/~2/a%2Fb", "p:2/map/0/kid", "p:2/map/1/kid"]
        assert ids == second
    assert await ids_of(driver) == sorted(["p", *ids, *(id.replace("p:2", "p") for id in ids)])


async def test_a_child_that_begins_anew(world: World) -> None:
    driver = world.driver

    @workflow
    async def counts(ctx: Context, number: int) -> Any:
        await ctx.sleep("nap", 5)
        return number if number == 3 else ContinueAsNew(number + 1)

    @workflow
    async def asks(ctx: Context) -> int:
        return await ctx.child("kid", counts, 0)

    async with running(driver, [asks, counts], max_resident=0) as runtime:
        assert await runtime.run(asks) == 3
    assert await left_behind(driver) == {}


async def test_the_parent_goes_on_wherever_it_is_by_then(world: World) -> None:
    """Evicted, in another runtime, and killed."""
    driver = world.driver

    @workflow
    async def asks(ctx: Context) -> list[Any]:
        return [await ctx.child(f"kid {number}", waits, number) for number in range(3)]

    clock = VirtualClock(quiet=10)
    async with Client(driver, clock=clock) as client:
        parent = await client.start(asks, id="p")
        for number in range(3):
            kid = client.handle(waits, f"p/kid {number}")
            async with running(driver, [asks], clock) as one:
                await until_there(driver, f"p/kid {number}")
                if number == 1:
                    await parent.evict()
                    while one.resident:  # it takes its time
                        await anyio.lowlevel.checkpoint()
                if number != 2:
                    async with running(driver, [waits], clock):
                        await kid.send("go", number)
                        await kid.result()
                    continue
            async with running(driver, [waits], clock):
                await kid.send("go", number)
                await kid.result()
        async with running(driver, [asks], clock):
            assert await parent.result() == [0, 1, 2]
    assert await left_behind(driver) == {}


async def test_a_child_that_is_stuck_holds_the_parent_up_until_it_is_recovered(world: World) -> None:
    driver = world.driver
    mended: list[bool] = []

    @workflow
    async def mistakes(ctx: Context) -> str:
        await ctx.step("a", int)
        if not mended:
            await ctx.step("a", int)
        return "mended"

    @workflow
    async def asks(ctx: Context) -> str:
        return await ctx.child("kid", mistakes)

    async with running(driver, [asks, mistakes]) as runtime:
        parent = await runtime.start(asks, id="p")
        kid = runtime.handle(mistakes, "p/kid")
        await until_there(driver, "p/kid")
        await until_status(kid, Status.STUCK)
        assert (await parent.info()).status is Status.WAITING
        mended.append(True)
        await kid.recover()
        assert await parent.result() == "mended"
    assert await left_behind(driver) == {}


async def test_a_child_that_is_cancelled_or_deleted(world: World) -> None:
    driver = world.driver

    @workflow
    async def asks(ctx: Context) -> str:
        try:
            await ctx.child("kid", waits, 0)
        except ChildFailedError as error:
            await ctx.sleep("nap", 100)
            return f"{error.error.kind} {error.instance_id}"
        return "no"

    async with running(driver, [asks, waits]) as runtime:
        parent = await runtime.start(asks, id="p")
        kid = runtime.handle(waits, "p/kid")
        await until_there(driver, "p/kid")
        await kid.cancel()
        await runtime.delete("p/kid")
        assert await parent.result() == "cancelled p/kid"
    assert await ids_of(driver) == ["p"]
    assert await left_behind(driver) == {}
