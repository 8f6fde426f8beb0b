"""An expense that a clerk has to approve. No clerk does in time, so it becomes a task for the managers.

Tasks are on a list of the store. Any program can show them to people; here, a few lines of code do.

python examples/approval_escalation.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from workflow_sdk import (
    Client,
    Context,
    ListenTimeoutError,
    NotAuthorizedError,
    Runtime,
    StaleError,
    Task,
    TaskResult,
    workflow,
)


@dataclass(frozen=True)
class Expense:
    what: str
    euros: int
    seconds: float
    """For the clerks. Days, elsewhere; here nobody wants to wait."""


@dataclass(frozen=True)
class Verdict:
    approved: bool
    note: str = ""


async def decide(ctx: Context, expense: Expense) -> TaskResult[Verdict]:
    try:
        return await ctx.task("approve", payload=expense, roles=["clerk"], type=Verdict, timeout=expense.seconds)
    except ListenTimeoutError:  # the task has left the list of the clerks
        ctx.state["escalated"] = True
        return await ctx.task("approve, late", payload=expense, roles=["manager"], type=Verdict)


@workflow
async def expense(ctx: Context, claim: Expense) -> str:
    ctx.reference = claim.what
    decision = await decide(ctx, claim)
    return f"{'approved' if decision.value.approved else 'refused'} by {decision.by} {decision.value.note}".rstrip()


async def open_tasks(client: Client, role: str) -> list[Task]:
    """Return what a page for people with this role would show."""
    while True:
        page = await client.tasks.list(role=role)
        if page.items:
            return page.items
        await asyncio.sleep(0.005)


def show(task: Task) -> None:
    roles = ", ".join(task.roles)
    print(f"  {task.name!r} of {task.instance}, for a {roles}: {task.payload['what']}, {task.payload['euros']} EUR")


async def main() -> None:
    async with Runtime("memory://", workflows=[expense]) as runtime:
        print("in time")
        handle = await runtime.start(expense, Expense("a train ticket", 80, seconds=60), id="claim-1")
        (task,) = await open_tasks(runtime, "clerk")
        show(task)
        await runtime.tasks.assign(task.id, "a clerk")
        await runtime.tasks.complete(task.id, Verdict(approved=True), by="a clerk", roles=["clerk"])
        print(f"  {await handle.result()}")
        log = (await runtime.tasks.get(task.id)).log
        print("  " + ", ".join(change.what if change.by is None else f"{change.what} by {change.by}" for change in log))

        print("the time of the clerks passes")
        handle = await runtime.start(expense, Expense("a new chair", 900, seconds=0.3), id="claim-2")
        (late,) = await open_tasks(runtime, "clerk")
        (task,) = await open_tasks(runtime, "manager")
        show(task)
        try:
            await runtime.tasks.complete(late.id, Verdict(approved=True), by="a clerk", roles=["clerk"])
        except StaleError as error:
            print(f"  the clerk comes too late: {type(error).__name__}")
        try:
            await runtime.tasks.complete(task.id, Verdict(approved=True), by="a clerk", roles=["clerk"])
        except NotAuthorizedError as error:
            print(f"  and is no manager: {type(error).__name__}")
        verdict = Verdict(approved=False, note="(a stool will do)")
        await runtime.tasks.complete(task.id, verdict, by="a manager", roles=["manager"])
        print(f"  {await handle.result()}")
        print(f"  what everybody sees of it: {(await handle.info()).state}")


if __name__ == "__main__":
    asyncio.run(main())
