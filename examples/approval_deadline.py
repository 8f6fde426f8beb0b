"""An approval with a deadline, through handles: who decides is answered, who decides too late is told so.

python examples/approval_deadline.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from workflow_sdk import Client, Context, Handle, Runtime, WorkflowCancelledError, workflow


@dataclass(frozen=True)
class Claim:
    id: str
    euros: int
    seconds: float
    """For a decision. Days, elsewhere; here nobody wants to wait."""


@dataclass(frozen=True)
class Decision:
    approved: bool
    by: str


async def pay_out(claim: Claim) -> str:
    return f"transfer of {claim.euros} EUR"


@workflow
async def expense(ctx: Context, claim: Claim) -> str:
    message = await ctx.listen_message("decision", type=Decision, timeout=claim.seconds, default=None)
    if message is None:
        return "escalated: nobody has decided"
    decision = message.payload
    if not decision.approved:
        await message.reply("it goes back to sender")
        return f"refused by {decision.by}"
    transfer = await ctx.step(pay_out, claim)
    await message.reply(transfer)
    return f"approved by {decision.by}"


async def until_waiting(handle: Handle[str]) -> str:
    """The token of its wait: what a mail with a link to click would carry."""
    while not (waits := (await handle.info()).waits):
        await asyncio.sleep(0.005)
    return waits[0].token


async def use(client: Client) -> None:
    quick, slow, dropped = (
        await client.start(expense, claim, id=claim.id)
        for claim in (Claim("claim-1", 120, 60), Claim("claim-2", 80, 0.3), Claim("claim-3", 20, 60))
    )
