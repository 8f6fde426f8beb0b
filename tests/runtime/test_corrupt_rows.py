"""What a store has of an instance may be unreadable. That is nobody else's trouble."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from tests.patience import PATIENCE
from tests.rows import about
from tests.runtime.counting import Counting
from tests.runtime.parts import doubles, naps, until_status
from tests.runtime.polling import settle, until
from tests.runtime.shifted import ByHand
from workflow_sdk import Batch, Client, Context, Driver, Handle, Runtime, Status, Workflow, workflow
from workflow_sdk.changes.workers import Heartbeat
from workflow_sdk.rows.instance import Lease
from workflow_sdk.rows.keys import HISTORY, Field, InstanceKeys, WorkerKeys
from workflow_sdk.testing import VirtualClock
from workflow_sdk.worker.claims import RETRY_SECONDS

pytestmark = [pytest.mark.law(17), pytest.mark.every_host]

KEYS = InstanceKeys("bad")


@workflow
async def listens(ctx: Context) -> Any:
    """Waits for a message."""
    await ctx.step("first", lambda: 1)
    return await ctx.listen("m")


@workflow
async def mistakes(ctx: Context) -> None:
    """Is stuck."""
    await ctx.sleep("", 1)


FLOWS: list[Workflow[Any, Any]] = [listens, mistakes, doubles, naps]


async def key_of(driver: Driver, what: str) -> bytes:
    """The key of a row that is to be made unreadable."""
    if what == "history":
        return (await driver.scan(*KEYS.range(HISTORY)))[0][0]
    if what == "lease":
        return KEYS.lease
    return KEYS.field(Field[what.upper()])


async def corrupted(driver: Driver, what: str) -> tuple[bytes, bytes | None]:
    """A waiting instance of which one row is unreadable, and which is due; the row, and what it was."""
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(listens, id="bad")
        await until_status(handle, Status.WAITING)
        await handle.evict()

        async def gone() -> bool:
            return runtime.resident == 0

        await until(gone)
    async with Client(driver) as client:
        await client.handle(listens, "bad").send("m", 1)
    key = await key_of(driver, what)
    before = await driver.get(key)
    await put(driver, key, b"\xff\xfe not a record")
    return key, before


async def put(driver: Driver, key: bytes, value: bytes | None) -> None:
    """Write one row."""
    batch = Batch()
    if value is None:
        batch.clear(key)
    else:
        batch.set(key, value)
    await driver.commit(batch)


@pytest.mark.parametrize("what", ["history", "head", "birth", "lease"])
async def test_others_are_served(driver: Driver, what: str, caplog: pytest.LogCaptureFixture) -> None:
    key, before = await corrupted(driver, what)
    counting, clock = Counting(driver), ByHand()
    async with Client(driver, clock=clock) as client:
        early = await client.start(doubles, 1)
        async with Runtime(counting, workflows=FLOWS, lease_ttl=3600, concurrency=1, clock=clock) as runtime:
            assert await early.result(timeout=PATIENCE) == 2
            assert [await runtime.run(doubles, number) for number in range(5)] == [0, 2, 4, 6, 8]
            nap = await runtime.start(naps, 0.05)
            await until_status(nap, Status.SLEEPING)
            clock.offset += 0.1
            assert await nap.result(timeout=PATIENCE) == "awake"
            await counting.until_quiet()
            tries = caplog.text.count("instance bad")
            assert tries >= 1
            calls = counting.calls
            for _ in range(3):
                clock.offset += RETRY_SECONDS
                await counting.until_quiet()
            assert caplog.text.count("instance bad") == tries, "it is not tried again, as that would come to the same"
            assert counting.calls - calls <= 40
            assert runtime.resident == 0
            bad = client.handle(listens, "bad")
            await put(driver, key, before)
            if what == "history":
                assert (await bad.info()).status is Status.STUCK
                await bad.recover()
            assert await bad.result(timeout=PATIENCE) == 1, "and goes on once it can be read"


@pytest.mark.leaves("rows that were damaged, or written by hand")
@pytest.mark.parametrize("what", ["head", "birth"])
async def test_it_ends_at_once(driver: Driver, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also while it is to be tried again some time."""
    await corrupted(driver, what)

    async def has_been_tried() -> bool:
        return "instance bad" in caplog.text

    for is_tried in (False, True):
        with anyio.fail_after(PATIENCE):
            async with Runtime(driver, workflows=FLOWS, grace=3600):
                if is_tried:
                    await until(has_been_tried)


@pytest.mark.leaves("rows that were damaged, or written by hand")
@pytest.mark.parametrize("what", ["history", "head", "birth"])
async def test_among_what_the_dead_have_left(driver: Driver, what: str) -> None:
    """The others are inherited."""
    key, before = await corrupted(driver, what)
    dead = WorkerKeys("dead")
    await put(driver, dead.claimed("bad"), b"")
    await put(driver, dead.claimed("nobody"), b"")
    async with Client(driver) as client:
        left = await client.start(doubles, 3, id="left")
        batch = Batch()
        keys = InstanceKeys("left")
        head = (await about(driver, "left")).head
        assert head.alarm is not None
        batch.clear(keys.alarm(head.alarm))
        batch.set(keys.field(Field.HEAD), replace(head, alarm=None).pack())
        for id in ("left", "bad"):
            batch.set(InstanceKeys(id).lease, Lease("dead", 1, 0.3).pack())
        batch.set(dead.claimed("left"), b"")
        batch.set(dead.heartbeat, Heartbeat(time.time() - 1, 0.3, 1).pack())
        await driver.commit(batch)
        clock, bad = ByHand(), client.handle(listens, "bad")

        async def has_ended(handle: Handle[Any]) -> bool:
            clock.offset += 10  # until what was left is looked for again, and what has failed is tried again
            await settle(driver)
            return (await handle.info()).status.is_terminal

        async with Runtime(driver, workflows=FLOWS, clock=clock):
            await until(lambda: has_ended(left))
            assert await left.result(timeout=PATIENCE) == 6
            await put(driver, key, before)
            if what == "history":
                await bad.recover()
            await until(lambda: has_ended(bad))
            assert await bad.result(timeout=PATIENCE) == 1


@pytest.mark.leaves("rows that were damaged, or written by hand")
async def test_a_stuck_one(driver: Driver) -> None:
    """It is looked at for whether its code was mended; what is looked at after it is looked at all the same."""
    async with Client(driver) as client:
        async with Runtime(driver, workflows=FLOWS) as runtime:
            for id in ("bad", "other"):
                await until_status(await runtime.start(mistakes, id=id), Status.STUCK)
        await put(driver, KEYS.field(Field.HEAD), b"\xff")

        @workflow(name="mistakes")
        async def mended(ctx: Context) -> str:
            return "mended"

        async with Runtime(driver, workflows=[mended], clock=VirtualClock()):
            await until_status(client.handle(mended, "other"), Status.COMPLETED)
