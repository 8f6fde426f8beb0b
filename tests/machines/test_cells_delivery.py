"""Events on their way to cells: by routes, in order, once, and from whoever sends them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.machines.cell_parts import Do, Say, cell_or_none, host, manifest_of, told, until_cell, until_words
from tests.runtime.polling import settle, until
from tests.settings import Setting
from tests.support import open_store
from workflow_sdk import Client, DefinitionError, Delivery, Driver, InboxFullError, InstanceNotFoundError, Runtime
from workflow_sdk.machines import (
    CellStatus,
    EffectReceipt,
    EffectRejected,
    MachineContext,
    Manifest,
    Transition,
    event,
    machine,
    route,
)


class NotPlain:
    """Nothing that could be stored."""

    def __repr__(self) -> str:
        return "what is not plain"


ANYTHING: Any = NotPlain()


@dataclass(frozen=True)
class Unrouted:
    """An event that no route knows."""

    key: str


@event("test/Inner@1")
@dataclass(frozen=True)
class Inner:
    """Where the key of a nested event stands."""

    note_id: int


@event("test/Outer@1")
@dataclass(frozen=True)
class Outer:
    """An event whose key lies deeper."""

    inner: Inner
    word: str = "outer"


@event("test/Anything@1")
@dataclass(frozen=True)
class Anything:
    """An event whose key can be anything."""

    key: Any
    word: str = ""


async def test_an_event_begins_a_cell_and_the_next_one_goes_on_with_it(driver: Driver) -> None:
    one = told()
    async with host(driver, one) as runtime:
        assert await runtime.emit(Do("a", "1")) == [Delivery.ACCEPTED]
        cell = await until_words(runtime, one, "a", "1")
        assert (cell.key, cell.last_sequence, cell.revision, dict(cell.inflight)) == ("a", 1, 1, {})
        await runtime.emit(Say("a", "2"))
        cell = await until_words(runtime, one, "a", "1", "2")
        assert (cell.last_sequence, cell.revision) == (2, 2)
        cell = await until_cell(runtime, one, "a", lambda cell: cell.status is CellStatus.WAITING)
        assert cell.status == "waiting"


async def test_events_that_come_before_there_is_a_runtime_are_taken_in_order(driver: Driver) -> None:
    one = told()
    async with Client(driver, machines=manifest_of(one)) as client:
        for number in range(40):
            assert await client.emit(Do("a", str(number))) == [Delivery.ACCEPTED]
        cell = await client.cell(one, "a")
        assert (cell.status, cell.state, cell.last_sequence, cell.revision) == ("running", None, 0, 0)
    async with host(driver, one) as runtime:
        await until_words(runtime, one, "a", *map(str, range(40)))


@asynccontextmanager
async def elsewhere(place: Setting, directory: Path, driver: Driver) -> AsyncGenerator[Driver]:
    """Another connection to the same store, as another process has one."""
    if place.store == "memory":
        yield driver
        return
    other = await open_store(place.store, directory)
    try:
        yield other
    finally:
        await other.aclose()


async def test_a_client_with_its_own_connection_reaches_the_cells(
    driver: Driver, place: Setting, tmp_path: Path
) -> None:
    one = told()
    async with (
        host(driver, one) as runtime,
        elsewhere(place, tmp_path, driver) as other,
        Client(other, machines=manifest_of(one)) as client,
    ):
        for number in range(5):
            await client.emit(Do("a", str(number)))
            await until_words(client, one, "a", *map(str, range(number + 1)))
        await runtime.emit(Say("a", "here"))
        await until_words(client, one, "a", *"01234", "here")


async def test_an_event_reaches_all_that_it_is_routed_to_in_one_commit_in_the_order_of_the_routes(
    driver: Driver,
) -> None:
    keyed, other = told(name="keyed@1"), told(name="other@1", event=Do)
    lonely = told(name="lonely@1", event=Do, key=None)
    manifest = Manifest(
        machines=[keyed, other, lonely],
        routes=[route(Do, keyed, "key"), route(Do, lonely), route(Do, other, key_field="word")],
    )
    async with Runtime(driver, machines=manifest) as runtime:
        assert await runtime.emit(Do("a", "b")) == [Delivery.ACCEPTED] * 3
        await until_words(runtime, keyed, "a", "b")
        await until_words(runtime, lonely, None, "b")
        await until_words(runtime, other, "b", "b")
        assert await cell_or_none(runtime, other, "a") is None


async def test_without_a_route_nothing_is_stored_and_nobody_is_told(driver: Driver) -> None:
    one = told()
    async with Client(driver, machines=manifest_of(one)) as client:
        await client.emit(Do("a"))
        before = await driver.scan(b"", b"\xff")
        assert await client.emit(Unrouted("a")) == []
        assert await client.emit(Unrouted("a"), id="once") == []
        assert await driver.scan(b"", b"\xff") == before


async def test_an_id_counts_once_whoever_sends_it(driver: Driver) -> None:
    one = told()
    async with host(driver, one) as runtime, Client(driver, machines=manifest_of(one)) as client:
        assert await runtime.emit(Do("a", "1"), id="once") == [Delivery.ACCEPTED]
        assert await client.emit(Do("a", "1"), id="once") == [Delivery.DUPLICATE]
        assert await client.emit(Do("a", "2"), id="twice") == [Delivery.ACCEPTED]
        await until_words(client, one, "a", "1", "2")
        assert await runtime.emit(Do("b", "other"), id="once") == [Delivery.DUPLICATE]
        assert await cell_or_none(runtime, one, "b") is None


async def test_an_id_of_an_event_that_was_refused_can_be_used(driver: Driver) -> None:
    one = told(event=Anything)
    async with host(driver, one) as runtime:
        with pytest.raises(DefinitionError):
            await runtime.emit(Anything(7), id="once")
        assert await runtime.emit(Anything("a", "1"), id="once") == [Delivery.ACCEPTED]
        await until_words(runtime, one, "a", "1")


@pytest.mark.parametrize("key", [7, None, 1.5, ["a"], {"a": 1}, True, b"a"])
async def test_a_key_of_another_type_is_refused_before_anything_is_stored(driver: Driver, key: Any) -> None:
    one = told(event=Anything)
    async with host(driver, one) as runtime:
        with pytest.raises(DefinitionError, match="key"):
            await runtime.emit(Anything(key))
        assert (await runtime.cells(one)).items == []
        with pytest.raises(DefinitionError, match="key"):
            await runtime.cell(one, key)


@pytest.mark.parametrize(
    "forged",
    [
        EffectReceipt("told@1", "a", "0" * 40, "ask@1"),
        EffectRejected("told@1", "a", "0" * 40, "ask@1", reason="no"),
        EffectReceipt,
        "a text",
        {"key": "a"},
        None,
        Do,
        Do(ANYTHING),
        Do("a", ANYTHING),
        Anything("a", ANYTHING),
    ],
    ids=repr,
)
async def test_what_is_no_event_is_refused_when_it_is_sent(driver: Driver, forged: Any) -> None:
    one = told(event=Do | Say | Anything | EffectReceipt | EffectRejected)
    async with host(driver, one) as runtime:
        with pytest.raises(DefinitionError):
            await runtime.emit(forged)
        assert (await runtime.cells(one)).items == []


class ForgedReceipt(EffectReceipt):
    """A receipt under another name."""


async def test_a_forged_receipt_is_no_receipt_under_any_name(driver: Driver) -> None:
    def asks(words: Any, event: Any, ctx: MachineContext) -> Any:
        assert not isinstance(event, EffectReceipt)

    one = told(asks)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "1"))
        with suppress(DefinitionError):
            assert await runtime.emit(ForgedReceipt("told@1", "a", "0" * 40, "ask@1")) == []
        with pytest.raises(DefinitionError):
            event("sys/EffectReceipt@1")(ForgedReceipt)
        await settle(driver)
        await until_words(runtime, one, "a", "1")


async def test_a_key_may_lie_deeper_in_the_event(driver: Driver) -> None:
    one = told(event=Outer, key=int)
    manifest = Manifest(machines=[one], routes=[route(Outer, one, key_field="$value.inner.note_id")])
    async with Runtime(driver, machines=manifest) as runtime:
        await runtime.emit(Outer(Inner(7)))
        assert (await until_words(runtime, one, 7, "outer")).key == 7


def test_routes_that_lead_nowhere_are_refused() -> None:
    keyed, lonely = told(), told(key=None, name="lonely@1")
    for bad in (
        lambda: route(Do, keyed),
        lambda: route(Do, lonely, key_field="key"),
        lambda: route(Do, keyed, key_field="nothing"),
        lambda: route(Outer, keyed, key_field="inner.note_id"),
        lambda: route(EffectReceipt, keyed, key_field="key"),
        lambda: route(EffectRejected, keyed, key_field="key"),
        lambda: Manifest(machines=[lonely], routes=[route(Do, keyed, key_field="key")]),
    ):
        with pytest.raises(DefinitionError):
            bad()


async def test_what_a_transition_tells_is_delivered_with_its_commit(driver: Driver) -> None:
    def passes_on(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if event.word.isdigit() and int(event.word) > 0:
            less = str(int(event.word) - 1)
            return Transition(words, events=[Do(f"{ctx.key}'", less), Say(ctx.key, "told")])
        return None

    one = told(passes_on, event=Do | Say)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "3"))
        await until_words(runtime, one, "a'''", "0")
        for key, word in (("a", "3"), ("a'", "2"), ("a''", "1")):
            await until_words(runtime, one, key, word, "told")


async def test_a_machine_without_a_key_has_one_cell(driver: Driver) -> None:
    one = told(key=None, event=Do)
    async with host(driver, one) as runtime:
        with pytest.raises(InstanceNotFoundError):
            await runtime.cell(one)
        await runtime.emit(Do("a", "1"))
        await runtime.emit(Do("b", "2"))
        cell = await until_words(runtime, one, None, "1", "2")
        assert cell.key is None
        with pytest.raises(DefinitionError):
            await runtime.cell(one, "a")
        assert len(await runtime.cells(one)) == 1


async def test_an_inbox_that_is_full_refuses_the_whole_event(driver: Driver) -> None:
    one = told(event=Do | Say)
    lonely = told(name="lonely@1", event=Do, key=None)
    manifest = manifest_of(lonely, one)
    async with Runtime(driver, machines=manifest, inbox_max=3):
        pass
    async with Client(driver, machines=manifest) as client:
        for number in range(3):
            await client.emit(Say("a", str(number)))
        with pytest.raises(InboxFullError):
            await client.emit(Do("a", "no room"), id="once")
        assert await cell_or_none(client, lonely) is None, "no one of its targets has got it"
        async with Runtime(driver, machines=manifest) as runtime:
            await until_words(runtime, one, "a", "0", "1", "2")
            assert await client.emit(Do("a", "3"), id="once") == [Delivery.ACCEPTED] * 2
            await until_words(runtime, one, "a", "0", "1", "2", "3")


async def test_what_transitions_tell_finds_room_in_a_full_inbox(driver: Driver) -> None:
    def tells_all(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return Transition(words, events=[Say("b", str(n)) for n in range(20)]) if ctx.key == "a" else None

    one = told(tells_all, event=Do | Say)
    async with host(driver, one, inbox_max=3) as runtime:
        await runtime.emit(Do("a"))
        await until_words(runtime, one, "b", *map(str, range(20)))


async def test_ended_cells_answer_closed_and_harm_no_sender(driver: Driver) -> None:
    calls: list[str] = []

    def ends(words: list[str], event: Any, ctx: MachineContext) -> Any:
        calls.append(event.word)
        if event.word == "end":
            return Transition(words, done=True)
        return Transition(words, events=[Say("a", "late")]) if ctx.key == "b" else None

    one = told(ends, event=Do | Say)
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "end"))
        cell = await until_cell(runtime, one, "a", lambda cell: cell.status is CellStatus.COMPLETED)
        assert cell.state == ["end"]
        assert await runtime.emit(Do("a", "later")) == [Delivery.CLOSED]
        await runtime.emit(Do("b", "tell"))
        await until_words(runtime, one, "b", "tell")
        await settle(driver)
        assert await runtime.cell(one, "a") == cell
    assert calls == ["end", "tell"]


async def test_events_that_are_on_their_way_when_a_cell_ends_are_dropped(driver: Driver) -> None:
    calls: list[str] = []

    def ends(words: list[str], event: Any, ctx: MachineContext) -> Any:
        calls.append(event.word)
        return Transition(words, done=True)

    one = told(ends, event=Do)
    async with Client(driver, machines=manifest_of(one)) as client:
        for word in "123":
            await client.emit(Do("a", word))
        async with host(driver, one):
            await until_cell(client, one, "a", lambda cell: cell.status is CellStatus.COMPLETED)
            await settle(driver)
        assert calls == ["1"]


async def test_emit_with_two_targets_of_one_cell_delivers_both(driver: Driver) -> None:
    @machine("both@1", state=list[str], event=Do, key=str, effects=[])
    def both(state: list[str] | None, event: Do, ctx: MachineContext) -> Transition[list[str]]:
        return Transition([*(state or []), event.word])

    manifest = Manifest(machines=[both], routes=[route(Do, both, "key"), route(Do, both, "word")])
    async with Runtime(driver, machines=manifest) as runtime:
        assert await runtime.emit(Do("a", "a")) == [Delivery.ACCEPTED] * 2
        await until_words(runtime, both, "a", "a", "a")


async def test_many_clients_at_once_lose_nothing(driver: Driver) -> None:
    one = told(event=Do)
    async with host(driver, one) as runtime, Client(driver, machines=manifest_of(one)) as client:

        async def sends(sender: Client, name: str) -> None:
            for number in range(25):
                await sender.emit(Do("a", f"{name}{number}"))

        async with anyio.create_task_group() as group:
            for name, sender in (("x", runtime), ("y", client), ("z", client)):
                group.start_soon(sends, sender, name)

        async def all_there() -> bool:
            cell = await runtime.cell(one, "a")
            return cell.state is not None and len(cell.state) == 75

        await until(all_there)
        words = (await runtime.cell(one, "a")).state
        for name in "xyz":
            assert [word for word in words if word[0] == name] == [f"{name}{number}" for number in range(25)]
