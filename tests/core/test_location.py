"""Locations are packed as `fdb.tuple` packs them, and printed so that no two look alike."""

from __future__ import annotations

import fdb.tuple
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.errors import CodecError
from workflow_sdk.rows.location import (
    Segment,
    escape,
    join_path,
    pack_pair,
    pack_segment,
    segments,
    split_last,
    subtree,
)

pytestmark = pytest.mark.law(13)

numbers = st.integers(0, 300) | st.integers(0, 2**40)
segment = numbers | st.tuples(numbers, numbers)
location = st.lists(segment, max_size=6)
odd_names = st.text(st.sampled_from("a/~%0\x00\x01\x7f2F "), min_size=1, max_size=6)
names = odd_names | st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def pack(parts: list[Segment]) -> bytes:
    return b"".join(pack_pair(*part) if isinstance(part, tuple) else pack_segment(part) for part in parts)


@given(location)
def test_it_is_packed_as_a_tuple(parts: list[Segment]) -> None:
    assert pack(parts) == fdb.tuple.pack(tuple(parts))
    assert list(segments(pack(parts))) == parts


@given(location, segment)
def test_the_last_segment_is_split_off(parts: list[Segment], last: Segment) -> None:
    assert split_last(pack([*parts, last])) == (pack(parts), pack([last]))


def test_the_root_has_no_last_segment() -> None:
    assert split_last(b"") == (b"", b"")


@given(location, location)
def test_a_subtree_is_what_is_below_and_nothing_else(one: list[Segment], other: list[Segment]) -> None:
    begin, end = subtree(pack(one))
    below = len(other) > len(one) and other[: len(one)] == one
    assert (begin <= pack(other) < end) is below


def test_a_subtree_of_texts_knows_a_nul_from_an_end() -> None:
    begin, end = subtree(fdb.tuple.pack(("a",)))
    assert not begin <= fdb.tuple.pack(("a\x00b",)) < end
    assert begin <= fdb.tuple.pack(("a", "b")) < end


@given(st.lists(location, unique_by=pack))
def test_turns_and_names_sort_by_number(parts: list[list[Segment]]) -> None:
    plain = [part for part in parts if all(isinstance(segment, int) for segment in part)]
    assert sorted(map(pack, plain)) == [pack(part) for part in sorted(plain)]


@pytest.mark.parametrize("packed", [b"\x01a\x00", b"\x30", b"\x02a\x00"])
def test_other_bytes_are_no_location(packed: bytes) -> None:
    with pytest.raises(CodecError):
        split_last(packed)


@given(names, names)
def test_two_names_never_print_alike(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) is (one == other)


@given(st.lists(names, min_size=1, max_size=4), st.lists(names, min_size=1, max_size=4))
def test_two_paths_never_print_alike(one: list[str], other: list[str]) -> None:
    def path(parts: list[str]) -> str:
        text = ""
        for part in parts:
            text = join_path(text, escape(part))
        return text

    assert (path(one) == path(other)) is (one == other)
    assert path(one).count("/") == len(one) - 1


@given(names)
def test_what_is_escaped_is_readable(name: str) -> None:
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 or char in "/~" for char in escape(name))


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("charge", "charge"),
        ("a/b", "a%2Fb"),
        ("~0", "%7E0"),
        ("100%", "100%25"),
        ("%2F", "%252F"),
        ("line\nbreak\x7f\x85", "line%0Abreak%7F%85"),
        ("prüfen 検査", "prüfen 検査"),
    ],
)
def test_how_names_print(name: str, printed: str) -> None:
    assert escape(name) == printed
