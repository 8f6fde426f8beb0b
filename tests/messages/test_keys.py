"""A key is delivered once, for as long as a sender could try again; and does not stay for ever."""

from __future__ import annotations

import anyio
import pytest

from tests.runtime.parts import Rows
from workflow_sdk import Client, Delivery, Driver, Handle
from workflow_sdk.changes import deliver as keyed
from workflow_sdk.changes.deliver import KEYS_SECONDS
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(21)

KEPT = 20


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "KEYS_KEPT", KEPT)


async def sends(handle: Handle[object], first: int, end: int) -> None:
    """Send messages with these keys, none of which was used before."""
    for number in range(first, end):
        assert await handle.send("m", key=f"k{number}") is Delivery.QUEUED


async def kept(driver: Driver) -> list[int]:
    """How many rows there are of keys, and of their order."""
    keys = (await Rows.of(driver)).keys
    return [len([key for key in keys if key[0] == 1 and key[2] == part]) for part in (10, 15)]


async def is_known(handle: Handle[object], number: int) -> bool:
    """Whether the key is known."""
    return await handle.send("m", key=f"k{number}") is Delivery.DUPLICATE


async def test_the_last_ones_are_kept_however_old_they_are(driver: Driver) -> None:
    clock = VirtualClock()
    async with Client(driver, clock=clock) as client:
        handle = await client.start("w", id="i")
        await sends(handle, 0, KEPT)
        clock.advance(100 * KEYS_SECONDS)
        for number in range(KEPT):
            assert await is_known(handle, number)
        await sends(handle, KEPT, KEPT + 5)
        assert await kept(driver) == [KEPT, KEPT]
        for number in range(5, KEPT + 5):
            assert await is_known(handle, number)


async def test_what_is_young_is_kept_however_many_come(driver: Driver) -> None:
    clock = VirtualClock()
    async with Client(driver, clock=clock) as client:
        handle = await client.start("w", id="i")
        await sends(handle, 0, 3 * KEPT)
        clock.advance(KEYS_SECONDS - 1)
        await sends(handle, 3 * KEPT, 4 * KEPT)
        for number in range(4 * KEPT):
            assert await is_known(handle, number)
        clock.advance(2)
        await sends(handle, 4 * KEPT, 5 * KEPT)
        assert await kept(driver) == [2 * KEPT, 2 * KEPT], "what came in the last week"
        clock.advance(KEYS_SECONDS)
        await sends(handle, 5 * KEPT, 6 * KEPT)
        assert await kept(driver) == [KEPT, KEPT]


@pytest.mark.parametrize("wrong", [-1000 * KEYS_SECONDS, 1000 * KEYS_SECONDS])
async def test_a_clock_that_is_wrong_has_no_message_delivered_twice(driver: Driver, wrong: float) -> None:
    right = VirtualClock()
    other = VirtualClock()
    other.advance(max(wrong, 0))
    right.advance(max(-wrong, 0))
    async with Client(driver, clock=right) as client, Client(driver, clock=other) as astray:
        handle, its = await client.start("w", id="i"), astray.handle("w", "i")
        await sends(handle, 0, KEPT // 2)
        await sends(its, KEPT // 2, KEPT)
        for number in range(KEPT):
            assert await is_known(its if number % 2 else handle, number)
        await sends(handle, KEPT, 3 * KEPT)
        clocks = sum(await kept(driver)) / 2
        assert clocks <= 3 * KEPT
        for number in range(2 * KEPT, 3 * KEPT):
            assert await is_known(handle, number)


async def test_many_at_once(driver: Driver) -> None:
    clock = VirtualClock()
    async with Client(driver, clock=clock) as client:
        handle = await client.start("w", id="i")
        await sends(handle, 0, 2 * KEPT)
        clock.advance(2 * KEYS_SECONDS)
        found: list[Delivery] = []

        async def send(number: int) -> None:
            found.append(await handle.send("m", key=f"n{number % 30}"))

        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(send, number)
        assert sorted(found) == [Delivery.DUPLICATE] * 30 + [Delivery.QUEUED] * 30
        by_key, in_order = await kept(driver)
        assert by_key == in_order
