"""What a definition needs beside itself: functions, transports and workflows by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workflow_sdk.graphs.narrowing import is_dict, is_list


@dataclass(frozen=True, slots=True)
class Uses:
    """What a graph can't be run without."""

    functions: frozenset[str]
    """Functions and types."""
    transports: frozenset[str]
    workflows: frozenset[str]
    """Those that it starts."""
    modules: frozenset[str]
    """The modules of the functions, types and workflows, where they are known."""


def uses_of(document: Mapping[str, Any], given: Mapping[str, Any]) -> Uses:
    """What a document names; `given` is what its names stand for."""
    found: dict[str, set[str]] = {"fn": set(), "transport": set(), "workflow": set()}
    for kind, name in _named_in(document["steps"]):
        found[kind].add(name)
    modules = {getattr(given[name], "__module__", None) for name in (*found["fn"], *found["workflow"]) if name in given}
    return Uses(
        frozenset(found["fn"]),
        frozenset(found["transport"]),
        frozenset(found["workflow"]),
        frozenset(name for name in modules if isinstance(name, str)),
    )


def _named_in(value: Any) -> Iterator[tuple[str, str]]:
    if is_list(value):
        for one in value:
            yield from _named_in(one)
    elif is_dict(value):
        for key, one in value.items():
            yield from _named_by(key, one)


def _named_by(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if key in ("$args", "args", "patch"):
        return  # the author's own data
    if key in ("fn", "$fn", "rollback", "transport") and isinstance(value, str):
        yield ("transport" if key == "transport" else "fn"), value
    elif key == "no_retry":
        yield from (("fn", name) for name in value)
    elif key == "workflow":
        yield "workflow", value["$fn"] if is_dict(value) else value
    else:
        yield from _named_in(value)
