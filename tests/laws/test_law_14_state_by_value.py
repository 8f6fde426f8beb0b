"""Law 14: values are handed over as they are at that moment. Who changes one later changes a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import World
from workflow_sdk import Break, Context, Continue, Status, Success, workflow
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

COMMITS_MAX = 60


@dataclass
class Cart:
    items: list[str] = field(default_factory=list[str])
    total: dict[str, int] = field(default_factory=dict[str, int])


async def give(value: Any) -> Any:
    return value


def spoil(value: Any) -> None:
    """Change a value in place, at its top and deep inside."""
    if isinstance(value, list):
        value.append("spoilt")
    elif isinstance(value, dict):
        value["spoilt"] = 1
    elif isinstance(value, set):
        value.add("spoilt")
    else:
        value.items.append("spoilt")
        value.total["spoilt"] = 1


STATES: list[Callable[[], Any]] = [
    lambda: ["a"],
    lambda: {"a": 1},
    lambda: {"a"},
    lambda: Cart(["a"], {"a": 1}),
]


async def run_everywhere(world: World, job: Any, input: Any = None) -> list[Any]:
    """The outputs of a run that is never interrupted, and of one that is killed at each of its commits."""
    outputs = [(await world.run(job, input, id="whole")).output]
    for number in range(2, COMMITS_MAX):
        faulty = FaultyDriver(world.driver, crash_before=number)
        try:
            await world.run(job, input, id=str(number), driver=faulty)
        except* SimulatedCrash:
            pass
        if not faulty.crashed:
            return outputs
        outputs.append((await world.run(job, input, id=str(number))).output)
    raise AssertionError("there is no end of commits")


@pytest.mark.parametrize("make", STATES)
@pytest.mark.parametrize("interval", [1, 20])
async def test_a_body_that_changes_its_state_in_place_changes_nothing_until_it_returns_it(
    world: World, make: Callable[[], Any], interval: int
) -> None:
    seen: list[Any] = []

    async def turn(ctx: Context, state: Any) -> Continue[Any] | Break[Any]:
        seen.append(repr(state))
        kept = await ctx.step("copy", give, state)
        number = await ctx.step("number", give, len(seen))
        spoil(state)
        await ctx.sleep("nap", 1)
        return Continue(kept) if number < 3 else Break(kept)

    @workflow
    async def job(ctx: Context) -> Any:
        return await ctx.loop("loop", turn, make(), commit_interval=interval)

    assert (await world.run(job)).output == make()
    assert set(seen) == {repr(make())}


async def test_a_state_that_is_returned_is_not_changed_by_what_happens_to_it_then(world: World) -> None:
    kept: list[list[int]] = []

    async def turn(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
        for old in kept:
            old.append(-1)
        await ctx.sleep("nap", 1)
        state.append(len(state))
        kept.append(state)
        return Continue(state) if len(state) < 5 else Break(state)

    @workflow
    async def job(ctx: Context) -> list[int]:
        return await ctx.loop("loop", turn, [], commit_interval=1)

    for output in await run_everywhere(world, job):
        assert output == [0, 1, 2, 3, 4]


async def test_a_turn_is_given_a_copy_of_what_the_turn_before_it_returned(world: World) -> None:
    kept: list[list[int]] = []

    async def turn(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
        for returned in kept:
            returned.append(-1)
        if len(state) >= 3:
            return Break(state)
        kept.append([*state, len(state)])
        return Continue(kept[-1])

    @workflow
    async def job(ctx: Context) -> list[int]:
        return await ctx.loop("loop", turn, [])

    assert (await world.run(job)).output == [0, 1, 2]


async def test_the_first_state_is_still_the_authors(world: World) -> None:
    async def turn(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
        state.append(len(state))
        return Continue(state) if len(state) < 3 else Break(state)

    @workflow
    async def job(ctx: Context) -> list[list[int]]:
        state: list[int] = []
        first = await ctx.loop("first", turn, state)
        assert state == []
        second = await ctx.loop("second", turn, state)
        state.append(7)
        third = await ctx.loop("third", turn, state)
        first.append(9)
        await ctx.sleep("nap", 1)
        return [state, first, second, third]

    for output in await run_everywhere(world, job):
        assert output == [[7], [0, 1, 2, 9], [0, 1, 2], [7, 1, 2]]


async def test_a_turn_that_failed_and_was_run_again_begins_with_the_state_as_it_was(world: World) -> None:
    async def turn(ctx: Context, state: Cart) -> Continue[Cart] | Break[Cart]:
        state.items.append("x")
        await ctx.step("a", give, 1)
        state.total["x"] = len(state.items)
        await ctx.step("b", give, 1)
        return Continue(state) if len(state.items) < 4 else Break(state)

    @workflow
    async def job(ctx: Context) -> Cart:
        return await ctx.loop("loop", turn, Cart(), commit_interval=2)

    for output in await run_everywhere(world, job):
        assert output == Cart(["x"] * 4, {"x": 4})


@pytest.mark.law(4)
@pytest.mark.parametrize("make", STATES)
async def test_a_value_of_a_step_is_a_copy_of_what_it_returned(world: World, make: Callable[[], Any]) -> None:
    shared = make()
    typed = type(shared)

    async def fetch() -> Any:
        return shared

    @workflow
    async def job(ctx: Context) -> list[str]:
        first = await ctx.step("first", fetch)
        assert first == shared
        assert type(first) is typed
        assert first is not shared
        spoil(first)
        second = await ctx.step("second", give, first)
        spoil(first)
        before = repr(second)
        await ctx.sleep("nap", 1)
        return [before, repr(second)]

    outputs = await run_everywhere(world, job)
    assert shared == make()
    assert all(output == outputs[0] and output[0] == output[1] for output in outputs)


async def test_what_a_step_keeps_of_its_value_is_not_the_authors(world: World) -> None:
    held: list[list[int]] = []

    async def fetch() -> list[int]:
        held.append([1])
        return held[-1]

    @workflow
    async def job(ctx: Context) -> list[int]:
        value = await ctx.step("fetch", fetch)
        for each in held:
            each.append(2)
        await ctx.step("then", give, 1)
        return value

    for output in await run_everywhere(world, job):
        assert output == [1]


async def test_values_of_scopes_are_copies(world: World) -> None:
    shared: list[Any] = []

    async def part(ctx: Context, item: Any = None) -> list[Any]:
        return shared

    async def body(ctx: Context, state: Any) -> Break[list[Any]]:
        return Break(shared)

    @workflow
    async def job(ctx: Context) -> list[Any]:
        joined = await ctx.join("join", {"a": part, "b": part})
        joined["a"].append(1)
        mapped = await ctx.map("map", part, [1, 2])
        mapped[0].append(2)
        raced = await ctx.race("race", {"a": part})
        raced.value.append(3)
        attempted = await ctx.attempt("attempt", part)
        assert isinstance(attempted, Success)
        attempted.value.append(4)
        looped = await ctx.loop("loop", body)
        looped.append(5)
        await ctx.sleep("nap", 1)
        return [joined["b"], mapped[1], shared, joined["a"], mapped[0], raced.value, attempted.value, looped]

    for output in await run_everywhere(world, job):
        assert output == [[], [], [], [1], [2], [3], [4], [5]]


async def test_an_input_is_a_copy_in_every_run(world: World) -> None:
    given = Cart(["a"], {"a": 1})
    seen: list[str] = []

    @workflow
    async def job(ctx: Context, cart: Cart) -> Cart:
        seen.append(repr(cart))
        cart.items.append("mine")
        await ctx.sleep("nap", 1)
        return cart

    for output in await run_everywhere(world, job, given):
        assert output == Cart(["a", "mine"], {"a": 1})
    assert set(seen) == {repr(given)}
    assert given == Cart(["a"], {"a": 1})


async def test_an_output_is_a_copy(world: World) -> None:
    shared = ["a"]

    @workflow
    async def job(ctx: Context) -> list[str]:
        return shared

    first = await world.run(job)
    assert first.output is not None
    first.output.append("spoilt")
    assert (await world.run(job)).output == shared == ["a"]


async def test_a_payload_is_a_copy_and_what_the_workflow_does_to_it_is_its_own(world: World) -> None:
    sent = {"lines": [1]}

    @workflow
    async def job(ctx: Context) -> list[int]:
        payload = await ctx.listen("message")
        before = list(payload["lines"])
        payload["lines"].append(2)
        await ctx.sleep("nap", 1)
        return before

    result = await world.run(job, script=[("message", sent)])
    assert result.output == [1]
    assert sent == {"lines": [1]}
    entry = (await world.history())["message"]
    assert entry.value == {"lines": [1]}


async def test_a_handler_is_given_the_value_as_it_was(world: World) -> None:
    undone: list[Any] = []

    async def undo(value: Any) -> None:
        undone.append(value)

    @workflow
    async def job(ctx: Context) -> None:
        value = await ctx.step("step", give, ["a"], rollback=undo)
        value.append("spoilt")
        raise ValueError("no")

    assert (await world.run(job)).status is Status.ROLLED_BACK
    assert undone == [["a"]]


async def test_an_error_is_a_copy(world: World) -> None:
    class RefusedError(Exception):
        def __init__(self, reasons: list[str]) -> None:
            super().__init__(reasons)
            self.reasons = reasons

    shared = ["a"]

    async def refuse() -> None:
        raise RefusedError(shared)

    @workflow
    async def job(ctx: Context) -> list[list[str]]:
        seen: list[list[str]] = []
        for name in ("first", "second"):
            try:
                await ctx.step(name, refuse, retries=0)
            except Exception as error:  # noqa: BLE001  # whatever it is read back as
                reasons: Any = error.error.attributes["reasons"]  # type: ignore[attr-defined]
                reasons.append("spoilt")
                seen.append(reasons)
        await ctx.sleep("nap", 1)
        return seen

    for output in await run_everywhere(world, job):
        assert output == [["a", "spoilt"]] * 2
    assert shared == ["a"]
