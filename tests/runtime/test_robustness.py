"""Things that happen at the same time, and stores and people that do what they should not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.patience import PATIENCE
from tests.runtime.mortal import TTL, Mortal
from tests.runtime.parts import Rows, doubles, until_status
from tests.runtime.polling import until
from workflow_sdk import Batch, Client, Context, DefinitionError, Delivery, Driver, Handle, Runtime, Status, workflow
from workflow_sdk.rows.keys import WorkerKeys
from workflow_sdk.testing import FaultyDriver, VirtualClock

pytestmark = [pytest.mark.law(17), pytest.mark.every_host]


@workflow
async def takes_six(ctx: Context) -> list[int]:
    return [await ctx.listen(f"m{number}", "m", type=int) for number in range(6)]


@workflow
async def takes_one(ctx: Context) -> int:
    value = await ctx.listen("m", type=int)
    await ctx.listen("end")
    return value


inside: dict[str, int] = {}
most: list[int] = []


async def be_inside(id: str, until: anyio.Event | None = None) -> None:
    inside[id] = inside.get(id, 0) + 1
    most.append(len(inside))
    if until is None:
        await checkpoint()
    else:
        await until.wait()
    inside[id] -= 1
    if not inside[id]:
        del inside[id]


@workflow
async def two_branches(ctx: Context) -> None:
    are_done = anyio.Event()

    async def one_long(ctx: Context) -> None:
        await ctx.step("long", be_inside, ctx.instance_id, are_done)

    async def many_short(ctx: Context) -> None:
        for number in range(20):
            await ctx.step(f"short {number}", be_inside, ctx.instance_id)
        are_done.set()

    await ctx.join("both", {"one": one_long, "many": many_short})


@pytest.mark.parametrize("max_resident", [0, 1, 100])
@pytest.mark.parametrize("evicts", [False, True])
async def test_messages_while_it_is_evicted(driver: Driver, max_resident: int, evicts: bool) -> None:
    """By the runtime and by people, again and again: none is lost, and no instance is."""
    slow = FaultyDriver(driver, latency=1e-6)  # commits give way to others
    async with Client(driver) as client, Runtime(slow, workflows=[takes_six], max_resident=max_resident) as runtime:

        async def talk(id: str) -> None:
            handle = await runtime.start(takes_six, id=id)
            for number in range(6):
                for _ in range(random.randrange(40)):
                    await checkpoint()
                await client.handle(takes_six, id).send("m", number)
                if evicts and random.random() < 0.5:
                    async with anyio.create_task_group() as both:
                        both.start_soon(handle.evict)
                        both.start_soon(handle.evict)
            assert await client.handle(takes_six, id).result(timeout=PATIENCE) == list(range(6))

        for turn in range(2):
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(talk, f"{turn}-{number}")


async def test_branches_keep_the_turn_of_their_instance(driver: Driver) -> None:
    most.clear()
    async with Runtime(driver, workflows=[two_branches], concurrency=1) as runtime:
        handles = [await runtime.start(two_branches) for _ in range(4)]
        for handle in handles:
            await handle.result(timeout=PATIENCE)
    assert max(most) == 1


async def outcomes(handle: Handle[Any], count: int, **options: Any) -> Sequence[Delivery]:
    """What that many get who send at once."""
    found: list[Delivery] = []

    async def send(number: int) -> None:
        found.append(await handle.send("m", number, **options))

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(send, number)
    return found


@pytest.mark.parametrize("is_resident", [True, False])
async def test_one_message_for_one_wait(driver: Driver, is_resident: bool) -> None:
    async with Client(driver) as client, Runtime(driver, workflows=[takes_one]) as runtime:
        handle = await client.start(takes_one, id="i") if not is_resident else await runtime.start(takes_one, id="i")
        await until_status(handle, Status.WAITING)
        (wait,) = (await handle.info()).waits
        if not is_resident:
            await handle.evict()

            async def is_away() -> bool:
                return runtime.resident == 0

            await until(is_away)
        got = await outcomes(client.handle(takes_one, "i"), 5, token=wait.token)
        assert sorted(got) == [Delivery.ACCEPTED, *[Delivery.STALE] * 4]
        await handle.send("end")
        assert await handle.result(timeout=PATIENCE) in range(5)


async def test_two_that_prune(driver: Driver) -> None:
    async with Runtime(driver, workflows=[doubles]) as runtime:
        for number in range(30):
            await runtime.run(doubles, number)
        counts: list[int] = []

        async def prune() -> None:
            counts.append(await runtime.prune(older_than=0))

        async with anyio.create_task_group() as group:
            group.start_soon(prune)
            group.start_soon(prune)
        assert sum(counts) >= 30
        assert (await runtime.list()).items == []


class Moody:
    """A driver with exceptions of its own, which it raises now and then."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.calls = 0

    def _mood(self) -> None:
        self.calls += 1
        if self.calls % 97 == 0:
            raise ValueError("not today")

    async def get(self, key: bytes, /) -> bytes | None:
        self._mood()
        return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        self._mood()
        return await self.driver.scan(begin, end, limit=limit, reverse=reverse)

    async def commit(self, batch: Any, /) -> None:
        self._mood()
        await self.driver.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        self._mood()
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        await self.driver.aclose()


async def test_a_store_with_exceptions_of_its_own(driver: Driver) -> None:
    async with Client(driver) as client, Runtime(Moody(driver), workflows=[doubles], clock=VirtualClock()):
        handles = [await client.start(doubles, number) for number in range(20)]
        assert [await handle.result(timeout=PATIENCE) for handle in handles] == [2 * number for number in range(20)]


@pytest.mark.law(20)
async def test_a_worker_that_was_buried_and_died(driver: Driver) -> None:
    """It had no heartbeat any more when it claimed, and did not live to notice."""
    async with anyio.create_task_group() as group, Client(driver) as client:
        mortal = Mortal(driver, [takes_one])
        group.start_soon(mortal.live)
        await mortal.is_open.wait()
        for key, _ in await driver.scan(*WorkerKeys.heartbeats()):
            await driver.commit(_clearing(key))
        handle = await mortal.runtime.start(takes_one, id="i")
        await until_status(handle, Status.WAITING)
        for key, _ in await driver.scan(*WorkerKeys.heartbeats()):
            await driver.commit(_clearing(key))
        mortal.die()
        async with Runtime(driver, workflows=[takes_one], lease_ttl=TTL):
            await client.handle(takes_one, "i").send("m", 5)
            await client.handle(takes_one, "i").send("end")
            assert await client.handle(takes_one, "i").result(timeout=PATIENCE) == 5
            await mortal.until_forgotten(driver)
    assert (await Rows.of(driver)).workers == []


def _clearing(key: bytes) -> Batch:
    batch = Batch()
    batch.clear(key)
    return batch


async def test_serving_what_is_not_open(driver: Driver) -> None:
    with pytest.raises(DefinitionError, match="while it is open"):
        await Runtime(driver, workflows=[doubles]).serve()


@pytest.mark.parametrize(
    "options",
    [
        {"lease_ttl": 0},
        {"lease_ttl": -1},
        {"grace": -1},
        {"max_idle": -1},
        {"concurrency": 0},
        {"max_resident": -1},
        {"max_resident": 1.5},
        {"max_value_bytes": 10_000_001},
        {"max_value_bytes": 0},
    ],
    ids=str,
)
def test_numbers_that_can_not_be(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(options))):
        Runtime("memory://", workflows=[doubles], **options)
