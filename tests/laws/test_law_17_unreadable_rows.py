"""Law 17: a row that can't be read makes one instance stuck. Everybody else is served, and nobody runs hot for it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.laws.counting_driver import rows_of
from tests.patience import PATIENCE
from tests.runtime.counting import Counting
from tests.runtime.parts import doubles, until_status
from tests.runtime.shifted import ByHand
from tests.support import World
from workflow_sdk import (
    Batch,
    Break,
    Client,
    CodecError,
    Context,
    Continue,
    Driver,
    Runtime,
    Status,
    Workflow,
    open_driver,
    workflow,
)
from workflow_sdk.changes.workers import Heartbeat, SignalRow
from workflow_sdk.features.schedules.rows import SCHEDULES, SCHEDULES_DUE
from workflow_sdk.rows.keys import (
    ALARMS,
    CHANGES,
    CLEANUPS,
    COMPENSATIONS,
    FIELDS,
    HISTORY,
    INBOX,
    NAMES,
    OUTSIDE,
    PURGES,
    ROOT,
    TAKINGS,
    TASKS,
    Field,
    InstanceKeys,
    WorkerKeys,
    all_by_status,
    last_of,
)
from workflow_sdk.rows.location import pack, subtree, unpack
from workflow_sdk.rows.wire import pack_record
from workflow_sdk.worker.claims import RETRY_SECONDS

DAMAGED = b"\xff\xfe not a record"
KEYS = InstanceKeys("bad")
TTL = 9.0


async def undo(value: Any) -> None:
    """Undoes a step."""


@workflow
async def child(ctx: Context) -> Any:
    """Waits."""
    return await ctx.listen("end")


@workflow
async def listens(ctx: Context) -> Any:
    """Something of everything, and a wait for a message."""
    ctx.state = {"stage": "new"}
    ctx.reference = "bad"
    await ctx.step("first", doubled, 1, rollback=undo)

    async def turn(ctx: Context, state: int) -> Continue[int] | Break[int]:
        ctx.state["turn"] = state
        await ctx.step("in a turn", doubled, state)
        return Continue(state + 1) if state < 3 else Break(state)

    await ctx.loop("loop", turn, 0, commit_interval=2)

    async def takes(ctx: Context) -> Any:
        await ctx.listen("one")
        return await ctx.listen("two", "m")

    async def has_child(ctx: Context) -> Any:
        return await ctx.child("child", child, id="child")

    async def has_task(ctx: Context) -> Any:
        return await ctx.task("task")

    async def open_loop(ctx: Context) -> Any:
        async def never(ctx: Context, state: int) -> Continue[int]:
            if state > 4:
                await ctx.listen("never")
            return Continue(state + 1)

        return await ctx.loop("open", never, 0, commit_interval=2)

    branches = {"takes": takes, "child": has_child, "task": has_task, "loop": open_loop}
    won = await ctx.race("race", branches)
    return won.value


async def doubled(number: int) -> int:
    """A step."""
    return 2 * number


FLOWS: list[Workflow[Any, Any]] = [listens, child, doubles]


async def put(driver: Driver, key: bytes, value: bytes | None) -> None:
    """Write one row."""
    batch = Batch()
    if value is None:
        batch.clear(key)
    else:
        batch.set(key, value)
    await driver.commit(batch)


async def populated() -> dict[bytes, bytes]:
    """The rows of a store with something of everything, and the instance in it due."""
    driver = await open_driver("memory://")
    counting = Counting(driver)
    async with Runtime(counting, workflows=FLOWS) as runtime:
        handle = await runtime.start(listens, id="bad")
        await handle.send("one", 1, key="a key")
        await until_status(handle, Status.WAITING)
        await counting.until_quiet()
        await runtime.schedule("schedule", doubles, 1, every=3600 * 24 * 365)
    async with Client(driver) as client:
        # The message that it waits for, and one that nobody does.
        await client.handle(listens, "bad").send("other", 1)
        await client.handle(listens, "bad").send("m", 1)
    dead = WorkerKeys("dead")
    batch = Batch()
    batch.set(dead.heartbeat, Heartbeat(time.time() - 1, 1.0, 1).pack())
    batch.set(dead.stamp, b"x")
    batch.append(dead.signals, SignalRow("bad").pack())
    await driver.commit(batch)
    return dict(await rows_of(driver))


async def store_of(rows: dict[bytes, bytes]) -> Driver:
    """A store with these rows."""
    driver = await open_driver("memory://")
    batch = Batch()
    for key, raw in rows.items():
        batch.set(key, raw)
    await driver.commit(batch)
    return driver


class Trial:
    """One store, a worker on it, and its clock."""

    def __init__(self, driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
        self.driver = driver
        self.caplog = caplog
        self.counting = Counting(driver)
        self.clock = ByHand()
        self.runtime = Runtime(self.counting, workflows=FLOWS, clock=self.clock, lease_ttl=TTL)

    async def status(self) -> Status | None:
        """Of the instance; None if that can't be read."""
        async with Client(self.driver) as client:
            try:
                info = await client.handle(listens, "bad").info()
            except CodecError:
                return None
            if info.status is Status.STUCK:
                assert info.error is not None
                assert info.error.kind == "consistency"
                assert "can't be read" in info.error.message
            return info.status

    async def check_calm(self) -> None:
        """Others are served; and after a while, nobody does anything about what can't be read."""
        assert await self.runtime.run(doubles, 21) == 42
        await self.later(3)
        assert (await (await self.runtime.start(doubles, 4)).result(timeout=PATIENCE)) == 8
        calls, said = await self.cost_of_waiting()
        assert said <= 1
        assert calls <= 8 * (self.quiet + 4), "it is tried again and again"

    quiet = 0
    """How many calls a worker makes in a second in which nothing happens, and looks for what was left."""

    async def later(self, seconds: int) -> None:
        """So much later, and everything done that is to be done then."""
        for _ in range(seconds):
            self.clock.offset += RETRY_SECONDS
            await self.counting.until_quiet()

    async def cost_of_waiting(self) -> tuple[int, int]:
        """How many calls are made in a while, and how many lines are written."""
        calls, said = self.counting.calls, len(self.caplog.records)
        await self.later(8)
        return self.counting.calls - calls, len(self.caplog.records) - said


async def cost_of_quiet(caplog: pytest.LogCaptureFixture) -> int:
    """What it costs to look at a store in which all can be read."""
    trial = Trial(await store_of(await populated()), caplog)
    async with trial.runtime:
        await trial.later(3)
        assert await trial.status() is Status.COMPLETED
        calls, said = await trial.cost_of_waiting()
        assert said == 0
    return calls // 8 + 1


async def check_damaged(rows: dict[bytes, bytes], key: bytes, raw: bytes, quiet: int, caplog: Any) -> Status | None:
    """What comes of an instance of which a row is damaged. Others are served, and when it is mended, it goes on."""
    caplog.clear()
    trial = Trial(await store_of({**rows, key: raw}), caplog)
    trial.quiet = quiet
    async with trial.runtime:
        await trial.check_calm()
        found = await trial.status()
        if found is Status.COMPLETED or key not in rows:
            return found
        # Nothing is lost: once the row is as it was, it goes on.
        await put(trial.driver, key, rows[key])
        async with Client(trial.driver) as client:
            handle = client.handle(listens, "bad")
            if found is Status.STUCK:
                await handle.recover()
            await trial.later(2)
            assert await handle.result(timeout=PATIENCE) == 1
    return found


async def test_every_row_of_a_store_damaged_in_turn(caplog: pytest.LogCaptureFixture) -> None:
    quiet = await cost_of_quiet(caplog)
    rows = await populated()
    found: dict[bytes, Status | None] = {}
    for key in rows:
        try:
            found[key] = await check_damaged(rows, key, DAMAGED, quiet, caplog)
        except BaseException as error:
            error.add_note(f"with the row {unpack(key[len(ROOT) :])} damaged")
            raise
    # What holds the instance itself up makes it stuck; where it can't be said that it is, it is left alone.
    stuck = {key for key, status in found.items() if status is Status.STUCK}
    for part in (NAMES, HISTORY, INBOX, TAKINGS, OUTSIDE, CHANGES):
        assert any(key.startswith(KEYS.space + part) for key in stuck)
    assert {key for key, status in found.items() if status is None} == {
        key for key in found if key.startswith(KEYS.space + FIELDS) and not key.startswith(KEYS.stamp)
    }
    assert all(key.startswith(KEYS.space) for key, status in found.items() if status is not Status.COMPLETED)


async def test_keys_that_nothing_here_has_written(caplog: pytest.LogCaptureFixture) -> None:
    """They are in nobody's way."""
    quiet = await cost_of_quiet(caplog)
    rows = await populated()
    places = (*ALARMS, *PURGES, CLEANUPS, SCHEDULES, SCHEDULES_DUE, TASKS, all_by_status(Status.STUCK.value)[0])
    for place in (*places, WorkerKeys("dead").signals):
        for end in (pack((1,)), pack((1.0, b"x")), b"\x02no end"):
            try:
                await check_damaged(rows, place + end, DAMAGED, quiet, caplog)
            except BaseException as error:
                error.add_note(f"with the key {place + end!r}")
                raise


@pytest.mark.parametrize("raw", [DAMAGED, pack_record([]), pack_record([1]), pack_record([["bad"]])])
async def test_a_signal_to_a_living_worker(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Those after it are read; and since it may have been for any instance, all look."""
    driver = await open_driver("memory://")
    trial = Trial(driver, caplog)
    async with trial.runtime as runtime, Client(driver) as client:
        handle = await runtime.start(child, id="waits")
        await until_status(handle, Status.WAITING)
        ((heartbeat, _),) = await driver.scan(*WorkerKeys.heartbeats())
        worker = WorkerKeys(last_of(heartbeat))
        batch = Batch()
        batch.append(worker.signals, raw)
        await driver.commit(batch)
        await client.handle(child, "waits").send("end", "end")
        assert await handle.result(timeout=PATIENCE) == "end"
        await trial.counting.until_quiet()
    assert await driver.scan(*subtree(worker.signals)) == []


async def test_the_heartbeat_of_a_living_worker(caplog: pytest.LogCaptureFixture) -> None:
    """It is not taken for dead."""
    driver = await open_driver("memory://")
    one, other = Trial(driver, caplog), Trial(driver, caplog)
    async with one.runtime as runtime:
        handle = await runtime.start(child, id="waits")
        await until_status(handle, Status.WAITING)
        ((heartbeat, _),) = await driver.scan(*WorkerKeys.heartbeats())
        lease = await driver.get(InstanceKeys("waits").lease)
        await put(driver, heartbeat, DAMAGED)
        async with other.runtime:
            for _ in range(6):
                one.clock.offset += TTL / 3
                other.clock.offset += TTL / 3
                await one.counting.until_quiet()
                await other.counting.until_quiet()
            assert await driver.get(InstanceKeys("waits").lease) == lease


async def test_what_undoes_a_step(world: World) -> None:
    """Nothing older is undone before it, and nothing is undone twice."""
    undone: list[int] = []

    async def undo(value: int) -> None:
        undone.append(value)

    @workflow
    async def fails(ctx: Context) -> None:
        for number in range(3):
            await ctx.step(f"step {number}", doubled, number, rollback=undo)
        await ctx.sleep("nap", 1)
        raise ValueError("no")

    assert (await world.once(fails, mode="yield")).status is Status.SLEEPING
    rows = await world.driver.scan(*InstanceKeys("i").range(COMPENSATIONS))
    await put(world.driver, rows[1][0], DAMAGED)
    result = await world.run(fails)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "consistency"
    before = list(undone)
    assert 0 not in before
    await put(world.driver, *rows[1])
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(fails, "i").recover()
    assert (await world.run(fails)).status is Status.ROLLED_BACK
    assert undone == [4, 2, 0]


@pytest.mark.parametrize("part", [NAMES, HISTORY, INBOX], ids=["name", "entry", "message"])
async def test_one_run_of_it(world: World, part: bytes) -> None:
    """It tells that the instance is stuck, and what for; nothing is called, and once is enough."""
    calls: list[int] = []

    @workflow
    async def job(ctx: Context) -> Any:
        await ctx.step("step", lambda: calls.append(1))
        return await ctx.listen("message")

    assert (await world.once(job, mode="yield")).status is Status.WAITING
    await world.send("message", "hello")
    key, before = (await world.driver.scan(*InstanceKeys("i").range(part)))[0]
    await put(world.driver, key, DAMAGED)
    result = await world.run(job)
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "consistency"
    assert "can't be read" in result.error.message
    assert "recover" in result.error.message
    rows = await rows_of(world.driver)
    assert (await world.run(job)).status is Status.STUCK
    assert await rows_of(world.driver) == rows, "a run of what is stuck writes nothing"
    await put(world.driver, key, before)
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(job, "i").recover()
    assert (await world.run(job)).output == "hello"
    assert calls == [1]


async def test_changed_code_tries_it_again(caplog: pytest.LogCaptureFixture) -> None:
    rows = await populated()
    key = next(key for key in rows if key.startswith(KEYS.space + HISTORY))
    trial = Trial(await store_of({**rows, key: DAMAGED}), caplog)
    async with trial.runtime:
        await trial.check_calm()
        assert await trial.status() is Status.STUCK
    await put(trial.driver, key, rows[key])

    @workflow(name="listens", version=2)
    async def mended(ctx: Context) -> Any:
        return await listens.fn(ctx)

    async with Runtime(trial.driver, workflows=[mended, child, doubles], clock=trial.clock) as runtime:
        await until_status(runtime.handle(mended, "bad"), Status.COMPLETED)


async def test_a_row_of_a_newer_version_is_left_to_its_workers(caplog: pytest.LogCaptureFixture) -> None:
    """It is not stuck: whoever can read it goes on with it."""
    quiet = await cost_of_quiet(caplog)
    rows = await populated()
    key = next(key for key in rows if key.startswith(KEYS.space + HISTORY))
    for newer in (key, KEYS.field(Field.HEAD)):
        trial = Trial(await store_of({**rows, newer: b"\x02" + rows[newer][1:]}), caplog)
        trial.quiet = quiet
        async with trial.runtime:
            await trial.check_calm()
            assert await trial.status() is not Status.STUCK
        await put(trial.driver, newer, rows[newer])
        async with Runtime(trial.driver, workflows=FLOWS, clock=trial.clock) as runtime:
            assert await runtime.handle(listens, "bad").result(timeout=PATIENCE) == 1


async def keys_of(driver: Driver) -> set[bytes]:
    """Which rows there are."""
    return {key for key, _ in await rows_of(driver)}
