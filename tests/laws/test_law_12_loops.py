"""Law 12: the history of a loop is bounded by what it keeps, and the names of pruned turns do not pile up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.laws.counting_driver import WatchedDriver, fresh_world, names_of, rows_of
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Break, Context, Continue, Status, Workflow, workflow
from workflow_sdk.instance.execution import Mode
from workflow_sdk.rows.keys import BASES, InstanceKeys


async def give(value: Any = 1) -> Any:
    return value


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


WAITING = ["retries", "joins", "races", "waits", "attempts"]
"""Kinds with waits inside: in yield mode these evict the instance and load it again."""


@pytest.mark.law(21)
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((kind, "yield") for kind in ["steps", "nested loops", *WAITING]),
        *((kind, "live") for kind in WAITING),
    ],
)
async def test_a_loop_leaves_as_much_after_200_turns_as_after_50(tmp_path: Path, kind: str, mode: Mode) -> None:
    left: list[tuple[int, int]] = []
    for turns in (50, 200):
        async with fresh_world(tmp_path) as world:
            await run_until_waiting(world, by_turns(kind, turns), mode)
            left.append((await names_of(world), len(await rows_of(world.driver))))
    assert left[0] == left[1]


async def run_until_waiting(world: World, job: Workflow[Any, Any], mode: Mode) -> None:
    if mode == "live":
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: world.once(job, mode="live"))
            await world.until_waiting(seconds=5 * PATIENCE)  # these are many turns
            group.cancel_scope.cancel()
        return
    while not (result := await world.once(job, mode="yield")).waiting_for:
        assert result.wake_at is not None
        world.clock.advance(max(0.0, result.wake_at.timestamp() - world.clock.time()))


async def states_of(world: World) -> tuple[int, int]:
    """How many rows hold states that a loop had, and how many bytes."""
    rows = await world.driver.scan(*InstanceKeys("i").range(BASES))
    return len(rows), sum(len(raw) for _, raw in rows)


def stateful(state: Callable[[int], Any], turns: int, keep: int | None) -> Workflow[Any, Any]:
    """A workflow that waits after a number of turns."""

    async def turn(ctx: Context, _: Any) -> Continue[Any]:
        number = int(ctx.path.rpartition("~")[2])
        if number == turns:
            await ctx.listen("more")
        await ctx.step("step", give)
        return Continue(state(number + 1))

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.loop("loop", turn, state(0), commit_interval=5, history_keep=keep)

    return job


@pytest.mark.parametrize(
    ("state", "keep", "rows", "size"),
    [
        (lambda n: None, None, 0, 0),
        (lambda n: "x" * 100_000, 50, 0, 0),
        (lambda n: n, 0, 0, 0),
        (lambda n: n, None, 1, 200),
        (lambda n: n, 2, 1, 100),
        (lambda n: n, 20, 4, 800),
        (lambda n: [n, "x" * 2_000], 20, 4, 45_000),
        (lambda n: [n, "x" * 50_000], 20, 4, 205_000),
        (lambda n: n // 12, 20, 2, 100),
    ],
    ids=["none", "constant", "nothing kept", "number", "two kept", "twenty kept", "medium", "large", "seldom"],
)
async def test_the_states_that_a_loop_had_are_bounded_by_what_it_keeps(
    tmp_path: Path, state: Callable[[int], Any], keep: int | None, rows: int, size: int
) -> None:
    for turns in (121, 302):
        async with fresh_world(tmp_path) as world:
            await run_until_waiting(world, stateful(state, turns, keep), "yield")
            found = await states_of(world)
            assert found[0] <= rows
            assert found[1] <= size


@pytest.mark.parametrize(("kind", "more"), [("none", 0), ("number", 1)])
async def test_a_loop_writes_one_row_more_when_it_is_stored_if_its_state_changed(
    tmp_path: Path, kind: str, more: int
) -> None:
    async with fresh_world(tmp_path) as world:
        watched = WatchedDriver(world.driver)
        job = stateful(lambda n: n if kind == "number" else None, 100, None)
        await world.once(job, driver=watched, mode="yield")
        by_turn = watched.commits[20:-2]
        # The count, and a step, now and then with its name; and every fifth time the loop, what it clears (history,
        # metadata, states), and the states.
        assert set(by_turn) == {2, 3, 5 + more}
        assert abs(by_turn.count(5 + more) - len(by_turn) / 6) <= 1


@pytest.mark.law(21)
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

    assert (await world.run(job)).status is Status.COMPLETED
    assert len(ran) == len(set(ran)) == 11
