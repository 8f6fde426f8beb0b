"""Details of steps as people write them: without the marks that say what a value is, where that is clear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workflow_sdk.graphs.definitions.shapes import ListOf, Record, Schema, Shape
from workflow_sdk.graphs.model import Problem
from workflow_sdk.graphs.narrowing import is_dict, is_list


@dataclass(frozen=True, slots=True)
class Marked:
    """A value below a mark, such as `{"$args": ...}`; people may leave the mark out."""

    mark: str
    record: Record
    plain: Shape
    """What it looks like without the mark."""
    is_list: bool = False
    """Whether a text can only be the expression for a list."""

    def full(self, value: Any) -> Any:
        """The value with its mark."""
        if is_dict(value) and list(value) == [self.mark]:
            return value
        return {self.mark: {"$": value} if self.is_list and isinstance(value, str) else value}

    def check(self, value: Any, where: str) -> Iterator[Problem]:
        """What is wrong with it."""
        is_marked = is_dict(value) and list(value) == [self.mark]
        yield from self.record.check(value, where) if is_marked else self.plain.check(value, where)

    def schema(self) -> Schema:
        """As a JSON schema."""
        return {"anyOf": [self.record.schema(), self.plain.schema()]}


def in_full(document: Mapping[str, Any], details: Mapping[str, Record]) -> dict[str, Any]:
    """A document with all marks. It fits the table, with the details that each kind of step has."""
    return {**document, "steps": [_step(step, details[step.get("kind", "step")]) for step in document["steps"]]}


def _step(step: Mapping[str, Any], table: Record) -> Mapping[str, Any]:
    if "details" not in step:
        return step
    return {**step, "details": {key: _full(table.fields[key].shape, one) for key, one in step["details"].items()}}


def _full(shape: Shape, value: Any) -> Any:
    if isinstance(shape, ListOf) and is_list(value):
        return [_full(shape.item, one) for one in value]
    return shape.full(value) if isinstance(shape, Marked) else value
