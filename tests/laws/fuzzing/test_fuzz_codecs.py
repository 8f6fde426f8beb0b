"""What a codec has written, read by others, and damaged: an error or the same value, never other data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.test_codec_sealing import CODECS
from tests.laws.examples import examples
from tests.laws.fuzzing.hostile import hostile
from workflow_sdk.codecs import plain
from workflow_sdk.errors import CodecError
from workflow_sdk.values import Codec, SealedError

pytestmark = pytest.mark.law(18)

names = st.sampled_from(sorted(CODECS))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(values, names, st.lists(names, max_size=3), st.booleans())
@examples(300)
def test_only_who_has_the_codec_reads_what_it_has_written(
    value: object, writer: str, readers: list[str], also_plain: bool
) -> None:
    data = Codec(wrapper=CODECS[writer]).encode(value)
    given: list[Any] = [CODECS[name] for name in readers] + ([plain] if also_plain or not readers else [])
    reader = Codec(wrapper=given)
    if writer in readers:
        assert reader.decode(data) == value
        assert reader.decode(data, plain=True) is not None or value is None
    else:
        for read in (reader.decode, reader.decode_checked, reader.check_readable):
            with pytest.raises(SealedError):
                read(data)


@given(values, names, st.data())
@examples(300)
def test_what_is_damaged_is_an_error_or_the_same_value(value: object, name: str, data: st.DataObject) -> None:
    codec = Codec(wrapper=CODECS[name])
    raw = bytearray(codec.encode(value))
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    damaged = bytes(raw[: data.draw(st.integers(0, len(raw)))]) if data.draw(st.booleans()) else bytes(raw)
    try:
        seen = codec.decode(damaged)
    except CodecError:
        return
    assert repr(seen) == repr(value)


@given(hostile, names)
@examples(300)
def test_what_was_never_encoded_is_an_error(raw: bytes, name: str) -> None:
    with pytest.raises(CodecError):
        Codec(wrapper=CODECS[name]).decode(raw)


@given(values, st.binary(min_size=1, max_size=20), st.none() | names)
@examples(300)
def test_whatever_comes_after_a_value_is_an_error(value: object, more: bytes, name: str | None) -> None:
    codec = Codec(wrapper=None if name is None else CODECS[name])
    with pytest.raises(CodecError):
        codec.decode(codec.encode(value) + more)
