"""Cells that are deleted, at once and for good, and keys that come again."""

from __future__ import annotations

from typing import Any

import anyio

from tests.machines.cell_parts import (
    Answer,
    Asked,
    Do,
    ask,
    host,
    manifest_of,
    told,
    until_cell,
    until_gone,
    until_words,
)
from tests.runtime.polling import settle, until
from workflow_sdk import Client, Delivery, Driver
from workflow_sdk.machines import (
    EffectReceipt,
    Machine,
    MachineContext,
    Transition,
)


async def test_a_key_that_comes_again_never_repeats_an_intent(driver: Driver) -> None:
    def deletes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return None
        return Transition(None) if event.word == "delete" else ask("same")

    one, asked, sequences = told(deletes), Asked(), list[int]()
    async with host(driver, one, executors=[asked.by()]) as runtime:
        for _ in range(3):
            await runtime.emit(Do("a", "go"))
            cell = await until_words(runtime, one, "a", "go", "ok ask@1: same")
            sequences.append(cell.last_sequence)
            assert cell.revision == 2
            await runtime.emit(Do("a", "delete"))
            await until_gone(runtime, one, "a")
    assert len(set(asked.ids)) == len(asked.ids) == 3
    assert sequences == [2, 5, 8]


async def test_a_cell_that_is_deleted_while_more_is_on_its_way_begins_again(driver: Driver) -> None:
    seen: list[Any] = []

    def deletes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        seen.append((ctx.sequence, [*words]))
        return Transition(None) if event.word == "delete" else None

    one = told(deletes, event=Do)
    async with Client(driver, machines=manifest_of(one)) as client:
        for word in ("1", "delete", "2", "delete", "delete", "3"):
            await client.emit(Do("a", word))
        async with host(driver, one):
            cell = await until_cell(client, one, "a", lambda cell: cell.last_sequence == 6)
            assert (cell.state, cell.revision) == (["3"], 1)
            await client.emit(Do("a", "delete"))
            await until_gone(client, one, "a")
            assert (await client.list(workflow=one)).items == []
    assert seen == [(0, ["1"]), (1, ["1", "delete"]), (2, ["2"]), (3, ["2", "delete"]), (4, ["delete"]), (5, ["3"]),
                    (6, ["3", "delete"])]  # fmt: skip


async def test_a_late_receipt_does_not_reach_the_cell_that_has_come_again_under_the_key(driver: Driver) -> None:
    def deletes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return None
        return Transition(None) if event.word == "delete" else ask(event.word) if event.word == "ask" else None

    one, asked, go_on = told(deletes), Asked(), anyio.Event()
    async with host(driver, one, executors=[asked.waiting(go_on)]) as runtime:
        await runtime.emit(Do("a", "ask"))
        await asked.began.wait()
        await runtime.emit(Do("a", "delete"))
        await until_gone(runtime, one, "a")
        await runtime.emit(Do("a", "again"))
        await until_words(runtime, one, "a", "again")
        go_on.set()
        await settle(driver)
        cell = await until_words(runtime, one, "a", "again")
        assert cell.last_sequence == 3


def deletes(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Deletes its cell, or asks."""
    assert not isinstance(event, EffectReceipt)
    return Transition(None) if event.word == "delete" else ask(event.word)


async def until_none_is_left(client: Client, one: Machine[Any]) -> None:
    """Return once the machine has no cell."""

    async def is_so() -> bool:
        return not await client.cells(one) and not await client.list(workflow=one)

    await until(is_so)


async def test_a_deleted_cell_is_gone_although_a_receipt_was_on_its_way(driver: Driver) -> None:
    """The receipt lies behind the event that deletes the cell: nobody hears of it, and nothing stays."""
    one = told(deletes)
    async with Client(driver, machines=manifest_of(one)) as client:
        async with host(driver, one):
            await client.emit(Do("a", "x"))
            cell = await until_words(client, one, "a", "x")
        (id,) = cell.inflight
        await client.emit(Do("a", "delete"))
        assert await client.settle(id, Answer("too late")) == Delivery.ACCEPTED
        async with host(driver, one):
            await until_none_is_left(client, one)


async def test_a_cell_whose_only_event_was_discarded_is_gone(driver: Driver) -> None:
    one = told(deletes)
    async with Client(driver, machines=manifest_of(one)) as client:
        await client.emit(Do("a", "x"))
        (info,) = (await client.list(workflow=one)).items
        handle = client.handle(one, info.id)
        (message,) = await handle.inbox()
        assert await handle.discard(message.id)
        async with host(driver, one) as runtime:
            await until_none_is_left(client, one)
            await runtime.emit(Do("a", "y"))
            await until_words(runtime, one, "a", "y")


async def test_many_cells_that_are_deleted_at_once_are_gone(driver: Driver) -> None:
    """Cells that are told of news that they have read already."""
    one, keys = told(deletes), [str(number) for number in range(60)]
    async with host(driver, one, concurrency=3) as here, Client(driver, machines=manifest_of(one)) as there:

        async def sends(client: Client) -> None:
            for key in keys:
                await client.emit(Do(key, "x"))
                await client.emit(Do(key, "delete"))

        for _ in range(3):
            async with anyio.create_task_group() as group:
                group.start_soon(sends, here)
                group.start_soon(sends, there)
            for key in keys:
                await here.emit(Do(key, "delete"))
            await until_none_is_left(here, one)
