"""What a cell is, and what a message makes of it. Pure: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from workflow_sdk.errors import CodecError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.effects import (
    EffectReceipt,
    EffectRejected,
    ReceiptStatus,
    TimerParams,
    timer,
)
from workflow_sdk.machines.machine import Machine
from workflow_sdk.machines.schemas import schema_name
from workflow_sdk.machines.stepping import EventData, Given, Intended, answer_data, take

RECEIPT: Final = schema_name(EffectReceipt)
"""The name of the messages that are answers to effects."""
_NONE: Final[Mapping[str, Pending]] = {}


class CellStatus(StrEnum):
    """What a cell is doing."""

    RUNNING = "running"
    """A transition is being taken."""
    WAITING = "waiting"
    """It waits for events."""
    COMPLETED = "completed"
    """A transition has said that it is done."""
    FAILED = "failed"
    """An answer to one of its effects could not be read, and it has no arm for that."""
    STUCK = "stuck"
    """A transition was refused. Mended code takes the event that is first in its inbox, and goes on."""

    @property
    def is_terminal(self) -> bool:
        """Whether it takes no event any more."""
        return self in (CellStatus.COMPLETED, CellStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Pending:
    """An effect that a cell has asked for, and of which it has not heard yet."""

    id: str
    effect: str
    params: bytes
    """Canonical, without the tag."""
    issuer: str | None
    sequence: int
    """Of the transition that asked for it."""
    at: float
    """When that was."""

    @property
    def due(self) -> float | None:
        """When it settles by itself, if it is a timer."""
        if self.effect != timer.name:
            return None
        params: TimerParams = timer.params.decode(self.params)
        return params.due(self.at)


@dataclass(frozen=True, slots=True)
class CellData:
    """A cell as it is stored."""

    key: bytes | None
    state: bytes | None = None
    status: CellStatus = CellStatus.WAITING
    inflight: Mapping[str, Pending] = field(default_factory=lambda: _NONE)
    sequence: int = 0
    """How many transitions there were under this key, of cells that were deleted, too."""
    revision: int = 0
    """How many transitions it has made since it began."""
    changed_at: float = 0.0
    """When it took its last event."""


@dataclass(frozen=True, slots=True)
class CellMessage:
    """A message to a cell: an event, or the answer to an effect."""

    event: EventData
    at: float
    """When it was accepted."""

    @property
    def is_receipt(self) -> bool:
        """Whether it is the answer to an effect."""
        return self.event.schema == RECEIPT


@dataclass(frozen=True, slots=True)
class Decision:
    """What a message makes of a cell."""

    cell: CellData
    """As it is afterwards; without a state it is deleted."""
    is_taken: bool
    """Whether the machine was called. If not, the message was an answer that nobody waits for, or wants to hear of."""
    events: tuple[EventData, ...] = ()
    begun: tuple[Pending, ...] = ()
    annotations: bytes | None = None
    reason: str | None = None
    """Why the cell has failed."""
    settled: str | None = None
    """The intent that the message was the answer to, and that the cell was waiting for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How an effect ended, before the cell hears of it."""

    status: ReceiptStatus
    payload: Any = None
    """Plain data."""
    executor: str | None = None


def receipt_message(machine: str, key: bytes | None, intent: Pending, answer: Answer, at: float) -> CellMessage:
    """The message that tells a cell, or a workflow, how its effect ended."""
    told = EffectReceipt(
        machine,
        None if key is None else canonical.restored(key),
        intent.id,
        intent.effect,
        answer.executor,
        intent.issuer,
        answer.status,
        answer.payload,
        intent.sequence,
    )
    return CellMessage(answer_data(told), at)


def decide(
    machine: Machine[Any], cell: CellData, message: CellMessage, now: float, manifest_hash: str = ""
) -> Decision:
    """What a message makes of a cell; `RefusedError`, if nothing can be made of it: then nothing has changed.

    `now` is when the transition is taken, which may be long after the message was accepted.
    """
    if cell.status.is_terminal:
        return Decision(cell, is_taken=False)
    if not message.is_receipt:
        return _transition(machine, cell, message, now, manifest_hash)
    data: dict[str, Any] = canonical.restored(message.event.value)
    settled = cell.inflight.get(str(data.get("intent_id")))
    if settled is None:
        return Decision(cell, is_taken=False)
    left = replace(cell, inflight={id: one for id, one in cell.inflight.items() if id != settled.id})
    reason = _unreadable(machine, data)
    if reason is not None and machine.hears_rejections:
        message = CellMessage(answer_data(EffectRejected(**data, reason=reason)), message.at)
        return replace(_transition(machine, left, message, now, manifest_hash), settled=settled.id)
    if reason is not None:
        about = f"the answer to {settled.effect!r} (intent {settled.id}) can't be read: {reason}"
        failed = replace(left, status=CellStatus.FAILED, inflight=_NONE, changed_at=message.at)
        return Decision(failed, is_taken=False, reason=about, settled=settled.id)
    if not machine.hears_receipts:
        return Decision(replace(left, changed_at=message.at), is_taken=False, settled=settled.id)
    return replace(_transition(machine, left, message, now, manifest_hash), settled=settled.id)


def _unreadable(machine: Machine[Any], data: Mapping[str, Any]) -> str | None:
    """What is wrong with the payload of a receipt; None, if it can be read."""
    effect = machine.effects.get(str(data.get("effect")))
    if effect is None:
        return f"the machine has no effect {data.get('effect')!r} any more"
    if data.get("status") != "ok":
        return None
    try:
        effect.receipt.read(data.get("payload"))
    except CodecError as error:
        return str(error)
    return None


def _transition(
    machine: Machine[Any], cell: CellData, message: CellMessage, now: float, manifest_hash: str
) -> Decision:
    given = Given(cell.state, message.event, cell.key, message.at, cell.sequence, manifest_hash)
    taken = take(machine, given)
    sequence = cell.sequence + 1
    begun = tuple(_begun(taken.effects, sequence, now))
    is_over = taken.done or taken.state is None
    after = CellData(
        cell.key,
        taken.state,
        CellStatus.COMPLETED if taken.done else CellStatus.WAITING,
        # What is out when a cell ends still runs; nobody waits for it.
        _NONE if is_over else {**cell.inflight, **{one.id: one for one in begun}},
        sequence,
        0 if taken.state is None else cell.revision + 1,
        message.at,
    )
    return Decision(after, is_taken=True, events=taken.events, begun=begun, annotations=taken.annotations)


def _begun(effects: tuple[Intended, ...], sequence: int, now: float) -> Iterator[Pending]:
    for one in effects:
        yield Pending(one.id, one.effect.name, one.params, one.issuer, sequence, now)
