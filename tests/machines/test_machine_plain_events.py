"""Events that are sent as plain data, by those who have not their classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines.cell_parts import Do, Say, host, manifest_of, told, until_cell, until_gone, until_words
from workflow_sdk import Client, CodecError, DefinitionError, Delivery, Driver, Runtime
from workflow_sdk.machines import Manifest, PlainEvent, Transition, event, machine, route
from workflow_sdk.machines.described import class_of
from workflow_sdk.machines.schemas import Schema, schema_name


class Color(Enum):
    """One of two."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    """Fields that all have defaults."""

    number: int = 1
    some: list[int] = field(default_factory=list[int])
    others: list[int] = field(default_factory=lambda: [1])


class Circle(msgspec.Struct, tag=True, frozen=True):
    """One arm of a union."""

    radius: float


class Square(msgspec.Struct, tag=True, frozen=True):
    """The other one."""

    side: float


ID, ROUND = UUID(int=3), Circle(1.0)


@event("described/Everything@1")
@dataclass(frozen=True)
class Everything:
    """A field of every kind."""

    key: str
    number: int = 0
    fraction: float = 0.5
    at: datetime = datetime(2030, 1, 1, tzinfo=UTC)
    day: date = date(2030, 1, 1)
    span: timedelta = timedelta(seconds=1)
    price: Decimal = Decimal("1.50")
    id: UUID = ID
    color: Color = Color.RED
    raw: bytes = b"\x00raw"
    inner: Inner = Inner()
    pair: tuple[int, str] = (1, "one")
    several: tuple[int, ...] = ()
    mixed: int | str | None = None
    by_name: dict[str, int] = field(default_factory=dict[str, int])
    by_number: dict[int, str] = field(default_factory=dict[int, str])
    word: Literal["a", "c"] = "a"
    shape: Circle | Square = ROUND
    positive: Annotated[int, msgspec.Meta(ge=1)] = 3
    anything: Any = None


DESCRIBED = class_of("described/Everything@1", Schema(Everything).data)


@given(
    st.builds(
        Everything,
        number=st.integers(-(2**60), 2**60),
        fraction=st.floats(allow_nan=False, allow_infinity=False),
        mixed=st.none() | st.integers(0, 9) | st.text(max_size=3),
        color=st.sampled_from(Color),
        raw=st.binary(max_size=4),
        by_number=st.dictionaries(st.integers(0, 9), st.text(max_size=2), max_size=2),
        shape=st.builds(Circle, st.floats(0, 9)) | st.builds(Square, st.floats(0, 9)),
        inner=st.builds(Inner, number=st.integers(0, 9), some=st.lists(st.integers(0, 9), max_size=2)),
        positive=st.integers(1, 9),
        anything=st.none() | st.booleans() | st.lists(st.integers(0, 9), max_size=2),
    )
)
def test_an_event_as_data_has_the_bytes_of_its_object(one: Everything) -> None:
    data = msgspec.json.decode(msgspec.json.encode(one))
    read: Any = msgspec.json.decode(msgspec.json.encode(data), type=DESCRIBED)
    assert Schema(DESCRIBED).encode(read) == Schema(Everything).encode(one)


WRONG: list[dict[str, Any]] = [
    {},
    {"key": 1},
    {"key": "a", "number": "1"},
    {"key": "a", "unknown": 1},
    {"key": "a", "day": "soon"},
    {"key": "a", "price": "much"},
    {"key": "a", "id": "me"},
    {"key": "a", "color": "green"},
    {"key": "a", "raw": "not base64"},
    {"key": "a", "pair": [1]},
    {"key": "a", "inner": {"number": None}},
    {"key": "a", "by_name": {"x": "y"}},
    {"key": "a", "word": "b"},
    {"key": "a", "positive": 0},
]


def manifest() -> Manifest:
    """One machine."""

    @machine("everything@1", state=str, event=Everything, key=str, effects=[])
    def everything(state: str | None, event: Everything, ctx: Any) -> Transition[str]:
        return Transition(f"{event.number} {event.color.value}")

    return Manifest([everything], [route(Everything, everything, "key")])


async def test_what_does_not_fit_is_refused_and_nothing_is_stored(driver: Driver) -> None:
    async with Client(driver, machines=manifest()) as client, Client(driver) as stranger:
        await client.emit(Everything("a"))
        before = await driver.scan(b"", b"\xff")
        for wrong in [*WRONG, None, 7, "x", ["a"]]:
            for one in (client, stranger):
                with pytest.raises(DefinitionError, match="can't be sent"):
                    assert await one.emit(PlainEvent("described/Everything@1", wrong)) == wrong
        assert await driver.scan(b"", b"\xff") == before


async def test_who_has_no_code_sends_events_to_those_who_have(driver: Driver) -> None:
    known = manifest()
    async with Runtime(driver, machines=known) as runtime, Client(driver) as stranger:
        (one,) = known.machines.values()
        sent = await stranger.emit(
            PlainEvent("described/Everything@1", {"key": "a", "number": 7, "color": "blue"}), id="x"
        )
        assert sent == [Delivery.ACCEPTED]
        assert (await until_cell(runtime, one, "a", lambda cell: cell.revision == 1)).state == "7 blue"
        again = await stranger.emit(PlainEvent("described/Everything@1", {"key": "a", "number": 8}), id="x")
        assert again == [Delivery.DUPLICATE]


async def test_it_comes_to_the_same_cell_as_its_object(driver: Driver) -> None:
    async with host(driver, one := told()) as runtime, Client(driver) as stranger:
        name = schema_name(Do)
        await runtime.emit(Do("a", "object"))
        await until_words(runtime, one, "a", "object")
        assert await stranger.emit(PlainEvent(name, {"key": "a", "word": "data"})) == [Delivery.ACCEPTED]
        assert await runtime.emit(PlainEvent(name, {"key": "a", "word": "both"})) == [Delivery.ACCEPTED]
        await until_words(runtime, one, "a", "object", "data", "both")


@dataclass(frozen=True)
class Place:
    """A key of several fields."""

    x: int
    y: float = 0.0


@dataclass(frozen=True)
class At:
    """An event for a place, a number, a color or a time."""

    key: Place
    number: int | str = 0
    color: Color = Color.RED
    day: date = date(2030, 1, 1)


KEYS: list[tuple[str, Any]] = [("key", Place), ("number", int | str), ("color", Color), ("day", date), ("key.y", float)]


@pytest.mark.parametrize("sends_data_first", [True, False])
async def test_keys_of_all_kinds_are_the_same(driver: Driver, sends_data_first: bool) -> None:
    machines = [
        machine(f"by {path}@1", state=int, event=At, key=hint, effects=[])(
            lambda state, event, ctx: Transition((state or 0) + 1)
        )
        for path, hint in KEYS
    ]
    declared = Manifest(machines, [route(At, one, path) for one, (path, _) in zip(machines, KEYS, strict=True)])
    async with Runtime(driver, machines=declared) as runtime, Client(driver) as stranger:
        (name,) = declared.events
        for number in range(2):
            if (number == 0) == sends_data_first:
                sent = await stranger.emit(PlainEvent(name, {"key": {"x": 1}, "number": "7"}))
            else:
                sent = await runtime.emit(At(Place(1), "7"))
            assert len(sent) == len(KEYS)
        for one, key in zip(machines, (Place(1), "7", Color.RED, date(2030, 1, 1), 0.0), strict=True):
            await until_cell(runtime, one, key, lambda cell: cell.state == 2)


@dataclass(frozen=True)
class When:
    """An event for a time."""

    at: datetime


async def test_equal_times_are_one_key_however_they_are_written(driver: Driver) -> None:
    @machine("times@1", state=int, event=When, key=datetime, effects=[])
    def times(state: int | None, event: When, ctx: Any) -> Transition[int]:
        return Transition((state or 0) + 1)

    declared, at = Manifest([times], [route(When, times, "at")]), datetime(2030, 1, 1, tzinfo=UTC)
    async with Runtime(driver, machines=declared) as runtime, Client(driver) as stranger:
        (name,) = declared.events
        await runtime.emit(When(at))
        for text in ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00+00:00"):
            await stranger.emit(PlainEvent(name, {"at": text}))
        await until_cell(runtime, times, at, lambda cell: cell.state == 3)
        assert len((await runtime.cells(times)).items) == 1


@dataclass(frozen=True)
class ForTwo:
    """An event for the cells of two machines, of which one says nothing about its keys."""

    key: dict[str, int]
    word: str = ""


async def test_an_event_for_a_key_that_no_schema_describes_is_sent_by_code_only(driver: Driver) -> None:
    """It might come to another cell than its object does, or only to some that it is for."""

    @machine("anything@1", state=int, event=ForTwo, key=Any, effects=[])
    def anything(state: int | None, event: ForTwo, ctx: Any) -> Transition[int]:
        return Transition(1)

    @machine("words@1", state=int, event=ForTwo | Do, key=str, effects=[])
    def words(state: int | None, event: ForTwo | Do, ctx: Any) -> Transition[int]:
        return Transition(1)

    routes = [route(ForTwo, anything, "key"), route(ForTwo, words, "word"), route(Do, words, "key")]
    async with Client(driver, machines=Manifest([anything, words], routes)) as client, Client(driver) as stranger:
        await client.emit(Do("a", "x"))
        with pytest.raises(DefinitionError, match="no event"):
            await stranger.emit(PlainEvent(schema_name(ForTwo), {"key": {}}))
        assert await stranger.emit(PlainEvent(schema_name(Do), {"key": "a", "word": "y"})) == [Delivery.ACCEPTED]


async def test_a_store_without_machines_says_so(driver: Driver) -> None:
    async with Client(driver) as client:
        with pytest.raises(DefinitionError, match="no machines"):
            await client.emit(PlainEvent("x", {}))


async def test_an_unknown_event_is_told_with_those_that_are_known(driver: Driver) -> None:
    async with Client(driver, machines=manifest()) as client, Client(driver) as stranger:
        await client.emit(Everything("a"))
        for one in (client, stranger):
            with pytest.raises(DefinitionError, match=r"no event 'x'.*described/Everything@1"):
                await one.emit(PlainEvent("x", {}))
            with pytest.raises(DefinitionError, match="no event"):
                await one.emit(PlainEvent("sys/EffectReceipt@1", {"intent_id": "x"}))


class Ours:
    """A class that only its code can read."""

    def __init__(self, key: str) -> None:
        self.key = key


@dataclass
class Tree:
    """A class whose objects hold others."""

    branches: list[Tree]


@pytest.mark.parametrize("hint", [Ours, Tree, int, list[Place], dict[str, int]])
def test_a_type_that_no_schema_describes_is_told(hint: Any) -> None:
    with pytest.raises(CodecError, match="known to its code only"):
        class_of("x", Schema(hint).data)


async def test_another_manifest_brings_its_own_events(driver: Driver) -> None:
    one, other = told(), told(name="other@1", event=Do)
    async with Client(driver, machines=manifest_of(one)) as client, Client(driver) as stranger:
        await client.emit(Do("a", "x"))
        async with Runtime(driver, machines=manifest_of(one)) as runtime:
            await until_words(runtime, one, "a", "x")
        await client.apply(manifest_of(other), allow_idle=True)
        assert await stranger.emit(PlainEvent(schema_name(Do), {"key": "a", "word": "y"})) == [Delivery.ACCEPTED]
        with pytest.raises(DefinitionError, match="no event"):
            await stranger.emit(PlainEvent(schema_name(Say), {"key": "a", "word": "y"}))
    async with Runtime(driver, machines=manifest_of(other)) as runtime:
        await until_words(runtime, other, "a", "y")


async def test_a_cell_that_data_has_begun_is_kept_as_long_as_its_machine_says(driver: Driver) -> None:
    @machine("kept@1", state=int, event=Do, key=str, effects=[], retention=0)
    def kept(state: int | None, event: Do, ctx: Any) -> Transition[int]:
        return Transition(1, done=True)

    declared = Manifest([kept], [route(Do, kept, "key")])
    async with Runtime(driver, machines=declared) as runtime, Client(driver) as stranger:
        (name,) = declared.events
        await stranger.emit(PlainEvent(name, {"key": "a", "word": "x"}))
        await until_gone(runtime, kept, "a")
