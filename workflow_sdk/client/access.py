"""An open store, and the runtime in this process, as clients and handles use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from workflow_sdk.driver import Driver
from workflow_sdk.instance.clock import Clock, unseen
from workflow_sdk.instance.host import Near
from workflow_sdk.instance.inbox_reader import InboxReader
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.values import Codec


class Resident(Protocol):
    """An instance that is in memory."""

    reader: InboxReader

    @property
    def lease(self) -> bytes:
        """Under which it is run."""
        ...

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


class Here(Near, Protocol):
    """A runtime in this process. What it has in memory can be told and asked without the store."""

    answers: dict[bytes, Callable[[bytes], None]]
    """Who in this process waits for which answer, by its key."""
    inbox_max: int
    """How many messages an inbox has room for."""

    def resident(self, id: str) -> Resident | None:
        """The instance, if it is in memory."""
        ...

    async def until_ended(self, id: str) -> InstanceRows | None:
        """Wait for an instance in memory; return its rows if it ended, None if it is not in memory (any more)."""
        ...


class Access(Struct, frozen=True):
    """An open store, its codec and its clock; and the runtime in this process, if there is one."""

    driver: Driver
    codec: Codec
    clock: Clock
    here: Here | None = None

    @property
    def looking(self) -> Driver:
        """The store for those who only read. A clock of tests takes no notice of them."""
        return unseen(self.driver)
