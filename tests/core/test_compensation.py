"""What has to be undone, and how its handlers are found again."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.journal.compensation import Compensation, HandlerRef, Progress
from workflow_sdk.rows.wire import ErrorRow, Text
from workflow_sdk.values import Codec

pytestmark = pytest.mark.law(11)

CODEC = Codec()


async def undo(*args: Any, **kwargs: Any) -> None:
    raise NotImplementedError


def name_of(handler: object) -> str | None:
    """Only `undo` has a name."""
    return "shop:undo" if handler is undo else None


def test_a_partial_is_found_with_its_arguments() -> None:
    ref = HandlerRef.of(partial(partial(undo, 1, b=2), (2,), b="3"), CODEC, name_of)
    assert ref is not None
    assert ref.name == "shop:undo"
    assert [CODEC.decode(arg) for arg in ref.args] == [1, (2,)]
    assert {key: CODEC.decode(value) for key, value in ref.kwargs} == {"b": "3"}
    assert HandlerRef.unpack(ref.pack()) == ref


@pytest.mark.parametrize(
    "handler", [lambda result: None, partial(lambda result: None), partial(undo, object()), partial(undo, b=object())]
)
def test_what_can_not_be_recorded_has_no_reference(handler: Any) -> None:
    assert HandlerRef.of(handler, CODEC, name_of) is None


def error(message: str = "no") -> ErrorRow:
    """A failure."""
    return ErrorRow("app.Error", Text(message), Text(""), "application", {})


raw = st.binary(max_size=10)
refs = st.builds(HandlerRef, st.text(), st.lists(raw).map(tuple), st.lists(st.tuples(st.text(), raw)).map(tuple))
compensations = st.builds(
    Compensation,
    st.integers(0, 10**9),
    raw,
    st.text(),
    st.none() | refs,
    raw,
    st.booleans(),
    st.sampled_from(Progress),
    st.integers(0, 99),
    st.none() | st.floats(0, 4e9),
    st.none() | st.builds(error),
)


@given(compensations)
def test_a_compensation_comes_back(compensation: Compensation) -> None:
    assert Compensation.unpack(compensation.sequence, compensation.pack()) == compensation


def test_how_far_it_is() -> None:
    fresh = Compensation(1, b"", "s", None, b"v", tagged=True)
    assert (fresh.progress, fresh.attempts) == (Progress.OPEN, 0)
    retrying = fresh.failed(error("e"), 5.0)
    assert (retrying.progress, retrying.attempts, retrying.retry_at) == (Progress.RETRYING, 1, 5.0)
    exhausted = retrying.failed(error("f"), None)
    assert (exhausted.progress, exhausted.attempts, exhausted.error) == (Progress.EXHAUSTED, 2, error("f"))
    done = retrying.done()
    assert (done.progress, done.attempts, done.retry_at) == (Progress.DONE, 2, None)
