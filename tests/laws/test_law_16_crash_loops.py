"""Law 16: what kills worker after worker is stopped, and what merely died with its worker is not."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.laws.counting_driver import WatchedDriver, rows_of
from tests.patience import PATIENCE
from tests.runtime.polling import until
from tests.runtime.shifted import Shifted
from tests.support import World
from workflow_sdk import (
    Backoff,
    Break,
    Context,
    Continue,
    Driver,
    LeaseLostError,
    RunResult,
    Status,
    StorageError,
    Workflow,
    run_workflow,
    send_message,
    workflow,
)
from workflow_sdk.graphs import Graph
from workflow_sdk.rows.keys import TRIES, WAITS, Field, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash


class Worker(FaultyDriver):
    """A process that dies when it is told to, rather than at a commit."""

    def die(self) -> None:
        """From now on the store hears nothing from it."""
        self.crash()


class Deadly:
    """A workflow whose step kills its process, until it is mended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.worker: Worker | None = None
        self.tries = 0
        self.mended = False
        self.steps: list[str] = []

        @workflow(name="deadly")
        async def job(ctx: Context) -> str:
            await ctx.step("harmless", self.harmless)
            return await ctx.step("deadly", self.deadly)

        self.job: Workflow[Any, str] = job

    async def harmless(self) -> None:
        self.steps.append("harmless")

    async def deadly(self) -> str:
        self.tries += 1
        if self.mended or self.worker is None:
            return "alive"
        self.worker.die()
        raise AssertionError("nobody lives on")

    async def run(self, job: Workflow[Any, Any] | None = None) -> RunResult[Any] | None:
        """One process; None if it died."""
        self.worker = Worker(self.world.driver)
        try:
            return await self.world.once(job or self.job, driver=self.worker)
        except* SimulatedCrash:
            pass
        return None


async def check_stuck(world: World, result: RunResult[Any] | None) -> None:
    assert result is not None
    assert result.status is Status.STUCK
    assert result.error is not None
    assert (result.error.kind, result.error.type) == ("consistency", "workflow_sdk.errors.WorkflowStuckError")
    assert "5 workers in a row died" in result.error.message
    assert "recover" in result.error.message
    assert (await world.history()).status is Status.STUCK


async def test_after_the_fifth_death_in_a_row_it_is_stuck(world: World) -> None:
    deadly = Deadly(world)
    # The first process commits a step before it dies. Its death counts: nothing is committed after it.
    for _ in range(5):
        assert await deadly.run() is None
    assert deadly.tries == 5
    await check_stuck(world, await deadly.run())
    assert (deadly.tries, deadly.steps) == (5, ["harmless"])


async def test_a_stuck_instance_is_not_tried_again_by_the_same_code(world: World) -> None:
    deadly = Deadly(world)
    for _ in range(5):
        await deadly.run()
    first = await deadly.run()
    before = await rows_of(world.driver)
    for _ in range(3):
        watched = WatchedDriver(world.driver)
        assert await world.once(deadly.job, driver=watched) == first
        assert watched.commits == []
    assert await rows_of(world.driver) == before
    assert deadly.tries == 5


async def test_changed_code_goes_on_and_has_five_lives_again(world: World) -> None:
    deadly = Deadly(world)
    for _ in range(5):
        await deadly.run()
    await check_stuck(world, await deadly.run())

    @workflow(name="deadly", version=2)
    async def changed(ctx: Context) -> str:
        await ctx.step("harmless", deadly.harmless)
        return await ctx.step("deadly", deadly.deadly) + "!"

    for _ in range(5):
        assert await deadly.run(changed) is None
    await check_stuck(world, await deadly.run(changed))

    @workflow(name="deadly", version=3)
    async def mended(ctx: Context) -> str:
        await ctx.step("harmless", deadly.harmless)
        return await ctx.step("deadly", deadly.deadly) + "?"

    deadly.mended = True
    result = await deadly.run(mended)
    assert result is not None
    assert (result.status, result.output) == (Status.COMPLETED, "alive?")
    assert deadly.steps == ["harmless"]


@pytest.mark.parametrize("tries", [1, 2])
async def test_a_firing_of_a_graph_that_kills_its_workers_is_stopped_and_named(world: World, tries: int) -> None:
    """In its first attempt, or in the second; while another firing waits."""
    deadly = Deadly(world)

    async def kills(ctx: Context, args: Any) -> str:
        deadly.steps.append("kills")
        if len(deadly.steps) < tries:
            raise ValueError("the first time")
        return await deadly.deadly()

    graph = Graph("deadly graph")
    graph.step("waits", lambda ctx, args: ctx.listen("never"))
    graph.step("kills", kills, backoff=Backoff(initial=0, factor=1, maximum=0, jitter=0))
    for _ in range(5):
        assert await deadly.run(graph) is None
    result = await deadly.run(graph)
    await check_stuck(world, result)
    assert result is not None
    assert result.error is not None
    assert "'deadly graph/kills/~0'" in result.error.message
    assert deadly.tries == 5


async def test_four_deaths_are_no_reason(world: World) -> None:
    deadly = Deadly(world)
    for _ in range(4):
        assert await deadly.run() is None
    deadly.mended = True
    result = await deadly.run()
    assert result is not None
    assert (result.status, result.output) == (Status.COMPLETED, "alive")


async def test_deaths_before_the_first_commit_of_a_run_count(world: World) -> None:
    """What kills its process at once, before any step."""
    worker: list[Worker] = []

    @workflow
    async def job(ctx: Context) -> None:
        worker[-1].die()

    for _ in range(5):
        worker.append(Worker(world.driver))
        with pytest.raises(BaseException, match="crashed"):  # it may be inside a group
            await world.once(job, driver=worker[-1])
    await check_stuck(world, await world.once(job))


async def test_a_commit_in_between_starts_the_count_again(world: World) -> None:
    """Each process does one step, and dies in the next: it makes progress."""
    worker: list[Worker] = []
    lives: list[int] = []

    async def work(number: int) -> int:
        if number > 0 and lives.count(number) == 0:
            lives.append(number)
            worker[-1].die()
        return number

    @workflow
    async def job(ctx: Context) -> list[int]:
        return [await ctx.step(f"step {number}", work, number) for number in range(12)]

    deaths = 0
    result: RunResult[Any] | None = None
    while result is None:
        worker.append(Worker(world.driver))
        try:
            result = await world.once(job, driver=worker[-1])
        except* SimulatedCrash:
            deaths += 1
    assert deaths == 11
    assert result.output == list(range(12))


async def test_a_process_that_dies_while_the_instance_is_parked_does_not_count(world: World) -> None:
    """It waits in memory, and its process is killed by something else, again and again."""

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.listen("message", type=str)

    for _ in range(8):
        worker = Worker(world.driver)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: survive(world, job, worker))  # noqa: B023  # it ends in this turn
            await world.until_waiting()
            for _ in range(20):  # turns of the event loop, in which it parks
                await anyio.lowlevel.checkpoint()
            worker.crashed = True
            group.cancel_scope.cancel()
    assert (await world.run(job, script=[("message", "still here")])).output == "still here"


class Interrupting:
    """A driver that cancels who uses it, at one of its calls."""

    def __init__(self, driver: Driver, at: int, scope: anyio.CancelScope) -> None:
        self._driver = driver
        self._left = at
        self._scope = scope

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        if name not in ("get", "scan", "commit"):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if not self._left:
                self._scope.cancel()
                await anyio.lowlevel.checkpoint()
            return await found(*args, **options)

        return call

    @property
    def is_done(self) -> bool:
        """Whether the call has come."""
        return self._left <= 0


async def test_a_run_may_be_cancelled_at_any_call_of_the_store(world: World) -> None:
    """Also while it reads what a worker has left that died: then there is nothing of its own to be written."""

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.listen("message", type=str)

    call, is_over = 0, False
    while not is_over:
        call += 1
        id, worker = f"i{call}", Worker(world.driver)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: survive(world, job, worker, id))  # noqa: B023  # it ends in this turn
            await world.until_waiting(id)
            worker.crashed = True  # it still has the instance
            group.cancel_scope.cancel()
        await send_message(world.driver, id, "message", "still here", clock=world.clock)
        scope = anyio.CancelScope()
        interrupting: Any = Interrupting(world.driver, call, scope)
        with scope:
            await world.once(job, id=id, driver=interrupting, mode="live")
        is_over = not interrupting.is_done
        assert (await world.once(job, id=id)).output == "still here"
    assert call > 5


async def survive(world: World, job: Workflow[Any, Any], worker: Worker, id: str = "i") -> None:
    with suppress(SimulatedCrash):
        await world.once(job, id=id, driver=worker, mode="live")


async def test_runs_that_end_in_order_do_not_count(world: World) -> None:
    """A store that fails, a cancelled run, a run that was evicted: nobody died."""
    running = [anyio.Event() for _ in range(10)]

    async def hang(number: int) -> int:
        if number < 8:
            running[number].set()
            await anyio.sleep_forever()
        return number

    numbers = iter(range(100))

    @workflow
    async def job(ctx: Context) -> int:
        return await ctx.step("hang", hang, next(numbers))

    for number in range(8):
        async with anyio.create_task_group() as group:
            group.start_soon(world.once, job)
            await running[number].wait()
            group.cancel_scope.cancel()
    for _ in range(8):
        with pytest.raises(StorageError):
            await world.once(job, driver=FaultyDriver(world.driver, fail_at=[2]))
    assert (await world.run(job)).status is Status.COMPLETED


async def test_deaths_while_it_is_rolled_back_count_and_the_failure_is_kept(world: World) -> None:
    worker: list[Worker] = []
    undone: list[str] = []
    mended = False

    async def book() -> str:
        return "hotel"

    async def undo(result: str) -> None:
        if not mended:
            worker[-1].die()
        undone.append(result)

    @workflow(name="trip")
    async def before(ctx: Context) -> None:
        await ctx.step("book", book, rollback=undo)
        raise ValueError("no")

    @workflow(name="trip", version=2)
    async def after(ctx: Context) -> None:
        await ctx.step("book", book, rollback=undo)
        raise ValueError("no")

    for _ in range(5):
        worker.append(Worker(world.driver))
        with pytest.raises(BaseException, match="crashed"):  # it may be inside a group
            await world.once(before, driver=worker[-1])
    await check_stuck(world, await world.once(before))
    mended = True
    result = await world.run(after)
    assert result.status is Status.ROLLED_BACK
    assert result.error is not None
    assert (result.error.message, undone) == ("no", ["hotel"])


class Beside:
    """A step that kills its process once `meanwhile` has come true, in a branch beside others."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.worker = Worker(world.driver)
        self.tries = 0
        self.turns = 0
        self.mended = False

    async def parked(self) -> bool:
        """Whether it is stored that a sibling waits."""
        return bool(await self.world.driver.scan(*InstanceKeys("i").range(WAITS)))

    async def kills(self) -> str:
        """A step, or a handler."""
        self.tries += 1
        if self.mended:
            return "alive"
        await until(self.parked)
        self.worker.die()
        raise AssertionError("nobody lives on")

    async def kills_later(self) -> str:
        """A step that dies when its sibling has got on by two turns."""
        self.tries += 1
        if self.mended:
            return "alive"
        before = self.turns

        async def got_on() -> bool:
            return self.turns >= before + 2

        await until(got_on)
        self.worker.die()
        raise AssertionError("nobody lives on")

    def turn(self) -> None:
        """What a sibling does."""
        self.turns += 1

    async def run(self, job: Workflow[Any, Any]) -> RunResult[Any] | None:
        """One process; None if it died."""
        self.worker = Worker(self.world.driver)
        try:
            return await self.world.once(job, driver=self.worker)
        except* SimulatedCrash:
            pass
        return None

    async def check(self, job: Workflow[Any, Any], path: str) -> None:
        """Five processes die of it, and no more; then it is mended."""
        for _ in range(5):
            assert await self.run(job) is None
        result = await self.run(job)
        await check_stuck(self.world, result)
        assert result is not None
        assert result.error is not None
        assert repr(path) in result.error.message, "it says what they died of"
        assert self.tries == 5
        self.mended = True
        result = await self.run(workflow(name=job.name, version=2)(job.fn))
        assert result is not None
        assert (result.status, result.output) == (Status.COMPLETED, "alive")
        assert await self.world.driver.get(InstanceKeys("i").field(Field.DEATHS)) is None
        assert await self.world.driver.scan(*InstanceKeys("i").range(TRIES)) == []


async def test_a_sibling_that_parks_is_no_progress(world: World) -> None:
    beside = Beside(world)

    async def acts(ctx: Context) -> str:
        return await ctx.step("kills", beside.kills)

    async def waits(ctx: Context) -> str:
        await ctx.sleep("nap", 10_000)
        return "late"

    @workflow
    async def job(ctx: Context) -> str:
        return (await ctx.race("race", {"acts": acts, "waits": waits})).value

    await beside.check(job, "race/acts/kills")


async def test_a_sibling_that_gets_on_is_no_progress_of_what_kills(world: World) -> None:
    beside = Beside(world)

    async def acts(ctx: Context) -> str:
        await ctx.step("harmless", lambda: None)
        return await ctx.step("kills", beside.kills_later)

    async def beats(ctx: Context) -> str:
        async def turn(ctx: Context, state: None) -> Continue[None] | Break[str]:
            await ctx.step("turn", beside.turn)
            await ctx.sleep("nap", 1)
            return Continue(None)

        return await ctx.loop("beats", turn)

    @workflow
    async def job(ctx: Context) -> str:
        return (await ctx.race("race", {"acts": acts, "beats": beats})).value

    await beside.check(job, "race/acts/kills")


async def test_a_handler_that_kills_is_named(world: World) -> None:
    beside = Beside(world)

    async def undo(result: object) -> None:
        beside.tries += 1
        if not beside.mended:
            beside.worker.die()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("book", lambda: "hotel", rollback=undo)
        raise ValueError("no")

    for _ in range(5):
        assert await beside.run(job) is None
    result = await beside.run(job)
    await check_stuck(world, result)
    assert result is not None
    assert result.error is not None
    assert "'~undo book'" in result.error.message
    assert beside.tries == 5


async def test_siblings_that_die_with_what_kills_and_end_are_not_blamed(world: World) -> None:
    """Each process does one item of a list, and dies in the next one: it makes progress, and so do the others."""
    beside = Beside(world)
    items = [f"item {number:02}" for number in range(16)]
    done: list[str] = []
    lives: set[str] = set()

    async def work(item: str) -> str:
        # Where all are done, one whose record died with its process runs again.
        if item == next((item for item in items if item not in done), None) and item not in lives:
            lives.add(item)
            beside.worker.die()
        done.append(item)
        return item

    @workflow
    async def job(ctx: Context) -> list[str]:
        async def act(ctx: Context, item: str) -> str:
            return await ctx.step("work", work, item)

        return await ctx.map("items", act, items, limit=2)

    result: RunResult[Any] | None = None
    deaths = -1
    while result is None:
        result = await beside.run(job)
        deaths += 1
    assert (result.status, result.output) == (Status.COMPLETED, items)
    assert deaths == len(lives) > 5


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_runs_that_overlap_are_no_deaths(world: World, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes the instance from the one before, which lives. Elsewhere nobody knows that before it says so."""
    go_on, lost = anyio.Event(), list[int]()
    begun = [anyio.Event() for _ in range(9)]
    tries = 0

    async def slow() -> str:
        nonlocal tries
        tries += 1
        begun[tries - 1].set()
        await go_on.wait()
        return "done"

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step("slow", slow)

    if where == "elsewhere":
        monkeypatch.setattr("workflow_sdk.worker.lease.lives_here", lambda worker: None)
    results: list[RunResult[Any]] = []

    async def run(number: int) -> None:
        try:
            results.append(await run_workflow(job, driver=world.driver, instance_id="i", mode=world.setting.mode))
        except LeaseLostError:
            lost.append(number)

    async with anyio.create_task_group() as group:
        for number in range(9):
            group.start_soon(run, number)
            with anyio.fail_after(PATIENCE):
                await begun[number].wait()
        go_on.set()
    assert [(result.status, result.output) for result in results] == [(Status.COMPLETED, "done")]
    assert sorted(lost) == list(range(8))
    assert tries == 9


@pytest.mark.law(20)
@pytest.mark.parametrize("ahead", [86_400.0, -86_400.0])
async def test_deaths_elsewhere_count_whatever_the_clocks_of_the_dead_said(
    world: World, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat of tomorrow is as dead as one of yesterday, once it has not changed for as long as a lease."""
    monkeypatch.setattr("workflow_sdk.worker.lease.lives_here", lambda worker: None)
    deadly = Deadly(world)
    for _ in range(5):
        deadly.worker = Worker(world.driver)
        try:
            await run_workflow(deadly.job, driver=deadly.worker, instance_id="i", clock=Shifted(ahead))
        except* SimulatedCrash:
            pass
    assert deadly.tries == 5
    result = await run_workflow(deadly.job, driver=world.driver, instance_id="i", lease_ttl=0.3)
    await check_stuck(world, result)
