"""`ctx.effect`: effects that workflows ask for, and their receipts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.machines.cell_parts import Answer, Ask, Asked, Do, ask, manifest_of, tells, told, until_words
from tests.machines.test_cells_codec import check_no_secret
from tests.patience import PATIENCE
from tests.runtime.polling import settle, until
from workflow_sdk import (
    ApplyBlockedError,
    Client,
    Context,
    Delivery,
    Driver,
    Kind,
    Runtime,
    Status,
    Workflow,
    run_workflow,
    workflow,
)
from workflow_sdk.codecs import fernet
from workflow_sdk.machines import EffectReceipt, Executor, Intent, Manifest, effect, timer
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

pytestmark = pytest.mark.law(1, 21)

MANIFEST = Manifest(effects=[ask, timer])


@workflow
async def asks(ctx: Context, word: str) -> EffectReceipt:
    """Asks once."""
    return await ctx.effect("asks", ask(word).tagged("me"))


def host(driver: Any, flow: Workflow[Any, Any], *executors: Executor, **options: Any) -> Runtime:
    """A runtime of a workflow and executors."""
    return Runtime(driver, workflows=[flow], machines=MANIFEST, executors=executors, **options)


async def until_asked(client: Client, id: str, flow: Workflow[Any, Any] = asks) -> str:
    """Return the intent that an instance waits for."""
    found: list[str] = []

    async def waits() -> bool:
        found[:] = [wait.target or "" for wait in (await client.handle(flow, id).info()).waits if wait.kind == "effect"]
        return bool(found)

    await until(waits)
    return found[0]


async def test_a_workflow_hears_of_its_effect(driver: Driver) -> None:
    asked = Asked()
    async with host(driver, asks, asked.by()) as runtime:
        handle = await runtime.start(asks, "x", id="one")
        receipt = await handle.result()
        (entry,) = await handle.history()
    (intent,) = asked.intents
    assert receipt == EffectReceipt("asks", "one", intent.id, "ask@1", receipt.executor, "me", "ok", Answer("x"))
    assert receipt.executor is not None
    assert (intent.effect, intent.params, intent.machine, intent.key) == ("ask@1", Ask("x"), "asks", "one")
    assert (intent.issuer, intent.sequence, intent.attempt) == ("me", 0, 1)
    assert entry.kind is Kind.EFFECT


def raises(error: BaseException) -> Callable[[Any, Intent], Any]:
    """An answer that is an error."""

    def answer(params: Any, intent: Intent) -> Any:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "status", "payload"),
    [
        (raises(ValueError("no money")), "error", "no money"),
        (raises(SystemExit(3)), "fault", "3"),
        (lambda params, intent: object(), "fault", "no usable one"),
        (lambda params, intent: "no receipt", "fault", "no usable one"),
        (lambda params, intent: anyio.sleep_forever(), "timeout", "0.01"),
    ],
)
async def test_whatever_becomes_of_it_the_receipt_says(driver: Driver, answer: Any, status: str, payload: str) -> None:
    options = {"timeout": 0.01} if status == "timeout" else {}
    async with host(driver, asks, Asked().by(answer, **options)) as runtime:
        receipt = await (await runtime.start(asks, "x", id="one")).result()
    assert receipt.status == status
    assert payload in str(receipt.payload)


async def test_it_may_be_settled_from_outside_once(driver: Driver) -> None:
    async with host(driver, asks) as runtime:
        handle = await runtime.start(asks, "x", id="one")
        id = await until_asked(runtime, "one")
        assert (await handle.info()).status is Status.WAITING
        assert await runtime.settle(id, Answer("by hand")) == Delivery.ACCEPTED
        assert await runtime.settle(id, Answer("again")) == Delivery.STALE
        receipt = await handle.result()
    assert (receipt.payload, receipt.executor) == (Answer("by hand"), None)


async def test_an_executor_in_another_process_does_it(driver: Driver) -> None:
    asked = Asked()
    async with host(driver, asks) as one, Client(driver) as client:
        async with Runtime(driver, machines=MANIFEST, executors=[asked.by()]):
            handle = await one.start(asks, "x", id="one")
            assert (await handle.result()).payload == Answer("x")
        assert (await client.handle(asks, "one").info()).status is Status.COMPLETED
    assert len(asked.ids) == 1


async def test_an_instance_that_is_not_in_memory_is_woken_by_its_receipt(driver: Driver) -> None:
    go_on, asked = anyio.Event(), Asked()
    async with host(driver, asks, asked.waiting(go_on), max_resident=0) as runtime:
        handle = await runtime.start(asks, "x", id="one")
        await asked.began.wait()
        await settle(driver)
        assert runtime.resident == 0
        go_on.set()
        assert (await handle.result()).payload == Answer("x")


async def test_what_an_executor_sends_can_be_read_until_it_is_done(driver: Driver) -> None:
    go_on, sent = anyio.Event(), anyio.Event()

    async def sends(params: Ask, intent: Intent) -> Answer:
        await intent.send("half")
        sent.set()
        await go_on.wait()
        return Answer("whole")

    asked = Asked()
    async with host(driver, asks, asked.by(sends)) as runtime:
        handle = await runtime.start(asks, "x", id="one")
        await sent.wait()
        (id,) = asked.ids
        assert [frame.value for frame in await runtime.frames(id)] == ["half"]
        go_on.set()
        await handle.result()
        assert await runtime.frames(id) == []


async def test_a_timer_is_an_effect_as_any_other(driver: Driver) -> None:
    @workflow
    async def waits(ctx: Context) -> str:
        return (await ctx.effect("wait", timer(after=86_400))).status

    async with host(driver, waits, clock=VirtualClock()) as runtime:
        assert await (await runtime.start(waits, id="one")).result() == "ok"


# Mistakes.


@pytest.mark.parametrize("runs_machines", [True, False])
async def test_what_the_manifest_lacks_is_a_mistake(driver: Driver, runs_machines: bool) -> None:
    other = effect("other@1", params=str)

    @workflow
    async def errs(ctx: Context) -> None:
        await ctx.effect("errs", other("x"))

    manifest = MANIFEST if runs_machines else None
    async with Runtime(driver, workflows=[errs], machines=manifest) as runtime:
        handle = await runtime.start(errs, id="one")
        with pytest.raises(Exception, match="other@1"):
            await handle.result()
        info = await handle.info()
    assert (info.status, info.error and info.error.kind) == (Status.STUCK, "definition")


async def test_an_effect_of_the_same_name_is_not_the_one_of_the_manifest(driver: Driver) -> None:
    same = effect("ask@1", params=Ask, receipt=Answer)

    @workflow
    async def errs(ctx: Context) -> None:
        await ctx.effect("errs", same("x"))

    async with host(driver, errs) as runtime:
        handle = await runtime.start(errs, id="one")
        with pytest.raises(Exception, match="Manifest"):
            await handle.result()


@pytest.mark.parametrize("wrong", [ask, "ask@1", None, Ask("x")])
async def test_only_a_request_can_be_asked_for(driver: Driver, wrong: Any) -> None:
    @workflow
    async def errs(ctx: Context) -> None:
        await ctx.effect("errs", wrong)

    async with host(driver, errs) as runtime:
        handle = await runtime.start(errs, id="one")
        with pytest.raises(Exception, match="takes a request for an effect"):
            await handle.result()


async def test_a_run_without_a_runtime_has_no_machines(driver: Driver) -> None:
    result = await run_workflow(asks, "x", driver=driver, instance_id="one")
    assert result.status is Status.STUCK
    assert "Runtime(machines=" in str(result.error)


# Waits that end early.


async def test_a_receipt_for_a_wait_that_lost_a_race_is_dropped(driver: Driver) -> None:
    go_on, asked = anyio.Event(), Asked()

    @workflow
    async def races(ctx: Context) -> list[Any]:
        async def waits(ctx: Context) -> str:
            await ctx.effect("asks", ask("slow"))
            return "asked"

        async def listens(ctx: Context) -> str:
            return str(await ctx.listen("stop"))

        won = await ctx.race("race", {"asks": waits, "listens": listens})
        return [won.winner, await ctx.listen("end")]

    async with host(driver, races, asked.waiting(go_on)) as runtime:
        handle = await runtime.start(races, id="one")
        await asked.began.wait()
        await handle.send("stop", "stopped")
        await until(lambda: _waits_for(handle, "end"))
        go_on.set()
        await settle(driver)
        await handle.send("end", "ended")
        assert await handle.result() == ["listens", "ended"]
        assert await runtime.settle(asked.ids[0]) == Delivery.STALE


async def _waits_for(handle: Any, message: str) -> bool:
    return [wait.message for wait in (await handle.info()).waits] == [message]


@pytest.mark.parametrize("deletes", [True, False])
async def test_a_receipt_for_an_instance_that_has_ended_is_dropped(driver: Driver, deletes: bool) -> None:
    async with host(driver, asks) as runtime:
        handle = await runtime.start(asks, "x", id="one")
        id = await until_asked(runtime, "one")
        await handle.cancel()
        if deletes:
            await runtime.delete("one")
        assert await runtime.settle(id, Answer("late")) == Delivery.CLOSED


async def test_a_restart_asks_anew(driver: Driver) -> None:
    asked = Asked()
    async with host(driver, asks, asked.by()) as runtime:
        handle = await runtime.start(asks, "x", id="one")
        first = await handle.result()
        await handle.restart_from("asks")
        second = await handle.result()
    assert [first.intent_id, second.intent_id] == asked.ids
    assert len(set(asked.ids)) == 2


async def test_one_that_is_restarted_while_it_waits_hears_of_the_new_one_only(driver: Driver) -> None:
    async with host(driver, asks) as runtime:
        handle = await runtime.start(asks, "x", id="one")
        first = await until_asked(runtime, "one")
        await handle.restart_from("asks")
        await until(lambda: _is_other(runtime, first))
        second = await until_asked(runtime, "one")
        assert await runtime.settle(first, Answer("first")) == Delivery.CLOSED
        assert await runtime.settle(second, Answer("second")) == Delivery.ACCEPTED
        assert (await handle.result()).payload == Answer("second")


async def _is_other(client: Client, first: str) -> bool:
    waits = (await client.handle(asks, "one").info()).waits
    return [wait.target for wait in waits if wait.kind == "effect"] not in ([], [first])


async def test_a_cancelled_instance_that_is_recovered_asks_anew(driver: Driver) -> None:
    async with host(driver, asks) as runtime:
        handle = await runtime.start(asks, "x", id="one")
        first = await until_asked(runtime, "one")
        await handle.cancel()
        await handle.restart_from("asks")
        second = await until_asked(runtime, "one")
        assert first != second
        assert await runtime.settle(first, Answer("first")) == Delivery.CLOSED
        assert await runtime.settle(second, Answer("second")) == Delivery.ACCEPTED
        assert (await handle.result()).payload == Answer("second")


# Many, and codecs.


async def test_equal_requests_never_cross(driver: Driver) -> None:
    asked = Asked()

    @workflow
    async def maps(ctx: Context, count: int) -> list[str]:
        async def one(ctx: Context, number: int) -> str:
            first = await ctx.effect("first", ask("same"))
            second = await ctx.effect("second", ask("same"))
            return f"{first.payload.text} {second.payload.text}"

        return await ctx.map("map", one, range(count), limit=8)

    async with host(driver, maps, asked.by(lambda params, intent: Answer(intent.id))) as runtime:
        handles = [await runtime.start(maps, 10, id=str(number)) for number in range(3)]
        found = [text for handle in handles for text in await handle.result()]
    given = [id for text in found for id in text.split()]
    assert sorted(given) == sorted(asked.ids)
    assert len(set(given)) == 60
    keys = {intent.id: intent.key for intent in asked.intents}
    assert [keys[id] for id in given] == [str(number) for number in range(3) for _ in range(20)]


async def test_nothing_of_it_is_stored_in_plaintext(driver: Driver) -> None:
    go_on, asked = anyio.Event(), Asked()

    async def sends(params: Ask, intent: Intent) -> Answer:
        await intent.send("the secret frame")
        await go_on.wait()
        return Answer("the secret answer")

    async with host(driver, asks, asked.by(sends), codec=fernet("a" * 43 + "=")) as runtime:
        handle = await runtime.start(asks, "the secret word", id="one")
        await asked.began.wait()
        await settle(driver)
        await check_no_secret(driver)
        go_on.set()
        assert (await handle.result()).payload == Answer("the secret answer")
        await check_no_secret(driver)


# Manifests.


async def test_an_effect_of_a_workflow_is_in_the_way_of_another_manifest(driver: Driver) -> None:
    other = Manifest(effects=[ask, timer, effect("other@1")])
    async with host(driver, asks) as runtime:
        await runtime.start(asks, "x", id="one")
        id = await until_asked(runtime, "one")
        with pytest.raises(ApplyBlockedError, match="asks: 1"):
            await runtime.apply(other)
        await runtime.settle(id, Answer("now"))
        await runtime.apply(other)


async def test_cells_and_workflows_ask_the_same_executor(driver: Driver) -> None:
    def both(words: list[str], event: Any, ctx: Any) -> Any:
        return None if isinstance(event, EffectReceipt) else ask(event.word)

    one, asked = told(both), Asked()
    manifest = manifest_of(one)
    async with Runtime(driver, workflows=[asks], machines=manifest, executors=[asked.by(tells("!"))]) as runtime:
        handle = await runtime.start(asks, "x", id="a")
        await runtime.emit(Do("a", "x"))
        await until_words(runtime, one, "a", "x", "ok ask@1: !")
        assert (await handle.result()).payload == Answer("!")
    assert len(set(asked.ids)) == 2


# Crashes.


@pytest.mark.parametrize("side", ["before", "after"])
async def test_it_is_done_for_one_intent_wherever_its_worker_dies(driver: Driver, side: str) -> None:
    number, commits = 0, sys.maxsize
    while number < commits:
        number += 1
        asked, id = Asked(), f"{side}-{number}"
        async with Client(driver) as client:
            await client.start(twice, id=id)
        options: dict[str, Any] = {"crash_before": number} if side == "before" else {"crash_after": number}
        dying, clock = FaultyDriver(driver, **options), VirtualClock()
        try:
            with anyio.fail_after(PATIENCE):
                async with host(dying, twice, asked.by(), clock=clock) as runtime:
                    await runtime.handle(twice, id).result()
            commits = number
        except* SimulatedCrash:
            async with host(driver, twice, asked.by(), clock=clock) as runtime:
                await runtime.handle(twice, id).result()
        async with Client(driver) as client:
            found = await client.handle(twice, id).result()
        assert found == ["x", "x"]
        assert len(set(asked.ids)) == 2, "one intent for each, however often it was tried"
    assert commits > 4


@workflow
async def twice(ctx: Context) -> list[str]:
    """Asks twice for the same."""
    return [(await ctx.effect(name, ask("x"))).payload.text for name in ("first", "second")]


async def test_two_deaths_of_its_executor_and_one_receipt(driver: Driver) -> None:
    asked, clock = Asked(), VirtualClock()
    go_on = anyio.Event()
    async with Client(driver, clock=clock) as client:
        await client.start(asks, "x", id="one")
        for _ in range(2):
            began = anyio.Event()

            async def hangs(params: Ask, intent: Intent, began: anyio.Event = began) -> Answer:
                asked.note(params, intent)
                began.set()
                await anyio.sleep_forever()
                raise AssertionError

            async with host(driver, asks, Asked().by(hangs), clock=clock, grace=0) as runtime:
                await began.wait()
                assert runtime
        go_on.set()
        async with host(driver, asks, asked.by(), clock=clock) as runtime:
            assert (await runtime.handle(asks, "one").result()).payload == Answer("x")
    assert len(asked.ids) == 3
    assert len(set(asked.ids)) == 1


# Changed code.


@dataclass(frozen=True)
class Older:
    """What an effect was answered with once."""

    number: int


async def test_a_recorded_receipt_that_does_not_fit_any_more_is_divergence(driver: Driver) -> None:
    before, after = (effect("changing@1", params=str, receipt=hint) for hint in (Older, Answer))
    now = {"effect": before}

    @workflow
    async def changes(ctx: Context) -> str:
        await ctx.effect("asks", now["effect"]("x"))
        return str(await ctx.listen("end"))

    async with Runtime(driver, workflows=[changes], machines=Manifest(effects=[before])) as runtime:
        handle = await runtime.start(changes, id="one")
        id = await until_asked(runtime, "one", changes)
        await runtime.settle(id, Older(7))
        await until(lambda: _waits_for(handle, "end"))
    now["effect"] = after
    newer = Manifest(effects=[after])
    async with Client(driver, machines=newer) as client:
        await client.apply(newer)
        async with Runtime(driver, workflows=[changes], machines=newer) as runtime:
            await runtime.handle(changes, "one").send("end", "")
            await until(lambda: _is_stuck(runtime.handle(changes, "one")))
        info = await client.handle(changes, "one").info()
    assert info.error is not None
    assert info.error.kind == "consistency"


async def _is_stuck(handle: Any) -> bool:
    return bool((await handle.info()).status is Status.STUCK)
