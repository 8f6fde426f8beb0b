"""Effects: asked for in the commit of a transition, done by whoever has an executor, answered once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.machines.cell_parts import (
    Answer,
    Ask,
    Asked,
    Do,
    Say,
    ask,
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
from workflow_sdk import Client, DefinitionError, Delivery, Driver, Runtime
from workflow_sdk.machines import (
    CellStatus,
    EffectReceipt,
    Intent,
    MachineContext,
    Manifest,
    Transition,
    effect,
    executor,
    machine,
    route,
    timer,
)


def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Asks for what the event says."""
    return None if isinstance(event, EffectReceipt) else ask(event.word).tagged("shop")


async def test_an_effect_is_done_and_its_receipt_says_where_it_is_from(driver: Driver) -> None:
    receipts: list[EffectReceipt] = []

    def hears(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            receipts.append(event)
        return asks(words, event, ctx)

    one, asked = told(hears), Asked()
    done = asked.by()
    async with host(driver, one, executors=[done]) as runtime:
        await runtime.emit(Do("a", "x"))
        await until_words(runtime, one, "a", "x", "ok ask@1: x")
    (receipt,), (intent,) = receipts, asked.intents
    assert receipt == EffectReceipt("told@1", "a", intent.id, "ask@1", done.name, "shop", "ok", Answer("x"), 1)
    assert (intent.effect, intent.params, intent.machine, intent.key) == ("ask@1", Ask("x"), "told@1", "a")
    assert (intent.issuer, intent.sequence, intent.attempt) == ("shop", 1, 1)
    assert asked.params == [Ask("x")]


async def test_what_is_in_flight_can_be_seen_until_the_cell_has_heard_of_it(driver: Driver) -> None:
    one, asked, go_on = told(asks), Asked(), anyio.Event()
    async with host(driver, one, executors=[asked.waiting(go_on)]) as runtime:
        await runtime.emit(Do("a", "x"))
        await asked.began.wait()
        cell = await runtime.cell(one, "a")
        (intent,) = cell.inflight.values()
        assert list(cell.inflight) == [intent.id] == asked.ids
        assert (intent.effect, intent.params, intent.machine, intent.key) == ("ask@1", Ask("x"), "told@1", "a")
        assert (intent.issuer, intent.sequence) == ("shop", 1)
        with pytest.raises(DefinitionError):
            await intent.send("who reads an intent does not run it")
        go_on.set()
        cell = await until_words(runtime, one, "a", "x", "ok ask@1: x")
        assert dict(cell.inflight) == {}


async def test_an_effect_waits_for_the_runtime_that_has_its_executor(driver: Driver) -> None:
    one, asked = told(asks), Asked()
    manifest = manifest_of(one)
    async with Runtime(driver, machines=manifest) as here:
        await here.emit(Do("a", "x"))
        await until_words(here, one, "a", "x")
        await settle(driver)
        assert len((await here.cell(one, "a")).inflight) == 1
        async with Runtime(driver, machines=manifest, executors=[asked.by()]):
            await until_words(here, one, "a", "x", "ok ask@1: x")
            await here.emit(Do("b", "y"))
            await until_words(here, one, "b", "y", "ok ask@1: y")
    assert asked.params == [Ask("x"), Ask("y")]


async def test_each_runtime_does_the_effects_that_it_has_executors_for(driver: Driver) -> None:
    other = effect("other@1", params=Ask, receipt=Answer)

    def asks_both(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return None if isinstance(event, EffectReceipt) else Transition(words, effects=[ask("x"), other("y")])

    one = told(asks_both, effects=[ask, other])
    left, right = Asked(), Asked()
    async with (
        host(driver, one, executors=[left.by()]) as here,
        host(driver, one, executors=[right.by(of=other)]) as there,
    ):
        for number in range(10):
            await (here if number % 2 else there).emit(Do(str(number), "go"))
        for number in range(10):
            cell = await until_count(here, one, str(number), 3)
            assert sorted(cell.state[1:]) == ["ok ask@1: x", "ok other@1: y"]
    assert [one.what for one in left.params] == ["x"] * 10
    assert [one.what for one in right.params] == ["y"] * 10


async def test_a_plain_function_is_an_executor_too(driver: Driver) -> None:
    @executor(ask)
    def answers(params: Ask, intent: Intent) -> Answer:
        return Answer(f"{params.what} in a thread")

    one = told(asks)
    async with host(driver, one, executors=[answers]) as runtime:
        await runtime.emit(Do("a", "x"))
        await until_words(runtime, one, "a", "x", "ok ask@1: x in a thread")


async def test_equal_params_of_two_cells_and_of_one_cell_are_different_intents(driver: Driver) -> None:
    def asks_twice(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return None if isinstance(event, EffectReceipt) else Transition(words, effects=[ask("same"), ask("same")])

    one, asked = told(asks_twice), Asked()
    async with host(driver, one, executors=[asked.by()]) as runtime:
        for key in "ab":
            await runtime.emit(Do(key, "go"))
            await runtime.emit(Do(key, "go"))
        for key in "ab":
            cell = await until_count(runtime, one, key, 6)
            assert Counter(cell.state) == {"go": 2, "ok ask@1: same": 4}
    assert len(set(asked.ids)) == len(asked.ids) == 8


async def test_a_cell_that_ends_drops_its_receipts_and_its_effects_still_run(driver: Driver) -> None:
    def ends(words: list[str], event: Any, ctx: MachineContext) -> Any:
        assert not isinstance(event, EffectReceipt)
        return Transition(words, done=True) if event.word == "end" else ask(event.word)

    one, asked, go_on = told(ends), Asked(), anyio.Event()
    async with host(driver, one, executors=[asked.waiting(go_on)]) as runtime:
        await runtime.emit(Do("a", "x"))
        await asked.began.wait()
        await runtime.emit(Do("a", "end"))
        cell = await until_cell(runtime, one, "a", lambda cell: cell.status is CellStatus.COMPLETED)
        assert dict(cell.inflight) == {}
        go_on.set()
        await settle(driver)
        assert await runtime.cell(one, "a") == cell
        assert await runtime.settle(asked.ids[0], Answer("late")) == Delivery.STALE


async def test_the_transition_that_ends_a_cell_may_ask_for_effects(driver: Driver) -> None:
    def ends(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if event.word == "delete":
            return Transition(None, effects=[ask("last words")])
        return Transition(words, done=True, effects=[ask("last words")])

    one, asked = told(ends), Asked()
    async with host(driver, one, executors=[asked.by()]) as runtime:
        await runtime.emit(Do("a", "end"))
        await runtime.emit(Do("b", "delete"))

        async def both_were_asked() -> bool:
            return len(asked.ids) == 2

        await until(both_were_asked)
        await until_gone(runtime, one, "b")
        assert dict((await runtime.cell(one, "a")).inflight) == {}
        await settle(driver)
        assert await runtime.emit(Do("a", "more")) == [Delivery.CLOSED]


async def test_a_machine_that_does_not_hear_of_receipts_settles_them_and_is_not_called(driver: Driver) -> None:
    calls: list[str] = []

    def asks_too(words: list[str], event: Any, ctx: MachineContext) -> Any:
        calls.append(event.word)
        return ask(event.word)

    one, asked = told(asks_too, event=Do | Say), Asked()
    async with host(driver, one, executors=[asked.by()]) as runtime:
        await runtime.emit(Do("a", "x"))
        cell = await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 1 and not cell.inflight)
        await settle(driver)
        assert (cell.state, cell.last_sequence, cell.revision) == (["x"], 1, 1)
        assert (await runtime.cell(one, "a")).status == "waiting"
    assert calls == ["x"]


async def test_an_effect_that_no_runtime_can_do_waits_and_harms_nobody(driver: Driver) -> None:
    one = told(asks)
    async with host(driver, one) as runtime:
        for number in range(5):
            await runtime.emit(Do("a", str(number)))
        cell = await until_words(runtime, one, "a", *"01234")
        assert len(cell.inflight) == 5
        assert sorted(one.params.what for one in cell.inflight.values()) == [*"01234"]


async def test_thousands_of_effects_of_one_transition_at_a_time(driver: Driver) -> None:
    """64 at once, more than are taken in one look, and more of them than executors that run at the same time."""

    def asks_much(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return Transition(words[:-1])
        return Transition([], effects=[ask(f"{ctx.key} {n}") for n in range(64)])

    one, asked = told(asks_much), Asked()
    keys = [str(number) for number in range(10)]
    async with host(driver, one) as here:
        for key in keys:
            await here.emit(Do(key, "go"))
        for key in keys:
            await until_cell(here, one, key, lambda cell: len(cell.inflight) == 64)
        async with host(driver, one, executors=[asked.by()]):
            for key in keys:
                await until_cell(here, one, key, lambda cell: cell.last_sequence == 65)
    assert Counter(asked.ids).most_common(1)[0][1] == 1, "none was done twice"
    assert len(asked.ids) == 640


@dataclass(frozen=True)
class Nothing:
    """Params without a field."""


async def test_effects_without_params_or_receipt(driver: Driver) -> None:
    bare, empty = effect("bare"), effect("empty", params=Nothing)

    def asks_both(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return None if isinstance(event, EffectReceipt) else Transition(words, effects=[bare(), empty()])

    one, asked = told(asks_both, effects=[bare, empty]), Asked()
    done = [asked.by(lambda params, intent: None, of=bare), asked.by(lambda params, intent: None, of=empty)]
    async with host(driver, one, executors=done) as runtime:
        await runtime.emit(Do("a", "x"))
        cell = await until_count(runtime, one, "a", 3)
        assert sorted(cell.state) == ["ok bare: None", "ok empty: None", "x"]
    assert sorted(map(repr, asked.params)) == ["None", "Nothing()"]


def test_executors_of_what_the_manifest_has_not_are_refused() -> None:
    other, asked = effect("ask@1", params=Ask, receipt=Answer), Asked()
    one: Any = told()
    bad: list[Any] = [[asked.by(of=other)], [asked.by(), asked.by()], [lambda params, intent: None]]
    for executors in bad:
        with pytest.raises(DefinitionError):
            Runtime("memory://", machines=manifest_of(one), executors=executors)
    with pytest.raises(DefinitionError):
        Runtime("memory://", executors=[asked.by()])
    with pytest.raises(DefinitionError):
        executor(timer)
    with pytest.raises(DefinitionError):
        Runtime("memory://", machines=one)


async def test_two_machines_that_share_an_effect_get_their_own_receipts(driver: Driver) -> None:
    left, right = told(asks, name="left@1"), told(asks, name="right@1")
    asked = Asked()
    async with host(driver, left, right, executors=[asked.by()]) as runtime:
        assert await runtime.emit(Do("a", "x")) == [Delivery.ACCEPTED] * 2
        for one in (left, right):
            await until_words(runtime, one, "a", "x", "ok ask@1: x")
    assert len(set(asked.ids)) == 2
    assert {one.machine for one in asked.intents} == {"left@1", "right@1"}


async def test_an_executor_may_emit_and_settle_through_a_client_of_its_own(driver: Driver) -> None:
    """What is settled from outside while its executor runs is settled; the executor's own answer is too late."""
    one, settled = told(asks), anyio.Event()
    found: list[Delivery] = []

    async with Client(driver, machines=manifest_of(one)) as client:

        @executor(ask)
        async def emits(params: Ask, intent: Intent) -> Answer:
            found.append(await client.settle(intent.id, Answer("from outside")))
            await client.emit(Say("b", params.what))
            settled.set()
            return Answer("too late")

        async with host(driver, one, executors=[emits]) as runtime:
            await runtime.emit(Do("a", "x"))
            with anyio.fail_after(PATIENCE):
                await settled.wait()
            await until_words(client, one, "a", "x", "ok ask@1: from outside")
            await until_cell(client, one, "b", lambda cell: cell.state is not None and cell.state[0] == "x")
            await settle(driver)
            await until_words(client, one, "a", "x", "ok ask@1: from outside")
    assert found[0] == Delivery.ACCEPTED


async def test_effects_of_an_unkeyed_machine(driver: Driver) -> None:
    @machine("lonely@1", state=int, event=Do | EffectReceipt, effects=[ask])
    def lonely(state: int | None, event: Any, ctx: MachineContext) -> Transition[int]:
        assert ctx.key is None
        if isinstance(event, EffectReceipt):
            assert event.key is None
            return Transition((state or 0) + 1)
        return Transition(state or 0, effects=[ask(event.word)])

    asked = Asked()
    manifest = Manifest(machines=[lonely], routes=[route(Do, lonely)])
    async with Runtime(driver, machines=manifest, executors=[asked.by()]) as runtime:
        for word in "abc":
            await runtime.emit(Do("", word))
        await until_cell(runtime, lonely, None, lambda cell: cell.state == 3 and not cell.inflight)
    assert [one.key for one in asked.intents] == [None] * 3
