"""Is a store well: can it be opened, written and read, and how fast is a commit?"""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median
from uuid import uuid4

import anyio
import click

from workflow_sdk import Batch, Driver, StorageError, open_driver

__all__ = ["doctor"]

COMMITS = 50


@dataclass(frozen=True, slots=True)
class _Findings:
    """In seconds."""

    opening: float
    commits: list[float]


@click.command()
@click.argument("store", required=False)
@click.pass_context
def doctor(ctx: click.Context, store: str | None) -> None:
    """Try the STORE: open it, write to it, and time a commit.

    What is written is a row of its own, which is removed again.
    """
    url = store or ctx.obj
    if not isinstance(url, str) or not url:
        raise click.UsageError("which store? Name it, such as sqlite:///app.db, or set WORKFLOW_STORE")
    found = anyio.run(_examine, url)
    middle, slowest = median(found.commits), max(found.commits)
    click.echo(f"opens    yes, in {found.opening * 1000:.1f} ms")
    click.echo("writes   yes")
    click.echo(f"commit   p50 {middle * 1000:.2f} ms, slowest {slowest * 1000:.2f} ms, of {len(found.commits)}")


async def _examine(url: str) -> _Findings:
    began = time.perf_counter()
    async with aclosing(await open_driver(url)) as driver:
        opening = time.perf_counter() - began
        # No tuple of `fdb.tuple`, as every key of the engine is: it can't be in the way of anything.
        scratch = b"workflow doctor " + uuid4().hex.encode()
        try:
            return _Findings(opening, await _commits(driver, scratch))
        finally:
            with anyio.CancelScope(shield=True):
                await _remove(driver, scratch)


async def _commits(driver: Driver, scratch: bytes) -> list[float]:
    times: list[float] = []
    for _ in range(COMMITS):
        value = uuid4().bytes
        batch = Batch()
        batch.set(scratch, value)
        began = time.perf_counter()
        await driver.commit(batch)
        times.append(time.perf_counter() - began)
        if await driver.get(scratch) != value:
            raise StorageError("the store has committed a row, and does not give it back")
    return times


async def _remove(driver: Driver, scratch: bytes) -> None:
    batch = Batch()
    batch.clear(scratch)
    await driver.commit(batch)
