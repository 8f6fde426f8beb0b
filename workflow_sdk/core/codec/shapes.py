"""Authors' classes: what an object of one consists of, and how to make it again from that.

Objects are taken apart by their state and put together by it. `__init__` and `__post_init__` do not run again: they
may have effects, take other arguments than there are fields, or compute what is in the state already.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from operator import attrgetter, itemgetter
from types import FunctionType
from typing import Any, Final, cast

from workflow_sdk.core.codec.problem import Problem, error_text, type_text

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
"""Before the name of a field that an object had no value for, though making one gives it a value."""
_CODE: Final = (FunctionType, property, functools.cached_property, classmethod, staticmethod)


class Shape:
    """What the objects of one class consist of."""

    names: tuple[str, ...] = ()
    """The attributes that its fields are kept in."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def take(self, value: Any) -> Taken:
        """The names and values that `value` consists of; raises `Problem` where they are not all that it is."""
        raise NotImplementedError

    def builder(self, names: tuple[str, ...], *, is_expected: bool = True) -> Build:
        """A function from values, in the order of `names`, to an object; raises `Problem` if fields are missing.

        `is_expected`: a type hint leads to the class. The code of others is not run, whatever is stored.
        """
        raise NotImplementedError

    def default(self, name: str) -> object:
        """What a field holds that was not written yet when the value was; `_UNSET` for nothing."""
        raise NotImplementedError

    def is_made(self, name: str) -> bool:
        """Whether a field gets its value from code of the class that runs when an object is made."""
        return False

    def hides_code(self, name: str) -> bool:
        """Whether a stored attribute would hide a method or property: it was a field once, and is none any more."""
        if name in self.names:
            return False
        return isinstance(next((vars(c)[name] for c in self.cls.__mro__ if name in vars(c)), None), _CODE)

    def missing(self, names: tuple[str, ...]) -> list[tuple[str, Callable[[], object]]]:
        """The fields that `names` lacks, with what makes their values."""
        left_out = {name.removeprefix(_WITHOUT) for name in names}
        return [(name, functools.partial(self.default, name)) for name in self.names if name not in left_out]

    def lacks(self, name: str) -> Problem:
        """What to say of a field without a value or default."""
        return Problem(f"the field {name!r} of {type_text(self.cls)} is missing", "give the field a default")


class StateShape(Shape):
    """Dataclasses and attrs classes: fields in `__dict__` or in slots."""

    def __init__(self, cls: type, names: tuple[str, ...]) -> None:
        super().__init__(cls)
        self.names = names
        self.optional: frozenset[str] = frozenset[str]()
        for base in cls.__mro__:
            if base is not object and not base.__flags__ & _HEAP_TYPE and base.__module__ == "builtins":
                raise Problem(
                    f"{type_text(cls)} is a {base.__name__} with fields of its own and can't be stored",
                    "make it a class of its own, with the data as a field",
                )
        slots = {slot for base in cls.__mro__ for slot in _slots_of(base)}
        self.slots: tuple[str, ...] = tuple(sorted(slots - _NOT_STATE))
        self.has_dict: bool = cls.__dictoffset__ != 0
        self.cached_hash: bool = "_attrs_cached_hash" in slots or "_attrs_cached_hash" in vars(cls)
        self.count: int = len(names)
        self._simple_dict = self.has_dict and not self.slots
        self._simple_slots = not self.has_dict and set(self.slots) == set(names)
        self._values = _getter(names, attributes=self._simple_slots)

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
        state: dict[str, object] = {}
        for slot in self.slots:
            if (found := getattr(value, slot, _UNSET)) is not _UNSET:
                state[slot] = found
        if self.has_dict:
            state.update((k, v) for k, v in value.__dict__.items() if not self._computed(k))
        names = [name for name in self.names if name in state]
        for name in self.names:
            # A field that was deleted, or never set, must not come back with its default.
            if name not in state and self._would_return(name):
                raise Problem(f"the field {name!r} of this {type_text(self.cls)} has no value")
        for name in state:
            if name not in self.names:
                if self.hides_code(name):
                    raise Problem(f"the attribute {name!r} of this {type_text(self.cls)} hides a method of its class")
                names.append(name)
        without = [_WITHOUT + name for name in self.names if name not in state and self.is_made(name)]
        return (*names, *without), [*(state[name] for name in names), *(None for _ in without)]

    def _computed(self, name: str) -> bool:
        return name in _NOT_STATE or isinstance(getattr(self.cls, name, None), functools.cached_property)

    def _would_return(self, name: str) -> bool:
        try:
            return self.default(name) is not _UNSET
        except Problem:
            return True

    def make(self, state: Mapping[str, object]) -> object:
        """An object as its class makes it, from the fields that it takes."""
        raise NotImplementedError

    def _made_fields(self, names: tuple[str, ...], *, is_expected: bool) -> list[str]:
        """The fields that `names` lacks and that only making an object gives a value."""
        left_out = {name.removeprefix(_WITHOUT) for name in names}
        made = [name for name in self.names if name not in left_out and self.is_made(name)]
        if made and not is_expected:
            raise Problem(
                f"the field {made[0]!r} of {type_text(self.cls)} was not written, and is made by code of the class, "
                "which runs only where an annotation names the class",
                "annotate what holds it with the class, or give the field a default",
            )
        return made

    def _fill(self, state: dict[str, object], fields: Sequence[str]) -> None:
        try:
            made = self.make(state)
        except Exception as error:
            raise Problem(
                f"the field {fields[0]!r} of {type_text(self.cls)} was not written, and no object can be made for it: "
                f"{error_text(error)}",
                "give the field a default",
            ) from error
        for name in fields:
            if (value := getattr(made, name, _UNSET)) is not _UNSET:
                state[name] = value

    def builder(self, names: tuple[str, ...], *, is_expected: bool = True) -> Build:
        cls = self.cls
        made_fields = self._made_fields(names, is_expected=is_expected)
        extra = [(name, make) for name, make in self.missing(names) if name not in made_fields]
        for _, make in extra:
            make()
        dropped = [name for name in names if name.startswith(_WITHOUT) or self.hides_code(name)]
        new: Any = object.__new__
        put: Any = object.__setattr__
        slots = frozenset(self.slots)
        cached_hash = self.cached_hash

        if self._simple_dict and not (extra or made_fields or dropped or cached_hash):

            def build_dict(values: Sequence[object]) -> object:
                made: Any = new(cls)
                made.__dict__.update(zip(names, values, strict=True))
                return made

            return build_dict

        def build(values: Sequence[object]) -> object:
            made: Any = new(cls)
            state = dict(zip(names, values, strict=True))
            for name, make in extra:
                if (value := make()) is not _UNSET:
                    state[name] = value
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


class DataclassShape(StateShape):
    """Dataclasses, pydantic's included."""

    def __init__(self, cls: Any) -> None:
        self.fields: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(cls)}
        super().__init__(cls, tuple(self.fields))

    def default(self, name: str) -> object:
        field = self.fields[name]
        if field.default is not dataclasses.MISSING:
            return field.default
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        if field.init:
            raise self.lacks(name)
        return _UNSET

    def is_made(self, name: str) -> bool:
        field, missing = self.fields[name], dataclasses.MISSING
        has_default = field.default is not missing or field.default_factory is not missing
        return not field.init and not has_default and hasattr(self.cls, "__post_init__")

    def make(self, state: Mapping[str, object]) -> object:
        return self.cls(**{name: state[name] for name, field in self.fields.items() if field.init and name in state})


class AttrsShape(StateShape):
    """Classes made by attrs."""

    def __init__(self, cls: Any) -> None:
        self.fields: dict[str, Any] = {f.name: f for f in cls.__attrs_attrs__}
        super().__init__(cls, tuple(self.fields))

    def default(self, name: str) -> object:
        field = self.fields[name]
        default = field.default
        if default is sys.modules["attr"].NOTHING:
            if field.init:
                raise self.lacks(name)
            return _UNSET
        if hasattr(default, "factory") and hasattr(default, "takes_self"):
            return _UNSET if default.takes_self else default.factory()
        return default

    def is_made(self, name: str) -> bool:
        field = self.fields[name]
        if field.default is sys.modules["attr"].NOTHING:
            return not field.init and hasattr(self.cls, "__attrs_post_init__")
        return bool(getattr(field.default, "takes_self", False))

    def make(self, state: Mapping[str, object]) -> object:
        given = {name: field for name, field in self.fields.items() if field.init and name in state}
        return self.cls(**{getattr(field, "alias", name.lstrip("_")): state[name] for name, field in given.items()})


class NamedTupleShape(Shape):
    """Classes of `typing.NamedTuple` and `collections.namedtuple`."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
        self.names: tuple[str, ...] = tuple(cls._fields)
        self.defaults: Mapping[str, object] = cls._field_defaults

    def take(self, value: Any) -> Taken:
        if getattr(value, "__dict__", None):
            raise Problem(f"this {type_text(self.cls)} has attributes beside its fields, which can't be stored")
        if len(value) != len(self.names):
            raise Problem(f"this {type_text(self.cls)} has {len(value)} items for {len(self.names)} fields")
        return self.names, value

    def default(self, name: str) -> object:
        if name not in self.defaults:
            raise self.lacks(name)
        return self.defaults[name]

    def builder(self, names: tuple[str, ...], *, is_expected: bool = True) -> Build:
        cls: Any = self.cls
        base: Any = tuple
        new = base.__new__
        if names == self.names:
            return lambda values: new(cls, values)
        extra = [(name, make()) for name, make in self.missing(names)]
        order = self.names

        def build(values: Sequence[object]) -> object:
            state = {**dict(zip(names, values, strict=True)), **dict(extra)}
            return new(cls, [state[name] for name in order])

        return build


class StructShape(Shape):
    """Classes of `msgspec.Struct`. They can only be made by a call, which runs their `__post_init__`."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
        self.names: tuple[str, ...] = tuple(cls.__struct_fields__)
        self._force: Any = sys.modules["msgspec"].structs.force_setattr
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
        cls, force, fields = self.cls, self._force, frozenset(self.names)
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
                    force(made, name, value)
            return made

        return build


class ModelShape(Shape):
    """Models of pydantic. Their state is exact where a dump is not: it keeps subclasses, and runs no validator."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
        self.fields: Mapping[str, Any] = cls.__pydantic_fields__
        self.names: tuple[str, ...] = tuple(self.fields)

    def take(self, value: Any) -> Taken:
        state = value.__getstate__()
        inner: dict[str, object] = {k: v for k, v in state["__dict__"].items() if not self._computed(k)}
        for name in self.names:
            if name not in inner:  # after model_construct; it must not come back with its default
                raise Problem(f"the field {name!r} of this {type_text(self.cls)} has no value")
        for name in inner:
            if name not in self.fields:
                raise Problem(f"the attribute {name!r} of this {type_text(self.cls)} is no field of it")
        rest = {name: state[key] for name, key in _PYDANTIC_STATE.items() if key in state}  # a RootModel has but one
        return (*inner, *rest), [*inner.values(), *rest.values()]

    def _computed(self, name: str) -> bool:
        return isinstance(getattr(self.cls, name, None), functools.cached_property)

    def builder(self, names: tuple[str, ...], *, is_expected: bool = True) -> Build:
        cls: Any = self.cls
        extra = [name for name, _ in self.missing(names)]
        for name in extra:
            if self.fields[name].is_required():
                raise self.lacks(name)
        gone = [name for name in names if name not in self.fields and name not in _PYDANTIC_STATE]

        def build(values: Sequence[object]) -> object:
            inner = dict(zip(names, values, strict=True))
            state = {key: inner.pop(name) for name, key in _PYDANTIC_STATE.items() if name in inner}
            for name in gone:
                # It was a field once. A model has nothing in this place but its fields.
                del inner[name]
            for name in extra:
                inner[name] = self.fields[name].get_default(call_default_factory=True, validated_data=inner)
            made = cls.__new__(cls)
            made.__setstate__({"__dict__": inner, **state})
            return made

        return build


_shapes: dict[type, Shape] = {}
_SHAPES_MAX: Final = 10_000


def shape_of(cls: type) -> Shape:
    """The shape of a class; raises `Problem` for one whose objects can't be stored."""
    if (shape := _shapes.get(cls)) is None:
        shape = _make_shape(cls)
        if len(_shapes) >= _SHAPES_MAX:  # classes made in functions are many, and must not be kept for ever
            _shapes.clear()
        _shapes[cls] = shape
    return shape


def _make_shape(cls: Any) -> Shape:
    if hasattr(cls, "__dataclass_fields__"):
        return DataclassShape(cls)
    if hasattr(cls, "__attrs_attrs__"):
        return AttrsShape(cls)
    if tuple in cls.__mro__ and hasattr(cls, "_fields"):
        return NamedTupleShape(cls)
    if is_struct(cls):
        return StructShape(cls)
    if is_model(cls):
        return ModelShape(cls)
    raise Problem(f"an object of type {type_text(cls)} can't be stored", _remedy(cls))


def is_struct(cls: type) -> bool:
    """Whether it is a class of msgspec's. msgspec is not imported: who has such a class has imported it."""
    module: Any = sys.modules.get("msgspec")
    return module is not None and hasattr(cls, "__struct_fields__") and issubclass(cls, module.Struct)


def is_model(cls: type) -> bool:
    """Whether it is a model of pydantic's, which is not imported either."""
    module: Any = sys.modules.get("pydantic")
    base = getattr(module, "BaseModel", None)
    return isinstance(base, type) and issubclass(cls, base)


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
