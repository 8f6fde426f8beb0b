"""Law 19: bad messages is set aside, with the reason, and the instance goes on waiting."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Stop, until_status
from tests.runtime.polling import settle, until
from workflow_sdk import (
    Client,
    CodecError,
    Context,
    ContinueAsNew,
    Delivery,
    Driver,
    Handle,
    InstanceStateError,
    Runtime,
    Status,
    Workflow,
    workflow,
)
from workflow_sdk.operations.branches import Branches
from workflow_sdk.rows.keys import ASIDE, InstanceKeys

stop = [Stop()]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    stop[0] = Stop()


@dataclass
class Order:
    """What is to be sent."""

    item: str
    amount: int


@workflow
async def takes_a_number(ctx: Context) -> int:
    """Waits for one number."""
    return await ctx.listen("n", type=int)


@workflow
async def takes_an_order(ctx: Context) -> str:
    """Waits for an order, and says so."""
    message = await ctx.listen_message("order", type=Order)
    await message.reply("thank you")
    return message.payload.item


@workflow
async def takes_several(ctx: Context) -> Any:
    """Waits for three numbers, under any of two names."""
    return await ctx.listen_many("n", ["n", "m"], count=3, type=int)


@workflow
async def two_types(ctx: Context) -> Any:
    """One branch takes numbers, the other one texts."""

    async def number(ctx: Context) -> int:
        return await ctx.listen("number", "n", type=int)

    async def text(ctx: Context) -> str:
        return await ctx.listen("text", "n", type=str)

    return await ctx.join("both", {"a": number, "b": text})


@workflow
async def two_types_in_turns(ctx: Context) -> Any:
    """Both branches listen again and again: between two turns, nobody listens for what the other one has refused."""

    def taking(type: Any) -> Callable[[Context], Awaitable[list[Any]]]:
        async def branch(ctx: Context) -> list[Any]:
            found: list[Any] = []
            for number in range(20):
                found.append(await ctx.listen(f"wait {number}", "n", type=type))
                await ctx.step(f"work {number}", lambda: None)
            return found

        return branch

    return await ctx.join("both", {"a": taking(int), "b": taking(str)})


@workflow
async def works_meanwhile(ctx: Context) -> Any:
    """A long step in one branch, and a wait in the other."""

    async def work(ctx: Context) -> str:
        await ctx.step("work", stop[0].here)
        return "done"

    async def listen(ctx: Context) -> int:
        return await ctx.listen("n", type=int)

    return (await ctx.race("either", {"work": work, "listen": listen})).winner


@workflow
async def asks_a_person(ctx: Context) -> Any:
    """A task."""
    done = await ctx.task("approve", type=bool, roles=["boss"], assignee="ann")
    return [done.value, done.by]


@workflow
async def starts_over(ctx: Context, turns: int) -> Any:
    """Takes a number in each of its lives."""
    await ctx.listen("n", type=int)
    return ContinueAsNew(turns - 1) if turns else "over"


FLOWS: list[Workflow[Any, Any]] = [
    takes_a_number, takes_an_order, takes_several, two_types, two_types_in_turns, works_meanwhile, asks_a_person,
    starts_over,
]  # fmt: skip


async def until_aside(handle: Handle[Any], count: int = 1) -> None:
    """Return once so many messages are set aside."""

    async def there() -> bool:
        return len([message for message in await handle.inbox() if message.reason]) >= count

    await until(there)


async def test_the_wait_goes_on(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime, Client(driver) as other:
        handle = await runtime.start(takes_a_number, id="i")
        await until_status(handle, Status.WAITING)
        assert await other.handle("takes_a_number", "i").send("n", "three") is Delivery.ACCEPTED
        await until_aside(handle)
        (message,) = await handle.inbox()
        assert (message.name, message.payload) == ("n", "three")
        assert message.reason is not None
        assert "listen 'n'" in message.reason
        info = await handle.info()
        assert (info.status, info.error, len(info.waits)) == (Status.WAITING, None, 1)
        (record,) = [record for record in caplog.records if "set aside" in record.getMessage()]
        assert record.levelno == logging.WARNING
        assert "'n'" in record.getMessage()
        assert "'i'" in record.getMessage()
        await handle.send("n", 3)
        assert await handle.result(PATIENCE) == 3
        assert [found.payload for found in await handle.inbox()] == ["three"], "it is kept when the instance has ended"
        assert await handle.discard(message.id)
        assert not await handle.discard(message.id)
        assert await handle.inbox() == []


async def test_what_came_before_the_wait(driver: Driver) -> None:
    async with Client(driver) as client:
        handle = await client.start("takes_several", id="i")
        for payload in ("a", 1, None, 2, 2.5):
            await handle.send("n", payload)
            await handle.send("m", [payload])
        await handle.send("m", 3)
        async with Runtime(driver, workflows=FLOWS) as runtime:
            assert await runtime.handle(takes_several, "i").result(PATIENCE) == [1, 2, 3]
        left = await handle.inbox()
        assert [message.payload for message in left if message.reason] == [
            "a", ["a"], [1], None, [None], [2], 2.5, [2.5],
        ]  # fmt: skip


async def test_an_asker_gets_the_error(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime, Client(driver) as other:
        handle = await runtime.start(takes_an_order, id="i")
        for asker in (handle, other.handle("takes_an_order", "i")):
            with anyio.fail_after(PATIENCE), pytest.raises(CodecError, match=r"'order' to 'i' was set aside.*amount"):
                await asker.ask("order", {"item": "tea", "amount": "many"})
        assert await handle.ask("order", {"item": "tea", "amount": 2}) == "thank you"
        assert await handle.result(PATIENCE) == "tea"


async def test_an_asker_gets_the_error_while_a_sibling_works(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime, Client(driver) as other:
        handle = await runtime.start(works_meanwhile, id="i")
        await stop[0].reached.wait()
        with anyio.fail_after(PATIENCE), pytest.raises(CodecError, match="set aside"):
            await other.handle("works_meanwhile", "i").ask("n", "three")
        stop[0].go_on.set()
        assert await handle.result(PATIENCE) == "work"


async def test_it_is_for_the_other_wait(driver: Driver) -> None:
    async with Client(driver) as client:
        handle = await client.start("two_types", id="i")
        await handle.send("n", "text")
        await handle.send("n", 5)
        async with Runtime(driver, workflows=FLOWS) as runtime:
            assert await runtime.handle(two_types, "i").result(PATIENCE) == {"a": 5, "b": "text"}
        assert await handle.inbox() == []


async def test_it_is_for_the_other_wait_when_both_wait(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(two_types, id="i")
        await until_status(handle, Status.WAITING)
        await handle.send("n", [])
        await until_aside(handle)
        await handle.send("n", "text")
        await handle.send("n", 5)
        assert await handle.result(PATIENCE) == {"a": 5, "b": "text"}


@workflow
async def two_texts_or_a_number(ctx: Context) -> Any:
    """One branch takes two texts at once, the other one a number."""

    async def number(ctx: Context) -> int:
        return await ctx.listen("number", "n", type=int)

    async def texts(ctx: Context) -> list[str]:
        return await ctx.listen_many("texts", "n", count=2, type=str)

    return await ctx.join("both", {"a": number, "b": texts})


async def test_it_is_for_the_other_wait_which_needs_one_more(driver: Driver) -> None:
    async with Runtime(driver, workflows=[two_texts_or_a_number]) as runtime:
        handle = await runtime.start(two_texts_or_a_number, id="i")
        await until_status(handle, Status.WAITING)
        await handle.send("n", "one")
        await settle(driver)
        assert [message.reason for message in await handle.inbox()] == [None]
        await handle.send("n", 5)
        await handle.send("n", "two")
        assert await handle.result(PATIENCE) == {"a": 5, "b": ["one", "two"]}


async def test_it_is_for_a_wait_that_is_between_two_turns(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(two_types_in_turns, id="i")
        for number in range(20):
            await handle.send("n", str(number))
        for number in range(20):
            await handle.send("n", number)
        result = await handle.result(PATIENCE)
        assert result == {"a": list(range(20)), "b": [str(number) for number in range(20)]}
        assert await handle.inbox() == []


async def test_it_is_for_a_wait_of_a_branch_that_has_not_begun(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop may run one branch until it waits before another one has its first turn."""
    gate, number, work = anyio.Event(), count(), Branches._work  # pyright: ignore[reportPrivateUsage]

    async def late(branches: Branches, queue: Any, workers: int) -> None:
        if next(number):
            await gate.wait()
        await work(branches, queue, workers)

    monkeypatch.setattr(Branches, "_work", late)
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(two_types, id="i")

        async def one_waits() -> bool:
            return len((await handle.info()).waits) == 1

        await until(one_waits)
        waits_for_a_number = (await handle.info()).waits[0].path.startswith("both/a")
        await handle.send("n", "text" if waits_for_a_number else 5)
        await settle(driver)
        assert [message.reason for message in await handle.inbox()] == [None]
        gate.set()
        await handle.send("n", 5 if waits_for_a_number else "text")
        assert await handle.result(PATIENCE) == {"a": 5, "b": "text"}


async def test_with_the_token_of_a_wait(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(takes_a_number, id="i")
        await until_status(handle, Status.WAITING)
        (wait,) = (await handle.info()).waits
        assert await handle.send("n", "three", token=wait.token) is Delivery.ACCEPTED
        await until_aside(handle)
        assert await handle.send("n", 3, token=wait.token) is Delivery.ACCEPTED, "the wait is the same, and still open"
        assert await handle.result(PATIENCE) == 3


async def test_a_task_is_open_again(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime, Client(driver) as other:
        handle = await runtime.start(asks_a_person, id="i")
        await until_status(handle, Status.WAITING)
        (task,) = (await other.tasks.list()).items
        await other.tasks.complete(task.id, "yes", by="ann", roles=["boss"])
        await until_aside(handle)
        (again,) = (await other.tasks.list(assignee="ann")).items
        assert again == task
        log = (await other.tasks.get(task.id)).log
        assert [change.what for change in log] == ["created", "completed", "reopened"]
        (message,) = await handle.inbox()
        assert (message.name, message.payload) == ("approve", "yes")
        assert message.reason is not None
        assert "task 'approve'" in message.reason
        await until_status(handle, Status.WAITING)
        await other.tasks.complete(task.id, True, by="bob", roles=["boss"])
        assert await handle.result(PATIENCE) == [True, "bob"]


async def test_it_stays_set_aside_when_the_instance_starts_over(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime:
        handle = await runtime.start(starts_over, 2, id="i")
        await until_status(handle, Status.WAITING)
        await handle.send("n", "bad")
        await until_aside(handle)
        for number in range(3):
            await handle.send("n", number)
        assert await handle.result(PATIENCE) == "over"
        assert [message.payload for message in await handle.inbox()] == ["bad"]


async def test_it_is_never_taken_later(driver: Driver) -> None:
    """Not even when the code is changed so that it would fit."""

    @workflow(name="changes")
    async def before(ctx: Context) -> int:
        return await ctx.listen("n", type=int)

    @workflow(name="changes")
    async def after(ctx: Context) -> Any:
        return await ctx.listen("n")

    async with Runtime(driver, workflows=[before]) as runtime:
        handle = await runtime.start(before, id="i")
        await until_status(handle, Status.WAITING)
        await handle.send("n", "three")
        await until_aside(handle)
    async with Runtime(driver, workflows=[after]) as runtime:
        again = runtime.handle(after, "i")
        await again.wake()
        await again.send("n", "four")
        assert await again.result(PATIENCE) == "four"


@workflow
async def listens_after_work(ctx: Context) -> Any:
    """A message that comes during the work is in memory when it is discarded."""
    await ctx.step("work", stop[0].here)
    return await ctx.listen("n", type=int)


async def test_what_was_discarded_is_not_taken(driver: Driver) -> None:
    async with Runtime(driver, workflows=[listens_after_work]) as runtime:
        handle = await runtime.start(listens_after_work, id="i")
        await stop[0].reached.wait()
        await handle.send("n", 1, key="k")
        await settle(driver)
        (message,) = await handle.inbox()
        assert (message.name, message.payload, message.reason) == ("n", 1, None)
        assert await handle.discard(message.id)
        assert await handle.send("n", 1, key="k") is Delivery.DUPLICATE, "its key stays used"
        stop[0].go_on.set()
        await handle.send("n", 2)
        assert await handle.result(PATIENCE) == 2


async def discards_one(handle: Handle[Any]) -> None:
    """Discard the first message that comes."""

    async def there() -> bool:
        return bool(await handle.inbox())

    await until(there)
    assert await handle.discard((await handle.inbox())[0].id)


async def test_an_asker_whose_question_is_discarded(driver: Driver) -> None:
    async with Runtime(driver, workflows=FLOWS) as runtime, Client(driver) as other:
        handle = await runtime.start(takes_a_number, id="i")
        for asker in (handle, other.handle("takes_a_number", "i")):
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as group:
                    group.start_soon(discards_one, handle)
                    with pytest.raises(InstanceStateError, match="was discarded"):
                        await asker.ask("other")


class Xor:
    """A codec, as an author may give one."""

    def __init__(self, key: int) -> None:
        self.key = key

    def encode(self, data: bytes) -> bytes:
        """Other bytes."""
        return bytes(byte ^ self.key for byte in data)

    decode = encode


async def test_what_another_worker_can_read_is_left_to_it(driver: Driver) -> None:
    """While keys are changed, senders may have the new one before the worker has. It goes on with what it can read."""
    old, new = Xor(1), Xor(2)
    async with Runtime(driver, workflows=[takes_several], codec=old) as runtime:
        handle = await runtime.start(takes_several, id="i")
        await until_status(handle, Status.WAITING)
        async with Client(driver, codec=[new, old]) as other:
            await other.handle(takes_several, "i").send("n", 1)
        await handle.send("n", 2)
        async with Client(driver) as stranger:
            await stranger.handle("takes_several", "i").send("n", 0)
        await until_aside_rows(driver, 1)
        await settle(driver)
    async with Runtime(driver, workflows=[takes_several], codec=[new, old]) as runtime:
        again = runtime.handle(takes_several, "i")
        await again.send("n", 3)
        assert await again.result(PATIENCE) == [1, 2, 3]


async def until_aside_rows(driver: Driver, count: int) -> None:
    """Return once so many messages are set aside, whoever can read them."""

    async def there() -> bool:
        return len(await driver.scan(*InstanceKeys("i").range(ASIDE))) == count

    await until(there)
