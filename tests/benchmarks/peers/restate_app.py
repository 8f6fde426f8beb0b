"""The workflows, on Restate: handlers that a Restate server calls over HTTP/2."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import hypercorn
import hypercorn.asyncio
import restate
from restate import ObjectContext, VirtualObject, Workflow, WorkflowContext, WorkflowSharedContext

from tests.benchmarks.peers.measuring import Setting, Step
from tests.benchmarks.peers.ports import free_port

__all__ = [
    "answering",
    "ask",
    "count_up",
    "joining",
    "pong",
    "resumable",
    "resume",
    "resumed",
    "sequential",
    "served",
    "step",
    "stop",
    "waiting",
]

step = Step()
resumed: dict[str, asyncio.Event] = {}  # for each of `resumable`, by its key

sequential_workflow = Workflow("Sequential")
joining_workflow = Workflow("Joining")
# Suspended when it has waited for a second, where it would stay in memory for a minute: what comes then is replayed.
resumable_workflow = Workflow("Resumable", inactivity_timeout=timedelta(seconds=1))
answering_workflow = Workflow("Answering")
waiting_workflow = Workflow("Waiting")
answering_object = VirtualObject("AnsweringObject")
counting_object = VirtualObject("CountingObject")


async def nothing() -> int:
    """A step that costs nothing itself."""
    return await step()


@sequential_workflow.main()
async def sequential(ctx: WorkflowContext, count: int) -> int:
    """Steps, one after the other."""
    for _ in range(count):
        await ctx.run_typed("nothing", nothing)
    return count


@joining_workflow.main()
async def joining(ctx: WorkflowContext, count: int) -> int:
    """Steps side by side."""
    return len(await restate.gather(*[ctx.run_typed("nothing", nothing) for _ in range(count)]))


@resumable_workflow.main()
async def resumable(ctx: WorkflowContext, count: int) -> int:
    """Steps, and then a wait."""
    for _ in range(count):
        await ctx.run_typed("nothing", nothing)
    await ctx.promise("go").value()
    resumed[ctx.key()].set()
    return count


@resumable_workflow.handler()
async def resume(ctx: WorkflowSharedContext) -> None:
    """End the wait."""
    await ctx.promise("go").resolve(True)


@answering_workflow.main()
async def answering(ctx: WorkflowContext) -> None:
    """Answers what it is asked, each by promises of their own."""
    number = 0
    while (asked := await ctx.promise(f"ask-{number}", type_hint=int).value()) >= 0:
        await ctx.promise(f"answer-{number}", type_hint=int).resolve(asked)
        number += 1


@answering_workflow.handler()
async def ask(ctx: WorkflowSharedContext, number: int) -> int:
    """One question, and its answer."""
    await ctx.promise(f"ask-{number}", type_hint=int).resolve(number)
    return await ctx.promise(f"answer-{number}", type_hint=int).value()


@answering_workflow.handler()
async def stop(ctx: WorkflowSharedContext, number: int) -> None:
    """No more questions after that many."""
    await ctx.promise(f"ask-{number}", type_hint=int).resolve(-1)


@answering_object.handler()
async def pong(ctx: ObjectContext, number: int) -> int:
    """What one would use where there is no workflow, only a thing with a key that answers."""
    return number


@waiting_workflow.main()
async def waiting(ctx: WorkflowContext) -> None:
    """A step, and then a long wait."""
    await ctx.run_typed("nothing", nothing)
    await ctx.promise("message").value()


@counting_object.handler()
async def count_up(ctx: ObjectContext) -> int:
    """Count the calls of an object."""
    count = (await ctx.get("count", type_hint=int) or 0) + 1
    ctx.set("count", count)
    return count


app = restate.app(
    [
        sequential_workflow,
        joining_workflow,
        resumable_workflow,
        answering_workflow,
        waiting_workflow,
        answering_object,
        counting_object,
    ]
)


def _register(admin_url: str, uri: str) -> None:
    body = json.dumps({"uri": uri, "force": True}).encode()
    request = urllib.request.Request(f"{admin_url}/deployments", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


@asynccontextmanager
async def served(setting: Setting) -> AsyncGenerator[Any]:
    """The services, registered with the server; a client of it."""
    config = hypercorn.Config()
    port = free_port()
    config.bind = [f"127.0.0.1:{port}"]
    # As the documentation has it for production.
    config.h2_max_concurrent_streams = 2147483647
    config.keep_alive_max_requests = 2147483647
    config.keep_alive_timeout = 2147483647
    serving = asyncio.create_task(hypercorn.asyncio.serve(app, config))  # type: ignore[arg-type,unused-ignore]
    await _listening(port)
    await asyncio.to_thread(_register, setting.admin_url, f"http://127.0.0.1:{port}")
    async with restate.create_client(setting.url) as client:
        yield client
    serving.cancel()


async def _listening(port: int) -> None:
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return
    raise TimeoutError(port)
