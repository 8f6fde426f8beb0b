"""A playbook, as it is: steps with tools, arcs and a policy, in playbook.yaml. The tools are functions, here.

A step of it is closed until somebody opens the books.

python examples/playbook.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yaml

from workflow_sdk import Runtime, Status
from workflow_sdk.graphs import Graph, Summary

attempts = 0


async def download(workload: dict[str, str]) -> str:
    """Stands for a file server that is slow in the morning."""
    global attempts
    attempts += 1
    if attempts == 1:
        raise TimeoutError("the file server is slow")
    return "R-1 49.90; R-2 12.50; R-3 7.00"


async def parse(text: str) -> list[dict[str, Any]]:
    pairs = [line.split() for line in text.split("; ")]
    return [{"number": number, "cents": round(float(euros) * 100)} for number, euros in pairs]


async def book_one(invoice: dict[str, Any]) -> str:
    return f"{invoice['number']} is booked"


async def archive(args: dict[str, str]) -> str:
    return f"{args['folder']} is empty"


async def summarise(summary: Summary) -> str:
    return f"{len(summary.outputs['book'])} booked, {summary.outputs['archive']}"


PLAYBOOK = yaml.safe_load(Path(__file__).with_name("playbook.yaml").read_text())
invoices = Graph.from_playbook(PLAYBOOK, functions=[download, parse, book_one, archive, summarise])


async def main() -> None:
    async with Runtime("memory://", workflows=[invoices]) as runtime:
        handle = await runtime.start(invoices, {"folder": "inbox"})
        async for info in handle.watch():
            if info.status is Status.WAITING:
                print(f"{info.waits[0].path} waits for its {info.waits[0].kind}")
                print("the books are opened")
                await handle.patch(books_are_open=True)
        result = await handle.result()
    print(f"{result.status}: {result.outputs['summarise']}")
    print(f"{attempts} downloads; {result.outputs['book']}")


if __name__ == "__main__":
    asyncio.run(main())
