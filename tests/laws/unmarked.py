"""Handlers in a module without workflows: what is not decorated, a worker has to be given."""

from __future__ import annotations

from os import mkdir
from typing import Any

from workflow_sdk import step

__all__ = ["mkdir", "stepped", "undo", "undone"]

undone: list[Any] = []


async def undo(result: Any) -> None:
    """Known only to those that are given it."""
    undone.append(result)


@step
async def stepped(result: Any) -> None:
    """Known to all."""
    undone.append(result)
