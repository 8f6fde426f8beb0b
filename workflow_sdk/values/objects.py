"""How objects of authors' classes are taken apart and made again of their parts, and how their classes are found.

Objects are taken apart by their state and put together by it. `__init__` and `__post_init__` do not run again: they
may have effects, take other arguments than there are fields, or compute what is in the state already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cached_property, lru_cache, partial
from operator import attrgetter, itemgetter
from types import FunctionType
from typing import Any, Final, TypeAlias, cast

import msgspec

from workflow_sdk.values.basics import (
    Build,
    Problem,
    Take,
    Taken,
    class_name,
    error_text,
    find_class,
    not_found_again,
    short,
    type_text,
)
from workflow_sdk.values.hints import Field, Making, fields_of, making_of

_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, so without a layout of its own in C
_NOT_STATE: Final = frozenset({"__orig_class__", "_attrs_cached_hash", "__weakref__", "__dict__"})
_PYDANTIC_STATE: Final = {  # no attribute's name begins with a tilde
    "~extra": "__pydantic_extra__",
    "~set": "__pydantic_fields_set__",
    "~private": "__pydantic_private__",
}
_WITHOUT: Final = "~without "
"""Stands before the name of a field that had no value in the object, though making an object gives it one."""
_CODE: Final = (FunctionType, property, cached_property, classmethod, staticmethod)


class Shape:
    """What objects of one class consist of.

    A `taker` gives a function from an object to the names and values of its attributes, and a `builder` one from values
    to an object. `is_expected` says that a type hint names the class: no code of others is run, whatever is stored.
    """

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.text: str = type_text(cls)
        self.fields: dict[str, Field] = {field.name: field for field in fields_of(cls) if field.is_kept}
        self.names: tuple[str, ...] = tuple(self.fields)

    def missing(self, names: tuple[str, ...]) -> list[Field]:
        """The fields that `names` lacks; raises `Problem` for one that must have a value."""
        missing = [field for name, field in self.fields.items() if name not in names and _WITHOUT + name not in names]
        for field in missing:
            if field.is_required:
                raise Problem(f"the field {field.name!r} of {self.text} is missing", "give the field a default")
        return missing

    def is_computed(self, name: str) -> bool:
        """Whether an attribute need not be stored: it is computed again when asked for, or belongs to a library."""
        return name in _NOT_STATE or isinstance(getattr(self.cls, name, None), cached_property)


class StateShape(Shape):
    """Dataclasses (pydantic's included) and attrs classes: fields in `__dict__` or in slots."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
        for base in cls.__mro__:
            if base is not object and not base.__flags__ & _HEAP_TYPE and base.__module__ == "builtins":
                what = f"{self.text} is a {base.__name__} with fields of its own and can't be stored"
                raise Problem(what, "make it a class of its own, with the data as a field")
        slots = {slot for base in cls.__mro__ for slot in _slots_of(base)}
        self.slots: dict[str, None] = dict.fromkeys(sorted(slots - _NOT_STATE))
        self.has_dict: bool = cls.__dictoffset__ != 0
        self.cached_hash: bool = "_attrs_cached_hash" in slots or "_attrs_cached_hash" in vars(cls)

    def taker(self) -> Take:
        in_dict = self.has_dict and not self.slots
        if not in_dict and (self.has_dict or self.slots.keys() != set(self.names)):
            return self._take
        names, count = self.names, len(self.names)
        values_of = _getter(itemgetter if in_dict else attrgetter, names)

        def take(value: Any) -> Taken:
            state = value.__dict__ if in_dict else value
            if not in_dict or len(state) == count:
                try:
                    return names, values_of(state)
                except (KeyError, AttributeError):
                    pass
            return self._take(value)

        return take

    def _take(self, value: Any) -> Taken:
        state: dict[str, object] = {slot: getattr(value, slot) for slot in self.slots if hasattr(value, slot)}
        if self.has_dict:
            state.update((k, v) for k, v in value.__dict__.items() if not self.is_computed(k))
        return self._taken(state)

    def _taken(self, state: dict[str, object]) -> Taken:
        lost = [field for field in self.fields.values() if field.name not in state]
        self._check_lost(lost)
        others = [name for name in state if name not in self.fields]
        for name in others:
            if self._hides_code(name):
                raise Problem(f"the attribute {name!r} of this {self.text} hides a method of its class")
        names = [*filter(state.__contains__, self.names), *others]
        without = [_WITHOUT + field.name for field in lost if field.is_made]
        return (*names, *without), [*map(state.__getitem__, names), *[None] * len(without)]

    def _check_lost(self, lost: Iterable[Field]) -> None:
        for field in lost:
            # It was deleted, or never set, and would come back with a default.
            if field.default is not None or field.is_required:
                raise Problem(f"the field {field.name!r} of this {self.text} has no value")

    def _hides_code(self, name: str) -> bool:
        """Whether a stored attribute would hide a method or property, as it was a field once and is none any more."""
        bases: tuple[type, ...] = self.cls.__mro__
        held: object = next((vars(base)[name] for base in bases if name in vars(base)), None)
        return name not in self.fields and isinstance(held, _CODE)

    def builder(self, names: tuple[str, ...], *, is_expected: bool) -> Build:
        cls, slots, has_dict, cached_hash = self.cls, self.slots, self.has_dict, self.cached_hash
        missing = self.missing(names)
        made_fields = self._made_fields(missing, is_expected=is_expected)
        defaults = [(field.name, field.default) for field in missing if field.default is not None]
        dropped = [name for name in names if name.startswith(_WITHOUT) or self._hides_code(name)]
        new: Any = object.__new__
        put: Any = object.__setattr__

        def build_dict(values: Sequence[object]) -> object:
            made: Any = new(cls)
            state = made.__dict__
            for name, value in zip(names, values):  # noqa: B905  # `strict` takes long
                state[name] = value
            return made

        def build_slots(values: Sequence[object]) -> object:
            made: Any = new(cls)
            for name, value in zip(names, values):  # noqa: B905  # `strict` takes long
                put(made, name, value)
            return made

        def build(values: Sequence[object]) -> object:
            made: Any = new(cls)
            state = dict(zip(names, values, strict=True))
            for name, default in defaults:
                state[name] = default()
            for name in dropped:
                del state[name]
            if made_fields:
                self._fill(state, made_fields)
            if cached_hash:
                put(made, "_attrs_cached_hash", None)
            for name, value in state.items():
                if name in slots:
                    put(made, name, value)
                elif has_dict:
                    made.__dict__[name] = value
            return made

        if any((defaults, made_fields, dropped, cached_hash)):
            return build
        if has_dict:
            return build if slots else build_dict
        return build_slots if slots.keys() >= set(names) else build

    def _made_fields(self, missing: Iterable[Field], *, is_expected: bool) -> list[str]:
        """The missing fields that only making an object gives a value."""
        made_fields = [field.name for field in missing if field.is_made]
        if made_fields and not is_expected:
            raise Problem(
                f"the field {made_fields[0]!r} of {self.text} was not written, and is made by code of the class, which "
                "runs only where an annotation names the class",
                "annotate what holds it with the class, or give the field a default",
            )
        return made_fields

    def _fill(self, state: dict[str, object], names: Sequence[str]) -> None:
        given = {f.argument: state[f.name] for f in self.fields.values() if f.argument is not None and f.name in state}
        try:
            made = self.cls(**given)
        except Exception as error:
            raise Problem(
                f"the field {names[0]!r} of {self.text} was not written, and no object can be made for it: "
                f"{error_text(error)}",
                "give the field a default",
            ) from error
        state.update((name, getattr(made, name)) for name in names if hasattr(made, name))


class NamedTupleShape(Shape):
    """Classes of `typing.NamedTuple` and `collections.namedtuple`."""

    def taker(self) -> Take:
        def take(value: Any) -> Taken:
            if getattr(value, "__dict__", None):
                raise Problem(f"this {self.text} has attributes beside its fields, which can't be stored")
            if len(value) != len(self.names):
                raise Problem(f"this {self.text} has {len(value)} items for {len(self.names)} fields")
            return self.names, value

        return take

    def builder(self, names: tuple[str, ...], *, is_expected: bool) -> Build:
        new: Build = partial(cast(Any, tuple).__new__, self.cls)
        if names == self.names:
            return new
        defaults = {field.name: field.default() for field in self.missing(names) if field.default is not None}

        def build(values: Sequence[object]) -> object:
            state = {**dict(zip(names, values, strict=True)), **defaults}
            return new([state[name] for name in self.names])

        return build


class StructShape(Shape):
    """Classes of `msgspec.Struct`. They can only be made by a call, which runs their `__post_init__`."""

    def taker(self) -> Take:
        names, values_of = self.names, _getter(attrgetter, self.names)

        def take(value: Any) -> Taken:
            try:
                values = values_of(value)
            except AttributeError as error:
                raise Problem(f"a field of this {self.text} has no value: {error_text(error)}") from None
            if extra := getattr(value, "__dict__", None):
                return (*names, *extra), [*values, *extra.values()]
            return names, values

        return take

    def builder(self, names: tuple[str, ...], *, is_expected: bool) -> Build:
        cls, fields = self.cls, self.fields
        post_init = hasattr(cls, "__post_init__")

        def build(values: Sequence[object]) -> object:
            state = dict(zip(names, values, strict=True))
            try:
                made = cls(**{name: value for name, value in state.items() if name in fields})
            except TypeError as error:
                raise Problem(f"{self.text} can't be made: {error_text(error)}") from None
            for name, value in state.items():
                if name not in fields:
                    if hasattr(made, "__dict__"):
                        made.__dict__[name] = value
                elif post_init:  # it may have changed the field
                    msgspec.structs.force_setattr(made, name, value)
            return made

        if names != self.names or post_init:
            return build
        return lambda values: cls(**dict(zip(names, values)))  # noqa: B905  # as above


class ModelShape(Shape):
    """Models of pydantic. Their state is exact where a dump is not: it keeps subclasses, and runs no validator."""

    def taker(self) -> Take:
        def take(value: Any) -> Taken:
            state, fields = value.__getstate__(), self.fields
            inner: dict[str, object] = state["__dict__"]
            if inner.keys() != fields.keys():
                inner = {k: v for k, v in inner.items() if k in fields or not self.is_computed(k)}
                for name in inner.keys() ^ fields.keys():
                    # After model_construct: it must not come back with its default.
                    what = "has no value" if name in fields else "is none of its class"
                    raise Problem(f"the field {name!r} of this {self.text} {what}")
            rest = {name: state[key] for name, key in _PYDANTIC_STATE.items() if key in state}  # not all in a RootModel
            return (*inner, *rest), [*inner.values(), *rest.values()]

        return take

    def builder(self, names: tuple[str, ...], *, is_expected: bool) -> Build:
        cls, missing = self.cls, self.missing(names)
        # It was a field once. A model has nothing in this place but its fields.
        gone = [name for name in names if name not in self.fields and name not in _PYDANTIC_STATE]

        def build(values: Sequence[object]) -> object:
            inner = dict(zip(names, values, strict=True))
            state = {key: inner.pop(name) for name, key in _PYDANTIC_STATE.items() if name in inner}
            for name in gone:
                del inner[name]
            for name, *_ in missing:
                info = cls.__pydantic_fields__[name]
                inner[name] = info.get_default(call_default_factory=True, validated_data=inner)
            made = cls.__new__(cls)
            made.__setstate__({"__dict__": inner, **state})
            return made

        return build


AnyShape: TypeAlias = StateShape | NamedTupleShape | StructShape | ModelShape
_SHAPES: Final[dict[Making, Callable[[Any], AnyShape]]] = {
    **dict.fromkeys(("dataclass", "attrs"), StateShape),
    "named tuple": NamedTupleShape,
    "struct": StructShape,
    "model": ModelShape,
}


@lru_cache(10_000)
def _shape_of(cls: type) -> AnyShape:
    if (making := making_of(cls)) is None:
        raise Problem(f"an object of type {type_text(cls)} can't be stored", _remedy(cls))
    return _SHAPES[making](cls)


def taker_of(cls: type) -> Take:
    """What takes objects of a class apart; raises `Problem` for a class whose objects can't be stored."""
    return _shape_of(cls).taker()


def _remedy(cls: type) -> str:
    for base in (bool, int, float, str, bytes, bytearray, list, dict, tuple, set, frozenset):
        if issubclass(cls, base) and not issubclass(cls, Enum):
            return f"pass a plain {base.__name__}, made by {base.__name__}(value)"
    if cls.__module__ == "builtins" or not cls.__flags__ & _HEAP_TYPE:
        return "pass what it stands for as data"
    return "make its class a dataclass, or pass what it stands for as data"


def _slots_of(cls: type) -> tuple[str, ...]:
    found: Any = vars(cls).get("__slots__", ())
    names: tuple[str, ...] = (found,) if isinstance(found, str) else tuple(found)
    prefix = "_" + cls.__name__.lstrip("_")
    return tuple(prefix + n if n.startswith("__") and not n.endswith("__") else n for n in names)


def _getter(make: Any, names: tuple[str, ...]) -> Callable[[Any], Sequence[object]]:
    """`itemgetter` or `attrgetter` of any number of names, which gives a sequence always."""
    if len(names) > 1:
        return cast(Callable[[Any], Sequence[object]], make(*names))
    gets = [make(name) for name in names]
    return lambda holder: [get(holder) for get in gets]


# -- Classes by name --------------------------------------------------------------------------------------------------


class Known:
    """The classes that a type hint leads to. Through it, local classes are found, and classes that have moved."""

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self.named: dict[str, type] = {}
        """By full name, and by name in the module: where two classes have the same one, it leads to neither."""
        twice: set[str] = set()
        for cls in classes:
            for name in (class_name(cls), cls.__qualname__):
                if self.named.setdefault(name, cls) is not cls:
                    twice.add(name)
        for name in twice:
            del self.named[name]
        self.classes: frozenset[type] = frozenset(self.named.values())

    def builder_of(self, name: str, names: tuple[str, ...]) -> Build | None:
        """What makes objects of the class of this name; None if there is no such class."""
        cls = self.named.get(name) or find_class(name) or self.named.get(name.partition(":")[2])
        return None if cls is None else _builder(cls, names, cls in self.classes)

    def name_of(self, cls: type) -> str:
        """The name of a class that will be found again; raises `Problem` for one that will not."""
        name = class_name(cls)
        if (self.named.get(name) or find_class(name)) is cls:
            return name
        raise not_found_again(cls)


@lru_cache(10_000)
def _builder(cls: type, names: tuple[str, ...], is_expected: bool) -> Build:
    if Enum in cls.__mro__:
        return partial(_member, cast(Any, cls))
    return _shape_of(cls).builder(names, is_expected=is_expected)


def _member(cls: type[Enum], values: Sequence[Any]) -> Enum:
    """The member of an enum with this value; or, if there is a second item, with this name."""
    try:
        return cls[values[0]] if values[1:] else cls(values[0])
    except (KeyError, ValueError):
        what = f"{short(values[0])} is not a member of {type_text(cls)} any more"
        raise Problem(what, "keep the member, or an alias of it") from None
