"""What a part of a document has to look like: each shape checks values, and says the same as a JSON schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions import TEXT_MAX, parse, template_of
from workflow_sdk.graphs.expressions.data import kind_of
from workflow_sdk.graphs.model import Problem
from workflow_sdk.graphs.narrowing import is_dict, is_list
from workflow_sdk.rows.retry import SECONDS_MAX
from workflow_sdk.rows.wire import COUNT_MAX, shown

Schema = dict[str, Any]


class Shape(Protocol):
    """What a value has to look like."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with a value, and where."""
        ...

    def schema(self) -> Schema:
        """The same as a JSON schema."""
        ...


def _expected(what: str, value: Any, where: str) -> Iterator[Problem]:
    yield Problem(where, f"expected {what}, not {shown(value, 60)}")


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not empty."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        if not isinstance(value, str) or not value:
            yield from _expected("a text", value, where)

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few texts."""

    words: tuple[str, ...]

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        if not isinstance(value, str) or value not in self.words:
            yield from _expected(" or ".join(map(repr, self.words)), value, where)

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        if not isinstance(value, bool):
            yield from _expected("true or false", value, where)

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `least` on. `is_whole`: without a fraction; `is_optional`: or null."""

    least: float = 0
    is_whole: bool = False
    is_optional: bool = False
    is_above: bool = False
    """Whether it has to be more than `least`."""

    @property
    def _most(self) -> float:
        return COUNT_MAX if self.is_whole else SECONDS_MAX

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        if value is None and self.is_optional:
            return
        kinds = (int,) if self.is_whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            yield from _expected("a whole number" if self.is_whole else "a number", value, where)
        elif not self._fits(value):
            yield from _expected(f"a number {'above' if self.is_above else 'from'} {self.least:g}", value, where)

    def _fits(self, value: float) -> bool:
        """Whether it is within the bounds; NaN is not."""
        return self.least <= value <= self._most and not (self.is_above and value == self.least)

    def schema(self) -> Schema:
        """As a JSON schema."""
        kind = "integer" if self.is_whole else "number"
        least = "exclusiveMinimum" if self.is_above else "minimum"
        return {"type": [kind, "null"] if self.is_optional else kind, least: self.least, "maximum": self._most}


@dataclass(frozen=True, slots=True)
class Plain:
    """Any plain data. All of a document is known to be."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """Nothing can be wrong with it."""
        return iter(())

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {}


@dataclass(frozen=True, slots=True)
class ExpressionText:
    """The text of an expression."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        if not isinstance(value, str):
            yield from _expected("the text of an expression", value, where)
            return
        try:
            parse(value)
        except DefinitionError as error:
            yield Problem(where, str(error))

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"type": "string", "minLength": 1, "maxLength": TEXT_MAX}


@dataclass(frozen=True, slots=True)
class Arguments:
    """Plain data, in which `{"$": "output.id"}` is an expression."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        try:
            template_of(value)
        except DefinitionError as error:
            yield Problem(where, str(error))

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {}


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of things of one shape."""

    item: Shape

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it, and with its items."""
        if not is_list(value):
            yield from _expected("a list", value, where)
            return
        for at, one in enumerate(value):
            yield from self.item.check(one, f"{where}[{at}]")

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"type": "array", "items": self.item.schema()}


@dataclass(frozen=True, slots=True)
class DictOf:
    """A dict with any keys, of things of one shape."""

    item: Shape

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it, and with its values."""
        if not is_dict(value):
            yield from _expected("a dict", value, where)
            return
        for key, one in value.items():
            yield from self.item.check(one, f"{where}.{key}")

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"type": "object", "additionalProperties": self.item.schema()}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record."""

    shape: Shape
    about: str
    """What it is, for people."""
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A dict with these fields, and no others."""

    name: str
    """What it is, for people."""
    fields: Mapping[str, Field]
    is_named: bool = False
    """Whether the JSON schema has it once, by its name, among the definitions."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it, and with its fields."""
        if not is_dict(value):
            yield from _expected(f"{self.name} as a dict", value, where)
            return
        given = value
        for key in given:
            if key not in self.fields:
                yield Problem(where, f"{self.name} has no {key!r:.60}; it has {', '.join(self.fields)}")
        for key, one in self.fields.items():
            if key in given:
                yield from one.shape.check(given[key], f"{where}.{key}" if where else key)
            elif one.is_required:
                yield Problem(where, f"{self.name} has to have `{key}`: {one.about}")

    def schema(self) -> Schema:
        """As a JSON schema, or as a reference to it."""
        return {"$ref": f"#/$defs/{self.key}"} if self.is_named else self.whole_schema()

    @property
    def key(self) -> str:
        """Its name among the definitions."""
        return self.name.rpartition(" ")[2]

    def whole_schema(self) -> Schema:
        """As a JSON schema."""
        found: Schema = {
            "type": "object",
            "properties": {key: {"description": one.about, **one.shape.schema()} for key, one in self.fields.items()},
            "additionalProperties": False,
        }
        if required := [key for key, one in self.fields.items() if one.is_required]:
            found["required"] = required
        return found


@dataclass(frozen=True, slots=True)
class Either:
    """A value of one of several Python types, each with a shape of its own."""

    by_type: Mapping[type, Shape]
    expected: str

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        shape = self.by_type.get(kind_of(value))
        yield from _expected(self.expected, value, where) if shape is None else shape.check(value, where)

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"anyOf": [shape.schema() for shape in self.by_type.values()]}


@dataclass(frozen=True, slots=True)
class Null:
    """Nothing."""

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        if value is not None:
            yield from _expected("null", value, where)

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"type": "null"}


def optional(shape: Shape, *types: type, expected: str) -> Either:
    """A shape for values of these types, or null."""
    return Either({**dict.fromkeys(types, shape), type(None): Null()}, expected)
