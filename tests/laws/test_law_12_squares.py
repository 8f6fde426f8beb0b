"""Law 12: what is done for three times as many is three times as much. Counted in lines gone through, not in time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

from tests.laws.counting_driver import WatchedDriver
from tests.laws.work import grows_like_a_square
from workflow_sdk import (
    Break,
    Client,
    Context,
    Continue,
    Driver,
    RunResult,
    Status,
    Workflow,
    open_driver,
    read_history,
    run_workflow,
    send_message,
    workflow,
)
from workflow_sdk.instance.execution import Mode
from workflow_sdk.testing import VirtualClock

Shape = Callable[[int], Awaitable[None]]
SHAPES: dict[str, Shape] = {}


def shape(fn: Shape) -> Shape:
    """What is to cost no more than its share, however many there are of it."""
    SHAPES[fn.__name__] = fn
    return fn


class Place:
    """A store of its own, and a clock."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.clock = VirtualClock(quiet=0.01)

    @classmethod
    async def new(cls) -> Place:
        return cls(await open_driver("memory://"))

    async def run(self, job: Workflow[Any, Any], *, mode: Mode = "live", id: str = "i") -> RunResult[Any]:
        return await run_workflow(job, driver=self.driver, instance_id=id, clock=self.clock, mode=mode)

    async def send(self, message: str, payload: Any = None) -> None:
        await send_message(self.driver, "i", message, payload, clock=self.clock)


async def give(value: Any = 1) -> Any:
    return value


async def undo(value: Any) -> None:
    pass


async def race_of(count: int, branch: Callable[[Context, int], Awaitable[Any]], messages: int = 0) -> None:
    """A race of so many, which none of them wins."""

    async def wins(ctx: Context) -> str:
        await ctx.sleep("nap", 5)
        return "won"

    def numbered(number: int) -> Callable[[Context], Awaitable[Any]]:
        return lambda ctx: branch(ctx, number)

    @workflow(name="job")
    async def job(ctx: Context) -> str:
        branches: dict[str, Callable[[Context], Awaitable[Any]]] = {"wins": wins}
        branches |= {f"branch {number}": numbered(number) for number in range(count)}
        return (await ctx.race("race", branches)).winner

    place = await Place.new()
    if messages:
        await place.run(job, mode="yield")
        for number in range(messages):
            await place.send("m", number)
    assert (await place.run(job)).output == "wins"


@shape
async def losers_that_sleep(count: int) -> None:
    async def branch(ctx: Context, number: int) -> None:
        await ctx.sleep("nap", 100)

    await race_of(count, branch)


@shape
async def losers_that_have_done_something(count: int) -> None:
    async def branch(ctx: Context, number: int) -> None:
        await ctx.step("step", give, rollback=undo)
        await ctx.sleep("nap", 100)

    await race_of(count, branch)


@shape
async def losers_in_loops(count: int) -> None:
    async def turn(ctx: Context, state: None) -> Continue[None]:
        await ctx.sleep("nap", 100)
        return Continue()

    async def branch(ctx: Context, number: int) -> None:
        await ctx.loop("loop", turn)

    await race_of(count, branch)


@shape
async def losers_that_have_taken_messages(count: int) -> None:
    async def branch(ctx: Context, number: int) -> None:
        await ctx.listen("m")
        await ctx.sleep("nap", 100)

    await race_of(count, branch, messages=count)


@shape
async def losers_with_children(count: int) -> None:
    @workflow
    async def child(ctx: Context) -> Any:
        return await ctx.listen("never")

    async def branch(ctx: Context, number: int) -> None:
        await ctx.child("child", child)

    await race_of(count, branch)


@shape
async def losers_with_state(count: int) -> None:
    async def branch(ctx: Context, number: int) -> None:
        ctx.state["number"] = number
        await ctx.sleep("nap", 100)

    await race_of(count, branch)


@shape
async def races_side_by_side(count: int) -> None:
    async def quick(ctx: Context) -> Any:
        return await ctx.step("step", give)

    async def slow(ctx: Context) -> None:
        await ctx.sleep("nap", 100)

    async def item(ctx: Context, number: int) -> str:
        return (await ctx.race("race", {"quick": quick, "slow": slow})).winner

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.map("map", item, range(count))

    assert (await (await Place.new()).run(job)).status is Status.COMPLETED


@shape
async def loops_side_by_side(count: int) -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.step(f"step {number}", give)
        return Continue(number + 1) if number < 3 else Break(number)

    async def item(ctx: Context, number: int) -> None:
        await ctx.loop("loop", turn, 0, commit_interval=1)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.map("map", item, range(count))

    assert (await (await Place.new()).run(job)).status is Status.COMPLETED


async def then_other_code(count: int, other: Workflow[Any, Any]) -> None:
    """An instance with so many steps, and then a run of other code."""

    @workflow(name="job")
    async def job(ctx: Context) -> None:
        for number in range(count):
            await ctx.step(f"step {number}", give)
        await ctx.listen("m")

    place = await Place.new()
    await place.run(job, mode="yield")
    result = await place.run(other, mode="yield")
    assert result.status is Status.STUCK
    assert f"and {count + 1 - 5} more" in str(result.error)


@shape
async def unreached_history(count: int) -> None:
    @workflow(name="job")
    async def other(ctx: Context) -> None:
        await ctx.step("another", give)

    await then_other_code(count + 5, other)


@shape
async def unreached_history_in_the_end(count: int) -> None:
    @workflow(name="job")
    async def other(ctx: Context) -> None:
        pass

    await then_other_code(count + 5, other)


@shape
async def a_map(count: int) -> None:
    async def item(ctx: Context, number: int) -> Any:
        return await ctx.step("step", give)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.map("map", item, range(count))

    assert (await (await Place.new()).run(job)).status is Status.COMPLETED


@shape
async def branches_that_wait_for_the_same(count: int) -> None:
    async def item(ctx: Context, number: int) -> Any:
        return await ctx.listen("m")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.map("map", item, range(count))

    place = await Place.new()
    await place.run(job, mode="yield")
    for number in range(count):
        await place.send("m", number)
    assert (await place.run(job)).status is Status.COMPLETED


@shape
async def steps_with_derived_names(count: int) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        for number in range(count):
            await ctx.step(give, number)

    assert (await (await Place.new()).run(job)).status is Status.COMPLETED


@shape
async def compensations(count: int) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        for number in range(count):
            await ctx.step(f"step {number}", give, rollback=undo)
        raise ValueError("no")

    assert (await (await Place.new()).run(job)).status is Status.ROLLED_BACK


async def sends_to(count: int, target: Callable[[int], str]) -> None:
    @workflow
    async def waits(ctx: Context) -> None:
        await ctx.listen("never")

    async def item(ctx: Context, number: int) -> None:
        await ctx.send("send", target(number), "m", number)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.map("map", item, range(count))

    place = await Place.new()
    for id in {target(number) for number in range(count)}:
        await place.run(waits, mode="yield", id=id)
    assert (await place.run(job)).status is Status.COMPLETED


@shape
async def messages_to_one(count: int) -> None:
    await sends_to(count, lambda number: "other")


@shape
async def messages_to_many(count: int) -> None:
    await sends_to(count, lambda number: f"other {number}")


async def with_many(count: int, item: Callable[[Context, int], Awaitable[Any]]) -> None:
    """An instance that has so many open, and is cancelled and deleted."""

    @workflow(name="job")
    async def job(ctx: Context) -> None:
        await ctx.map("map", item, range(count))

    place = await Place.new()
    await place.run(job, mode="yield")
    async with Client(place.driver, clock=place.clock) as client:
        await client.handle(job, "i").cancel()
        await client.delete("i")


@shape
async def children_of_one_that_is_cancelled(count: int) -> None:
    @workflow
    async def child(ctx: Context) -> None:
        await ctx.listen("never")

    async def item(ctx: Context, number: int) -> None:
        await ctx.child("child", child)

    await with_many(count, item)


@shape
async def tasks_of_one_that_is_cancelled(count: int) -> None:
    async def item(ctx: Context, number: int) -> None:
        await ctx.task("task")

    await with_many(count, item)


@shape
async def history_that_is_drawn(count: int) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        for number in range(count):
            await ctx.step(f"step {number}", give)

    place = await Place.new()
    await place.run(job)
    assert str(await read_history(place.driver, "i")).count("\n") == count


@shape
async def history_that_is_kept(count: int) -> None:
    """By `restart_from` its middle."""

    @workflow
    async def job(ctx: Context) -> None:
        for number in range(count):
            await ctx.step(f"step {number}", give)

    place = await Place.new()
    await place.run(job)
    async with Client(place.driver, clock=place.clock) as client:
        await client.handle(job, "i").restart_from(f"step {count // 2}")


@shape
async def pages_of_a_list(count: int) -> None:
    @workflow(name="job")
    async def job(ctx: Context, number: int) -> None:
        pass

    place = await Place.new()
    async with Client(place.driver, clock=place.clock) as client:
        for number in range(count):
            await client.start(job, number)
        found = 0
        cursor: str | None = None
        while True:
            page = await client.list(status="pending", workflow=job, limit=5, cursor=cursor)
            found += len(page.items)
            cursor = page.cursor
            if cursor is None:
                break
        assert found == count


@pytest.fixture
def untraced() -> Generator[None]:
    """Who measures what the tests cover uses what the lines are counted with."""
    import sys

    before = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(before)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("name", SHAPES)
async def test_three_times_as_many_cost_three_times_as_much(name: str) -> None:
    assert await grows_like_a_square(SHAPES[name]) == ""


# What goes round within C shows in how often names are compared.


class Counted(str):
    """A name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


@pytest.mark.parametrize("kind", ["join", "race"])
async def test_branches_in_another_order(kind: str) -> None:
    count = 200
    step = 1

    async def branch(ctx: Context) -> Any:
        return await ctx.listen("m", timeout=10, default=1)

    @workflow(name="job")
    async def job(ctx: Context) -> None:
        branches: dict[str, Any] = {Counted(f"branch {number}"): branch for number in range(count)[::step]}
        await (ctx.join("all", branches) if kind == "join" else ctx.race("all", branches))

    place = await Place.new()
    await place.run(job, mode="yield")
    place.clock.advance(20)
    step, Counted.compared = -1, 0
    assert (await place.run(job)).status is Status.COMPLETED
    assert Counted.compared < 40 * count


async def test_the_losers_of_a_race_are_cleared_together() -> None:
    """In as few ranges as one."""
    writes: list[int] = []
    for count in (10, 100):
        driver = WatchedDriver(await open_driver("memory://"))
        place = Place(driver)

        async def loses(ctx: Context) -> None:
            await ctx.sleep("nap", 100)

        async def wins(ctx: Context) -> None:
            await ctx.sleep("nap", 5)

        @workflow(name="job")
        async def job(ctx: Context, count: int = count) -> None:
            losers: dict[str, Any] = {f"branch {number}": loses for number in range(count)}
            await ctx.race("race", {**losers, "wins": wins})

        assert (await place.run(job)).status is Status.COMPLETED
        writes.append(sum(driver.commits))
    # The name, the entry and the wait of a sleep, which ends; the name of the branch.
    assert writes[1] - writes[0] <= 90 * 5
