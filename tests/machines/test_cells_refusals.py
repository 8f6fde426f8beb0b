"""Transitions that are refused: the cell is stuck, nothing is written, and mended code takes the event."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.machines.cell_parts import (
    Answer,
    Ask,
    Asked,
    Do,
    Say,
    ask,
    cell_or_none,
    host,
    manifest_of,
    told,
    until_cell,
    until_count,
    until_words,
)
from tests.runtime.polling import settle, until
from workflow_sdk import Client, DefinitionError, Delivery, Driver, Runtime, WorkflowStuckError
from workflow_sdk.machines import (
    Cell,
    EffectReceipt,
    EffectRejected,
    Machine,
    MachineContext,
    Manifest,
    Transition,
    effect,
    machine,
    route,
    timer,
)

pytestmark = pytest.mark.law(17)

undeclared = effect("undeclared@1", params=Ask, receipt=Answer)
namesake = effect("ask@1", params=Ask, receipt=Answer)


class OurExit(BaseException):
    """What a machine should not raise."""


def _raises(error: BaseException) -> Any:
    raise error


@dataclass(frozen=True)
class Other:
    """An event that fits no type of its own."""

    key: str
    number: int


FITS_NOT: Any = "no number"
NO_TEXT: Any = 7
NO_REQUEST: Any = ask
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

BAD: dict[str, Callable[[list[str]], Any]] = {
    "raises": lambda words: _raises(ValueError("no")),
    "exits": lambda words: sys.exit(1),
    "raises no exception": lambda words: _raises(OurExit("no")),
    "raises a cancellation": lambda words: _raises(asyncio.CancelledError("no")),
    "recurses": lambda words: BAD["recurses"](words),
    "a text": lambda words: "no transition",
    "the state itself": lambda words: words,
    "the class": lambda words: Transition,
    "a number": lambda words: 7,
    "a state of another type": lambda words: Transition(7),
    "a state with parts of another type": lambda words: Transition([*words, 7]),
    "an endless state": lambda words: Transition(ENDLESS),
    "an event that is none": lambda words: Transition(words, events=["no event"]),
    "an event that does not fit": lambda words: Transition(words, events=[Other("a", FITS_NOT)]),
    "an event whose key does not fit": lambda words: Transition(words, events=[Say(NO_TEXT, "x")]),
    "a forged receipt": lambda words: Transition(words, events=[EffectReceipt("told@1", "a", "0" * 40)]),
    "a forged rejection": lambda words: Transition(words, events=[EffectRejected("told@1", "a", "0" * 40)]),
    "an undeclared effect": lambda words: Transition(words, effects=[undeclared("x")]),
    "another effect of the same name": lambda words: Transition(words, effects=[namesake("x")]),
    "an effect that was not called": lambda words: Transition(words, effects=[NO_REQUEST]),
    "params of another type": lambda words: Transition(words, effects=[ask(7)]),
    "unknown params": lambda words: Transition(words, effects=[ask(nothing=7)]),
    "too many effects": lambda words: Transition(words, effects=[ask("x")] * 65),
    "too many events": lambda words: Transition(words, events=[Say("a", "x")] * 257),
    "a state that is too large": lambda words: Transition(["x" * (1 << 20)]),
    "events that are too large": lambda words: Transition(words, events=[Say("a", "x" * 600_000)] * 2),
    "params that are too large": lambda words: Transition(words, effects=[ask("x" * 600_000)] * 2),
    "all together too large": lambda words: Transition(
        ["x" * 400_000], events=[Say("a", "x" * 400_000)], effects=[ask("x" * 400_000)]
    ),
    "done without a state": lambda words: Transition(None, done=True),
    "a text of half a character": lambda words: Transition(["\ud800"]),
}


def bad_after(words_before: int, name: str) -> Machine[Any]:
    """A machine that is fine at first, and then does something bad."""

    def did(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if len(words) <= words_before:
            return ask("first")
        return BAD[name](words)

    return told(did, event=Do | Say | Other | EffectReceipt)


def mended() -> Machine[Any]:
    """The same machine, as its manifest says, which does nothing bad."""
    return told(event=Do | Say | Other | EffectReceipt)


def is_stuck(cell: Cell[Any]) -> bool:
    """Whether the cell is stuck."""
    return cell.status == "stuck"


@pytest.mark.parametrize("name", BAD)
async def test_a_refused_transition_writes_nothing_and_mended_code_takes_the_event(driver: Driver, name: str) -> None:
    one, other = bad_after(1, name), mended()
    assert manifest_of(one).hash == manifest_of(other).hash
    async with Client(driver, machines=manifest_of(one)) as client:
        async with host(driver, one) as runtime:
            await runtime.emit(Do("a", "1"))
            before = await until_cell(client, one, "a", lambda cell: cell.last_sequence == 1)
            await runtime.emit(Do("a", "2"))
            cell = await until_cell(client, one, "a", is_stuck)
            assert (cell.state, cell.last_sequence, cell.revision) == (before.state, 1, 1)
            assert dict(cell.inflight) == dict(before.inflight)
            assert len(cell.inflight) == 1
            info = (await client.list(workflow=one)).items[0]
            assert info.error is not None
            assert info.error.kind == "definition"
            handle = client.handle(one, info.id)
            assert [message.payload["word"] for message in await handle.inbox()] == ["2"]
            with pytest.raises(WorkflowStuckError):
                await handle.result()
            assert await runtime.emit(Do("a", "3")) == [Delivery.QUEUED]
            await settle(driver)
            assert is_stuck(await client.cell(one, "a"))
            # Others go on.
            await runtime.emit(Do("b", "1"))
            await until_words(client, one, "b", "1")
        async with host(driver, other):
            cell = await until_words(client, one, "a", "1", "2", "3")
            assert (cell.last_sequence, cell.revision) == (3, 3)
            assert (await handle.info()).error is None


async def test_a_cell_whose_first_event_is_refused_is_stuck_without_a_state(driver: Driver) -> None:
    other = mended()

    def at_once(words: list[str], event: Any, ctx: MachineContext) -> Any:
        raise ValueError("no")

    one = told(at_once, event=Do | Say | Other | EffectReceipt)
    async with Client(driver, machines=manifest_of(one)) as client:
        async with host(driver, one) as runtime:
            await runtime.emit(Do("a", "1"))
            cell = await until_cell(client, one, "a", is_stuck)
            assert (cell.state, cell.last_sequence, cell.revision) == (None, 0, 0)
        async with host(driver, other):
            await until_words(client, one, "a", "1")


async def test_recover_takes_the_event_again_with_the_same_code(driver: Driver) -> None:
    is_mended = False

    def fails(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if not is_mended:
            raise ValueError("what is outside is not ready")

    one = told(fails)
    async with host(driver, one) as runtime:
        for word in "123":
            await runtime.emit(Do("a", word))
        await until_cell(runtime, one, "a", is_stuck)
        handle = runtime.handle(one, (await runtime.list(workflow=one)).items[0].id)
        assert (await handle.info()).recoverable
        await handle.recover()
        await until_cell(runtime, one, "a", is_stuck)
        is_mended = True
        await handle.recover()
        await until_words(runtime, one, "a", "1", "2", "3")


async def test_a_poisoned_event_can_be_discarded(driver: Driver) -> None:
    def fails(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if event.word == "bad":
            raise ValueError("no")

    one = told(fails)
    async with host(driver, one) as runtime:
        for word in ("1", "bad", "2"):
            await runtime.emit(Do("a", word))
        await until_cell(runtime, one, "a", is_stuck)
        handle = runtime.handle(one, (await runtime.list(workflow=one)).items[0].id)
        first, second = await handle.inbox()
        assert (first.payload["word"], second.payload["word"]) == ("bad", "2")
        assert await handle.discard(first.id)
        await handle.recover()
        await until_words(runtime, one, "a", "1", "2")


async def test_a_receipt_that_comes_to_a_stuck_cell_waits_for_it_to_be_mended(driver: Driver) -> None:
    one, other, asked = bad_after(1, "raises"), mended(), Asked()
    async with Client(driver, machines=manifest_of(one)) as client:
        async with host(driver, one) as runtime:
            await runtime.emit(Do("a", "1"))
            await until_words(client, one, "a", "1")
            await runtime.emit(Do("a", "2"))
            cell = await until_cell(client, one, "a", is_stuck)
            (id,) = cell.inflight
            assert await client.settle(id, Answer("x")) in (Delivery.ACCEPTED, Delivery.QUEUED)
            assert await client.settle(id, Answer("y")) == Delivery.STALE
            await settle(driver)
            assert (await client.cell(one, "a")).state == ["1"]
        async with host(driver, other, executors=[asked.by()]):
            await until_words(client, one, "a", "1", "2", "ok ask@1: x")
    assert asked.ids == []


async def test_a_receipt_that_is_refused_leaves_the_cell_stuck_and_its_effect_is_not_done_again(driver: Driver) -> None:
    def fails(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            raise ValueError("no")
        return ask(event.word)

    asked = Asked()
    one, other = told(fails), told()
    async with Client(driver, machines=manifest_of(one)) as client:
        async with host(driver, one, executors=[asked.by()]) as runtime:
            await runtime.emit(Do("a", "x"))
            cell = await until_cell(client, one, "a", is_stuck)
            assert (cell.state, cell.last_sequence) == (["x"], 1)
            await settle(driver)
        async with host(driver, other, executors=[asked.by()]):
            cell = await until_words(client, one, "a", "x", "ok ask@1: x")
            assert cell.last_sequence == 2
    assert len(asked.ids) == 1


@pytest.mark.parametrize("number", [64, 0])
async def test_as_much_as_is_allowed_is_taken(driver: Driver, number: int) -> None:
    def does_much(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if ctx.key == "b":
            return None
        if number:
            return Transition(words, events=[Say("b", "x")] * 256, effects=[ask("x")] * 64)
        return Transition(["x" * ((1 << 20) - 1000)])

    one = told(does_much)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "go"))
        cell = await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 1)
        assert len(cell.inflight) == number
        if number:
            await until_count(runtime, one, "b", 256)


async def test_a_state_that_does_not_fit_the_type_any_more_leaves_the_cell_stuck_and_not_lost(driver: Driver) -> None:
    """A class may refuse what it took before: no digest of its fields can tell."""
    refuses: list[bool] = []

    @dataclass(frozen=True)
    class Checked:
        word: str

        def __post_init__(self) -> None:
            if refuses:
                raise ValueError("not any more")

    @machine("checked@1", state=Checked, event=Do, key=str, effects=[])
    def one(state: Any, event: Do, ctx: MachineContext) -> Transition[Any]:
        return Transition(Checked(event.word))

    manifest = Manifest(machines=[one], routes=[route(Do, one, "key")])
    async with Client(driver, machines=manifest) as client:
        async with Runtime(driver, machines=manifest):
            await client.emit(Do("a", "1"))
            await until_cell(client, one, "a", lambda cell: cell.last_sequence == 1)
        refuses.append(True)
        async with Runtime(driver, machines=manifest):
            await client.emit(Do("a", "2"))
            await until_info(client, one, "stuck")
            refuses.clear()
            await client.handle(one, (await client.list(workflow=one)).items[0].id).recover()
            await until_cell(client, one, "a", lambda cell: cell.state == Checked("2"))


async def until_info(client: Client, one: Machine[Any], status: str) -> None:
    """Return once the only cell of a machine has this status, which is seen even if its state can't be read."""

    async def is_so() -> bool:
        return [info.status for info in await client.list(workflow=one)] == [status]

    await until(is_so)


def test_machines_that_are_no_machines_are_refused() -> None:
    def fine(state: Any, event: Any, ctx: Any) -> Any: ...

    async def waits(state: Any, event: Any, ctx: Any) -> Any: ...

    def few(state: Any, event: Any) -> Any: ...

    def make(fn: Any = fine, name: str = "m@1", **others: Any) -> Machine[Any]:
        options: Any = {"state": int, "event": Do, "effects": [], **others}
        return machine(name, **options)(fn)

    for bad in (
        lambda: make(effects=None),
        lambda: make(waits),
        lambda: make(few),
        lambda: make(name=""),
        lambda: make(event=int),
        lambda: make(effects=["ask@1"]),
        lambda: make(effects=[ask, namesake]),
        lambda: timer(),
        lambda: timer(after=-1),
        lambda: effect("timer"),
        lambda: Manifest(machines=[make(), make()]),
    ):
        with pytest.raises(DefinitionError):
            bad()


async def test_what_is_started_like_a_workflow_is_refused(driver: Driver) -> None:
    one = told()
    async with host(driver, one) as runtime:
        with pytest.raises(DefinitionError):
            await runtime.start(one, None, id="told@1/a")
        with pytest.raises(DefinitionError):
            await runtime.start("told@1", None, id="told@1/a")
        await settle(driver)
        assert await cell_or_none(runtime, one, "a") is None
        await runtime.emit(Do("a", "1"))
        await until_words(runtime, one, "a", "1")
