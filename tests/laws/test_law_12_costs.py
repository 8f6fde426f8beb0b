"""Law 12: what is asked of the store grows with what happens, not with what has happened before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.laws import watching
from tests.laws.counting_driver import WatchedDriver, fresh_world, names_of, rows_of
from tests.support import World
from workflow_sdk import Break, Context, Continue, Status, Workflow, workflow
from workflow_sdk.changes.instances import ROWS_MAX


async def give(value: Any = 1) -> Any:
    return value


async def rows_on_resume(world: World, job: Workflow[Any, Any]) -> WatchedDriver:
    """What a second process asks of the store, for an instance that was evicted."""
    first = await world.once(job, mode="yield")
    assert first.waiting_for == ["more"]
    driver = WatchedDriver(world.driver)
    assert (await world.once(job, mode="yield", driver=driver)).waiting_for == ["more"]
    return driver


# Flush O(dirty).


async def test_a_flush_writes_what_changed_and_nothing_else(world: World) -> None:
    watched = WatchedDriver(world.driver)

    @workflow
    async def job(ctx: Context) -> None:
        for number in range(200):
            await ctx.step(f"step {number}", give)

    await world.run(job, driver=watched)
    claim, *steps, end = watched.commits
    # A step writes its name, its entry and the count of commits; the end writes output, status, version and
    # lease, and forgets the worker.
    assert steps == [3] * 200
    assert claim < 12
    assert end < 14


async def test_a_flush_in_a_wide_join_writes_what_changed(world: World) -> None:
    watched = WatchedDriver(world.driver)

    async def branch(ctx: Context, item: int) -> None:
        for number in range(5):
            await ctx.step(f"step {number}", give)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.map("map", branch, range(200))

    await world.run(job, driver=watched)
    entries = 200 * 5 + 200
    names = 6
    assert sum(watched.commits) - len(watched.commits) < entries + names + 30


async def test_replayed_steps_write_nothing(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        for number in range(200):
            await ctx.step(f"step {number}", give)
        await ctx.listen("more")

    driver = await rows_on_resume(world, job)
    # The claim, and being evicted again.
    assert len(driver.commits) == 2
    assert sum(driver.commits) < 20


# Cold resume O(what is still open), and the page that a short history would be.


async def test_a_finished_map_of_5000_is_not_read_again(world: World) -> None:
    async def branch(ctx: Context, item: int) -> int:
        return await ctx.step("step", give, item)

    @workflow
    async def job(ctx: Context) -> int:
        values = await ctx.map("map", branch, range(5000))
        assert values[4999] == 4999
        await ctx.listen("more")
        return len(values)

    driver = await rows_on_resume(world, job)
    assert len(await rows_of(world.driver)) > 10_000
    assert driver.rows_read < 100 + ROWS_MAX
    assert driver.asked < 20


@pytest.mark.parametrize("kind", ["join", "race", "attempt", "loop", "nested"])
async def test_finished_scopes_are_skipped(world: World, kind: str) -> None:
    async def part(ctx: Context) -> int:
        for number in range(500):
            await ctx.step(f"step {number}", give)
        return 500

    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.step("step", give)
        return Continue(number + 1) if number < 499 else Break(500)

    async def nested(ctx: Context) -> int:
        return sum((await ctx.join("inside", {"a": part, "b": part})).values())

    @workflow
    async def job(ctx: Context) -> None:
        if kind == "join":
            await ctx.join("part", {"a": part, "b": part})
        elif kind == "race":
            await ctx.race("part", {"a": part})
        elif kind == "attempt":
            await ctx.attempt("part", part)
        elif kind == "loop":
            await ctx.loop("part", turn, 0, history_keep=1000)
        else:
            await ctx.attempt("part", nested)
        await ctx.listen("more")

    driver = await rows_on_resume(world, job)
    assert len(await rows_of(world.driver)) > 500
    names = await names_of(world)
    assert driver.rows_read < names + 150 + ROWS_MAX
    assert driver.asked < 20


async def test_finished_branches_of_an_open_join_are_skipped(world: World) -> None:
    async def part(ctx: Context) -> int:
        for number in range(500):
            await ctx.step(f"step {number}", give)
        return 500

    async def waits(ctx: Context) -> None:
        await ctx.step("open", give)
        await ctx.listen("more")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.join("join", {"a": part, "b": part, "c": part, "waits": waits})

    driver = await rows_on_resume(world, job)
    assert len(await rows_of(world.driver)) > 1500
    assert driver.rows_read < await names_of(world) + 300 + ROWS_MAX


async def test_old_turns_of_an_open_loop_are_skipped(world: World) -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        for step in range(5):
            await ctx.step(f"step {step}", give)
        if number == 300:
            await ctx.listen("more")
        return Continue(number + 1)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.loop("loop", turn, 0, commit_interval=10, history_keep=1000)

    driver = await rows_on_resume(world, job)
    assert len(await rows_of(world.driver)) > 1500
    assert driver.rows_read < 150 + ROWS_MAX


async def test_a_resume_reads_in_ranges_not_once_per_operation(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        for number in range(2000):
            await ctx.step(f"step {number}", give, repeatable=True)
        await ctx.listen("more")

    driver = await rows_on_resume(world, job)
    assert driver.rows_read > 4000
    assert driver.asked < 20


# Waking a resident instance O(1).


async def test_waking_by_a_timer_reads_nothing(world: World) -> None:
    watched = WatchedDriver(world.driver)
    asked: list[int] = []

    async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
        await ctx.sleep("nap", 60)
        asked.append(watched.asked)
        return Continue(number + 1) if number < 100 else Break()

    @workflow
    async def job(ctx: Context) -> None:
        for number in range(100):
            await ctx.step(f"step {number}", give)
        await ctx.loop("loop", turn, 0)

    assert (await world.once(job, mode="live", driver=watched)).status is Status.COMPLETED
    # Once, in the beginning, the run looks whether it has been told anything.
    assert asked[-1] - asked[0] <= 1


async def test_waking_by_a_message_reads_the_message_and_no_history(world: World) -> None:
    watched = WatchedDriver(world.driver)

    @workflow
    async def job(ctx: Context) -> list[int]:
        for number in range(100):
            await ctx.step(f"step {number}", give)
        heard: list[int] = []
        for number in range(50):
            heard.append(await ctx.listen(f"listen {number}", "more", type=int))
            events[number].set()
        return heard

    events = [anyio.Event() for _ in range(50)]

    async with anyio.create_task_group() as group:

        async def run() -> None:
            result = await world.once(job, mode="live", driver=watched)
            assert result.output == list(range(50))

        group.start_soon(run)
        for number in range(50):
            await world.until_waiting()
            await world.send("more", number)
            await events[number].wait()
    # The stamp with the lease and the count of what was sent, and the message itself; and a bit for the start.
    assert watched.asked < 50 * 3 + 10
    assert watched.rows_read < 50 * 4 + 10


async def test_a_run_that_is_never_evicted_reads_only_at_its_start(world: World) -> None:
    watched = WatchedDriver(world.driver)

    async def branch(ctx: Context, item: int) -> None:
        await ctx.step("a", give)
        await ctx.sleep("nap", item)
        await ctx.step("b", give)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.map("map", branch, range(100))

    await world.once(job, mode="live", driver=watched)
    assert watched.asked < 10


# A join of N branches is linear.


@pytest.mark.parametrize("limit", [None, 7])
async def test_a_join_costs_as_much_again_for_twice_the_branches(tmp_path: Path, limit: int | None) -> None:
    async def branch(ctx: Context) -> int:
        await ctx.step("a", give)
        await ctx.sleep("nap", 5)
        return await ctx.step("b", give)

    costs: list[tuple[int, int]] = []
    for count in (100, 200, 400):

        @workflow(name="job")
        async def job(ctx: Context, count: int = count) -> int:
            return len(await ctx.join("join", {f"branch {number}": branch for number in range(count)}, limit=limit))

        async with fresh_world(tmp_path) as world:
            driver = WatchedDriver(world.driver)
            assert (await world.once(job, count, mode="live", driver=driver)).output == count
            # Three entries and an outcome: at most a commit for each, and for becoming idle in between.
            assert len(driver.commits) < count * 5 + 20
            costs.append((len(await rows_of(world.driver)), sum(driver.commits)))
    for one, two, four in zip(*costs, strict=True):
        assert four - two <= 2 * (two - one) * 1.1 + 5
    rows = costs[2][0]
    # A name, three entries and the branch's own.
    assert rows < 400 * 5 + 30


async def test_waits_that_end_together_share_a_commit(world: World) -> None:
    """A hundred listens whose time is over at the same moment, in a store that takes its time."""
    watched = watching.WatchedDriver(world.driver, turns=20)

    async def branch(ctx: Context, item: int) -> Any:
        return await ctx.listen("never", timeout=60, default="late")

    @workflow
    async def job(ctx: Context) -> list[Any]:
        return await ctx.map("map", branch, range(100))

    result = await world.run(job, driver=watched)
    assert result.output == ["late"] * 100
    outcomes = sum(change.is_final(path) for change in watched.changes for path in change.entries)
    assert outcomes == 201, "each listen, each branch, and the map"
    # How many share a commit depends on when a store answers: about 10 commits of a quick one, and 25 of a busy one.
    assert len(watched.changes) < outcomes / 4
