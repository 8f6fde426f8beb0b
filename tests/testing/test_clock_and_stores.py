"""A virtual clock stands still while a store owes an answer, and until everybody has heard of what was committed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from tests.patience import PATIENCE
from tests.support import open_store
from tests.testing.slow_store import HeldDriver, SlowDriver, slow_stores
from workflow_drivers.memory import MemoryDriver
from workflow_sdk import (
    Batch,
    Client,
    Context,
    Driver,
    Runtime,
    Status,
    StepTimeoutError,
    StorageError,
    Workflow,
    run_workflow,
    send_message,
    workflow,
)
from workflow_sdk.driver import Transacting
from workflow_sdk.instance.clock import Activity
from workflow_sdk.rows.keys import WorkerKeys, last_of
from workflow_sdk.testing import FaultyDriver, VirtualClock
from workflow_sdk.testing.clock import IDLE_TURNS, LOOKS_MAX, REST_SECONDS

HOUR = 3600
QUIET = 0.005
"""Less than a slow store takes for most answers."""


@pytest.fixture(params=["memory", "sqlite", "fdb"])
def store(request: pytest.FixtureRequest) -> str:
    """A kind of store."""
    return str(request.param)


@workflow
async def naps(ctx: Context, seconds: float) -> float:
    """How long it has slept."""
    began = ctx.now()
    await ctx.sleep("nap", seconds)
    return (ctx.now() - began).total_seconds()


@workflow
async def listens(ctx: Context) -> Any:
    return await ctx.listen("m", timeout=HOUR, default="nothing came")


# On stores that take a random time for everything.


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.deep), pytest.param(2, marks=pytest.mark.deep)])
async def test_messages_that_are_sent_before_a_deadline_come_before_it(store: str, seed: int, tmp_path: Path) -> None:
    clock, rounds = VirtualClock(quiet=QUIET), 3
    async with slow_stores(store, tmp_path, 3, seed) as (one, other, third):

        async def send(to: str) -> None:
            await send_message(third, to, "ball", clock=clock)

        @workflow
        async def serves(ctx: Context) -> float:
            began = ctx.now()
            for ball in range(rounds):
                await ctx.step(f"throw {ball}", send, "returns", timeout=HOUR)
                await ctx.listen(f"catch {ball}", "ball", timeout=HOUR)
            return (ctx.now() - began).total_seconds()

        @workflow
        async def returns(ctx: Context) -> None:
            for ball in range(rounds):
                await ctx.listen(f"catch {ball}", "ball")
                await ctx.step(f"throw {ball}", send, "serves", timeout=HOUR)

        flows: list[Workflow[Any, Any]] = [serves, returns, naps]
        async with (
            Runtime(one, workflows=flows, clock=clock) as here,
            Runtime(other, workflows=flows, clock=clock) as there,
        ):
            with anyio.fail_after(PATIENCE):
                await there.start(returns, id="returns")
                assert await (await here.start(serves, id="serves")).result() < HOUR / 2
                assert await here.run(naps, 24 * HOUR) >= 24 * HOUR


async def test_a_message_sent_at_once_wins_against_a_deadline(store: str, tmp_path: Path) -> None:
    clock = VirtualClock(quiet=QUIET)
    async with (
        slow_stores(store, tmp_path, 2) as (one, other),
        Runtime(one, workflows=[listens], clock=clock) as runtime,
        Client(other, clock=clock) as client,
    ):
        with anyio.fail_after(PATIENCE):
            began = clock.time()
            handle = await runtime.start(listens, id="1")
            await client.handle(listens, "1").send("m", "here")
            assert await handle.result() == "here"
            assert clock.time() - began < HOUR
            assert await runtime.run(listens) == "nothing came"


async def test_runs_that_stand_alone_hear_of_each_other_in_time(store: str, tmp_path: Path) -> None:
    clock = VirtualClock(quiet=QUIET)
    async with slow_stores(store, tmp_path, 2) as (one, other):

        async def send() -> None:
            await send_message(one, "listens", "m", "here", clock=clock)

        @workflow
        async def tells(ctx: Context) -> None:
            await ctx.step("tell", send)
            await ctx.sleep("nap", 24 * HOUR)

        results: list[Any] = []

        async def run() -> None:
            result = await run_workflow(listens, driver=one, instance_id="listens", mode="live", clock=clock)
            results.append(result.output)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                while await one.driver.scan(b"", b"\xff", limit=1) == []:  # noqa: ASYNC110  # any handle may write it
                    await anyio.sleep(0.001)
                await run_workflow(tells, driver=other, mode="live", clock=clock)
        assert results == ["here"]


async def test_a_child_on_another_runtime_ends_before_a_deadline(store: str, tmp_path: Path) -> None:
    clock = VirtualClock(quiet=QUIET)

    @workflow
    async def child(ctx: Context, number: int) -> int:
        return number

    async def one_child(ctx: Context, number: int) -> int:
        return await ctx.child("child", child, number)

    async def children(ctx: Context) -> list[int]:
        return await ctx.map("children", one_child, [1, 2, 3])

    async def deadline(ctx: Context) -> list[int]:
        await ctx.sleep("deadline", HOUR)
        return []

    @workflow
    async def parent(ctx: Context) -> list[int]:
        return (await ctx.race("first", {"children": children, "deadline": deadline})).value

    async with (
        slow_stores(store, tmp_path, 2) as (one, other),
        Runtime(one, workflows=[parent], clock=clock) as runtime,
        Runtime(other, workflows=[child], clock=clock),
    ):
        with anyio.fail_after(PATIENCE):
            assert await runtime.run(parent) == [1, 2, 3]


async def test_a_step_does_not_time_out_while_the_store_is_slow() -> None:
    """The step waits for the store, or beside it somebody else does: it is quiet for long in real time."""
    driver = FaultyDriver(MemoryDriver(), latency=20 * QUIET)
    clock = VirtualClock(quiet=QUIET)
    sent = anyio.Event()

    async def send() -> str:
        for _ in range(2):
            await send_message(driver, "nobody", "m", clock=clock)
        sent.set()
        return "sent"

    async def hear() -> str:
        await sent.wait()
        return "heard"

    @workflow
    async def nobody(ctx: Context) -> None:
        await ctx.listen("m")

    async def sends(ctx: Context) -> str:
        return await ctx.step("send", send, timeout=HOUR)

    async def hears(ctx: Context) -> str:
        return await ctx.step("hear", hear, timeout=HOUR)

    @workflow
    async def both(ctx: Context) -> list[str]:
        return list((await ctx.join("both", {"sends": sends, "hears": hears})).values())

    await run_workflow(nobody, driver=driver, instance_id="nobody", clock=clock)
    began = clock.time()
    result = await run_workflow(both, driver=driver, clock=clock)
    assert (result.status, result.output) == (Status.COMPLETED, ["sent", "heard"])
    assert clock.time() - began < HOUR


async def test_a_step_that_hangs_times_out_beside_a_slow_store() -> None:
    """To be asked for something again and again does not keep the clock from jumping in the end."""
    driver = SlowDriver(MemoryDriver())
    clock = VirtualClock(quiet=QUIET)

    @workflow
    async def hangs(ctx: Context) -> str:
        try:
            await ctx.step("hangs", anyio.sleep_forever, timeout=HOUR)
        except StepTimeoutError:
            return "timed out"
        return "no timeout"

    async with Runtime(driver, workflows=[hangs], clock=clock) as runtime:
        handle = await runtime.start(hangs)
        with anyio.fail_after(PATIENCE):
            while (await handle.info()).status is not Status.COMPLETED:
                await clock.oversee(driver).get(b"k")
                await anyio.sleep(0.003)
        assert await handle.result() == "timed out"


# What the clock waits for.


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[str]]:
    """Waits until the clock has said what it waits for."""
    heard = anyio.Event()
    lines: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert record.levelno == logging.WARNING
            lines.append(record.getMessage())
            heard.set()

    log = logging.getLogger("workflow_sdk.testing")
    monkeypatch.setattr(log, "handlers", [Ear()])
    monkeypatch.setattr("workflow_sdk.testing.drivers.PATIENT_SECONDS", 0.2)

    async def wait() -> str:
        with anyio.fail_after(PATIENCE):
            await heard.wait()
        assert len(lines) == 1
        return lines[0]

    return wait


def nothing() -> Activity:
    return Activity.NONE


async def test_a_store_that_does_not_answer_is_waited_for(told: Callable[[], Awaitable[str]]) -> None:
    clock, driver = VirtualClock(quiet=QUIET), HeldDriver(MemoryDriver(), answers=True)
    began = clock.time()
    async with anyio.create_task_group() as group:
        group.start_soon(clock.oversee(driver).get, b"k")
        group.start_soon(clock.wait, anyio.Event(), began + HOUR, nothing)
        assert "get has taken 0.2" in await told()
        assert clock.time() == began
        driver.answers.set()
    assert clock.time() == began + HOUR


async def test_word_of_a_commit_is_waited_for(told: Callable[[], Awaitable[str]]) -> None:
    clock, driver = VirtualClock(quiet=QUIET), HeldDriver(MemoryDriver(), word=True)
    began = clock.time()
    heard: list[float] = []
    overseen = clock.oversee(driver)

    async def watch() -> None:
        await overseen.changed(b"k", None)
        heard.append(clock.time())

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await anyio.lowlevel.checkpoint()
        await overseen.commit(put(b"k", b"1"))
        group.start_soon(clock.wait, anyio.Event(), began + HOUR, nothing)
        assert "word of a change of b'k'" in await told()
        assert (heard, clock.time()) == ([], began)
        driver.word.set()
    assert (heard, clock.time()) == ([began], began + HOUR)


async def test_what_somebody_else_has_committed_before_the_watch_is_waited_for() -> None:
    """What the one who watches has seen may be old by then."""
    clock, inner = VirtualClock(quiet=QUIET), MemoryDriver()
    driver = HeldDriver(inner, word=True)
    began = clock.time()
    heard: list[float] = []

    async def watch() -> None:
        await clock.oversee(driver).changed(b"k", None)
        heard.append(clock.time())

    await inner.commit(put(b"k", b"1"))
    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        group.start_soon(clock.wait, anyio.Event(), began + HOUR, nothing)
        for _ in range(10 * IDLE_TURNS):
            await anyio.lowlevel.checkpoint()
        assert (heard, clock.time()) == ([], began)
        driver.word.set()
    assert (heard, clock.time()) == ([began], began + HOUR)


async def test_a_watch_of_what_does_not_change_is_not_waited_for() -> None:
    clock, inner = VirtualClock(quiet=QUIET), MemoryDriver()
    began = clock.time()
    driver = clock.oversee(inner)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(driver.changed, b"k", None)
            for hours in (1, 2):
                await driver.commit(put(b"other", b"1"))
                await clock.wait(anyio.Event(), began + hours * HOUR, nothing)
            group.cancel_scope.cancel()
    assert clock.time() == began + 2 * HOUR


async def test_a_value_that_is_again_what_it_was_is_not_waited_for() -> None:
    """There is no word of it to come."""
    clock, driver = VirtualClock(quiet=QUIET), HeldDriver(MemoryDriver(), word=True)
    began = clock.time()
    overseen = clock.oversee(driver)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(overseen.changed, b"k", None)
            await anyio.lowlevel.checkpoint()
            await overseen.commit(put(b"k", b"1"))
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(clock.wait, anyio.Event(), began + HOUR, nothing)
                for _ in range(10 * IDLE_TURNS):
                    await anyio.lowlevel.checkpoint()
                assert clock.time() == began
                batch = Batch()
                batch.clear(b"k")
                await overseen.commit(batch)
            group.cancel_scope.cancel()
    assert clock.time() == began + HOUR


@pytest.mark.parametrize("write", ["set", "append", "clear", "clear range"])
async def test_every_kind_of_write_is_noticed(write: str) -> None:
    clock, driver = VirtualClock(quiet=QUIET), HeldDriver(MemoryDriver(), word=True)
    overseen = clock.oversee(driver)
    await overseen.commit(put(b"k", b"1"))
    key, since = (b"k" + b"\x33" + (1).to_bytes(12, "big"), None) if write == "append" else (b"k", b"1")
    batch = Batch()
    if write == "set":
        batch.set(b"k", b"2")
    elif write == "append":
        batch.append(b"k", b"2")
    elif write == "clear":
        batch.clear(b"k")
    else:
        batch.clear_range(b"j", b"l")
    began = clock.time()
    async with anyio.create_task_group() as group:
        group.start_soon(overseen.changed, key, since)
        await clock.wait(anyio.Event(), began + HOUR, nothing)
        await overseen.commit(batch)
        group.start_soon(clock.wait, anyio.Event(), began + 2 * HOUR, nothing)
        for _ in range(10 * IDLE_TURNS):
            await anyio.lowlevel.checkpoint()
        assert clock.time() == began + HOUR
        driver.word.set()
    assert clock.time() == began + 2 * HOUR


def put(key: bytes, value: bytes) -> Batch:
    batch = Batch()
    batch.set(key, value)
    return batch


async def test_a_wait_ends_when_it_is_told_to_although_the_store_does_not_answer() -> None:
    clock, driver, told = VirtualClock(quiet=QUIET), HeldDriver(MemoryDriver(), answers=True, word=True), anyio.Event()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(clock.oversee(driver).changed, b"k", None)
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(clock.wait, told, clock.time() + HOUR, nothing)
                for _ in range(10 * IDLE_TURNS):
                    await anyio.lowlevel.checkpoint()
                told.set()
            group.cancel_scope.cancel()


async def test_a_store_that_fails_is_not_waited_for() -> None:
    clock, inner = VirtualClock(quiet=QUIET), MemoryDriver()
    faulty = FaultyDriver(HeldDriver(inner, word=True))
    began = clock.time()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(clock.oversee(faulty).changed, b"k", None)
            await anyio.lowlevel.checkpoint()
            faulty.crashed = True
            await clock.wait(anyio.Event(), began + HOUR, nothing)
            group.cancel_scope.cancel()
    assert clock.time() == began + HOUR


async def test_a_function_in_a_transaction_takes_time_as_on_the_wall(tmp_path: Path) -> None:
    """It is the author's code that works there, and not the store. What comes of it is the store's business again."""
    clock, go_on, activity = VirtualClock(), threading.Event(), [Activity.THREAD]
    driver = await open_store("sqlite", tmp_path)
    began, heard = clock.time(), list[float]()

    async def watch() -> None:
        await clock.oversee(driver).changed(b"k", None)
        heard.append(clock.time())

    async def transact() -> None:
        transacting = cast("Transacting", clock.oversee(driver))
        await transacting.transact(lambda connection: go_on.wait(PATIENCE), lambda value: put(b"k", b"1"))
        activity[0] = Activity.NONE

    try:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                group.start_soon(transact)
                await clock.wait(anyio.Event(), began + 0.1, lambda: activity[0])
                assert began + 0.1 <= clock.time() < began + PATIENCE
                go_on.set()
                await clock.wait(anyio.Event(), began + HOUR, lambda: activity[0])
        assert heard[0] < clock.time() == began + HOUR
    finally:
        go_on.set()
        await driver.aclose()


# Who is alive.


class Seen:
    """Looks at every heartbeat as soon as it is stored: whether the clock knows that worker to be alive."""

    def __init__(self, driver: Driver, clock: VirtualClock) -> None:
        self.driver = driver
        self.clock = clock
        self.alive: list[bool] = []

    async def commit(self, batch: Batch, /) -> None:
        """Apply the batch, and look."""
        await self.driver.commit(batch)
        heartbeats = await self.driver.scan(*WorkerKeys.heartbeats())
        self.alive += [self.clock.is_alive(last_of(key)) for key, _ in heartbeats]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)


async def test_who_has_a_heartbeat_is_known_to_be_alive() -> None:
    """Else others would have the clock jump to where its lease would run out."""
    clock = VirtualClock()
    driver: Any = Seen(MemoryDriver(), clock)
    async with Runtime(driver, workflows=[naps], clock=clock) as runtime:
        assert await runtime.run(naps, HOUR) == HOUR
    assert driver.alive
    await run_workflow(naps, 1, driver=driver, clock=clock)
    await run_workflow(naps, 1, driver=driver, clock=clock, mode="live")
    assert all(driver.alive)


async def test_a_clock_does_not_wait_for_those_who_only_look() -> None:
    """They may look again at once, and do so until something has happened."""
    clock, driver = VirtualClock(quiet=QUIET), SlowDriver(MemoryDriver())
    async with Runtime(driver, workflows=[naps], clock=clock) as runtime, Client(driver, clock=clock) as client:
        with anyio.fail_after(PATIENCE):
            handle = await runtime.start(naps, HOUR, id="1")
            while (await client.handle(naps, "1").info()).status is not Status.COMPLETED:
                await anyio.lowlevel.checkpoint()
            while not (await client.list(status="completed")).items:
                await anyio.lowlevel.checkpoint()
            assert await handle.result() == HOUR


# What fails again and again.


async def test_tasks_that_fail_again_and_again_do_not_keep_the_processor_busy(
    told: Callable[[], Awaitable[str]],
) -> None:
    """The pauses before their next tries are times on the clock, which take none."""

    class Deaf(FaultyDriver):
        is_deaf, failures = False, 0

        async def changed(self, key: bytes, since: bytes | None, /) -> None:
            if self.is_deaf:
                self.failures += 1
                raise StorageError("nobody hears of changes")
            await super().changed(key, since)

    clock, driver = VirtualClock(), Deaf(MemoryDriver())
    async with Runtime(driver, workflows=[listens], clock=clock) as runtime:
        await runtime.start(listens, id="1")
        driver.is_deaf = True
        await send_message(driver.driver, "1", "m", "here")
        assert "fails again and again" in await told()
        before = driver.failures
        await anyio.sleep(10 * REST_SECONDS)
        assert driver.failures - before < 300, "it would be thousands: every loop of the runtime fails after each jump"
        driver.is_deaf = False
        with anyio.fail_after(PATIENCE):
            assert await runtime.run(listens) == "nothing came"


async def test_a_clock_that_looks_in_vain_slows_down_and_says_so(told: Callable[[], Awaitable[str]]) -> None:
    clock = VirtualClock()
    for _ in range(LOOKS_MAX):
        await clock.wait(anyio.Event(), clock.time() + 1, nothing)
    began = time.monotonic()
    for _ in range(5):
        await clock.wait(anyio.Event(), clock.time() + 1, nothing)
    assert time.monotonic() - began >= 4 * REST_SECONDS
    assert "fails again and again" in await told()


async def test_a_clock_on_which_something_is_committed_does_not_slow_down(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    driver = clock.oversee(MemoryDriver())
    for _ in range(2 * LOOKS_MAX):
        await driver.commit(put(b"k", b"1"))
        await clock.wait(anyio.Event(), clock.time() + 1, nothing)
    assert caplog.messages == []


async def test_a_clock_looks_seldom_at_a_task_that_never_sleeps() -> None:
    """It stands still, since there is always somebody who has something to do."""
    clock, looks = VirtualClock(), count()
    faulty = FaultyDriver(MemoryDriver(), fail_at=1.0)
    began = clock.time()

    def look() -> Activity:
        next(looks)
        return Activity.NONE

    async def fails() -> None:
        while True:
            with suppress(StorageError):
                await clock.oversee(faulty).commit(Batch())
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(fails)
        group.start_soon(clock.wait, anyio.Event(), began + HOUR, look)
        await anyio.sleep(1)
        group.cancel_scope.cancel()
    assert clock.time() == began
    assert next(looks) < 3 * (LOOKS_MAX + 1 / REST_SECONDS)
