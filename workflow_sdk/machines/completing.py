"""Objects that msgspec has made, with all of their fields.

To an object of a dataclass, msgspec gives no attribute for a field that the data does not have and whose default is a
constant: reading it gives the default of the class, but made plain data again the field is missing. Then equal objects
would have different bytes, and equal keys two cells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, cast, get_args

from workflow_sdk.values.hints import bare, field_hints, hint_cache

__all__ = ["complete", "may_lack_fields"]


@hint_cache
def may_lack_fields(hint: Any) -> bool:
    """Whether an object of this type, or one inside of it, may lack fields."""
    return any(_constants(cls) for cls in _classes_in(hint, set()))


def _classes_in(hint: Any, seen: set[Any]) -> Iterator[type]:
    hint = bare(hint)
    try:
        if hint in seen:
            return
        seen.add(hint)
    except TypeError:  # not hashable, as Literal[[]]
        return
    inner: Iterable[Any] = get_args(hint)
    if hasattr(hint, "__value__"):
        inner = (hint.__value__,)
    elif isinstance(hint, type) and not get_args(hint):
        yield hint
        inner = field_hints(hint).values()
    for one in inner:
        yield from _classes_in(one, seen)


@cache
def _fields(cls: type) -> tuple[str, ...]:
    """The names of the fields of a dataclass; none of another class."""
    return tuple(field.name for field in _dataclass_fields(cls))


@cache
def _constants(cls: type) -> dict[str, Any]:
    """The fields of a class whose objects may lack them, with their defaults."""
    fields = _dataclass_fields(cls) if cls.__dictoffset__ else ()
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def _dataclass_fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def complete(value: object) -> None:
    """Give an object, and all inside of it, the fields that it lacks."""
    cls: Any = type(value)
    parts: Iterable[Any]
    if issubclass(cls, dict):
        parts = cast("dict[Any, Any]", value).values()
    elif issubclass(cls, (list, tuple, set, frozenset)):
        parts = cast("Iterable[Any]", value)
    else:
        for name, default in _constants(cls).items():
            value.__dict__.setdefault(name, default)  # also of a frozen class
        names = _fields(cls) or getattr(cls, "__struct_fields__", ())
        parts = [getattr(value, name, None) for name in names]
    for part in parts:
        complete(part)
