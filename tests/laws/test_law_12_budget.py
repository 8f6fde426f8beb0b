"""Law 12: what one operation costs. A change that makes it dearer says so here, whatever the machine and its load."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.laws.bills import Bill, Run, bill_of
from tests.laws.counting_driver import fresh_world
from tests.support import World
from workflow_sdk import (
    Break,
    Context,
    Continue,
    Driver,
    Runtime,
    Status,
    Workflow,
    run_workflow,
    send_message,
    workflow,
)


async def nothing() -> int:
    return 1


@workflow
async def steps(ctx: Context, count: int) -> None:
    for number in range(count):
        await ctx.step(f"step {number}", nothing)


@workflow
async def turns(ctx: Context, count: int) -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.step("step", nothing)
        return Continue(number + 1) if number + 1 < count else Break(number)

    await ctx.loop("loop", turn, 0)


@workflow
async def branches(ctx: Context, count: int) -> None:
    async def branch(ctx: Context, number: int) -> int:
        return await ctx.step("step", nothing)

    await ctx.map("map", branch, range(count))


@workflow
async def messages(ctx: Context, count: int) -> None:
    for number in range(count):
        await ctx.listen(f"message {number}", "message")


@workflow
async def sleeps(ctx: Context, count: int) -> None:
    for number in range(count):
        await ctx.sleep(f"sleep {number}", 60)


@workflow
async def answers(ctx: Context) -> None:
    async def turn(ctx: Context, state: None) -> Continue[None] | Break[None]:
        message = await ctx.listen_message("message", ["question"])
        await message.reply(message.payload)
        return Continue(None)

    await ctx.loop("turns", turn)


@workflow
async def then_waits(ctx: Context, count: int) -> None:
    for number in range(count):
        await ctx.step(f"step {number}", nothing)
    await ctx.listen("more")


def run_of(world: World, job: Workflow[int, None]) -> Run:
    """From the start of an instance to its end."""

    async def run(driver: Driver, count: int) -> None:
        id = f"{job.name} {count} {world.runs}"
        world.runs += 1
        if job is messages:
            await run_workflow(job, count, driver=world.driver, instance_id=id, clock=world.clock)
            for _ in range(count):
                await send_message(world.driver, id, "message", clock=world.clock)
        result = await run_workflow(job, count, driver=driver, instance_id=id, clock=world.clock, mode="live")
        assert result.status is Status.COMPLETED, result

    return run


# A tenth above what it takes: for other versions of Python, and for changes that are no worse. Whoever brings a figure
# down brings it down here, too.
BUDGETS: dict[Workflow[int, None], Bill] = {
    # The name, the entry, and the count of commits.
    steps: Bill(commits=1, writes=3, reads=0, calls=61, c_calls=51),
    # The step's commit, and the loop's own every twenty turns.
    turns: Bill(commits=1.06, writes=2.5, reads=0, calls=83, c_calls=62),
    branches: Bill(commits=0.1, writes=2.1, reads=0, calls=98, c_calls=58),
    # What it takes is judged before it is taken, and is to be in the store still.
    messages: Bill(commits=1, writes=4, reads=0.1, calls=221, c_calls=135),
    sleeps: Bill(commits=2, writes=13, reads=0, calls=275, c_calls=131),
}

REPLAYED_STEP = Bill(calls=40, c_calls=30)
INSTANCE = Bill(commits=2.1, writes=15.5, reads=0.2, calls=338, c_calls=182)
ROUND_TRIP = Bill(commits=4.2, writes=21.5, reads=1.2, calls=470, c_calls=280)
INSTANCE_BYTES = 13_900

TOLD = {
    "a step": BUDGETS[steps],
    "a turn of a loop, with a step": BUDGETS[turns],
    "a branch of a map, with a step": BUDGETS[branches],
    "taking a message that has come": BUDGETS[messages],
    "a timer, in memory: to wait, and to go on": BUDGETS[sleeps],
    "a replayed step": REPLAYED_STEP,
    "an instance, from its start to its result": INSTANCE,
    "a question to an instance in memory, and its answer": ROUND_TRIP,
}
"""The budgets, as the documentation names them."""


OF_AN_INSTANCE = [
    tracemalloc.Filter(True, f"*/{package}/*")
    for package in ("workflow_sdk", "workflow_drivers", "anyio", "asyncio", "sortedcontainers", "fdb")
]
"""Not of whoever watches the tests."""


@pytest.mark.parametrize("job", BUDGETS, ids=lambda job: job.name)
async def test_an_operation(tmp_path: Path, job: Workflow[int, None]) -> None:
    async with fresh_world(tmp_path) as world:
        found = await bill_of(world.driver, run_of(world, job))
        assert found.excess(BUDGETS[job]) == {}, found


async def test_a_replayed_step(tmp_path: Path) -> None:
    async with fresh_world(tmp_path) as world:
        for count in (3, 100, 200):
            await run_workflow(
                then_waits, count, driver=world.driver, instance_id=f"replayed {count}", clock=world.clock
            )

        async def run(driver: Driver, count: int) -> None:
            id = f"replayed {count}"
            result = await run_workflow(then_waits, count, driver=driver, instance_id=id, clock=world.clock)
            assert result.waiting_for == ["more"]

        found = await bill_of(world.driver, run)
        assert found.excess(REPLAYED_STEP) == {}, found


async def test_an_instance(tmp_path: Path) -> None:
    """Started, run and waited for in one process: two commits, its creation and its end."""
    async with fresh_world(tmp_path) as world:

        async def run(driver: Driver, count: int) -> None:
            # By the clock on the wall: a virtual one has everybody look round, the more often the slower the machine.
            async with Runtime(driver, workflows=[steps]) as runtime:
                for _ in range(count):
                    await runtime.run(steps, 0)

        found = await bill_of(world.driver, run)
        assert found.excess(INSTANCE) == {}, found


async def test_a_round_trip(tmp_path: Path) -> None:
    """A question to an instance in memory, and its answer."""
    async with fresh_world(tmp_path) as world:

        async def run(driver: Driver, count: int) -> None:
            async with Runtime(driver, workflows=[answers]) as runtime:  # as above
                handle = await runtime.start(answers)
                for number in range(count):
                    assert await handle.ask("question", number) == number

        found = await bill_of(world.driver, run)
        assert found.excess(ROUND_TRIP) == {}, found


@pytest.fixture
def untraced() -> Generator[None]:
    """Who measures what the tests cover has every frame kept with an object of its own."""
    before = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(before)


@pytest.mark.usefixtures("untraced")
async def test_an_instance_in_memory(tmp_path: Path) -> None:
    """What an instance that waits takes: its objects, its task and frames, and, in this store, its rows."""
    async with fresh_world(tmp_path) as world:
        async with Runtime(world.driver, workflows=[then_waits], clock=world.clock) as runtime:

            async def park(count: int) -> None:
                handles = [await runtime.start(then_waits, 1) for _ in range(count)]
                for handle in handles:
                    async for info in handle.watch():
                        if info.status is Status.WAITING:
                            break

            await park(100)  # what is there once, and tables that grow in steps
            tracemalloc.start()
            try:
                before = tracemalloc.take_snapshot()
                await park(200)
                gc.collect()
                grown = tracemalloc.take_snapshot().filter_traces(OF_AN_INSTANCE)
            finally:
                tracemalloc.stop()
        each = sum(item.size_diff for item in grown.compare_to(before, "filename")) / 200
        assert each < INSTANCE_BYTES


def test_the_documentation_tells_the_budgets() -> None:
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    for name, bill in TOLD.items():
        row = f"| {name} | {bill.commits:g} | {bill.writes:g} | {bill.reads:g} | {bill.calls:g} |"
        assert row in page
    assert f"takes {INSTANCE_BYTES / 1000:g} kB at most" in page
