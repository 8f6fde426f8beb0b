"""Checks of the arguments of a runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import DefinitionError
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.wire import COUNT_MAX, shown


@runtime_checkable
class Definitions(Protocol):
    """A registry of definitions, as far as a runtime knows it: some of them may not be valid."""

    def is_unavailable(self, name: str) -> bool:
        """Whether a definition of this name was given, and is not valid."""
        ...

    def why_not(self, name: str) -> str:
        """Why there is none of this name."""
        ...


def seconds_of(value: Duration, what: str, *, least: float = 0.0) -> float:
    found = seconds(value, what)
    if found < 0:
        raise DefinitionError(f"{what} must not be negative, got {shown(value)}")
    if found < least:
        raise DefinitionError(f"{what} is at least {least:g} s, not {shown(value)}")
    return found


def number_of(value: object, what: str, least: int, *, of: str = "instances") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= COUNT_MAX:
        raise DefinitionError(f"{what} is a number of {of} from {least} on, up to {COUNT_MAX:,}, not {shown(value)}")
    return value


def by_name(
    workflows: Iterable[Workflow[Any, Any]], machines: Mapping[str, Workflow[Any, Any]]
) -> dict[str, Workflow[Any, Any]]:
    found: dict[str, Workflow[Any, Any]] = dict(machines)
    for flow in workflows:
        if not isinstance(flow, Workflow):
            raise DefinitionError(f"workflows are functions decorated with @workflow, not {shown(flow)}")
        flow.check()
        if found.setdefault(flow.name, flow) is not flow:
            raise DefinitionError(f"two workflows are called {flow.name!r}; give one of them another name")
    return found
