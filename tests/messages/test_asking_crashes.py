"""Asking, while whoever answers dies at any commit: each question is taken once, and answered."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Rows, until_status
from tests.runtime.polling import until
from tests.settings import Host
from workflow_sdk import Client, Context, Driver, Handle, Status, open_driver, run_workflow, workflow
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

pytestmark = pytest.mark.law(1)

QUESTIONS = 3


@workflow
async def adds_up(ctx: Context) -> list[Any]:
    """Answers with the sum of what it was ever asked."""
    total, taken = 0, list[Any]()
    for number in range(QUESTIONS):
        message = await ctx.listen_message(f"wait {number}", "add", type=int)
        total += await ctx.step(f"step {number}", int, message.payload)
        taken.append(message.payload)
        await message.reply(total)
    return [total, taken]


async def asked(handle: Handle[Any], got: list[Any]) -> None:
    """One question after the other."""
    got.extend([await handle.ask("add", 10**number, timeout=PATIENCE) for number in range(QUESTIONS)])


async def at_commit(driver: Driver, when: str, number: int) -> bool:
    """One run, in which the worker dies at that commit; whether it did."""
    options: dict[str, Any] = {when: number}
    faulty, got = FaultyDriver(driver, **options), list[Any]()
    id = f"{when}-{number}"

    async def work() -> None:
        try:
            await run_workflow(adds_up, driver=faulty, instance_id=id, mode="live")
        except (SimulatedCrash, BaseExceptionGroup):
            await run_workflow(adds_up, driver=driver, instance_id=id, mode="live")

    async with Client(driver) as client:
        handle = await client.start(adds_up, id=id)
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            group.start_soon(asked, handle, got)
        assert got == [1, 11, 111]
        assert await handle.result(timeout=PATIENCE) == [111, [1, 10, 100]]
    return faulty.crashed


@pytest.mark.parametrize("when", ["crash_before", "crash_after"])
async def test_each_is_taken_once(host: Host, when: str) -> None:
    driver = await open_driver("memory://")
    number = 1
    while await at_commit(driver, when, number):
        number += 1
    assert number > 3 * QUESTIONS
    assert [key for key in (await Rows.of(driver)).keys if key[0] == 11] == [], "no answer is left behind"


@pytest.mark.parametrize("when", ["crash_before", "crash_after"])
async def test_whoever_asks_dies(host: Host, when: str) -> None:
    """The question is there or not, once in any case; and the instance is none the worse."""
    driver = await open_driver("memory://")

    async def work() -> None:
        await run_workflow(adds_up, driver=driver, instance_id="i", mode="live")

    options: dict[str, Any] = {when: 1}
    there = when == "crash_after"
    async with Client(driver) as client:
        handle = await client.start(adds_up, id="i")
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            # Whoever claims it at the same moment may be in the way of the commit that is to be the last.
            await until_status(handle, Status.WAITING)
            async with Client(FaultyDriver(driver, **options)) as dying:
                with pytest.raises((SimulatedCrash, BaseExceptionGroup)):
                    await dying.handle(adds_up, "i").ask("add", 5, timeout=PATIENCE)

            async def taken() -> bool:
                history = await handle.history()
                return "wait 0" in history and history["wait 0"].finished_at is not None

            if there:
                await until(taken)
            for number in range(QUESTIONS - there):
                assert await handle.ask("add", 1, timeout=PATIENCE) == 5 * there + number + 1
        assert await handle.result(timeout=PATIENCE) == ([5 + 2, [5, 1, 1]] if there else [3, [1, 1, 1]])
