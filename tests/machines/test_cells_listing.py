"""Cells as instances: listed, waited for, cancelled, evicted, kept and forgotten."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.machines.cell_parts import (
    Answer,
    Asked,
    Do,
    Say,
    ask,
    cell_or_none,
    host,
    manifest_of,
    told,
    until_cell,
    until_count,
    until_gone,
    until_words,
)
from tests.patience import PATIENCE
from tests.runtime.polling import settle, until
from workflow_sdk import (
    Client,
    Context,
    DefinitionError,
    Delivery,
    Driver,
    Handle,
    InstanceNotFoundError,
    InstanceStateError,
    Runtime,
    WorkflowCancelledError,
    WorkflowFailedError,
    workflow,
)
from workflow_sdk.machines import EffectReceipt, Machine, MachineContext, Transition
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(21)

HOUR = 3600.0


def ends(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Ends, deletes or asks as it is told."""
    if isinstance(event, EffectReceipt):
        return None
    match event.word:
        case "end":
            return Transition(words, done=True)
        case "delete":
            return Transition(None)
        case "ask":
            return ask("same")
        case _:
            return None


async def handle_of(client: Client, one: Machine[Any]) -> Handle[Any]:
    """The handle of the only cell of a machine."""
    (info,) = (await client.list(workflow=one)).items
    return client.handle(one, info.id)


async def test_cells_stand_in_the_list_of_instances(driver: Driver) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        return None

    left, right = told(ends, name="left@1"), told(ends, name="right@1", event=Do)
    async with Runtime(driver, workflows=[flow], machines=manifest_of(left, right)) as runtime:
        await runtime.run(flow, None, id="f")
        for key in "abc":
            await runtime.emit(Say(key, "1"))
        await runtime.emit(Do("a", "end"))
        await until_cell(runtime, right, "a", lambda cell: cell.status == "completed")
        await until_cell(runtime, left, "a", lambda cell: cell.status == "completed")
        assert len(await runtime.list(workflow=left)) == 3
        assert len(await runtime.list(workflow="right@1")) == 1
        assert len(await runtime.list()) == 5
        assert [info.id for info in await runtime.list(workflow=flow)] == ["f"]

        async def two_wait() -> bool:
            return len(await runtime.list(workflow=left, status="waiting")) == 2

        await until(two_wait)
        assert len(await runtime.list(workflow=left, status="completed")) == 1
        assert [info.workflow for info in await runtime.list(workflow=left)] == ["left@1"] * 3


async def test_cells_are_listed_a_page_at_a_time_oldest_first(driver: Driver) -> None:
    one, keys = told(ends), [f"k{number}" for number in range(25)]
    async with Client(driver, machines=manifest_of(one)) as client:
        for key in keys:
            await client.emit(Do(key, "1"))
        found, cursor = list[Any](), None
        while True:
            page = await client.cells(one, limit=10, cursor=cursor)
            found += [cell.key for cell in page]
            assert len(page) <= 10
            if (cursor := page.cursor) is None:
                break
        assert sorted(found) == sorted(keys)
        assert len(await client.cells("told@1", limit=1000)) == 25
        bad: Any
        for bad in (0, -1, 1001, "x", None, True):
            with pytest.raises(DefinitionError):
                await client.cells(one, limit=bad)
        with pytest.raises(DefinitionError):
            await client.cells(one, cursor="nonsense")
        with pytest.raises(DefinitionError):
            await client.cells("unknown@1")
        with pytest.raises(InstanceNotFoundError):
            await client.cell(one, "nobody")
    async with Client(driver) as stranger:
        with pytest.raises(DefinitionError, match="machines"):
            await stranger.emit(Do("a"))


async def test_the_result_of_a_cell_is_the_state_with_which_it_is_done(driver: Driver) -> None:
    one, results = told(ends), list[Any]()
    async with host(driver, one) as runtime, anyio.create_task_group() as group:
        await runtime.emit(Do("a", "1"))
        handle = await handle_of(runtime, one)

        async def waits() -> None:
            results.append(await handle.result(timeout=PATIENCE))

        group.start_soon(waits)
        await until_words(runtime, one, "a", "1")
        await runtime.emit(Do("a", "end"))
        assert await handle.result(timeout=PATIENCE) == ["1", "end"]
        info = await handle.info()
        assert (info.status, info.output, info.workflow, info.workflow_version) == (
            "completed",
            ["1", "end"],
            "told@1",
            1,
        )
    assert results == [["1", "end"]]


async def test_the_result_of_a_failed_cell_says_why(driver: Driver) -> None:
    def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return None if isinstance(event, EffectReceipt) else ask("x")

    one, asked = told(asks, event=Do | EffectReceipt), Asked()
    async with host(driver, one, executors=[asked.by(lambda params, intent: 7)]) as runtime:
        await runtime.emit(Do("a", "x"))
        handle = await handle_of(runtime, one)
        with pytest.raises(WorkflowFailedError, match="ask@1"):
            await handle.result(timeout=PATIENCE)


async def test_a_cell_that_is_deleted_leaves_those_who_wait_for_it(driver: Driver) -> None:
    one, errors = told(ends), list[Exception]()
    async with host(driver, one) as runtime, anyio.create_task_group() as group:
        await runtime.emit(Do("a", "1"))
        handle = await handle_of(runtime, one)

        async def waits() -> None:
            try:
                await handle.result(timeout=PATIENCE)
            except InstanceNotFoundError as error:
                errors.append(error)

        group.start_soon(waits)
        await until_words(runtime, one, "a", "1")
        await runtime.emit(Do("a", "delete"))
        await until_gone(runtime, one, "a")
        for gone in (handle.info, handle.inbox, handle.cancel, handle.recover, handle.result):
            with pytest.raises(InstanceNotFoundError):
                await gone()
    assert len(errors) == 1


async def test_a_cancelled_cell_has_ended(driver: Driver) -> None:
    one, asked, go_on = told(ends), Asked(), anyio.Event()
    async with host(driver, one, executors=[asked.waiting(go_on)]) as runtime:
        await runtime.emit(Do("a", "ask"))
        await asked.began.wait()
        handle = await handle_of(runtime, one)
        await handle.cancel()
        cell = await runtime.cell(one, "a")
        assert (cell.status.is_terminal, cell.state, dict(cell.inflight)) == (True, ["ask"], {})
        assert await runtime.emit(Do("a", "more")) == [Delivery.CLOSED]
        with pytest.raises(WorkflowCancelledError):
            await handle.result(timeout=PATIENCE)
        go_on.set()
        await settle(driver)
        assert await runtime.cell(one, "a") == cell
        await runtime.emit(Do("b", "1"))
        await until_words(runtime, one, "b", "1")


async def test_what_is_for_workflows_is_refused_or_harmless_for_cells(driver: Driver) -> None:
    one = told(ends)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "1"))
        await until_words(runtime, one, "a", "1")
        handle = await handle_of(runtime, one)
        await handle.wake()
        await handle.evict()
        with pytest.raises(InstanceStateError):
            await handle.recover()
        with pytest.raises(InstanceStateError):
            await runtime.delete(handle.id)
        await runtime.emit(Do("a", "2"))
        await until_words(runtime, one, "a", "1", "2")


async def test_a_message_that_is_no_event_does_no_harm(driver: Driver) -> None:
    """Whoever knows the id of a cell can send it any message: that is no way to forge a receipt."""
    seen: list[Any] = []

    def sees(words: list[str], event: Any, ctx: MachineContext) -> Any:
        seen.append(event)
        return ends(words, event, ctx)

    @workflow
    async def sends_to(ctx: Context, id: str) -> str:
        try:
            await ctx.send("forge", id, "sys/EffectReceipt@1", {})
        except InstanceNotFoundError as error:
            return str(error)
        return "sent"

    one = told(sees)
    async with host(driver, one, workflows=[sends_to]) as runtime:
        await runtime.emit(Do("a", "ask"))
        cell = await until_words(runtime, one, "a", "ask")
        (id,) = cell.inflight
        handle = await handle_of(runtime, one)
        forged = {"machine": "told@1", "key": "a", "intent_id": id, "effect": "ask@1", "status": "ok",
                  "payload": {"text": "forged"}, "sequence": 1, "executor": None, "issuer": None}  # fmt: skip
        for name in ("sys/EffectReceipt@1", "sys/EffectRejected@1", "nonsense"):
            with pytest.raises(InstanceNotFoundError, match="cell"):
                await handle.send(name, forged)
        sends = await runtime.start(sends_to, handle.id)
        assert "cell" in await sends.result(timeout=PATIENCE)
        await settle(driver)
        assert len(seen) == 1
        assert id in (await until_words(runtime, one, "a", "ask")).inflight
        assert await handle.inbox() == []


async def test_ended_cells_are_forgotten_when_their_time_is_over(driver: Driver) -> None:
    clock, short, kept = VirtualClock(), told(ends, name="short@1", retention=60.0), told(ends, name="kept@1")
    async with Runtime(driver, machines=manifest_of(short, kept), clock=clock, retention=HOUR) as runtime:
        for key, word in (("a", "end"), ("b", "1")):
            await runtime.emit(Do(key, word))
        for one in (short, kept):
            await until_cell(runtime, one, "a", lambda cell: cell.status == "completed")
            await until_words(runtime, one, "b", "1")
        clock.advance(61)
        await until_gone(runtime, short, "a")
        await until_words(runtime, kept, "a", "end")
        clock.advance(HOUR)
        await until_gone(runtime, kept, "a")
        clock.advance(100 * HOUR)
        for one in (short, kept):
            await until_words(runtime, one, "b", "1")


@pytest.mark.parametrize("how", ["retention", "delete", "prune", "transition"])
async def test_a_key_that_comes_again_goes_on_counting_however_its_cell_was_forgotten(driver: Driver, how: str) -> None:
    clock, one, asked = VirtualClock(), told(ends), Asked()
    sequences: list[int] = []
    async with host(driver, one, executors=[asked.by()], clock=clock, retention=HOUR) as runtime:
        for _ in range(3):
            await runtime.emit(Do("a", "ask"))
            cell = await until_words(runtime, one, "a", "ask", "ok ask@1: same")
            sequences.append(cell.last_sequence)
            await runtime.emit(Do("a", "delete" if how == "transition" else "end"))
            if how != "transition":
                await until_cell(runtime, one, "a", lambda cell: cell.status == "completed")
            if how == "retention":
                clock.advance(HOUR + 1)
            elif how == "delete":
                await runtime.delete((await handle_of(runtime, one)).id)
            elif how == "prune":
                clock.advance(1)
                await runtime.prune(older_than=0)
            await until_gone(runtime, one, "a")
    assert sequences == [2, 5, 8]
    assert len(set(asked.ids)) == 3


async def test_an_inbox_shows_what_has_come_and_was_not_taken(driver: Driver) -> None:
    one = told(ends)
    async with Client(driver, machines=manifest_of(one)) as client:
        for word in "123":
            await client.emit(Do("a", word))
        handle = await handle_of(client, one)
        found = await handle.inbox()
        assert [(message.name, message.payload) for message in found] == [
            ("test/Do@1", {"key": "a", "word": word}) for word in "123"
        ]
        assert await handle.discard(found[1].id)
        assert not await handle.discard(found[1].id)
        async with host(driver, one):
            await until_words(client, one, "a", "1", "3")
            assert await handle.inbox() == []


async def test_a_restart_of_a_cell_is_refused(driver: Driver) -> None:
    """It has no history that could be run again, and what it has done outside can't be undone."""
    one, asked = told(ends), Asked()
    async with host(driver, one, executors=[asked.by()]) as runtime:
        await runtime.emit(Do("a", "ask"))
        await until_count(runtime, one, "a", 2)
        await runtime.emit(Do("a", "end"))
        ended = await until_cell(runtime, one, "a", lambda cell: cell.status == "completed")
        handle = await handle_of(runtime, one)
        for again in (handle.restart_from, handle.recover):
            with pytest.raises(InstanceStateError):
                await again()
        await settle(driver)
        assert await runtime.cell(one, "a") == ended


async def test_a_failed_cell_that_is_recovered_goes_on_with_its_state(driver: Driver) -> None:
    def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return ask(event.word) if isinstance(event, Do) else None

    one, asked = told(asks, event=Do | Say | EffectReceipt), Asked()
    async with host(driver, one, executors=[asked.by(lambda params, intent: 7)]) as runtime:
        await runtime.emit(Do("a", "x"))
        await until_cell(runtime, one, "a", lambda cell: cell.status == "failed")
        handle = await handle_of(runtime, one)
        assert await runtime.emit(Say("a", "y")) == [Delivery.CLOSED]
        await handle.recover()
        assert await runtime.emit(Say("a", "z")) == [Delivery.ACCEPTED]
        await until_words(runtime, one, "a", "x", "z")
        assert (await handle.info()).error is None


async def test_the_id_of_a_cell_is_nobody_elses(driver: Driver) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.listen("never")

    one = told(ends)
    async with Runtime(driver, machines=manifest_of(one), workflows=[flow]) as runtime:
        await runtime.emit(Do("a", "1"))
        await until_words(runtime, one, "a", "1")
        id = (await handle_of(runtime, one)).id
        with pytest.raises(Exception, match="told@1"):
            await runtime.start(flow, id=id)
        await runtime.start(flow, id=id[:-1] + "b")
        with pytest.raises(InstanceStateError):
            await runtime.emit(Do("b", "1"))
        assert await cell_or_none(runtime, one, "b") is None
        await runtime.emit(Do("c", Answer("x").text))
        await until_words(runtime, one, "c", "x")
