"""Pattern A: one machine for a whole order, with its retries, its compensation and a report to the ledger.

A cell for every order. Each event is one transition, which is one commit: the next state, what is to be done outside,
and what others are told. Nothing is replayed: an order that wakes after a year reads its state.

python examples/order_machine.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from workflow_sdk import Runtime
from workflow_sdk.machines import (
    EffectReceipt,
    EffectRejected,
    Intent,
    MachineContext,
    Manifest,
    Transition,
    effect,
    executor,
    machine,
    route,
)


@dataclass(frozen=True)
class OrderCreated:
    order_id: str
    item: str
    cents: int


@dataclass(frozen=True)
class OrderClosed:
    order_id: str
    how: str


@dataclass(frozen=True)
class Charge:
    order_id: str
    cents: int


@dataclass(frozen=True)
class Charged:
    receipt: str


@dataclass(frozen=True)
class Parcel:
    order_id: str
    item: str


charge = effect("payment/charge@1", params=Charge, receipt=Charged)
refund = effect("payment/refund@1", params=Charged, receipt=None)
ship = effect("stock/ship@1", params=Parcel, receipt=str)


@dataclass(frozen=True)
class Order:
    id: str
    item: str
    cents: int
    stage: str
    tries: int = 0
    receipt: str = ""
    parcel: str = ""


@machine(
    "shop/order@1",
    state=Order,
    event=OrderCreated | EffectReceipt | EffectRejected,
    key=str,
    effects=[charge, refund, ship],
)
def order(state: Order | None, event: Any, ctx: MachineContext) -> Transition[Order]:
    match state, event:
        case None, OrderCreated(id, item, cents):
            return Transition(Order(id, item, cents, "charging"), effects=[charge(order_id=id, cents=cents)])
        case Order(stage="charging"), EffectReceipt(status="ok", payload=Charged(receipt)):
            paid = replace(state, stage="shipping", receipt=receipt)
            return Transition(paid, effects=[ship(order_id=state.id, item=state.item)])
        case Order(stage="charging", tries=tries), EffectReceipt() if tries < 2:
            return Transition(replace(state, tries=tries + 1), effects=[charge(order_id=state.id, cents=state.cents)])
        case Order(stage="charging"), EffectReceipt() | EffectRejected():
            return closed(state, "not paid")
        case Order(stage="shipping"), EffectReceipt(status="ok", payload=parcel):
            return closed(replace(state, parcel=parcel), "shipped")
        case Order(stage="shipping"), EffectReceipt() | EffectRejected():
            return Transition(replace(state, stage="refunding"), effects=[refund(receipt=state.receipt)])
        case Order(stage="refunding"), EffectReceipt(status="ok"):
            return closed(state, "refunded")
        case _:
            return Transition(state)  # an order that is sent twice, say


def closed(state: Order, how: str) -> Transition[Order]:
    return Transition(replace(state, stage=how), events=[OrderClosed(state.id, how)], done=True)


@machine("shop/ledger@1", state=dict[str, int], event=OrderClosed, effects=[])
def ledger(state: dict[str, int] | None, event: OrderClosed, ctx: MachineContext) -> Transition[dict[str, int]]:
    counts = dict(state or {})
    counts[event.how] = counts.get(event.how, 0) + 1
    return Transition(counts)


shop = Manifest(
    machines=[order, ledger],
    routes=[route(OrderCreated, order, key_field="order_id"), route(OrderClosed, ledger)],
)

# What is done outside. `intent.id` is the same if it is done again after a crash: others know it as idempotency key.

declined: dict[str, int] = {"o-2": 1, "o-3": 9}
"""How often the bank says no to an order."""


@executor(charge, timeout=10)
async def do_charge(params: Charge, intent: Intent) -> Charged:
    if declined.get(params.order_id, 0) > 0:
        declined[params.order_id] -= 1
        raise RuntimeError("card declined")
    return Charged(f"receipt for {params.order_id}")


@executor(refund)
async def do_refund(params: Charged, intent: Intent) -> None:
    print(f"  refunded: {params.receipt}")


@executor(ship)
async def do_ship(params: Parcel, intent: Intent) -> str:
    if params.item == "a unicorn":
        raise LookupError("not in stock")
    return f"parcel with {params.item}"


async def main(store: str = "memory://") -> None:
    async with Runtime(store, machines=shop, executors=[do_charge, do_refund, do_ship]) as runtime:
        for number, item in enumerate(["a teapot", "a kettle", "a cup", "a unicorn"], start=1):
            await runtime.emit(OrderCreated(f"o-{number}", item, 4_00), id=f"created o-{number}")
        for number in range(1, 5):
            end = await runtime.handle(order, order.instance_id(f"o-{number}")).result()
            print(f"o-{number}: {end.stage}, after {end.tries + 1} tries to charge")
        async for _ in runtime.handle(ledger, ledger.instance_id()).watch():
            counts = (await runtime.cell(ledger)).state
            if counts and sum(counts.values()) == 4:
                print("ledger:", dict(sorted(counts.items())))
                break


if __name__ == "__main__":
    asyncio.run(main())
