"""What it takes to reach a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from workflow_sdk.core.codec import Codec
from workflow_sdk.core.instance import InstanceRows
from workflow_sdk.driver import Driver
from workflow_sdk.execution.clock import Clock, unseen
from workflow_sdk.execution.mail import Mail

__all__ = ["Access", "Here", "Resident"]


class Resident(Protocol):
    """An instance that is in memory."""

    lease: bytes
    mail: Mail

    @property
    def handed(self) -> int | None:
        """How many messages were handed over to it in this process; None if they are not counted there."""
        ...

    @handed.setter
    def handed(self, count: int | None) -> None: ...

    @property
    def message_count(self) -> int:
        """How many messages it has not taken, as far as is known here."""
        ...

    def awaits(self, message: str | bytes) -> bool:
        """Whether a branch waits for the message."""
        ...


class Here(Protocol):
    """A runtime in this very process: what it has in memory needs no way through the store."""

    answers: dict[bytes, Callable[[bytes], None]]
    """Who in this process waits for which answer, by its key."""
    inbox_max: int
    """How many messages an inbox has room for."""

    def resident(self, id: str) -> Resident | None:
        """The instance, if it is in memory."""
        ...

    def is_worker(self, worker: str) -> bool:
        """Whether that is the worker here."""
        ...

    def message_came(self, id: str) -> None:
        """A message was stored for an instance that the worker here has."""
        ...

    def is_due(self, id: str) -> None:
        """An instance is to be run by whoever is free."""
        ...

    async def until_ended(self, id: str) -> InstanceRows | None:
        """Wait for an instance that is in memory; its rows if it has ended, None if that is for the store to say."""
        ...


@dataclass(frozen=True, slots=True)
class Access:
    """An open store, and how its values are read."""

    driver: Driver
    codec: Codec
    clock: Clock
    here: Here | None = None

    @property
    def looking(self) -> Driver:
        """The store, for whoever only looks at it."""
        return unseen(self.driver)
