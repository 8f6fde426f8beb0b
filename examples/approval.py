"""Wait for a person, for three days at most. While it waits, the workflow is only rows in the store.

python examples/approval.py
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta

from workflow_sdk import Context, open_driver, run_workflow, send_message, workflow
from workflow_sdk.testing import VirtualClock


@dataclass(frozen=True)
class Claim:
    id: str
    euros: int


@dataclass(frozen=True)
class Decision:
    approved: bool
    reason: str


async def ask_for_approval(claim: Claim) -> None:
    print(f"  email: please decide on {claim.id}, {claim.euros} EUR")


async def escalate(claim: Claim) -> None:
    print(f"  email: nobody has decided on {claim.id}")


@workflow
async def expense(ctx: Context, claim: Claim) -> str:
    await ctx.step(ask_for_approval, claim)
    decision = await ctx.listen("decision", type=Decision, timeout=timedelta(days=3), default=None)
    if decision is None:
        await ctx.step(escalate, claim)
        return "escalated"
    return f"approved: {decision.reason}" if decision.approved else f"refused: {decision.reason}"


async def main() -> None:
    clock = VirtualClock()
    async with aclosing(await open_driver("memory://")) as driver:
        for claim in (Claim("claim-1", 120), Claim("claim-2", 80)):
            print(claim.id)
            result = await run_workflow(expense, claim, driver=driver, instance_id=claim.id, clock=clock)
            print(f"  {result.status} for {result.waiting_for}")

        print("a decision on claim-1 comes in")
        await send_message(driver, "claim-1", "decision", Decision(approved=True, reason="within the budget"))
        result = await run_workflow(expense, driver=driver, instance_id="claim-1", clock=clock)
        print(f"  {result.status}: {result.output}")

        print("three days pass without one on claim-2")
        clock.advance(timedelta(days=3))
        result = await run_workflow(expense, driver=driver, instance_id="claim-2", clock=clock)
        print(f"  {result.status}: {result.output}")


if __name__ == "__main__":
    asyncio.run(main())
