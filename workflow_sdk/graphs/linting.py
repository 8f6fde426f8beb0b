"""What expressions read, beside what is known of the data: the type of the workload, and what steps give.

Where a type says nothing (Any, a plain dict, a type without a JSON schema), every path is fine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from workflow_sdk.graphs.bodies import output_hint
from workflow_sdk.graphs.definitions.schemas import schema_of
from workflow_sdk.graphs.expressions import Expression, Native, Template
from workflow_sdk.graphs.model import Node
from workflow_sdk.graphs.narrowing import is_dict, is_mapping

_DEEP_MAX = 32
"""How many references and choices of a schema are followed."""


Written = Expression | Native | Template


class Lint:
    """Finds paths that lead to nothing, in one graph."""

    def __init__(self, workload: Any, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._workload = schema_of(workload)
        self._outputs: dict[int, Mapping[str, Any]] = {}

    def wrong_in(self, expression: Written, node: Node, sees_output: bool) -> Iterator[str]:
        """What is wrong with the paths of an expression of a step."""
        for path in () if _may_miss(expression) else sorted(expression.reads):
            schema, keys, whose = self._behind(path, node, sees_output)
            gone = _missing(schema, schema, keys) if keys else None
            if gone is not None:
                known = ", ".join(gone.known[:8]) or "nothing"
                yield f"reads {'.'.join(path)}, but {whose} has no {gone.key!r}, only {known}"

    def _behind(
        self, path: tuple[str, ...], node: Node, sees_output: bool
    ) -> tuple[Mapping[str, Any], tuple[str, ...], str]:
        """The schema that the first part of a path stands for, the rest of it, and what to call that."""
        match path:
            case ("workload" | "start", *keys):
                return self._workload, tuple(keys), "the workload"
            case ("output", *keys) if sees_output:
                return self._output(node), tuple(keys), "what the step returns"
            case ("results", name, *keys) if name in self._nodes:
                return self._output(self._nodes[name]), tuple(keys), f"what step {name!r} returns"
            case _:
                return {}, (), ""

    def _output(self, node: Node) -> Mapping[str, Any]:
        fn: object = node.fn
        found = self._outputs.get(id(fn))
        if found is None:
            found = self._outputs[id(fn)] = schema_of(_returned(node)) if node.kind == "step" else {}
        return found


def _returned(node: Node) -> Any:
    try:
        return output_hint(node)
    except Exception:  # noqa: BLE001  # an annotation of an author's that stands for nothing
        return Any


def _may_miss(written: Written) -> bool:
    """Whether `get` or `coalesce` is called, which go on where there is nothing."""
    if not written.reads or written.is_native:
        return True
    text = written.text if isinstance(written, Expression) else str(cast("Template", written).to_data())
    return "get(" in text or "coalesce(" in text


class _Gone:
    """A key that is not there, and those that are."""

    def __init__(self, key: str, known: Sequence[str]) -> None:
        self.key = key
        self.known = list(known)


def _missing(
    whole: Mapping[str, Any], schema: Mapping[str, Any], keys: tuple[str, ...], deep: int = _DEEP_MAX
) -> _Gone | None:
    """The first key of a path that no value of a schema has; None if some value may have all of them."""
    if not keys or deep == 0:
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        named = whole.get("$defs")
        found = named.get(reference.removeprefix("#/$defs/")) if is_dict(named) else None
        return _missing(whole, found, keys, deep - 1) if is_dict(found) else None
    for choice in ("anyOf", "oneOf"):
        if isinstance(schema.get(choice), list):
            return _missing_in_all(whole, schema[choice], keys, deep - 1)
    return _missing_here(whole, schema, keys, deep)


def _missing_in_all(whole: Mapping[str, Any], choices: list[Any], keys: tuple[str, ...], deep: int) -> _Gone | None:
    first: _Gone | None = None
    for one in choices:
        if is_dict(one) and one.get("type") == "null":
            continue
        gone = _missing(whole, one, keys, deep) if is_dict(one) else None
        if gone is None:
            return None
        first = first or gone
    return first


def _missing_here(
    whole: Mapping[str, Any], schema: Mapping[str, Any], keys: tuple[str, ...], deep: int
) -> _Gone | None:
    key, *rest = keys
    properties = schema.get("properties")
    if schema.get("type") in ("string", "integer", "number", "boolean", "null", "array"):
        return _Gone(key, [])
    if not is_mapping(properties):
        return None
    inner = properties.get(key)
    if key not in properties:
        others = schema.get("additionalProperties", False)
        return _Gone(key, list(properties)) if others is False else None
    return _missing(whole, inner, tuple(rest), deep - 1) if is_mapping(inner) else None
