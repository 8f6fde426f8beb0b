"""When a failed step is tried again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.errors import DefinitionError
from workflow_sdk.rows.retry import Backoff, GiveUp, RetryAt, decide, seconds

EXACT = Backoff(jitter=0)


def deciding(attempts: int, *, final: bool = False, backoff: Backoff = EXACT, chance: float = 0.5) -> RetryAt | GiveUp:
    return decide(attempts=attempts, retries=3, final=final, backoff=backoff, now=1000.0, chance=chance)


def test_a_step_is_tried_again_as_often_as_it_may() -> None:
    assert deciding(1) == RetryAt(1000.1)
    assert deciding(3) == RetryAt(1000.4)
    assert deciding(4) == GiveUp()


def test_a_final_failure_ends_it() -> None:
    assert deciding(1, final=True) == GiveUp()


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1), st.floats(1, 100))
def test_the_wait_has_bounds(attempts: int, chance: float, jitter: float, factor: float) -> None:
    backoff = Backoff(initial=1, factor=factor, maximum=30, jitter=jitter)
    plain = Backoff(initial=1, factor=factor, maximum=30, jitter=0).delay(attempts, chance)
    assert 0 <= backoff.delay(attempts, chance) <= 60
    assert 1 <= plain <= 30
    assert backoff.delay(attempts, 0.5) == pytest.approx(plain)
    assert plain * (1 - jitter) - 1e-9 <= backoff.delay(attempts, chance) <= plain * (1 + jitter) + 1e-9


@given(st.integers(1, 2000))
def test_the_wait_never_shrinks(attempts: int) -> None:
    assert EXACT.delay(attempts, 0.5) <= EXACT.delay(attempts + 1, 0.5)


def test_durations_can_be_timedeltas() -> None:
    backoff = Backoff(initial=timedelta(minutes=1), maximum=timedelta(minutes=3), jitter=0)
    assert [backoff.delay(attempts, 0.5) for attempts in (1, 2, 3)] == [60, 120, 180]


@pytest.mark.parametrize(
    "options",
    [
        {"initial": -1},
        {"maximum": -1},
        {"factor": 0.5},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"initial": "1"},
        {"maximum": float("nan")},
    ],
    ids=str,
)
def test_a_backoff_is_checked(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=r"Backoff\."):
        Backoff(**options)


@pytest.mark.parametrize(("duration", "expected"), [(5, 5.0), (0.5, 0.5), (timedelta(days=1), 86_400.0), (-1, -1.0)])
def test_seconds(duration: float | timedelta, expected: float) -> None:
    assert seconds(duration, "it") == expected
    assert isinstance(seconds(duration, "it"), float)


@pytest.mark.parametrize("duration", ["5", None, True, float("nan"), float("inf"), timedelta.max, [5]])
def test_what_is_no_duration_is_refused(duration: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^it is"):
        seconds(duration, "it")
