"""The machines that most tests of machines use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workflow_sdk.machines import (
    EffectReceipt,
    EffectRejected,
    Harness,
    Machine,
    MachineContext,
    Manifest,
    Request,
    Transition,
    effect,
    event,
    machine,
    route,
    timer,
)

__all__ = [
    "Charge",
    "Charged",
    "Did",
    "Do",
    "Notes",
    "Order",
    "OrderCreated",
    "OrderPaid",
    "Say",
    "State",
    "charge",
    "does",
    "harness_of",
    "notes",
    "order",
    "ping",
    "shop",
]


@event("acme/OrderCreated@1")
@dataclass(frozen=True)
class OrderCreated:
    """Begins an order."""

    order_id: str
    cents: int


@event("acme/OrderPaid@1")
@dataclass(frozen=True)
class OrderPaid:
    """An order has told that it is paid."""

    order_id: str


@dataclass(frozen=True)
class Charge:
    """What a charge needs."""

    order_id: str
    cents: int


@dataclass(frozen=True)
class Charged:
    """What a charge gives."""

    charge_id: str


@dataclass(frozen=True)
class Order:
    """An order."""

    id: str
    stage: str
    told: str = ""


charge = effect("payment/charge@1", params=Charge, receipt=Charged)
ping = effect("ping", params=int, receipt=int)


@machine("acme/order@1", state=Order, event=OrderCreated | EffectReceipt | EffectRejected, key=str, effects=[charge])
def order(state: Order | None, event: Any, ctx: MachineContext) -> Transition[Order]:
    """Charges, and is done when it is paid."""
    match state, event:
        case None, OrderCreated(order_id=id, cents=cents):
            return Transition(Order(id, "charging"), effects=[charge(order_id=id, cents=cents).tagged("payments")])
        case Order(), EffectReceipt(status="ok"):
            return Transition(
                replace(state, stage="paid", told=event.payload.charge_id), events=[OrderPaid(state.id)], done=True
            )
        case Order(), EffectReceipt():
            return Transition(replace(state, stage=event.status, told=str(event.payload)))
        case Order(), EffectRejected():
            return Transition(replace(state, stage="rejected", told=event.reason))
        case _:
            return Transition(state)


@dataclass(frozen=True)
class Notes:
    """How many orders were paid."""

    paid: list[str]


@machine("acme/notes@1", state=Notes, event=OrderPaid, effects=[])
def notes(state: Notes | None, event: OrderPaid, ctx: MachineContext) -> Transition[Notes]:
    """Has one cell, and notes what is paid."""
    return Transition(Notes([*(state.paid if state else []), event.order_id]))


shop = Manifest(
    machines=[order, notes], routes=[route(OrderCreated, order, key_field="order_id"), route(OrderPaid, notes)]
)


# A machine that does as it is told, one for each test.


@dataclass(frozen=True)
class Do:
    """Has the cell of a key do what the test says under this word."""

    key: str
    word: str = ""


@dataclass(frozen=True)
class Say:
    """Is told by cells."""

    key: str
    word: str = ""


@dataclass(frozen=True)
class State:
    """What a cell has been told, in order."""

    words: list[str] = field(default_factory=list[str])


Did = Callable[[State, Any, MachineContext], Any]


def does(
    did: Did | None = None,
    *,
    event: Any = Do | Say | EffectReceipt | EffectRejected,
    key: Any = str,
    name: str = "cell@1",
    effects: Sequence[Any] = (charge, ping, timer),
) -> Machine[Any]:
    """A machine whose cells do as `did` says: it gets the state with the word of the event noted in it, and gives a
    transition, or the effects that are to be asked for, or anything that is refused."""

    @machine(name, state=State, event=event, key=key, effects=effects)
    def cell(state: State | None, event: Any, ctx: MachineContext) -> Any:
        noted = State([*(state.words if state else []), _word(event)])
        found = did(noted, event, ctx) if did is not None else None
        if found is None:
            return Transition(noted)
        return Transition(noted, effects=[found]) if isinstance(found, Request) else found

    return cell


def harness_of(did: Did | None = None, **options: Any) -> Harness:
    """A harness of such a machine."""
    made = does(did, **options)
    arms = [arm.hint for arm in made.arms.values()]
    return Harness(made, routes=[route(arm, made, key_field="key" if made.is_keyed else None) for arm in arms])


def _word(event: Any) -> str:
    if isinstance(event, (EffectReceipt, EffectRejected)):
        return f"{type(event).__name__} {event.status} {event.effect}"
    return str(event.word)
