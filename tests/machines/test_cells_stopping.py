"""Runtimes that end while executors run: within the grace, or taken by another."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

import anyio
import pytest

from tests.machines.cell_parts import (
    Answer,
    Ask,
    Asked,
    Do,
    ask,
    manifest_of,
    told,
    until_cell,
    until_words,
)
from tests.patience import PATIENCE
from tests.runtime.polling import settle, until
from workflow_sdk import Backoff, Batch, Client, Driver, Runtime
from workflow_sdk.driver import Set
from workflow_sdk.machines import (
    EffectReceipt,
    Intent,
    MachineContext,
    executor,
)
from workflow_sdk.machines.rows import all_executed
from workflow_sdk.testing import VirtualClock


def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Asks for what each event says."""
    return None if isinstance(event, EffectReceipt) else ask(event.word)


class OurError(Exception):
    """What an executor may raise."""


def raises(error: BaseException) -> Any:
    """An answer that is an error."""

    def answer(params: Any, intent: Intent) -> NoReturn:
        raise error

    return answer


async def test_a_retry_goes_on_in_another_runtime(driver: Driver) -> None:
    """The one that waits for the next attempt ends; the other one makes it."""
    clock = VirtualClock(quiet=0.05)
    one, failing, working = told(asks), Asked(), Asked()
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest) as client:
        first = failing.by(raises(OurError("no")), retries=9, backoff=Backoff(initial=3600, jitter=0))
        async with Runtime(driver, machines=manifest, executors=[first], grace=0.01):
            await client.emit(Do("a", "x"))
            await failing.began.wait()
            await settle(driver)
        async with Runtime(driver, machines=manifest, executors=[working.by()], clock=clock) as runtime:
            await until_words(runtime, one, "a", "x", "ok ask@1: x")
    assert set(failing.ids) == set(working.ids)


async def test_a_plain_function_that_does_not_return_keeps_no_runtime_from_ending(driver: Driver) -> None:
    go_on, began = threading.Event(), threading.Event()

    @executor(ask)
    def hangs(params: Ask, intent: Intent) -> Answer:
        began.set()
        go_on.wait()
        return Answer("too late")

    async def has_begun() -> bool:
        return began.is_set()

    one, asked = told(asks), Asked()
    manifest = manifest_of(one)
    try:
        async with Client(driver, machines=manifest) as client:
            with anyio.fail_after(PATIENCE):
                async with Runtime(driver, machines=manifest, executors=[hangs], grace=0.01):
                    await client.emit(Do("a", "x"))
                    await until(has_begun)
            async with Runtime(driver, machines=manifest, executors=[asked.by()]):
                await until_words(client, one, "a", "x", "ok ask@1: x")
                go_on.set()
                await settle(driver)
                await until_words(client, one, "a", "x", "ok ask@1: x")
    finally:
        go_on.set()


async def test_what_runs_at_the_end_of_a_runtime_may_end_within_its_grace(driver: Driver) -> None:
    one, asked, go_on = told(asks), Asked(), anyio.Event()
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest) as client, anyio.create_task_group() as group:
        async with Runtime(driver, machines=manifest, executors=[asked.waiting(go_on)], grace=PATIENCE):
            await client.emit(Do("a", "x"))
            await asked.began.wait()

            async def lets_it_end() -> None:
                await settle(driver)
                go_on.set()

            group.start_soon(lets_it_end)
        assert len((await client.cell(one, "a")).inflight) == 0, "it was settled before the runtime was gone"
        async with Runtime(driver, machines=manifest, executors=[asked.by()]):
            await until_words(client, one, "a", "x", "ok ask@1: x")
    assert len(asked.ids) == 1


async def test_what_does_not_end_within_the_grace_is_taken_by_another(driver: Driver) -> None:
    one, hanging, working = told(asks), Asked(), Asked()
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest) as client:
        hangs = hanging.waiting(anyio.Event())
        async with Runtime(driver, machines=manifest, executors=[working.by()]) as other:
            async with Runtime(driver, machines=manifest, executors=[hangs], grace=0.01) as ends:
                while not hanging.ids:  # whoever takes the cell runs the effect
                    await ends.emit(Do(f"a{len(working.ids)}", "x"))
                    await settle(driver)
            (id,) = set(hanging.ids)
            await until(lambda: _is_in(id, working))
            key = working.intents[working.ids.index(id)].key
            await until_words(other, one, key, "x", "ok ask@1: x")
        assert dict((await client.cell(one, key)).inflight) == {}


class Holding:
    """A driver that holds the commit by which a worker takes an effect; nothing cancels that."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.began, self.go_on = anyio.Event(), anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def commit(self, batch: Batch) -> None:
        """Commit, later."""
        begin, end = all_executed()
        with anyio.CancelScope(shield=True):
            if any(isinstance(write, Set) and begin <= write.key < end for write in batch.writes):
                self.began.set()
                await self.go_on.wait()
            await self._driver.commit(batch)


@pytest.mark.parametrize("grace", [0.01, 5])
async def test_an_effect_that_is_being_taken_when_the_runtime_ends_is_done_or_given_back(
    driver: Driver, grace: float
) -> None:
    one, asked = told(asks), Asked()
    manifest = manifest_of(one)
    async with Runtime(driver, machines=manifest) as runtime:
        for key in "abc":
            await runtime.emit(Do(key, "x"))
            await until_cell(runtime, one, key, lambda cell: len(cell.inflight) == 1)
    holding = Holding(driver)
    store: Any = holding
    with anyio.fail_after(PATIENCE):
        async with (
            anyio.create_task_group() as group,
            Runtime(store, machines=manifest, executors=[asked.by()], grace=grace),
        ):
            await holding.began.wait()

            async def goes_on() -> None:
                await settle(driver)
                holding.go_on.set()

            group.start_soon(goes_on)
    assert not await driver.scan(*all_executed()), "nobody has it any more"
    assert len(asked.ids) <= 1, "nothing is taken once the runtime ends"
    async with Runtime(driver, machines=manifest, executors=[asked.by()]) as runtime:
        for key in "abc":
            await until_words(runtime, one, key, "x", "ok ask@1: x")


class Late:
    """A driver whose answer is late when a worker takes an effect: the store has it before the worker knows."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.committed, self.go_on = anyio.Event(), anyio.Event()
        self.looks = 0
        """How often somebody has looked who runs what."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def scan(self, begin: bytes, end: bytes, **options: Any) -> list[tuple[bytes, bytes]]:
        """Note who looks."""
        rows = await self._driver.scan(begin, end, **options)
        self.looks += (begin, end) == all_executed()
        return rows

    async def commit(self, batch: Batch) -> None:
        """Commit, and answer later."""
        await self._driver.commit(batch)
        begin, end = all_executed()
        if any(isinstance(write, Set) and begin <= write.key < end for write in batch.writes):
            self.committed.set()
            await self.go_on.wait()


@pytest.mark.parametrize("is_queued", [True, False])
async def test_an_effect_that_a_worker_is_about_to_have_is_not_given_back(driver: Driver, is_queued: bool) -> None:
    one, asked, clock = told(asks), Asked(), VirtualClock(quiet=0.05)
    manifest, late = manifest_of(one), Late(driver)
    store: Any = late

    async def has_looked() -> bool:
        clock.advance(60)
        return late.looks > looks + 1

    async with Client(driver, machines=manifest, clock=clock) as client:
        await client.emit(Do("a", "x"))
        if is_queued:
            async with Runtime(driver, machines=manifest, clock=clock):
                await until_cell(client, one, "a", lambda cell: len(cell.inflight) == 1)
        async with Runtime(store, machines=manifest, executors=[asked.by()], clock=clock):
            await late.committed.wait()
            looks = late.looks
            await until(has_looked)
            await settle(driver)
            kept = await driver.scan(*all_executed())
            late.go_on.set()
            assert len(kept) == 1
            await until_words(client, one, "a", "x", "ok ask@1: x")
    assert len(asked.ids) == 1


async def _is_in(id: str, asked: Asked) -> bool:
    return id in asked.ids
