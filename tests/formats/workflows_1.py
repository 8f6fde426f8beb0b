"""The workflows that wrote `format_1.json`. Their stored instances go on with this code: it is never changed either."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from workflow_sdk import (
    Backoff,
    Break,
    Context,
    Continue,
    JoinError,
    ListenTimeoutError,
    RollbackError,
    StepError,
    workflow,
)

RAN: list[str] = []
"""What steps and handlers have done."""
MENDED: list[str] = []
"""Names of steps and handlers that no longer fail."""


@dataclass
class Order:
    id: str
    lines: list[tuple[str, int]]


class Declined(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


def note(name: str) -> str:
    RAN.append(name)
    return name


def fail(name: str) -> str:
    RAN.append(name)
    if name not in MENDED:
        raise Declined(51)
    return name


async def refund(reason: str, result: str) -> None:
    fail(f"refund {result} {reason}")


NEVER = Backoff(initial=86_400, factor=1, maximum=86_400, jitter=0)


async def pick(ctx: Context, order: Order) -> dict[str, Any]:
    """Finished operations of every kind."""
    found: dict[str, Any] = {"uuid": str(ctx.uuid()), "first": order.lines[0]}
    await ctx.step("before", note, "before", rollback=partial(refund, "late"))
    await ctx.checkpoint("no return")
    found["charged"] = await ctx.step("charge/card", note, "charge", rollback=partial(refund, "failed"))
    await ctx.step("ship", note, "ship", rollback=lambda result: note(f"unship {result}"))
    try:
        await ctx.step("declined", fail, "declined", retries=0)
    except StepError as error:
        found["declined"] = error.error.message
    found["version"] = await ctx.version("version", 3)
    found["early"] = await ctx.listen("early")
    found["missing"] = await ctx.listen("missing", ["missing", "other"], timeout=5, default="none")
    try:
        await ctx.listen("too late", timeout=5)
    except ListenTimeoutError as error:
        found["too late"] = str(error)
    found["pair"] = await ctx.listen_many("pair", count=2, timeout=60)
    await ctx.sleep("nap", 60)
    return found


async def nest(ctx: Context) -> dict[str, Any]:
    """Finished scopes of every kind."""

    async def turn(ctx: Context, n: int) -> Continue[int] | Break[str]:
        await ctx.step(f"turn {n}", note, f"turn {n}")
        return Break("three turns") if n == 2 else Continue(n + 1)

    async def good(ctx: Context) -> str:
        return await ctx.step("good", note, "good", rollback=lambda result: note(f"undo {result}"))

    async def bad(ctx: Context) -> str:
        return await ctx.step("bad", fail, "bad", retries=0)

    async def slow(ctx: Context) -> str:
        await good(ctx)
        await ctx.sleep("slow", 600)
        return "slow"

    async def quick(ctx: Context) -> str:
        await ctx.sleep("quick", 60)
        return "quick"

    async def double(ctx: Context, n: int) -> int:
        return await ctx.step("double", lambda: n * 2)

    found: dict[str, Any] = {"loop": await ctx.loop("loop", turn, 0, commit_interval=2, history_keep=1)}
    try:
        await ctx.join("join", {"good": good, "bad": bad})
    except JoinError as error:
        found["join"] = list(error.errors)
    found["fine"] = await ctx.join("fine", {"good": good})
    found["map"] = await ctx.map("map", double, [1, 2])
    found["race"] = (await ctx.race("race", {"slow": slow, "quick": quick})).winner
    found |= await failures(ctx, bad)
    found["attempts"] = [(await ctx.attempt("good try", good)).ok, (await ctx.attempt("bad try", bad)).ok]
    return found


async def failures(ctx: Context, bad: Callable[[Context], Awaitable[str]]) -> dict[str, Any]:
    """Failed scopes of every kind."""

    async def race(ctx: Context) -> Any:
        return await ctx.race("bad race", {"a": bad, "b": bad})

    async def item(ctx: Context, n: int) -> str:
        return str(n) if n == 0 else await bad(ctx)

    async def map_(ctx: Context) -> Any:
        return await ctx.map("bad map", item, [0, 1])

    async def turn(ctx: Context, n: int) -> Continue[int]:
        return Continue(1) if n == 0 else Continue(len(await bad(ctx)))

    async def loop(ctx: Context) -> Any:
        return await ctx.loop("bad loop", turn, 0)

    scopes = {"race": race, "map": map_, "loop": loop}
    return {f"bad {name}": (await ctx.attempt(f"try {name}", fn)).ok for name, fn in scopes.items()}


async def open_branches(ctx: Context) -> dict[str, Any]:
    """Operations of every kind that are under way."""

    async def sleeps(ctx: Context) -> str:
        await ctx.sleep("sleep", 86_400)
        return "slept"

    async def retries(ctx: Context) -> str:
        return await ctx.step("retry", fail, "retry", backoff=NEVER)

    async def listens(ctx: Context) -> str:
        return await ctx.listen("go", ["go", "gone"], type=str, timeout=86_400, default="late")

    async def turn(ctx: Context, n: int) -> Continue[int] | Break[int]:
        await ctx.step(f"count {n}", note, f"count {n}")
        if n == 3:
            await ctx.listen("turn")
        return Break(n) if n == 4 else Continue(n + 1)

    async def loops(ctx: Context) -> int:
        return await ctx.loop("loop", turn, 0, commit_interval=2)

    async def takes(ctx: Context) -> str:
        await ctx.listen("bait")
        await ctx.listen("never")
        return "never"

    async def wins(ctx: Context) -> str:
        return await ctx.listen("win", type=str)

    async def races(ctx: Context) -> list[str]:
        won = await ctx.race("race", {"takes": takes, "wins": wins})
        return [won.winner, won.value, await ctx.listen("bait")]

    async def tries(ctx: Context) -> bool:
        return (await ctx.attempt("try", listens_inside)).ok

    async def listens_inside(ctx: Context) -> int:
        return await ctx.listen("inside", type=int)

    async def waits(ctx: Context, n: int) -> int:
        return n if n == 0 else await ctx.listen("number", type=int)

    async def maps(ctx: Context) -> list[int]:
        return await ctx.map("map", waits, [0, 1])

    async def done(ctx: Context) -> str:
        return await ctx.step("done", note, "done")

    branches: dict[str, Any] = {"sleeps": sleeps, "retries": retries, "listens": listens, "loops": loops}
    branches |= {"races": races, "tries": tries, "maps": maps, "done/100%": done}
    return await ctx.join("open", branches)


@workflow(name="formats.everything", version=2)
async def everything(ctx: Context, order: Order) -> dict[str, Any]:
    found = await pick(ctx, order)
    found |= await nest(ctx)
    found |= await open_branches(ctx)
    found["random"] = ctx.random.randrange(10**9)
    return found


@workflow(name="formats.unwinds")
async def unwinds(ctx: Context) -> None:
    for name in ("one", "two", "three"):
        await ctx.step(name, note, name, rollback=partial(refund, "of failure"))
    raise RollbackError("enough")


@workflow(name="formats.ends")
async def ends(ctx: Context, how: str) -> tuple[str, int]:
    number = await ctx.step("number", lambda: 7)
    if how == "failed":
        raise Declined(number)
    if how == "stuck":
        await ctx.listen("number", type=int)
        await ctx.sleep("number", 5)  # the name is taken
    if how == "sleeping":
        await ctx.sleep("nap", 3600)
    if how == "crashed":
        await ctx.step("crashes", note, "crashes")
    return how, number
