"""A module as a user of `workflow worker` has one."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio

from workflow_sdk import Backoff, Context, Runtime, Workflow, workflow
from workflow_sdk.codecs import plain

STORE = os.environ.get("SHOP_STORE", "memory://")


async def charge(order: str) -> str:
    return f"charge-{order}"


async def refund(charge_id: str) -> None:
    """Nothing to be done."""


@workflow
async def checkout(ctx: Context, order: str) -> dict[str, object]:
    async def pack(ctx: Context) -> str:
        return await ctx.listen("packed", type=str, timeout=timedelta(days=3))

    async def label(ctx: Context) -> str:
        return await ctx.step("print", charge, order)

    charge_id = await ctx.step(charge, order, rollback=refund)
    done = await ctx.join("both", {"pack": pack, "label": label})
    return {"charge": charge_id, "packed": done["pack"]}


@workflow
async def fails(ctx: Context) -> None:
    raise ValueError("no tea\nleft")


@workflow
async def grumbles(ctx: Context) -> str:
    ctx.log.warning("no tea")
    return "done"


@workflow
async def says(ctx: Context, what: str) -> None:
    raise ValueError(what)


@workflow
async def echoes(ctx: Context, what: str) -> dict[str, str]:
    await ctx.step(what, charge, what)
    return {what: what}


@workflow
async def mistakes(ctx: Context) -> None:
    await ctx.sleep("", 1)


@workflow
async def claims(ctx: Context, claim: str) -> dict[str, object]:
    ctx.reference = claim
    ctx.state["asked"] = 1
    ctx.progress(1, 2, "asking\nthe clerks")
    done = await ctx.task(
        "approve", payload={"claim": claim}, roles=["clerk", "manager"], type=bool, timeout=timedelta(days=2)
    )
    ctx.progress(2, 2)
    return {"approved": done.value, "by": done.by}


@workflow
async def calls(ctx: Context, children: int) -> None:
    async def call(ctx: Context, number: int) -> None:
        await ctx.child("c", "elsewhere", number)

    await ctx.map("many", call, range(children))


@workflow
async def refused(ctx: Context) -> None:
    async def pay() -> None:
        raise ConnectionError("no tea\nleft")

    await ctx.step(pay, backoff=Backoff(initial=60))


@workflow
async def kills_once(ctx: Context, marker: str) -> str:
    async def kill() -> None:
        if not Path(marker).exists():  # noqa: ASYNC240  # one look
            Path(marker).touch()  # noqa: ASYNC240  # and one touch
            os.kill(os.getpid(), signal.SIGKILL)

    await ctx.step(kill)
    return "survived"


@workflow
async def exits_once(ctx: Context, marker: str) -> str:
    async def leave() -> None:
        if not Path(marker).exists():  # noqa: ASYNC240  # one look
            Path(marker).touch()  # noqa: ASYNC240  # and one touch
            os._exit(3)

    await ctx.step(leave)
    return "survived"


@workflow
async def takes_its_time(ctx: Context, folder: str) -> str:
    async def wait() -> str:
        Path(folder, "begun").touch()  # noqa: ASYNC240  # one touch
        while not Path(folder, "go").exists():  # noqa: ASYNC240, ASYNC110  # a test makes it, in another process
            await anyio.sleep(0.01)
        return "done"

    return await ctx.step(wait)


class Reversed:
    """A codec."""

    def encode(self, data: bytes, /) -> bytes:
        return data[::-1] + b"!"

    def decode(self, data: bytes, /) -> bytes:
        if not data.endswith(b"!"):
            raise ValueError("not reversed")
        return data[-2::-1]


reverse = Reversed()


codecs = [reverse, plain]
no_codecs = [reverse, 3]


def make_codec() -> Reversed:
    return reverse


def no_codec() -> Reversed:
    raise RuntimeError("no key")


async def loop_here() -> str:
    return type(asyncio.get_running_loop()).__module__


@workflow
async def tells_its_loop(ctx: Context) -> str:
    """On which event loop it runs."""
    return await ctx.step(loop_here)


WORKFLOWS: list[Workflow[Any, Any]] = [
    checkout,
    fails,
    grumbles,
    mistakes,
    kills_once,
    exits_once,
    takes_its_time,
    tells_its_loop,
]
runtime = Runtime(STORE, workflows=WORKFLOWS, lease_ttl=1)


def steady() -> Runtime:
    """Whose workers are not taken for dead when they are slow."""
    return Runtime(STORE, workflows=WORKFLOWS, lease_ttl=60)


def make() -> Runtime:
    return Runtime(STORE, workflows=WORKFLOWS, lease_ttl=1)


def raises() -> Runtime:
    raise RuntimeError("no database")


def no_runtime() -> int:
    return 3
