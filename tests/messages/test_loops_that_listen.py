"""Loops that listen keep no more of their messages than of their history."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import until_status
from tests.runtime.polling import until
from tests.support import World
from workflow_sdk import (
    Break,
    Client,
    Context,
    Continue,
    ContinueAsNew,
    Driver,
    Runtime,
    Status,
    Workflow,
    read_history,
    workflow,
)
from workflow_sdk.operations.loop import GIVEN_BACK_TURNS
from workflow_sdk.rows.keys import HISTORY, INBOX, NAMES, TAKINGS, InstanceKeys

TURNS = 60


def racing(keep: int) -> Workflow[None, Any]:
    """A loop that takes messages, beside a branch that may win."""

    @workflow(name="racing")
    async def flow(ctx: Context) -> Any:
        async def turn(ctx: Context, state: None) -> Continue[None]:
            await ctx.listen(f"wait {ctx.path}", "n")
            return Continue()

        async def loop(ctx: Context) -> Any:
            await ctx.loop("turns", turn, commit_interval=2, history_keep=keep)

        async def stop(ctx: Context) -> Any:
            return await ctx.listen("stop")

        await ctx.race("race", {"loop": loop, "stop": stop})
        return await ctx.listen_many("left", "n", count=100, timeout=0)

    return flow


async def in_store(world: World, part: bytes) -> int:
    """How many rows there are of a part of the instance."""
    return len(await world.driver.scan(*InstanceKeys("i").range(part)))


@pytest.mark.parametrize("keep", [0, 30])
async def test_a_loop_in_a_race_keeps_what_its_history_has(world: World, keep: int) -> None:
    flow = racing(keep)
    for number in range(TURNS):
        await world.once(flow, mode="yield")
        await world.send("n", number)
    await world.once(flow, mode="yield")
    given_back = max(keep, GIVEN_BACK_TURNS)
    assert await in_store(world, TAKINGS) <= given_back + 2
    result = await world.run(flow, script=[("stop", None)])
    # What the last turns have taken is given back, the rest was used up.
    assert result.output == list(range(TURNS - given_back, TURNS))
    assert await in_store(world, TAKINGS) == 0
    assert await in_store(world, INBOX) == 0


@workflow
async def answers_later(ctx: Context) -> Any:
    """Answers the first question when its turn is long forgotten."""
    waiting: list[Any] = []

    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        waiting.append(await ctx.listen_message(f"question {number}", "question"))
        if number == 5:
            await waiting[0].reply("late")
            await waiting[0].reply("again")
        return Continue(number + 1) if number < 6 else Break(number)

    return await ctx.loop("turns", turn, 0, commit_interval=1, history_keep=1)


@workflow
async def answers_in_its_next_life(ctx: Context, life: int) -> Any:
    """Answers a question that a life before has taken."""
    if life == 0:
        kept.append(await ctx.listen_message("question"))
        return ContinueAsNew(1)
    await kept[0].reply("late")
    await ctx.listen("stop")
    return "over"


kept: list[Any] = []


async def test_a_reply_to_a_turn_that_is_forgotten(driver: Driver) -> None:
    async with Runtime(driver, workflows=[answers_later]) as runtime, Client(driver) as other:
        handle = await runtime.start(answers_later, id="i")
        await until_status(handle, Status.WAITING)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await other.handle(answers_later, "i").ask("question"))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                before = (await handle.info()).version
                group.start_soon(ask)
                for _ in range(6):

                    async def moved(before: int = before) -> bool:
                        info = await handle.info()
                        return info.version > before

                    await until(moved)
                    before = (await handle.info()).version
                    await handle.send("question")
        assert answers == ["late"]
        assert await handle.result(PATIENCE) == 6
    history = await read_history(driver, "i")
    assert [entry.path for entry in history] == ["turns", "turns/~6/question 6"]
    names = await driver.scan(*InstanceKeys("i").range(NAMES))
    assert len(names) <= 3


async def test_a_reply_in_the_next_life(driver: Driver) -> None:
    kept.clear()
    async with Runtime(driver, workflows=[answers_in_its_next_life]) as runtime:
        handle = await runtime.start(answers_in_its_next_life, 0, id="i")
        with anyio.fail_after(PATIENCE):
            assert await handle.ask("question") == "late"
        await until_status(handle, Status.WAITING)
        rows = await driver.scan(*InstanceKeys("i").range(HISTORY))
        assert len(rows) == 1, "of the wait that goes on"
        await handle.send("stop")
        assert await handle.result(PATIENCE) == "over"
