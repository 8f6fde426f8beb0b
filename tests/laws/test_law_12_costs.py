"""Law 12: what is asked of the store grows with what happens, not with what has happened before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from tests.laws.counting_driver import WatchedDriver, rows_of
from tests.support import SETTINGS, Setting, World, open_store
from workflow_sdk import Break, Context, Continue, Status, Workflow, workflow
from workflow_sdk.core.keys import NAMES, InstanceKeys

MEMORY = SETTINGS[0]


@pytest.fixture
def setting() -> Setting:
    """Costs are counted, not measured: one store and one event loop will do."""
    return MEMORY


@pytest.fixture
async def watched(world: World) -> WatchedDriver:
    """The store of the world, counted."""
    return WatchedDriver(world.driver)


async def fresh_world(world: World) -> World:
    """An empty store."""
    return World(MEMORY, await open_store("memory", world.directory), world.directory)


@pytest.fixture
async def another(world: World) -> AsyncIterator[Callable[[], Any]]:
    """Makes empty stores."""
    made: list[World] = []

    async def make() -> World:
        made.append(await fresh_world(world))
        return made[-1]

    yield make
    for each in made:
        await each.driver.aclose()


async def give(value: Any = 1) -> Any:
    return value


async def names_of(world: World) -> int:
    return len(await world.driver.scan(*InstanceKeys("i").range(NAMES)))


async def rows_on_resume(world: World, job: Workflow[Any, Any]) -> WatchedDriver:
    """What a second process asks of the store, for an instance that was put away."""
    first = await world.once(job, mode="yield")
    assert first.waiting_for == ["more"]
    driver = WatchedDriver(world.driver)
    assert (await world.once(job, mode="yield", driver=driver)).waiting_for == ["more"]
    return driver


# Flush O(dirty).


async def test_a_flush_writes_what_changed_and_nothing_else(world: World, watched: WatchedDriver) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        for number in range(200):
            await ctx.step(f"step {number}", give)

    await world.run(job, driver=watched)
    claim, *steps, end = watched.commits
    # A step writes its name and its entry; the end writes output, status, version and lease.
    assert steps == [2] * 200
    assert claim < 8
    assert end < 6


async def test_a_flush_in_a_wide_join_writes_what_changed(world: World, watched: WatchedDriver) -> None:
    async def branch(ctx: Context, item: int) -> None:
        for number in range(5):
            await ctx.step(f"step {number}", give)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.map("map", branch, range(200))

    await world.run(job, driver=watched)
    entries = 200 * 5 + 200
    names = 6
    assert sum(watched.commits) < entries + names + 20


async def test_replayed_steps_write_nothing(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        for number in range(200):
            await ctx.step(f"step {number}", give)
        await ctx.listen("more")

    driver = await rows_on_resume(world, job)
    # The claim, and being put away again.
    assert len(driver.commits) == 2
    assert sum(driver.commits) < 12


# Cold resume O(what is still open).


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
    assert driver.rows_read < 100
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
    assert driver.rows_read < names + 150
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
    assert driver.rows_read < await names_of(world) + 300


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
    assert driver.rows_read < 150


async def test_a_resume_reads_in_ranges_not_once_per_operation(world: World) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        for number in range(2000):
            await ctx.step(f"step {number}", give, ephemeral=True)
        await ctx.listen("more")

    driver = await rows_on_resume(world, job)
    assert driver.rows_read > 4000
    assert driver.asked < 20


# Waking a resident instance O(1).


async def test_waking_by_a_timer_reads_nothing(world: World, watched: WatchedDriver) -> None:
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
    assert len(set(asked)) == 1


async def test_waking_by_a_message_reads_the_message_and_no_history(world: World, watched: WatchedDriver) -> None:
    @workflow
    async def job(ctx: Context) -> list[int]:
        for number in range(100):
            await ctx.step(f"step {number}", give)
        return [await ctx.listen(f"listen {number}", "more", type=int) for number in range(50)]

    async with anyio.create_task_group() as group:

        async def run() -> None:
            result = await world.once(job, mode="live", driver=watched)
            assert result.output == list(range(50))

        group.start_soon(run)
        for number in range(50):
            await world.until_waiting()
            await world.send("more", number)
            while (await world.history())[f"listen {number}"].finished_at is None:
                await anyio.sleep(0)
    # One nudge and one look into the inbox for each message, and a bit for the start.
    assert watched.asked < 50 * 3 + 10
    assert watched.rows_read < 50 * 2 + 10


async def test_a_run_that_is_never_put_away_reads_only_at_its_start(world: World, watched: WatchedDriver) -> None:
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
async def test_a_join_costs_as_much_again_for_twice_the_branches(another: Callable[[], Any], limit: int | None) -> None:
    async def branch(ctx: Context) -> int:
        await ctx.step("a", give)
        await ctx.sleep("nap", 5)
        return await ctx.step("b", give)

    costs: list[tuple[int, int]] = []
    for count in (100, 200, 400):

        @workflow(name="job")
        async def job(ctx: Context, count: int = count) -> int:
            return len(await ctx.join("join", {f"branch {number}": branch for number in range(count)}, limit=limit))

        world = await another()
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


# The history of a loop is bounded.


def by_turns(kind: str, turns: int) -> Workflow[Any, Any]:
    """A workflow that waits after a number of turns that leave all kinds of traces, named after their data."""

    async def inner(ctx: Context, number: int) -> Continue[int] | Break[None]:
        await ctx.step(f"inner {ctx.path} {number}", give)
        return Continue(number + 1) if number < 5 else Break()

    async def body(ctx: Context, number: int) -> None:
        if kind == "steps":
            await ctx.step(f"step {number}", give)
        elif kind == "retries":
            await ctx.step(f"step {number}", flaky, number)
        elif kind == "nested loops":
            await ctx.loop(f"loop {number}", inner, 0, commit_interval=2)
        elif kind == "joins":
            await ctx.join(f"join {number}", {f"a {number}": one, f"b {number}": looping})
        elif kind == "races":
            await ctx.race(f"race {number}", {f"a {number}": one, f"b {number}": losing})
        elif kind == "waits":
            await ctx.sleep(f"sleep {number}", 1)
        else:
            await ctx.attempt(f"attempt {number}", looping)

    failed: set[int] = set()

    async def flaky(number: int) -> None:
        if number not in failed:
            failed.add(number)
            raise ValueError("once more")

    async def one(ctx: Context) -> None:
        await ctx.step(f"one {ctx.path}", give)
        await ctx.sleep("nap", 1)

    async def looping(ctx: Context) -> None:
        await ctx.loop(f"loop {ctx.path}", inner, 0, commit_interval=2)

    async def losing(ctx: Context) -> None:
        await looping(ctx)
        await ctx.loop(f"still open {ctx.path}", forever, 0, commit_interval=2)

    async def forever(ctx: Context, number: int) -> Continue[int]:
        await ctx.sleep(f"for ever {number} {ctx.path}", 0 if number < 5 else 1000)
        return Continue(number + 1)

    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        if number == turns:
            await ctx.listen("more")
        await body(ctx, number)
        return Continue(number + 1)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.loop("loop", turn, 0, commit_interval=5)

    return job


KINDS = ["steps", "retries", "nested loops", "joins", "races", "waits", "attempts"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["yield", "live"])
async def test_a_loop_leaves_as_much_after_500_turns_as_after_50(
    another: Callable[[], Any], kind: str, mode: str
) -> None:
    """In yield mode the waits inside put it away and load it again; in live mode it stays in memory."""
    if (kind, mode) in {("steps", "live"), ("nested loops", "live")}:
        pytest.skip("nothing waits in it: both modes are the same")
    left: list[tuple[int, int]] = []
    for turns in (50, 500 if mode == "live" or kind in ("steps", "nested loops") else 200):
        world = await another()
        job = by_turns(kind, turns)
        if mode == "yield":
            result = await run_until_waiting(world, job)
            assert result == ["more"]
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: world.once(job, mode="live"))  # noqa: B023  # awaited in this turn
                await world.until_waiting()
                group.cancel_scope.cancel()
        left.append((await names_of(world), len(await rows_of(world.driver))))
    assert left[0] == left[1]


async def run_until_waiting(world: World, job: Workflow[Any, Any]) -> list[str]:
    while True:
        result = await world.once(job, mode="yield")
        if result.waiting_for:
            return result.waiting_for
        assert result.wake_at is not None
        world.clock.advance(max(0.0, result.wake_at.timestamp() - world.clock.now()))


async def test_a_finished_loop_keeps_the_names_of_the_turns_it_keeps(world: World) -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.step(f"step {number}", give)
        return Continue(number + 1) if number < 103 else Break(number)

    @workflow
    async def job(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 0, commit_interval=10, history_keep=3)

    assert (await world.run(job)).output == 103
    assert [entry.path for entry in await world.history()] == [
        "loop",
        *(f"loop/~{n}/step {n}" for n in (101, 102, 103)),
    ]
    assert await names_of(world) == 4


async def test_workflows_that_loop_at_the_root_find_names_again_after_a_reload(world: World) -> None:
    """Names of loops that ran side by side, and of the scope around them, lead to the same entries afterwards."""
    ran: list[str] = []

    async def work(where: str) -> str:
        ran.append(where)
        return where

    async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
        await ctx.step("same", work, ctx.path)
        await ctx.sleep("nap", number + 1)
        return Continue(number + 1) if number < 3 else Break()

    async def branch(ctx: Context) -> None:
        await ctx.sleep("start", 0 if ctx.path.endswith("a") else 0.5)
        await ctx.loop("loop", turn, 0, commit_interval=1)
        await ctx.step("same", work, ctx.path)
        await ctx.sleep("nap", 1)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.join("join", {"a": branch, "b": branch})
        await ctx.step("same", work, "root")
        await ctx.sleep("nap", 1)

    for mode in ("yield", "live"):
        ran.clear()
        assert (
            await World(Setting("memory", "asyncio", mode), world.driver, world.directory).run(job, id=mode)
        ).status is (Status.COMPLETED)
        assert len(ran) == len(set(ran)) == 11
