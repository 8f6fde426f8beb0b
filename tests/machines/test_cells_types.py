"""Keys and states of every type."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from tests.machines.cell_parts import Answer, Ask, Asked, ask, cell_or_none, told, until_cell, until_words
from workflow_sdk import DefinitionError, Driver, InstanceStateError, Runtime
from workflow_sdk.machines import (
    Cell,
    EffectReceipt,
    MachineContext,
    Manifest,
    Transition,
    effect,
    event,
    machine,
    route,
)


@dataclass(frozen=True)
class Place:
    """A key of several fields."""

    country: str
    number: int = 0


class Color(Enum):
    """A key of a few values."""

    RED = "red"
    BLUE = 2


class Pair(NamedTuple):
    """A key that is a tuple."""

    left: str
    right: int


@event("test/For@1")
@dataclass(frozen=True)
class For:
    """Something for a cell."""

    key: Any
    word: str = ""


KEYS: dict[str, tuple[Any, Sequence[Any]]] = {
    "int": (int, [0, 1, -1, 2**63, -(2**63), 10**30]),
    "text": (str, ["", "a", "a/b", "a\x00b", "ü", "~0", "a" * 500, " ", "None", "1", ".", "%2F"]),
    "uuid": (UUID, [UUID(int=0), UUID(int=2**127)]),
    "dataclass": (Place, [Place("de"), Place("de", 1), Place("", -1)]),
    "union": (str | int, ["1", 1, "01", ""]),
    "union of classes": (Place | str, [Place("de"), "de", "a26"]),
    "bytes": (bytes, [b"", b"a", b"\x00\xff"]),
    "enum": (Color, [Color.RED, Color.BLUE]),
    "literal": (Literal["a", "b"], ["a", "b"]),
    "bool": (bool, [True, False]),
    "tuple": (tuple[str, int], [("a", 1), ("a", 2)]),
    "named tuple": (Pair, [Pair("a", 1), Pair("b", 1)]),
    "date": (date, [date(2030, 1, 1), date(2030, 1, 2)]),
    "decimal": (Decimal, [Decimal("1.5"), Decimal(2)]),
}


def keyed(key: Any, **options: Any) -> Any:
    """A machine with such keys, and its manifest."""

    def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            assert event.key == ctx.key
            assert type(event.key) is type(ctx.key)
            return None
        return ask("x") if event.word == "ask" else None

    one = told(asks, event=For | EffectReceipt, key=key, **options)
    return one, Manifest(machines=[one], routes=[route(For, one, key_field="key")])


@pytest.mark.parametrize("name", KEYS)
async def test_keys_of_a_type(driver: Driver, name: str) -> None:
    hint, keys = KEYS[name]
    one, manifest = keyed(hint)
    asked = Asked()
    async with Runtime(driver, machines=manifest, executors=[asked.by()]) as runtime:
        for number, key in enumerate(keys):
            await runtime.emit(For(key, str(number)))
            await runtime.emit(For(key, "ask"))
        for number, key in enumerate(keys):
            cell = await until_words(runtime, one, key, str(number), "ask", "ok ask@1: x")
            assert cell.key == key
            assert type(cell.key) is type(key)
        assert len(await runtime.cells(one)) == len(keys)
        assert len(await runtime.list(workflow=one)) == len(keys)
    assert sorted(map(repr, (intent.key for intent in asked.intents))) == sorted(map(repr, keys))
    assert len(set(asked.ids)) == len(keys)


@pytest.mark.parametrize(
    ("hint", "key"),
    [
        (int, "1"), (int, 1.5), (int, True), (str, 1), (str, None), (UUID, "no uuid"), (Place, {"number": 1}),
        (Place, "de"), (str | int, 1.5), (Color, "green"), (Literal["a"], "b"), (str, "\ud800"), (bool, 1),
    ],
)  # fmt: skip
async def test_keys_that_do_not_fit(driver: Driver, hint: Any, key: Any) -> None:
    one, manifest = keyed(hint)
    async with Runtime(driver, machines=manifest) as runtime:
        with pytest.raises(DefinitionError):
            await runtime.emit(For(key, "1"))
        assert not await runtime.cells(one)


async def test_a_key_that_is_too_long_is_refused_before_anything_is_stored(driver: Driver) -> None:
    one, manifest = keyed(str)
    async with Runtime(driver, machines=manifest) as runtime:
        with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever it is, it is no damage
            await runtime.emit(For("x" * 100_000, "1"))
        assert not isinstance(caught.value, (AssertionError, KeyError, InstanceStateError))
        await runtime.emit(For("x", "1"))
        await until_words(runtime, one, "x", "1")
        assert len(await runtime.cells(one)) == 1


async def test_equal_keys_are_one_cell_however_they_are_written(driver: Driver) -> None:
    one, manifest = keyed(Place)
    async with Runtime(driver, machines=manifest) as runtime:
        await runtime.emit(For(Place("de", 0), "1"))
        await runtime.emit(For({"country": "de"}, "2"))
        await runtime.emit(For({"number": 0, "country": "de"}, "3"))
        await until_words(runtime, one, Place("de"), "1", "2", "3")
        assert len(await runtime.cells(one)) == 1


@dataclass(frozen=True)
class Nested:
    """Holds what has defaults in every way."""

    place: Place | None = None
    places: list[Place] = field(default_factory=list[Place])
    named: dict[str, Place] = field(default_factory=dict[str, Place])
    pair: tuple[int, Place] = (1, Place("x"))
    inner: Nested | None = None


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"place": {"country": "de"}},
        {"places": [{"country": "de"}, {"country": "fr", "number": 1}]},
        {"named": {"a": {"country": "de"}}, "pair": [1, {"country": "de"}]},
        {"inner": {"inner": {"place": {"country": "de"}}}},
    ],
)
async def test_equal_states_events_and_params_have_equal_bytes(data: Any) -> None:
    """Objects that msgspec has made, of data in which fields are missing, are equal to those made by hand."""
    schema = effect("nested@1", params=Nested, receipt=Nested).params
    read = msgspec.convert(data, Nested)
    by_hand = schema.decode(schema.encode(read))
    assert by_hand == read
    assert schema.encode(by_hand) == schema.encode(read) == schema.encode(copy.deepcopy(replace(read)))


class Basket(TypedDict):
    """A state that is a dict."""

    items: list[str]
    total: int


@dataclass(frozen=True)
class Open:
    """One of two states."""

    words: list[str]


@dataclass(frozen=True)
class Shut:
    """The other one."""

    at: datetime
    by: Color


NOW = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
STATES: dict[str, tuple[Any, Sequence[Any]]] = {
    "int": (int, [0, -1, 2**70]),
    "float": (float, [0.0, 1.5, -0.5, 1e300]),
    "bool": (bool, [False, True]),
    "text": (str, ["", "ü", "\x00"]),
    "bytes": (bytes, [b"", b"\x00\xff"]),
    "list": (list[int], [[], [1, 2, 3]]),
    "dict": (dict[str, int], [{}, {"b": 1, "a": 2}]),
    "set": (set[str], [set[str](), {"a", "b"}]),
    "tuple": (tuple[int, str], [(1, "a")]),
    "typed dict": (Basket, [{"items": [], "total": 0}, {"items": ["x"], "total": 7}]),
    "union of classes": (Open | Shut, [Open([]), Shut(NOW, Color.BLUE), Open(["x"])]),
    "union": (int | str | list[int], [1, "1", [1]]),
    "enum": (Color, [Color.RED, Color.BLUE]),
    "datetime": (datetime, [NOW]),
    "uuid": (UUID, [UUID(int=7)]),
    "decimal": (Decimal, [Decimal("1.50")]),
    "anything": (Any, [{"a": [1, None, {"b": True}]}, 0, "", False, []]),
}


@pytest.mark.parametrize("name", STATES)
async def test_states_of_a_type(driver: Driver, name: str) -> None:
    hint, values = STATES[name]
    given: list[Any] = []

    @machine("state@1", state=hint, event=For, key=str, effects=[])
    def one(state: Any, event: For, ctx: MachineContext) -> Transition[Any]:
        given.append(state)
        return Transition(values[int(event.word)])

    manifest = Manifest(machines=[one], routes=[route(For, one, "key")])
    async with Runtime(driver, machines=manifest, max_resident=0) as runtime:
        for number, value in enumerate(values):
            await runtime.emit(For("a", str(number)))
            cell = await until_cell(runtime, one, "a", partial(_has_sequence, number + 1))
            assert cell.state == value
            assert type(cell.state) is type(value)
    assert given == [None, *values[:-1]]
    assert [type(one) for one in given[1:]] == [type(value) for value in values[:-1]]


def _has_sequence(number: int, cell: Cell[Any]) -> bool:
    return cell.last_sequence == number


async def test_a_state_that_is_false_is_a_state(driver: Driver) -> None:
    @machine("count@1", state=int, event=For, key=str, effects=[])
    def count(state: int | None, event: For, ctx: MachineContext) -> Transition[int]:
        return Transition(0 if state is None else state + 1)

    manifest = Manifest(machines=[count], routes=[route(For, count, "key")])
    async with Runtime(driver, machines=manifest) as runtime:
        await runtime.emit(For("a"))
        cell = await until_cell(runtime, count, "a", lambda cell: cell.last_sequence == 1)
        assert cell.state == 0
        await runtime.emit(For("a"))
        await until_cell(runtime, count, "a", lambda cell: cell.state == 1)


async def test_a_state_that_is_changed_in_place_and_not_returned_is_as_it_was(driver: Driver) -> None:
    @machine("mutates@1", state=list[str], event=For, key=str, effects=[])
    def mutates(state: list[str] | None, event: For, ctx: MachineContext) -> Transition[list[str]]:
        if state is None:
            return Transition(["begun"])
        state.append(event.word)
        if event.word == "bad":
            raise ValueError("no")
        return Transition(["begun"])

    manifest = Manifest(machines=[mutates], routes=[route(For, mutates, "key")])
    async with Runtime(driver, machines=manifest) as runtime:
        for word in ("1", "2", "bad"):
            await runtime.emit(For("a", word))
        cell = await until_cell(runtime, mutates, "a", lambda cell: cell.status == "stuck")
        assert cell.state == ["begun"]


PARAMS: list[tuple[Any, Any]] = [
    (int, 7), (str, "x"), (list[int], [1, 2]), (dict[str, int], {"a": 1}), (Ask | Answer, Answer("x")),
    (Any, {"a": [1]}), (datetime, NOW), (int | None, 7), (bytes, b"\x00"), (Ask, Ask("x")),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "value"), PARAMS, ids=str)
async def test_params_and_receipts_of_a_type(driver: Driver, hint: Any, value: Any) -> None:
    does, seen = effect("does@1", params=hint, receipt=hint), list[Any]()

    def asks(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt):
            seen.append(event.payload)
            return Transition(words[:1])
        return does(value)

    one, asked = told(asks, event=For | EffectReceipt, effects=[does]), Asked()
    manifest = Manifest(machines=[one], routes=[route(For, one, "key")])
    done = asked.by(lambda params, intent: params, of=does)
    async with Runtime(driver, machines=manifest, executors=[done]) as runtime:
        await runtime.emit(For("a", "x"))
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 2)
    assert seen == [value] == asked.params
    assert type(seen[0]) is type(value)
    assert type(asked.params[0]) is type(value)


async def test_an_event_is_what_it_was_when_it_was_sent(driver: Driver) -> None:
    """What is changed in it after that changes nothing."""
    one, manifest = keyed(str)
    shared: list[str] = ["a"]

    @event("test/Holds@1")
    @dataclass(frozen=True)
    class Holds:
        key: str
        word: list[str]

    one = told(event=Holds)
    manifest = Manifest(machines=[one], routes=[route(Holds, one, "key")])
    async with Runtime(driver, machines=manifest) as runtime:
        await runtime.emit(Holds("a", shared))
        shared.append("later")
        await until_words(runtime, one, "a", "['a']")
        assert await cell_or_none(runtime, one, "b") is None
