"""Executors that fail, hang, give nonsense or die: every effect is settled once, and the worker goes on."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, NoReturn

import anyio
import pytest

from tests.machines.cell_parts import (
    Answer,
    Ask,
    Asked,
    Do,
    ask,
    host,
    told,
    until_cell,
    until_count,
    until_words,
)
from tests.patience import PATIENCE
from tests.runtime.polling import settle
from workflow_sdk import Backoff, Delivery, Driver
from workflow_sdk.machines import (
    EffectReceipt,
    EffectRejected,
    Intent,
    MachineContext,
    Transition,
    executor,
)
from workflow_sdk.testing import VirtualClock

pytestmark = pytest.mark.law(17)


LOOPS = ("asyncio", "uvloop")


class OurExit(BaseException):
    """What an executor should not raise."""


def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Asks for what each event says."""
    return None if isinstance(event, (EffectReceipt, EffectRejected)) else ask(event.word)


class OurError(Exception):
    """What an executor may raise."""


def raises(error: BaseException) -> Any:
    """An answer that is an error."""

    def answer(params: Any, intent: Intent) -> NoReturn:
        raise error

    return answer


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (OurError("no money"), "error", "no money"),
        (KeyError("k"), "error", "'k'"),
        (TimeoutError("its own"), "error", "its own"),
        (ExceptionGroup("many", [OurError("one")]), "error", "many"),
        (StopAsyncIteration(), "error", ""),
        (SystemExit(3), "fault", "3"),
        (OurExit("out"), "fault", "out"),
        pytest.param(asyncio.CancelledError("by itself"), "fault", "by itself", marks=pytest.mark.settings(loop=LOOPS)),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_an_executor_raises_is_its_receipt(
    driver: Driver, error: BaseException, status: str, says: str
) -> None:
    seen: list[EffectReceipt] = []

    def hears(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            seen.append(event)
        return asks(words, event, ctx)

    one, asked = told(hears), Asked()

    def answers(params: Ask, intent: Intent) -> Answer:
        if params.what == "bad":
            raise error
        return Answer("fine")

    async with host(driver, one, executors=[asked.by(answers)]) as runtime:
        await runtime.emit(Do("a", "bad"))
        await until_count(runtime, one, "a", 2)
        assert seen[0].status == status
        assert says in str(seen[0].payload)
        await runtime.emit(Do("b", "good"))
        await until_words(runtime, one, "b", "good", "ok ask@1: fine")
    assert len(asked.ids) == 2, "none was tried again"


async def test_an_executor_that_exits_in_its_thread_harms_nobody(driver: Driver) -> None:
    @executor(ask)
    def leaves(params: Ask, intent: Intent) -> Answer:
        if params.what == "exit":
            sys.exit(1)
        return Answer("fine")

    one = told(asks)
    async with host(driver, one, executors=[leaves]) as runtime:
        await runtime.emit(Do("a", "exit"))
        cell = await until_count(runtime, one, "a", 2)
        assert cell.state[1].startswith("fault ask@1")
        await runtime.emit(Do("a", "x"))
        await until_count(runtime, one, "a", 4)


async def test_a_time_limit_is_a_receipt_of_its_own(driver: Driver) -> None:
    async def hangs(params: Ask, intent: Intent) -> Answer:
        await anyio.sleep_forever()
        raise AssertionError

    one, asked, clock = told(asks), Asked(), VirtualClock(quiet=0.05)
    async with host(driver, one, executors=[asked.by(hangs, timeout=60)], clock=clock) as runtime:
        began = clock.time()
        await runtime.emit(Do("a", "x"))
        cell = await until_count(runtime, one, "a", 2)
        assert cell.state[1].startswith("timeout ask@1")
        assert clock.time() - began == pytest.approx(60, abs=2)
    assert len(asked.ids) == 1, "none was tried again"


async def test_retries_with_backoff_as_the_executor_says(driver: Driver) -> None:
    attempts: list[tuple[int, float]] = []
    clock = VirtualClock(quiet=0.05)

    def fails_twice(params: Ask, intent: Intent) -> Answer:
        attempts.append((intent.attempt, clock.time()))
        if len(attempts) < 3:
            raise OurError("not yet")
        return Answer("at last")

    one, asked = told(asks), Asked()
    backoff = Backoff(initial=100, factor=2, maximum=1000, jitter=0)
    done = asked.by(fails_twice, retries=5, backoff=backoff)
    async with host(driver, one, executors=[done], clock=clock) as runtime:
        await runtime.emit(Do("a", "x"))
        await until_words(runtime, one, "a", "x", "ok ask@1: at last")
    assert [number for number, _ in attempts] == [1, 2, 3]
    first, second, third = (at for _, at in attempts)
    assert [second - first, third - second] == pytest.approx([100, 200], abs=5)
    assert len(set(asked.ids)) == 1


@pytest.mark.parametrize("last", ["error", "timeout"])
async def test_exhausted_retries_are_an_error_or_a_timeout_as_the_last_attempt_was(driver: Driver, last: str) -> None:
    clock = VirtualClock(quiet=0.05)

    async def fails(params: Ask, intent: Intent) -> Answer:
        if (last == "timeout") == (intent.attempt == 3):
            await anyio.sleep_forever()
        raise OurError("no")

    one, asked = told(asks), Asked()
    done = asked.by(fails, retries=2, timeout=10, backoff=Backoff(initial=1, jitter=0))
    async with host(driver, one, executors=[done], clock=clock) as runtime:
        await runtime.emit(Do("a", "x"))
        cell = await until_count(runtime, one, "a", 2)
        assert cell.state[1].startswith(f"{last} ask@1")
    assert [intent.attempt for intent in asked.intents] == [1, 2, 3]


async def test_what_is_final_is_not_tried_again(driver: Driver) -> None:
    one, asked = told(asks), Asked()
    done = asked.by(raises(OurError("final")), retries=5, no_retry=OurError)
    async with host(driver, one, executors=[done]) as runtime:
        await runtime.emit(Do("a", "x"))
        cell = await until_count(runtime, one, "a", 2)
        assert cell.state[1].startswith("error ask@1")
    assert len(asked.ids) == 1


NONSENSE: list[Any] = [None, 7, "a text", {"text": 7}, {"other": "x"}, [Answer("x")], Ask("x")]


@pytest.mark.parametrize("answer", NONSENSE, ids=repr)
async def test_an_answer_that_is_no_receipt_is_rejected(driver: Driver, answer: Any) -> None:
    seen: list[EffectRejected] = []

    def hears(words: list[str], event: Any, ctx: MachineContext) -> Any:
        assert not isinstance(event, EffectReceipt)
        if isinstance(event, EffectRejected):
            seen.append(event)
        return asks(words, event, ctx)

    one, asked = told(hears), Asked()
    async with host(driver, one, executors=[asked.by(lambda params, intent: answer)]) as runtime:
        await runtime.emit(Do("a", "x"))
        cell = await until_words(runtime, one, "a", "x", "rejected ask@1")
        assert (cell.status, dict(cell.inflight)) != ("failed", {})
        assert await runtime.settle(asked.ids[0], Answer("x")) == Delivery.STALE
    (rejected,) = seen
    assert rejected.reason
    assert (rejected.machine, rejected.key, rejected.intent_id, rejected.sequence) == ("told@1", "a", asked.ids[0], 1)


@pytest.mark.parametrize("answer", NONSENSE, ids=repr)
async def test_without_an_arm_for_it_the_cell_fails_and_drops_its_other_receipts(driver: Driver, answer: Any) -> None:
    calls: list[Any] = []

    def asks_for_three(words: list[str], event: Any, ctx: MachineContext) -> Any:
        calls.append(event)
        if isinstance(event, EffectReceipt):
            return None
        return Transition(words, effects=[ask("bad"), ask("good"), ask("good")])

    go_on, asked = anyio.Event(), Asked()

    async def answers(params: Ask, intent: Intent) -> Any:
        if params.what == "bad":
            return answer
        await go_on.wait()
        return Answer("fine")

    one = told(asks_for_three, event=Do | EffectReceipt)
    async with host(driver, one, executors=[asked.by(answers)]) as runtime:
        await runtime.emit(Do("a", "x"))
        cell = await until_cell(runtime, one, "a", lambda cell: cell.status == "failed")
        assert (cell.state, dict(cell.inflight)) == (["x"], {})
        info = (await runtime.list(workflow=one)).items[0]
        assert info.status == "failed"
        assert info.error is not None
        assert "ask@1" in str(info.error)
        go_on.set()
        await settle(driver)
        assert await runtime.emit(Do("a", "more")) == [Delivery.CLOSED]
        assert await runtime.cell(one, "a") == cell
    assert len(calls) == 1


class NotPlain:
    """Nothing that could be stored."""


def _endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "answer",
    [NotPlain(), object, _endless(), {1, NotPlain()}, lambda: None, 1 << 9000],
    ids=["class", "type", "endless", "set", "function", "huge"],
)
async def test_an_answer_that_cannot_be_stored_is_a_fault(driver: Driver, answer: Any) -> None:
    one, asked = told(asks), Asked()
    async with host(driver, one, executors=[asked.by(lambda params, intent: answer)]) as runtime:
        await runtime.emit(Do("a", "x"))
        cell = await until_count(runtime, one, "a", 2)
        assert cell.state[1].split(":")[0] in ("fault ask@1", "rejected ask@1")
        assert dict(cell.inflight) == {}


@pytest.mark.parametrize(
    ("size", "limit"),
    [(3_000_000, 2_000_000), (1_999_950, 2_000_000), (30_000_000, 2_000_000), (9_999_000, 10_000_000)],
    ids=["large", "too large with what is around it", "larger than a row", "as large as can be"],
)
async def test_an_answer_that_is_too_large_is_a_fault_and_is_not_asked_for_again(
    driver: Driver, size: int, limit: int
) -> None:
    one, asked = told(asks), Asked()

    def answers(params: Ask, intent: Intent) -> Answer:
        return Answer("x" * size)

    async with host(driver, one, executors=[asked.by(answers)], max_value_bytes=limit) as runtime:
        await runtime.emit(Do("a", "x"))
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 2 or cell.status == "stuck")
        await settle(driver)
        await runtime.emit(Do("b", "y"))
        await until_cell(runtime, one, "b", lambda cell: cell.last_sequence > 0)
    assert asked.ids.count(asked.ids[0]) == 1


async def test_an_executor_that_blocks_its_event_loop_or_is_slow_harms_no_other_effect(driver: Driver) -> None:
    async def blocks(params: Ask, intent: Intent) -> Answer:
        if params.what == "block":
            time.sleep(0.05)  # noqa: ASYNC251  # what it should not do
        return Answer(params.what)

    one, asked = told(asks), Asked()
    async with host(driver, one, executors=[asked.by(blocks)]) as runtime:
        for number in range(4):
            await runtime.emit(Do(str(number), "block" if number % 2 else "go on"))
        for number in range(4):
            await until_count(runtime, one, str(number), 2)


async def test_executors_run_side_by_side(driver: Driver) -> None:
    here = 0
    all_here = anyio.Event()

    async def meets(params: Ask, intent: Intent) -> Answer:
        nonlocal here
        here += 1
        if here == 30:
            all_here.set()
        await all_here.wait()
        return Answer("met")

    def asks_many(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return None if isinstance(event, EffectReceipt) else Transition(words, effects=[ask("x")] * 10)

    one, asked = told(asks_many), Asked()
    async with host(driver, one, executors=[asked.by(meets)]) as runtime:
        for key in "abc":
            await runtime.emit(Do(key, "go"))
        with anyio.fail_after(PATIENCE):
            await all_here.wait()
        for key in "abc":
            await until_count(runtime, one, key, 11)
