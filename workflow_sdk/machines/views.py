"""What authors and operators see of cells and of effects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from workflow_sdk.errors import DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.cell import CellData, CellStatus, Pending
from workflow_sdk.machines.effects import Effect
from workflow_sdk.machines.machine import Machine

StateT = TypeVar("StateT")


async def _nobody_listens(value: Any) -> None:
    raise DefinitionError("only the executor of an intent can send values from it, while it runs")


@dataclass(frozen=True)
class Intent:
    """An effect that a transition, or a workflow, has asked for, and that is not settled."""

    id: str
    """The same whenever it is tried again: an idempotency key for what is done outside."""
    effect: str
    params: Any
    machine: str
    """Of the cell that asked for it; or the workflow that did."""
    key: Any
    """Of that cell; or the id of the workflow's instance."""
    issuer: str | None
    """What the request was tagged with."""
    sequence: int
    """Which transition of the cell asked for it; 0 if a workflow did."""
    attempt: int = 1
    """Higher with each attempt, whoever makes it. Numbers may be left out."""
    recorded_at: datetime = field(kw_only=True)
    sending: Callable[[Any], Awaitable[None]] = field(default=_nobody_listens, kw_only=True, repr=False, compare=False)
    """What `send` calls."""

    async def send(self, value: Any) -> None:
        """Tell others how far it is: `value` can be read at once, and is no receipt."""
        await self.sending(value)


@dataclass(frozen=True)
class Cell(Generic[StateT]):
    """One cell of a machine, as it was last stored."""

    key: Any
    state: StateT
    """None, until its first event is taken."""
    status: CellStatus
    inflight: Mapping[str, Intent]
    """The effects that it has asked for and not heard of yet, by the id of the intent."""
    last_sequence: int
    """How many transitions there were under its key, of cells that were deleted, too."""
    revision: int
    """How many transitions it has made."""


def intent_of(effects: Mapping[str, Effect], machine: str, key: Any, pending: Pending) -> Intent:
    """An effect as its executor sees it. Of an effect that is not declared any more, the parameters are plain data."""
    effect = effects.get(pending.effect)
    params = canonical.restored(pending.params) if effect is None else effect.params.decode(pending.params)
    recorded_at = datetime.fromtimestamp(pending.at, UTC)
    return Intent(
        pending.id, pending.effect, params, machine, key, pending.issuer, pending.sequence, recorded_at=recorded_at
    )


def cell_of(machine: Machine[StateT], data: CellData) -> Cell[StateT]:
    """A cell as its author sees it; CodecError, if the types of the machine don't fit it any more."""
    key = machine.key_of(data.key)
    inflight = {id: intent_of(machine.effects, machine.name, key, one) for id, one in data.inflight.items()}
    state: Any = None if data.state is None else machine.state.decode(data.state)
    return Cell(key, state, data.status, inflight, data.sequence, data.revision)
