"""An approval with a deadline, through handles. A decision in time is accepted; a late one is answered as stale.

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


async def token_of(handle: Handle[str]) -> str:
    """The token that a link in an email would carry: it reaches this wait, and no other one."""
    while True:
        waits = (await handle.info()).waits
        if waits:
            return waits[0].token
        await asyncio.sleep(0.005)


async def decide(client: Client) -> None:
    """Decide as a person would, from any process: a client is enough."""
    handles = {
        claim.id: await client.start(expense, claim, id=claim.id)
        for claim in (Claim("claim-1", 120, 60), Claim("claim-2", 80, 0.3), Claim("claim-3", 20, 60))
    }
    tokens = {id: await token_of(handle) for id, handle in handles.items()}
    page = await client.list(workflow=expense, status="waiting")
    print("to be decided:", ", ".join(info.id for info in page.items))

    answer = await handles["claim-1"].ask("decision", Decision(approved=True, by="Ada"))
    print(f"claim-1: Ada is told: {answer}")
    print(f"  {await handles['claim-1'].result()}")

    # The handle by its id, as another process would get it.
    handle = client.handle(expense, "claim-2")
    print(f"claim-2: {await handle.result()}")
    late = await handle.send("decision", Decision(approved=True, by="Bob"), token=tokens["claim-2"])
    print(f"  Bob comes too late: {late}")

    await handles["claim-3"].cancel()
    try:
        await handles["claim-3"].result()
    except WorkflowCancelledError as error:
        print(f"claim-3: {error.status}")


async def main() -> None:
    async with Runtime("memory://", workflows=[expense]) as runtime:
        await decide(runtime)


if __name__ == "__main__":
    asyncio.run(main())
