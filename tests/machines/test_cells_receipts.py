"""Receipts from outside, and what executors send while they run."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.machines.cell_parts import (
    Answer,
    Ask,
    Asked,
    Do,
    ask,
    host,
    manifest_of,
    tells,
    told,
    until_cell,
    until_count,
    until_words,
)
from tests.patience import PATIENCE
from tests.runtime.polling import settle, until
from workflow_sdk import Backoff, Client, DefinitionError, Delivery, Driver, InboxFullError, Runtime
from workflow_sdk.machines import EffectReceipt, EffectRejected, Frame, Intent, MachineContext, Transition
from workflow_sdk.testing import VirtualClock


def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Asks for what each event says."""
    return None if isinstance(event, (EffectReceipt, EffectRejected)) else ask(event.word)


async def open_intent(client: Client, one: Any, key: str) -> str:
    """The id of the only effect that a cell waits for."""
    cell = await until_cell(client, one, key, lambda cell: len(cell.inflight) == 1)
    (id,) = cell.inflight
    return id


async def test_an_effect_that_nobody_runs_is_settled_from_outside(driver: Driver) -> None:
    one = told(asks)
    async with host(driver, one) as runtime, Client(driver) as stranger:
        await runtime.emit(Do("a", "x"))
        id = await open_intent(runtime, one, "a")
        assert await stranger.settle(id, {"text": "by a webhook"}) == Delivery.ACCEPTED
        await until_words(runtime, one, "a", "x", "ok ask@1: by a webhook")
        for _ in range(3):
            assert await stranger.settle(id, {"text": "again"}) == Delivery.STALE
        cell = await until_words(runtime, one, "a", "x", "ok ask@1: by a webhook")
        assert (cell.last_sequence, dict(cell.inflight)) == (2, {})


async def test_a_settled_effect_is_not_done_any_more(driver: Driver) -> None:
    one, asked = told(asks), Asked()
    async with Client(driver, machines=manifest_of(one)) as client:
        async with host(driver, one):
            await client.emit(Do("a", "x"))
            assert await client.settle(await open_intent(client, one, "a"), Answer("done")) == Delivery.ACCEPTED
        async with host(driver, one, executors=[asked.by()]) as runtime:
            await until_words(client, one, "a", "x", "ok ask@1: done")
            await runtime.emit(Do("b", "y"))
            await until_words(client, one, "b", "y", "ok ask@1: y")
    assert asked.params == [Ask("y")]


@pytest.mark.parametrize("id", ["", "unknown", "0" * 40, "\x00", "ü", "x" * 200])
async def test_an_unknown_intent_changes_nothing(driver: Driver, id: str) -> None:
    one = told(asks)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "x"))
        await open_intent(runtime, one, "a")
        assert await runtime.settle(id, Answer("x")) == Delivery.STALE
        assert await runtime.frames(id) == []
        await settle(driver)
        assert (await runtime.cell(one, "a")).state == ["x"]


@pytest.mark.parametrize("status", ["ok", "error", "timeout", "fault"])
async def test_a_receipt_from_outside_has_a_status(driver: Driver, status: Any) -> None:
    seen: list[EffectReceipt] = []

    def hears(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            seen.append(event)
        return asks(words, event, ctx)

    one = told(hears)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "x"))
        payload: Any = Answer("x") if status == "ok" else {"why": ["it", 1, None]}
        assert await runtime.settle(await open_intent(runtime, one, "a"), payload, status=status) == Delivery.ACCEPTED
        await until_count(runtime, one, "a", 2)
    assert (seen[0].status, seen[0].payload, seen[0].executor) == (status, payload, None)


async def test_nonsense_from_outside_is_refused_and_the_effect_stays_open(driver: Driver) -> None:
    one = told(asks)
    bad: Any
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "x"))
        id = await open_intent(runtime, one, "a")
        for bad in (object(), lambda: None, "\ud800"):
            with pytest.raises(DefinitionError):
                await runtime.settle(id, bad)
        for bad in ("fine", "", None, 7):
            with pytest.raises(DefinitionError):
                await runtime.settle(id, Answer("x"), status=bad)
        for bad in (None, 7, b"x"):
            with pytest.raises(DefinitionError):
                await runtime.settle(bad, Answer("x"))
        with pytest.raises(Exception, match="limit"):
            await runtime.settle(id, "x" * 3_000_000)
        assert await runtime.settle(id, Answer("at last")) == Delivery.ACCEPTED
        await until_words(runtime, one, "a", "x", "ok ask@1: at last")


async def test_a_payload_from_outside_that_does_not_fit_is_rejected_or_fails_the_cell(driver: Driver) -> None:
    hears, deaf = told(asks, name="hears@1"), told(asks, name="deaf@1", event=Do | EffectReceipt)
    async with host(driver, hears, deaf) as runtime:
        await runtime.emit(Do("a", "x"))
        assert await runtime.settle(await open_intent(runtime, hears, "a"), {"other": 7}) == Delivery.ACCEPTED
        await until_words(runtime, hears, "a", "x", "rejected ask@1")
        assert await runtime.settle(await open_intent(runtime, deaf, "a"), {"other": 7}) == Delivery.ACCEPTED
        cell = await until_cell(runtime, deaf, "a", lambda cell: cell.status == "failed")
        assert (cell.state, dict(cell.inflight)) == (["x"], {})


async def test_many_answers_at_once_and_one_counts(driver: Driver) -> None:
    one, told_them = told(asks), list[Delivery]()
    async with host(driver, one) as runtime, Client(driver) as other:
        await runtime.emit(Do("a", "x"))
        id = await open_intent(runtime, one, "a")

        async def answers(client: Client, text: str) -> None:
            told_them.append(await client.settle(id, Answer(text)))

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(answers, (runtime, other)[number % 2], str(number))
        assert sorted(told_them) == sorted([Delivery.ACCEPTED] + [Delivery.STALE] * 9)
        await until_count(runtime, one, "a", 2)
        await settle(driver)
        assert (await runtime.cell(one, "a")).last_sequence == 2


async def test_an_executor_that_runs_meanwhile_is_too_late(driver: Driver) -> None:
    one, asked, go_on = told(asks), Asked(), anyio.Event()
    async with host(driver, one, executors=[asked.waiting(go_on)]) as runtime:
        await runtime.emit(Do("a", "x"))
        await asked.began.wait()
        assert await runtime.settle(asked.ids[0], Answer("from outside")) == Delivery.ACCEPTED
        await until_words(runtime, one, "a", "x", "ok ask@1: from outside")
        go_on.set()
        await settle(driver)
        await until_words(runtime, one, "a", "x", "ok ask@1: from outside")
        await runtime.emit(Do("a", "y"))
        await until_words(runtime, one, "a", "x", "ok ask@1: from outside", "y", "ok ask@1: y")


async def test_a_receipt_for_an_ended_cell_is_closed(driver: Driver) -> None:
    def ends(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return Transition(words, done=True) if event.word == "end" else ask(event.word)

    one = told(ends)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "x"))
        id = await open_intent(runtime, one, "a")
        await runtime.emit(Do("a", "end"))
        await until_cell(runtime, one, "a", lambda cell: cell.status == "completed")
        assert await runtime.settle(id, Answer("late")) == Delivery.CLOSED
        assert await runtime.settle(id, Answer("late")) == Delivery.STALE


async def test_a_receipt_finds_room_in_a_full_inbox(driver: Driver) -> None:
    one = told(asks)
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest) as client:
        async with Runtime(driver, machines=manifest, inbox_max=1) as runtime:
            await runtime.emit(Do("a", "x"))
            id = await open_intent(client, one, "a")
        await client.emit(Do("a", "y"))
        with pytest.raises(InboxFullError):
            await client.emit(Do("a", "z"))
        assert await client.settle(id, Answer("x")) == Delivery.ACCEPTED
        async with Runtime(driver, machines=manifest):
            await until_words(client, one, "a", "x", "y", "ok ask@1: x")


# Frames.


async def test_what_an_executor_sends_can_be_read_while_it_runs(driver: Driver) -> None:
    one, go_on, sent = told(asks), anyio.Event(), anyio.Event()

    async def sends(params: Ask, intent: Intent) -> Answer:
        for number in range(3):
            await intent.send({"percent": number * 10})
        sent.set()
        await go_on.wait()
        await intent.send(Answer("the last"))
        return Answer("done")

    asked = Asked()
    async with host(driver, one, executors=[asked.by(sends)]) as runtime, Client(driver) as reader:
        await runtime.emit(Do("a", "x"))
        with anyio.fail_after(PATIENCE):
            await sent.wait()
        frames = await reader.frames(asked.ids[0])
        assert [frame.value for frame in frames] == [{"percent": 0}, {"percent": 10}, {"percent": 20}]
        assert {frame.attempt for frame in frames} == {1}
        assert [frame.value for frame in await reader.frames(asked.ids[0], after=frames[0].cursor)] == [
            {"percent": 10},
            {"percent": 20},
        ]
        assert await reader.frames(asked.ids[0], after=frames[-1].cursor) == []
        assert (await runtime.cell(one, "a")).state == ["x"], "a frame is no receipt"
        go_on.set()
        await until_words(runtime, one, "a", "x", "ok ask@1: done")
        after = await reader.frames(asked.ids[0], after=frames[-1].cursor)
        assert [frame.value for frame in after] == [{"text": "the last"}]
        bad: Any
        for bad in ("no cursor", 7):
            with pytest.raises(DefinitionError):
                await reader.frames(asked.ids[0], after=bad)


async def test_an_attempt_that_is_over_sends_no_more(driver: Driver) -> None:
    one, kept, errors = told(asks), list[Intent](), list[Exception]()
    clock = VirtualClock(quiet=0.05)

    async def sends(params: Ask, intent: Intent) -> Answer:
        kept.append(intent)
        await intent.send(f"of attempt {intent.attempt}")
        if intent.attempt == 1:
            raise ValueError("again")
        try:
            await kept[0].send("too late")
        except DefinitionError as error:
            errors.append(error)
        return Answer("done")

    asked = Asked()
    done = asked.by(sends, retries=1, backoff=Backoff(initial=1, jitter=0))
    async with host(driver, one, executors=[done], clock=clock) as runtime:
        await runtime.emit(Do("a", "x"))
        await until_words(runtime, one, "a", "x", "ok ask@1: done")
        frames = await runtime.frames(asked.ids[0])
        assert [(frame.attempt, frame.value) for frame in frames] == [(1, "of attempt 1"), (2, "of attempt 2")]
        assert len(errors) == 1
        for intent in kept:
            with pytest.raises(DefinitionError):
                await intent.send("after the receipt")
        assert await runtime.frames(asked.ids[0]) == frames


async def test_who_has_lost_an_effect_sends_no_more(driver: Driver) -> None:
    """It was settled from outside, or the runtime that had it has ended: its executor may not know yet."""
    one = told(asks)
    first, second = Asked(), Asked()
    go_on = anyio.Event()
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest) as client:
        async with Runtime(driver, machines=manifest, executors=[first.waiting(go_on)], grace=0.01):
            await client.emit(Do("a", "x"))
            await first.began.wait()
            await first.intents[0].send("of the first")
        with pytest.raises(Exception):  # noqa: B017, PT011  # its runtime is over
            await first.intents[0].send("too late")
        async with Runtime(driver, machines=manifest, executors=[second.waiting(go_on)]):
            await second.began.wait()
            with pytest.raises(Exception):  # noqa: B017, PT011
                await first.intents[0].send("too late")
            await second.intents[0].send("of the second")
            assert [frame.value for frame in await client.frames(first.ids[0])] == ["of the first", "of the second"]
            await client.settle(first.ids[0], Answer("from outside"))
            with pytest.raises(DefinitionError):
                await second.intents[0].send("too late")
            go_on.set()
            await until_words(client, one, "a", "x", "ok ask@1: from outside")
    assert first.ids == second.ids


@pytest.mark.parametrize("bad", [object(), "\ud800", "x" * 3_000_000], ids=["object", "surrogate", "large"])
async def test_what_cannot_be_stored_is_refused_when_it_is_sent(driver: Driver, bad: Any) -> None:
    one, errors = told(asks), list[Exception]()

    async def sends(params: Ask, intent: Intent) -> Answer:
        try:
            await intent.send(bad)
        except Exception as error:  # noqa: BLE001
            errors.append(error)
        return Answer("done")

    asked = Asked()
    async with host(driver, one, executors=[asked.by(sends)]) as runtime:
        await runtime.emit(Do("a", "x"))
        await until_words(runtime, one, "a", "x", "ok ask@1: done")
        assert await runtime.frames(asked.ids[0]) == []
    assert len(errors) == 1


async def test_frames_are_gone_with_the_cell_and_are_bounded_while_it_lives(driver: Driver) -> None:
    def deletes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            return None
        return Transition(None) if event.word == "delete" else ask(event.word)

    async def sends(params: Ask, intent: Intent) -> Answer:
        await intent.send(params.what)
        return Answer(params.what)

    one, asked = told(deletes), Asked()
    async with host(driver, one, executors=[asked.by(sends)]) as runtime:
        for number in range(5):
            await runtime.emit(Do("a", str(number)))
            await until_count(runtime, one, "a", 2 * number + 2)
        kept = [bool(await runtime.frames(id)) for id in asked.ids]
        assert kept == [False] * 4 + [True]
        await runtime.emit(Do("a", "delete"))

        async def none_is_left() -> bool:
            return not [frame for id in asked.ids for frame in await runtime.frames(id)]

        await until(none_is_left)


async def test_frames_of_one_that_never_waits_for_a_receipt_are_a_value(driver: Driver) -> None:
    one, asked = told(asks), Asked()
    async with host(driver, one, executors=[asked.by(tells("x"))]) as runtime:
        await runtime.emit(Do("a", "x"))
        await until_count(runtime, one, "a", 2)
        assert await runtime.frames(asked.ids[0]) == []
    assert Frame.__dataclass_fields__.keys() >= {"cursor", "value", "attempt", "at"}
