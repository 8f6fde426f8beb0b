"""Law 9: what has ended stays as it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.laws.counting_driver import WatchedDriver, rows_of
from tests.support import World
from workflow_sdk import (
    AlreadyExistsError,
    Client,
    Context,
    CriticalError,
    Delivery,
    EntryStatus,
    RunResult,
    Status,
    StepCriticalError,
    Workflow,
    send_message,
    workflow,
)
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.rows.status import ENTRY_MOVES, STATUS_MOVES, move, move_entry

ENDS = {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.ROLLED_BACK}


@dataclass
class Receipt:
    lines: tuple[str, ...]
    total: int


class CardDeclinedError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


async def undo(result: object) -> None:
    """Nothing is left to undo."""


async def one() -> int:
    return 1


async def decline() -> None:
    raise CriticalError("no") from CardDeclinedError(51)


@pytest.mark.parametrize("now", list(Status), ids=str)
@pytest.mark.parametrize("to", list(Status), ids=str)
def test_the_status_table_lets_nothing_out_of_an_end(now: Status, to: Status) -> None:
    assert (now in ENDS) == now.is_terminal
    if now in ENDS:
        assert to not in STATUS_MOVES[now]
        with pytest.raises(AssertionError, match="can't become"):
            move(now, to)
    elif to in STATUS_MOVES[now]:
        assert move(now, to) is to


def test_every_status_is_reached_from_the_start() -> None:
    reached, todo = set[Status](), [Status.PENDING]
    while todo:
        now = todo.pop()
        if now not in reached:
            reached.add(now)
            todo.extend(STATUS_MOVES[now])
    assert reached == set(Status)


def test_a_rollback_never_becomes_an_ordinary_run_again() -> None:
    reached, todo = set[Status](), [Status.ROLLING_BACK]
    while todo:
        for after in STATUS_MOVES[todo.pop()] - reached - {Status.STUCK}:
            reached.add(after)
            todo.append(after)
    assert reached == {Status.ROLLING_BACK, Status.ROLLED_BACK, Status.FAILED, Status.CANCELLED}


@pytest.mark.parametrize("now", list(EntryStatus), ids=str)
@pytest.mark.parametrize("to", list(EntryStatus), ids=str)
def test_an_entry_keeps_its_outcome(now: EntryStatus, to: EntryStatus) -> None:
    assert (to in ENTRY_MOVES[now]) is not now.is_final
    if now.is_final:
        with pytest.raises(AssertionError, match="can't become"):
            move_entry(now, to)


async def check_nothing_happens(
    world: World, workflow: Workflow[Any, Any], first: RunResult[Any], ran: list[str]
) -> None:
    """Running it again gives the same result, runs no code of the author, and writes not a byte."""
    before, ran_before = await rows_of(world.driver), list(ran)
    for mode in ("yield", "live"):
        watched = WatchedDriver(world.driver)
        again = await world.once(workflow, driver=watched, mode=mode)
        assert again == first
        assert watched.commits == []
    assert ran == ran_before
    assert await rows_of(world.driver) == before


async def test_a_completed_instance_gives_its_stored_output(world: World) -> None:
    ran: list[str] = []

    @workflow
    async def buy(ctx: Context) -> Receipt:
        ran.append("code")
        total = await ctx.step("one", one)
        await ctx.sleep("pause", 5)
        return Receipt(("tea", "milk"), total)

    first = await world.run(buy)
    assert (first.status, first.output, first.error) == (Status.COMPLETED, Receipt(("tea", "milk"), 1), None)
    assert first.output is not None
    assert type(first.output.lines) is tuple
    await check_nothing_happens(world, buy, first, ran)


async def test_a_failed_instance_gives_its_stored_error(world: World) -> None:
    ran: list[str] = []

    @workflow
    async def buy(ctx: Context) -> None:
        ran.append("code")
        await ctx.sleep("pause", 5)
        raise CardDeclinedError(51)

    first = await world.run(buy)
    assert first.status is Status.FAILED
    assert first.error is not None
    assert first.error.type == f"{__name__}.CardDeclinedError"
    assert (first.error.message, first.error.attributes) == ("declined with 51", {"code": 51})
    assert "raise CardDeclinedError(51)" in first.error.traceback
    assert first.error.kind == "application"
    await check_nothing_happens(world, buy, first, ran)


async def test_a_rolled_back_instance_gives_its_stored_error(world: World) -> None:
    ran: list[str] = []

    @workflow
    async def buy(ctx: Context) -> None:
        ran.append("code")
        await ctx.step("one", one, rollback=undo)
        await ctx.step("decline", decline)

    first = await world.run(buy)
    assert first.status is Status.ROLLED_BACK
    assert first.error is not None
    assert first.error.type == f"{StepCriticalError.__module__}.StepCriticalError"
    await check_nothing_happens(world, buy, first, ran)


async def test_changed_code_does_not_wake_an_ended_instance(world: World) -> None:
    @workflow(name="job")
    async def before(ctx: Context) -> int:
        return await ctx.step("one", one)

    @workflow(name="job", version=2)
    async def after(ctx: Context) -> int:
        return 1 + await ctx.step("two", one)

    first = await world.run(before)
    assert first.output == 1
    await check_nothing_happens(world, after, first, [])


async def test_a_later_input_does_not_change_what_has_ended(world: World) -> None:
    @workflow
    async def double(ctx: Context, number: int) -> int:
        return number * 2

    assert (await world.run(double, 2)).output == 4
    assert (await world.run(double, 5)).output == 4


async def test_an_ended_instance_belongs_to_its_workflow(world: World) -> None:
    @workflow
    async def double(ctx: Context) -> int:
        return 2

    @workflow
    async def triple(ctx: Context) -> int:
        return 3

    await world.run(double)
    with pytest.raises(AlreadyExistsError, match="runs workflow 'double', not 'triple'"):
        await world.run(triple)


async def test_messages_to_an_ended_instance_are_not_stored(world: World) -> None:
    @workflow
    async def buy(ctx: Context) -> None:
        await ctx.step("one", one)

    await world.run(buy)
    before = await rows_of(world.driver)
    assert await send_message(world.driver, "i", "hello", 1) is Delivery.CLOSED
    assert await rows_of(world.driver) == before


async def cancel(world: World) -> None:
    """Cancel the instance, as anybody can."""
    async with Client(world.driver) as client:
        await client.handle("buy", "i").cancel(rollback=False)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_late_flush_does_not_undo_a_cancel(world: World, fails: bool) -> None:
    running, cancelled = anyio.Event(), anyio.Event()

    async def charge() -> int:
        running.set()
        await cancelled.wait()
        if fails:
            raise CriticalError("too late")
        return 1

    @workflow
    async def buy(ctx: Context) -> int:
        return await ctx.step("charge", charge)

    before = []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            assert (await world.once(buy)).status is Status.CANCELLED

        group.start_soon(run)
        await running.wait()
        await cancel(world)
        before = await rows_of_instance(world)
        cancelled.set()
    assert await rows_of_instance(world) == before
    assert (await world.once(buy)).status is Status.CANCELLED
    assert await rows_of_instance(world) == before


async def rows_of_instance(world: World) -> list[tuple[bytes, bytes]]:
    """What is stored of it; the run forgets its own heartbeat when it ends."""
    return await world.driver.scan(*InstanceKeys("i").all())
