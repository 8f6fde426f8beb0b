"""Rows as bytes."""

from __future__ import annotations

from typing import Any, ClassVar

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.errors import CodecError
from workflow_sdk.rows.location import pack, pack_segment
from workflow_sdk.rows.wire import FORMAT, Moment, NewerFormatError, Row, Text, pack_record, unpack_record

numbers = st.integers(-(2**63), 2**64 - 1)
leaves = st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


class Point(Row, frozen=True):
    """A row of a test."""

    WHAT: ClassVar[str] = "a point"

    at: Moment
    name: str
    notes: tuple[str, ...] = ()


class LaterPoint(Row, frozen=True):
    """The same in a later version."""

    at: Moment
    name: str
    notes: tuple[str, ...] = ()
    colour: str = "red"


@given(st.lists(values))
def test_a_record_comes_back(fields: list[Any]) -> None:
    assert unpack_record(pack_record(fields)) == fields


@given(st.dictionaries(st.text(), leaves))
def test_equal_records_are_equal_bytes(fields: dict[str, Any]) -> None:
    turned = dict(reversed(fields.items()))
    assert pack_record([fields]) == pack_record([turned])


def test_the_format_stands_before_everything() -> None:
    assert pack_record([1, "a"]) == FORMAT + b"\x92\x01\xa1a"
    assert FORMAT == b"\x01"


@pytest.mark.parametrize("data", [b"", b"\x02\x80", b"\x00", b"\x80"])
def test_another_format_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError, match="can't read"):
        unpack_record(data)
    with pytest.raises(CodecError, match="can't read"):
        Point.unpack(data)


def test_a_row_is_the_array_of_its_fields() -> None:
    point = Point(1.5, "p", ("a",))
    assert unpack_record(point.pack()) == [1.5, "p", ["a"]]
    assert Point.unpack(point.pack()) == point
    assert Point.unpack(pack_record([2, "p"])) == Point(2.0, "p")


@pytest.mark.parametrize(
    "fields",
    [[], [1.5], ["x", "p"], [1.5, 2], [float("nan"), "p"], [1e300, "p"], [1.5, "p", [1]], [1.5, "p", "a"], [1.5, None]],
    ids=str,
)
def test_what_does_not_fit_is_damaged(fields: list[object]) -> None:
    with pytest.raises(CodecError, match="a point in the store is damaged") as caught:
        Point.unpack(pack_record(fields))
    assert not isinstance(caught.value, NewerFormatError)


@pytest.mark.parametrize("more", [b"", b"\x00", b"\xc1", b"\x92\x01"])
@pytest.mark.parametrize("begin", [b"\x92\xc1", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x92\x01\xa2\xff\xff"])
def test_bytes_that_are_no_row_are_damaged(begin: bytes, more: bytes) -> None:
    with pytest.raises(CodecError, match="damaged"):
        Point.unpack(FORMAT + begin + more)
    with pytest.raises(CodecError, match="damaged"):
        Point.unpack(Point(1.5, "p").pack() + b"\x00" + more)


def test_a_row_of_a_later_version_is_left_to_workers_of_that_version() -> None:
    with pytest.raises(NewerFormatError, match="newer"):
        Point.unpack(LaterPoint(1.5, "p").pack())
    assert LaterPoint.unpack(Point(1.5, "p").pack()) == LaterPoint(1.5, "p")


@pytest.mark.parametrize("fields", [[], ["running"], [1.5, "p", ["a"]], [1] * 15], ids=len)
def test_a_row_of_before_the_first_release_says_so(fields: list[object]) -> None:
    raw = FORMAT + cbor2.dumps(fields, canonical=True)
    with pytest.raises(CodecError, match="before its first release"):
        Point.unpack(raw)
    with pytest.raises(CodecError, match="before its first release"):
        unpack_record(raw)


@pytest.mark.parametrize("text", ["", "readable", b"", b"sealed"])
def test_a_text_is_what_the_codec_gave(text: str | bytes) -> None:
    assert Text.unpack(Text.of(text).pack()).value == text


@pytest.mark.parametrize("name", ["\ud800", 2**64, object()], ids=["surrogate", "large", "object"])
def test_what_no_row_can_hold_is_a_clear_error(name: Any) -> None:
    with pytest.raises(CodecError, match="a point can't be stored: "):
        Point(1.5, name).pack()


def test_a_text_or_number_of_a_class_of_its_own_is_stored_as_what_it_is() -> None:
    class Name(str):
        def __str__(self) -> str:
            return "something else"

    class Seconds(float):
        pass

    assert Point.unpack(Point(Seconds(1.5), Name("p"), (Name("a"),)).pack()) == Point(1.5, "p", ("a",))
    with pytest.raises(TypeError, match="no row can hold object"):
        pack_record([object()])


@given(index=st.integers(0, 70_000) | st.integers(0, 1 << 40))
def test_a_segment_of_a_key(index: int) -> None:
    assert pack_segment(index) == pack((index,))
