"""Several workers, many cells: fair, apart from each other, in memory or not, whoever ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
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
    until_words,
)
from tests.patience import PATIENCE
from tests.runtime.polling import settle, until
from workflow_sdk import Client, Driver, Runtime
from workflow_sdk.machines import EffectReceipt, Intent, Machine, MachineContext, Transition, executor

pytestmark = pytest.mark.law(17)


async def until_sequence(client: Client, one: Machine[Any], key: str, number: int) -> None:
    """Return once a cell has made so many transitions."""
    await until_cell(client, one, key, lambda cell: cell.last_sequence == number)


def counts(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Keeps the number of events only, so that the state does not grow."""
    return Transition([words[-1]])


@pytest.mark.parametrize("most", [1_000, pytest.param(10_000, marks=pytest.mark.deep)])
async def test_many_events_of_one_cell_delay_another_by_a_round_at_most(driver: Driver, most: int) -> None:
    order: list[str] = []

    def notes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        order.append(ctx.key)
        return Transition([event.word])

    one = told(notes, event=Do)
    async with Client(driver, machines=manifest_of(one)) as client:
        async with Runtime(driver, machines=manifest_of(one), inbox_max=100_000):
            pass
        async with anyio.create_task_group() as group:

            async def floods(part: int) -> None:
                for number in range(part, most, 10):
                    await client.emit(Do("busy", str(number)))

            for part in range(10):
                group.start_soon(floods, part)
        async with host(driver, one, concurrency=1) as runtime:

            async def is_busy() -> bool:
                return len(order) > 10

            await until(is_busy)
            for key in "abc":
                for word in "12":
                    await runtime.emit(Do(key, word))
            for key in "abc":
                await until_cell(runtime, one, key, lambda cell: cell.last_sequence == 2)
            await until_cell(runtime, one, "busy", lambda cell: cell.last_sequence == most)
    # From the first turn of a quiet cell on, the busy one has no two turns while a quiet one has something to do.
    first = min(order.index(key) for key in "abc")
    last = max(len(order) - 1 - order[::-1].index(key) for key in "abc")
    between = Counter(order[first:last])
    assert between["busy"] <= 12, between


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.deep)])
async def test_many_cells_with_equal_params_never_cross(driver: Driver, count: int) -> None:
    def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            assert event.key == ctx.key
            assert event.payload.text == f"for {ctx.key}", "the answer of another cell"
            return None
        return ask("the same")

    asked: Counter[str] = Counter()

    @executor(ask)
    async def answers(params: Ask, intent: Intent) -> Answer:
        asked[intent.id] += 1
        return Answer(f"for {intent.key}")

    one, keys = told(asks), [str(number) for number in range(count)]
    async with (
        host(driver, one, executors=[answers]) as here,
        host(driver, one, executors=[answers]) as there,
        anyio.create_task_group() as group,
    ):

        async def emits(part: int) -> None:
            for key in keys[part::20]:
                await (here, there)[part % 2].emit(Do(key, "go"))

        for part in range(20):
            group.start_soon(emits, part)

        for key in keys:
            await until_words(here, one, key, "go", f"ok ask@1: for {key}")
    assert len(asked) == count
    assert max(asked.values()) == 1


@pytest.mark.parametrize("max_resident", [0, 1, 3])
async def test_cells_that_are_not_in_memory_are_woken(driver: Driver, max_resident: int) -> None:
    def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return None if isinstance(event, EffectReceipt) else ask(event.word)

    one, asked = told(asks), Asked()
    async with host(driver, one, executors=[asked.by()], max_resident=max_resident) as runtime:
        for word in "12":
            for key in "abcdef":
                await runtime.emit(Do(key, word))
            for key in "abcdef":
                await until_count(runtime, one, key, 2 * int(word))

        async def few_are_in_memory() -> bool:
            return runtime.resident <= max_resident

        await until(few_are_in_memory)
        for key in "abcdef":
            cell = await runtime.cell(one, key)
            assert cell.state == ["1", "ok ask@1: 1", "2", "ok ask@1: 2"]
    assert len(asked.ids) == 12


async def test_handles_evict_cells_and_nothing_is_lost(driver: Driver) -> None:
    one = told(event=Do)
    async with host(driver, one) as runtime, anyio.create_task_group() as group:
        await runtime.emit(Do("a", "0"))
        handle = runtime.handle(one, (await runtime.list(workflow=one)).items[0].id)
        done = anyio.Event()

        async def evicts() -> None:
            while not done.is_set():
                await handle.evict()
                await settle(driver)

        group.start_soon(evicts)
        for number in range(1, 30):
            await runtime.emit(Do("a", str(number)))
        await until_words(runtime, one, "a", *map(str, range(30)))
        done.set()


async def test_runtimes_come_and_go_and_every_event_is_taken_once(driver: Driver) -> None:
    taken: list[tuple[str, str]] = []

    def notes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return Transition(words[:-1])
        taken.append((ctx.key, event.word))
        return ask(event.word)

    one, asked = told(notes), Asked()
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest) as client, anyio.create_task_group() as group:
        sent = anyio.Event()

        async def emits() -> None:
            for number in range(40):
                for key in "abc":
                    await client.emit(Do(key, str(number)))
            sent.set()

        group.start_soon(emits)
        while not sent.is_set():
            async with Runtime(driver, machines=manifest, executors=[asked.by()], grace=PATIENCE):
                await settle(driver)
        async with Runtime(driver, machines=manifest, executors=[asked.by()]):
            for key in "abc":
                cell = await until_cell(client, one, key, lambda cell: cell.last_sequence == 80)
                assert cell.state == [*map(str, range(40))]
    assert Counter(taken).most_common(1)[0][1] == 1 or len(set(taken)) == 120
    assert len(set(asked.ids)) == 120


async def test_two_runtimes_and_machines_that_talk_to_each_other(driver: Driver) -> None:
    def throws(words: list[str], event: Any, ctx: MachineContext) -> Any:
        count = int(event.word)
        other = "b" if ctx.key == "a" else "a"
        return Transition([event.word], events=[Do(other, str(count - 1))] if count else [])

    one = told(throws, event=Do)
    async with host(driver, one) as here, host(driver, one) as there:
        await here.emit(Do("a", "100"))
        await there.emit(Do("b", "99"))
        cells = [await until_cell(here, one, "a", lambda cell: cell.state == ["0"])]
        await until_cell(there, one, cells[0].key, lambda cell: cell.last_sequence > 50)

        async def all_is_said() -> bool:
            left, right = await here.cell(one, "a"), await here.cell(one, "b")
            return left.last_sequence + right.last_sequence == 201

        await until(all_is_said)


async def test_what_a_cell_tells_itself_and_others_at_once(driver: Driver) -> None:
    def spreads(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, Say):
            return None
        return Transition(words, events=[Say(str(n), event.word) for n in range(100)])

    one = told(spreads, event=Do | Say)
    async with host(driver, one) as here, host(driver, one) as there:
        await here.emit(Do("0", "x"))
        await there.emit(Do("1", "y"))
        for number in range(100):
            cell = await until_count(here, one, str(number), 3 if number < 2 else 2)
            assert Counter(cell.state) >= Counter(["x", "y"])


async def test_an_executor_of_a_runtime_that_died_is_called_again_elsewhere(driver: Driver) -> None:
    """A worker that was taken for dead: its executor's answer comes too late, and counts for nothing."""

    def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return None if isinstance(event, EffectReceipt) else ask(event.word)

    one, first, second, go_on = told(asks), Asked(), Asked(), anyio.Event()
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest) as client:
        async with Runtime(driver, machines=manifest, executors=[first.waiting(go_on)], grace=0.01):
            await client.emit(Do("a", "x"))
            await first.began.wait()
        async with Runtime(driver, machines=manifest, executors=[second.by()]):
            await until_words(client, one, "a", "x", "ok ask@1: x")
            go_on.set()
            await settle(driver)
            assert (await client.cell(one, "a")).last_sequence == 2
    assert first.ids == second.ids
    (late,) = second.intents
    assert [replace(intent, sending=late.sending, attempt=2) for intent in first.intents] == [late]


async def test_events_emitted_in_an_executor_and_by_transitions_come_in_order(driver: Driver) -> None:
    def echoes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if ctx.key == "a":
            return Transition(words, events=[Say("b", f"{event.word}.{n}") for n in range(3)])
        return None

    one = told(echoes, event=Do | Say)
    async with host(driver, one) as runtime:
        for number in range(20):
            await runtime.emit(Do("a", str(number)))
        await until_words(runtime, one, "b", *(f"{number}.{n}" for number in range(20) for n in range(3)))


async def test_a_transition_costs_the_same_after_many(driver: Driver) -> None:
    """The store of a cell does not grow with the events that it has taken."""
    one = told(counts, event=Do)
    async with host(driver, one) as runtime:
        sizes: list[int] = []
        for number in range(60):
            await runtime.emit(Do("a", f"{number:05}"))
            await until_sequence(runtime, one, "a", number + 1)
            if number in (19, 59):
                await until_cell(runtime, one, "a", lambda cell: cell.status == "waiting")
                sizes.append(len(await driver.scan(b"", b"\xff")))
        assert sizes[1] <= sizes[0] + 2
