"""Timers: effects that settle by themselves, when it is time, whoever is there then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.machines.cell_parts import (
    Asked,
    Do,
    Still,
    ask,
    host,
    manifest_of,
    told,
    until_cell,
    until_gone,
    until_words,
)
from tests.runtime.polling import settle
from workflow_sdk import Client, Delivery, Driver, Runtime
from workflow_sdk.machines import EffectReceipt, MachineContext, Transition, timer
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(20)

DAY = 86_400.0


def sets(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Sets a timer of so many seconds as the event says."""
    return None if isinstance(event, EffectReceipt) else timer(after=float(event.word)).tagged(event.word)


async def test_a_timer_settles_when_it_is_time(driver: Driver) -> None:
    clock, receipts = VirtualClock(), list[tuple[EffectReceipt, datetime]]()

    def notes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            receipts.append((event, ctx.now()))
        return sets(words, event, ctx)

    one = told(notes)
    async with host(driver, one, clock=clock) as runtime:
        began = clock.now()
        await runtime.emit(Do("a", "2592000"))
        cell = await until_words(runtime, one, "a", "2592000", "ok timer: None")
        assert dict(cell.inflight) == {}
    ((receipt, at),) = receipts
    assert (receipt.status, receipt.effect, receipt.executor, receipt.issuer) == ("ok", "timer", None, "2592000")
    assert (receipt.machine, receipt.key, receipt.sequence) == ("told@1", "a", 1)
    assert abs((at - began).total_seconds() - 30 * DAY) < 2


async def test_timers_come_in_the_order_of_their_times(driver: Driver) -> None:
    clock, order = VirtualClock(), list[str | None]()

    def notes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            order.append(event.issuer)
            return None
        return Transition(words, effects=[timer(after=n).tagged(str(n)) for n in (300, 100, 200, 0, 1_000_000)])

    one = told(notes)
    async with host(driver, one, clock=clock) as runtime:
        await runtime.emit(Do("a", "go"))
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 6)
    assert order == ["0", "100", "200", "300", "1000000"]


@pytest.mark.parametrize("zone", [UTC, None], ids=["in UTC", "elsewhere"])
async def test_a_timer_at_a_time(driver: Driver, zone: Any) -> None:
    clock = VirtualClock()
    when = (clock.now() + timedelta(days=400)).astimezone(zone or timezone(timedelta(hours=-7)))
    times: list[datetime] = []

    def notes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            times.append(ctx.now())
            return None
        return timer(at=when)

    one = told(notes)
    async with host(driver, one, clock=clock) as runtime:
        await runtime.emit(Do("a", "go"))
        await until_words(runtime, one, "a", "go", "ok timer: None")
    assert abs((times[0] - when).total_seconds()) < 2


async def test_a_time_that_is_over_comes_at_once(driver: Driver) -> None:
    def past(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return None
        return Transition(words, effects=[timer(at=datetime(1999, 1, 1, tzinfo=UTC)), timer(after=timedelta(0))])

    one = told(past)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "go"))
        await until_words(runtime, one, "a", "go", "ok timer: None", "ok timer: None")


async def test_a_timer_outlives_the_runtime(driver: Driver) -> None:
    still, one = Still(), told(sets)
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest, clock=still) as client:
        async with Runtime(driver, machines=manifest, clock=still):
            await client.emit(Do("a", str(400 * DAY)))
            cell = await until_cell(client, one, "a", lambda cell: cell.last_sequence == 1)
            assert next(iter(cell.inflight.values())).effect == "timer"
        async with Runtime(driver, machines=manifest, clock=Still(still.at + DAY)):
            await settle(driver)
        assert len((await client.cell(one, "a")).inflight) == 1
        async with Runtime(driver, machines=manifest, clock=VirtualClock(datetime.fromtimestamp(still.at, UTC))):
            await until_words(client, one, "a", str(400 * DAY), "ok timer: None")


async def test_a_timer_that_was_due_while_nobody_ran_comes_when_somebody_does(driver: Driver) -> None:
    still, one = Still(), told(sets)
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest, clock=still) as client:
        async with Runtime(driver, machines=manifest, clock=still, max_resident=0):
            await client.emit(Do("a", str(400 * DAY)))
            await until_cell(client, one, "a", lambda cell: cell.last_sequence == 1)
        async with Runtime(driver, machines=manifest, clock=Still(still.at + 1000 * DAY)):
            await until_words(client, one, "a", str(400 * DAY), "ok timer: None")


async def test_of_two_runtimes_one_settles_each_timer(driver: Driver) -> None:
    clock, calls = VirtualClock(), list[Any]()

    def notes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            calls.append(ctx.key)
            return None
        return timer(after=DAY)

    one, keys = told(notes), [str(number) for number in range(30)]
    async with host(driver, one, clock=clock) as here, host(driver, one, clock=clock) as there:
        for number, key in enumerate(keys):
            await (here, there)[number % 2].emit(Do(key, "go"))
        for key in keys:
            await until_words(here, one, key, "go", "ok timer: None")
    assert sorted(calls) == sorted(keys)


async def test_a_timer_wakes_a_cell_that_is_not_in_memory(driver: Driver) -> None:
    clock, one = VirtualClock(), told(sets)
    async with host(driver, one, clock=clock, max_resident=0) as runtime:
        for key in "abc":
            await runtime.emit(Do(key, "3600"))
        for key in "abc":
            await until_words(runtime, one, key, "3600", "ok timer: None")


async def test_a_cell_that_is_gone_is_not_begun_again_by_its_timer(driver: Driver) -> None:
    clock = VirtualClock()

    def deletes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        assert not isinstance(event, EffectReceipt)
        if event.word == "delete":
            return Transition(None)
        return Transition(words, done=True) if event.word == "end" else timer(after=DAY)

    one = told(deletes)
    async with host(driver, one, clock=clock) as runtime:
        for key, word in (("a", "delete"), ("b", "end")):
            await runtime.emit(Do(key, "go"))
            await runtime.emit(Do(key, word))
        await until_gone(runtime, one, "a")
        ended = await until_cell(runtime, one, "b", lambda cell: cell.status == "completed")
        clock.advance(2 * DAY)
        await settle(driver)
        assert [cell.key for cell in await runtime.cells(one)] == ["b"]
        assert await runtime.cell(one, "b") == ended


async def test_a_timer_can_be_settled_from_outside_before_its_time(driver: Driver) -> None:
    clock, one = VirtualClock(), told(sets)
    async with Client(driver, machines=manifest_of(one)) as client:
        async with host(driver, one) as runtime:
            await client.emit(Do("a", str(1000 * DAY)))
            cell = await until_cell(client, one, "a", lambda cell: cell.last_sequence == 1)
            (id,) = cell.inflight
            assert await client.settle(id) == Delivery.ACCEPTED
            await until_words(runtime, one, "a", str(1000 * DAY), "ok timer: None")
            assert await client.settle(id) == Delivery.STALE
        clock.advance(datetime.now(UTC) + timedelta(days=1001) - clock.now())
        async with host(driver, one, clock=clock) as runtime:
            await settle(driver)
            assert (await runtime.cell(one, "a")).last_sequence == 2


async def test_a_timer_races_with_an_effect(driver: Driver) -> None:
    """The deadline comes, since the executor is nowhere; what comes after it changes nothing."""
    clock = VirtualClock()

    def races(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return Transition(words, done=True)
        return Transition(words, effects=[ask("x"), timer(after=DAY)])

    one, asked = told(races), Asked()
    async with host(driver, one, clock=clock) as runtime:
        await runtime.emit(Do("a", "go"))
        cell = await until_cell(runtime, one, "a", lambda cell: cell.status == "completed")
        assert cell.state == ["go", "ok timer: None"]
        async with host(driver, one, clock=clock, executors=[asked.by()]):
            await asked.began.wait()
            await settle(driver)
            assert await runtime.cell(one, "a") == cell


async def test_timers_of_many_cells_at_one_time(driver: Driver) -> None:
    clock, one = VirtualClock(), told(sets)
    keys = [str(number) for number in range(200)]
    async with host(driver, one, clock=clock) as runtime:
        for key in keys:
            await runtime.emit(Do(key, "1000"))
        for key in keys:
            await until_words(runtime, one, key, "1000", "ok timer: None")
