"""Rollback handlers that are found by name, and what they did. Imported by new processes, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workflow_sdk import CriticalError, step

undone: list[Any] = []
"""What the handlers were given, in the order in which they ran."""


@dataclass
class Charge:
    """What a step returns."""

    id: str
    parts: tuple[int, ...] = ()


async def charge(id: str) -> Charge:
    """A step."""
    return Charge(id, (1, 2))


async def pair(id: str) -> tuple[str, int]:
    """A step without a class of its own."""
    return id, 1


async def name(id: str) -> str:
    """A step with a plain value."""
    return id


async def refuse() -> None:
    """A step that fails."""
    raise CriticalError("refused")


@step
async def undo(result: Any) -> None:
    """A handler."""
    undone.append(result)


@step
def undo_plainly(result: Any) -> None:
    """A handler that is a plain function."""
    undone.append(result)


@step
async def undo_with(first: Any, result: Any, *, last: Any = None) -> None:
    """A handler with arguments of its own."""
    undone.append((first, result, last))
