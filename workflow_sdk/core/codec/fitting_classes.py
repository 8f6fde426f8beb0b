"""Authors' classes under a hint: does an object fit its class, and can one be made of plain data."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from workflow_sdk.core.codec.classes import field_hints
from workflow_sdk.core.codec.problem import Problem, error_text, is_a, type_text
from workflow_sdk.core.codec.shapes import is_model, is_struct

Fit = Callable[[Any, bool], Any]
Fitter = Callable[[object], Fit]


class _Field(NamedTuple):
    """One field of a class: the argument of its constructor, and whether that must be given."""

    name: str
    argument: str | None
    required: bool
    hint: object


def got(value: object) -> str:
    """What a value is, for a message."""
    return "None" if value is None else type_text(type(value))


def hint_text(hint: object) -> str:
    """A hint as its author wrote it."""
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, type) and not typing.get_args(hint):
        return type_text(hint)
    return str(hint).replace("typing.", "")


def class_fit(cls: Any, arguments: tuple[Any, ...], fitter: Fitter) -> Fit | None:
    """The check for an author's class that says what its objects hold; `None` for any other class."""
    if typing.is_typeddict(cls):
        return _typed_dict(cls, arguments, fitter)
    if is_model(cls):
        return _model(cls)
    if (fields := _fields_of(cls)) is None:
        return None
    return _object(cls, fields, _substitution(cls, arguments), fitter)


def _fields_of(cls: Any) -> Callable[[], list[_Field]] | None:
    if hasattr(cls, "__dataclass_fields__"):
        return lambda: _dataclass_fields(cls)
    if hasattr(cls, "__attrs_attrs__"):
        return lambda: _attrs_fields(cls)
    if tuple in cls.__mro__ and hasattr(cls, "_fields"):
        hints = field_hints(cls)
        return lambda: [_Field(n, n, n not in cls._field_defaults, hints.get(n, Any)) for n in cls._fields]
    if is_struct(cls):
        return lambda: _struct_fields(cls)
    return None


def _dataclass_fields(cls: Any) -> list[_Field]:
    hints = field_hints(cls)
    real = {field.name for field in dataclasses.fields(cls)}
    found: list[_Field] = []
    for field in cls.__dataclass_fields__.values():
        if field.name in real or isinstance(hints.get(field.name), dataclasses.InitVar):
            no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            argument = field.name if field.init else None
            found.append(_Field(field.name, argument, field.init and no_default, hints.get(field.name, Any)))
    return found


def _attrs_fields(cls: Any) -> list[_Field]:
    hints = field_hints(cls)
    found: list[_Field] = []
    for field in cls.__attrs_attrs__:
        required = field.init and type(field.default).__name__ == "_Nothing"
        hint = hints.get(field.name, Any if field.type is None or isinstance(field.type, str) else field.type)
        found.append(_Field(field.name, field.alias if field.init else None, required, hint))
    return found


def _struct_fields(cls: Any) -> list[_Field]:
    hints = field_hints(cls)
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    first = len(names) - len(defaults)
    return [
        _Field(n, n, i < first or type(defaults[i - first]).__name__ == "NoDefaultType", hints.get(n, Any))
        for i, n in enumerate(names)
    ]


def _substitution(cls: Any, arguments: tuple[Any, ...]) -> Mapping[Any, Any]:
    parameters = getattr(cls, "__parameters__", ())
    return dict(zip(parameters, arguments, strict=False)) if len(parameters) == len(arguments) else {}


def _substitute(hint: Any, given: Mapping[Any, Any]) -> Any:
    """`hint` with the arguments of a generic class in place of its variables."""
    try:
        if hint in given:
            return given[hint]
        parameters = getattr(hint, "__parameters__", ())
        if parameters and not isinstance(hint, type):
            return hint[tuple(given.get(parameter, parameter) for parameter in parameters)]
    except TypeError:
        pass
    return hint


def _object(cls: Any, fields_of: Callable[[], list[_Field]], given: Mapping[Any, Any], fitter: Fitter) -> Fit:
    expected = type_text(cls)
    compiled: list[tuple[_Field, Fit]] = []
    ready: list[bool] = []

    def fit(value: Any, convert: bool) -> Any:
        if not ready:  # at the first use, for a class may hold itself
            compiled[:] = [(field, fitter(_substitute(field.hint, given))) for field in fields_of()]
            ready.append(True)
        if isinstance(value, cls):
            _check_fields(value, compiled)
            return value
        if convert and is_a(value, dict):
            return _make(cls, value, compiled)
        if convert and is_a(value, (list, tuple)) and tuple in cls.__mro__:
            items: list[Any] = list(value)
            if len(items) <= len(compiled):
                return _make(cls, {f.name: item for (f, _), item in zip(compiled, items, strict=False)}, compiled)
        raise Problem(f"expected {expected}, got {got(value)}")

    return fit


_MISSING = object()


def _check_fields(value: Any, compiled: list[tuple[_Field, Fit]]) -> None:
    for field, fit in compiled:
        if isinstance(field.hint, dataclasses.InitVar):
            continue
        if (part := getattr(value, field.name, _MISSING)) is _MISSING:
            continue
        try:
            fit(part, False)
        except Problem as problem:
            raise problem.under("." + field.name) from problem.__cause__


def _make(cls: Any, data: Mapping[Any, Any], compiled: list[tuple[_Field, Fit]]) -> Any:
    arguments: dict[str, Any] = {}
    for field, fit in compiled:
        if field.argument is None:
            continue
        key = field.name if field.name in data else field.argument
        if key in data:
            try:
                arguments[field.argument] = fit(data[key], True)
            except Problem as problem:
                raise problem.under("." + field.name) from problem.__cause__
        elif field.required:
            raise Problem(f"missing the field {field.name!r} of {type_text(cls)}")
    try:
        return cls(**arguments)
    except Exception as error:  # the author's constructor checks its arguments
        raise Problem(f"{type_text(cls)} refuses it: {error_text(error)}") from error


def _model(cls: Any) -> Fit:
    def fit(value: Any, convert: bool) -> Any:
        if isinstance(value, cls):
            return value
        if convert:
            try:
                return cls.model_validate(value)
            except Exception as error:
                raise Problem(f"{type_text(cls)} refuses it: {error_text(error)}") from error
        raise Problem(f"expected {type_text(cls)}, got {got(value)}")

    return fit


def _typed_dict(cls: Any, arguments: tuple[Any, ...], fitter: Fitter) -> Fit:
    given = _substitution(cls, arguments)
    compiled: dict[str, Fit] = {}
    required: set[str] = set()
    ready: list[bool] = []

    def fit(value: Any, convert: bool) -> Any:
        if not ready:  # at the first use, for a class may hold itself
            # Its bases are not in its MRO, but what they annotate is in its own annotations.
            hints = field_hints(cls)
            compiled.update({name: fitter(_substitute(hint, given)) for name, hint in hints.items()})
            # Python itself does not see `Required` in an annotation that is text.
            marks = {name: typing.get_origin(hint) for name, hint in hints.items()}
            required.update(n for n in cls.__required_keys__ if marks.get(n) is not typing.NotRequired)
            required.update(n for n, mark in marks.items() if mark is typing.Required)
            ready.append(True)
        if not is_a(value, dict):
            raise Problem(f"expected {type_text(cls)}, got {got(value)}")
        data: dict[Any, Any] = value
        if missing := sorted(required - data.keys()):
            raise Problem(f"missing the key {missing[0]!r} of {type_text(cls)}")
        done: dict[Any, Any] = {}
        for key, part in data.items():
            try:
                done[key] = compiled[key](part, convert) if key in compiled else part
            except Problem as problem:
                raise problem.under(f"[{key!r}]") from problem.__cause__
        return done if convert else data

    return fit
