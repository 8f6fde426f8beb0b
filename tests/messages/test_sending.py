"""Messages to instances that a runtime runs: every variant of sending, and that none is ever lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.counting import Counting
from tests.runtime.interleaving import Interleaved
from tests.runtime.parts import Rows, Stop, doubles, until_status
from tests.runtime.polling import settle, until
from tests.settings import Host
from workflow_sdk import (
    Batch,
    Client,
    CodecError,
    Context,
    DefinitionError,
    Delivery,
    Driver,
    Handle,
    InstanceStateError,
    Runtime,
    Status,
    Workflow,
    open_driver,
    run_workflow,
    workflow,
)
from workflow_sdk.driver import Append
from workflow_sdk.rows.keys import ROOT
from workflow_sdk.rows.location import unpack

pytestmark = pytest.mark.law(6)


@workflow
async def listens(ctx: Context, count: int) -> list[Any]:
    """Takes so many messages, one by one, with a step in between."""
    got: list[Any] = []
    for number in range(count):
        got.append(await ctx.listen(f"wait {number}", "m"))
        await ctx.step(f"step {number}", lambda: None)
    return got


@workflow
async def answers(ctx: Context) -> int:
    """Answers until it is told to stop."""
    for number in range(1000):
        message = await ctx.listen_message(f"wait {number}", ["ask", "stop"])
        if message.name == "stop":
            return number
        await message.reply([message.payload, number])
    return -1


@workflow
async def mistakes(ctx: Context) -> None:
    """Gets stuck."""
    await ctx.sleep("", 1)


FLOWS: list[Workflow[Any, Any]] = [listens, answers, mistakes, doubles]

Away = Callable[[Handle[Any]], Awaitable[None]]


async def waiting(runtime: Runtime, count: int = 1) -> Handle[list[Any]]:
    """An instance that waits for its first message."""
    handle = await runtime.start(listens, count, id="i")
    await until_status(handle, Status.WAITING)
    return handle


@pytest.mark.parametrize("max_resident", [0, 10])
async def test_in_order(driver: Driver, max_resident: int) -> None:
    async with Runtime(driver, workflows=FLOWS, max_resident=max_resident) as runtime:
        handle = await waiting(runtime, 20)
        for number in range(20):
            await handle.send("m", {"n": number})
        assert await handle.result(timeout=PATIENCE) == [{"n": number} for number in range(20)]


async def test_what_the_sender_is_told(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await waiting(runtime)
        assert await handle.send("other") is Delivery.QUEUED
        assert await handle.send("m", 1) is Delivery.ACCEPTED
        assert await handle.result(timeout=PATIENCE) == [1]
        before = await driver.scan(b"", b"\xff")
        assert await handle.send("m", 2) is Delivery.CLOSED
        assert await driver.scan(b"", b"\xff") == before
        stuck = await runtime.start(mistakes)
        await until_status(stuck, Status.STUCK)
        assert await stuck.send("m") is Delivery.QUEUED
        assert (await Rows.of(driver)).alarms == [], "it is not run for that"


async def test_before_it_is_run(driver: Driver) -> None:
    async with Client(driver) as client:
        handle = await client.start(listens, 2, id="i")
        assert [await handle.send("m", number) for number in range(2)] == [Delivery.QUEUED] * 2
        async with Runtime(driver, workflows=FLOWS):
            assert await handle.result(timeout=PATIENCE) == [0, 1]


@pytest.mark.law(1)
async def test_a_key_is_delivered_once(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await waiting(runtime, 3)
        found: list[Delivery] = []

        async def send() -> None:
            found.append(await handle.send("m", "once", key="k"))

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(send)
        assert sorted(found) == ["accepted", *["duplicate"] * 7]
        assert await handle.send("m", "other", key="another") is not Delivery.DUPLICATE
        assert await handle.send("m", "once more", key="k") is Delivery.DUPLICATE, "also when it was taken"
        await handle.send("m", "end")
        assert await handle.result(timeout=PATIENCE) == ["once", "other", "end"]


async def test_a_token_reaches_its_wait_only(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await waiting(runtime, 2)
        (first,) = (await handle.info()).waits
        assert (first.name, first.message) == ("wait 0", "m")
        assert await handle.send("other", token=first.token) is Delivery.STALE
        assert await handle.send("m", token="nonsense") is Delivery.STALE
        assert await handle.send("m", "a", token=first.token) is Delivery.ACCEPTED
        second = first

        async def moved_on() -> bool:
            nonlocal second
            (second,) = (await handle.info()).waits or [first]
            return second.name == "wait 1"

        await until(moved_on)
        assert await handle.send("m", "late", token=first.token) is Delivery.STALE
        assert await handle.send("m", "b", token=second.token) is Delivery.ACCEPTED
        assert await handle.result(timeout=PATIENCE) == ["a", "b"]


async def test_an_older_version_is_stale(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await waiting(runtime, 2)
        (wait,) = (await handle.info()).waits
        for version in (wait.version - 1, wait.version + 1):
            assert await handle.send("m", expected_version=version) is Delivery.STALE
        assert await handle.send("m", "a", token=wait.token, expected_version=wait.version) is Delivery.ACCEPTED

        async def moved_on() -> bool:
            return (await handle.info()).waits not in ([], [wait])

        await until(moved_on)
        assert await handle.send("m", expected_version=wait.version) is Delivery.STALE
        await handle.send("m", "b")
        assert await handle.result(timeout=PATIENCE) == ["a", "b"]


async def test_asking(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(answers, id="i")
        assert await handle.ask("ask", "a", timeout=PATIENCE) == ["a", 0]
        got: list[Any] = []

        async def ask(number: int) -> None:
            got.append((number, (await handle.ask("ask", number, timeout=PATIENCE))[0]))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(ask, number)
        assert sorted(got) == [(number, number) for number in range(20)], "everyone gets the answer to his question"
        with pytest.raises(TimeoutError):
            await handle.ask("unheard of", timeout=0.02)
        await handle.send("stop")
        assert await handle.result(timeout=PATIENCE) == 21
        with pytest.raises(InstanceStateError, match=r"'i' has ended, and answers no 'ask' any more"):
            await handle.ask("ask", timeout=PATIENCE)
    keys = [unpack(key[len(ROOT) :]) for key, _ in await driver.scan(b"", b"\xff")]
    assert [key for key in keys if key[0] == 11] == [], "answers that were read are gone"


@pytest.mark.parametrize(("message", "payload"), [("", None), ("m", object())])
async def test_what_cant_be_sent(driver: Driver, message: str, payload: object) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await waiting(runtime)
        before = await driver.scan(b"", b"\xff")
        for call in (handle.send, handle.ask):
            with pytest.raises((DefinitionError, CodecError)):
                await call(message, payload)
        assert await driver.scan(b"", b"\xff") == before


class Scene:
    """An instance that waits for two messages, which are sent between the calls of whoever runs it."""

    def __init__(self, driver: Driver, *, after: bool) -> None:
        self.driver = driver
        self.after = after
        self.client = Client(driver)

    async def play(self, first: int, second: int, **options: Any) -> int:
        """Send before or after these calls; return how many calls there were until all was quiet."""
        async with self.client as client:
            handle = await client.start(listens, 2, id="i")

            async def one() -> None:
                await handle.send("m", 1)

            async def two() -> None:
                await handle.send("m", 2)

            driver = Interleaved(self.driver, {first: one, second: two}, after=self.after)
            async with Runtime(driver, workflows=FLOWS, **options):
                await until_status(handle, Status.WAITING, Status.COMPLETED)
                await settle(self.driver)
                calls = driver.calls
                left = [deed for _, deed in sorted(driver.left.items())]
                driver.left.clear()
                for deed in left:
                    await deed()
                assert sorted(await handle.result(timeout=PATIENCE)) == [1, 2]
            await self.check(client)
            return calls

    async def check(self, client: Client) -> None:
        """Nothing is left behind."""
        rows = await Rows.of(self.driver)
        assert (rows.leases, rows.alarms, rows.workers) == ([], [], [])
        await client.delete("i")
        assert (await Rows.of(self.driver)).of_instance("i") == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("max_resident", [0, 10])
@pytest.mark.parametrize("gap", [1, 2, 5])
async def test_no_wake_up_is_lost(host: Host, gap: int, max_resident: int, after: bool) -> None:
    """Whatever the runtime is about to do, or has just done, when they come: claiming, loading, eviction."""
    first, played = 1, 0
    while True:
        memory = await open_driver("memory://")
        calls = await Scene(memory, after=after).play(first, first + gap, max_resident=max_resident)
        await memory.aclose()
        played += 1
        if calls < first:
            break
        first += 1
    assert played > 10, "there was something to interleave with"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_no_wake_up_is_lost_on_sqlite(tmp_path: Any, after: bool) -> None:
    driver = await open_driver(f"sqlite:///{tmp_path}/app.db?synchronous=normal")
    try:
        for first in range(1, 40, 5):
            assert await Scene(driver, after=after).play(first, first + 2, max_resident=0) > 0
    finally:
        await driver.aclose()


class HeldUp(Counting):
    """A driver that holds up the next commit that brings a message, until it may go on."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.stop = Stop()

    async def commit(self, batch: Batch, /) -> None:
        """As the driver, later."""
        if any(isinstance(write, Append) for write in batch.writes) and not self.stop.reached.is_set():
            await self.stop.here()
        await super().commit(batch)


async def test_the_instance_leaves_memory_while_a_message_is_handed_to_it(driver: Driver) -> None:
    held = HeldUp(driver)
    async with Runtime(held, workflows=FLOWS) as runtime:
        handle = await runtime.start(listens, 1, id="i")
        await until_status(handle, Status.WAITING)
        async with anyio.create_task_group() as group:
            group.start_soon(handle.send, "m", 1)
            await held.stop.reached.wait()
            async with Client(driver) as client:
                await client.handle(listens, "i").evict()

            async def gone() -> bool:
                return runtime.resident == 0

            await until(gone)
            held.stop.go_on.set()
        assert await handle.result(timeout=PATIENCE) == [1]


@workflow
async def sends(ctx: Context, to: str) -> str:
    """Sends a message to another instance."""
    return await ctx.send("send", to, "m", 1)


@pytest.mark.law(1)
async def test_the_instance_leaves_memory_while_another_one_sends_to_it(driver: Driver) -> None:
    held = HeldUp(driver)
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(listens, 1, id="i")
        await until_status(handle, Status.WAITING)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_workflow(sends, "i", driver=held, instance_id="sender"))
            await held.stop.reached.wait()
            await handle.evict()

            async def gone() -> bool:
                return runtime.resident == 0

            await until(gone)
            held.stop.go_on.set()
        assert await handle.result(timeout=PATIENCE) == [1]


async def test_two_that_talk(driver: Driver) -> None:
    """Two runtimes, which evict everything at once, and many messages from both."""
    async with (
        Runtime(driver, workflows=FLOWS, max_resident=0) as one,
        Runtime(driver, workflows=FLOWS, max_resident=0) as two,
    ):
        handles = [await one.start(listens, 20, id=str(number)) for number in range(4)]

        async def send(runtime: Runtime, id: str) -> None:
            for number in range(10):
                await runtime.handle(listens, id).send("m", number)

        async with anyio.create_task_group() as group:
            for runtime in (one, two):
                for handle in handles:
                    group.start_soon(send, runtime, handle.id)
        for handle in handles:
            assert sorted(await handle.result(timeout=PATIENCE)) == sorted([*range(10), *range(10)])
