"""Answers that nobody fetches are forgotten; those that somebody waits for are not, however long it takes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Rows, Stop, until_status
from tests.runtime.polling import until
from workflow_sdk import Client, Context, Driver, InstanceStateError, Runtime, Status, workflow
from workflow_sdk.changes.deliver import NewMessage
from workflow_sdk.client.asking import deliver
from workflow_sdk.features.retention import KEPT_SECONDS, Answers
from workflow_sdk.instance.clock import clock_of
from workflow_sdk.rows.keys import ANSWERS, answer_key
from workflow_sdk.rows.location import subtree
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(21)

stop = [Stop()]


@workflow
async def answers(ctx: Context) -> Any:
    """Answers one question, when it is told to."""
    message = await ctx.listen_message("question")
    await ctx.step("think", stop[0].here)
    await message.reply("answer")
    return await ctx.listen("end")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    stop[0] = Stop()


async def rows_left(driver: Driver) -> int:
    """How many rows there are for answers."""
    return len([key for key in (await Rows.of(driver)).keys if key[0] == 11])


async def dies_after_asking(driver: Driver) -> None:
    """A question whose asker is never heard of again."""
    note = NewMessage("question", b"\xf6", reply_to=answer_key("i", "dead"))
    await deliver(driver, "i", note, VirtualClock().time())


async def answered(driver: Driver) -> None:
    """Have the instance answer, and return when it has."""
    await stop[0].reached.wait()
    stop[0].go_on.set()


async def test_the_answer_of_an_asker_that_died(driver: Driver) -> None:
    sweeper = Answers(driver, VirtualClock())
    async with Runtime(driver, workflows=[answers]) as runtime:
        handle = await runtime.start(answers, id="i")
        await dies_after_asking(driver)
        await answered(driver)
        await until_status(handle, Status.WAITING)
        await sweeper.look(0)
        await sweeper.look(KEPT_SECONDS - 1)
        assert await rows_left(driver) == 1
        await sweeper.look(KEPT_SECONDS)
        assert await rows_left(driver) == 0


async def test_it_looks_again_and_again(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow_sdk.features.retention.ANSWERS_LOOK_SECONDS", 0.01)
    with anyio.fail_after(PATIENCE):
        await Answers(driver, clock_of(None)).sweep()


async def test_a_question_that_is_never_answered(driver: Driver) -> None:
    sweeper = Answers(driver, VirtualClock())
    async with Client(driver) as client:
        await client.start("answers", id="i")
        await dies_after_asking(driver)
        await sweeper.look(0)
        await sweeper.look(KEPT_SECONDS)
        assert await rows_left(driver) == 0


async def test_an_answer_goes_with_its_instance(driver: Driver) -> None:
    async with Runtime(driver, workflows=[answers]) as runtime:
        handle = await runtime.start(answers, id="i")
        await dies_after_asking(driver)
        await answered(driver)
        await handle.send("end")
        await handle.result(PATIENCE)
        assert await rows_left(driver) == 1
        await runtime.delete("i")
        assert await rows_left(driver) == 0


@pytest.mark.parametrize("asker", ["here", "elsewhere"])
async def test_who_lives_gets_its_answer_however_late(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, asker: str
) -> None:
    monkeypatch.setattr("workflow_sdk.client.asking.ALIVE_SECONDS", 0.01)
    monkeypatch.setattr("workflow_sdk.client.asking.HERE_SECONDS", 0.01)
    sweeper = Answers(driver, VirtualClock())
    found: list[Any] = []
    async with Runtime(driver, workflows=[answers]) as runtime, Client(driver) as other:
        await runtime.start(answers, id="i")

        async def ask() -> None:
            found.append(await (runtime if asker == "here" else other).handle(answers, "i").ask("question"))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await stop[0].reached.wait()
                for number in range(3):
                    await sweeper.look(number * KEPT_SECONDS)
                    before = await answer_rows(driver)

                    async def says_so(before: list[Any] = before) -> bool:
                        return await answer_rows(driver) != before

                    await until(says_so)
                stop[0].go_on.set()
        assert found == ["answer"]
        assert await rows_left(driver) == 0


async def answer_rows(driver: Driver) -> list[tuple[bytes, bytes]]:
    """The rows of answers."""
    return await driver.scan(*subtree(ANSWERS))


async def test_who_was_taken_for_dead_is_told(driver: Driver) -> None:
    async with Runtime(driver, workflows=[answers]) as runtime, Client(driver) as other:
        await runtime.start(answers, id="i")

        async def take_for_dead() -> None:
            await stop[0].reached.wait()
            sweeper = Answers(driver, VirtualClock())
            await sweeper.look(0)
            await sweeper.look(KEPT_SECONDS)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(take_for_dead)
                with pytest.raises(InstanceStateError, match="was forgotten"):
                    await other.handle(answers, "i").ask("question")
        stop[0].go_on.set()
