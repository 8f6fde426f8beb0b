"""Keys that are not of this library's making."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.fuzzing.hostile import SURROGATE, bounded, mutated
from workflow_sdk.errors import CodecError
from workflow_sdk.rows.keys import ROOT, InstanceKeys, WorkerKeys, last_of, worker_of
from workflow_sdk.rows.location import escape, pack, pack_pair, pack_segment, segments, split_last, unpack

pytestmark = pytest.mark.law(17)

KEYS = [
    InstanceKeys("order-1").lease,
    InstanceKeys("a\0b").alarm(1.5),
    WorkerKeys("w").claimed("order-1"),
    ROOT + pack((5, 1, 3, 1.5, "id")),
]
LOCATIONS = [
    pack_segment(1) + pack_pair(1, 70_000) + pack_segment(300),
    pack_segment(0),
    pack_pair(0, 0),
    pack_segment(2**62),
]
BOMBS = [
    b"\x05" * 100_000,
    b"\x05\x15\x01" * 50_000,
    b"\x1d\xff" * 1000,
    b"\x0b\x00" + b"\xff" * 100,
    b"\x02" * 100_000,
]

keys = st.binary(max_size=40) | mutated(KEYS)
locations = st.binary(max_size=20) | mutated(LOCATIONS)


@given(keys)
@examples(300)
def test_other_bytes_are_no_key(key: bytes) -> None:
    for read in (unpack, last_of, worker_of):
        with suppress(CodecError):
            read(key)
    with suppress(CodecError):
        assert isinstance(last_of(ROOT + key), str)
    with suppress(CodecError):
        assert isinstance(worker_of(ROOT + key), str)


@given(locations)
@examples(300)
def test_other_bytes_are_no_location(packed: bytes) -> None:
    with suppress(CodecError):
        for segment in segments(packed):
            assert isinstance(segment, int) or len(segment) == 2
    try:
        parent, own = split_last(packed)
    except CodecError:
        return
    except AssertionError as error:
        assert "not a segment" in str(error)  # noqa: PT017  # the case below
        return
    assert parent + own == packed


def test_bytes_that_begin_no_segment_are_a_clear_error() -> None:
    with pytest.raises(CodecError):
        split_last(b"\x30")


@given(st.lists(st.sampled_from(LOCATIONS), min_size=1).map(b"".join))
@examples(50)
def test_a_location_is_taken_apart_to_its_root(packed: bytes) -> None:
    while packed:
        parent, own = split_last(packed)
        assert own
        assert parent + own == packed
        packed = parent


@pytest.mark.parametrize("key", BOMBS, ids=range(len(BOMBS)))
def test_a_key_that_is_a_bomb_is_a_clear_error(key: bytes) -> None:
    for read in (unpack, last_of, worker_of, split_last, lambda raw: list(segments(raw))):
        with bounded(), suppress(CodecError):
            try:
                read(key)
            except AssertionError as error:
                assert "not a segment" in str(error)  # noqa: PT017  # as above


@given(st.text() | st.just(SURROGATE) | st.text().map(lambda text: text + "\udfff"))
@examples(100)
def test_any_text_as_an_id_is_a_key_or_a_clear_error(id: str) -> None:
    try:
        keys = InstanceKeys(id)
    except CodecError:
        assert any("\ud800" <= char <= "\udfff" for char in id)
        return
    assert last_of(keys.alarm(1.0)) == id
    assert unpack(keys.space[len(ROOT) :]) == (1, id)


@given(st.text())
@examples(100)
def test_any_name_has_a_path(name: str) -> None:
    assert "/" not in escape(name)
