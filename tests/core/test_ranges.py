"""Ranges of keys, put together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.journal.unwritten import Ranges

keys = st.binary(max_size=2)


@given(st.lists(st.tuples(keys, keys)), st.lists(keys))
def test_a_key_is_in_them_if_it_is_in_one(added: list[tuple[bytes, bytes]], asked: list[bytes]) -> None:
    ranges = Ranges()
    for begin, end in added:
        ranges.add(begin, end)
    for key in [*asked, *(key for pair in added for key in pair)]:
        assert (key in ranges) == any(begin <= key < end for begin, end in added)


def test_those_that_touch_are_one() -> None:
    ranges = Ranges()
    for begin, end in [(b"a", b"b"), (b"c", b"d"), (b"b", b"c"), (b"x", b"y"), (b"a", b"a")]:
        ranges.add(begin, end)
    assert len(ranges) == 2
