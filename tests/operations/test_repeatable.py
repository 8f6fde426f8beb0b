"""Steps that may safely run again: what becomes of their records, and who waits for these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count, pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.laws.counting_driver import WatchedDriver
from tests.support import World
from workflow_sdk import (
    Break,
    Client,
    Context,
    Continue,
    DefinitionError,
    Status,
    run_workflow,
    step,
    workflow,
)
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.keys import HISTORY, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

pytestmark = pytest.mark.law(4)

numbers = count()


def draw() -> int:
    """Another value each time."""
    return next(numbers)


async def outcomes(world: World) -> int:
    """How many operations have their outcome in the store."""
    rows = await world.driver.scan(*InstanceKeys("i").range(HISTORY))
    return sum(Entry.unpack(raw).is_final for _, raw in rows)


async def test_it_runs_again_if_its_record_was_lost(world: World) -> None:
    ran: list[str] = []

    async def note(name: str) -> None:  # in no thread: the clock would go on, and a heartbeat be one of the commits
        ran.append(name)

    @workflow
    async def crashes(ctx: Context) -> None:
        await ctx.step("first", note, "first", repeatable=True)
        await ctx.step("second", note, "second", repeatable=True)
        await ctx.step("third", note, "third")

    for crash, before in ((2, ["first", "second"]), (3, ["first", "second", "third"])):
        ran.clear()
        with pytest.raises(SimulatedCrash):
            await world.once(crashes, driver=FaultyDriver(world.driver, crash_before=crash), id=f"{crash}")
        assert ran == before
        assert (await world.run(crashes, id=f"{crash}")).status is Status.COMPLETED
        assert ran[len(before) :] == (["first", "second", "third"] if crash == 2 else ["third"])


async def test_what_is_not_repeatable_waits_for_the_record(world: World) -> None:
    """Whatever it is given stays as it is, also if it is called again."""
    charged: list[tuple[int, int]] = []

    @workflow
    async def job(ctx: Context) -> None:
        drawn = await ctx.step("draw", draw, repeatable=True)

        async def charge() -> None:
            charged.append((drawn, await outcomes(world)))

        await ctx.step("charge", charge)

    with pytest.raises(SimulatedCrash):
        await world.once(job, driver=FaultyDriver(world.driver, crash_before=3))
    assert (await world.run(job)).status is Status.COMPLETED
    assert len(charged) == 2
    assert len(set(charged)) == 1, "both times with the same value, which was stored before"


@pytest.mark.settings(store="sqlite")
async def test_so_does_a_transaction(world: World) -> None:
    seen: list[int] = []

    @workflow
    async def job(ctx: Context) -> None:
        drawn = await ctx.step("draw", draw, repeatable=True)
        await ctx.transact("write", lambda transaction: seen.append(drawn))

    with pytest.raises(SimulatedCrash):
        await world.once(job, driver=FaultyDriver(world.driver, crash_before=3))
    assert (await world.run(job)).status is Status.COMPLETED
    assert len(set(seen)) == 1


async def test_so_does_a_step_of_another_branch(world: World) -> None:
    """Branches may tell each other what they know."""
    known: list[int] = []
    drawn = anyio.Event()
    charged: list[tuple[int, int]] = []

    async def draws(ctx: Context) -> None:
        known.append(await ctx.step("draw", draw, repeatable=True))
        drawn.set()
        await ctx.sleep("nap", 1)

    async def charges(ctx: Context) -> None:
        await drawn.wait()

        async def charge() -> None:
            charged.append((known[-1], await outcomes(world)))

        await ctx.step("charge", charge)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.join("join", {"draws": draws, "charges": charges})

    assert (await world.run(job)).status is Status.COMPLETED
    assert charged[0][1] >= 1


Then = Callable[[Context, int], Awaitable[Any]]


async def then_sends(ctx: Context, drawn: int) -> None:
    """Tells another instance."""
    await ctx.send("send", "other", "m", drawn)


async def then_starts(ctx: Context, drawn: int) -> None:
    """Starts another instance."""
    await ctx.continue_with("next", keeps, drawn, id="child")


async def then_asks(ctx: Context, drawn: int) -> None:
    """Asks a person."""
    await ctx.task("task", payload=drawn)


async def then_waits(ctx: Context, drawn: int) -> None:
    """Shows what it waits for."""
    ctx.state["drawn"] = drawn
    await ctx.listen("message")


async def then_ends(ctx: Context, drawn: int) -> int:
    """Gives it back."""
    return drawn


@workflow
async def keeps(ctx: Context, value: Any) -> Any:
    """Has what it was given."""
    return value


@workflow
async def hears(ctx: Context) -> Any:
    """Has what it was sent."""
    return await ctx.listen("m")


async def shown(world: World, then: Then) -> Any:
    """What others know of the value; None if they know nothing."""
    async with Client(world.driver, clock=world.clock) as client:
        if then is then_sends:
            return (await world.once(hears, id="other", mode="yield")).output
        if then is then_starts:
            return next((info.input for info in (await client.list()).items if info.id == "child"), None)
        if then is then_asks:
            return next((task.payload for task in (await client.tasks.list()).items), None)
        info = await client.handle("job", "i").info()
        return info.state.get("drawn") if then is then_waits else info.output


@pytest.mark.parametrize("then", [then_sends, then_starts, then_asks, then_waits, then_ends])
async def test_others_learn_of_a_value_only_with_its_record(world: World, then: Then) -> None:
    """At whichever commit the process dies, what they know is what is recorded."""

    @workflow(name="job")
    async def job(ctx: Context) -> Any:
        return await then(ctx, await ctx.step("draw", draw, repeatable=True))

    await world.once(hears, id="other", mode="yield")
    known: Any = None
    for crash in range(2, 9):
        driver = FaultyDriver(world.driver, crash_after=crash)
        try:
            await world.once(job, driver=driver, mode="yield")
        except* SimulatedCrash:
            pass
        known = await shown(world, then)
        if known is not None:
            break
    assert known is not None
    await world.once(job, mode="yield")
    assert (await world.history())["draw"].value == known


@pytest.mark.parametrize("within", ["workflow", "loop", "replay"])
async def test_a_long_run_lets_others_have_their_turn(world: World, within: str) -> None:
    """Nothing in it waits for anything."""
    turns: list[int] = []
    done = 0

    async def nothing() -> None:
        nonlocal done
        done += 1

    async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
        await ctx.step("step", nothing, repeatable=True)
        return Continue(number + 1) if number < 2_000 else Break()

    @workflow
    async def job(ctx: Context) -> None:
        nonlocal done
        if within == "loop":
            await ctx.loop("loop", turn, 0, commit_interval=10_000)
        else:
            for number in range(2_000):
                await ctx.step(f"step {number}", nothing, repeatable=True)
                done += within == "replay"
        if within == "replay":
            await ctx.listen("more")

    async def look() -> None:
        while True:
            turns.append(done)
            await anyio.lowlevel.checkpoint()

    if within == "replay":
        await run_workflow(job, driver=world.driver, instance_id="i", clock=world.clock)
        done = 0
    async with anyio.create_task_group() as group:
        group.start_soon(look)
        await run_workflow(job, driver=world.driver, instance_id="i", clock=world.clock)
        group.cancel_scope.cancel()
    longest = max(after - before for before, after in pairwise(turns))
    assert longest <= 200, "so many came one after the other"


async def test_not_any_number_of_records_waits_for_a_commit(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        for number in range(1_200):
            await ctx.step(f"step {number}", draw, repeatable=True)

    driver = WatchedDriver(world.driver)
    await world.run(job, driver=driver)
    assert max(driver.commits) < 1_200
    assert len(driver.commits) < 10


async def test_it_has_no_rollback(world: World) -> None:
    async def undo(value: Any) -> None:
        pass

    with pytest.raises(DefinitionError, match="repeatable"):
        step(repeatable=True, rollback=undo)
    with pytest.raises(DefinitionError, match="repeatable"):
        step(repeatable="yes")  # type: ignore[call-overload]

    @step(repeatable=True)
    async def repeats() -> None:
        pass

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("step", repeats, rollback=undo)

    result = await world.run(job)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert "repeatable" in result.error.message


async def test_there_are_no_ephemeral_steps(world: World) -> None:
    """`repeatable` has taken the place of that."""
    with pytest.raises(DefinitionError, match="no option ephemeral"):
        step(ephemeral=True)  # type: ignore[call-overload]
