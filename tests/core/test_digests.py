"""A digest of arguments: equal ones in every process, others for other arguments."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.environment import clean_environment
from workflow_sdk.values import differ, digest


@dataclass
class Order:
    id: str
    lines: Any = None


class Point(NamedTuple):
    x: int
    y: int


class Color(Enum):
    RED = 1
    BLUE = 2


def samples() -> list[tuple[object, ...]]:
    """Arguments that all differ."""
    return [
        *[(1,), (True,), (1.0,), ("1",), (b"1",), (None,), (1, None), ("a", "b"), ("b", "a"), ("ab",), ("a, 'b",)],
        *[(10**5000,), (10**5000 + 1,), (-0.0,), (0.0,), ("ä",), ("\ud800",), ("\x00",)],
        *[([],), ((),), ({},), ([1, 2],), ([2, 1],), ((1, 2),), ({1, 2},), (frozenset({1, 2}),), ({"a": 1},)],
        *[({"a": 1, "b": 2},), ({"a": 2, "b": 1},), ({"x", "y", "z", ("t", 1)},), ({("k", 1): 1},)],
        *[(Order("a"),), (Order("b"),), (Order("a", [Order("b")]),), (Order("a", {"z": {"q", "r"}}),)],
        *[(Point(1, 2),), (Point(2, 1),), (Color.RED,), (Color.BLUE,), (Decimal("1.0"),), (Decimal("1.00"),)],
        *[(date(2030, 1, 1),), (datetime(2030, 1, 1, tzinfo=UTC),), (timedelta(1),), (UUID(int=1),)],
        *[(PurePosixPath("a"),), (Counter("aab"),), (OrderedDict(a=1),), (object(),), (samples,), (Order,)],
        *[(1, object()), (object(), 1), ([object()],), ({"a": object()},), (Order("a"), object())],
    ]


def test_other_arguments_have_other_digests() -> None:
    for number, one in enumerate(samples()):
        for other in samples()[number + 1 :]:
            assert differ(digest(one), digest(other)), (one, other)


def test_a_digest_is_short() -> None:
    assert {len(digest(one)) for one in samples()} == {8, 16}


def test_equal_arguments_have_equal_digests_in_every_process() -> None:
    here = [digest(one).hex() for one in samples()]
    code = "from tests.core.test_digests import *; print(*(digest(one).hex() for one in samples()))"
    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            env={**clean_environment(), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.split() == here


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.builds(Order, st.text()),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


def in_reverse(value: Any) -> Any:
    """The same value, with its dicts made the other way round."""
    if isinstance(value, dict):
        return {key: in_reverse(item) for key, item in reversed(value.items())}
    return type(value)(map(in_reverse, value)) if isinstance(value, (list, tuple)) else value


@given(st.lists(plain))
def test_the_order_of_a_dict_does_not_count(arguments: list[Any]) -> None:
    assert digest(arguments) == digest(in_reverse(arguments))


class Raises:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def nested() -> object:
    value: list[object] = []
    value.append(value)
    return value


@pytest.mark.parametrize("make", [Raises, nested, lambda: [Raises()], lambda: iter([1])])
def test_whatever_can_not_be_looked_at_counts_by_its_type(make: Callable[[], object]) -> None:
    assert digest((make(), 1)) == digest((make(), 1))
    assert differ(digest((make(), 1)), digest((make(), 2)))
    assert differ(digest((make(),)), digest(("text",)))
