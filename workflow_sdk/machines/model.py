"""What a transition is given, and what it gives back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from random import Random
from typing import Any, Final, Generic, TypeVar, cast
from uuid import UUID

from workflow_sdk.errors import DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.effects import Request
from workflow_sdk.machines.schemas import plain
from workflow_sdk.rows.wire import shown

StateT = TypeVar("StateT")

_log: Final = logging.getLogger("workflow_sdk.machines")


@dataclass(frozen=True)
class Transition(Generic[StateT]):
    """What an event has changed: the next state, what to tell others, and what is to be done outside.

    `Transition(None)` deletes the cell. With `done=True` the cell is over, and keeps its state.
    """

    state: StateT | None = None
    events: Sequence[Any] = ()
    """Told to the cells that they are routed to, in the same commit."""
    effects: Sequence[Request] = ()
    """Begun after the commit."""
    done: bool = False
    annotations: Any = None
    """Kept in the journal beside the event, for people."""

    def __post_init__(self) -> None:
        for name in ("events", "effects"):
            given: Any = getattr(self, name)
            if isinstance(given, (str, bytes)) or not isinstance(given, (list, tuple)):
                raise DefinitionError(f"Transition({name}=...) takes a list, not {shown(given)}")
            object.__setattr__(self, name, tuple(cast("Sequence[Any]", given)))
        for request in self.effects:
            if not isinstance(request, Request):
                raise DefinitionError(
                    f"Transition(effects=...) takes what effects give when they are called, not {shown(request)}"
                )
        if not isinstance(self.done, bool):
            raise DefinitionError(f"Transition(done=...) is True or False, not {shown(self.done)}")
        if self.done and self.state is None:
            raise DefinitionError("Transition(None, done=True): a cell that is over keeps a state; leave done= out")


class MachineContext:
    """What a transition may know beside its state and its event. It is the same whenever the transition is taken again.

    In a test of a machine it is made by hand: `MachineContext("o-1")`.
    """

    def __init__(
        self,
        key: Any = None,
        *,
        now: datetime | None = None,
        machine: str = "",
        version: int = 1,
        sequence: int = 0,
        manifest_hash: str = "",
    ) -> None:
        self.key = key
        """Of the cell; None if the machine has one cell only."""
        self.machine = machine
        self.version = version
        self.sequence = sequence
        """How many transitions the cell has made before."""
        self.manifest_hash = manifest_hash
        self._now = now if now is not None else datetime(2030, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """When the event was accepted."""
        return self._now

    @cached_property
    def random(self) -> Random:
        """Random numbers, the same whenever the transition is taken again."""
        return self._chance("random")

    def uuid(self) -> UUID:
        """A new uuid at each call, the same whenever the transition is taken again."""
        return UUID(int=self._uuids.getrandbits(128), version=4)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that knows the cell."""
        facts: dict[str, object] = {"machine": self.machine, "key": self.key, "sequence": self.sequence}
        return logging.LoggerAdapter(_log, facts)

    @cached_property
    def _uuids(self) -> Random:
        return self._chance("uuid")

    def _chance(self, use: str) -> Random:
        facts = canonical.bare([self.machine, plain(self.key), self.sequence, use])
        return Random(int.from_bytes(sha256(facts).digest()))  # it keeps no secrets

    def __repr__(self) -> str:
        return f"<MachineContext {self.machine} {self.key!r} after {self.sequence}>"
