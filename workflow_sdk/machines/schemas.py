"""Schemas: what events, states, keys and the values of effects look like, and how they become plain data and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from types import UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin

import msgspec

from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.completing import complete, may_lack_fields
from workflow_sdk.rows.wire import shown
from workflow_sdk.values.basics import Problem, error_text
from workflow_sdk.values.fitting import fitter

T = TypeVar("T")

_NAME: Final = "__event_name__"
_OURS: Final = "sys/"
"""What the names of this library's own events begin with."""
_PLAIN: Final[dict[str, Any]] = {"builtin_types": (bytes,), "str_keys": True}


def event(name: str) -> Callable[[type[T]], type[T]]:
    """Give the class of an event a name that stays when the class is moved: `@event("acme/OrderCreated@1")`."""
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"the name of an event is a text, not {shown(name)}")
    if name.startswith(_OURS):
        # Else anybody could send what only effects may: a receipt is told by its name.
        raise DefinitionError(f"the name of an event can't begin with {_OURS!r}, got {name!r}")

    def decorate(cls: type[T]) -> type[T]:
        return named(cls, name)

    return decorate


def named(cls: type[T], name: str) -> type[T]:
    """Give a class of this library its name in the store."""
    setattr(cls, _NAME, name)
    return cls


def schema_name(hint: object) -> str:
    """What a type is called in the store and in canonical bytes."""
    if isinstance(hint, type) and not get_args(hint):
        given: object = hint.__dict__.get(_NAME)
        if isinstance(given, str):
            return given
        return hint.__qualname__ if hint.__module__ == "builtins" else f"{hint.__module__}.{hint.__qualname__}"
    return str(hint).replace("typing.", "")


def arms_of(hint: object) -> tuple[object, ...]:
    """The types that a union is of; of another type, itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def is_class(hint: object) -> bool:
    """Whether a type is one class, and not a union of several, or anything."""
    return isinstance(hint, type) and hint is not object and hint is not Any


class Schema:
    """A type, with its name, as canonical bytes."""

    def __init__(self, hint: Any) -> None:
        self.hint: Any = hint
        self.name: str = schema_name(hint)
        self._convert: Callable[[Any], Any] = self._by_msgspec if _is_known_to_msgspec(hint) else self._by_fitting

    def __repr__(self) -> str:
        return f"<schema {self.name}>"

    def encode(self, value: object) -> bytes:
        """The canonical bytes of a value, without the tag; CodecError, if it does not fit."""
        return self.take(value)[0]

    def take(self, value: object) -> tuple[bytes, Any]:
        """The canonical bytes of a value, without the tag, and the value that they will be read as."""
        if type(value) is not self.hint and self.hint is not None:
            self._check(value)
        read = self.read(plain(value))
        # Of what was read: else the bytes of equal values could differ, as those of 1 and 1.0 for a float.
        return canonical.bare(plain(read)), read

    def decode(self, data: bytes) -> Any:
        """The value of bytes that `encode` has made; CodecError, if it does not fit any more."""
        return self.read(canonical.restored(data))

    def read(self, data: object) -> Any:
        """The value that plain data stands for; CodecError, if it does not fit."""
        try:
            return self._convert(data)
        except (msgspec.ValidationError, Problem) as error:
            raise CodecError(f"it is no {self.name}: {error}") from error
        except CodecError:
            raise
        except Exception as error:  # an author's class may raise anything
            raise CodecError(f"it can't be read as {self.name}: {error_text(error)}") from error

    @cached_property
    def data(self) -> Any:
        """The JSON schema of the type; empty if there is none. What only people read is left out of it."""
        try:
            found: object = msgspec.json.schema(self.hint)
        except Exception:  # noqa: BLE001  # a type that msgspec does not know, of an author
            return {}
        return _without_descriptions(found)

    @cached_property
    def digest(self) -> str:
        """Changes with the type's name and its fields."""
        return sha256(canonical.bare([self.name, plain(self.data)])).hexdigest()

    def _check(self, value: object) -> None:
        try:
            fitter(self.hint)(value, False)
        except Problem as problem:
            raise CodecError(f"it is no {self.name}: {problem}") from problem.__cause__

    def _by_msgspec(self, data: Any) -> Any:
        found = msgspec.convert(data, self.hint, dec_hook=_hook, **_PLAIN)
        if self._may_lack_fields:
            complete(found)
        return found

    @cached_property
    def _may_lack_fields(self) -> bool:
        return may_lack_fields(self.hint)

    def _by_fitting(self, data: Any) -> Any:
        return fitter(self.hint)(data, True)


def plain(value: object) -> Any:
    """A value as plain data: objects are maps of their fields, times and decimals are texts."""
    try:
        return msgspec.to_builtins(value, order="deterministic", enc_hook=_plain_of, **_PLAIN)
    except CodecError:
        raise
    except RecursionError:
        raise CodecError("the value is nested too deeply, or holds itself") from None
    except Exception as error:  # an author's class may raise anything
        raise CodecError(f"{shown(value)} can't be made plain data: {error_text(error)}") from error


def _plain_of(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # of pydantic
        return value.model_dump(mode="json")
    raise CodecError(f"a {type(value).__name__} can't be made plain data")


def _hook(cls: Any, data: Any) -> Any:
    return fitter(cls)(data, True)


def _is_known_to_msgspec(hint: object) -> bool:
    """Whether msgspec can read it: it does not know unions of several classes."""
    try:
        msgspec.convert(_Nothing(), cast("Any", hint), dec_hook=_hook)
    except msgspec.ValidationError:
        return True
    except Exception:  # noqa: BLE001  # TypeError of msgspec, or whatever an annotation raises
        return False
    return True


class _Nothing:
    """No data that fits anything."""


def _without_descriptions(data: object) -> Any:
    if isinstance(data, dict):
        return {
            key: _without_descriptions(part)
            for key, part in cast("dict[str, object]", data).items()
            if key not in ("description", "title") or not isinstance(part, str)
        }
    if isinstance(data, list):
        return [_without_descriptions(part) for part in cast("list[object]", data)]
    return data
