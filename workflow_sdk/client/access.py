"""What clients and handles work with: an open store, and the runtime in this process if there is one."""

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
    """An instance in the memory of the runtime in this process."""

    reader: InboxReader

    @property
    def lease(self) -> bytes:
        """The lease under which the instance is run."""
        ...

    @property
    def handed(self) -> int | None:
        """How many messages were handed over to the instance in this process; None if none was, or nobody knows."""
        ...

    @handed.setter
    def handed(self, count: int | None) -> None: ...

    @property
    def message_count(self) -> int:
        """How many messages the instance has not taken, as far as this process knows."""
        ...

    def awaits(self, message: str | bytes) -> bool:
        """Whether a branch of the instance waits for a message of this name."""
        ...


class Here(Near, Protocol):
    """A runtime in this process. Clients can tell and ask it about instances in its memory without the store."""

    answers: dict[bytes, Callable[[bytes], None]]
    """The callbacks of those in this process who wait for an answer, by the key of the answer."""
    inbox_max: int
    """How many messages an inbox has room for."""

    def resident(self, id: str) -> Resident | None:
        """The instance, if it is in memory."""
        ...

    async def until_ended(self, id: str) -> InstanceRows | None:
        """Wait for an instance in memory; return its rows if it ended, None if it is not in memory or left it."""
        ...


class Access(Struct, frozen=True):
    """An open store, its codec and its clock; and the runtime in this process, if there is one."""

    driver: Driver
    codec: Codec
    clock: Clock
    here: Here | None = None

    @property
    def looking(self) -> Driver:
        """The store for calls that only show something. The clock of a test does not wait for them."""
        return unseen(self.driver)
