"""Law 10: of two runs of one instance, the older can't write one more byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from tests.hasty_clock import hasty_clock
from tests.laws.counting_driver import Row, WatchedDriver, rows_of
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import (
    Batch,
    ConflictError,
    Context,
    CriticalError,
    LeaseLostError,
    RunResult,
    Status,
    Workflow,
    workflow,
)
from workflow_sdk.changes.claim import Claimant, new_lease
from workflow_sdk.changes.instances import new_rows
from workflow_sdk.rows.instance import Lease
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.testing import FaultyDriver
from workflow_sdk.values import Codec
from workflow_sdk.worker.lease import claim

COMMITS_MAX = 100


async def undo(result: object) -> None:
    """Nothing is left to undo."""


class Rivals:
    """Runs an instance twice: the second run begins, and ends, where the first was told to stop."""

    def __init__(self, world: World, workflow: Workflow[Any, Any]) -> None:
        self.world = world
        self.workflow = workflow
        self.stopped = anyio.Event()
        self.go_on = anyio.Event()
        self.error: BaseException | None = None
        self.rows: list[Row] = []
        """What the store held when the newer run was over."""

    async def stop(self) -> None:
        """Called by the older run, where it is to be overtaken."""
        self.stopped.set()
        await self.go_on.wait()

    async def run(self, *, takeover: Any = None) -> RunResult[Any]:
        """Check that the older run is fenced off; the result of the newer."""
        newer: object = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._older)
            with anyio.fail_after(PATIENCE):
                await self.stopped.wait()
            newer = await self.world.run(self.workflow) if takeover is None else await takeover()
            self.rows = await rows_of(self.world.driver)
            self.go_on.set()
        assert type(self.error) is LeaseLostError
        assert "'i'" in str(self.error)
        assert await rows_of(self.world.driver) == self.rows
        assert isinstance(newer, RunResult)
        return newer

    async def _older(self) -> None:
        with pytest.raises(LeaseLostError) as caught:
            await self.world.once(self.workflow)
        self.error = caught.value


@pytest.mark.parametrize("outcome", ["value", "retry", "failure"])
async def test_taken_over_in_the_middle_of_a_step(world: World, outcome: str) -> None:
    ran: list[str] = []

    async def charge() -> str:
        ran.append("charge")
        if len(ran) > 1:
            return "newer"
        await rivals.stop()
        if outcome == "value":
            return "older"
        raise (ValueError if outcome == "retry" else CriticalError)("older")

    async def ship() -> None:
        ran.append("ship")

    @workflow
    async def buy(ctx: Context) -> str:
        charged = await ctx.step("charge", charge)
        await ctx.step("ship", ship)
        return charged

    rivals = Rivals(world, buy)
    newer = await rivals.run()
    assert (newer.status, newer.output) == (Status.COMPLETED, "newer")
    assert ran == ["charge", "charge", "ship"]


async def test_taken_over_by_a_run_that_was_evicted(world: World) -> None:
    async def charge() -> None:
        if not rivals.stopped.is_set():
            await rivals.stop()

    @workflow
    async def buy(ctx: Context) -> str:
        await ctx.step("charge", charge)
        return await ctx.listen("address", type=str)

    rivals = Rivals(world, buy)
    newer = await rivals.run(takeover=lambda: world.once(buy, mode="yield"))
    assert (newer.status, newer.waiting_for) == (Status.WAITING, ["address"])
    assert (await world.run(buy, script=[("address", "here")])).output == "here"


async def test_taken_over_with_a_step_in_each_branch(world: World) -> None:
    ran: list[str] = []
    newer_runs = False

    async def charge(name: str) -> str:
        ran.append(name)
        if not newer_runs:
            await rivals.stop()
        return name

    @workflow
    async def buy(ctx: Context) -> list[str]:
        async def pay(ctx: Context, name: str) -> str:
            await ctx.step("charge", charge, name)
            return await ctx.step("again", charge, name + name)

        return await ctx.map("pay", pay, ["a", "b", "c"])

    async def takeover() -> RunResult[Any]:
        nonlocal newer_runs
        newer_runs = True
        return await world.run(buy)

    rivals = Rivals(world, buy)
    newer = await rivals.run(takeover=takeover)
    assert newer.output == ["aa", "bb", "cc"]
    assert sorted(ran) == ["a", "a", "aa", "b", "b", "bb", "c", "c", "cc"]


async def test_taken_over_while_a_handler_undoes_a_step(world: World) -> None:
    undone: list[str] = []

    async def charge(name: str) -> str:
        return name

    @workflow
    async def buy(ctx: Context) -> None:
        async def refund(name: str) -> None:
            undone.append(name)
            if len(undone) == 1:
                await rivals.stop()

        await ctx.step("a", charge, "a", rollback=refund)
        await ctx.step("b", charge, "b", rollback=refund)
        raise ValueError("no")

    rivals = Rivals(world, buy)
    newer = await rivals.run()
    assert newer.status is Status.ROLLED_BACK
    assert undone == ["b", "b", "a"]


async def test_taken_over_while_parked_in_memory(world: World) -> None:
    ran: list[str] = []

    async def ship(address: str) -> None:
        ran.append(address)

    @workflow
    async def buy(ctx: Context) -> str:
        address = await ctx.listen("address", type=str)
        await ctx.step("ship", ship, address)
        return address

    older: list[BaseException] = []
    before: list[Row] = []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            with pytest.raises(LeaseLostError) as caught:
                await world.once(buy, mode="live")
            older.append(caught.value)

        group.start_soon(run)
        await world.until_waiting()
        assert (await world.once(buy, mode="yield")).status is Status.WAITING
        await world.send("address", "here")
        before = await rows_of(world.driver)
    assert len(older) == 1
    assert await rows_of(world.driver) == before
    assert ran == []
    assert (await world.run(buy)).output == "here"
    assert ran == ["here"]


def eventful(log: list[str]) -> Workflow[Any, Any]:
    """A workflow that commits for every kind of reason."""

    async def work(name: str) -> str:
        log.append(name)
        return name

    async def flaky() -> str:
        log.append("flaky")
        if log.count("flaky") % 2:
            raise ValueError("once more")
        return "flaky"

    @workflow(name="eventful")
    async def run(ctx: Context) -> None:
        async def branch(ctx: Context) -> str:
            await ctx.sleep("nap", 5)
            return await ctx.step("work", work, "branch", rollback=undo)

        async def loser(ctx: Context) -> str:
            await ctx.step("work", work, "loser", rollback=undo)
            await ctx.sleep("long", 500)
            return "loser"

        await ctx.step("first", work, "first", rollback=undo)
        await ctx.step("flaky", flaky)
        await ctx.join("join", {"a": branch, "b": branch})
        await ctx.race("race", {"winner": branch, "loser": loser})
        raise ValueError("undo it")

    return run


async def check_overtaken(world: World, number: int) -> bool:
    """Overtake a run before its `number`-th commit, and run the instance to its end; False if it has fewer commits."""
    log: list[str] = []
    id, job = f"job-{number}", eventful(log)
    rows: list[Row] = []
    ended: list[RunResult[Any]] = []
    heard: list[int] = []

    async def overtake(commit: int) -> None:
        if commit == number:
            # On a clock of its own: that of the other run waits for the commit that this one is made before.
            ended.append(await replace(world, clock=hasty_clock(world.clock.now())).run(job, id=id))
            rows.extend(await rows_of(world.driver))
            heard.append(len(log))

    try:
        result = await world.run(job, id=id, driver=WatchedDriver(world.driver, overtake))
    except LeaseLostError:
        assert ended, "nobody has overtaken it"
    else:
        if not ended:
            return False
        # It was overtaken while it claimed the instance, and found it ended.
        assert result == ended[0]
    assert ended[0].status is Status.ROLLED_BACK
    assert await rows_of(world.driver) == rows
    assert len(log) == heard[0]
    return True


async def test_taken_over_before_any_commit(world: World) -> None:
    world.clock = hasty_clock()
    number = 1
    while await check_overtaken(world, number):
        number += 1
    assert 18 < number < COMMITS_MAX


async def test_a_conflict_that_is_no_lost_lease_is_not_called_one(world: World) -> None:
    async def charge() -> int:
        return 1

    @workflow
    async def buy(ctx: Context) -> int:
        return await ctx.step("charge", charge)

    with pytest.raises(ConflictError):
        await world.once(buy, driver=FaultyDriver(world.driver, conflict_at=[2]))
    assert (await world.run(buy)).output == 1


async def test_a_cancelled_run_gives_the_instance_back_and_the_next_goes_on(world: World) -> None:
    charged: list[str] = []
    running = anyio.Event()

    async def charge() -> int:
        charged.append("charge")
        return 1

    async def hang() -> None:
        if running.is_set():
            return
        running.set()
        await anyio.sleep_forever()

    @workflow
    async def buy(ctx: Context) -> int:
        value = await ctx.step("charge", charge)
        await ctx.step("hang", hang)
        return value

    async with anyio.create_task_group() as group:
        group.start_soon(world.once, buy)
        await running.wait()
        group.cancel_scope.cancel()
    watched = WatchedDriver(world.driver)
    assert (await world.run(buy, driver=watched)).output == 1
    assert charged == ["charge"]


async def test_what_is_late_of_an_earlier_run_of_the_same_worker_is_refused(world: World) -> None:
    """A worker that lost an instance and has it again is fenced from what it still had on its way."""

    @workflow
    async def waits(ctx: Context, _: Any = None) -> Any:
        await ctx.listen("never")

    keys, flow = InstanceKeys("i"), waits
    leases: list[Lease | None] = []
    for _ in range(2):
        claimant = Claimant(
            keys,
            lambda name: flow,
            Codec(),
            world.clock.time,
            new_lease("w", 10.0),
            new=lambda: new_rows(flow, Status.RUNNING, Codec().encode(None), world.clock.time(), b"seed" * 4),
        )
        leases.append((await claim(world.driver, claimant)).lease)
    late, last = (Batch(), Batch())
    for batch, lease in zip((late, last), leases, strict=True):
        assert lease is not None
        batch.check(keys.lease, lease.pack())
        batch.set(b"written", b"")
    with pytest.raises(ConflictError):
        await world.driver.commit(late)
    await world.driver.commit(last)
