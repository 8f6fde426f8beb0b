"""The first time is like every other time: an outcome is recorded before the author sees it, and replays the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hasty_clock import hasty_clock
from tests.laws.outcomes import (
    DECLINED,
    FAILURES,
    VALUES,
    Order,
    Point,
    Witness,
    critical,
    facts_of,
    rollback,
    slow,
)
from tests.laws.watching import CRASHES, crash_at
from tests.support import World
from workflow_sdk import Context, RollbackError, Status, StepError, workflow


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failure_is_the_same_the_first_time_and_on_replay(world: World, name: str) -> None:
    world.clock = hasty_clock()
    kind, case = FAILURES[name]
    outcome = await Witness(world, case).check()
    assert type(outcome) is kind


@pytest.mark.parametrize("name", VALUES)
async def test_a_value_is_the_same_the_first_time_and_on_replay(world: World, name: str) -> None:
    outcome = await Witness(world, VALUES[name]).check()
    assert not isinstance(outcome, Exception)


@pytest.mark.parametrize("name", ["tuple", "dataclass", "map"])
async def test_values_have_the_types_of_the_author(world: World, name: str) -> None:
    outcome = await Witness(world, VALUES[name]).check()
    expected: dict[str, Any] = {
        "tuple": (1, ("a", b"b"), None),
        "dataclass": Order("o-1", (Point(1, 2), Point(3, 4))),
        "map": [(0, 0), (1, 1), (2, 2)],
    }
    assert facts_of(outcome) == facts_of(expected[name])


async def test_messages_are_the_same_on_replay(world: World) -> None:
    seen: list[Any] = []

    @workflow
    async def listen(ctx: Context) -> None:
        payload = await ctx.listen("order", type=Order)
        message = await ctx.listen_message("point", type=Point)
        many = await ctx.listen_many("many", "n", count=2)
        seen.append(facts_of([payload, message.id, message.name, message.payload, message.sent_at, many]))
        await ctx.sleep("later", 60)

    await world.once(listen, mode="yield")
    await world.send("order", Order("o-2", (Point(5, 6),)))
    await world.send("point", Point(1, 2))
    await world.send("n", (1, 2))
    await world.send("n", {3})
    await world.once(listen, mode="yield")
    assert (await world.run(listen)).status is Status.COMPLETED
    assert len(seen) >= 2
    assert all(each == seen[0] for each in seen)
    assert facts_of(Order("o-2", (Point(5, 6),))) in seen[0][1]


@pytest.mark.parametrize("name", ["exhausted", "critical", "rollback", "join", "race", "loop", "listen"])
async def test_no_crash_changes_a_failure(world: World, name: str) -> None:
    """Right after each commit: what the author saw is what is recorded, so it is what is seen ever after."""
    kind, case = FAILURES[name]
    for number, when in CRASHES:
        witness = Witness(world, case)
        id = f"{name}-{number}-{when}"
        crashed = await crash_at(world, witness.workflow, number, when, id=id)
        result = await world.run(witness.workflow, id=id)
        assert result.output == "end"
        assert {type(outcome) for outcome in witness.outcomes} == {kind}
        assert all(seen == witness.seen[0] for seen in witness.seen)
        if not crashed:
            assert number > 2
            return
    raise AssertionError("there is no end of commits")


@pytest.mark.parametrize("name", ["critical", "timeout", "rollback"])
async def test_a_caught_failure_is_not_tried_again(world: World, name: str) -> None:
    world.clock = hasty_clock()
    runs: list[int] = []
    inner = {"critical": critical, "timeout": slow, "rollback": rollback}[name]

    async def counted() -> int:
        runs.append(1)
        return await inner()

    @workflow
    async def caught(ctx: Context) -> str:
        try:
            await ctx.step("s", counted, timeout=1, retry_on_timeout=False)
        except (StepError, RollbackError):
            await ctx.sleep("nap", 60)
            return "caught"
        return "not caught"

    await world.once(caught, mode="yield")
    assert (await world.run(caught)).output == "caught"
    assert len(runs) == 1


async def test_how_the_workflow_ended_reads_the_same(world: World) -> None:
    @workflow
    async def ends(ctx: Context, how: str) -> Order:
        if how == "fails":
            await DECLINED(ctx)
        return Order("o-3", (Point(7, 8),))

    failed = await world.run(ends, "fails", id="a")
    assert failed.status is Status.FAILED
    assert await world.once(ends, "fails", id="a") == failed
    completed = await world.run(ends, "completes", id="b")
    assert completed.output == Order("o-3", (Point(7, 8),))
    assert await world.once(ends, "completes", id="b") == completed
