"""Cancelling travels down, failures travel up, and nobody is left behind in between."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.composition.composing import (
    ids_of,
    left_behind,
    running,
    until_count,
    until_no_cleanups,
    until_status,
    until_there,
)
from tests.laws.counting_driver import WatchedDriver
from tests.patience import PATIENCE
from tests.runtime.interleaving import Interleaved
from tests.support import World
from workflow_sdk import (
    Client,
    Context,
    Driver,
    InstanceNotFoundError,
    InstanceStateError,
    Status,
    Workflow,
    WorkflowCancelledError,
    WorkflowFailedError,
    open_driver,
    workflow,
)
from workflow_sdk.rows.keys import INBOX, InstanceKeys
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(1)

undone: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    undone.clear()


async def note(what: str) -> str:
    return what


async def undo(what: str) -> None:
    undone.append(what)


@workflow
async def waits(ctx: Context) -> Any:
    await ctx.step("book", note, ctx.instance_id, rollback=undo)
    return await ctx.listen("go")


@workflow
async def parent(ctx: Context, depth: int) -> Any:
    await ctx.step("book", note, ctx.instance_id, rollback=undo)

    async def branch(ctx: Context, number: int) -> Any:
        if depth == 0:
            return await ctx.child("kid", waits)
        return await ctx.child("kid", parent, depth - 1)

    return await ctx.map("all", branch, range(2))


FAMILY = 1 + 2 + 4
FLOWS: list[Workflow[Any, Any]] = [waits, parent]


@pytest.mark.parametrize("rollback", [False, True])
async def test_down_to_the_grandchildren(world: World, rollback: bool) -> None:
    driver = world.driver
    async with running(driver, FLOWS) as runtime:
        top = await runtime.start(parent, 1, id="p")
        await until_count(driver, FAMILY)
        for id in await ids_of(driver):
            await until_status(runtime.handle("parent", id), Status.WAITING)
        await top.cancel(rollback=rollback)
        for id in await ids_of(driver):
            await until_status(runtime.handle("parent", id), Status.CANCELLED)
    assert sorted(undone) == (await ids_of(driver) if rollback else [])
    assert await left_behind(driver) == {}


async def test_not_to_those_that_are_left_alone(world: World) -> None:
    driver = world.driver

    @workflow
    async def leaves(ctx: Context) -> Any:
        return await ctx.child("kid", waits, on_cancel="abandon")

    async with running(driver, [leaves, waits]) as runtime:
        top = await runtime.start(leaves, id="p")
        kid = runtime.handle(waits, "p/kid")
        await until_count(driver, 2)
        await until_status(kid, Status.WAITING)
        await top.cancel()
        await kid.send("go", "on")
        assert await kid.result() == "on"
    assert await left_behind(driver) == {}


async def test_one_that_others_wait_for_goes_on(world: World) -> None:
    """It is cancelled with the last of them."""
    driver = world.driver

    @workflow
    async def adopts(ctx: Context) -> Any:
        return await ctx.child("kid", waits, id="kid")

    async with running(driver, [adopts, waits]) as runtime:
        parents = [await runtime.start(adopts, id=f"p{number}") for number in range(3)]
        for one in parents:
            await until_status(one, Status.WAITING)
        kid = runtime.handle(waits, "kid")
        await until_status(kid, Status.WAITING)
        for one in (parents[0], parents[2]):
            await one.cancel()
            await until_status(one, Status.CANCELLED)
        await until_no_cleanups(driver)
        assert (await kid.info()).status is Status.WAITING
        await parents[1].cancel()
        await until_status(kid, Status.CANCELLED)
    assert await left_behind(driver) == {}


async def test_a_failure_travels_up(world: World) -> None:
    driver = world.driver

    @workflow
    async def fails(ctx: Context, depth: int) -> None:
        await ctx.step("book", note, str(depth), rollback=undo)
        if depth == 3:
            raise ValueError("no luck")
        await ctx.child("kid", fails, depth + 1)

    async with running(driver, [fails]) as runtime:
        with pytest.raises(WorkflowFailedError) as caught:
            await runtime.run(fails, 0, id="p")
    assert caught.value.status == Status.ROLLED_BACK
    assert caught.value.error is not None
    assert caught.value.error.type == "workflow_sdk.errors.ChildFailedError"
    assert "child 'p/kid' failed" in caught.value.error.message
    assert undone == ["3", "2", "1", "0"]
    assert await left_behind(driver) == {}


async def test_one_that_failed_because_of_a_child_is_recovered_with_another(world: World) -> None:
    driver = world.driver
    mended: list[bool] = []

    @workflow
    async def fails(ctx: Context) -> str:
        if not mended:
            raise ValueError("no luck")
        return ctx.instance_id

    @workflow
    async def asks(ctx: Context) -> list[Any]:
        first = await ctx.step("first", note, "first")

        async def branch(ctx: Context, number: int) -> str:
            return await ctx.child("kid", fails)

        return [first, *await ctx.map("all", branch, range(2)), await ctx.child("named", fails, id="named")]

    async with running(driver, [asks, fails]) as runtime:
        top = await runtime.start(asks, id="p")
        with pytest.raises(WorkflowFailedError):
            await top.result()
        mended.append(True)
        await top.recover()
        assert await top.result() == ["first", "p/all/0/kid:1", "p/all/1/kid:1", "named"]
    assert await left_behind(driver) == {}


async def test_a_named_one_that_has_failed_is_recovered_first(world: World) -> None:
    driver = world.driver
    mended: list[bool] = []

    @workflow
    async def fails(ctx: Context) -> str:
        if not mended:
            raise ValueError("no luck")
        return "mended"

    @workflow
    async def asks(ctx: Context) -> str:
        return await ctx.child("kid", fails, id="kid")

    async with running(driver, [asks, fails]) as runtime:
        top = await runtime.start(asks)
        for _ in range(2):
            with pytest.raises(WorkflowFailedError):
                await top.result()
            await top.recover()
        with pytest.raises(WorkflowFailedError):
            await top.result()
        mended.append(True)
        kid = runtime.handle(fails, "kid")
        await kid.recover()
        assert await kid.result() == "mended"
        await top.recover()
        assert await top.result() == "mended"
    assert await left_behind(driver) == {}


@pytest.mark.parametrize("path", [None, "first", "kid"])
async def test_restart_from(world: World, path: str | None) -> None:
    """The child it waits for is cancelled, and another is started."""
    driver = world.driver

    @workflow
    async def asks(ctx: Context) -> Any:
        await ctx.step("first", note, "first")
        return await ctx.child("kid", waits)

    async with running(driver, [asks, waits]) as runtime:
        top = await runtime.start(asks, id="p")
        for number in range(3):
            kid = runtime.handle(waits, "p/kid" if number == 0 else f"p/kid:{number}")
            await until_there(driver, kid.id)
            await until_status(kid, Status.WAITING)
            if number < 2:
                await top.restart_from(path)
                await until_status(kid, Status.CANCELLED)
            else:
                await kid.send("go", number)
        assert await top.result() == 2
        # One that has ended is left as it is.
        await top.restart_from(path)
        kid = runtime.handle(waits, "p/kid:3")
        await until_there(driver, kid.id)
        await kid.send("go", "again")
        assert await top.result() == "again"
    assert await left_behind(driver) == {}


@workflow
async def brief(ctx: Context) -> str:
    await ctx.sleep("nap", 5)
    return "kid"


@workflow
async def races(ctx: Context) -> str:
    """The child ends at the very moment at which it loses."""

    async def kid(ctx: Context) -> str:
        return await ctx.child("kid", brief)

    async def nap(ctx: Context) -> str:
        await ctx.sleep("nap", 5)
        return "nap"

    won = await ctx.race("race", {"kid": kid, "nap": nap})
    await ctx.sleep("after", 5)
    return won.value


async def test_a_child_that_ends_as_it_loses() -> None:
    """Whoever comes first: there is one end of it."""
    winners: set[str] = set()
    for number in range(1, 80):
        inside = await open_driver("memory://")
        clock = VirtualClock(quiet=10)

        async def others(inside: Driver = inside, clock: VirtualClock = clock) -> None:
            # Another runtime has its turn for as long as it takes.
            async with running(inside, [brief], clock):
                for _ in range(60):
                    await anyio.lowlevel.checkpoint()

        driver = Interleaved(inside, {number: others})
        async with running(driver, [races], clock) as runtime, running(inside, [brief], clock):
            result = await runtime.run(races, id="p")
        winners.add(result)
        async with Client(inside) as client:
            status = (await client.handle(brief, "p/race/kid/kid").info()).status
        assert (result, status) in [
            ("kid", Status.COMPLETED),
            ("nap", Status.COMPLETED),
            ("nap", Status.CANCELLED),
        ]
        assert await left_behind(inside) == {}, number
    assert "nap" in winners


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("rollback", [False, True])
async def test_cancelled_at_any_moment(after: bool, rollback: bool) -> None:
    """Between any two calls of the store: no child of it goes on."""
    number = 0
    while True:
        number += 1
        inside = await open_driver("memory://")
        clock = VirtualClock(quiet=10)
        undone.clear()
        cancelled: list[bool] = []

        async def cancel(inside: Driver = inside, clock: VirtualClock = clock, done: list[bool] = cancelled) -> None:
            async with Client(inside, clock=clock) as client:
                try:
                    await client.handle(parent, "p").cancel(rollback=rollback)
                    done.append(True)
                except (InstanceNotFoundError, InstanceStateError):
                    done.append(False)

        driver = Interleaved(inside, {number: cancel}, after=after)
        async with running(driver, FLOWS, clock) as runtime:
            top = await runtime.start(parent, 0, id="p")
            if not cancelled or not cancelled[0]:
                with anyio.move_on_after(PATIENCE):
                    while not any(cancelled) and len(await ids_of(inside)) < 3:
                        await anyio.lowlevel.checkpoint()
                    for kid in (await ids_of(inside))[1:]:
                        await runtime.handle(waits, kid).send("go")
            with suppress(WorkflowCancelledError):
                await top.result()
            for id in await ids_of(inside):
                with anyio.fail_after(PATIENCE):
                    while not (await runtime.handle("parent", id).info()).status.is_terminal:
                        await anyio.lowlevel.checkpoint()
        left = await left_behind(inside)
        # What was sent to a child that is cancelled stays where it is.
        assert not await inside.scan(*InstanceKeys("p").range(INBOX)), number
        assert left.keys() <= {"inbox"}, number
        if driver.left:
            break
    assert number > 20


@workflow
async def hurries(ctx: Context) -> int:
    """One branch starts children, one after the other, until the other is told to stop."""

    async def starts(ctx: Context) -> None:
        for number in range(50):
            await ctx.continue_with(f"next {number}", brief)
            await ctx.child(f"kid {number}", brief)

    async def stops(ctx: Context) -> None:
        await ctx.listen("stop")

    won = await ctx.race("race", {"starts": starts, "stops": stops})
    assert won.winner == "stops"
    await ctx.step("after", note, "after", rollback=undo)
    return 7


@pytest.mark.parametrize("commit", range(3, 24))
async def test_a_race_that_is_lost_in_the_middle_of_a_commit(commit: int) -> None:
    inside = await open_driver("memory://")
    clock = VirtualClock(quiet=10)

    async def stop(number: int) -> None:
        if number == commit:
            async with Client(inside, clock=clock) as client:
                await client.handle(hurries, "p").send("stop")
        for _ in range(20):  # turns of the event loop, in which others go on
            await anyio.lowlevel.checkpoint()

    slow = WatchedDriver(inside, stop)
    async with running(slow, [hurries], clock) as runtime, running(inside, [brief], clock):
        top = await runtime.start(hurries, id="p")
        assert await top.result() == 7
        for id in await ids_of(inside):
            if id != "p":
                await until_status(runtime.handle("hurries", id), Status.COMPLETED, Status.CANCELLED)
    assert await left_behind(inside) == {}
