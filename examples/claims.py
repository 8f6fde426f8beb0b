"""A claims process that is a file: its steps, its tasks for people and its call to a bank are in claims.yaml.

The functions that the file names are here, and so is a small bank, which is out of order when it is asked first.

python examples/claims.py
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from workflow_sdk import Handle, Runtime, Status
from workflow_sdk.graphs import Graph, GraphResult, Summary


class Claim(TypedDict):
    id: str
    cents: int
    bank: str


async def assess(claim: Claim) -> dict[str, bool]:
    return {"is_large": claim["cents"] > 100_00}


async def refuse() -> str:
    return "we are sorry"


async def report(summary: Summary) -> str:
    if "pay" in summary.outputs:
        return f"paid: {summary.outputs['pay']['body']['receipt']}"
    return "paid by hand" if "pay by hand" in summary.outputs else "refused"


claims = Graph.load(Path(__file__).with_name("claims.yaml"), functions=[assess, refuse, report])


class Bank(BaseHTTPRequestHandler):
    """Pays each claim once, however often it is asked: requests have a key that is the same for every attempt."""

    paid: ClassVar[dict[str, str]] = {}
    asked: ClassVar[int] = 0

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Bank.asked += 1
        if Bank.asked == 1:
            self.send_error(503)
            return
        receipt = Bank.paid.setdefault(self.headers["Idempotency-Key"], f"receipt for {order['claim']}")
        body = json.dumps({"receipt": receipt}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def a_bank() -> Generator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Bank) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/payments"
        server.shutdown()


async def decide(runtime: Runtime, claim: str, decision: str) -> None:
    """Stands for a page with tasks, and for the person in front of it."""
    async for info in runtime.handle(claims, claim).watch():
        if info.status is Status.WAITING:
            break
    (task,) = (await runtime.tasks.list(role="adjuster", instance=claim)).items
    print(f"  {task.name} {task.payload['claim']}, {task.payload['cents'] / 100:.2f}: {decision}")
    await runtime.tasks.complete(task.id, decision, by="Ada", roles=["adjuster"])


async def main() -> None:
    with a_bank() as bank:
        async with Runtime("memory://", workflows=[claims]) as runtime:
            handles: list[Handle[GraphResult]] = [
                await runtime.start(claims, Claim(id=name, cents=cents, bank=bank), id=name)
                for name, cents in (("claim-1", 49_90), ("claim-2", 4_990_00), ("claim-3", 99_000_00))
            ]
            await decide(runtime, "claim-2", "approve")
            await decide(runtime, "claim-3", "refuse")
            for handle in handles:
                result = await handle.result()
                print(f"{handle.id} is {result.outputs['report']}")


if __name__ == "__main__":
    asyncio.run(main())
