"""Plain data: what values are, how large they may be, and the budget of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from workflow_sdk.graphs.expressions.faults import Fault

STEPS_MAX: Final = 10_000
SIZE_MAX: Final = 1_000_000
"""The size of a value: its characters and bytes, and 8 for each number, item, key and anything else."""

ITEMS_PER_STEP: Final = 100
CHARACTERS_PER_STEP: Final = 1_000

Value: TypeAlias = Any
"""Plain data. Nothing is asked of a value before its exact type is known: a subclass could answer anything."""

kind_of: Final = cast(Callable[[object], type[object]], type)
"""The exact type of a value."""

SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes, datetime, date, timedelta, Decimal, UUID})
LISTS: Final = frozenset({list, tuple})
"""A tuple in the data counts as a list."""

_ZONES: Final = frozenset({type(None), timezone, ZoneInfo})
_NAMES: Final[dict[type, str]] = {
    dict: "a dict",
    list: "a list",
    tuple: "a list",
    str: "a text",
    int: "an int",
    float: "a float",
    bool: "a bool",
    bytes: "bytes",
    type(None): "None",
}


class Frame:
    """One evaluation: what it reads, what it may call, and how many steps are left."""

    __slots__ = ("functions", "item", "left", "scope")

    def __init__(self, scope: Mapping[str, Value], functions: Mapping[str, Callable[..., Value]], left: int) -> None:
        self.scope: Mapping[str, Value] = scope
        self.functions: Mapping[str, Callable[..., Value]] = functions
        self.left: int = left
        self.item: Value = None

    def spend(self, steps: int) -> None:
        """Count steps. A Fault if there are none left."""
        self.left -= steps
        if self.left < 0:
            raise Fault(f"it takes more than {STEPS_MAX:,} steps")

    def pass_over(self, items: int) -> None:
        """Count what an operation takes that goes over so many items."""
        self.spend(items // ITEMS_PER_STEP)


def named(value: Value) -> str:
    """What a value is, in words."""
    found = kind_of(value)
    if found in _NAMES:
        return _NAMES[found]
    return f"a {found.__name__}" if found in SCALARS else f"a {found.__name__}, which is no plain data"


def fixed(value: datetime) -> datetime:
    """The same time. A Fault if its zone is an object that nobody knows."""
    if type(value.tzinfo) not in _ZONES:
        raise Fault(f"a datetime has a time zone that is {named(value.tzinfo)}")
    return value


class Copier:
    """Copies plain data, and counts its size. A Fault if it is too large, or if there is anything else in it."""

    def __init__(self, most: int = SIZE_MAX) -> None:
        self.most: int = most
        self.size: int = 0

    def copied(self, value: Value) -> Value:
        """A copy that shares nothing that can be changed."""
        found = kind_of(value)
        if found is dict:
            self._count(8 * len(value))
            return {self._key(key): self.copied(each) for key, each in value.items()}
        if found in LISTS:
            self._count(8 * len(value))
            return [self.copied(each) for each in value]
        if found not in SCALARS:
            raise Fault(f"there is {named(value)}")
        self._count(_size(value, found))
        return fixed(value) if found is datetime else value

    def _key(self, key: Value) -> Value:
        if type(key) not in SCALARS:
            raise Fault(f"a key is {named(key)}")
        self._count(_size(key, kind_of(key)))
        return key

    def _count(self, size: int) -> None:
        self.size += size
        if self.size > self.most:
            raise Fault(f"the value is larger than {self.most:,} bytes")


def _size(value: Value, found: type) -> int:
    if found is str or found is bytes:
        return len(value)
    return value.bit_length() // 8 + 8 if found is int else 8


_SMALL: Final = frozenset({bool, type(None), float})


def copied(value: Value) -> Value:
    """A copy of a value that is within the limits."""
    if type(value) in _SMALL:
        return value
    try:
        return Copier().copied(value)
    except RecursionError:
        raise Fault("the value is nested too deeply, or holds itself") from None
