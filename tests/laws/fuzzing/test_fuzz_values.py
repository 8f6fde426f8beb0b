"""Authors' values, of bytes that no author has encoded."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.fuzzing.hostile import BOMBS, FOREIGN, bounded, cbor, hostile, mutated
from workflow_sdk.codecs import unmarked
from workflow_sdk.errors import CodecError
from workflow_sdk.values import Codec, seals_of

pytestmark = pytest.mark.law(17)


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Address(TypedDict):
    street: str


@dataclass
class Order:
    id: UUID
    items: list[str]
    paid: Decimal | None = None
    at: datetime | None = None
    colour: Colour = Colour.RED
    others: dict[str, Order] = field(default_factory=dict[str, "Order"])


ORDER = Order(UUID(int=7), ["tea"], Decimal("1.5"), datetime(2020, 1, 2, 3, 4, tzinfo=UTC), Colour.BLUE)
VALUES: list[Any] = [
    None,
    2**70,
    ["a", {"b": [1, 2.5, None]}],
    (1, (2, {3})),
    {(1, 2): "pair", 3: b"bytes"},
    Order(UUID(int=8), [], others={"tea": ORDER}),
    [ORDER, Point(1, 2.0), Colour.RED],
    [datetime(2020, 1, 2, tzinfo=ZoneInfo("Europe/Paris")), date(2020, 1, 2), time(1, 2, fold=1), timedelta(1, 2, 3)],
    [Decimal("1e400"), Fraction(1, 3), 1j, bytearray(b"x"), PurePosixPath("/a"), UUID(int=1)],
    [deque([1, 2], maxlen=3), OrderedDict(a=1), Counter("aab"), frozenset({1, "a"})],
]
HINTS: list[Any] = [
    Any,
    int,
    list[Order],
    Order,
    Order | Point | None,
    Point,
    Address,
    Colour,
    tuple[int, ...],
    dict[str, Decimal],
    set[int],
    datetime,
    Fraction,
    bytearray,
    Literal["a", 2],
    deque[int],
]


class Reversed:
    """A wrapper without any check of its own."""

    def encode(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]


CODEC = Codec()
BEHIND = Codec(wrapper=Reversed())


def sealed(raw: bytes) -> bytes:
    """Any bytes, as the codec writes those of a value."""
    seals = seals_of(Reversed())
    assert seals is not None
    return seals.close(raw)


RAW = [CODEC.encode(value) for value in VALUES]
READERS: dict[str, Callable[[bytes, Any], Any]] = {
    "exact": CODEC.decode,
    "plain": lambda raw, hint: CODEC.decode(raw, hint, plain=True),
    "checked": CODEC.decode_checked,
    "behind a codec": lambda raw, hint: BEHIND.decode(sealed(raw), hint),
    "as a codec has written it": lambda raw, hint: BEHIND.decode(raw, hint),
    "without marks": lambda raw, hint: Codec(wrapper=[Reversed(), unmarked(Reversed())]).decode(raw[::-1], hint),
}


@pytest.mark.parametrize("how", READERS)
def test_other_bytes_are_a_value_or_a_clear_error(how: str) -> None:
    read = READERS[how]

    @given(hostile | mutated(RAW), st.sampled_from(HINTS))
    @examples(250)
    def check(raw: bytes, hint: Any) -> None:
        with suppress(CodecError):
            read(raw, hint)

    check()


@given(mutated(RAW), st.sampled_from(HINTS))
@examples(300)
def test_what_is_read_can_be_written_again(raw: bytes, hint: Any) -> None:
    """Or is refused: nothing that is read breaks what it is given to."""
    try:
        value = CODEC.decode(raw, hint)
    except CodecError:
        return
    with suppress(CodecError):
        CODEC.encode(value)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_a_value_or_a_clear_error(bomb: str) -> None:
    raw = BOMBS[bomb]
    with bounded():
        for data in (raw, b"\x81" + raw, b"\xa1\x61a" + raw, b"\xd9\xe1\x00\x82\xd9\xe1\x01\x80" + raw):
            for read in READERS.values():
                for hint in (Any, Order, list[int], Fraction):
                    with suppress(CodecError):
                        read(data, hint)


@pytest.mark.parametrize("tag", FOREIGN)
@pytest.mark.parametrize("how", ["exact", "plain", "checked"])
def test_a_tag_of_others_is_a_clear_error(tag: str, how: str) -> None:
    for data in (FOREIGN[tag], b"\x81" + FOREIGN[tag], b"\xa1\x61a\x81" + FOREIGN[tag]):
        with pytest.raises(CodecError):
            READERS[how](data, Any)


def test_the_error_of_a_tag_of_others_says_where_it_is() -> None:
    with pytest.raises(CodecError, match=r"tag 35 is none of its own at \['a'\]\[1\]"):
        CODEC.decode(b"\xa1\x61a\x82\x00" + FOREIGN["a pattern"])


@given(cbor)
@examples(200)
def test_the_input_of_another_program_fits_or_is_a_clear_error(raw: bytes) -> None:
    """What is plain data is converted: a text to a number, a map to an object."""
    try:
        value = CODEC.decode(raw)
    except CodecError:
        return
    for hint in HINTS:
        with suppress(CodecError):
            CODEC.decode_checked(CODEC.encode(value), hint)


@pytest.mark.parametrize("text", ["1e999999999", "1" * 10_000, "1/0", "nan", "\0", "9" * 400 + "-01-01", "é" * 10_000])
@pytest.mark.parametrize(
    "hint", [int, Decimal, Fraction, datetime, timedelta, UUID, PurePosixPath, Colour, dict[int, int]]
)
def test_a_text_for_another_type_fits_or_is_a_clear_error(text: str, hint: Any) -> None:
    for value in (text, [text], {text: 1}):
        with bounded(), suppress(CodecError):
            CODEC.decode_checked(CODEC.encode(value), hint)
