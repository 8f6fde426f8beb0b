"""The main job: charge, reserve and ship an order, once each, however often the program is started.

python examples/order.py
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import aclosing
from dataclasses import dataclass

from workflow_sdk import Backoff, Context, open_driver, run_workflow, step, workflow


@dataclass(frozen=True)
class Order:
    id: str
    sku: str
    cents: int


@dataclass(frozen=True)
class Receipt:
    order: str
    charge: str
    parcel: str


@step(retries=5, backoff=Backoff(initial=0.05), timeout=10)
async def charge(order: Order) -> str:
    print(f"  charging {order.cents / 100:.2f}")
    return f"charge-{order.id}"


def reserve(sku: str) -> None:  # a plain function runs in a worker thread
    print(f"  reserving one {sku}")


async def ship(order: Order) -> str:
    print(f"  shipping order {order.id}")
    return f"parcel-{order.id}"


@workflow
async def checkout(ctx: Context, order: Order) -> Receipt:
    charge_id = await ctx.step(charge, order)
    await ctx.step("reserve", reserve, order.sku)
    parcel = await ctx.step("ship", ship, order)
    return Receipt(order.id, charge_id, parcel)


async def main() -> None:
    order = Order("1001", "teapot", 4990)
    with tempfile.TemporaryDirectory() as folder:
        for start in ("first start", "second start, with the same store"):
            print(start)
            async with aclosing(await open_driver(f"sqlite:///{folder}/orders.db")) as driver:
                result = await run_workflow(checkout, order, driver=driver, instance_id=order.id)
            print(f"  {result.status}: {result.output}")


if __name__ == "__main__":
    asyncio.run(main())
