"""Cells in a store whose values are encrypted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.machines.cell_parts import (
    Answer,
    Ask,
    Asked,
    Do,
    Say,
    ask,
    manifest_of,
    told,
    until_cell,
    until_count,
    until_gone,
    until_words,
)
from tests.runtime.polling import settle
from workflow_sdk import Client, Delivery, Driver, Runtime
from workflow_sdk.codecs import fernet
from workflow_sdk.machines import EffectReceipt, Intent, MachineContext, Transition, timer

KEY, OLD = "a" * 43 + "=", "b" * 43 + "="
SECRETS = ["the secret word", "the secret answer", "the secret frame"]


def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Asks, tells and waits with a secret."""
    if isinstance(event, EffectReceipt):
        return None
    match event.word:
        case "delete":
            return Transition(None)
        case "end":
            return Transition(words, done=True)
        case "tell":
            return Transition(words, events=[Say("b", SECRETS[0])])
        case _:
            return Transition(words, effects=[ask(event.word), timer(after=0)])


async def test_nothing_that_is_said_stands_in_the_store(driver: Driver) -> None:
    codec = fernet(KEY)

    async def sends(params: Ask, intent: Intent) -> Answer:
        assert params == Ask(SECRETS[0])
        await intent.send(SECRETS[2])
        return Answer(SECRETS[1])

    one, asked = told(asks), Asked()
    manifest = manifest_of(one)
    done = asked.by(sends)
    async with Client(driver, machines=manifest, codec=codec) as client:
        await client.emit(Do("a", SECRETS[0]))
        await check_no_secret(driver)
        async with Runtime(driver, machines=manifest, codec=codec):
            cell = await until_cell(client, one, "a", lambda cell: cell.last_sequence == 2)
            assert [one.params for one in cell.inflight.values()] == [Ask(SECRETS[0])]
            await check_no_secret(driver)
        async with Runtime(driver, machines=manifest, codec=codec, executors=[done]) as runtime:
            cell = await until_count(client, one, "a", 3)
            assert sorted(cell.state) == sorted([SECRETS[0], f"ok ask@1: {SECRETS[1]}", "ok timer: None"])
            assert [frame.value for frame in await client.frames(asked.ids[0])] == [SECRETS[2]]
            await check_no_secret(driver)
            await client.emit(Do("a", "tell"))
            cell = await until_count(client, one, "b", 3)
            assert cell.state[0] == SECRETS[0]
            await check_no_secret(driver)
            await client.emit(Do("a", "end"))
            cell = await until_cell(client, one, "a", lambda cell: cell.status == "completed")
            await check_no_secret(driver)
            handle = runtime.handle(one, (await runtime.list(workflow=one, status="completed")).items[0].id)
            assert await handle.result() == cell.state
            await client.emit(Do("b", "delete"))
            await until_gone(client, one, "b")
    assert asked.intents[0].key == "a"


async def check_no_secret(driver: Driver) -> None:
    """No row holds one of the secrets."""
    for key, raw in await driver.scan(b"", b"\xff"):
        for secret in SECRETS:
            assert secret.encode() not in raw, key
            assert secret.encode() not in key, key


async def test_who_settles_needs_the_key_as_well(driver: Driver) -> None:
    codec = fernet(KEY)
    one = told(lambda words, event, ctx: None if isinstance(event, EffectReceipt) else ask("x"))
    manifest = manifest_of(one)
    async with Runtime(driver, machines=manifest, codec=codec) as runtime:
        await runtime.emit(Do("a", "x"))
        (id,) = (await until_cell(runtime, one, "a", lambda cell: len(cell.inflight) == 1)).inflight
        assert await runtime.settle(id, Answer(SECRETS[1])) == Delivery.ACCEPTED
        await until_words(runtime, one, "a", "x", f"ok ask@1: {SECRETS[1]}")


async def test_an_event_of_a_client_with_another_key_is_left_to_who_can_read_it(driver: Driver) -> None:
    """The cell loses nothing, and the others go on."""
    codec, other = fernet(KEY), fernet(OLD)
    one = told(event=Do)
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest, codec=other) as stranger:
        async with Runtime(driver, machines=manifest, codec=codec) as runtime:
            await runtime.emit(Do("a", "1"))
            await until_words(runtime, one, "a", "1")
            await stranger.emit(Do("a", "2"))
            await settle(driver)
            await runtime.emit(Do("b", "1"))
            await until_words(runtime, one, "b", "1")
            await until_words(runtime, one, "a", "1")
        async with Runtime(driver, machines=manifest, codec=fernet([KEY, OLD])) as runtime:
            await until_words(runtime, one, "a", "1", "2")
            await runtime.emit(Do("a", "3"))
            await until_words(runtime, one, "a", "1", "2", "3")


@pytest.mark.parametrize("old_first", [True, False])
async def test_a_new_key_and_the_old_one(driver: Driver, old_first: bool) -> None:
    one, asked = told(asks), Asked()
    manifest = manifest_of(one)
    async with Runtime(driver, machines=manifest, codec=fernet(OLD)) as runtime:
        await runtime.emit(Do("a", "x"))
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 2)
    codec = fernet([KEY, OLD])
    async with Runtime(driver, machines=manifest, codec=codec, executors=[asked.by()]) as runtime:
        cell = await until_count(runtime, one, "a", 3)
        assert sorted(cell.state) == ["ok ask@1: x", "ok timer: None", "x"]
        await runtime.emit(Do("a" if old_first else "b", "end"))
        await until_cell(runtime, one, "a" if old_first else "b", lambda cell: cell.status == "completed")
