"""What tests may see and decide of the runs that they begin."""

from __future__ import annotations

from contextvars import ContextVar
from secrets import token_bytes
from typing import Protocol

from workflow_sdk.operations.engine import Watch

__all__ = ["Probe", "new_seed", "probe"]


class Probe(Watch, Protocol):
    """Is told of what runs do. A run asks for it once, when it begins.

    `calls` is given the path of an operation whose code is called; for the handler that undoes it, `undo` and the path.
    """

    @property
    def seed(self) -> bytes | None:
        """The seed of the uuids and random numbers of instances that are created; None for one by chance."""
        ...


probe: ContextVar[Probe | None] = ContextVar("workflow_sdk_probe", default=None)
"""That of the runs which are begun in this context."""


def new_seed() -> bytes:
    """What the uuids and random numbers of an instance come from."""
    watched = probe.get()
    return (watched.seed if watched is not None else None) or token_bytes(16)
