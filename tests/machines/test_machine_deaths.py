"""What workers leave behind when they die, or when the store fails them, and who takes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from workflow_sdk import Client, DefinitionError, InstanceNotFoundError, Runtime, open_driver
from workflow_sdk.changes.claim import new_lease
from workflow_sdk.changes.decide import DEATHS_MAX
from workflow_sdk.client.watching import wait_idly
from workflow_sdk.driver import Batch, Clear, ClearRange, Driver
from workflow_sdk.machines import (
    CellStatus,
    EffectReceipt,
    Intent,
    MachineContext,
    Manifest,
    Transition,
    effect,
    event,
    executor,
    machine,
    route,
    timer,
)
from workflow_sdk.machines.rows import ACTIVE, ActiveRow, queue_of
from workflow_sdk.rows.keys import INBOX, InstanceKeys
from workflow_sdk.rows.location import pack
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock
from workflow_sdk.testing._cells_seen import ALL, Found, parts

pytestmark = pytest.mark.law(1, 10, 16, 21)


@event("deaths/Ring@1")
@dataclass(frozen=True)
class Ring:
    """Something to count."""

    word: str = ""


@dataclass(frozen=True)
class Rung:
    """How often that was."""

    times: int = 0


work = effect("deaths/work@1", params=str, receipt=str)


@machine("deaths/counter@1", state=Rung, event=Ring | EffectReceipt, effects=[work])
def counter(state: Rung | None, event: Any, ctx: MachineContext) -> Transition[Rung]:
    """Counts, and does what it is told."""
    after = Rung((state or Rung()).times + 1)
    match event:
        case Ring("done"):
            return Transition(after, done=True)
        case Ring("delete"):
            return Transition(None)
        case Ring("work"):
            return Transition(after, effects=[work("a"), work("b")])
        case _:
            return Transition(after)


rings = Manifest([counter], [route(Ring, counter)])
KEYS = InstanceKeys(counter.cell_id(None))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Give others their turns, until something holds."""
    with anyio.fail_after(10):
        while not await holds():
            await anyio.lowlevel.checkpoint()


async def has_rung(client: Client, times: int) -> bool:
    """Whether the counter is so far."""
    try:
        return bool((await client.cell(counter)).state == Rung(times))
    except InstanceNotFoundError:
        return False


def takes(number: int, batch: Batch) -> bool:
    """Whether a commit takes a message of the counter."""
    cleared = [write.key for write in batch.writes if isinstance(write, Clear)]
    return any(key.startswith(KEYS.space + INBOX) for key in cleared)


async def test_workers_that_die_again_and_again_make_no_cell_stuck_that_gets_on() -> None:
    clock = VirtualClock()
    async with aclosing(await open_driver("memory://")) as driver:
        for number in range(3):
            async with Client(driver, clock=clock, machines=rings) as client:
                await client.emit(Ring())
            for _ in range(DEATHS_MAX // 2):
                with suppress(SimulatedCrash, BaseExceptionGroup):
                    async with Runtime(FaultyDriver(driver, crash_before=takes), machines=rings, clock=clock):
                        await wait_idly(clock, anyio.Event(), clock.time() + 60)
            async with Runtime(driver, machines=rings, clock=clock) as runtime:
                await wait_idly(clock, anyio.Event(), clock.time() + 60)
                assert await has_rung(runtime, number + 1)


async def test_transitions_that_kill_worker_after_worker_make_the_cell_stuck() -> None:
    clock = VirtualClock()
    async with (
        aclosing(await open_driver("memory://")) as driver,
        Client(driver, clock=clock, machines=rings) as client,
    ):
        await client.emit(Ring())
        for _ in range(DEATHS_MAX + 1):
            with suppress(SimulatedCrash, BaseExceptionGroup):
                async with Runtime(FaultyDriver(driver, crash_before=takes), machines=rings, clock=clock):
                    await wait_idly(clock, anyio.Event(), clock.time() + 60)
        assert (await client.cell(counter)).status is CellStatus.STUCK


async def test_what_a_dead_worker_ran_is_run_again_though_nothing_else_happens() -> None:
    clock, begun = VirtualClock(quiet=0.05), list[str]()

    @executor(work)
    async def never_ends(params: str, intent: Intent) -> str:
        begun.append(intent.id)
        await anyio.sleep_forever()
        return "never"

    @executor(work)
    async def ends(params: str, intent: Intent) -> str:
        return params

    async with aclosing(await open_driver("memory://")) as driver:
        faulty = FaultyDriver(driver)
        with suppress(SimulatedCrash, BaseExceptionGroup):
            async with Runtime(faulty, machines=rings, executors=[never_ends], clock=clock) as runtime:
                await runtime.emit(Ring("work"))
                while len(begun) < 2:
                    await anyio.lowlevel.checkpoint()
                faulty.crash()
        async with Runtime(driver, machines=rings, executors=[ends], clock=clock) as runtime:
            # The clock comes to this only if nobody waits for the death of the other worker.
            await wait_idly(clock, anyio.Event(), clock.time() + 60)
            assert await has_rung(runtime, 3)


async def test_a_cell_that_could_not_be_given_back_is_claimed_again() -> None:
    clock, taken, fails = VirtualClock(), list[int](), list[int]()
    async with aclosing(await open_driver("memory://")) as driver:
        async with Client(driver, clock=clock, machines=rings) as client:
            for _ in range(2):
                await client.emit(Ring())

        def fail(number: int, batch: Batch) -> bool:
            if not taken and takes(number, batch):
                taken.append(number)
                # It is evicted with one message taken and one in memory.
                runtime._residents.evict_one(KEYS.instance_id)  # pyright: ignore[reportPrivateUsage]
            elif taken and not fails and Clear(KEYS.lease) in batch.writes:
                fails.append(number)
                return True
            return False

        runtime = Runtime(FaultyDriver(driver, fail_at=fail), machines=rings, clock=clock)
        async with runtime:
            await wait_idly(clock, anyio.Event(), clock.time() + 60)
            assert (len(taken), len(fails)) == (1, 1)
            assert await has_rung(runtime, 2)


async def left_over(driver: Any) -> list[Any]:
    """Frames, and messages of cells."""
    keys = [parts(key) for key, _ in await driver.scan(*ALL)]
    return [key for key in keys if key[:2] == (17, 5) or (key[0] == 1 and key[2] == 3)]


@pytest.mark.parametrize("word", ["done", "delete"])
async def test_nothing_is_left_of_receipts_that_come_when_nobody_waits_for_them(word: str) -> None:
    clock, may_end = VirtualClock(quiet=0.05), anyio.Event()

    @executor(work)
    async def sends(params: str, intent: Intent) -> str:
        await intent.send(params)
        await may_end.wait()
        return params

    async with aclosing(await open_driver("memory://")) as driver:
        async with Runtime(driver, machines=rings, executors=[sends], clock=clock) as runtime:
            await runtime.emit(Ring("work"))
            while len(await left_over(driver)) < 2:
                await anyio.lowlevel.checkpoint()
            await runtime.emit(Ring(word))
            # To a cell that was deleted, this comes as the first message of the next one.
            await runtime.emit(Ring())
            may_end.set()
            await wait_idly(clock, anyio.Event(), clock.time() + 60)
            assert not Found.among(await driver.scan(*ALL)).intents
        assert await left_over(driver) == []


async def test_what_has_come_before_the_end_of_a_cell_goes_with_it() -> None:
    async with aclosing(await open_driver("memory://")) as driver:
        async with Client(driver, machines=rings) as client:
            for word in ("work", "done", "late", "later"):
                await client.emit(Ring(word))

        @executor(work)
        async def sends(params: str, intent: Intent) -> str:
            await intent.send(params)
            return params

        async with Runtime(driver, machines=rings, executors=[sends], clock=VirtualClock()) as runtime:
            await until(lambda: is_over(runtime, driver))
        assert await left_over(driver) == []


async def is_over(client: Client, driver: Any) -> bool:
    """Whether the counter is completed, and all it has asked for settled."""
    found = Found.among(await driver.scan(*ALL))
    return (await client.cell(counter)).status is CellStatus.COMPLETED and not found.intents


@machine("deaths/waiter@1", state=Rung, event=Ring | EffectReceipt, effects=[timer])
def waiter(state: Rung | None, event: Any, ctx: MachineContext) -> Transition[Rung]:
    """Waits for a minute."""
    return Transition(Rung((state or Rung()).times + 1), effects=[timer(after=60)] if state is None else [])


@pytest.mark.law(20)
async def test_a_timer_runs_from_the_transition_that_asked_for_it_and_not_from_its_event() -> None:
    clock, waits = VirtualClock(), Manifest([waiter], [route(Ring, waiter)])
    async with aclosing(await open_driver("memory://")) as driver:
        async with Client(driver, clock=clock, machines=waits) as client:
            await client.emit(Ring())
        clock.advance(1000)
        async with Runtime(driver, machines=waits, clock=clock) as runtime:
            await wait_idly(clock, anyio.Event(), clock.time() + 59)
            assert (await runtime.cell(waiter)).state == Rung(1)
            await wait_idly(clock, anyio.Event(), clock.time() + 2)
            assert (await runtime.cell(waiter)).state == Rung(2)


async def test_under_another_manifest_no_transition_is_stored() -> None:
    clock, may_end = VirtualClock(quiet=0.05), anyio.Event()

    @executor(work)
    async def waits(params: str, intent: Intent) -> str:
        await may_end.wait()
        return params

    async with aclosing(await open_driver("memory://")) as driver:
        async with Runtime(driver, machines=rings, executors=[waits], clock=clock) as runtime:
            await runtime.emit(Ring("work"))
            await until(lambda: has_rung(runtime, 1))
            batch, raw = Batch(), await driver.get(ACTIVE)
            assert raw is not None
            batch.set(ACTIVE, replace(ActiveRow.unpack(raw), hash="another").pack())
            await driver.commit(batch)
            may_end.set()
            await wait_idly(clock, anyio.Event(), clock.time() + 60)
            assert await has_rung(runtime, 1)
            assert Found.among(await driver.scan(*ALL)).queued[KEYS.instance_id] == 2, "the receipts wait"
            with pytest.raises(DefinitionError, match="another manifest"):
                await runtime.emit(Ring())
        batch = Batch()
        batch.set(ACTIVE, raw)
        await driver.commit(batch)
        async with Runtime(driver, machines=rings, executors=[waits], clock=clock) as runtime:
            await wait_idly(clock, anyio.Event(), clock.time() + 60)
            assert await has_rung(runtime, 3)


@pytest.mark.law(17)
async def test_a_place_in_a_queue_at_which_nothing_waits_is_cleared_and_makes_nobody_run_hot() -> None:
    clock = VirtualClock()
    async with aclosing(await open_driver("memory://")) as driver:
        batch = Batch()
        for effect_name in (timer.name, work.name):
            batch.set(queue_of(effect_name) + pack((1.0, "nobody's")), b"")
        await driver.commit(batch)

        @executor(work)
        async def does(params: str, intent: Intent) -> str:
            return params

        async with Runtime(driver, machines=rings, executors=[does], clock=clock):
            await wait_idly(clock, anyio.Event(), clock.time() + 60)
        assert [key for key, _ in await driver.scan(*ALL) if parts(key)[:2] == (17, 2)] == []


class Interrupted:
    """A driver before which something happens, once: when such a commit comes."""

    def __init__(
        self, driver: Driver, when: Callable[[int, Batch], bool], happens: Callable[[], Awaitable[Any]]
    ) -> None:
        self._driver = driver
        self._when = when
        self._happens: Callable[[], Awaitable[Any]] | None = happens

    async def commit(self, batch: Batch, /) -> None:
        happens = self._happens if self._when(0, batch) else None
        if happens is not None:
            self._happens = None
            await happens()
        await self._driver.commit(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


def deletes(number: int, batch: Batch) -> bool:
    """Whether a commit deletes the counter."""
    return ClearRange(*KEYS.all()) in batch.writes


async def test_what_comes_while_a_cell_is_deleted_begins_it_again() -> None:
    clock = VirtualClock()
    async with (
        aclosing(await open_driver("memory://")) as driver,
        Client(driver, clock=clock, machines=rings) as client,
    ):
        interrupted: Any = Interrupted(driver, deletes, lambda: client.emit(Ring("late")))
        async with Runtime(interrupted, machines=rings, clock=clock) as runtime:
            await runtime.emit(Ring("delete"))
            await wait_idly(clock, anyio.Event(), clock.time() + 60)
            found = await runtime.cell(counter)
        assert (found.state, found.last_sequence) == (Rung(1), 2)


async def test_who_has_lost_a_cell_takes_nothing_of_it_any_more() -> None:
    clock = VirtualClock()
    async with aclosing(await open_driver("memory://")) as driver:

        async def taken_over() -> None:
            batch = Batch()
            batch.set(KEYS.lease, new_lease("another worker", 10.0).pack())
            await driver.commit(batch)

        interrupted: Any = Interrupted(driver, takes, taken_over)
        async with Runtime(interrupted, machines=rings, clock=clock) as runtime:
            await runtime.emit(Ring())
            await wait_idly(clock, anyio.Event(), clock.time() + 1)
            assert not await has_rung(runtime, 1)
            assert Found.among(await driver.scan(*ALL)).queued[KEYS.instance_id] == 1
