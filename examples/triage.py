"""A graph that looks through tickets: the arcs between its steps say what comes after what.

A question is answered. A bug is fixed, if the budget allows it; the fix is tested while the author of the ticket is
told, and merged when both are done. At the end there is a report.

python examples/triage.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from workflow_sdk import Context, Runtime
from workflow_sdk.graphs import E, Graph, GraphResult, Limits, Summary, arc


@dataclass(frozen=True)
class Ticket:
    id: int
    text: str


@dataclass(frozen=True)
class Triage:
    id: int
    kind: str


triage = Graph("triage", workload=Ticket, context={"budget": 3}, final="report", limits=Limits(running=2, nodes=50))


@triage.step(next=[arc("fix", when=E.output.kind == "bug", args={"id": E.output.id}), arc("reply")])
async def classify(ticket: Ticket) -> Triage:
    kind = "bug" if "crash" in ticket.text else "question"
    print(f"  classify: {kind}")
    return Triage(ticket.id, kind)


@triage.step
async def reply(ctx: Context) -> str:
    print("  reply")
    return "see the manual"


@triage.step(admit=E.ctx.budget > 0, mode="inclusive", next=["test", "notify"])
async def fix(ctx: Context, args: dict[str, int]) -> str:
    ctx.patch(budget=ctx.vars["budget"] - 1)
    print(f"  fix: ticket {args['id']}")
    return f"patch-{args['id']}"


@triage.step
async def test() -> str:
    print("  test")
    return "green"


@triage.step
async def notify() -> str:
    print("  notify")
    return "told"


@triage.step(needs=["test", "notify"])
async def merge(outputs: dict[str, str]) -> str:
    print(f"  merge, when both are done: {outputs}")
    return "merged"


@triage.step
async def report(summary: Summary) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(summary.counts.items()))


def tell(result: GraphResult) -> None:
    print(f"  {result.status}: {result.outputs['report']}")
    for name, outcome in result.outcomes.items():
        print(f"    {name}: {outcome.status}" + (f" ({outcome.reason})" if outcome.reason else ""))


async def main() -> None:
    async with Runtime("memory://", workflows=[triage]) as runtime:
        for ticket in (Ticket(7, "a crash at midnight"), Ticket(8, "how do I export?")):
            print(f"ticket {ticket.id}")
            tell(await runtime.run(triage, ticket))


if __name__ == "__main__":
    asyncio.run(main())
