"""How objects of authors' classes are taken apart, and made again of their parts.

Objects are taken apart by their state and put together by it. `__init__` and `__post_init__` do not run again: they
may have effects, take other arguments than there are fields, or compute what is in the state already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cached_property
from operator import attrgetter, itemgetter
from types import FunctionType
from typing import Any, Final, cast

import msgspec

from workflow_sdk.values.basics import Cache, Problem, error_text, type_text
from workflow_sdk.values.classes import Field, Making, fields_of, making_of

Taken = tuple[tuple[str, ...], Sequence[object]]
Build = Callable[[Sequence[object]], object]

_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, so without a layout of its own in C
_NOT_STATE: Final = frozenset({"__orig_class__", "_attrs_cached_hash", "__weakref__", "__dict__"})
_PYDANTIC_STATE: Final = {  # no attribute's name begins with a tilde
    "~extra": "__pydantic_extra__",
    "~set": "__pydantic_fields_set__",
    "~private": "__pydantic_private__",
}
_UNSET: Final = object()
_WITHOUT: Final = "~without "
"""Stands before the name of a field that had no value in the object, though making an object gives it one."""
_CODE: Final = (FunctionType, property, cached_property, classmethod, staticmethod)


class Shape:
    """Takes objects of one class apart, and makes them again."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.fields: dict[str, Field] = {field.name: field for field in fields_of(cls) if field.is_kept}
        self.names: tuple[str, ...] = tuple(self.fields)
        """The names of its fields."""

    def take(self, value: Any) -> Taken:
        """The names and values of the attributes of `value`; raises `Problem` if it consists of more than these."""
        raise NotImplementedError

    def builder(self, names: tuple[str, ...], *, is_expected: bool = True) -> Build:
        """A function from values, in the order of `names`, to an object; raises `Problem` if fields are missing.

        `is_expected` says that a type hint names the class. No code of other classes is run, whatever is stored.
        """
        raise NotImplementedError

    def missing(self, names: tuple[str, ...]) -> list[Field]:
        """The fields that `names` lacks."""
        return [field for name, field in self.fields.items() if name not in names and _WITHOUT + name not in names]

    def check_required(self, missing: Iterable[Field]) -> None:
        """Raise `Problem` for a field that must have a value."""
        for field in missing:
            if field.is_required:
                what = f"the field {field.name!r} of {type_text(self.cls)} is missing"
                raise Problem(what, "give the field a default")

    def is_computed(self, name: str) -> bool:
        """Whether an attribute need not be stored: it is computed again when asked for, or belongs to a library."""
        return name in _NOT_STATE or isinstance(getattr(self.cls, name, None), cached_property)


class StateShape(Shape):
    """Dataclasses (pydantic's included) and attrs classes: fields in `__dict__` or in slots."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
        for base in cls.__mro__:
            if base is not object and not base.__flags__ & _HEAP_TYPE and base.__module__ == "builtins":
                raise Problem(
                    f"{type_text(cls)} is a {base.__name__} with fields of its own and can't be stored",
                    "make it a class of its own, with the data as a field",
                )
        slots = {slot for base in cls.__mro__ for slot in _slots_of(base)}
        self.slots: dict[str, None] = dict.fromkeys(sorted(slots - _NOT_STATE))
        self.has_dict: bool = cls.__dictoffset__ != 0
        self.cached_hash: bool = "_attrs_cached_hash" in slots or "_attrs_cached_hash" in vars(cls)
        self.count: int = len(self.names)
        self._simple_dict = self.has_dict and not self.slots
        self._simple_slots = not self.has_dict and self.slots.keys() == set(self.names)
        self._values = _getter(self.names, attributes=self._simple_slots)

    def take(self, value: Any) -> Taken:
        if self._simple_dict:
            state = value.__dict__
            if len(state) == self.count:
                try:
                    return self.names, self._values(state)
                except KeyError:
                    pass
        elif self._simple_slots:
            try:
                return self.names, self._values(value)
            except AttributeError:
                pass
        return self._take_slowly(value)

    def _take_slowly(self, value: Any) -> Taken:
        state = self._state(value)
        lost = [field for field in self.fields.values() if field.name not in state]
        self._check_lost(lost)
        others = [name for name in state if name not in self.fields]
        for name in others:
            if self._hides_code(name):
                raise Problem(f"the attribute {name!r} of this {type_text(self.cls)} hides a method of its class")
        names = [*filter(state.__contains__, self.names), *others]
        without = [_WITHOUT + field.name for field in lost if field.is_made]
        return (*names, *without), [*map(state.__getitem__, names), *[None] * len(without)]

    def _check_lost(self, lost: Iterable[Field]) -> None:
        """Raise `Problem` for a field that was deleted, or never set, and would come back with a default."""
        for field in lost:
            if field.default is not None or field.is_required:
                raise Problem(f"the field {field.name!r} of this {type_text(self.cls)} has no value")

    def _state(self, value: Any) -> dict[str, object]:
        slots = {slot: getattr(value, slot, _UNSET) for slot in self.slots}
        state = {slot: found for slot, found in slots.items() if found is not _UNSET}
        if self.has_dict:
            state.update((k, v) for k, v in value.__dict__.items() if not self.is_computed(k))
        return state

    def _hides_code(self, name: str) -> bool:
        """Whether a stored attribute would hide a method or property, as it was a field once and is none any more."""
        if name in self.fields:
            return False
        mro: tuple[type, ...] = self.cls.__mro__
        return isinstance(next((vars(cls)[name] for cls in mro if name in vars(cls)), None), _CODE)

    def builder(self, names: tuple[str, ...], *, is_expected: bool = True) -> Build:
        cls = self.cls
        missing = self.missing(names)
        made_fields = self._made_fields(missing, is_expected=is_expected)
        self.check_required(missing)
        defaults = [(field.name, field.default) for field in missing if field.default is not None]
        dropped = [name for name in names if name.startswith(_WITHOUT) or self._hides_code(name)]
        new: Any = object.__new__
        put: Any = object.__setattr__
        slots, cached_hash = self.slots, self.cached_hash

        if self._simple_dict and not any((defaults, made_fields, dropped, cached_hash)):

            def build_dict(values: Sequence[object]) -> object:
                made: Any = new(cls)
                made.__dict__.update(zip(names, values, strict=True))
                return made

            return build_dict

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
                elif self.has_dict:
                    made.__dict__[name] = value
            return made

        return build

    def _made_fields(self, missing: Iterable[Field], *, is_expected: bool) -> list[str]:
        """The missing fields that only making an object gives a value; raises `Problem` where that must not be done."""
        made_fields = [field.name for field in missing if field.is_made]
        if made_fields and not is_expected:
            raise Problem(
                f"the field {made_fields[0]!r} of {type_text(self.cls)} was not written, and is made by code of the "
                "class, which runs only where an annotation names the class",
                "annotate what holds it with the class, or give the field a default",
            )
        return made_fields

    def _fill(self, state: dict[str, object], names: Sequence[str]) -> None:
        """Give these fields the values that they have in an object which the class makes of the others."""
        given = {f.argument: state[f.name] for f in self.fields.values() if f.argument is not None and f.name in state}
        try:
            made = self.cls(**given)
        except Exception as error:
            raise Problem(
                f"the field {names[0]!r} of {type_text(self.cls)} was not written, and no object can be made for it: "
                f"{error_text(error)}",
                "give the field a default",
            ) from error
        for name in names:
            if (value := getattr(made, name, _UNSET)) is not _UNSET:
                state[name] = value


class NamedTupleShape(Shape):
    """Classes of `typing.NamedTuple` and `collections.namedtuple`."""

    def take(self, value: Any) -> Taken:
        if getattr(value, "__dict__", None):
            raise Problem(f"this {type_text(self.cls)} has attributes beside its fields, which can't be stored")
        if len(value) != len(self.names):
            raise Problem(f"this {type_text(self.cls)} has {len(value)} items for {len(self.names)} fields")
        return self.names, value

    def builder(self, names: tuple[str, ...], *, is_expected: bool = True) -> Build:
        cls, order = self.cls, self.names
        base: Any = tuple
        new = base.__new__
        if names == order:
            return lambda values: new(cls, values)
        missing = self.missing(names)
        self.check_required(missing)
        defaults = {field.name: field.default() for field in missing if field.default is not None}

        def build(values: Sequence[object]) -> object:
            state = {**dict(zip(names, values, strict=True)), **defaults}
            return new(cls, [state[name] for name in order])

        return build


class StructShape(Shape):
    """Classes of `msgspec.Struct`. They can only be made by a call, which runs their `__post_init__`."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
        self._values = _getter(self.names, attributes=True)

    def take(self, value: Any) -> Taken:
        try:
            values = self._values(value)
        except AttributeError as error:
            raise Problem(f"a field of this {type_text(self.cls)} has no value: {error_text(error)}") from None
        if extra := getattr(value, "__dict__", None):
            return (*self.names, *extra), [*values, *extra.values()]
        return self.names, values

    def builder(self, names: tuple[str, ...], *, is_expected: bool = True) -> Build:
        cls, fields = self.cls, self.fields
        post_init = hasattr(cls, "__post_init__")

        def build(values: Sequence[object]) -> object:
            state = dict(zip(names, values, strict=True))
            try:
                made = cls(**{name: value for name, value in state.items() if name in fields})
            except TypeError as error:
                raise Problem(f"{type_text(cls)} can't be made: {error_text(error)}") from None
            for name, value in state.items():
                if name not in fields:
                    if hasattr(made, "__dict__"):
                        made.__dict__[name] = value
                elif post_init:  # it may have changed the field
                    msgspec.structs.force_setattr(made, name, value)
            return made

        return build


class ModelShape(Shape):
    """Models of pydantic. Their state is exact where a dump is not: it keeps subclasses, and runs no validator."""

    def take(self, value: Any) -> Taken:
        state = value.__getstate__()
        inner: dict[str, object] = {k: v for k, v in state["__dict__"].items() if not self.is_computed(k)}
        for name in self.names:
            if name not in inner:  # after model_construct; it must not come back with its default
                raise Problem(f"the field {name!r} of this {type_text(self.cls)} has no value")
        for name in inner:
            if name not in self.fields:
                raise Problem(f"the attribute {name!r} of this {type_text(self.cls)} is no field of it")
        rest = {name: state[key] for name, key in _PYDANTIC_STATE.items() if key in state}  # a RootModel has but one
        return (*inner, *rest), [*inner.values(), *rest.values()]

    def builder(self, names: tuple[str, ...], *, is_expected: bool = True) -> Build:
        cls = self.cls
        missing = self.missing(names)
        self.check_required(missing)
        gone = [name for name in names if name not in self.fields and name not in _PYDANTIC_STATE]

        def build(values: Sequence[object]) -> object:
            inner = dict(zip(names, values, strict=True))
            state = {key: inner.pop(name) for name, key in _PYDANTIC_STATE.items() if name in inner}
            for name in gone:
                # It was a field once. A model has nothing in this place but its fields.
                del inner[name]
            for name, *_ in missing:
                info = cls.__pydantic_fields__[name]
                inner[name] = info.get_default(call_default_factory=True, validated_data=inner)
            made = cls.__new__(cls)
            made.__setstate__({"__dict__": inner, **state})
            return made

        return build


_SHAPES: Final[dict[Making, type[Shape]]] = {
    "dataclass": StateShape,
    "attrs": StateShape,
    "named tuple": NamedTupleShape,
    "struct": StructShape,
    "model": ModelShape,
}


def shape_of(cls: type) -> Shape:
    """The shape of a class; raises `Problem` for one whose objects can't be stored."""
    return _shapes[cls]


def _make_shape(cls: type) -> Shape:
    if (making := making_of(cls)) is None:
        raise Problem(f"an object of type {type_text(cls)} can't be stored", _remedy(cls))
    return _SHAPES[making](cls)


_shapes: Final = Cache(_make_shape, 10_000)


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


def _getter(names: tuple[str, ...], *, attributes: bool) -> Callable[[Any], Sequence[object]]:
    make: Any = attrgetter if attributes else itemgetter
    if not names:
        return lambda _: ()
    if len(names) == 1:
        get = make(names[0])
        return lambda holder: (get(holder),)
    return cast(Callable[[Any], Sequence[object]], make(*names))
