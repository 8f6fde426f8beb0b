"""Does a value fit a type hint; and can plain data, as another program sends it, be made to.

A hint is compiled once into a function `fit(value, convert)`. It returns the value, or raises `Problem`. Without
`convert` the very same value comes back; with it, containers are made anew around what was converted: a dict becomes
the dataclass that is asked for, ISO text a datetime, a list a tuple. What fits already is never converted.

What a hint says that can't be checked (a protocol, a callable, a name that does not resolve) fits everything.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Literal, TypeVar, Union

import msgspec

from workflow_sdk.core.codec.classes import field_hints
from workflow_sdk.core.codec.fitting_classes import Fit, class_fit, got, hint_text
from workflow_sdk.core.codec.leaves import TO_WIRE
from workflow_sdk.core.codec.problem import Problem, error_text, is_a, key_segment, short

_CACHE_MAX: Final = 4096
_FROM_TEXT: Final = frozenset(cls for cls in TO_WIRE if cls.__name__ not in ("bytearray", "timezone", "ZoneInfo"))
_NUMBERS: Final[dict[object, tuple[type, ...]]] = {float: (float, int), complex: (complex, float, int)}
_ARRAYS: Final = (list, tuple, set, frozenset, collections.deque)
_UNIONS: Final = (Union, types.UnionType)

_fits: dict[object, Fit] = {}


def fitter(hint: object) -> Fit:
    """The function that checks values against `hint`, compiled once."""
    try:
        fit = _fits.get(hint)
    except TypeError:  # not hashable, as Annotated[int, []]
        return _compile(hint)
    if fit is None:
        fit = _compile(hint)
        if len(_fits) >= _CACHE_MAX:
            _fits.clear()
        _fits[hint] = fit
    return fit


def _anything(value: Any, convert: bool) -> Any:
    return value


def _compile(hint: Any) -> Fit:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return _anything
    if hint is None or hint is type(None):
        return _instance((type(None),), "None")
    if origin is typing.Annotated:
        return fitter(arguments[0])
    if origin in (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
        return fitter(arguments[0])
    if is_a(hint, dataclasses.InitVar):
        return fitter(hint.type)
    if origin in _UNIONS:
        return _union(hint, arguments)
    if origin is Literal:
        return _literal(arguments)
    if isinstance(hint, TypeVar):
        return _type_variable(hint)
    if hasattr(hint, "__supertype__"):
        return fitter(hint.__supertype__)
    if (alias := origin if hasattr(origin, "__value__") else hint) is not None and hasattr(alias, "__value__"):
        return _alias(hint, alias, arguments)
    if isinstance(origin or hint, type):
        return _class(origin or hint, arguments)
    return _anything


def _instance(classes: tuple[type, ...], expected: str) -> Fit:
    def fit(value: Any, convert: bool) -> Any:
        if isinstance(value, classes):
            return value
        raise Problem(f"expected {expected}, got {got(value)}")

    return fit


def _class(cls: Any, arguments: tuple[Any, ...]) -> Fit:
    if cls in _NUMBERS:
        return _instance(_NUMBERS[cls], cls.__name__)
    if cls in _FROM_TEXT:
        return _from_text(cls)
    if issubclass(cls, Enum):
        return _enum(cls)
    if (fit := class_fit(cls, arguments, fitter)) is not None:
        return fit
    try:
        isinstance(None, cls)
    except TypeError:  # a protocol that is not for the running time
        return _anything
    if cls is tuple and arguments and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _fixed_tuple(() if arguments == ((),) else arguments)
    if issubclass(cls, collections.abc.Mapping):
        return _mapping(cls, arguments)
    if issubclass(cls, collections.abc.Iterable) and not issubclass(cls, str | bytes | bytearray):
        return _array(cls, arguments)
    return _instance((cls,), hint_text(cls))


def _from_text(cls: Any) -> Fit:
    plain = _instance((cls,), cls.__name__)

    def fit(value: Any, convert: bool) -> Any:
        if isinstance(value, cls) or not convert:
            return plain(value, convert)
        try:
            if hasattr(cls, "joinpath"):
                return cls(value)
            return msgspec.convert(value, cls)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise Problem(f"expected {cls.__name__}, got {got(value)}: {error_text(error)}") from None

    return fit


def _enum(cls: type[Enum]) -> Fit:
    def fit(value: Any, convert: bool) -> Any:
        if isinstance(value, cls):
            return value
        if convert:
            try:
                return cls(value)
            except (ValueError, TypeError, KeyError):
                choices = ", ".join(short(member.value) for member in list(cls)[:8])
                raise Problem(f"expected {hint_text(cls)} (one of {choices}), got {short(value)}") from None
        raise Problem(f"expected {hint_text(cls)}, got {got(value)}")

    return fit


def _literal(choices: tuple[Any, ...]) -> Fit:
    def fit(value: Any, convert: bool) -> Any:
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return value
            if convert and isinstance(choice, Enum) and type(value) is type(choice.value) and value == choice.value:
                return choice
        raise Problem(f"expected one of {', '.join(map(short, choices))}, got {short(value)}")

    return fit


def _type_variable(variable: TypeVar) -> Fit:
    if variable.__constraints__:
        return fitter(Union[variable.__constraints__])  # noqa: UP007  # a tuple of them
    return _anything if variable.__bound__ is None else fitter(variable.__bound__)


def _alias(hint: Any, alias: Any, arguments: tuple[Any, ...]) -> Fit:
    inner: list[Fit] = []

    def fit(value: Any, convert: bool) -> Any:
        if not inner:  # at the first use, for an alias may name itself
            try:
                target = alias.__value__
                inner.append(fitter(target[arguments] if arguments else target))
            except Exception:  # noqa: BLE001  # the right side of a lazy alias is evaluated here
                inner.append(_anything)
        return inner[0](value, convert)

    return fit


def _union(hint: Any, members: tuple[Any, ...]) -> Fit:
    fits = [fitter(member) for member in members]

    def fit(value: Any, convert: bool) -> Any:
        problems: list[Problem] = []
        for member in fits:
            try:
                return member(value, False)
            except Problem as problem:
                problems.append(problem)
        if convert:
            problems.clear()
            made: list[Any] = []
            for member in fits:
                try:
                    made.append(member(value, True))
                except Problem as problem:
                    problems.append(problem)
            if made:
                return _the_one(made, value, hint)
        deeper = [problem for problem in problems if problem.segments or problem.reason.startswith("missing")]
        if len(deeper) == 1:
            raise deeper[0]
        raise Problem(f"expected {hint_text(hint)}, got {got(value)}")

    return fit


def _the_one(made: list[Any], value: Any, hint: Any) -> Any:
    """What the value was made to: by the only member that it can be made to, or the only one with just its fields."""
    if len(made) > 1 and is_a(value, dict):
        exact = [each for each in made if field_hints(_type(each)).keys() == set(value)]
        made = exact or made
    if len(made) > 1:
        found = ", ".join(hint_text(_type(each)) for each in made)
        raise Problem(f"the data fits several of {hint_text(hint)}: {found}")
    return made[0]


def _type(value: object) -> type:
    return type(value)


def _array(cls: Any, arguments: tuple[Any, ...]) -> Fit:
    item = fitter(arguments[0]) if arguments else _anything
    expected = hint_text(cls)
    # Data that was sent as a list may be asked for as another array; for an abstract one a list will do.
    make: Callable[[Any], Any] | None = cls if cls in _ARRAYS else None

    def fit(value: Any, convert: bool) -> Any:
        right = is_a(value, cls)
        if is_a(value, (str, bytes)) and arguments and cls is not collections.abc.Iterable:
            right = False
        if not right and not (convert and make is not None and is_a(value, (list, tuple))):
            raise Problem(f"expected {expected}, got {got(value)}")
        if item is _anything and right:
            return value
        if not is_a(value, _ARRAYS):
            return value
        done: list[Any] = []
        try:
            for each in value:
                done.append(item(each, convert))  # noqa: PERF401  # its length is the index in a Problem's path
        except Problem as problem:
            raise problem.under(f"[{len(done)}]") from problem.__cause__
        if not convert:
            return value
        return _remade(type(value) if right else make, done, value)

    return fit


def _remade(make: Any, items: list[Any], value: Any) -> Any:
    if all(new is old for new, old in zip(items, value, strict=True)) and make is type(value):
        return value
    if make is collections.deque:
        return collections.deque(items, getattr(value, "maxlen", None))
    try:
        return make(items)
    except TypeError as error:
        raise Problem(f"can't make a {make.__name__} of it: {error_text(error)}") from None


def _fixed_tuple(arguments: tuple[Any, ...]) -> Fit:
    if any(_is_unpacked(argument) for argument in arguments):
        return _array(tuple, ())
    items = [fitter(argument) for argument in arguments]

    def fit(value: Any, convert: bool) -> Any:
        if not is_a(value, tuple) and not (convert and is_a(value, list)):
            raise Problem(f"expected tuple, got {got(value)}")
        parts: tuple[Any, ...] = tuple(value)
        if len(parts) != len(items):
            raise Problem(f"expected a tuple of {len(items)} items, got {len(parts)}")
        done: list[Any] = []
        try:
            for item, each in zip(items, parts, strict=True):
                done.append(item(each, convert))
        except Problem as problem:
            raise problem.under(f"[{len(done)}]") from problem.__cause__
        if not convert or (is_a(value, tuple) and all(new is old for new, old in zip(done, parts, strict=True))):
            return value
        return tuple(done)

    return fit


def _is_unpacked(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Unpack or getattr(hint, "__unpacked__", False) is True


def _mapping(cls: Any, arguments: tuple[Any, ...]) -> Fit:
    key_fit: Fit = _anything
    value_fit: Fit = _anything
    if len(arguments) == 2:
        key_fit, value_fit = fitter(arguments[0]), fitter(arguments[1])
    elif len(arguments) == 1:  # Counter[T]
        key_fit = fitter(arguments[0])
    special = cls in (collections.OrderedDict, collections.Counter)

    def fit(value: Any, convert: bool) -> Any:
        if not is_a(value, cls) and not (convert and is_a(value, dict)):
            raise Problem(f"expected {hint_text(cls)}, got {got(value)}")
        if key_fit is _anything and value_fit is _anything and is_a(value, cls):
            return value
        done: Any = {}
        key: Any = None
        try:
            for key, item in value.items():
                done[_key(key_fit, key, convert)] = value_fit(item, convert)
        except Problem as problem:
            raise problem.under(key_segment(key)) from problem.__cause__
        if not convert:
            return value
        if is_a(value, cls) and _same_items(value, done):
            return value
        return cls(done) if special else done

    return fit


def _same_items(old: Any, new: Any) -> bool:
    """Whether nothing was converted: the very same keys and values."""
    return len(old) == len(new) and all(
        old_key is new_key and old[old_key] is new[new_key] for old_key, new_key in zip(old, new, strict=True)
    )


def _key(fit: Fit, key: Any, convert: bool) -> Any:
    try:
        return fit(key, convert)
    except Problem:
        # JSON has text keys only: "7" may stand for 7.
        if convert and type(key) is str and key.lstrip("-").isdecimal() and str(int(key)) == key:
            return fit(int(key), convert)
        raise
