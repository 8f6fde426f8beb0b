"""Pattern B: three machines that know each other by events only.

An order asks for nothing and calls nobody: it says what has happened. The stock and the carrier hear what they have
subscribed to, and say what has happened there. Each could be of another team, and the manifest is the one place that
says who hears what.

python examples/choreography.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from workflow_sdk import Runtime
from workflow_sdk.machines import MachineContext, Manifest, Transition, machine, route


@dataclass(frozen=True)
class Ordered:
    order_id: str
    item: str


@dataclass(frozen=True)
class Reserved:
    order_id: str
    item: str


@dataclass(frozen=True)
class SoldOut:
    order_id: str
    item: str


@dataclass(frozen=True)
class Sent:
    order_id: str
    parcel: int


@dataclass(frozen=True)
class Order:
    id: str
    stage: str


@machine("order", state=Order, event=Ordered | SoldOut | Sent, key=str, effects=[])
def order(state: Order | None, event: Any, ctx: MachineContext) -> Transition[Order]:
    match state, event:
        case None, Ordered(id):
            return Transition(Order(id, "waiting for the stock"))
        case Order(), SoldOut(item=item):
            return Transition(replace(state, stage=f"no {item} left"), done=True)
        case Order(), Sent(parcel=parcel):
            return Transition(replace(state, stage=f"sent as parcel {parcel}"), done=True)
        case _:
            return Transition(state)


@machine("stock", state=int, event=Ordered, key=str, effects=[])
def stock(left: int | None, event: Ordered, ctx: MachineContext) -> Transition[int]:
    """A cell for every item: orders of one item are one after the other, those of different ones side by side."""
    left = 2 if left is None else left
    if left == 0:
        return Transition(0, events=[SoldOut(event.order_id, event.item)])
    return Transition(left - 1, events=[Reserved(event.order_id, event.item)])


@machine("carrier", state=int, event=Reserved, effects=[])
def carrier(parcels: int | None, event: Reserved, ctx: MachineContext) -> Transition[int]:
    number = (parcels or 0) + 1
    return Transition(number, events=[Sent(event.order_id, number)])


manifest = Manifest(
    machines=[order, stock, carrier],
    routes=[
        route(Ordered, order, key_field="order_id"),
        route(Ordered, stock, key_field="item"),
        route(Reserved, carrier),
        route(SoldOut, order, key_field="order_id"),
        route(Sent, order, key_field="order_id"),
    ],
)


async def main(store: str = "memory://") -> None:
    async with Runtime(store, machines=manifest) as runtime:
        for number in range(1, 4):
            print(f"order {number}:", *await runtime.emit(Ordered(f"o-{number}", "teapot")))
        ends = [await runtime.handle(order, order.instance_id(f"o-{number}")).result() for number in range(1, 4)]
        print("\n".join(f"{end.id}: {end.stage}" for end in ends))


if __name__ == "__main__":
    asyncio.run(main())
