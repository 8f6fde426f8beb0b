"""A module as a user of `workflow worker` has one."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from workflow_sdk import Context, Runtime, Workflow, workflow

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
async def slips(ctx: Context) -> None:
    await ctx.sleep("", 1)


@workflow
async def kills_once(ctx: Context, marker: str) -> str:
    async def kill() -> None:
        if not Path(marker).exists():  # noqa: ASYNC240  # one look
            Path(marker).touch()  # noqa: ASYNC240  # and one touch
            os.kill(os.getpid(), signal.SIGKILL)

    await ctx.step(kill)
    return "survived"


WORKFLOWS: list[Workflow[Any, Any]] = [checkout, fails, slips, kills_once]
runtime = Runtime(STORE, workflows=WORKFLOWS, lease_ttl=1)


def make() -> Runtime:
    return Runtime(STORE, workflows=WORKFLOWS, lease_ttl=1)


def raises() -> Runtime:
    raise RuntimeError("no database")


def no_runtime() -> int:
    return 3
