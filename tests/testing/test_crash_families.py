"""Crashing a workflow together with those that it works with."""

from __future__ import annotations

import pytest

from workflow_sdk import Context, ContinueAsNew, DefinitionError, Status, workflow
from workflow_sdk.testing import crash_everywhere

shipped: list[str] = []


async def ship(item: str) -> str:
    shipped.append(item)
    return f"{item} shipped"


@workflow
async def shipment(ctx: Context, item: str) -> str:
    await ctx.sleep("pack", 60)
    if item == "piano":
        raise ValueError("too heavy")
    return await ctx.step("ship", ship, item)


@workflow
async def thanks(ctx: Context, customer: str) -> str:
    return await ctx.listen("all shipped", type=str)


async def one(ctx: Context, item: str) -> str:
    return await ctx.child("shipment", shipment, item)


@workflow
async def order(ctx: Context, items: list[str]) -> list[str]:
    done = await ctx.map("items", one, items)
    customer = await ctx.continue_with("thanks", thanks, "c-1")
    await ctx.send("tell", customer, "all shipped", "enjoy")
    return done


@workflow
async def fussy(ctx: Context, items: list[str]) -> str:
    async def heavy(ctx: Context) -> str:
        return await ctx.child("piano", shipment, "piano")

    async def slow(ctx: Context) -> str:
        return await ctx.child("slow", patient, None)

    won = await ctx.race("first", {"heavy": heavy, "slow": slow, "light": lambda ctx: one(ctx, "lamp")})
    return won.winner


@workflow
async def patient(ctx: Context, never: None = None) -> str:
    return await ctx.listen("never", type=str)


@workflow
async def countdown(ctx: Context, left: int) -> str | ContinueAsNew:
    ctx.state["left"] = left
    await ctx.child("shipment", shipment, f"part {left}")
    return ContinueAsNew(left - 1) if left else "lift off"


def reset() -> None:
    shipped.clear()


async def test_a_family_ends_the_same_wherever_it_is_killed() -> None:
    report = await crash_everywhere(order, ["a", "b"], workflows=[shipment, thanks], reset=reset)
    assert report.clean.info.output == ["a shipped", "b shipped"]
    assert [(id, status) for id, status, _ in report.clean.others] == [
        ("~/items/0/shipment", "completed"),
        ("~/items/1/shipment", "completed"),
        ("~/thanks", "completed"),
    ]
    assert report.commits > 15


async def test_children_of_a_lost_race_are_cancelled_wherever_it_is_killed() -> None:
    report = await crash_everywhere(fussy, [], workflows=[shipment, patient], reset=reset)
    assert report.clean.info.output == "light"
    assert {id: status for id, status, _ in report.clean.others} == {
        "~/first/heavy/piano": "failed",
        "~/first/light/shipment": "completed",
        "~/first/slow/slow": "cancelled",
    }


async def test_generations_end_the_same_wherever_they_are_killed() -> None:
    report = await crash_everywhere(countdown, 2, workflows=[shipment], reset=reset, commits_max=20)
    assert report.clean.info.output == "lift off"
    assert [id for id, _, _ in report.clean.others] == [
        "~/shipment",
        "~:2/shipment",
        "~:3/shipment",
    ]


@workflow
async def expense(ctx: Context, amount: int) -> str:
    try:
        first = await ctx.task("approve", payload=amount, roles=["manager"], type=bool, timeout=3600)
    except TimeoutError:
        return "nobody was there"
    if not first.value:
        return "refused"
    paid = await ctx.task("pay", assignee="clerk", type=str)
    return f"{paid.value} by {paid.by}"


async def test_tasks_are_done_by_the_script() -> None:
    report = await crash_everywhere(expense, 5, script=[("approve", True), ("pay", "cash")])
    assert report.clean.info.output == "cash by script"
    report = await crash_everywhere(expense, 5)
    assert report.clean.info.output == "nobody was there"


async def test_on_disk(tmp_path: object) -> None:
    store = f"sqlite:///{tmp_path}/store.db?synchronous=normal"
    report = await crash_everywhere(order, ["a"], workflows=[shipment, thanks], store=store, reset=reset)
    assert report.ok


async def test_what_is_no_workflow() -> None:
    with pytest.raises(DefinitionError, match="decorated"):
        await crash_everywhere(order, [], workflows=[ship])  # type: ignore[list-item]


@workflow
async def thirds(ctx: Context, seconds: float) -> str:
    await ctx.sleep("nap", seconds)
    return "awake"


@workflow
async def sleepers(ctx: Context) -> list[str]:
    # A `datetime` has whole microseconds: of these times, some are less than the nearest, and some are more.
    naps = [1 / 3, 2 / 3, 10 / 3, 100 / 7]
    return [await ctx.child(f"child {number}", thirds, nap) for number, nap in enumerate(naps)]


async def test_a_deadline_between_two_microseconds_is_reached() -> None:
    report = await crash_everywhere(sleepers, workflows=[thirds], commits_max=2)
    assert report.clean.info.output == ["awake"] * 4


async def test_a_child_whose_workflow_is_not_given_is_not_waited_for() -> None:
    report = await crash_everywhere(sleepers, workflows=[thanks], commits_max=2)
    assert report.clean.info.status is Status.WAITING
    assert [status for _, status, _ in report.clean.others] == ["pending"]
