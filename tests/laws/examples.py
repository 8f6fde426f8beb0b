"""How many examples tests of random input try, and which."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from tests.chaos import effort

__all__ = ["EXAMPLES_MIN", "examples", "is_fixed"]

EXAMPLES_MIN = 5
"""A test tries at least this many examples, however low the effort."""


def is_fixed() -> bool:
    """Whether random tests try the same examples in every run: with an effort below 1, where a run is to be steady."""
    return float(os.environ.get("WORKFLOW_SDK_CHAOS", "1")) < 1


def examples(count: int) -> settings:
    """Settings for `count` examples, times the effort. A failing example is printed with what replays it."""
    return settings(
        max_examples=max(EXAMPLES_MIN, effort(count)),
        deadline=None,
        derandomize=is_fixed(),
        # Without a database that other runs would write: derandomized tests can't use one.
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
