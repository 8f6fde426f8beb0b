"""The engine's own records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.core.wire import FORMAT, pack_count, pack_record, unpack_record
from workflow_sdk.errors import CodecError

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@given(st.lists(values))
def test_a_record_comes_back(fields: list[Any]) -> None:
    assert unpack_record(pack_record(fields)) == fields


@given(st.dictionaries(st.text(), leaves))
def test_equal_records_are_equal_bytes(fields: dict[str, Any]) -> None:
    turned = dict(reversed(fields.items()))
    assert pack_record([fields]) == pack_record([turned])


def test_the_format_stands_before_everything() -> None:
    assert pack_record([1, "a"]) == FORMAT + b"\x82\x01\x61a"
    assert FORMAT == b"\x01"


@pytest.mark.parametrize("data", [b"", b"\x02\x80", b"\x00", b"\x80"])
def test_another_format_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError, match="can't read"):
        unpack_record(data)


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256, 300, 65_535, 65_536, 2**32, 2**63])
def test_a_count_is_a_record_like_any_other(count: int) -> None:
    assert pack_count(count) == pack_record([count])
