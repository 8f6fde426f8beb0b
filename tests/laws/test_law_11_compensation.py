"""Law 11: what a failed workflow did is undone, newest first, as the store remembers it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import pytest

from tests.laws import undoing
from tests.laws.undoing import Charge, undo, undo_plainly, undo_with, undone
from tests.support import World
from workflow_sdk import (
    Break,
    Context,
    Continue,
    CriticalError,
    Failure,
    JoinError,
    Status,
    workflow,
)


@pytest.fixture(autouse=True)
def nothing_undone() -> Iterator[None]:
    """Every test begins with nothing undone."""
    undone.clear()
    yield
    undone.clear()


async def test_steps_of_every_kind_of_scope_are_undone_newest_first(world: World) -> None:
    done: list[str] = []

    async def do(name: str) -> str:
        done.append(name)
        return name

    @workflow
    async def trip(ctx: Context) -> None:
        async def slow(ctx: Context) -> str:
            await ctx.step("first", do, "slow 1", rollback=undo)
            await ctx.sleep("wait", 10)
            return await ctx.step("second", do, "slow 2", rollback=undo)

        async def quick(ctx: Context) -> str:
            await ctx.sleep("wait", 5)
            return await ctx.step("first", do, "quick", rollback=undo)

        async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
            await ctx.step("in turn", do, f"turn {number}", rollback=undo)
            return Continue(number + 1) if number < 2 else Break()

        async def fails(ctx: Context) -> None:
            await ctx.step("before", do, "attempted", rollback=undo)
            await ctx.step("refuse", undoing.refuse)

        async def each(ctx: Context, item: int) -> None:
            await ctx.step("mapped", do, f"item {item}", rollback=undo)

        async def nested(ctx: Context) -> None:
            await ctx.join("inside", {"a": quick, "b": slow})

        await ctx.step("root", do, "root", rollback=undo)
        await ctx.join("join", {"slow": slow, "quick": quick})
        await ctx.race("race", {"slow": slow, "quick": quick})
        await ctx.loop("loop", turn, 0, commit_interval=1)
        assert isinstance(await ctx.attempt("attempt", fails), Failure)
        await ctx.map("map", each, range(3), limit=1)
        await ctx.attempt("nested", nested)
        await ctx.step("last", do, "last", rollback=undo)
        raise ValueError("no")

    result = await world.run(trip)
    assert result.status is Status.ROLLED_BACK
    assert result.error is not None
    assert result.error.message == "no"
    assert len(done) == 17
    assert undone == done[::-1]
    assert all(item.progress == "done" for item in (await world.history()).compensations)


async def test_a_loser_that_lost_nothing_but_the_race_is_undone_too(world: World) -> None:
    @workflow
    async def trip(ctx: Context) -> None:
        async def loses(ctx: Context) -> None:
            await ctx.step("book", undoing.name, "loser", rollback=undo)
            await ctx.sleep("for long", 100)
            await ctx.step("again", undoing.name, "never", rollback=undo)

        async def wins(ctx: Context) -> None:
            await ctx.sleep("briefly", 1)

        await ctx.race("race", {"loses": loses, "wins": wins})
        raise ValueError("no")

    assert (await world.run(trip)).status is Status.ROLLED_BACK
    assert undone == ["loser"]


@pytest.mark.parametrize("rollback", [None, undo])
async def test_what_a_failed_workflow_is_called(world: World, rollback: Any) -> None:
    @workflow
    async def trip(ctx: Context) -> None:
        await ctx.step("book", undoing.name, "hotel", rollback=rollback)
        raise ValueError("no")

    result = await world.run(trip)
    assert result.status is (Status.FAILED if rollback is None else Status.ROLLED_BACK)
    assert undone == ([] if rollback is None else ["hotel"])


async def test_a_workflow_that_completes_undoes_nothing(world: World) -> None:
    @workflow
    async def trip(ctx: Context) -> None:
        await ctx.step("book", undoing.name, "hotel", rollback=undo)

    assert (await world.run(trip)).status is Status.COMPLETED
    assert undone == []


async def test_a_step_that_failed_is_not_undone(world: World) -> None:
    @workflow
    async def trip(ctx: Context) -> None:
        await ctx.step("hotel", undoing.name, "hotel", rollback=undo)
        await ctx.step("flight", undoing.refuse, rollback=undo)

    assert (await world.run(trip)).status is Status.ROLLED_BACK
    assert undone == ["hotel"]


async def test_what_was_finished_before_a_checkpoint_stays_done(world: World) -> None:
    @workflow
    async def trip(ctx: Context) -> None:
        async def part(ctx: Context) -> None:
            await ctx.step("book", undoing.name, "in a branch", rollback=undo)

        async def loser(ctx: Context) -> None:
            await ctx.step("book", undoing.name, "in a loser", rollback=undo)
            await ctx.sleep("nap", 100)

        async def winner(ctx: Context) -> None:
            await ctx.sleep("nap", 1)

        await ctx.step("before", undoing.name, "before", rollback=undo)
        await ctx.join("join", {"a": part})
        await ctx.race("race", {"a": loser, "b": winner})
        await ctx.checkpoint("no return")
        await ctx.sleep("nap", 1)
        await ctx.step("after", undoing.name, "after", rollback=undo)
        raise ValueError("no")

    assert (await world.run(trip)).status is Status.ROLLED_BACK
    assert undone == ["after"]


async def test_with_nothing_after_the_checkpoint_it_is_failed(world: World) -> None:
    @workflow
    async def trip(ctx: Context) -> None:
        await ctx.step("before", undoing.name, "before", rollback=undo)
        await ctx.checkpoint("no return")
        await ctx.sleep("nap", 1)
        raise ValueError("no")

    assert (await world.run(trip)).status is Status.FAILED
    assert undone == []


async def mistake(ctx: Context) -> None:
    await ctx.step("twice", undoing.name, "1")
    await ctx.step("twice", undoing.name, "2")


async def test_a_mistake_compensates_nothing(world: World) -> None:
    @workflow
    async def trip(ctx: Context) -> None:
        await ctx.step("book", undoing.name, "hotel", rollback=undo)
        await mistake(ctx)

    result = await world.run(trip)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert (result.error.kind, undone) == ("definition", [])


async def test_divergence_compensates_nothing(world: World) -> None:
    @workflow(name="trip")
    async def before(ctx: Context) -> None:
        await ctx.step("book", undoing.name, "hotel", rollback=undo)
        await ctx.listen("never")

    @workflow(name="trip")
    async def after(ctx: Context) -> None:
        await ctx.step("renamed", undoing.name, "hotel", rollback=undo)

    await world.once(before, mode="yield")
    result = await world.run(after)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert (result.error.kind, undone) == ("consistency", [])


@pytest.mark.parametrize("pause", [False, True])
async def test_a_handler_is_given_the_value_with_its_type(world: World, pause: bool) -> None:
    seen: list[object] = []

    async def refund(result: object) -> None:
        seen.append(result)

    @workflow
    async def trip(ctx: Context) -> None:
        await ctx.step("charge", undoing.charge, "c", rollback=refund)
        await ctx.step("pair", undoing.pair, "p", rollback=refund)
        await ctx.step("charge by name", undoing.charge, "n", rollback=undo)
        await ctx.step("pair by name", undoing.pair, "m", rollback=undo_plainly)
        if pause:
            await ctx.sleep("nap", 5)
        raise ValueError("no")

    assert (await world.run(trip)).status is Status.ROLLED_BACK
    assert seen == [("p", 1), Charge("c", (1, 2))]
    assert undone == [("m", 1), Charge("n", (1, 2))]
    assert type(seen[0]) is type(undone[0]) is tuple
    assert isinstance(seen[1], Charge)
    assert type(seen[1].parts) is tuple


async def test_a_handler_can_have_arguments_of_its_own(world: World) -> None:
    @workflow
    async def trip(ctx: Context) -> None:
        async def turn(ctx: Context, number: int) -> Continue[int] | Break[None]:
            keep = partial(undo_with, {"turn": number}, last=(number,))
            await ctx.step("book", undoing.charge, str(number), rollback=keep)
            return Continue(number + 1) if number < 2 else Break()

        await ctx.loop("loop", turn, 0, commit_interval=1, history_keep=0)
        await ctx.step("pair", undoing.pair, "p", rollback=partial(partial(undo_with, "first"), last="last"))
        await ctx.sleep("nap", 5)
        raise ValueError("no")

    assert (await world.run(trip)).status is Status.ROLLED_BACK
    turns = [({"turn": number}, Charge(str(number), (1, 2)), (number,)) for number in (2, 1, 0)]
    assert undone == [("first", ("p", 1), "last"), *turns]


@pytest.mark.parametrize("nested", [False, True])
async def test_a_handler_inside_a_loop_has_to_have_a_name(world: World, nested: bool) -> None:
    ran: list[str] = []

    async def book() -> str:
        ran.append("book")
        return "hotel"

    @workflow
    async def trip(ctx: Context) -> None:
        async def part(ctx: Context) -> None:
            try:
                await ctx.step("book", book, rollback=lambda result: ran.append("undo"))
            except Exception:  # noqa: BLE001  # swallowing it must not help
                await ctx.step("go on", book)

        async def turn(ctx: Context, state: object) -> None:
            if nested:
                await ctx.join("join", {"a": part})
            else:
                await part(ctx)

        await ctx.step("before", undoing.name, "before", rollback=undo)
        await ctx.loop("loop", turn)

    result = await world.run(trip)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "definition"
    assert "loop/~0" in result.error.message
    assert "importable" in result.error.message
    assert "partial" in result.error.message
    assert (ran, undone) == ([], [])


async def test_a_step_in_flight_when_the_workflow_fails_is_undone_if_it_finished(world: World) -> None:
    """The first branch's failure waits for its siblings; what they did meanwhile counts."""
    finish = anyio.Event()

    async def book() -> str:
        await finish.wait()
        return "late"

    async def fail() -> None:
        finish.set()
        raise CriticalError("no")

    @workflow
    async def trip(ctx: Context) -> None:
        async def fails(ctx: Context) -> None:
            await ctx.step("fail", fail)

        async def books(ctx: Context) -> None:
            await ctx.step("book", book, rollback=undo)

        await ctx.join("join", {"books": books, "fails": fails})

    result = await world.run(trip)
    assert result.status is Status.ROLLED_BACK
    assert result.error is not None
    assert result.error.type == f"{JoinError.__module__}.JoinError"
    assert undone == ["late"]
