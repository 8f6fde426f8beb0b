"""A web service in front of workflows: it starts them, shows their status, and sends them messages.

`main` asks it through FastAPI's test client. To serve it: `uvicorn --factory examples.service:create_app`.

python examples/service.py
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

from workflow_sdk import (
    AlreadyExistsError,
    Context,
    Delivery,
    InstanceNotFoundError,
    Runtime,
    WorkflowSDKError,
    workflow,
)


@dataclass(frozen=True)
class Order:
    sku: str
    cents: int


@dataclass(frozen=True)
class Payment:
    reference: str


async def reserve(order: Order) -> None:
    print(f"  (one {order.sku} is reserved)")


async def ship(order: Order, payment: Payment) -> str:
    return f"{order.sku}, paid with {payment.reference}"


@workflow
async def fulfil(ctx: Context, order: Order) -> str:
    await ctx.step(reserve, order)
    payment = await ctx.listen("paid", type=Payment)
    return await ctx.step(ship, order, payment)


# The service.


async def get_runtime(request: Request) -> Runtime:
    runtime = request.app.state.runtime
    assert isinstance(runtime, Runtime), "the lifespan has put it there"
    return runtime


Workflows: TypeAlias = Annotated[Runtime, Depends(get_runtime)]
routes = APIRouter()


@routes.put("/orders/{id}", status_code=202)
async def start(id: str, order: Order, workflows: Workflows) -> dict[str, str]:
    """Start an order. Starting the same order again is fine: a client that got no answer may ask twice."""
    handle = await workflows.start(fulfil, order, id=id)
    return {"id": handle.id}


@routes.get("/orders/{id}")
async def show(id: str, workflows: Workflows) -> dict[str, Any]:
    info = await workflows.handle(fulfil, id).info()
    return {"status": info.status, "waits": [wait.name for wait in info.waits], "output": info.output}


@routes.post("/orders/{id}/payment")
async def pay(id: str, payment: Payment, workflows: Workflows) -> dict[str, str]:
    """The reference of the payment is the key of the message: a webhook that is called twice pays once."""
    delivery = await workflows.handle(fulfil, id).send("paid", payment, key=payment.reference)
    if delivery is Delivery.CLOSED:
        raise HTTPException(409, "the order is done")
    return {"delivery": delivery}


@routes.get("/orders/{id}/result")
async def result(id: str, workflows: Workflows) -> dict[str, str]:
    """Wait for the result, as a long poll. A client that disconnects does the workflow no harm."""
    try:
        return {"output": await workflows.handle(fulfil, id).result(timeout=20)}
    except TimeoutError:
        raise HTTPException(504, "it is not done yet") from None


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Turn errors of the library into HTTP answers."""
    code = 404 if isinstance(error, InstanceNotFoundError) else 409 if isinstance(error, AlreadyExistsError) else 500
    return JSONResponse({"detail": str(error)}, status_code=code)


def create_app(store: str = "sqlite:///orders.db") -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        # A `Client` here, and workers elsewhere, would do as well: the routes are the same.
        async with Runtime(store, workflows=[fulfil]) as runtime:
            app.state.runtime = runtime
            yield

    app = FastAPI(lifespan=lifespan)
    app.include_router(routes)
    app.add_exception_handler(WorkflowSDKError, refuse)
    return app


# A user of the service.


def wait_for_payment(http: TestClient) -> None:
    while http.get("/orders/1001").json()["status"] != "waiting":
        time.sleep(0.01)


def main() -> None:
    order = {"sku": "teapot", "cents": 4990}
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/orders.db"
        with TestClient(create_app(store)) as http:
            for what in ("start", "start again"):
                answer = http.put("/orders/1001", json=order)
                print(f"{what}: {answer.status_code} {answer.json()}")
            answer = http.put("/orders/1001", json=order | {"sku": "kettle"})
            print(f"start with another input: {answer.status_code}")
            print(f"look at an unknown one: {http.get('/orders/1002').status_code}")
            wait_for_payment(http)
            print(f"look: {http.get('/orders/1001').json()}")

        print("the service is deployed anew, with the same store")
        with TestClient(create_app(store)) as http:
            print(f"look: {http.get('/orders/1001').json()}")
            for what in ("pay", "pay again"):
                answer = http.post("/orders/1001/payment", json={"reference": "card-42"})
                print(f"{what}: {answer.status_code} {answer.json()}")
            print(f"result: {http.get('/orders/1001/result').json()}")


if __name__ == "__main__":
    main()
