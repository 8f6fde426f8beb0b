"""Steps and branches that the laws are tried with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from workflow_sdk import Context

NAP_SECONDS = 0.02
"""Short, since some tests are about the real clock."""

Branch = Callable[[Context], Awaitable[Any]]


async def give(value: Any) -> Any:
    return value


async def refuse() -> None:
    raise ValueError("no")


async def nap(ctx: Context) -> str:
    await ctx.sleep("nap", NAP_SECONDS)
    return "rested"


async def endless(ctx: Context) -> Any:
    await ctx.listen("endless", "nobody sends this")
