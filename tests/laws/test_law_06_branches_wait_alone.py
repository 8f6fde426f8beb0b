"""A branch waits alone: what it waits for resumes it while siblings work. Idle is only who waits with every branch."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.hasty_clock import hasty_clock
from tests.laws.watching import Change, WatchedDriver
from tests.patience import PATIENCE
from tests.runtime.counting import Counting
from tests.runtime.shifted import ByHand
from tests.support import World
from workflow_sdk import (
    Backoff,
    Break,
    Context,
    Continue,
    Status,
    Workflow,
    run_workflow,
    send_message,
    workflow,
)
from workflow_sdk.rows.keys import Field

Branch = Callable[[Context], Awaitable[Any]]


class Pair:
    """A sibling works until the branch under test has gone on."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.gone_on = anyio.Event()

    async def _work(self) -> str:
        self.started.set()
        await self.gone_on.wait()
        return "worked"

    async def _note(self) -> str:
        self.gone_on.set()
        return "went on"

    async def sibling(self, ctx: Context) -> str:
        return await ctx.step("work", self._work)

    def waits(self, wait: Branch) -> Branch:
        async def branch(ctx: Context) -> str:
            await wait(ctx)
            return await ctx.step("go on", self._note)

        return branch


def failing_once() -> Callable[[], Awaitable[str]]:
    tries: list[int] = []

    async def shaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return "done"

    return shaky


async def sleep(ctx: Context) -> None:
    await ctx.sleep("nap", 3600)


async def listen(ctx: Context) -> None:
    assert await ctx.listen("word", type=str) == "hello"


async def deadline(ctx: Context) -> None:
    assert await ctx.listen("never", timeout=3600, default="nothing") == "nothing"


async def loop_of_naps(ctx: Context) -> None:
    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.sleep("nap", 3600)
        return Break(n) if n == 2 else Continue(n + 1)

    await ctx.loop("loop", turn, 0, commit_interval=1)


async def nested_join(ctx: Context) -> None:
    await ctx.join("inner", {"a": sleep, "b": deadline})


async def nested_race(ctx: Context) -> None:
    assert (await ctx.race("inner", {"a": sleep, "b": listen_long})).winner == "a"


async def listen_long(ctx: Context) -> None:
    await ctx.listen("never", timeout=7200)


TIMED: dict[str, Branch] = {
    "sleep": sleep,
    "deadline": deadline,
    "loop": loop_of_naps,
    "join": nested_join,
    "race": nested_race,
}


def joining(branches: dict[str, Branch]) -> Workflow[None, dict[str, Any]]:
    @workflow
    async def both(ctx: Context) -> dict[str, Any]:
        return await ctx.join("both", branches)

    return both


@pytest.mark.parametrize("name", TIMED)
async def test_a_timer_resumes_its_branch_while_a_sibling_works(world: World, name: str) -> None:
    world.clock = hasty_clock()
    pair = Pair()
    both = joining({"waits": pair.waits(TIMED[name]), "works": pair.sibling})
    with anyio.fail_after(PATIENCE):
        result = await world.once(both)
    assert result.output == {"waits": "went on", "works": "worked"}
    # The sibling was at work all the time, so that there was no moment to evict the instance.
    assert world.runs == 1


async def test_a_retry_resumes_its_branch_while_a_sibling_works(world: World) -> None:
    world.clock = hasty_clock()
    pair = Pair()
    shaky = failing_once()
    waits = pair.waits(lambda ctx: ctx.step("shaky", shaky, backoff=Backoff(initial=3600)))
    with anyio.fail_after(PATIENCE):
        result = await world.once(joining({"waits": waits, "works": pair.sibling}))
    assert result.status is Status.COMPLETED


async def test_a_message_resumes_its_branch_while_a_sibling_works(world: World) -> None:
    pair = Pair()
    both = joining({"waits": pair.waits(listen), "works": pair.sibling})
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:

            async def send() -> None:
                await pair.started.wait()
                await world.send("word", "hello")

            group.start_soon(send)
            result = await world.once(both)
            assert result.status is Status.COMPLETED
    assert world.runs == 1


async def test_a_timer_goes_by_the_clock_on_the_wall(world: World) -> None:
    pair = Pair()
    waits = pair.waits(lambda ctx: ctx.sleep("nap", 0.05))
    both = joining({"waits": waits, "works": pair.sibling})
    with anyio.fail_after(PATIENCE):
        result = await run_workflow(both, driver=world.driver, instance_id="i", mode=world.setting.mode)
    assert result.output == {"waits": "went on", "works": "worked"}


async def test_a_timer_goes_on_while_a_sibling_works_in_a_thread(world: World) -> None:
    gone_on = threading.Event()

    def work() -> bool:
        return gone_on.wait(PATIENCE)

    async def note() -> None:
        gone_on.set()

    async def waits(ctx: Context) -> None:
        await ctx.sleep("nap", 0.05)
        await ctx.step("go on", note)

    async def works(ctx: Context) -> bool:
        return await ctx.step("work", work)

    both = joining({"waits": waits, "works": works})
    result = await run_workflow(both, driver=world.driver, instance_id="i", mode=world.setting.mode)
    assert result.output == {"waits": None, "works": True}


async def test_a_message_resumes_no_one_else(world: World) -> None:
    resumed: dict[str, anyio.Event] = {name: anyio.Event() for name in "abc"}

    def listens(name: str) -> Branch:
        async def branch(ctx: Context) -> str:
            payload = await ctx.listen("wait", name, type=str)
            resumed[name].set()
            return payload

        return branch

    both = joining({name: listens(name) for name in resumed})
    sent = anyio.Event()
    async with anyio.create_task_group() as group:

        async def run() -> None:
            nonlocal sent
            result = await world.once(both)
            while result.status is Status.WAITING:
                await sent.wait()
                sent = anyio.Event()
                result = await world.once(both)

        group.start_soon(run)
        await world.until_waiting()
        for number, name in enumerate("bca", start=1):
            assert [done.is_set() for done in resumed.values()].count(True) == number - 1
            await world.send(name, str(number))
            sent.set()
            await resumed[name].wait()
    assert (await world.once(both)).output == {"a": "3", "b": "1", "c": "2"}


async def test_one_message_is_taken_by_one_of_those_who_wait_for_it(world: World) -> None:
    async def branch(ctx: Context) -> int:
        return await ctx.listen("wait", "number", type=int)

    both = joining({"a": branch, "b": branch, "c": branch})
    result = await world.run(both, script=[("number", 1), ("number", 2), ("number", 3)])
    assert result.output is not None
    assert sorted(result.output.values()) == [1, 2, 3]


async def test_it_is_evicted_only_when_every_branch_is_parked(world: World) -> None:
    """The branch that naps is parked long before its sibling, whose step takes its time."""
    at_work = False
    begun, nap_is_stored = anyio.Event(), anyio.Event()
    changes_at_work: list[Change] = []

    async def work() -> None:
        nonlocal at_work
        at_work = True
        begun.set()
        await nap_is_stored.wait()
        for _ in range(50):  # turns of the event loop, in which nothing else is stored
            await anyio.lowlevel.checkpoint()
        at_work = False

    async def works(ctx: Context) -> None:
        await ctx.step("work", work)
        await ctx.sleep("then", 7200)

    async def naps(ctx: Context) -> None:
        await begun.wait()
        await ctx.sleep("nap", 3600)

    async def look(change: Change) -> None:
        if at_work:
            changes_at_work.append(change)
        if "both/naps/nap" in change.entries:
            nap_is_stored.set()

    driver = WatchedDriver(world.driver, before=look)
    both = joining({"naps": naps, "works": works})
    result = await world.once(both, driver=driver, mode="yield")
    assert result.status is Status.SLEEPING
    begun.set()
    # It is stored that the branch naps, and nothing of the instance as a whole but that there was a commit.
    assert [set(change.entries) for change in changes_at_work] == [{"both", "both/naps/nap"}]
    assert not any(change.lease_released or change.fields - {Field.TALLY} for change in changes_at_work)
    assert [change.lease_released for change in driver.changes].count(True) == 1
    assert (await world.run(both)).status is Status.COMPLETED


async def test_it_is_not_idle_while_a_step_runs(world: World) -> None:
    async def work() -> Status:
        while "both/naps/nap" not in (history := await world.history()):
            await anyio.lowlevel.checkpoint()
        for _ in range(50):  # turns of the event loop, in which it might be taken for idle
            await anyio.lowlevel.checkpoint()
        history = await world.history()
        return history.status

    async def works(ctx: Context) -> Status:
        return Status(await ctx.step("work", work))

    async def naps(ctx: Context) -> Any:
        return await ctx.listen("nap", timeout=1, default=None)

    result = await world.run(joining({"naps": naps, "works": works}))
    assert result.output == {"naps": None, "works": Status.RUNNING}


@pytest.mark.parametrize("name", ["step", "resumed"])
async def test_a_message_that_comes_in_time_keeps_it_from_being_idle(world: World, name: str) -> None:
    """It comes just before the commit that would evict the instance; what runs then is recorded as running."""
    seen: list[Status] = []
    sent = 0

    async def disturb(change: Change) -> None:
        nonlocal sent
        if change.status is Status.WAITING and not sent:
            sent += 1
            await send_message(world.driver, "i", "word", "hello", clock=world.clock)

    async def look() -> None:
        seen.append((await world.history()).status)

    async def waits(ctx: Context) -> None:
        assert await ctx.listen("word", type=str) == "hello"
        await ctx.step("first", look)
        await ctx.step("second", look)

    both = joining({"waits": waits})

    @workflow
    async def alone(ctx: Context) -> None:
        await waits(ctx)

    driver = WatchedDriver(world.driver, before=disturb)
    result: Any = await world.once(alone if name == "step" else both, driver=driver, mode="yield")
    assert result.status is Status.COMPLETED
    assert seen == [Status.RUNNING, Status.RUNNING]
    assert not any(change.status in (Status.WAITING, Status.SLEEPING) for change in driver.changes)


@pytest.mark.parametrize("limit", [1, 2, None])
async def test_a_limit_does_not_keep_it_awake(world: World, limit: int | None) -> None:
    """Branches that have not begun are not at work."""

    async def naps(ctx: Context, n: int) -> int:
        await ctx.sleep("nap", 60)
        return n

    @workflow
    async def many(ctx: Context) -> list[int]:
        return await ctx.map("all", naps, range(4), limit=limit)

    start = world.clock.time()
    first = await world.once(many, mode="yield")
    assert first.status is Status.SLEEPING
    assert first.wake_at is not None
    assert first.wake_at.timestamp() == start + 60
    assert (await world.run(many)).output == [0, 1, 2, 3]
    assert world.clock.time() - start == 60 * (4 // (limit or 4))


async def test_what_it_waits_for_is_that_of_all_branches(world: World) -> None:
    async def both_waits(ctx: Context) -> None:
        await ctx.listen("wait", ["b", "a"], timeout=50, default=None)

    async def long(ctx: Context) -> None:
        await ctx.sleep("nap", 100)

    async def short(ctx: Context) -> None:
        await ctx.sleep("nap", 20)

    start = world.clock.time()
    sleeping = await world.once(joining({"long": long, "short": short}), id="sleeping", mode="yield")
    assert (sleeping.status, sleeping.waiting_for) == (Status.SLEEPING, [])
    assert sleeping.wake_at is not None
    assert sleeping.wake_at.timestamp() == start + 20
    waiting = await world.once(joining({"long": long, "waits": both_waits}), id="waiting", mode="yield")
    assert (waiting.status, waiting.waiting_for) == (Status.WAITING, ["a", "b"])
    assert waiting.wake_at is not None
    assert waiting.wake_at.timestamp() == start + 50


async def test_being_idle_is_recorded_in_memory_too(world: World) -> None:
    """In live mode: `sleeping`, `running` while it works, `sleeping` again."""

    async def work() -> None:
        assert (await world.history()).status is Status.RUNNING

    @workflow
    async def twice(ctx: Context) -> None:
        await ctx.sleep("nap", 60)
        await ctx.step("rest", work, repeatable=True)
        await ctx.listen("word", timeout=60, default=None)

    driver = WatchedDriver(world.driver)
    result = await world.once(twice, driver=driver, mode="live")
    assert result.status is Status.COMPLETED
    states = [change.status for change in driver.changes if change.status is not None]
    assert [state.value for state in states] == ["running", "sleeping", "running", "waiting", "running", "completed"]
    assert not any(change.alarms for change in driver.changes)


class HearsNothing(Counting):
    """A driver that tells nobody of a change."""

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """Wait for ever."""
        await anyio.sleep_forever()


async def test_a_message_that_came_in_time_beats_the_deadline_though_it_was_not_heard_of(world: World) -> None:
    clock, results = ByHand(), list[Any]()

    @workflow
    async def waits(ctx: Context) -> str:
        return await ctx.listen("approval", type=str, timeout=60, default="too late")

    async def run() -> None:
        driver = HearsNothing(world.driver)
        results.append(await run_workflow(waits, driver=driver, instance_id="i", mode="live", clock=clock))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await world.until_waiting()
            clock.offset = 30
            await send_message(world.driver, "i", "approval", "in time", clock=clock)
            clock.offset = 61
    assert results[0].output == "in time"
