"""Types made of JSON schemas, for those who have data and not the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from keyword import iskeyword
from typing import Annotated, Any, Final, Literal, cast
from uuid import UUID

import msgspec

from workflow_sdk.errors import CodecError

_REF: Final = "#/$defs/"
_FORMATS: Final[dict[str, Any]] = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
_PLAIN: Final[dict[str, Any]] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_LIMITS: Final = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "pattern": "pattern",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
}


def class_of(name: str, schema: Mapping[str, Any]) -> type[Any]:
    """A class for the objects that a schema describes; CodecError, if it describes none."""
    found = type_of(schema, name)
    if not isinstance(found, type) or not issubclass(found, msgspec.Struct):
        raise CodecError(f"the type of {name!r} is known to its code only")
    return found


def type_of(schema: Mapping[str, Any], name: str = "Value") -> Any:
    """A type that reads what a schema describes; where it does not say, `Any`. CodecError, if it holds itself."""
    return _Types(cast("Mapping[str, Any]", schema.get("$defs", {}))).of(schema, name)


def union_of(hints: Sequence[Any]) -> Any:
    """The union of some types."""
    first, *others = hints
    for one in others:
        first = first | one
    return first


class _Types:
    """The types of one schema."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._made: dict[str, Any] = {}

    def of(self, schema: Any, name: str = "Value") -> Any:
        """The type that a part of the schema stands for."""
        if not isinstance(schema, dict):
            return Any
        part = cast("dict[str, Any]", schema)
        if "$ref" in part:
            return self._named(str(part["$ref"]).removeprefix(_REF))
        if "anyOf" in part:
            return _checked(union_of([_or_none(self.of(one)) for one in part["anyOf"]]))
        if "enum" in part:
            return _checked(Literal[tuple(part["enum"])])
        return self._by_kind(part, name)

    def _named(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = None
            self._made[name] = self.of(self._definitions.get(name), name)
        if self._made[name] is None:
            raise CodecError(f"the type {name!r} holds itself, so that it is known to its code only")
        return self._made[name]

    def _by_kind(self, part: dict[str, Any], name: str) -> Any:
        match part.get("type"):
            case "object" if "properties" in part:
                return self._object(part, name)
            case "object":
                return dict[str, self.of(part.get("additionalProperties"))]  # type: ignore[misc]
            case "array" if "prefixItems" in part:
                return tuple[tuple(self.of(one) for one in part["prefixItems"])]  # type: ignore[misc]
            case "array":
                return _limited(list[self.of(part.get("items"))], part)  # type: ignore[misc]
            case kind:
                return _simple(str(kind), part)

    def _object(self, part: dict[str, Any], name: str) -> Any:
        properties, required = part["properties"], part.get("required", [])
        if any(not field.isidentifier() or iskeyword(field) for field in properties):
            return dict[str, Any]
        fields: list[Any] = []
        for field, one in properties.items():
            hint = self.of(one)
            if field in required:
                fields.append((field, hint))
            elif "default" in one:
                fields.append((field, hint, _default(one["default"], hint)))
            else:
                fields.append((field, _or_unset(hint), msgspec.UNSET))
        return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _simple(kind: str, part: Mapping[str, Any]) -> Any:
    if "contentEncoding" in part:
        return bytes
    found = _FORMATS.get(part.get("format", "")) or _PLAIN.get(kind, Any)
    return _limited(found, part) if found in (str, int, float) else found


def _default(value: Any, hint: Any) -> Any:
    return msgspec.field(default_factory=lambda: msgspec.convert(value, hint, str_keys=True))


def _or_none(hint: Any) -> Any:
    return type(None) if hint is None else hint


def _or_unset(hint: Any) -> Any:
    return Any if hint is Any else _or_none(hint) | msgspec.UnsetType


def _checked(hint: Any) -> Any:
    """The type, if values can be told to be of it."""
    try:
        msgspec.json.Decoder(hint)
    except TypeError:
        return Any
    return hint


def _limited(hint: Any, part: Mapping[str, Any]) -> Any:
    limits = {ours: part[theirs] for theirs, ours in _LIMITS.items() if theirs in part}
    return Annotated[hint, msgspec.Meta(**limits)] if limits else hint
