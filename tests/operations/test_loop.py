"""`ctx.loop`: turns, state, and a history that does not grow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import World
from workflow_sdk import Break, Context, Continue, EntryStatus, Kind, Status, StepError, workflow
from workflow_sdk.rows.keys import NAMES, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash


@dataclass
class Basket:
    total: int = 0
    items: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])


def plus(a: int, b: int) -> int:
    return a + b


async def test_state_goes_from_turn_to_turn(world: World) -> None:
    ran: list[int] = []

    def add(state: int) -> int:
        ran.append(state)
        return state + 1

    async def body(ctx: Context, state: int) -> Continue[int] | Break[str]:
        state = await ctx.step("add", add, state)
        await ctx.sleep("pause", 60)
        return Break(f"at {state}") if state == 5 else Continue(state)

    @workflow
    async def counts(ctx: Context) -> str:
        return await ctx.loop("count", body, 0, commit_interval=2)

    result = await world.run(counts)
    assert (result.status, result.output) == (Status.COMPLETED, "at 5")
    assert ran == [0, 1, 2, 3, 4]


async def test_a_dataclass_comes_back_as_what_it_was(world: World) -> None:
    seen: list[type] = []

    async def body(ctx: Context, basket: Basket) -> Continue[Basket] | Break[Basket]:
        seen.append(type(basket))
        item = await ctx.step("pick", lambda: ("apple", 2))
        await ctx.sleep("pause", 60)
        basket.items.append(item)
        basket.total += item[1]
        return Break(basket) if basket.total == 6 else Continue(basket)

    @workflow
    async def shops(ctx: Context) -> Basket:
        basket = await ctx.loop("shop", body, Basket(), commit_interval=1)
        assert type(basket) is Basket
        await ctx.sleep("pause", 60)
        return basket

    result = await world.run(shops)
    assert result.output == Basket(6, [("apple", 2)] * 3)
    assert type(result.output) is Basket
    assert set(seen) == {Basket}


async def test_a_body_without_hints_keeps_its_types(world: World) -> None:
    async def body(ctx, state):  # type: ignore[no-untyped-def]  # pyright: ignore[reportMissingParameterType]
        await ctx.sleep("pause", 1)
        return Break(state) if state["n"] == (3,) else Continue({"n": (state["n"][0] + 1,), 1: {1.5}})

    @workflow
    async def loose(ctx: Context) -> Any:
        return await ctx.loop("loop", body, {"n": (1,)}, commit_interval=1)

    assert (await world.run(loose)).output == {"n": (3,), 1: {1.5}}


@pytest.mark.law(14)
async def test_state_passes_by_value(world: World) -> None:
    first = Basket()
    seen: list[int] = []

    async def body(ctx: Context, basket: Basket) -> Continue[Basket] | Break[int]:
        seen.append(basket.total)
        kept = Basket(basket.total + 1)
        basket.total = 99  # not returned
        await ctx.step("s", plus, 1, 1)
        answer: Continue[Basket] | Break[int] = Break(len(seen)) if len(seen) == 3 else Continue(kept)
        kept.items.append(("late", 1))
        return answer

    @workflow
    async def mutates(ctx: Context) -> int:
        return await ctx.loop("loop", body, first)

    assert (await world.run(mutates)).output == 3
    assert seen == [0, 1, 2]
    assert first == Basket()


async def test_a_loop_without_state_goes_on_with_none(world: World) -> None:
    turns: list[None] = []

    async def body(ctx: Context, state: None) -> Break[str] | None:
        turns.append(state)
        await ctx.step("s", plus, 1, 1)
        return Break("done") if len(turns) == 3 else None

    async def with_continue(ctx: Context, state: None) -> Continue[None] | Break[int]:
        number = await ctx.step("s", lambda: len(turns))
        turns.append(state)
        return Break(number) if number == 5 else Continue(None)

    @workflow
    async def stateless(ctx: Context) -> list[Any]:
        return [await ctx.loop("none", body), await ctx.loop("continue", with_continue)]

    assert (await world.run(stateless)).output == ["done", 5]
    assert turns == [None] * 6


async def test_none_after_a_state_that_is_none_is_fine(world: World) -> None:
    async def body(ctx: Context, state: int | None) -> Continue[int | None] | Break[str] | None:
        n = await ctx.step("s", lambda: len(turns))
        turns.append(n)
        return None if n < 2 else Break("done") if n > 3 else Continue(n if n == 2 else None)

    turns: list[int] = []

    @workflow
    async def mixes(ctx: Context) -> Any:
        return await ctx.loop("loop", body, None)

    result = await world.run(mixes)
    assert result.output == "done"


def counting(turns: int, **options: Any) -> Any:
    async def body(ctx: Context, n: int) -> Continue[int] | Break[int]:
        n = await ctx.step(f"add {n}", plus, n, 1)
        return Break(n) if n == turns else Continue(n)

    @workflow
    async def counts(ctx: Context) -> int:
        return await ctx.loop("count", body, 0, **options)

    return counts


@pytest.mark.parametrize(
    ("turns", "options", "kept"),
    [
        (50, {}, range(30, 50)),
        (7, {"commit_interval": 3}, range(4, 7)),
        (7, {"commit_interval": 3, "history_keep": 0}, range(0)),
        (7, {"commit_interval": 1, "history_keep": 2}, range(5, 7)),
        (7, {"commit_interval": 2, "history_keep": 5}, range(2, 7)),
        (7, {"commit_interval": 100, "history_keep": 1}, range(6, 7)),
        (3, {"history_keep": 10}, range(3)),
    ],
)
async def test_a_finished_loop_keeps_its_last_turns(
    world: World, turns: int, options: dict[str, Any], kept: range
) -> None:
    assert (await world.run(counting(turns, **options))).output == turns
    history = await world.history()
    assert [entry.path for entry in history] == ["count", *(f"count/~{n}/add {n}" for n in kept)]
    assert (history["count"].kind, history["count"].status) == (Kind.LOOP, EntryStatus.COMPLETED)
    names = await world.driver.scan(*InstanceKeys("i").range(NAMES))
    assert len(names) == 1 + len(kept), "names of pruned turns do not pile up"


async def test_state_is_stored_every_commit_interval(world: World) -> None:
    entered: list[int] = []

    async def body(ctx: Context, n: int) -> Continue[int] | Break[int]:
        entered.append(n)
        await ctx.step("s", plus, n, 1)
        if n == 7:
            await ctx.listen("go")
        return Break(n) if n == 8 else Continue(n + 1)

    @workflow
    async def counts(ctx: Context) -> int:
        return await ctx.loop("count", body, 0, commit_interval=3)

    first = await world.once(counts, mode="yield")
    assert (first.status, entered) == (Status.WAITING, [0, 1, 2, 3, 4, 5, 6, 7])
    entered.clear()
    await world.send("go")
    assert (await world.run(counts)).output == 8
    assert entered == [6, 7, 8], "only turns that no stored state covers are entered again"


@pytest.mark.law(12)
@pytest.mark.parametrize("crash_at", range(2, 9))
async def test_no_turn_is_lost_or_done_twice(world: World, crash_at: int) -> None:
    ran: list[int] = []

    async def body(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.step("s", ran.append, n)
        return Break(n) if n == 5 else Continue(n + 1)

    @workflow
    async def counts(ctx: Context) -> int:
        return await ctx.loop("count", body, 0, commit_interval=2, history_keep=1)

    with pytest.raises(SimulatedCrash):
        await world.once(counts, driver=FaultyDriver(world.driver, crash_after=crash_at))
    assert (await world.run(counts)).output == 5
    assert ran == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("history_keep", [0, None])
async def test_a_body_that_fails_fails_the_loop(world: World, history_keep: int | None) -> None:
    ran: list[int] = []

    def charge(n: int) -> None:
        ran.append(n)
        if n == 2:
            raise ValueError("no")

    async def body(ctx: Context, n: int) -> Continue[int]:
        await ctx.step("charge", charge, n, retries=0)
        return Continue(n + 1)

    @workflow
    async def fails(ctx: Context) -> str:
        try:
            await ctx.loop("loop", body, 0, history_keep=history_keep)
        except StepError as error:
            await ctx.sleep("pause", 60)
            return f"{type(error).__name__} {error.path}"
        return "no failure"

    assert (await world.run(fails)).output == "StepExhaustedError loop/~2/charge"
    assert ran == [0, 1, 2]
    history = await world.history()
    assert history["loop"].status is EntryStatus.FAILED
    assert history["loop/~2/charge"].status is EntryStatus.FAILED


async def test_a_failure_in_a_turn_can_be_handled_there(world: World) -> None:
    async def body(ctx: Context, failures: int) -> Continue[int] | Break[int]:
        try:
            await ctx.step("charge", _fail, retries=0)
        except StepError:
            failures += 1
        await ctx.sleep("pause", 10)
        return Break(failures) if failures == 3 else Continue(failures)

    @workflow
    async def handles(ctx: Context) -> int:
        return await ctx.loop("loop", body, 0)

    assert (await world.run(handles)).output == 3


def _fail() -> None:
    raise ValueError("no")


async def test_messages_of_a_loop(world: World) -> None:
    async def body(ctx: Context, got: list[int]) -> Continue[list[int]] | Break[list[int]]:
        got.append(await ctx.listen("number", type=int))
        return Break(got) if len(got) == 4 else Continue(got)

    @workflow
    async def collects(ctx: Context) -> list[int]:
        return await ctx.loop("loop", body, [], commit_interval=2)

    script = [("number", n) for n in range(4)]
    assert (await world.run(collects, script=script)).output == [0, 1, 2, 3]


async def test_a_thousand_turns_without_operations(world: World) -> None:
    async def body(ctx: Context, n: int) -> Continue[int] | Break[int]:
        return Break(n) if n == 1000 else Continue(n + 1)

    @workflow
    async def spins(ctx: Context) -> int:
        return await ctx.loop("loop", body, 0, commit_interval=500)

    assert (await world.run(spins)).output == 1000
    assert len(await world.history()) == 1


async def test_a_break_of_another_type_than_the_state(world: World) -> None:
    async def body(ctx: Context, n: int) -> Continue[int] | Break[Basket | None]:
        return Break(Basket(n)) if n == 2 else Continue(n + 1)

    @workflow
    async def breaks(ctx: Context) -> Basket | None:
        found = await ctx.loop("loop", body, 0)
        assert type(found) is Basket
        await ctx.sleep("pause", 60)
        return found

    assert (await world.run(breaks)).output == Basket(2)
