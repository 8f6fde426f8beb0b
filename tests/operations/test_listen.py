"""`ctx.listen`, `ctx.listen_message` and `ctx.listen_many`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support import World
from workflow_sdk import Context, Delivery, EntryStatus, Kind, ListenTimeoutError, Status, send_message, workflow
from workflow_sdk.driver import Batch
from workflow_sdk.journal.inbox import Answer, InboxMessage, SetAside
from workflow_sdk.rows.keys import ASIDE, INBOX, InstanceKeys
from workflow_sdk.values import Codec


@dataclass
class Approval:
    by: str
    at: datetime


async def test_a_message_is_taken_under_the_name_of_the_wait(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> Any:
        payload = await ctx.listen("approval")
        await ctx.sleep("pause", 60)
        return payload

    result = await world.run(waits, script=[("approval", {"by": "ann"})])
    assert (result.status, result.output) == (Status.COMPLETED, {"by": "ann"})
    entry = (await world.history())["approval"]
    assert (entry.kind, entry.status, entry.value) == (Kind.LISTEN, EntryStatus.COMPLETED, {"by": "ann"})


@pytest.mark.parametrize("messages", ["yes", ["no", "yes"], ("yes",)])
async def test_the_messages_can_be_named(world: World, messages: Any) -> None:
    @workflow
    async def waits(ctx: Context) -> Any:
        return await ctx.listen("approval", messages)

    result = await world.run(waits, script=[("approval", 0), ("yes", 1)][1:])
    assert result.output == 1


async def test_other_messages_stay_where_they_are(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> list[Any]:
        b = await ctx.listen("b")
        return [b, await ctx.listen("a"), await ctx.listen("either", ("a", "b"))]

    first = await world.once(waits, mode="yield")
    assert first.waiting_for == ["b"]
    for name, payload in [("a", 1), ("a", 2), ("b", 3), ("b", 4)]:
        await world.send(name, payload)
    assert (await world.run(waits)).output == [3, 1, 2]
    assert len(await world.driver.scan(*InstanceKeys("i").range(INBOX))) == 1


async def test_messages_sent_before_the_wait_are_taken_in_order(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> list[Any]:
        await ctx.sleep("pause", 60)
        return [await ctx.listen(f"w{n}", ("a", "b")) for n in range(3)]

    await world.once(waits, mode="yield")
    assert await send_message(world.driver, "i", "a", 1, clock=world.clock) is Delivery.QUEUED
    await world.send("b", 2)
    await world.send("a", 3)
    assert (await world.run(waits)).output == [1, 2, 3]


async def test_an_instance_that_waits_says_so(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> None:
        await ctx.listen("w", ("b", "a"), timeout=60)

    result = await world.once(waits, mode="yield")
    assert (result.status, result.waiting_for) == (Status.WAITING, ["a", "b"])
    assert result.wake_at == datetime.fromtimestamp(world.clock.time() + 60, UTC)
    assert (await world.history()).status is Status.WAITING
    assert (await world.history())["w"].status is EntryStatus.WAITING


DEADLINES: list[Callable[[World], dict[str, Any]]] = [
    lambda world: {"timeout": 60},
    lambda world: {"timeout": timedelta(minutes=1)},
    lambda world: {"until": datetime.fromtimestamp(world.clock.time() + 60, UTC)},
    lambda world: {"timeout": 0},
    lambda world: {"until": datetime(1999, 1, 1, tzinfo=UTC)},
]


@pytest.mark.parametrize("deadline", DEADLINES, ids=["seconds", "timedelta", "until", "zero", "past"])
async def test_at_the_deadline_it_is_a_timeout(world: World, deadline: Callable[[World], dict[str, Any]]) -> None:
    seen: list[TimeoutError] = []
    options = deadline(world)

    @workflow
    async def waits(ctx: Context) -> list[Any]:
        try:
            await ctx.listen("approval", **options)
        except TimeoutError as error:
            seen.append(error)
        value = await ctx.listen("again", default="none came", **options)
        await ctx.sleep("pause", 60)
        return [value]

    result = await world.run(waits)
    assert result.output == ["none came"]
    assert {type(error) for error in seen} == {ListenTimeoutError}
    assert {str(error) for error in seen} == {"listen 'approval': no message 'approval' came in time"}
    history = await world.history()
    assert (history["approval"].status, history["again"].status) == (EntryStatus.FAILED, EntryStatus.COMPLETED)


@pytest.mark.parametrize("default", [None, False, {"x": 1}, ...], ids=str)
async def test_any_default_is_one(world: World, default: Any) -> None:
    @workflow
    async def waits(ctx: Context) -> bool:
        found = await ctx.listen("w", timeout=1, default=default)
        return type(found) is type(default) and found == default

    assert (await world.run(waits)).output is True


async def test_the_deadline_stands_from_the_first_time(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> Any:
        return await ctx.listen("w", timeout=60, default="late")

    first = await world.once(waits, mode="yield")
    world.clock.advance(59)
    assert await world.once(waits, mode="yield") == first
    world.clock.advance(1)
    assert (await world.once(waits)).output == "late"


@pytest.mark.law(6)
async def test_a_message_that_came_before_the_deadline_wins(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> Any:
        return await ctx.listen("w", timeout=60)

    await world.once(waits, mode="yield")
    world.clock.advance(30)
    await world.send("w", "in time")
    world.clock.advance(3600)
    assert (await world.once(waits)).output == "in time"


async def test_a_payload_comes_as_its_type(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> list[Any]:
        approval = await ctx.listen("approval", type=Approval)
        assert type(approval) is Approval
        numbers = await ctx.listen_many("n", count=2, type=int)
        message = await ctx.listen_message("m", type=tuple[int, str])
        await ctx.sleep("pause", 60)
        return [approval, numbers, message.payload]

    when = datetime(2031, 1, 2, tzinfo=UTC)
    script = [
        ("approval", {"by": "ann", "at": when.isoformat()}),
        ("n", 1),
        ("n", 2),
        ("m", [1, "a"]),
    ]
    result = await world.run(waits, script=script)
    assert result.output == [Approval("ann", when), [1, 2], (1, "a")]


async def test_a_payload_that_does_not_fit_is_set_aside(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> int:
        return await ctx.listen("n", type=int)

    result = await world.run(waits, script=[("n", "three"), ("n", 3)])
    assert (result.status, result.output) == (Status.COMPLETED, 3)
    keys = InstanceKeys("i")
    assert await world.driver.scan(*keys.range(INBOX)) == []
    ((_, raw),) = await world.driver.scan(*keys.range(ASIDE))
    assert SetAside.unpack(raw).name == "n"


async def test_two_listeners_get_a_message_each(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> list[int]:
        async def listen(ctx: Context) -> int:
            return await ctx.listen("n", type=int)

        return sorted((await ctx.join("both", {"a": listen, "b": listen})).values())

    result = await world.run(waits, script=[("n", 1), ("n", 2)])
    assert result.output == [1, 2]


async def test_one_listener_after_the_other(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> list[Any]:
        return [await ctx.listen("first", "n"), await ctx.listen("second", "n")]

    assert (await world.run(waits, script=[("n", 1), ("n", 2)])).output == [1, 2]


async def test_a_name_can_be_given_twice(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> list[Any]:
        return [await ctx.listen("w", ["a", "a"]), await ctx.listen_many("two", ("a", "b", "a"), count=2)]

    assert (await world.run(waits, script=[("a", 1), ("a", 2), ("b", 3)])).output == [1, [2, 3]]


async def test_several_messages(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> list[Any]:
        return await ctx.listen_many("numbers", ("a", "b"), count=3)

    result = await world.run(waits, script=[("a", 1), ("b", 2), ("a", 3)])
    assert result.output == [1, 2, 3]
    assert (await world.history())["numbers"].value == [1, 2, 3]


@pytest.mark.parametrize("sent", [0, 2])
async def test_several_messages_are_those_that_came_by_the_deadline(world: World, sent: int) -> None:
    @workflow
    async def waits(ctx: Context) -> list[Any]:
        got = await ctx.listen_many("n", count=3, timeout=60)
        await ctx.sleep("pause", 60)
        return got

    await world.once(waits, mode="yield")
    for n in range(sent):
        await world.send("n", n)
    assert (await world.run(waits)).output == list(range(sent))
    assert (await world.history())["n"].status is EntryStatus.COMPLETED


async def test_a_wait_for_several_leaves_the_first_to_others_until_it_has_all(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> Any:
        async def pair(ctx: Context) -> list[int]:
            return await ctx.listen_many("two", "n", count=2, type=int, timeout=100)

        async def single(ctx: Context) -> int:
            await ctx.sleep("later", 50)
            return await ctx.listen("one", "n", type=int)

        return await ctx.join("both", {"pair": pair, "single": single})

    await world.once(waits, mode="yield")
    await world.send("n", 1)
    result = await world.run(waits)
    assert result.output == {"pair": [], "single": 1}


async def test_the_message_itself(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> list[Any]:
        message = await ctx.listen_message("m", ("a", "b"))
        await message.reply("nobody asked")
        await ctx.sleep("pause", 60)
        return [message.name, message.payload, message.sent_at, message.id]

    began = datetime.fromtimestamp(world.clock.time(), UTC)
    result = await world.run(waits, script=[("b", 7)])
    assert result.output is not None
    name, payload, sent_at, id_ = result.output
    assert (name, payload, sent_at) == ("b", 7, began)
    assert isinstance(id_, str)
    assert bytes.fromhex(id_)


async def test_a_message_that_did_not_come(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> list[Any]:
        got = await ctx.listen_message("m", type=int, timeout=1, default=None)
        try:
            await ctx.listen_message("m2", timeout=1)
        except ListenTimeoutError:
            return [got, "timeout"]
        return ["no timeout"]

    assert (await world.run(waits)).output == [None, "timeout"]


async def test_a_reply_reaches_the_one_who_asked(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> None:
        message = await ctx.listen_message("question", type=int)
        await message.reply({"answer": message.payload + 1})
        await ctx.sleep("pause", 60)

    await world.once(waits, mode="yield")
    keys, key = InstanceKeys("i"), b"the place of the answer"
    batch = Batch()
    batch.append(keys.space + INBOX, InboxMessage(b"", "question", Codec().encode(41), 0.0, key).pack())
    batch.set(keys.stamp, b"another")
    batch.set(key, b"")
    await world.driver.commit(batch)
    assert (await world.run(waits)).status is Status.COMPLETED
    answer = await world.driver.get(key)
    assert answer is not None
    assert Codec().decode(Answer.unpack(answer).value) == {"answer": 42}


async def test_a_thousand_messages_in_order(world: World) -> None:
    @workflow
    async def waits(ctx: Context) -> list[int]:
        return [await ctx.listen("go", type=int), *await ctx.listen_many("n", count=1000, type=int)]

    await world.once(waits, mode="yield")
    for n in range(1000):
        await world.send("n", n)
    await world.send("go", -1)
    assert (await world.run(waits)).output == list(range(-1, 1000))
