"""Schedules: each tick begins one instance, whoever runs, and whoever dies."""

from __future__ import annotations

import logging
import sys
import time
from datetime import timedelta
from random import Random
from typing import Any

import anyio
import pytest

from tests.chaos import effort
from tests.patience import PATIENCE
from tests.runtime import polling
from tests.runtime.counting import Counting
from tests.runtime.parts import Rows
from tests.runtime.polling import settle
from tests.schedules.scheduling import BEGAN, FLOWS, HOUR, begun, hears, lasts, log, moves_on, put, reports, tick, until
from workflow_sdk import (
    Client,
    CodecError,
    Context,
    DefinitionError,
    Driver,
    InputError,
    InstanceInfo,
    Runtime,
    Schedule,
    ScheduleNotFoundError,
    Status,
    workflow,
)
from workflow_sdk.features.schedules.rows import SCHEDULES_DUE, due_schedule, schedule_key
from workflow_sdk.rows.location import subtree
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

DAY = 24 * HOUR


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    log.clear()
    # However slow the machine is, what is done takes no time on a clock that jumps.
    monkeypatch.setattr("workflow_sdk.testing.clock.SHORT_SECONDS", PATIENCE)


@pytest.fixture
def clock() -> VirtualClock:
    # None of the steps here hangs. Where the store is slow, an instance may take longer than a second to begin and end.
    return VirtualClock(quiet=PATIENCE)


def hours(info: InstanceInfo) -> float:
    """How long after the clock has started an instance began. Where machines are slow, clocks that jump go on, too."""
    return (info.created_at - BEGAN).total_seconds() / HOUR


async def has(count: int) -> bool:
    """Whether so many instances have run."""
    return len(log) >= count


# -- Ticks ------------------------------------------------------------------------------------------------------------


async def test_by_cron(driver: Driver, clock: VirtualClock) -> None:
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        made = await runtime.schedule("nightly", reports, "sales", cron="0 3 * * *")
        assert (made.id, made.workflow, made.input, made.cron, made.every) == (
            *("nightly", "reports", "sales", "0 3 * * *", None),
        )
        assert (made.timezone, made.overlap, made.catch_up, made.paused) == ("UTC", "skip", "last", False)
        assert (made.created_at, made.next_at) == (BEGAN, BEGAN + timedelta(hours=3))
        assert (made.last_at, made.last_instance, made.waiting) == (None, None, ())
        await until(lambda: has(3))
        assert log[:3] == [f"nightly/2030-01-0{day}T03:00:00Z" for day in (1, 2, 3)]
        handle = runtime.handle(reports, log[0])
        assert await handle.result(timeout=PATIENCE) == "sales"
        info = await handle.info()
        assert hours(info) == pytest.approx(3, abs=0.01)
        assert info.input == "sales"


async def test_every_so_often(driver: Driver, clock: VirtualClock) -> None:
    clock.advance(0.25)
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        made = await runtime.schedule("s", reports, every=timedelta(minutes=90))
        assert (made.cron, made.every) == (None, timedelta(minutes=90))
        await until(lambda: has(2))
        assert log[:2] == ["s/2030-01-01T01:30:00.250000Z", "s/2030-01-01T03:00:00.250000Z"]
        seen = await runtime.schedules.get("s")
        assert seen.last_at is not None
        assert seen.next_at == seen.last_at + timedelta(minutes=90)
        assert seen.last_instance is not None
        assert seen.last_instance.startswith("s/2030-01-")


async def test_a_tick_comes_in_time(driver: Driver) -> None:
    """On the clock on the wall, and scheduled by somebody else."""
    async with Runtime(driver, workflows=FLOWS), Client(driver) as client:
        await settle(driver)
        began = time.monotonic()
        # Real time is what this is about; all else here goes by clocks that jump.
        await client.schedule("s", "reports", "x", every=0.05)
        await polling.until(lambda: has(2))
        assert time.monotonic() - began > 0.09
        await client.schedules.delete("s")


async def test_several_runtimes_and_each_tick_once(driver: Driver, clock: VirtualClock) -> None:
    async with (
        Runtime(driver, workflows=FLOWS, clock=clock) as one,
        Runtime(driver, workflows=FLOWS, clock=clock),
        Runtime(driver, workflows=FLOWS, clock=clock),
    ):
        await one.schedule("s", reports, every=HOUR)
        await one.schedule("t", reports, every=2 * HOUR)
        await until(lambda: has(40))
        for id in ("s", "t"):
            await one.schedules.pause(id)
        await until(lambda: one.resident == 0)
        ids = await begun(one)
    ones = [id for id in ids if id[0] == "s"]
    twos = [id for id in ids if id[0] == "t"]
    assert ones == [tick(number) for number in range(1, len(ones) + 1)], "none was left out"
    assert twos == [tick(2 * number, "t") for number in range(1, len(twos) + 1)]
    assert abs(len(ones) - 2 * len(twos)) <= 1
    assert sorted(log) == sorted(ids), "each ran once"


@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
async def test_the_process_dies_with_the_tick(driver: Driver, clock: VirtualClock, kind: str) -> None:
    """The tick is decided on, or it is not; whoever comes next finishes it, once."""
    async with Client(driver, clock=clock) as client:
        await client.schedule("s", reports, every=HOUR)
        faulty = FaultyDriver(driver, **{kind: moves_on})  # type: ignore[arg-type]
        with pytest.raises((SimulatedCrash, BaseExceptionGroup)):
            async with Runtime(faulty, workflows=FLOWS, clock=clock):
                await anyio.sleep(5)
        assert log == []
        assert await begun(client) == ([] if kind == "crash_before" else [tick(1)])
        async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
            await until(lambda: has(2))
            assert log[:2] == [tick(1), tick(2)]
            assert await runtime.handle(reports, tick(1)).result(timeout=PATIENCE) == "all"


async def test_a_store_that_fails_for_a_while(
    driver: Driver, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def some(number: int, batch: Any) -> bool:
        if moves_on(number, batch):
            tries.append(number)
        return moves_on(number, batch) and len(tries) in (1, 2, 4)

    async with Client(driver, clock=clock) as client:
        await client.schedule("s", reports, every=HOUR)
    async with Runtime(FaultyDriver(driver, fail_at=some), workflows=FLOWS, clock=clock):
        await until(lambda: has(3))
    assert log[:3] == [tick(1), tick(2), tick(3)]


@pytest.mark.parametrize("seed", range(effort(2)))
@pytest.mark.parametrize("overlap", ["queue", "allow"])
async def test_whatever_the_store_does(driver: Driver, clock: VirtualClock, seed: int, overlap: Any) -> None:
    """Conflicts, failures, and processes that die: each tick begins one instance all the same."""
    chance = Random(seed)

    async def works(dies_at: int) -> None:
        faulty = FaultyDriver(
            driver,
            # Not the first ones: those open a runtime.
            fail_at=lambda number, _: number > 3 and chance.random() < 0.02,
            conflict_at=lambda number, _: number > 3 and chance.random() < 0.1,
            crash_after=lambda number, _: number >= dies_at,
        )
        try:
            async with Runtime(faulty, workflows=FLOWS, clock=clock, grace=0):
                await anyio.sleep_forever()
        except* SimulatedCrash:
            pass

    async with Client(driver, clock=clock) as client:
        await client.schedule("s", reports, every=HOUR, catch_up="all", overlap=overlap)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(works, chance.randrange(5, 60))
        async with Runtime(driver, workflows=FLOWS, clock=clock):
            count = len(await begun(client))

            async def goes_on() -> bool:
                return len(await begun(client)) > count + 3

            await until(goes_on)
            seen = await client.schedules.pause("s")
        ids = await begun(client)
    assert seen.last_instance == ids[-1]
    assert ids == [tick(number) for number in range(1, len(ids) + 1)]


async def test_nobody_knows_the_workflow(driver: Driver, clock: VirtualClock) -> None:
    """It is left alone, and asked about no more than other things; whoever knows it goes on with it."""
    counting = Counting(driver)
    async with Client(driver, clock=clock) as client:
        await client.schedule("s", reports, every=HOUR)
        async with Runtime(counting, workflows=[hears], clock=clock) as stranger:
            with pytest.raises(DefinitionError, match="was not given the workflow 'reports'"):
                await stranger.schedule("t", reports, every=1)
            clock.advance(3.5 * HOUR)
            await counting.until_quiet()
            calls = counting.calls
            await counting.until_quiet()
            assert counting.calls - calls < 60, "each shard was looked at a few times, since word may have come late"
            assert await begun(client) == []
            async with Runtime(driver, workflows=FLOWS, clock=clock):
                await until(lambda: has(2))
                await client.schedules.pause("s")
        assert log[:2] == [tick(3), tick(4)]


async def test_an_id_that_is_taken(driver: Driver, clock: VirtualClock) -> None:
    """The tick has begun, as far as anybody can tell."""
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        await runtime.start(reports, "by hand", id=tick(1))
        await runtime.schedule("s", reports, every=HOUR)
        await until(lambda: has(3))
        assert log[:3] == [tick(1), tick(2), tick(3)]
        assert await runtime.handle(reports, tick(1)).result() == "by hand"


# -- While the last one has not ended ---------------------------------------------------------------------------------


async def test_skip(driver: Driver, clock: VirtualClock) -> None:
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        await runtime.schedule("s", lasts, 2.5 * HOUR, every=HOUR)
        await until(lambda: has(3))
    assert log[:3] == [tick(1), tick(4), tick(7)]


async def test_allow(driver: Driver, clock: VirtualClock) -> None:
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        await runtime.schedule("s", lasts, 2.5 * HOUR, every=HOUR, overlap="allow")
        await until(lambda: has(4))
        infos = [await runtime.handle(lasts, tick(number)).info() for number in (1, 2, 3)]
    assert log[:4] == [tick(1), tick(2), tick(3), tick(4)]
    assert [hours(info) for info in infos] == pytest.approx([1, 2, 3], abs=0.01)


async def test_queue(driver: Driver, clock: VirtualClock) -> None:
    """Each begins as soon as the one before has ended."""
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        await runtime.schedule("s", lasts, 2.5 * HOUR, every=HOUR, overlap="queue")
        await until(lambda: has(4))
        infos = [await runtime.handle(lasts, tick(number)).info() for number in (1, 2, 3, 4)]
        waiting = (await runtime.schedules.get("s")).waiting
    assert log[:4] == [tick(1), tick(2), tick(3), tick(4)]
    assert [hours(info) for info in infos] == pytest.approx([1, 3.5, 6, 8.5], abs=0.01)
    assert waiting[:2] == (BEGAN + timedelta(hours=5), BEGAN + timedelta(hours=6))


async def test_what_waits_survives_a_restart(driver: Driver) -> None:
    """And a new process is told of the end, however that comes about."""
    clock = VirtualClock()
    async with Client(driver, clock=clock) as client:
        async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
            await runtime.schedule("s", hears, every=HOUR, overlap="queue")
            await until(lambda: has(1))

            async def three_wait() -> bool:
                return len((await client.schedules.get("s")).waiting) >= 3

            await until(three_wait)
        assert log == [tick(1)]
        async with Runtime(driver, workflows=FLOWS, clock=clock):
            await client.handle(hears, tick(1)).send("end")
            await until(lambda: has(2))
            await client.handle(hears, tick(2)).cancel()
            await until(lambda: has(3))
        await client.handle(hears, tick(3)).cancel()
        await client.delete(tick(3))
        async with Runtime(driver, workflows=FLOWS, clock=clock):
            await until(lambda: has(4))
    assert log == [tick(1), tick(2), tick(3), tick(4)]


async def test_no_more_than_so_many_wait(driver: Driver, clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        await runtime.schedule("s", hears, every=HOUR, overlap="queue")

        async def is_full() -> bool:
            return "more are left out" in caplog.text

        await until(is_full)
        seen = await runtime.schedules.get("s")
    assert seen.waiting == tuple(BEGAN + timedelta(hours=number) for number in range(2, 102))
    assert log == [tick(1)]


async def test_a_stuck_one_has_not_ended(driver: Driver, clock: VirtualClock) -> None:
    @workflow
    async def mistakes(ctx: Context) -> None:
        log.append(ctx.instance_id)
        await ctx.sleep("", 1)

    async with Runtime(driver, workflows=[mistakes], clock=clock) as runtime:
        await runtime.schedule("s", mistakes, every=HOUR)
        await until(lambda: clock.time() > BEGAN.timestamp() + 5 * HOUR)
        assert (await runtime.handle(mistakes, tick(1)).info()).status is Status.STUCK
        assert await begun(runtime) == [tick(1)]
        await runtime.handle(mistakes, tick(1)).cancel()
        await until(lambda: has(2))


# -- While nobody was there -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow"])
@pytest.mark.parametrize(
    ("catch_up", "late", "expected"),
    [
        ("last", 0.5, [5]),
        ("all", 0.5, [1, 2, 3, 4, 5]),
        ("none", 0.5, []),
        ("none", 0.01, [5]),
    ],
)
async def test_what_was_missed(
    driver: Driver, clock: VirtualClock, catch_up: Any, late: float, expected: list[int], overlap: Any
) -> None:
    async with Client(driver, clock=clock) as client:
        await client.schedule("s", reports, every=HOUR, catch_up=catch_up, overlap=overlap)
        clock.advance((5 + late) * HOUR)
        now = clock.now()
        async with Runtime(driver, workflows=FLOWS, clock=clock):
            await until(lambda: tick(6) in log)
        assert await begun(client, now) == [tick(number) for number in expected]
        # With `allow`, they begin together.
        assert sorted(log[: len(expected) + 1]) == [tick(number) for number in [*expected, 6]]


@pytest.mark.parametrize("overlap", ["skip", "queue"])
async def test_what_was_missed_comes_one_after_another(driver: Driver, clock: VirtualClock, overlap: Any) -> None:
    async with Client(driver, clock=clock) as client:
        await client.schedule("s", lasts, 0.2 * HOUR, every=HOUR, catch_up="all", overlap=overlap)
        clock.advance(5.1 * HOUR)
        async with Runtime(driver, workflows=FLOWS, clock=clock):
            await until(lambda: has(5))
            infos = [await client.handle(lasts, tick(number)).info() for number in range(1, 6)]
    assert log[:5] == [tick(number) for number in range(1, 6)]
    assert [hours(info) for info in infos] == pytest.approx([5.1, 5.3, 5.5, 5.7, 5.9], abs=0.01)


async def test_many_were_missed(driver: Driver, clock: VirtualClock) -> None:
    """More than one commit begins; and others are not held up by them."""
    async with Client(driver, clock=clock) as client:
        await client.schedule("s", reports, every=HOUR, catch_up="all", overlap="allow")
        await client.schedule("years", reports, every=0.001, catch_up="last")
        clock.advance(55 * HOUR)
        now = clock.now()
        async with Runtime(driver, workflows=FLOWS, clock=clock):
            await until(lambda: "s" in [id[:1] for id in log])
            await client.schedules.delete("years")
            await until(lambda: tick(56) in log)
        ids = [id for id in await begun(client, now) if id.startswith("s/")]
    assert ids == [tick(number) for number in range(1, 55)]


# -- What people do ---------------------------------------------------------------------------------------------------


async def test_pause_and_resume(driver: Driver, clock: VirtualClock) -> None:
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        await runtime.schedule("s", reports, every=HOUR, catch_up="all")
        await until(lambda: has(1))
        paused = await runtime.schedules.pause("s")
        assert (paused.paused, paused.next_at) == (True, None)
        assert await runtime.schedules.pause("s") == paused
        await until(lambda: runtime.resident == 0)
        count = len(log)
        clock.advance(10 * HOUR)
        await settle(driver)
        assert len(log) == count
        assert await driver.scan(*subtree(SCHEDULES_DUE)) == []
        again = await runtime.schedule("s", reports, every=HOUR, catch_up="all")
        assert again.paused, "the same definition changes nothing"
        now = clock.now()
        resumed = await runtime.schedules.resume("s")
        assert resumed.next_at is not None
        assert now < resumed.next_at <= now + timedelta(hours=1.01)
        assert not (await runtime.schedules.resume("s")).paused
        await until(lambda: has(count + 1))
        assert log[count] == f"s/{resumed.next_at:%Y-%m-%dT%H:%M:%SZ}", "what came meanwhile is left out"


async def test_what_waits_begins_after_the_pause(driver: Driver, clock: VirtualClock) -> None:
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        await runtime.schedule("s", hears, every=HOUR, overlap="queue")

        async def waits() -> bool:
            return len((await runtime.schedules.get("s")).waiting) >= 2

        await until(waits)
        await runtime.schedules.pause("s")
        await runtime.handle(hears, tick(1)).send("end")
        await runtime.handle(hears, tick(1)).result(timeout=PATIENCE)
        await settle(driver)
        assert log == [tick(1)]
        await runtime.schedules.resume("s")
        await until(lambda: has(2))
        assert log == [tick(1), tick(2)]


async def test_the_same_again_changes_nothing(driver: Driver, clock: VirtualClock) -> None:
    async with Client(driver, clock=clock) as client:
        made = await client.schedule("s", reports, "x", cron="5 * * * *", timezone="Europe/Berlin")
        row = await driver.get(schedule_key("s"))
        clock.advance(100)
        assert await client.schedule("s", "reports", "x", cron="5 * * * *", timezone="Europe/Berlin") == made
        assert await driver.get(schedule_key("s")) == row


async def test_another_definition_replaces_it(driver: Driver, clock: VirtualClock) -> None:
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        made = await runtime.schedule("s", reports, "x", every=HOUR)
        await until(lambda: has(1))
        before = await runtime.schedules.get("s")
        now = clock.now()
        after = await runtime.schedule("s", reports, "y", every=2 * HOUR)
        assert (after.input, after.every, after.created_at) == ("y", timedelta(hours=2), made.created_at)
        assert after.last_at is not None
        assert before.last_at is not None
        assert after.last_at >= before.last_at
        assert after.next_at is not None
        assert after.next_at >= now + timedelta(hours=1.99)
        count = len(log)
        await until(lambda: has(count + 1))
        assert len(await driver.scan(*subtree(SCHEDULES_DUE))) == 1, "nothing is left of the old one"
        await runtime.schedules.pause("s")
        paused = await runtime.schedule("s", reports, "z", every=HOUR)
        assert (paused.paused, paused.next_at, paused.input) == (True, None, "z")


async def test_delete(driver: Driver, clock: VirtualClock) -> None:
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        await runtime.schedule("s", reports, every=HOUR)
        await until(lambda: has(1))
        await runtime.schedules.delete("s")
        await until(lambda: runtime.resident == 0)
        count = len(log)
        clock.advance(DAY)
        await settle(driver)
        assert len(log) == count
        assert (await runtime.schedules.list()).items == []
        assert [key for key in (await Rows.of(driver)).keys if key[0] == 14 and key[1] != 3] == []
        assert tick(1) in await begun(runtime)
        for act in (runtime.schedules.get, runtime.schedules.pause, runtime.schedules.resume, runtime.schedules.delete):
            with pytest.raises(ScheduleNotFoundError, match="there is no schedule 's'"):
                await act("s")


async def test_list(driver: Driver, clock: VirtualClock) -> None:
    async with Client(driver, clock=clock) as client:
        assert (await client.schedules.list()).items == []
        made = [await client.schedule(id, "reports", {"n": 1}, every=HOUR) for id in ("b", "a", "a/b", "ä\0")]
        assert (await client.schedules.list()).items == sorted(made, key=lambda schedule: schedule.id.encode())
        assert await client.schedules.get("a") == made[1]
        assert isinstance(made[0], Schedule)


# -- What is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give one of the two"),
        ({"cron": "* * * * *", "every": 1}, "give one of the two"),
        ({"cron": "* * *"}, "cron is five fields"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"cron": ""}, "cron is five fields"),
        ({"cron": 5}, "cron is a text"),
        ({"every": 0}, "every is a millisecond or more, not 0"),
        ({"every": -1.0}, "every is a millisecond or more"),
        ({"every": timedelta(0)}, "every is a millisecond or more"),
        ({"every": "1h"}, "every is a number of seconds"),
        ({"every": float("nan")}, "every is at most"),
        ({"cron": "0 0 */31 * MON#5"}, "would never tick: cron is"),
        ({"every": 1, "timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"every": 1, "timezone": "../etc/passwd"}, "no time zone"),
        ({"every": 1, "timezone": None}, "no time zone None"),
        ({"every": 1, "overlap": "maybe"}, "overlap is"),
        ({"every": 1, "overlap": []}, "overlap is"),
        ({"every": 1, "catch_up": True}, "catch_up is"),
    ],
)
async def test_bad_definitions(options: dict[str, Any], says: str) -> None:
    """Before anything is written."""
    async with Client("memory://") as client:
        with pytest.raises(DefinitionError, match=says):
            await client.schedule("s", reports, **options)
        assert await client.access.driver.scan(b"", b"\xff") == []


async def test_other_bad_input() -> None:
    async with Client("memory://") as client, Runtime("memory://", workflows=FLOWS) as runtime:
        with pytest.raises(InputError, match="the input of workflow 'lasts'"):
            await client.schedule("s", lasts, "long", every=1)  # type: ignore[misc]
        with pytest.raises(InputError):
            await runtime.schedule("s", "lasts", "long", every=1)
        with pytest.raises(CodecError):
            await client.schedule("s", "lasts", object(), every=1)
        for id in ("", "x" * 1000, 5, "\ud800"):
            with pytest.raises(DefinitionError, match="the id of a schedule"):
                await client.schedule(id, "lasts", 1, every=1)  # type: ignore[arg-type]
        with pytest.raises(DefinitionError, match="a workflow can't be called"):
            await client.schedule("s", "", every=1)
        with pytest.raises(TypeError, match="a schedule has no often"):
            await client.schedule("s", "lasts", often=1)  # type: ignore[call-overload]
        with pytest.raises(DefinitionError, match="the id of a schedule"):
            await client.schedules.get("")
        assert await client.access.driver.scan(b"", b"\xff") == []
        longest = "x" * 972
        await client.schedule(longest, "lasts", 1, every=1)
        assert (await client.schedules.get(longest)).id == longest


async def test_without_the_library_for_cron(
    driver: Driver, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What needs it says so, and what doesn't goes on."""
    async with Client(driver, clock=clock) as client:
        await client.schedule("cron", reports, cron="0 * * * *")
        monkeypatch.setitem(sys.modules, "cronsim", None)
        with pytest.raises(DefinitionError, match=r"pip install workflow-sdk\[cron\]"):
            await client.schedule("c", reports, cron="0 * * * *")
        await client.schedule("s", reports, every=HOUR)
        async with Runtime(driver, workflows=FLOWS, clock=clock):
            await until(lambda: has(4))
        assert log[:4] == [tick(number) for number in range(1, 5)]
        assert caplog.text.count("schedule cron is not kept here") == 1
        assert len(await client.schedules.list()) == 2


@pytest.mark.parametrize("raw", [b"", b"\xff", b"\x01\x80"])
async def test_a_damaged_one(driver: Driver, clock: VirtualClock, raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """It is nobody else's trouble, and can be deleted."""
    async with Client(driver, clock=clock) as client:
        await client.schedule("bad", reports, every=HOUR)
        await client.schedule("s", reports, every=HOUR)
        await put(driver, schedule_key("bad"), raw)
        async with Runtime(driver, workflows=FLOWS, clock=clock):
            await until(lambda: has(3))
            assert log[:3] == [tick(1), tick(2), tick(3)]
            with caplog.at_level(logging.WARNING):
                assert [schedule.id for schedule in await client.schedules.list()] == ["s"]
            assert caplog.text.count("schedule bad is not kept here") == 1
            for act in (client.schedules.get, client.schedules.pause, client.schedules.resume):
                with pytest.raises(CodecError, match="schedule 'bad'"):
                    await act("bad")
            with pytest.raises(CodecError, match="schedule 'bad'"):
                await client.schedule("bad", reports, every=HOUR)
            await client.schedules.delete("bad")
            await client.schedules.delete("s")
            clock.advance(HOUR)

            async def cleared() -> bool:
                return await driver.scan(*subtree(SCHEDULES_DUE)) == []

            await client.schedule("u", reports, every=0.5 * HOUR)
            await until(lambda: "u" in [id[0] for id in log])
            await client.schedules.delete("u")
            await until(cleared)


async def test_a_row_that_leads_nowhere(driver: Driver, clock: VirtualClock) -> None:
    await put(driver, due_schedule(BEGAN.timestamp(), "s"), b"")
    async with Runtime(driver, workflows=FLOWS, clock=clock) as runtime:
        await runtime.schedule("s", reports, every=HOUR)
        await until(lambda: has(1))
        assert len(await driver.scan(*subtree(SCHEDULES_DUE))) == 1


async def test_values_that_pass_through_a_codec(driver: Driver, clock: VirtualClock) -> None:
    class Salted:
        """Never the same bytes twice."""

        def __init__(self) -> None:
            self.count = 0

        def encode(self, data: bytes, /) -> bytes:
            self.count += 1
            return self.count.to_bytes(4, "big") + data

        def decode(self, data: bytes, /) -> bytes:
            return data[4:]

    async with Runtime(driver, workflows=FLOWS, clock=clock, codec=Salted()) as runtime:
        made = await runtime.schedule("s", reports, "secret", every=HOUR)
        assert await runtime.schedule("s", reports, "secret", every=HOUR) == made
        await until(lambda: has(1))
        assert await runtime.handle(reports, tick(1)).result(timeout=PATIENCE) == "secret"
