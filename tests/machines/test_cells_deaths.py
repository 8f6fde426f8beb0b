"""Workers that die while executors run: who takes over, how often, and what attempts count."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NoReturn

import anyio
import pytest

from tests.machines.cell_parts import Answer, Ask, Asked, Do, ask, manifest_of, told, until_cell, until_words
from tests.patience import PATIENCE
from tests.runtime.polling import settle, until
from workflow_sdk import Backoff, Client, Driver, Runtime
from workflow_sdk.changes.decide import DEATHS_MAX
from workflow_sdk.machines import EffectReceipt, Executor, Intent, Machine, MachineContext, Manifest, Transition
from workflow_sdk.machines.rows import IntentRow, all_executed, all_intents
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

pytestmark = pytest.mark.law(16, 17)

FAULT = f"fault ask@1: {DEATHS_MAX} workers in a row have died while it ran, so it is not run again"

AT_ONCE = Backoff(initial=0, jitter=0)


def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Asks for what each event says."""
    return None if isinstance(event, EffectReceipt) else ask(event.word)


class OurError(Exception):
    """What an executor may raise."""


def fails(params: Any, intent: Intent) -> NoReturn:
    """An attempt that comes to nothing."""
    raise OurError("no")


Made = Callable[[FaultyDriver], Executor]
"""Makes an executor that may kill its worker, by the driver that this has."""


async def die(driver: Driver, manifest: Manifest, clock: VirtualClock, made: Made) -> None:
    """Run a worker until its executor kills it."""
    faulty = FaultyDriver(driver)
    with anyio.fail_after(PATIENCE), suppress(SimulatedCrash, BaseExceptionGroup):
        async with Runtime(faulty, machines=manifest, executors=[made(faulty)], clock=clock):
            await anyio.sleep_forever()
    assert faulty.crashed


@asynccontextmanager
async def keeping(driver: Driver, one: Machine[Any], clock: VirtualClock, *events: Do) -> AsyncGenerator[Client]:
    """A runtime that has the cells, which are not to die, and no executor; they have asked when the block begins."""
    async with Runtime(driver, machines=manifest_of(one), clock=clock) as runtime:
        for event in events:
            await runtime.emit(event)
            await until_cell(runtime, one, event.key, lambda cell: len(cell.inflight) > 0)
        yield runtime


def killing(asked: Asked) -> Made:
    """An executor that kills its process."""
    return lambda faulty: asked.by(lambda params, intent: faulty.crash())


async def test_an_effect_that_kills_worker_after_worker_is_a_fault(driver: Driver) -> None:
    one, deadly, working, clock = told(asks), Asked(), Asked(), VirtualClock(quiet=0.05)
    manifest = manifest_of(one)
    async with keeping(driver, one, clock, Do("a", "x")) as client:
        for _ in range(DEATHS_MAX):
            await die(driver, manifest, clock, killing(deadly))
        async with Runtime(driver, machines=manifest, executors=[working.by()], clock=clock) as runtime:
            await until_words(client, one, "a", "x", FAULT)
            await runtime.emit(Do("b", "y"))
            await until_words(client, one, "b", "y", "ok ask@1: y")
            assert await driver.scan(*all_executed()) == await driver.scan(*all_intents()) == []
    assert [intent.attempt for intent in deadly.intents] == [*range(1, DEATHS_MAX + 1)]
    assert working.params == [Ask("y")]


async def test_one_death_less_and_it_is_done(driver: Driver) -> None:
    one, deadly, working, clock = told(asks), Asked(), Asked(), VirtualClock(quiet=0.05)
    manifest = manifest_of(one)
    async with keeping(driver, one, clock, Do("a", "x")) as client:
        for _ in range(DEATHS_MAX - 1):
            await die(driver, manifest, clock, killing(deadly))
        async with Runtime(driver, machines=manifest, executors=[working.by()], clock=clock):
            await until_words(client, one, "a", "x", "ok ask@1: x")
    assert set(deadly.ids) == set(working.ids)


async def test_those_that_ran_beside_the_one_that_kills_are_done(driver: Driver) -> None:
    """Each has a last try, beside no other one that has one: so it is known which one it is."""

    def asks_many(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return None
        return Transition(words, effects=[ask(word) for word in ["1", "2", "3", "kill", "4", "5", "6"]])

    def made(faulty: FaultyDriver) -> Executor:
        begun: list[str] = []

        async def does(params: Ask, intent: Intent) -> Answer:
            begun.append(params.what)
            await settle(driver)
            if params.what == "kill":
                faulty.crash()
            elif "kill" in begun:
                await anyio.sleep_forever()
            return Answer(params.what)

        return Asked().by(does)

    one, clock = told(asks_many), VirtualClock(quiet=0.05)
    manifest = manifest_of(one)
    async with keeping(driver, one, clock, Do("a", "go")) as client:
        for _ in range(DEATHS_MAX):
            await die(driver, manifest, clock, made)
        async with Runtime(driver, machines=manifest, executors=[Asked().by()], clock=clock):
            cell = await until_cell(client, one, "a", lambda cell: cell.last_sequence == 8)
    assert sorted(cell.state) == sorted(["go", FAULT, *(f"ok ask@1: {number}" for number in range(1, 7))])


async def test_those_on_their_last_try_keep_no_others_waiting(driver: Driver) -> None:
    one, clock, go_on, hanging = told(asks), VirtualClock(quiet=0.05), anyio.Event(), Asked()
    manifest = manifest_of(one)

    def made(faulty: FaultyDriver) -> Executor:
        begun: list[str] = []

        def kills(params: Ask, intent: Intent) -> Any:
            begun.append(intent.id)
            return faulty.crash() if len(begun) == 2 else anyio.sleep_forever()

        return Asked().by(kills)

    async def waits(params: Ask, intent: Intent) -> Answer:
        if params.what != "new":
            await go_on.wait()
        return Answer(params.what)

    async with keeping(driver, one, clock, Do("a", "x"), Do("b", "x")) as client:
        for _ in range(DEATHS_MAX - 1):
            await die(driver, manifest, clock, made)
        async with Runtime(driver, machines=manifest, executors=[hanging.by(waits)], clock=clock) as runtime:
            await until(lambda: _is_asked(hanging, 1))
            for key in "cd":
                await runtime.emit(Do(key, "new"))
                await until_words(client, one, key, "new", "ok ask@1: new")
            assert len([params for params in hanging.params if params.what == "x"]) == 1
            go_on.set()
            for key in "ab":
                await until_words(client, one, key, "x", "ok ask@1: x")


async def _is_asked(asked: Asked, count: int) -> bool:
    return len(asked.ids) >= count


async def test_deaths_count_in_a_row_and_a_failed_attempt_is_in_between(driver: Driver) -> None:
    one, calls, working, clock = told(asks), Asked(), Asked(), VirtualClock(quiet=0.05)
    manifest = manifest_of(one)

    def made(faulty: FaultyDriver) -> Executor:
        def kills(params: Ask, intent: Intent) -> Any:
            return fails(params, intent) if len(calls.ids) == DEATHS_MAX else faulty.crash()

        return calls.by(kills, retries=1, backoff=AT_ONCE)

    async with keeping(driver, one, clock, Do("a", "x")) as client:
        for _ in range(2 * DEATHS_MAX - 2):
            await die(driver, manifest, clock, made)
        async with Runtime(driver, machines=manifest, executors=[working.by()], clock=clock):
            await until_words(client, one, "a", "x", "ok ask@1: x")
    assert len(calls.ids) == 2 * DEATHS_MAX - 1


async def test_deaths_count_however_long_it_has_run_and_whatever_it_has_sent(driver: Driver) -> None:
    """It begins anew each time: what it did before is no step further."""
    one, deadly, clock = told(asks), Asked(), VirtualClock(quiet=0.05)
    manifest = manifest_of(one)

    def made(faulty: FaultyDriver) -> Executor:
        async def kills(params: Ask, intent: Intent) -> Any:
            await intent.send("half")
            clock.advance(86_400)
            faulty.crash()

        return deadly.by(kills)

    async with keeping(driver, one, clock, Do("a", "x")) as client:
        for _ in range(DEATHS_MAX):
            await die(driver, manifest, clock, made)
        async with Runtime(driver, machines=manifest, executors=[deadly.by()], clock=clock):
            await until_words(client, one, "a", "x", FAULT)
    assert len(deadly.ids) == DEATHS_MAX


async def test_workers_that_end_as_they_should_are_no_deaths(driver: Driver) -> None:
    one, working = told(asks), Asked()
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest) as client:
        await client.emit(Do("a", "x"))
        for _ in range(DEATHS_MAX + 1):
            hanging = Asked()
            hangs = hanging.waiting(anyio.Event())
            async with Runtime(driver, machines=manifest, executors=[hangs], grace=0.01):
                await hanging.began.wait()
        async with Runtime(driver, machines=manifest, executors=[working.by()]):
            await until_words(client, one, "a", "x", "ok ask@1: x")
    assert [intent.attempt for intent in working.intents] == [DEATHS_MAX + 2]


# Attempts.


async def test_who_takes_an_effect_over_makes_another_attempt_of_it(driver: Driver) -> None:
    one, first, second, clock = told(asks), Asked(), Asked(), VirtualClock(quiet=0.05)
    manifest = manifest_of(one)

    async def sends(params: Ask, intent: Intent) -> Answer:
        await intent.send(f"of attempt {intent.attempt}")
        return Answer("done")

    def made(faulty: FaultyDriver) -> Executor:
        async def kills(params: Ask, intent: Intent) -> Any:
            await sends(params, intent)
            faulty.crash()

        return first.by(kills)

    async with keeping(driver, one, clock, Do("a", "x")) as client:
        await die(driver, manifest, clock, made)
        async with Runtime(driver, machines=manifest, executors=[second.by(sends)], clock=clock):
            await until_words(client, one, "a", "x", "ok ask@1: done")
        frames = await client.frames(first.ids[0])
    assert first.ids == second.ids
    assert [(frame.attempt, frame.value) for frame in frames] == [(1, "of attempt 1"), (2, "of attempt 2")]


async def _has_failed(driver: Driver, times: int) -> bool:
    rows = [IntentRow.unpack(raw) for _, raw in await driver.scan(*all_intents())]
    return [row.failed for row in rows] == [times]


async def test_retries_are_counted_over_all_workers(driver: Driver) -> None:
    one, asked, clock = told(asks), Asked(), VirtualClock(quiet=0.05)
    manifest = manifest_of(one)
    failing = asked.by(fails, retries=2, backoff=Backoff(initial=3600, maximum=3600, jitter=0))
    async with Client(driver, machines=manifest) as client:
        await client.emit(Do("a", "x"))
        for number in (1, 2):
            async with Runtime(driver, machines=manifest, executors=[failing], grace=0.01):
                await until(partial(_has_failed, driver, number))
        async with Runtime(driver, machines=manifest, executors=[failing], clock=clock):
            await until_words(client, one, "a", "x", "error ask@1: OurError: no")
    attempts = [intent.attempt for intent in asked.intents]
    assert len(set(asked.ids)) == 1
    assert attempts == sorted(set(attempts))
    assert len(attempts) == 3


async def test_an_attempt_that_a_death_has_cut_short_is_no_failed_one(driver: Driver) -> None:
    one, calls, clock = told(asks), Asked(), VirtualClock(quiet=0.05)
    manifest = manifest_of(one)

    def made(faulty: FaultyDriver) -> Executor:
        def does(params: Ask, intent: Intent) -> Any:
            return faulty.crash() if len(calls.ids) in (2, 3) else fails(params, intent)

        return calls.by(does, retries=1, backoff=AT_ONCE)

    async with keeping(driver, one, clock, Do("a", "x")) as client:
        for _ in range(2):
            await die(driver, manifest, clock, made)
        async with Runtime(driver, machines=manifest, executors=[made(FaultyDriver(driver))], clock=clock):
            await until_words(client, one, "a", "x", "error ask@1: OurError: no")
    assert len(calls.ids) == 4, "two have failed, and two were cut short"
