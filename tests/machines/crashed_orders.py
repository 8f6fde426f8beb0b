"""An order and the stock that it tells, to be killed at every commit; and what their executors do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from workflow_sdk.machines import (
    EffectReceipt,
    EffectRejected,
    Executor,
    Intent,
    MachineContext,
    Manifest,
    Transition,
    effect,
    event,
    executor,
    machine,
    route,
    timer,
)

__all__ = [
    "Begun",
    "Broken",
    "Cleared",
    "Confirmed",
    "Order",
    "Shop",
    "Stocked",
    "charge",
    "manifest",
    "note",
    "order",
    "stock",
]


@event("crash/Begun@1")
@dataclass(frozen=True)
class Begun:
    """Begins an order."""

    id: str
    cents: int


@event("crash/Confirmed@1")
@dataclass(frozen=True)
class Confirmed:
    """Somebody says yes to an order that waits."""

    id: str


@event("crash/Cleared@1")
@dataclass(frozen=True)
class Cleared:
    """Deletes an order."""

    id: str


@event("crash/Broken@1")
@dataclass(frozen=True)
class Broken:
    """A transition of it is always refused."""

    id: str


@event("crash/Stocked@1")
@dataclass(frozen=True)
class Stocked:
    """An order tells the stock of itself."""

    order: str
    stage: str


@dataclass(frozen=True)
class Charge:
    """What a charge needs."""

    cents: int


@dataclass(frozen=True)
class Charged:
    """What a charge gives."""

    receipt: str


@dataclass(frozen=True)
class Order:
    """What an order is."""

    id: str
    stage: str
    at: float
    history: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stock:
    """What the stock has heard."""

    heard: tuple[str, ...] = ()


charge = effect("crash/charge@1", params=Charge, receipt=Charged)
note = effect("crash/note@1", params=str, receipt=int)


@machine(
    "crash/order@1",
    state=Order,
    event=Begun | Confirmed | Cleared | Broken | EffectReceipt | EffectRejected,
    key=str,
    effects=[charge, note, timer],
)
def order(state: Order | None, event: Any, ctx: MachineContext) -> Transition[Order]:
    """Charged when it begins, confirmed by hand or by a timer, deleted when it is cleared."""
    now = ctx.now().timestamp()
    match state, event:
        case None, Begun(id, cents):
            return Transition(Order(id, "charging", now, (str(ctx.uuid()),)), effects=[charge(cents)])
        case Order(), EffectReceipt(effect="crash/charge@1", status="ok", payload=Charged(receipt)):
            told = [Stocked(state.id, "paid")]
            return Transition(
                _on(state, f"paid {receipt}", now), events=told, effects=[timer(after=86_400), note(f"paid {state.id}")]
            )
        case Order(), EffectRejected(payload=payload):
            return Transition(_on(state, f"rejected {payload}", now))
        case Order(), EffectReceipt(effect="crash/charge@1", status=status):
            return Transition(_on(state, f"charge: {status}", now), done=True)
        case Order(), EffectReceipt(effect="timer"):
            return Transition(_on(state, "late", now), events=[Stocked(state.id, "late")], done=True)
        case Order(), EffectReceipt(payload=payload):
            return Transition(_on(state, f"noted {payload}", now))
        case Order(), Confirmed():
            return Transition(_on(state, "confirmed", now), effects=[note("a"), note("b")])
        case _, Cleared(id):
            return Transition(None, events=[Stocked(id, "cleared")], effects=[note(f"cleared {id}")])
        case _:
            pass
    raise ValueError(f"an order at {state} can't take {event}")


def _on(state: Order, stage: str, now: float) -> Order:
    return replace(state, stage=stage, at=now, history=(*state.history, stage))


@machine("crash/stock@1", state=Stock, event=Stocked, effects=[])
def stock(state: Stock | None, event: Stocked, ctx: MachineContext) -> Transition[Stock]:
    """Remembers what it has heard, in order."""
    return Transition(Stock((*(state or Stock()).heard, f"{event.order} {event.stage}")))


manifest = Manifest(
    machines=[order, stock],
    routes=[
        *(route(kind, order, key_field="id") for kind in (Begun, Confirmed, Cleared, Broken)),
        route(Stocked, stock),
    ],
)


@dataclass
class Shop:
    """What the executors do: to charge the same intent twice is to charge it once."""

    charged: dict[str, int] = field(default_factory=dict[str, int])
    calls: list[str] = field(default_factory=list[str])

    def reset(self) -> None:
        """Forget all."""
        self.charged.clear()
        self.calls.clear()

    def executors(self) -> list[Executor]:
        """For the effects of orders."""

        @executor(charge)
        async def do_charge(params: Charge, intent: Intent) -> Any:
            self.calls.append(intent.id)
            if params.cents == 13:
                raise ValueError("no luck")
            self.charged[intent.id] = params.cents
            return "no receipt" if params.cents == 666 else Charged(f"{params.cents} for {intent.id[:6]}")

        @executor(note)
        async def do_note(params: str, intent: Intent) -> int:
            self.calls.append(intent.id)
            return len(params)

        return [do_charge, do_note]
