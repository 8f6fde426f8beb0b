"""A conversation with an agent: it answers questions, and remembers them through restarts, for ever.

Every few turns it starts over with what it remembers, so that a long conversation has no long history. It stays the
same instance, with the same id and handle, and it answers questions that came meanwhile. The model is a stand-in.

python examples/conversation.py
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workflow_sdk import Context, ContinueAsNew, Runtime, workflow

TURNS = 3
"""Before it starts over. A few hundred, elsewhere."""


@dataclass(frozen=True)
class Memory:
    turns: int = 0
    names: tuple[str, ...] = ()
    """What was talked about."""


async def think(memory: Memory, question: str) -> str:
    """Stands for a call to a model: slow, costly, and never the same twice. So it is a step."""
    if question == "what did we talk about?":
        return ", ".join(memory.names) or "nothing yet"
    return f"{question} is a fine thing"


@workflow
async def agent(ctx: Context, memory: Memory) -> str | ContinueAsNew:
    for _ in range(TURNS):
        message = await ctx.listen_message(f"question {memory.turns}", ["question", "bye"], type=str)
        if message.name == "bye":
            await message.reply("bye")
            return f"{memory.turns} turns"
        answer = await ctx.step(f"answer {memory.turns}", think, memory, message.payload, retries=5, timeout=60)
        names = memory.names if message.payload.endswith("?") else (*memory.names, message.payload)[-20:]
        memory = Memory(memory.turns + 1, names)
        ctx.state = {"turns": memory.turns}
        await message.reply(answer)
    return ContinueAsNew(memory)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder)}/agents.db"
        async with Runtime(store, workflows=[agent]) as runtime:
            handle = await runtime.start(agent, Memory(), id="agent-1")
            for question in ("tea", "rain", "trains", "what did we talk about?"):
                print(f"> {question}\n{await handle.ask('question', question)}")

        print("the process ends; a new one goes on with what the agent remembers")
        async with Runtime(store, workflows=[agent]) as runtime:
            handle = runtime.handle(agent, "agent-1")
            for question in ("chess", "what did we talk about?"):
                print(f"> {question}\n{await handle.ask('question', question)}")
            turns = (await handle.info()).state["turns"]
            is_short = len(await handle.history()) <= 2 * TURNS
            print(f"{turns} turns, of which the history has {TURNS} at most: {is_short}")
            print(f"> bye\n{await handle.ask('bye', '')}")
            print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
