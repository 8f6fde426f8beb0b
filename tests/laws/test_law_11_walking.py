"""Law 11: handlers outlive the process: by name, or by walking the code over its history once more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.laws import undoing
from tests.laws.undoing import undone
from tests.support import World
from workflow_sdk import (
    Batch,
    Break,
    Context,
    Continue,
    Driver,
    Failure,
    RaceError,
    Status,
    StepError,
    Workflow,
    workflow,
)
from workflow_sdk.rows.instance import Head
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash


@pytest.fixture(autouse=True)
def nothing_undone() -> Iterator[None]:
    """Every test begins with nothing undone."""
    undone.clear()
    yield
    undone.clear()


class DiesRollingBack(FaultyDriver):
    """A process that dies as soon as it has recorded that the workflow failed."""

    def __init__(self, driver: Driver, id: str) -> None:
        super().__init__(driver)
        self._head = InstanceKeys(id).field(Field.HEAD)

    async def commit(self, batch: Batch, /) -> None:
        await super().commit(batch)
        head = await self.driver.get(self._head)
        if head is not None and Head.unpack(head).status is Status.ROLLING_BACK:
            self.crash()


async def run_over_two_processes(world: World, job: Workflow[Any, Any], input: Any = None) -> None:
    """The first process dies before it has undone anything."""
    undone.clear()
    driver = DiesRollingBack(world.driver, "two")
    try:
        await world.run(job, input, id="two", driver=driver)
    except* SimulatedCrash:
        pass
    assert driver.crashed
    assert undone == []
    assert (await world.run(job, input, id="two")).status is Status.ROLLED_BACK


Part = Callable[[Context], Any]


async def run_join(ctx: Context, part: Part) -> None:
    await ctx.join("outer", {"a": part, "b": part}, limit=1)


async def run_map(ctx: Context, part: Part) -> None:
    async def each(ctx: Context, item: int) -> None:
        await part(ctx)

    await ctx.map("outer", each, [1, 2], limit=1)


async def run_attempt(ctx: Context, part: Part) -> None:
    async def fails(ctx: Context) -> None:
        await part(ctx)
        await ctx.step("refuse", undoing.refuse)

    assert isinstance(await ctx.attempt("outer", fails), Failure)


async def run_winner(ctx: Context, part: Part) -> None:
    async def never(ctx: Context) -> None:
        await ctx.sleep("for long", 1000)

    await ctx.race("outer", {"part": part, "never": never})


async def run_loser(ctx: Context, part: Part) -> None:
    async def loses(ctx: Context) -> None:
        await part(ctx)
        await ctx.sleep("for long", 1000)

    async def wins(ctx: Context) -> None:
        await ctx.sleep("briefly", 50)

    await ctx.race("outer", {"loses": loses, "wins": wins})


async def run_failed_race(ctx: Context, part: Part) -> None:
    async def fails(ctx: Context) -> None:
        await part(ctx)
        await ctx.step("refuse", undoing.refuse)

    with pytest.raises(RaceError):
        await ctx.race("outer", {"fails": fails})


async def run_after_a_loop(ctx: Context, part: Part) -> None:
    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.step("turn", undoing.name, str(number))
        return Continue(number + 1) if number < 5 else Break(number)

    assert await ctx.loop("loop", turn, 0, commit_interval=2) == 5
    await part(ctx)


async def run_after_a_caught_failure(ctx: Context, part: Part) -> None:
    with pytest.raises(StepError):
        await ctx.step("caught", undoing.refuse)
    await part(ctx)


async def run_after_waits(ctx: Context, part: Part) -> None:
    await ctx.sleep("nap", 5)
    assert await ctx.listen("nobody", timeout=5, default="nothing") == "nothing"
    assert await ctx.version("later", 3) == 3
    await part(ctx)


async def run_plainly(ctx: Context, part: Part) -> None:
    await part(ctx)


SCOPES = [run_join, run_map, run_attempt, run_winner, run_loser, run_failed_race]
PLACES = [run_after_a_loop, run_after_a_caught_failure, run_after_waits, run_plainly]


@pytest.mark.parametrize("outer", SCOPES)
@pytest.mark.parametrize("inner", [*SCOPES, *PLACES])
async def test_closures_are_found_in_every_scope_in_every_scope(world: World, outer: Any, inner: Any) -> None:
    steps: list[str] = []

    async def book(where: str) -> str:
        steps.append(where)
        return where

    @workflow
    async def trip(ctx: Context) -> None:
        async def part(ctx: Context) -> None:
            first = await ctx.step("book", book, ctx.path, rollback=lambda result: undone.append(("first", result)))

            async def again(result: str) -> None:
                undone.append((first, result))

            await ctx.step("again", book, ctx.path + "/again", rollback=again)

        async def nested(ctx: Context) -> None:
            await inner(ctx, part)

        await outer(ctx, nested)
        await ctx.sleep("nap", 1)
        raise ValueError("no")

    assert (await world.run(trip, id="without a crash")).status is Status.ROLLED_BACK
    expected = list(undone)
    assert [result for _, result in expected] == steps[::-1]
    assert len(steps) in (2, 4, 8)
    await run_over_two_processes(world, trip)
    assert undone == expected


async def test_values_that_closures_hold_are_there_again(world: World) -> None:
    """The walk gives the code what it was given: input, values of steps, messages, results of joins and races."""

    @workflow
    async def trip(ctx: Context, number: int) -> None:
        async def fetch(ctx: Context) -> str:
            return await ctx.step("fetch", undoing.name, "fetched")

        value = await ctx.step("pair", undoing.pair, "p")
        joined = await ctx.join("join", {"a": fetch})
        raced = await ctx.race("race", {"b": fetch})
        mapped = await ctx.map("map", lambda ctx, item: fetch(ctx), [1, 2])
        attempted = await ctx.attempt("attempt", fetch)
        message = await ctx.listen("message", timeout=1, default="nobody")
        drawn = str(ctx.uuid())
        held = (number, value, joined, raced.winner, raced.value, mapped, attempted.ok, message, drawn)
        await ctx.step("last", undoing.name, "last", rollback=lambda result: undone.append((result, held)))
        raise ValueError("no")

    assert (await world.run(trip, 7, id="without a crash")).status is Status.ROLLED_BACK
    ((result, held),) = undone
    assert result == "last"
    fetched = "fetched"
    assert held[:-1] == (7, ("p", 1), {"a": fetched}, "b", fetched, [fetched] * 2, True, "nobody")
    await run_over_two_processes(world, trip, 7)
    ((result, again),) = undone
    # The uuid is another one in every instance.
    assert (result, again[:-1]) == ("last", held[:-1])


async def test_a_walk_runs_no_step_and_writes_nothing_of_its_own(world: World) -> None:
    ran: list[str] = []

    async def work(name: str) -> str:
        ran.append(name)
        return name

    @workflow
    async def trip(ctx: Context) -> None:
        async def loser(ctx: Context) -> None:
            await ctx.step("done", work, "done", rollback=lambda result: undone.append(result))
            await ctx.listen("never")
            await ctx.step("not reached", work, "not reached")

        async def winner(ctx: Context) -> None:
            await ctx.sleep("briefly", 5)
            await ctx.step("won", work, "won", rollback=lambda result: undone.append(result))

        await ctx.race("race", {"loser": loser, "winner": winner})
        raise ValueError("no")

    await run_over_two_processes(world, trip)
    assert undone == ["won", "done"]
    assert ran == ["done", "won"]


@pytest.mark.parametrize("local", [False, True])
async def test_a_walked_handler_is_given_the_value_with_its_type(world: World, local: bool) -> None:
    @workflow
    async def trip(ctx: Context) -> None:
        @dataclass
        class Booking:
            id: str
            seats: tuple[int, ...]

        async def book() -> Booking:
            return Booking("b", (1, 2))

        async def cancel(result: Booking | undoing.Charge) -> None:
            assert type(result) is (Booking if local else undoing.Charge)
            undone.append((result.id, result.seats if isinstance(result, Booking) else result.parts))

        if local:
            await ctx.step("book", book, rollback=cancel)
        else:
            await ctx.step("charge", undoing.charge, "b", rollback=cancel)
        raise ValueError("no")

    await run_over_two_processes(world, trip)
    assert undone == [("b", (1, 2))]
    assert type(undone[0][1]) is tuple


SCRIPT = """
import sys
from functools import partial

import anyio

from tests.laws import undoing
from workflow_sdk import Break, Continue, open_driver, run_workflow, workflow
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

crash, url = int(sys.argv[1]), sys.argv[2]


@workflow
async def trip(ctx):
    async def turn(ctx, number):
        keep = partial(undoing.undo_with, number, last=("last",))
        await ctx.step("book", undoing.charge, str(number), rollback=keep)
        return Continue(number + 1) if number < 2 else Break()

    async def part(ctx):
        await ctx.step("pair", undoing.pair, ctx.path, rollback=undoing.undo)
        await ctx.step("plain", undoing.name, ctx.path, rollback=undoing.undo_plainly)
        closure = lambda pair: undoing.undone.append(("closure", pair))
        await ctx.step("closure", undoing.pair, ctx.path, rollback=closure)

    await ctx.loop("loop", turn, 0, commit_interval=1, history_keep=0)
    await ctx.join("join", {"a": part})
    raise ValueError("no")


async def main():
    driver = await open_driver(url)
    try:
        faulty = FaultyDriver(driver, crash_after=crash or None)
        result = await run_workflow(trip, driver=faulty, instance_id="i")
        print(result.status.value)
        print(undoing.undone)
    finally:
        await driver.aclose()


try:
    anyio.run(main)
except* SimulatedCrash:
    print("crashed")
"""


def test_handlers_are_found_in_a_new_process(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[2]

    def run(crash: int) -> list[str]:
        argv = [sys.executable, str(script), str(crash), f"sqlite:///{tmp_path}/store.db"]
        done = subprocess.run(
            argv, cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.splitlines()

    # Claim, three turns and the loop, three steps, the join, the failure: the first handler is not recorded.
    assert run(10) == ["crashed"]
    turns = ", ".join(f"({number}, Charge(id='{number}', parts=(1, 2)), ('last',))" for number in (2, 1, 0))
    status, shown = run(0)
    assert status == "rolled_back"
    assert shown == f"[('closure', ('join/a', 1)), 'join/a', ('join/a', 1), {turns}]"
