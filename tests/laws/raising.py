"""What author's code may raise that is no `Exception`, and the places where it may do so."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import anyio
import anyio.lowlevel

from workflow_sdk import Break, Context

Raise = Callable[[], Awaitable[Any]]


class Panic(BaseException):
    """As the bindings of extension modules raise it, and `func_timeout`."""


async def leave() -> NoReturn:
    """As argparse and click do it."""
    sys.exit("no such option")


async def leave_later() -> NoReturn:
    """The same, after others had their turn."""
    await anyio.lowlevel.checkpoint()
    sys.exit(2)


async def panic() -> NoReturn:
    """Something of an extension."""
    raise Panic("index out of bounds")


async def panic_in_a_group() -> None:
    """A task group of its own hands on what one of its tasks has raised."""
    async with anyio.create_task_group() as group:
        group.start_soon(panic)
        group.start_soon(anyio.sleep_forever)


async def cancel_itself() -> None:
    """A function that cancels the task that it runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def cancel_itself_and_fail() -> NoReturn:
    """The same, but it has failed before it is cancelled."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    raise Panic("after all")


async def raise_cancellation() -> NoReturn:
    """A cancellation that nobody has asked for."""
    raise asyncio.CancelledError("by hand")


async def await_what_is_cancelled() -> None:
    """Something that others have cancelled."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@dataclass(frozen=True)
class Raised:
    """Something raised, and how it is recorded."""

    raise_: Raise
    type: str
    only_asyncio: bool = False

    def __str__(self) -> str:
        return self.raise_.__name__


CANCELLED = "asyncio.exceptions.CancelledError"

RAISED = [
    Raised(leave, "SystemExit"),
    Raised(leave_later, "SystemExit"),
    Raised(panic, "tests.laws.raising.Panic"),
    Raised(panic_in_a_group, "BaseExceptionGroup"),
    Raised(cancel_itself, CANCELLED, only_asyncio=True),
    Raised(cancel_itself_and_fail, "tests.laws.raising.Panic", only_asyncio=True),
    Raised(raise_cancellation, CANCELLED, only_asyncio=True),
    Raised(await_what_is_cancelled, CANCELLED, only_asyncio=True),
]


def leave_plainly(*args: object) -> NoReturn:
    """A plain function."""
    sys.exit("no such option")


def panic_plainly(*args: object) -> NoReturn:
    """A plain function."""
    raise Panic("index out of bounds")


async def in_join(ctx: Context, raise_: Raise) -> None:
    """In a branch, beside another one."""

    async def bad(ctx: Context) -> None:
        await raise_()

    async def good(ctx: Context) -> None:
        await ctx.sleep("nap", 1)

    await ctx.join("join", {"bad": bad, "good": good})


async def in_race(ctx: Context, raise_: Raise) -> None:
    """In the only branch of a race."""

    async def bad(ctx: Context) -> None:
        await raise_()

    await ctx.race("race", {"bad": bad})


async def in_map(ctx: Context, raise_: Raise) -> None:
    """In a branch of a map, which is run by a task that others have been run by."""

    async def item(ctx: Context, number: int) -> None:
        if number == 1:
            await raise_()

    await ctx.map("map", item, [0, 1, 2], limit=1)


async def in_loop(ctx: Context, raise_: Raise) -> None:
    """In a turn of a loop."""

    async def turn(ctx: Context, state: int) -> Break[None]:
        await raise_()
        return Break()

    await ctx.loop("loop", turn, 0)


async def in_attempt(ctx: Context, raise_: Raise) -> None:
    """In an attempt."""

    async def fn(ctx: Context) -> None:
        await raise_()

    await ctx.attempt("attempt", fn)


async def in_body(ctx: Context, raise_: Raise) -> None:
    """In the workflow's own function."""
    await raise_()


PLACES = [in_body, in_join, in_race, in_map, in_loop, in_attempt]
