"""Law 11: handlers are steps. They are retried, timed, recorded, skipped when done, and never fail in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.laws import undoing
from tests.laws.undoing import undone
from tests.support import World
from workflow_sdk import Break, Client, Context, Continue, CriticalError, RunResult, Status, Workflow, workflow
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

COMMITS_MAX = 100


@pytest.fixture(autouse=True)
def nothing_undone() -> Iterator[None]:
    """Every test begins with nothing undone."""
    undone.clear()
    yield
    undone.clear()


def trip(middle: Callable[[Any], Any], *, name: str = "trip") -> Workflow[Any, Any]:
    """A workflow that fails after three steps; `middle` undoes the second."""

    async def newest(result: str) -> None:
        undone.append(result)

    async def oldest(result: str) -> None:
        undone.append(result)

    @workflow(name=name)
    async def run(ctx: Context) -> None:
        await ctx.step("hotel", undoing.name, "hotel", rollback=oldest)
        await ctx.step("flight", undoing.name, "flight", rollback=middle)
        await ctx.step("car", undoing.name, "car", rollback=newest)
        raise ValueError("no")

    return run


async def test_a_handler_is_retried_three_times_and_waits_in_between(world: World) -> None:
    times: list[float] = []

    async def flaky(result: str) -> None:
        times.append(world.clock.time())
        if len(times) < 4:
            raise OSError("try again")
        undone.append(result)

    result = await world.run(trip(flaky))
    assert result.status is Status.ROLLED_BACK
    assert undone == ["car", "flight", "hotel"]
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == pytest.approx([0.1, 0.2, 0.4], rel=0.11)
    history = await world.history()
    assert [(item.path, item.attempts) for item in history.compensations] == [("car", 1), ("flight", 4), ("hotel", 1)]


async def test_a_handler_that_is_to_be_retried_parks_the_instance(world: World) -> None:
    async def flaky(result: str) -> None:
        if world.runs == 1:
            raise OSError("try again")
        undone.append(result)

    job = trip(flaky)
    result = await world.once(job, mode="yield")
    assert result.status is Status.ROLLING_BACK
    assert result.wake_at is not None
    assert 0.08 < result.wake_at.timestamp() - world.clock.time() < 0.12
    assert result.error is not None
    assert result.error.message == "no"
    assert undone == ["car"]
    # Too early: it goes on waiting, and nothing is undone a second time.
    again = await world.once(job, mode="yield")
    assert (again.status, again.wake_at, undone) == (Status.ROLLING_BACK, result.wake_at, ["car"])
    assert (await world.run(job)).status is Status.ROLLED_BACK
    assert undone == ["car", "flight", "hotel"]


async def check_exhausted(world: World, result: RunResult[Any], attempts: int) -> None:
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "application"
    assert "'flight'" in result.error.message
    assert "the bank is closed" in result.error.message
    # Order matters: what is older waits for it.
    assert undone == ["car"]
    progress = [(item.path, item.progress, item.attempts) for item in (await world.history()).compensations]
    assert progress == [("car", "done", 1), ("flight", "exhausted", attempts), ("hotel", "open", 0)]


@pytest.mark.parametrize("error", [OSError, CriticalError])
async def test_an_exhausted_handler_makes_the_instance_stuck(world: World, error: type[Exception]) -> None:
    async def broken(result: str) -> None:
        raise error("the bank is closed")

    job = trip(broken)
    attempts = 4 if error is OSError else 1
    first = await world.run(job)
    await check_exhausted(world, first, attempts)
    # The same code would fail again: it is not even tried.
    assert await world.once(job) == first
    await check_exhausted(world, first, attempts)


async def test_mended_code_goes_on_with_the_handler_that_was_exhausted(world: World) -> None:
    async def broken(result: str) -> None:
        raise OSError("the bank is closed")

    tried: list[str] = []

    async def mended(result: str) -> None:
        tried.append(result)
        if len(tried) < 4:
            raise OSError("not yet")
        undone.append(result)

    @workflow(name="trip", version=2)
    async def after(ctx: Context) -> None:
        await ctx.step("hotel", undoing.name, "hotel", rollback=undoing.undo_plainly)
        await ctx.step("flight", undoing.name, "flight", rollback=mended)
        await ctx.step("car", undoing.name, "car", rollback=undoing.undo_plainly)
        raise AssertionError("how it failed is known")

    await check_exhausted(world, await world.run(trip(broken)), 4)
    result = await world.run(after)
    assert result.status is Status.ROLLED_BACK
    assert result.error is not None
    assert result.error.message == "no"
    assert tried == ["flight"] * 4
    assert undone == ["car", "flight", "hotel"]


async def test_a_handler_that_is_gone_makes_the_instance_stuck(world: World) -> None:
    async def broken(result: str) -> None:
        raise OSError("the bank is closed")

    @workflow(name="trip", version=2)
    async def after(ctx: Context) -> None:
        await ctx.step("hotel", undoing.name, "hotel")
        await ctx.step("flight", undoing.name, "flight")
        await ctx.step("car", undoing.name, "car")

    await check_exhausted(world, await world.run(trip(broken)), 4)
    result = await world.run(after)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert "no rollback for step 'flight' any more" in result.error.message
    assert undone == ["car"]


async def test_a_handler_that_uses_a_ctx_makes_the_instance_stuck_and_the_failure_is_kept(world: World) -> None:
    """Operations belong into the workflow; a handler only has the step's value."""

    @workflow
    async def run(ctx: Context) -> None:
        async def wrong(result: str) -> None:
            await ctx.step("undo", undoing.name, result)

        await ctx.step("hotel", undoing.name, "hotel", rollback=wrong)
        raise ValueError("no")

    @workflow(name="run", version=2)
    async def mended(ctx: Context) -> None:
        async def right(result: str) -> None:
            undone.append(result)

        await ctx.step("hotel", undoing.name, "hotel", rollback=right)
        raise AssertionError("how it failed is known")

    result = await world.run(run)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert "finished" in result.error.message
    result = await world.run(mended)
    assert result.status is Status.ROLLED_BACK
    assert result.error is not None
    assert (result.error.message, undone) == ("no", ["hotel"])


async def test_a_handler_that_awaits_something_cancelled_has_failed(world: World) -> None:
    """For good, like one that raises anything else that is no `Exception`: `recover` goes on with it."""
    if world.setting.backend == "trio":
        pytest.skip("in trio nothing but a cancelled scope cancels")
    import asyncio

    async def flaky(result: str) -> None:
        calls.append(result)
        if len(calls) == 1:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        undone.append(result)

    calls: list[str] = []
    job = trip(flaky)
    assert (await world.run(job)).status is Status.STUCK
    assert (calls, undone) == (["flight"], ["car"])
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(job, "i").recover()
    assert (await world.run(job)).status is Status.ROLLED_BACK
    assert undone == ["car", "flight", "hotel"]


class Crashes:
    """Runs a workflow once for each of its commits, and crashes there."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.done: list[str] = []
        """The steps that returned."""
        self.recorded: list[str] = []
        """What was registered when the process died, newest first."""
        self.recorded_done: set[str] = set()
        self.status: Status | None = None

    async def at(self, job: Workflow[Any, Any], number: int, when: str) -> bool:
        """Crash `before` or `after` that commit, then run to the end; False if there are fewer commits."""
        undone.clear()
        self.done.clear()
        id = f"{when}-{number}"
        faulty = FaultyDriver(self.world.driver, **{f"crash_{when}": number})
        try:
            await self.world.run(job, id=id, driver=faulty)
        except* SimulatedCrash:
            pass
        if not faulty.crashed:
            return False
        if number > 1 or when == "after":
            history = await self.world.history(id)
            self.status = history.status
            self.recorded = [item.path for item in history.compensations]
            self.recorded_done = {item.path for item in history.compensations if item.progress == "done"}
        else:
            self.status, self.recorded, self.recorded_done = None, [], set()
        self.before = list(undone)
        undone.clear()
        result = await self.world.run(job, id=id)
        assert result.status is Status.ROLLED_BACK
        return True


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("named", [True, False])
async def test_a_handler_runs_for_each_committed_step_and_not_again_once_recorded(
    world: World, when: str, named: bool
) -> None:
    async def do(name: str) -> str:
        crashes.done.append(name)
        return name

    @workflow
    async def job(ctx: Context) -> None:
        async def by_closure(name: str) -> None:
            undone.append(name)

        handler = undoing.undo if named else by_closure

        async def branch(ctx: Context) -> None:
            await ctx.step("in branch", do, ctx.path, rollback=handler)
            await ctx.step("again", do, ctx.path + "/again", rollback=handler)

        async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
            await ctx.step("turn", do, f"turn {number}", rollback=undoing.undo)
            return Continue(number + 1) if number < 2 else Break()

        async def loser(ctx: Context) -> None:
            await ctx.step("loser", do, "loser", rollback=handler)
            await ctx.sleep("for long", 1000)

        async def winner(ctx: Context) -> None:
            await ctx.sleep("briefly", 1)
            await ctx.step("winner", do, "winner", rollback=handler)

        await ctx.step("first", do, "first", rollback=handler)
        await ctx.join("join", {"a": branch, "b": branch}, limit=1)
        await ctx.loop("loop", turn, 0, commit_interval=2)
        await ctx.race("race", {"loser": loser, "winner": winner})
        await ctx.attempt("attempt", branch)
        raise ValueError("no")

    crashes = Crashes(world)
    number = 1
    everything = set[str]()
    while await crashes.at(job, number, when):
        # Every step that is done counts once, and is undone in reverse order of completion; what was recorded as
        # done before the crash is not run again. The last attempt of a handler may not have been recorded.
        assert len(undone) == len(set(undone))
        order = list(dict.fromkeys([*crashes.before, *undone]))
        assert len(order) == 12
        everything.update(order)
        done_before = len(crashes.recorded_done)
        assert undone == order[done_before:]
        assert crashes.before[:done_before] == order[:done_before]
        assert len(crashes.before) - done_before <= 1
        if crashes.status is Status.ROLLING_BACK:
            assert len(crashes.recorded) == 12
        # Completion order, over both runs: steps that were not committed ran again.
        assert list(dict.fromkeys(reversed(crashes.done)))[::-1] == order[::-1]
        number += 1
    assert 25 < number < COMMITS_MAX
    assert len(everything) == 12


async def test_what_was_not_committed_is_not_undone(world: World) -> None:
    """The process dies before the commit of a step; the code that runs next fails before it."""
    calls: list[str] = []

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("hotel", undoing.name, "hotel", rollback=undoing.undo)
        calls.append("run")
        if len(calls) > 1:
            raise ValueError("no")
        await ctx.step("flight", undoing.name, "flight", rollback=undoing.undo)

    with pytest.raises(SimulatedCrash):
        await world.run(job, driver=FaultyDriver(world.driver, crash_before=3))
    assert (await world.run(job)).status is Status.ROLLED_BACK
    assert undone == ["hotel"]
