"""The command that tries a store: can it be opened, written and read, and how fast is that?"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

import anyio
import click

from workflow_sdk import Batch, Client, CodecError, Driver, Status, StorageError, open_driver
from workflow_sdk.cli.options import Given, Store, given_store
from workflow_sdk.cli.output import in_json, safe

COMMITS = 200
TRYING_SECONDS = 5.0
"""How long commits are timed. A slow store is timed over fewer commits."""
COUNTING_SECONDS = 1.0
"""How long instances are counted. After that, the number is a least number."""
PAGE = 100

# Every key of the engine is a tuple of `fdb.tuple`. This is none, so it can't be in the way of any.
PREFIX = b"workflow doctor "
ABANDONED_SECONDS = 3600
COUNTERS = ("conflicts", "retries", "unknown_results")
"""The attributes in which a driver may count."""


@dataclass(frozen=True, slots=True)
class _Times:
    """How long something took, each time."""

    seconds: list[float]

    def at(self, share: float) -> float:
        """How many milliseconds that share of them did not exceed."""
        ordered = sorted(self.seconds)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000

    def __str__(self) -> str:
        return f"p50 {self.at(0.5):.2f} ms, p99 {self.at(0.99):.2f} ms, of {len(self.seconds)}"

    def plain(self) -> dict[str, float]:
        """The same for a program."""
        return {"p50_ms": self.at(0.5), "p99_ms": self.at(0.99), "count": len(self.seconds)}


@dataclass(slots=True)
class _Findings:
    opening: float
    commits: _Times
    reads: _Times
    facts: dict[str, str]
    counters: dict[str, int]
    instances: dict[str, int] = field(default_factory=dict[str, int])
    is_count_whole: bool = True
    instances_problem: str | None = None


@click.command()
@click.argument("store", required=False)
@click.option("--store", "url", metavar="URL", help="The same.")
@click.option("--codec", metavar="MODULE:OBJECT", help="What its values pass through; or in WORKFLOW_CODEC.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
@click.pass_context
def doctor(ctx: click.Context, store: str | None, url: str | None, codec: str | None, as_json: bool) -> None:
    """Try the STORE: open it, write to it, read it, and time that.

    What is written is a row of its own, which is removed again. A file of SQLite that does not exist is an error, as
    for the other commands; with ?mode=rwc in its URL it is made.
    """
    if store is not None and url is not None:
        raise click.UsageError("which store? There are two")
    found = anyio.run(_examine, given_store(cast("Given", ctx.obj), url if store is None else store, codec))
    if as_json:
        click.echo(in_json(_document(found), indent=2))
        return
    for name, text in _lines(found):
        click.echo(f"{name:<10} {safe(text)}")


def _lines(found: _Findings) -> list[tuple[str, str]]:
    lines = [("opens", f"yes, in {found.opening * 1000:.1f} ms"), ("writes", "yes")]
    lines += [("commit", str(found.commits)), ("read", str(found.reads)), *found.facts.items()]
    lines += [(name.replace("_", " "), str(count)) for name, count in found.counters.items()]
    counts = [f"{count} {status}" for status, count in found.instances.items() if count]
    text = ", ".join(counts) or "none"
    if found.instances_problem is not None:
        text = f"can't be read: {found.instances_problem}"
    elif not found.is_count_whole:
        text += ", or more: that took too long"
    return [*lines, ("instances", text)]


def _document(found: _Findings) -> dict[str, Any]:
    return {
        "opening_ms": found.opening * 1000,
        "commit": found.commits.plain(),
        "read": found.reads.plain(),
        **found.facts,
        **found.counters,
        "instances": None if found.instances_problem else found.instances,
        "instances_counted_all": found.is_count_whole and not found.instances_problem,
        "instances_problem": found.instances_problem,
    }


async def _examine(store: Store) -> _Findings:
    began = time.perf_counter()
    async with aclosing(await open_driver(store.url)) as driver:
        opening = time.perf_counter() - began
        await _sweep(driver)
        scratch = PREFIX + int(time.time()).to_bytes(8, "big") + uuid4().bytes
        try:
            commits, reads = await _try(driver, scratch)
        finally:
            with anyio.CancelScope(shield=True):
                await _remove(driver, scratch)
        # Some drivers can tell more of themselves.
        describe: Callable[[], Awaitable[dict[str, str]]] | None = getattr(driver, "describe", None)
        facts = {} if describe is None else await describe()
        counters = {name: value for name in COUNTERS if isinstance(value := getattr(driver, name, None), int)}
        found = _Findings(opening, commits, reads, facts, counters)
        try:
            await _count(driver, store, found)
        except CodecError as error:
            # Nothing is wrong with the store: we were not given the codec of its values.
            found.instances_problem = str(error)
        return found


async def _try(driver: Driver, key: bytes) -> tuple[_Times, _Times]:
    commits: list[float] = []
    reads: list[float] = []
    until = time.perf_counter() + TRYING_SECONDS
    while len(commits) < COMMITS and (not commits or time.perf_counter() < until):
        value = uuid4().bytes
        batch = Batch()
        batch.set(key, value)
        began = time.perf_counter()
        await driver.commit(batch)
        commits.append(time.perf_counter() - began)
        began = time.perf_counter()
        read = await driver.get(key)
        reads.append(time.perf_counter() - began)
        if read != value:
            raise StorageError("the store has committed a row, and does not give it back")
    return _Times(commits), _Times(reads)


async def _remove(driver: Driver, key: bytes) -> None:
    batch = Batch()
    batch.clear(key)
    await driver.commit(batch)


async def _sweep(driver: Driver) -> None:
    """Remove what a `doctor` that was killed has left."""
    old = PREFIX, PREFIX + (int(time.time()) - ABANDONED_SECONDS).to_bytes(8, "big")
    if await driver.scan(*old, limit=1):
        batch = Batch()
        batch.clear_range(*old)
        await driver.commit(batch)


async def _count(driver: Driver, store: Store, found: _Findings) -> None:
    until = time.perf_counter() + COUNTING_SECONDS
    async with Client(driver, codec=store.codec) as client:
        for status in Status:
            found.instances[status.value] = 0
            cursor: str | None = None
            while True:
                page = await client.list(status=status, limit=PAGE, cursor=cursor)
                found.instances[status.value] += len(page.items)
                cursor = page.cursor
                if cursor is None:
                    break
                if time.perf_counter() >= until:
                    found.is_count_whole = False
                    break
