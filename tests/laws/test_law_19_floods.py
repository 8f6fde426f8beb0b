"""Law 19: messages that nobody wants fill no memory, and an inbox has a limit that every sender obeys."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.laws.counting_driver import WatchedDriver
from tests.patience import PATIENCE
from tests.runtime.parts import until_status
from tests.support import World
from workflow_sdk import (
    Client,
    Context,
    DefinitionError,
    Delivery,
    Driver,
    Handle,
    InboxFullError,
    Runtime,
    Status,
    send_message,
    workflow,
)
from workflow_sdk.driver import Batch
from workflow_sdk.journal.inbox import Inbox, InboxMessage
from workflow_sdk.rows.keys import INBOX, InstanceKeys

MANY = 1_500
MEMORY_MAX = 300
"""Some more than are kept without need."""


@workflow
async def waits(ctx: Context) -> Any:
    """Takes one message."""
    return await ctx.listen("wanted", type=int)


@workflow
async def drains(ctx: Context, count: int) -> Any:
    """Takes so many of both names, in the order in which they came."""
    return [await ctx.listen(f"wait {number}", ["a", "b"]) for number in range(count)]


@workflow
async def first_b_then_a(ctx: Context) -> Any:
    """The messages that came first are listened to last."""
    b = [await ctx.listen(f"b {number}", "b") for number in range(MANY // 3)]
    a = [await ctx.listen(f"a {number}", "a") for number in range(MANY // 3)]
    return [b, a]


@workflow
async def shared(ctx: Context) -> Any:
    """Many branches listen to one name, all the time."""

    async def branch(ctx: Context, number: int) -> list[int]:
        return [await ctx.listen(f"wait {turn}", "a") for turn in range(MANY // 30)]

    found = await ctx.map("all", branch, range(30))
    return sorted(number for numbers in found for number in numbers)


@workflow
async def sends(ctx: Context, target: str) -> Any:
    """Sends until there is no room any more."""
    for number in range(10):
        try:
            await ctx.send(f"send {number}", target, "unwanted", number)
        except InboxFullError as error:
            return [number, error.path, "limit is 3" in str(error)]
    return None


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were in memory at most."""
    seen, add = [0], Inbox.add

    def counting(inbox: Inbox, message: InboxMessage) -> bool:
        added = add(inbox, message)
        seen[0] = max(seen[0], len(inbox))
        return added

    monkeypatch.setattr(Inbox, "add", counting)
    return seen


async def flood(driver: Driver, names: str | list[str], count: int = MANY, id: str = "i") -> None:
    """Put messages into an inbox, in few commits; the payload is the number of each."""
    space = InstanceKeys(id).space + INBOX
    for start in range(0, count, 500):
        batch = Batch()
        for number in range(start, min(start + 500, count)):
            batch.append(space, InboxMessage(b"", names[number % len(names)], _number(number), 1.0).pack())
        await driver.commit(batch)


def _number(number: int) -> bytes:
    return b"\x19" + number.to_bytes(2, "big") if number > 255 else (
        b"\x18" + bytes([number]) if number > 23 else bytes([number])
    )  # fmt: skip


@pytest.mark.parametrize("before", [True, False], ids=["before", "meanwhile"])
async def test_what_nobody_listens_to_stays_in_the_store(world: World, most: list[int], before: bool) -> None:
    if before:
        async with Client(world.driver, clock=world.clock) as client:
            await client.start(waits, id="i")
        await flood(world.driver, ["unwanted"])
    assert (await world.once(waits, mode="yield")).status is Status.WAITING
    if not before:
        await flood(world.driver, ["unwanted"])
    await world.send("unwanted")
    result = await world.run(waits, script=[("wanted", 7)])
    assert result.output == 7
    assert most[0] <= MEMORY_MAX


async def test_messages_of_two_names_are_taken_in_order(world: World, most: list[int]) -> None:
    async with Client(world.driver, clock=world.clock) as client:
        await client.start("drains", MANY // 3 * 2, id="i")
    await flood(world.driver, ["a", "x", "b"])
    result = await world.run(drains, MANY // 3 * 2)
    assert result.output == [number for number in range(MANY) if number % 3 != 1]
    assert most[0] <= MEMORY_MAX


async def test_what_was_passed_over_is_read_when_somebody_listens(world: World, most: list[int]) -> None:
    async with Client(world.driver, clock=world.clock) as client:
        await client.start("first_b_then_a", id="i")
    await flood(world.driver, ["a", "x", "b"])
    result = await world.run(first_b_then_a)
    assert result.output == [list(range(2, MANY, 3)), list(range(0, MANY, 3))]
    assert most[0] <= MEMORY_MAX


async def test_branches_share_what_was_passed_over(world: World, most: list[int]) -> None:
    assert (await world.once(shared, mode="yield")).status is Status.WAITING
    await flood(world.driver, ["a"])
    await world.send("x")
    result = await world.run(shared)
    assert result.output == list(range(MANY))
    assert most[0] <= MEMORY_MAX


async def test_bad_messages_by_the_thousand(world: World, most: list[int]) -> None:
    """The good one comes last, after all that is set aside."""

    assert (await world.once(takes_a_text, mode="yield")).status is Status.WAITING
    await flood(world.driver, ["n"], MANY // 5)
    result = await world.run(takes_a_text, script=[("n", "good")])
    assert result.output == "good"
    async with Client(world.driver) as client:
        left = await client.handle("takes_a_text", "i").inbox()
        assert [message.payload for message in left if message.reason] == list(range(MANY // 5))
    assert most[0] <= MEMORY_MAX


@workflow
async def takes_a_text(ctx: Context) -> str:
    """Takes one text."""
    return await ctx.listen("n", type=str)


async def test_bad_messages_by_the_thousand_to_an_instance_in_memory(driver: Driver, most: list[int]) -> None:
    """What it refuses makes room for what was passed over."""
    async with Runtime(driver, workflows=[takes_a_text]) as runtime:
        handle = await runtime.start(takes_a_text, id="i")
        await until_status(handle, Status.WAITING)
        await flood(driver, ["n"], MANY // 5)
        await handle.send("n", "good")
        assert await handle.result(PATIENCE) == "good"
        assert len([message for message in await handle.inbox() if message.reason]) == MANY // 5
    assert most[0] <= MEMORY_MAX


async def test_looking_does_not_read_it(world: World) -> None:
    assert (await world.once(waits, mode="yield")).status is Status.WAITING
    await flood(world.driver, ["unwanted"])
    driver = WatchedDriver(world.driver)
    async with Client(driver, clock=world.clock) as client:
        handle = client.handle(waits, "i")
        await handle.info()
        await handle.history()
        assert len(await handle.inbox(limit=10)) == 10
        await handle.cancel()
    assert driver.rows_read < 200


async def test_the_inbox_is_read_in_parts(world: World) -> None:
    async with Client(world.driver, clock=world.clock) as client:
        handle = await client.start("waits", id="i")
        await flood(world.driver, ["unwanted"], 50)
        found: list[Any] = []
        while part := await handle.inbox(limit=7, after=found[-1].id if found else None):
            found += part
    assert [message.payload for message in found] == list(range(50))


async def test_the_limit_holds_for_every_sender(driver: Driver) -> None:
    async with Runtime(driver, workflows=[waits], inbox_max=5) as runtime, Client(driver) as other:
        handle = await runtime.start(waits, id="i")
        await until_status(handle, Status.WAITING)
        away = other.handle(waits, "i")
        for number in range(5):
            assert await (away if number % 2 else handle).send("unwanted", number) is Delivery.QUEUED
        for sender in (handle, away):
            with pytest.raises(InboxFullError, match=r"'i' has 5 messages .* the limit is 5"):
                await sender.send("unwanted")
            with anyio.fail_after(PATIENCE), pytest.raises(InboxFullError):
                await sender.ask("unwanted")
        with pytest.raises(InboxFullError):
            await send_message(driver, "i", "wanted", 1)
        message = (await handle.inbox())[0]
        assert await away.discard(message.id)
        assert await handle.send("wanted", 7) in (Delivery.ACCEPTED, Delivery.QUEUED)
        assert await handle.result(PATIENCE) == 7
        assert [message.payload for message in await handle.inbox()] == [1, 2, 3, 4]


async def test_what_is_taken_makes_room(driver: Driver) -> None:
    async with Runtime(driver, workflows=[drains], inbox_max=3) as runtime, Client(driver) as other:
        handle = await runtime.start(drains, 40, id="i")
        sent = 0
        senders: list[Handle[Any]] = [handle, other.handle(drains, "i")]
        with anyio.fail_after(PATIENCE):
            while sent < 40:
                try:
                    await senders[sent % 2].send("a", sent)
                    sent += 1
                except InboxFullError:
                    await anyio.sleep(0.002)
        assert await handle.result(PATIENCE) == list(range(40))


async def test_the_limit_holds_where_nobody_runs_it(driver: Driver) -> None:
    async with Runtime(driver, workflows=[waits], inbox_max=3):
        pass
    async with Client(driver) as client:
        handle = await client.start("waits", id="i")
        full: list[int] = []

        async def send(number: int) -> None:
            try:
                await handle.send("unwanted", number)
            except InboxFullError:
                full.append(number)

        for number in range(3):
            await send(number)
        assert full == []
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(send, number)
        assert len(full) == 10
        assert len(await handle.inbox()) == 3


async def test_many_senders_at_once_are_all_counted(driver: Driver) -> None:
    async with Client(driver) as client:
        handle = await client.start("waits", id="i")
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(handle.send, "unwanted", number)
        async with Runtime(driver, workflows=[], inbox_max=50), Client(driver) as other:
            with pytest.raises(InboxFullError, match="has 50 messages"):
                await other.handle("waits", "i").send("unwanted")


async def test_a_workflow_that_sends(driver: Driver) -> None:
    async with Runtime(driver, workflows=[sends], inbox_max=3) as runtime:
        async with Client(driver) as other:
            await other.start("waits", id="i")
        assert await runtime.run(sends, "i") == [3, "send 3", True]


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "9", 10**30])
def test_a_limit_that_is_none(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="inbox_max"):
        Runtime("memory://", workflows=[], inbox_max=wrong)


async def test_rewinding_reads_a_long_inbox_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await world.once(waits, mode="yield")).status is Status.WAITING
    await flood(world.driver, ["unwanted"])
    driver = WatchedDriver(world.driver)
    longest = [0]
    scan = driver.scan

    async def measured(*args: Any, **options: Any) -> list[tuple[bytes, bytes]]:
        rows = await scan(*args, **options)
        longest[0] = max(longest[0], len(rows))
        return rows

    monkeypatch.setattr(driver, "scan", measured)
    async with Client(driver, clock=world.clock) as client:
        await client.handle(waits, "i").restart_from()
    assert longest[0] < 150
