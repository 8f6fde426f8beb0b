"""An order over three services. Each service is a worker with a workflow of its own, on the same store.

The order starts them one by one as its children, by name, without having their code. If one fails, the work of the
others is undone, newest first. Each child, and each child that undoes one, is started exactly once, whichever process
dies meanwhile.

python examples/order_saga.py
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_sdk import ChildFailedError, Client, Context, CriticalError, Runtime, Workflow, workflow


@dataclass(frozen=True)
class Order:
    id: str
    item: str
    cents: int
    country: str


# The stock service.


async def take_from_shelf(order: Order) -> str:
    print(f"  stock: one {order.item} is set aside")
    return f"{order.item} for {order.id}"


async def put_back(reservation: str) -> None:
    print(f"  stock: {reservation} is put back")


@workflow
async def reserve(ctx: Context, order: Order) -> str:
    return await ctx.step(take_from_shelf, order)


@workflow
async def release(ctx: Context, reservation: str) -> None:
    await ctx.step(put_back, reservation)


# The payment service.


async def charge_card(order: Order, *, idempotency_key: str = "") -> str:
    print(f"  payment: {order.cents / 100:.2f} charged for {order.id}")
    return f"charge of {order.id}"


async def refund_card(charge: str, *, idempotency_key: str = "") -> None:
    print(f"  payment: the {charge} is refunded")


@workflow
async def charge(ctx: Context, order: Order) -> str:
    return await ctx.step(charge_card, order)


@workflow
async def refund(ctx: Context, charge: str) -> None:
    await ctx.step(refund_card, charge)


# The shipping service.


async def hand_over(order: Order) -> str:
    if order.country == "Atlantis":
        raise CriticalError("no carrier goes to Atlantis")
    print(f"  shipping: {order.id} is on its way")
    return f"parcel of {order.id}"


@workflow
async def ship(ctx: Context, order: Order) -> str:
    return await ctx.step(hand_over, order)


# The order: its children, and the children that undo them. The last one needs none: if it fails, it has done nothing.
PLAN = [("reserve", "release"), ("charge", "refund"), ("ship", None)]


@workflow
async def place_order(ctx: Context, order: Order) -> str:
    ctx.reference = order.id
    done: list[tuple[str, object]] = []
    try:
        for number, (do, undo) in enumerate(PLAN):
            ctx.progress(number, len(PLAN), do)
            made = await ctx.child(do, do, order)
            if undo is not None:
                done.append((undo, made))
    except ChildFailedError as failure:
        for undo, made in reversed(done):
            await ctx.child(undo, undo, made)
        return f"called off: {failure.error}"
    return "delivered"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder)}/orders.db"
        # In production these are four processes. Each knows only its own workflows.
        services: list[list[Workflow[Any, Any]]] = [[place_order], [reserve, release], [charge, refund], [ship]]
        async with AsyncExitStack() as stack:
            for workflows in services:
                await stack.enter_async_context(Runtime(store, workflows=workflows))
            client = await stack.enter_async_context(Client(store))
            for order in (Order("order-1", "teapot", 4990, "France"), Order("order-2", "kettle", 5990, "Atlantis")):
                print(f"{order.id}, to {order.country}")
                handle = await client.start(place_order, order, id=order.id)
                print(f"  {await handle.result()}")
            page = await client.list()
            print("instances:", ", ".join(f"{info.id} {info.status}" for info in page.items))


if __name__ == "__main__":
    asyncio.run(main())
