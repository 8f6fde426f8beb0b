"""Schemas: values of every kind as canonical bytes, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from workflow_sdk import CodecError, DefinitionError
from workflow_sdk.machines import canonical, event
from workflow_sdk.machines.schemas import Schema, schema_name


class Colour(Enum):
    """By text."""

    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    """By number."""

    SMALL = 1


class Point(NamedTuple):
    """A tuple with names."""

    x: int
    y: float = 0.0


class Card(TypedDict):
    """A dict with known keys."""

    number: str
    cents: int


@dataclass(frozen=True)
class Cash:
    """One way to pay."""

    cents: int


@dataclass(frozen=True)
class Transfer:
    """Another way to pay."""

    iban: str


@dataclass(frozen=True)
class Everything:
    """A field of every kind."""

    when: datetime
    day: date
    price: Decimal
    id: UUID
    colour: Colour
    size: Size
    raw: bytes
    part: Cash | None = None
    parts: list[Cash] = field(default_factory=list[Cash])
    by_number: dict[int, str] = field(default_factory=dict[int, str])
    words: frozenset[str] = frozenset()
    pair: tuple[int, str] = (0, "")
    wait: timedelta = timedelta()
    kind: Literal["a", "b"] = "a"


class Struct(msgspec.Struct, frozen=True):
    """Of msgspec."""

    a: int


@dataclass(frozen=True)
class Order:
    """With a field that is a union of classes."""

    paid: Cash | Transfer
    price: float = 0


@dataclass(frozen=True)
class BigOrder(Order):
    """With one field more."""

    more: str = "x"


FULL = Everything(
    datetime(2030, 1, 2, 3, 4, 5, 678, UTC),
    date(2030, 1, 2),
    Decimal("1.50"),
    UUID(int=7),
    Colour.RED,
    Size.SMALL,
    b"\x00\xff",
    Cash(1),
    [Cash(2)],
    {1: "a"},
    frozenset("ab"),
    (1, "x"),
    timedelta(hours=2),
    "b",
)

VALUES: list[tuple[Any, Any]] = [
    (Everything, FULL),
    (Cash | Transfer, Transfer("DE00")),
    (Cash | None, None),
    (Cash | Transfer | None, Cash(1)),
    (Order, Order(Transfer("DE00"), 1.5)),
    (Card, {"number": "1", "cents": 2}),
    (Point, Point(1, 2.5)),
    (list[Point], [Point(1)]),
    (dict[str, Cash | Transfer], {"a": Cash(1), "b": Transfer("x")}),
    (dict[int, Cash | Transfer], {1: Cash(1)}),
    (Struct, Struct(1)),
    (Colour, Colour.BLUE),
    (Decimal, Decimal("0.10")),
    (datetime, datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=2)))),
    (tuple[int, ...], (1, 2)),
    (set[str], {"b", "a"}),
    (int, 2**80),
    (float, 0.1),
    (str, "ü"),
    (bytes, b"x"),
    (None, None),
    (Any, {"a": [1, None, "b"]}),
]


@pytest.mark.parametrize(("hint", "value"), VALUES, ids=lambda part: getattr(part, "__name__", None))
def test_values_are_the_same_after_their_bytes(hint: Any, value: Any) -> None:
    schema = Schema(hint)
    data = schema.encode(value)
    assert schema.decode(data) == value
    assert type(schema.decode(data)) is type(value)
    assert schema.encode(schema.decode(data)) == data
    assert canonical.decode(data) is not None or value is None


def test_objects_are_maps_of_their_fields() -> None:
    data = canonical.decode(Schema(Everything).encode(FULL))
    assert data == {
        "when": "2030-01-02T03:04:05.000678Z",
        "day": "2030-01-02",
        "price": "1.50",
        "id": "00000000-0000-0000-0000-000000000007",
        "colour": "red",
        "size": 1,
        "raw": b"\x00\xff",
        "part": {"cents": 1},
        "parts": [{"cents": 2}],
        "by_number": {"1": "a"},
        "words": ["a", "b"],
        "pair": [1, "x"],
        "wait": "PT7200S",
        "kind": "b",
    }


@pytest.mark.parametrize(
    ("hint", "one", "other"),
    [
        (float, 1, 1.0),
        (Point, Point(1, 2), Point(1, 2.0)),
        (set[int], {1, 8, 3}, {8, 3, 1}),
        (dict[str, int], {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (list[float], [1, 2], [1.0, 2.0]),
    ],
)
def test_equal_values_have_equal_bytes(hint: Any, one: Any, other: Any) -> None:
    assert one == other
    assert Schema(hint).encode(one) == Schema(hint).encode(other)


def test_what_a_subclass_has_more_is_left_out() -> None:
    assert Schema(Order).encode(BigOrder(Cash(1))) == Schema(Order).encode(Order(Cash(1)))


def test_bytes_are_those_of_the_value_that_is_read() -> None:
    data, value = Schema(Point).take(Point(1, 2))
    assert value == Point(1, 2.0)
    assert type(value.y) is float
    assert canonical.restored(data) == [1, 2.0]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Cash, Cash("5")),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        (Cash, Cash(True)),
        (Cash, {"cents": 5}),
        (Cash, None),
        (Cash, Transfer("x")),
        (Cash | Transfer, Struct(1)),
        (int, "1"),
        (int, True),
        (int, 1.0),
        (str, 1),
        (None, "x"),
        (Colour, "red"),
        (list[int], [1, "2"]),
        (Card, {"number": "1"}),
        (Everything, "x"),
        (str, "\ud800"),
    ],
)
def test_values_that_do_not_fit_have_no_bytes(hint: Any, value: Any) -> None:
    with pytest.raises(CodecError):
        Schema(hint).encode(value)


@pytest.mark.parametrize(
    ("hint", "data"),
    [
        (Cash, {"cents": "5"}),
        (Cash, {}),
        (Cash, None),
        (Cash, [5]),
        (Cash | Transfer, {"neither": 1}),
        (Cash | Transfer, {}),
        (Colour, "green"),
        (datetime, "yesterday"),
        (Decimal, "much"),
        (Point, [1, 2, 3]),
        (Literal["a"], "b"),
        (None, 0),
    ],
)
def test_data_that_does_not_fit_is_not_read(hint: Any, data: Any) -> None:
    with pytest.raises(CodecError):
        Schema(hint).decode(canonical.bare(data))


def test_a_class_of_an_author_may_refuse_its_data() -> None:
    @dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("odd")

    assert Schema(Even).read({"n": 2}) == Even(2)
    with pytest.raises(CodecError, match="odd"):
        Schema(Even).read({"n": 1})


def test_what_can_not_be_made_plain_has_no_bytes() -> None:
    for value in (object(), {(1, 2): 3}, lambda: None, {"a": object()}):
        with pytest.raises(CodecError):
            Schema(Any).encode(value)


def test_what_holds_itself_has_no_bytes() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(CodecError, match="nested"):
        Schema(Any).encode(value)


def test_what_is_nested_too_deeply_has_no_bytes() -> None:
    value: Any = 0
    for _ in range(canonical.DEPTH_MAX + 1):
        value = {"a": value}
    with pytest.raises(CodecError, match="nested"):
        Schema(Any).encode(value)


def test_a_schema_is_named_after_its_class() -> None:
    assert schema_name(Cash) == f"{__name__}.Cash"
    assert schema_name(int) == "int"
    assert schema_name(Cash | None) == f"{__name__}.Cash | None"


def test_an_event_can_be_given_its_name() -> None:
    @event("acme/Made@1")
    @dataclass
    class Made:
        n: int

    @dataclass
    class MadeAgain(Made):
        pass

    assert schema_name(Made) == "acme/Made@1"
    assert "MadeAgain" in schema_name(MadeAgain), "the name is that of one class"


@pytest.mark.parametrize("name", ["", None, 5, "sys/EffectReceipt@1", "sys/mine"])
def test_names_of_events_that_are_refused(name: Any) -> None:
    with pytest.raises(DefinitionError):
        event(name)


def test_the_digest_follows_the_name_and_the_fields() -> None:
    def made(name: str, hint: Any) -> str:
        cls = msgspec.defstruct("Made", [("a", hint)])
        return Schema(event(name)(cls)).digest

    assert made("x@1", int) == made("x@1", int)
    assert len({made("x@1", int), made("x@2", int), made("x@1", str)}) == 3


numbers = st.integers(-(2**70), 2**70)
points = st.builds(Point, numbers, st.floats(allow_nan=False) | st.integers(-5, 5))
ways = st.builds(Cash, numbers) | st.builds(Transfer, st.text(st.characters(exclude_categories=["Cs"])))
orders = st.builds(Order, ways, st.floats(allow_nan=False) | st.integers(-100, 100))


@given(points | ways | orders)
@examples(300)
def test_any_value_is_the_same_after_its_bytes(value: Any) -> None:
    schema = Schema(type(value))
    data = schema.encode(value)
    assert schema.decode(data) == value
    assert schema.encode(schema.decode(data)) == data
    assert canonical.encode(canonical.decode(data)) == canonical.TAG + data
