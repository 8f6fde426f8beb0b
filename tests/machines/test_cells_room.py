"""A worker has room for so many effects: the rest is queued, for others, or until one of its own has ended."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.machines.cell_parts import Answer, Ask, Asked, Do, ask, host, manifest_of, told, until_cell, until_words
from tests.runtime.polling import settle, until
from workflow_sdk import Context, Driver, Runtime, workflow
from workflow_sdk.machines import EffectReceipt, Intent, MachineContext, Manifest, Transition, effect, timer
from workflow_sdk.machines.hosting import CellHost
from workflow_sdk.machines.room import Room
from workflow_sdk.machines.rows import all_executed

pytestmark = pytest.mark.law(12, 17)

ROOM = 3


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker has room for three."""
    monkeypatch.setattr("workflow_sdk.machines.room.AT_ONCE", ROOM)


def asks_some(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Asks for as many effects as an event says."""
    if isinstance(event, EffectReceipt):
        return None
    return Transition(words, effects=[ask(str(number)) for number in range(int(event.word))])


async def until_asked(asked: Asked, count: int) -> None:
    """Return once an executor was called so often."""

    async def is_so() -> bool:
        return len(asked.ids) >= count

    await until(is_so)


async def test_a_worker_takes_what_it_has_room_for_and_leaves_the_rest_to_others(driver: Driver) -> None:
    one, first, second, go_on = told(asks_some), Asked(), Asked(), anyio.Event()
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "8"))
        await until_cell(runtime, one, "a", lambda cell: len(cell.inflight) == 8)
    async with host(driver, one, executors=[first.waiting(go_on)]) as runtime:
        await until_asked(first, ROOM)
        await settle(driver)
        assert len(await driver.scan(*all_executed())) == ROOM
        async with host(driver, one, executors=[second.by()]):
            await until_asked(second, 5)
            assert len(first.ids) == ROOM
            go_on.set()
            await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 9)
    assert len({*first.ids, *second.ids}) == len([*first.ids, *second.ids]) == 8


async def test_when_one_ends_its_worker_takes_the_next(driver: Driver) -> None:
    here: set[str] = set()
    most: list[int] = []

    async def counts(params: Ask, intent: Intent) -> Answer:
        here.add(intent.id)
        most.append(len(here))
        await anyio.lowlevel.checkpoint()
        here.remove(intent.id)
        return Answer(params.what)

    one, asked = told(asks_some), Asked()
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "20"))
        await until_cell(runtime, one, "a", lambda cell: len(cell.inflight) == 20)
    async with host(driver, one, executors=[asked.by(counts)]) as runtime:
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 21)
        await runtime.emit(Do("b", "20"))
        await until_cell(runtime, one, "b", lambda cell: cell.last_sequence == 21)
    assert max(most) <= ROOM
    assert len(set(asked.ids)) == len(asked.ids) == 40


@pytest.mark.parametrize("cells", [1, 5])
async def test_what_its_own_cells_ask_for_is_queued_when_there_is_no_room(driver: Driver, cells: int) -> None:
    one, first, second, go_on = told(asks_some), Asked(), Asked(), anyio.Event()
    count = 10 // cells
    keys = [str(number) for number in range(cells)]
    async with host(driver, one, executors=[first.waiting(go_on)]) as runtime:
        for key in keys:
            await runtime.emit(Do(key, str(count)))
        for key in keys:
            await until_cell(runtime, one, key, lambda cell: len(cell.inflight) == count)
        await until_asked(first, ROOM)
        await settle(driver)
        assert len(first.ids) == len(await driver.scan(*all_executed())) == ROOM
        async with Runtime(driver, machines=manifest_of(one), executors=[second.by()]):
            await until_asked(second, 10 - ROOM)
            go_on.set()
            for key in keys:
                await until_cell(runtime, one, key, lambda cell: cell.last_sequence == count + 1)
    assert len(set(first.ids) | set(second.ids)) == 10


async def test_what_workflows_ask_for_is_queued_when_there_is_no_room(driver: Driver) -> None:
    @workflow
    async def asks(ctx: Context) -> str:
        return str((await ctx.effect("asks", ask("x"))).payload.text)

    asked, go_on = Asked(), anyio.Event()
    manifest = Manifest(effects=[ask, timer])
    async with Runtime(driver, workflows=[asks], machines=manifest, executors=[asked.waiting(go_on)]) as runtime:
        handles = [await runtime.start(asks, id=str(number)) for number in range(8)]
        await until_asked(asked, ROOM)
        await settle(driver)
        assert len(asked.ids) == len(await driver.scan(*all_executed())) == ROOM
        go_on.set()
        assert [await handle.result() for handle in handles] == ["x"] * 8
    assert len(set(asked.ids)) == len(asked.ids) == 8


async def test_a_long_queue_of_one_effect_keeps_none_of_another_waiting(driver: Driver) -> None:
    other = effect("other@1", params=Ask, receipt=Answer)

    def asks_both(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return None
        return Transition(words, effects=[*(ask(str(number)) for number in range(6 * ROOM)), other("late")])

    one, asked = told(asks_both, effects=[ask, other]), Asked()
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a"))
        await until_cell(runtime, one, "a", lambda cell: len(cell.inflight) == 6 * ROOM + 1)
    async with host(driver, one, executors=[asked.by(), asked.by(of=other)]) as runtime:
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 6 * ROOM + 2)
    assert asked.params.index(Ask("late")) < 3 * ROOM


async def test_a_transition_that_is_refused_keeps_no_room(driver: Driver) -> None:
    def asks_too_much(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return None
        return Transition(words if event.word != "bad" else ["x" * 600_000], effects=[ask("y" * 100_000)] * ROOM)

    one, asked = told(asks_too_much), Asked()
    async with host(driver, one, executors=[asked.by()], max_value_bytes=500_000) as runtime:
        for key in "abc":
            await runtime.emit(Do(key, "bad"))
            await until_cell(runtime, one, key, lambda cell: cell.status == "stuck")
        assert await driver.scan(*all_executed()) == []
        await runtime.emit(Do("good", "x"))
        await until_cell(runtime, one, "good", lambda cell: cell.last_sequence == 1 + ROOM)
    assert len(asked.ids) == ROOM


def test_a_place_is_kept_until_the_effect_is_recorded() -> None:
    room = Room("worker", frozenset({"ask@1"}))
    with room.placing() as place, room.placing() as other:
        assert place("0", "unknown") is None
        assert [place("1", "ask@1"), other("2", "ask@1"), place("3", "ask@1")] == ["worker"] * ROOM
        assert place("4", "ask@1") is other("5", "ask@1") is None
        room.take("2")
    assert (room.left, room.held()) == (ROOM - 1, {"2"})
    room.free("2")
    with room.placing() as place:
        room.is_short = True
        assert place("1", "ask@1") is None, "others wait in the queue"
        room.is_short = False
        assert place("1", "ask@1") == "worker"
        room.close()
        assert place("2", "ask@1") is None
    assert room.left == ROOM


async def test_what_is_short_of_room_is_short_no_more_once_the_queue_is_empty(driver: Driver) -> None:
    one, asked = told(asks_some), Asked()
    async with host(driver, one, executors=[asked.by()]) as runtime:
        for number in range(3):
            await runtime.emit(Do(str(number), "20"))
            await until_cell(runtime, one, str(number), lambda cell: cell.last_sequence == 21)
        await settle(driver)
        cells = runtime._cells  # pyright: ignore[reportPrivateUsage]
        assert isinstance(cells, CellHost)
        room = cells.around.room
        assert (room.left, room.is_short) == (ROOM, False)
        await runtime.emit(Do("last", "1"))
        await until_words(runtime, one, "last", "1", "ok ask@1: 0")
