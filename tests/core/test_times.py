"""Times as a `datetime`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.rows.wire import MOMENT_MAX, deadline_of, time_of

START = datetime(2030, 1, 1, tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("part", [0, 0.1, 1 / 3, 2 / 3, 10 / 3, 100 / 7])
def test_a_deadline_is_not_shown_before_it(part: float) -> None:
    at = START.timestamp() + part
    assert at <= deadline_of(at).timestamp() <= at + 1e-6
    assert abs(time_of(at).timestamp() - at) <= 1e-6


def test_a_deadline_of_whole_microseconds_is_shown_as_it_is() -> None:
    for micros in range(0, 1_000_000, 997):
        when = START.replace(microsecond=micros)
        assert deadline_of(when.timestamp()) == time_of(when.timestamp()) == when


@given(st.floats(-62_135_596_800.0, MOMENT_MAX))
def test_no_deadline_is_shown_before_it(at: float) -> None:
    assert at <= deadline_of(at).timestamp() <= at + 1e-4


@pytest.mark.parametrize("at", [MOMENT_MAX + 1, 1e15, float("inf")])
def test_what_no_calendar_has_is_the_latest_time(at: float) -> None:
    assert deadline_of(at) == time_of(at) == LATEST
