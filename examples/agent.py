"""An agent that watches a deployment: it looks, thinks, acts and pauses, in a loop that survives restarts.

A person can send it a message at any time; that ends its pause. The model is a stand-in with fixed answers.

python examples/agent.py
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from workflow_sdk import Break, Context, Continue, Runtime, Status, workflow


@dataclass(frozen=True)
class Action:
    """What the model wants next: a tool, or the end."""

    tool: str
    argument: str


@dataclass(frozen=True)
class Memory:
    """What the agent knows. It is stored with the loop, so a long life does not make a long history."""

    goal: str
    notes: tuple[str, ...] = ()


async def think(memory: Memory) -> Action:
    """Stands for a call to a model: slow, costly, and never the same twice. So it is a step."""
    print(f"  thinks, with {len(memory.notes)} notes")
    last = memory.notes[-1] if memory.notes else ""
    if "roll back" in last:
        return Action("roll_back", "shop-2")
    if "is back" in last:
        return Action("finish", last)
    return Action("error_rate", "shop-2")


async def error_rate(service: str) -> str:
    return f"{service}: 4 % errors"


async def roll_back(service: str) -> str:
    print(f"  rolls {service} back")
    return f"{service} is gone, shop-1 is back"


TOOLS = {"error_rate": error_rate, "roll_back": roll_back}
PAUSE = 0.05  # seconds here; minutes in a real program


async def turn(ctx: Context, memory: Memory) -> Continue[Memory] | Break[str]:
    action = await ctx.step(think, memory, retries=5, timeout=60)
    if action.tool == "finish":
        return Break(action.argument)
    note = await ctx.step("act", TOOLS[action.tool], action.argument)
    notes = (*memory.notes, note)
    word = await ctx.listen("word", type=str, timeout=PAUSE, default=None)
    if word is not None:
        notes = (*notes, f"a person says: {word}")
    return Continue(replace(memory, notes=notes[-20:]))


@workflow
async def agent(ctx: Context, goal: str) -> str:
    return await ctx.loop("turns", turn, Memory(goal), commit_interval=5)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder)}/agents.db"
        async with Runtime(store, workflows=[agent]) as runtime:
            handle = await runtime.start(agent, "keep the shop healthy", id="watch")
            status = Status.RUNNING
            while status is not Status.WAITING:  # for the next event, or for a message from a person
                await asyncio.sleep(0.2)
                status = (await handle.info()).status
            print(f"after a while: {status}")

        print("the process ends; a new one goes on with what the agent knows")
        async with Runtime(store, workflows=[agent]) as runtime:
            handle = runtime.handle(agent, "watch")
            await handle.send("word", "roll back, please")
            print(f"done: {await handle.result()}")


if __name__ == "__main__":
    asyncio.run(main())
