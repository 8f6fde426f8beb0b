"""Whether a value fits a type hint, and how plain data, as another program sends it, is made to fit.

A hint is compiled once into a function `fit(value, convert)`. It returns the value, or raises `Problem`. Without
`convert` the very same value comes back; with it, containers are made anew around what was converted: a dict becomes
the dataclass that is asked for, ISO text a datetime, a list a tuple. What fits already is never converted.

What a hint says that can't be checked (a protocol, a callable, a name that does not resolve) fits everything.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import Counter, OrderedDict, abc, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from itertools import chain, cycle, repeat
from typing import Any, Final, Literal, Union

import msgspec

from workflow_sdk.values.basics import LEAVES, Problem, at, error_text, is_a, key_segment, short, type_text
from workflow_sdk.values.hints import Field, bare, field_hints, fields_of, hint_cache, making_of, substituting

Fit = Callable[[Any, bool], Any]
Make = Callable[[Any, tuple[Any, ...]], Fit]

_NOT_FROM_TEXT: Final = ("bytearray", "complex", "timezone", "ZoneInfo")
_FROM_TEXT: Final = frozenset(cls for cls in LEAVES if cls.__name__ not in _NOT_FROM_TEXT)
_NUMBERS: Final[dict[object, tuple[type, ...]]] = {float: (float, int), complex: (complex, float, int)}
_ARRAYS: Final = (list, tuple, set, frozenset, deque)
_MISSING: Final = object()


@hint_cache
def fitter(hint: Any) -> Fit:
    """The function that checks values against `hint`, compiled once."""
    hint = bare(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return _anything
    if (form := _FORMS.get(origin)) is not None:
        return form(hint, arguments)
    alias = origin if hasattr(origin, "__value__") else hint
    if hasattr(alias, "__value__"):
        return _alias(alias, arguments)
    return _class(origin or hint, arguments)


def _class(cls: Any, arguments: tuple[Any, ...]) -> Fit:
    if not isinstance(cls, type):
        return _anything
    return next((make(cls, arguments) for is_one, make in _CLASSES if is_one(cls)), None) or _instance(cls, arguments)


def _hint_text(hint: object) -> str:
    """A hint as its author wrote it."""
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, type) and not typing.get_args(hint):
        return type_text(hint)
    return str(hint).replace("typing.", "")


def _unfit(expected: str, value: object) -> Problem:
    """The problem of a value that is not what a hint asks for."""
    return Problem(f"expected {expected}, got {_hint_text(type(value))}")


def _anything(value: Any, convert: bool) -> Any:
    return value


def _literal(_: object, choices: tuple[Any, ...]) -> Fit:
    def fit(value: Any, convert: bool) -> Any:
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return value
            if convert and isinstance(choice, Enum) and type(value) is type(choice.value) and value == choice.value:
                return choice
        raise Problem(f"expected one of {', '.join(map(short, choices))}, got {short(value)}")

    return fit


def _alias(alias: Any, arguments: tuple[Any, ...]) -> Fit:
    @cache
    def target() -> Fit:  # asked for at the first use, for an alias may name itself
        try:
            return fitter(alias.__value__[arguments] if arguments else alias.__value__)
        except Exception:  # noqa: BLE001  # the right side of a lazy alias is evaluated here
            return _anything

    return lambda value, convert: target()(value, convert)


def _union(hint: Any, members: tuple[Any, ...]) -> Fit:
    fits = [fitter(member) for member in members]

    def fit(value: Any, convert: bool) -> Any:
        problems: list[Problem] = []
        made: list[Any] = []
        for converting in (False, True) if convert else (False,):
            problems.clear()
            for member in fits:  # in a loop of its own: a value may be nested deeply, and every call is a frame more
                try:
                    made.append(member(value, converting))
                except Problem as problem:
                    problems.append(problem)
                else:
                    if not converting:
                        return value
            if made:
                return _the_one(made, value, hint)
        raise _telling(problems) or _unfit(_hint_text(hint), value)

    return fit


def _telling(problems: list[Problem]) -> Problem | None:
    """The problem of the only member that came as far as to look into the value."""
    deeper = [problem for problem in problems if problem.segments or problem.reason.startswith("missing")]
    return deeper[0] if len(deeper) == 1 else None


def _the_one(made: list[Any], value: Any, hint: Any) -> Any:
    """The one object that the value was made to; of several, the only one that has just the fields of the value."""
    if len(made) > 1 and is_a(value, dict):
        made = [each for each in made if set(field_hints(each.__class__)) == set(value)] or made
    if len(made) > 1:
        found = ", ".join(_hint_text(each.__class__) for each in made)
        raise Problem(f"the data fits several of {_hint_text(hint)}: {found}")
    return made[0]


def _single(classes: Any, expected: str, make: Callable[[Any], Any] | None = None) -> Fit:
    """The check of a value that holds no others; `make` makes it of plain data."""

    def fit(value: Any, convert: bool) -> Any:
        if isinstance(value, classes):
            return value
        if make is None or not convert:
            raise _unfit(expected, value)
        return make(value)

    return fit


def _instance(cls: type, _: tuple[Any, ...]) -> Fit:
    return _single(_NUMBERS.get(cls, cls), _hint_text(cls))


def _from_text(cls: Any, _: tuple[Any, ...]) -> Fit:
    def make(value: Any) -> Any:
        try:
            return cls(value) if hasattr(cls, "joinpath") else msgspec.convert(value, cls)
        except (TypeError, ValueError, msgspec.ValidationError) as error:
            raise Problem(f"{_unfit(cls.__name__, value).reason}: {error_text(error)}") from None

    return _single(cls, cls.__name__, make)


def _enum(cls: type[Enum], _: tuple[Any, ...]) -> Fit:
    def make(value: Any) -> Any:
        try:
            return cls(value)
        except (ValueError, TypeError, KeyError):
            choices = ", ".join(short(member.value) for member in list(cls)[:8])
            raise Problem(f"expected {_hint_text(cls)} (one of {choices}), got {short(value)}") from None

    return _single(cls, _hint_text(cls), make)


def _model(cls: Any, _: tuple[Any, ...]) -> Fit:
    return _single(cls, type_text(cls), lambda value: _asked(cls, cls.model_validate, value))


def _asked(cls: Any, make: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What an author's class makes of its arguments; raises `Problem` if the class refuses them."""
    try:
        return make(*arguments, **named)
    except Exception as error:
        raise Problem(f"{type_text(cls)} refuses it: {error_text(error)}") from error


# -- Containers -------------------------------------------------------------------------------------------------------


def _each(fits: Iterable[Fit], values: Iterable[Any], convert: bool, segment: Callable[[int], str]) -> list[Any]:
    """What `fits` make of `values`, one by one. `segment` gives the path segment of the value at a place."""
    done: list[Any] = []
    try:
        for fit, value in zip(fits, values, strict=False):  # the same check may be repeated for ever
            done.append(fit(value, convert))  # its length is the place of the Problem
    except Problem as problem:
        raise problem.under(segment(len(done))) from problem.__cause__
    return done


def _are_same(new: Iterable[Any], old: Iterable[Any]) -> bool:
    """Whether nothing was converted: both hold the very same objects."""
    return all(one is other for one, other in zip(new, old, strict=True))


def _array(cls: Any, arguments: tuple[Any, ...]) -> Fit:
    if cls is tuple and arguments and arguments[1:] != (Ellipsis,):
        return _fixed_tuple(() if arguments == ((),) else arguments)
    item = fitter(arguments[0]) if arguments else _anything
    # Data that was sent as a list may be asked for as another array; for an abstract one a list will do.
    make: Callable[[Any], Any] | None = cls if cls in _ARRAYS else None
    others = (list, tuple) if make is not None else ()
    refused = () if cls is abc.Iterable or not arguments else (str, bytes)

    def fit(value: Any, convert: bool) -> Any:
        right = is_a(value, cls) and not is_a(value, refused)
        if not right and not (convert and is_a(value, others)):
            raise _unfit(_hint_text(cls), value)
        if (item is _anything and right) or not is_a(value, _ARRAYS):
            return value
        done = _each(repeat(item), value, convert, "[{}]".format)
        return _remade(type(value) if right else make, done, value) if convert else value

    return fit


def _remade(make: Any, items: list[Any], value: Any) -> Any:
    if make is type(value) and _are_same(items, value):
        return value
    if make is deque:
        return deque(items, getattr(value, "maxlen", None))
    try:
        return make(items)
    except TypeError as error:
        raise Problem(f"can't make a {make.__name__} of it: {error_text(error)}") from None


def _fixed_tuple(arguments: tuple[Any, ...]) -> Fit:
    if any(typing.get_origin(a) is typing.Unpack or getattr(a, "__unpacked__", False) is True for a in arguments):
        return _array(tuple, ())
    items = [fitter(argument) for argument in arguments]

    def fit(value: Any, convert: bool) -> Any:
        right = is_a(value, tuple)
        if not right and not (convert and is_a(value, list)):
            raise _unfit("tuple", value)
        if len(value) != len(items):
            raise Problem(f"expected a tuple of {len(items)} items, got {len(value)}")
        done = _each(items, value, convert, "[{}]".format)
        return value if not convert or (right and _are_same(done, value)) else tuple(done)

    return fit


def _mapping(cls: Any, arguments: tuple[Any, ...]) -> Fit:
    # A Counter has one argument.
    key_fit, value_fit = [*map(fitter, arguments), _anything, _anything][:2] if len(arguments) < 3 else [_anything] * 2
    is_open = key_fit is _anything and value_fit is _anything
    fits = (value_fit, _key(key_fit))
    make: Any = cls if cls in (OrderedDict, Counter) else dict

    def fit(value: Any, convert: bool) -> Any:
        right = is_a(value, cls)
        if not right and not (convert and is_a(value, dict)):
            raise _unfit(_hint_text(cls), value)
        if is_open and right:
            return value
        parts: list[Any] = list(chain.from_iterable(zip(value.values(), value, strict=True)))
        done = _each(cycle(fits), parts, convert, lambda place: key_segment(parts[place | 1]))
        if not convert or (right and _are_same(done, parts)):
            return value
        return make(dict(zip(done[1::2], done[::2], strict=True)))

    return fit


def _key(plain: Fit) -> Fit:
    def fit(key: Any, convert: bool) -> Any:
        try:
            return plain(key, convert)
        except Problem:
            # JSON has text keys only: "7" may stand for 7.
            if convert and type(key) is str and key.lstrip("-").isdecimal() and str(int(key)) == key:
                return plain(int(key), convert)
            raise

    return fit


# -- Authors' classes that say what their objects hold ----------------------------------------------------------------


def _object(cls: Any, arguments: tuple[Any, ...]) -> Fit:
    substitute = substituting(cls, arguments)

    @cache
    def compiled() -> list[tuple[Field, Fit]]:  # asked for at the first use, for a class may hold itself
        attributes = getattr(cls, "__attrs_attrs__", ())
        hints = {field.name: field.type or Any for field in attributes if not isinstance(field.type, str)}
        hints.update(field_hints(cls))
        return [
            (field, fitter(substitute(hints.get(field.name, Any))))
            for field in fields_of(cls)
            if field.is_kept or is_a(hints.get(field.name), dataclasses.InitVar)
        ]

    items = (list, tuple) if tuple in cls.__mro__ else ()
    kept = cache(lambda: [(field.name, check) for field, check in compiled() if field.is_kept])

    def fit(value: Any, convert: bool) -> Any:
        if isinstance(value, cls):
            return _check_attributes(value, kept())
        if convert and is_a(value, dict):
            return _make(cls, value, compiled())
        if convert and is_a(value, items) and len(value) <= len(compiled()):
            names = (field.name for field, _ in compiled())
            return _make(cls, dict(zip(names, value, strict=False)), compiled())
        raise _unfit(type_text(cls), value)

    return fit


def _check_attributes(value: Any, kept: list[tuple[str, Fit]]) -> Any:
    for name, check in kept:
        try:
            if (part := getattr(value, name, _MISSING)) is not _MISSING:
                check(part, False)
        except Problem as problem:
            raise problem.under("." + name) from problem.__cause__
    return value


def _make(cls: Any, data: Mapping[Any, Any], compiled: list[tuple[Field, Fit]]) -> Any:
    arguments: dict[str, Any] = {}
    for field, fit in compiled:
        if field.argument is None:
            continue
        key = field.name if field.name in data else field.argument
        if key in data:
            arguments[field.argument] = at("." + field.name, fit, data[key], True)
        elif field.is_required:
            raise Problem(f"missing the field {field.name!r} of {type_text(cls)}")
    return _asked(cls, cls, **arguments)


def _typed_dict(cls: Any, arguments: tuple[Any, ...]) -> Fit:
    substitute = substituting(cls, arguments)

    @cache
    def compiled() -> tuple[dict[str, Fit], set[str]]:  # asked for at the first use, for a class may hold itself
        # Its bases are not in its MRO, but what they annotate is in its own annotations.
        hints = field_hints(cls)
        # Python itself does not see `Required` in an annotation that is text.
        marks = {name: typing.get_origin(hint) for name, hint in hints.items()}
        required = {name for name in cls.__required_keys__ if marks.get(name) is not typing.NotRequired}
        required.update(name for name, mark in marks.items() if mark is typing.Required)
        return {name: fitter(substitute(hint)) for name, hint in hints.items()}, required

    def fit(value: Any, convert: bool) -> Any:
        fits, required = compiled()
        if not is_a(value, dict):
            raise _unfit(type_text(cls), value)
        if missing := sorted(required - value.keys()):
            raise Problem(f"missing the key {missing[0]!r} of {type_text(cls)}")
        done = {key: at(f"[{key!r}]", fits.get(key, _anything), part, convert) for key, part in value.items()}
        return done if convert else value

    return fit


def _is_unchecked(cls: Any) -> bool:
    """Whether `isinstance` refuses the class, as it does a protocol that is not `runtime_checkable`."""
    try:
        isinstance(None, cls)
    except TypeError:
        return True
    return False


_FORMS: Final[dict[object, Make]] = {Union: _union, types.UnionType: _union, Literal: _literal}
_CLASSES: Final[tuple[tuple[Callable[[Any], bool], Make], ...]] = (
    (_FROM_TEXT.__contains__, _from_text),
    (lambda cls: issubclass(cls, Enum), _enum),
    (typing.is_typeddict, _typed_dict),
    (lambda cls: making_of(cls) == "model", _model),
    (lambda cls: making_of(cls) is not None, _object),
    (_is_unchecked, lambda _, __: _anything),
    (lambda cls: issubclass(cls, (str, bytes, bytearray)), _instance),
    (lambda cls: issubclass(cls, abc.Mapping), _mapping),
    (lambda cls: issubclass(cls, abc.Iterable), _array),
)
