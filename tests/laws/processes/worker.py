"""A process that runs workflows: `python -m tests.laws.processes.worker URL LEASE_TTL [FILE_BYTES_MAX] [USER]`.

What its runtime logs goes to stderr. A store that can't be opened is one line there, and the exit code 1.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from tests.ledger import add
from workflow_sdk import Break, Context, Continue, Runtime, StorageError, workflow

__all__ = ["MESSAGES", "TURNS", "holds", "mixes", "stores"]

TURNS = 7
MESSAGES = 3
COMMIT_INTERVAL = 3


def note(log: str, what: str) -> str:
    """A step: one more line in a file, for good."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{what}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    return what


@workflow
async def mixes(ctx: Context, log: str) -> dict[str, Any]:
    """Something of everything; each step notes a name of its own."""
    name = ctx.instance_id

    async def branch(ctx: Context, number: int) -> list[str]:
        first = await ctx.step("first", note, log, f"{name} join {number} first")
        await ctx.sleep("nap", 0.01 * number)
        return [first, await ctx.step("second", note, log, f"{name} join {number} second")]

    async def turn(ctx: Context, state: int) -> Continue[int] | Break[int]:
        await ctx.step("turn", note, log, f"{name} turn {state}")
        await ctx.transact("add", add, f"{name} turns")
        return Continue(state + 1) if state + 1 < TURNS else Break(state + 1)

    async def hear(ctx: Context, heard: list[int]) -> Continue[list[int]] | Break[list[int]]:
        heard = [*heard, await ctx.listen("m", type=int)]
        await ctx.step("heard", note, log, f"{name} heard {heard[-1]}")
        return Continue(heard) if len(heard) < MESSAGES else Break(heard)

    await ctx.step("begin", note, log, f"{name} begin")
    joined = await ctx.join("join", {f"b{number}": partial(branch, number=number) for number in range(3)})
    turns = await ctx.loop("turns", turn, 0, commit_interval=COMMIT_INTERVAL)
    await ctx.sleep("nap", 0.02)
    heard = await ctx.loop("hear", hear, [], commit_interval=COMMIT_INTERVAL)
    amount = await ctx.transact("end", add, f"{name} end")
    return {"joined": joined, "turns": turns, "heard": heard, "amount": amount}


def weighing(log: str, number: int, size: int) -> bytes:
    """A step with a large result. At the number in the file beside the log, it waits until that file is gone."""
    gate = Path(f"{log}.gate")
    with suppress(FileNotFoundError):
        while number >= int(gate.read_text()):
            time.sleep(0.005)
    note(log, str(number))
    return bytes([number]) * size


@workflow
async def stores(ctx: Context, given: tuple[str, int, int]) -> list[int]:
    """So many steps of so many bytes, each with a number in a transaction beside it."""
    log, steps, size = given
    found: list[int] = []
    for number in range(steps):
        value = await ctx.step(f"step {number}", weighing, log, number, size)
        assert value == bytes([number]) * size
        found.append(await ctx.transact(f"add {number}", add, "stored"))
    return found


@workflow
async def holds(ctx: Context, given: tuple[str, str]) -> int:
    """A transaction that does not end before there is a file."""
    log, go_on = given

    def hold(transaction: Any) -> int:
        amount = add(transaction, "held")
        note(log, "held")
        while not Path(go_on).exists():
            time.sleep(0.005)
        return amount

    return await ctx.transact("hold", hold)


def limit(arguments: list[str]) -> None:
    """Limit the process as it is asked for: its files, and who it is."""
    if arguments and int(arguments[0]):
        # SQLite is to be told of it as of any other failure.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(arguments[0]), resource.RLIM_INFINITY))
    if len(arguments) > 1:
        os.setgroups([])
        os.setgid(int(arguments[1]))
        os.setuid(int(arguments[1]))


async def main(url: str, ttl: float, *arguments: str) -> int:
    """Until a signal comes."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    limit(list(arguments))
    try:
        async with Runtime(url, workflows=[mixes, stores, holds], lease_ttl=ttl, grace=2) as runtime:
            return await runtime.serve()
    except StorageError as error:
        print(f"StorageError: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(anyio.run(main, sys.argv[1], float(sys.argv[2]), *sys.argv[3:]))
