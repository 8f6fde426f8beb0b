"""The commands that find out what is wrong: with a store, or with code for the instances that are under way in it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import anyio
import click

from workflow_sdk import (
    Batch,
    Client,
    CodecError,
    Driver,
    ReplayReport,
    Runtime,
    Status,
    StorageError,
    Workflow,
    dump_histories,
    open_driver,
    replay_check,
)
from workflow_sdk.cli.options import Codecs, codec_option, given_codec, given_store, made, named, store_option
from workflow_sdk.cli.output import EXIT_FAILED, facts, in_json, safe

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


# -- A store: can it be opened, written and read, and how fast is that? -----------------------------------------------


@dataclass(frozen=True, slots=True)
class _Times:
    """How many milliseconds half of several tries did not exceed, and all but a hundredth of them."""

    p50_ms: float
    p99_ms: float
    count: int

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms, of {self.count}"


def _times(seconds: list[float]) -> _Times:
    ordered = sorted(seconds)
    p50, p99 = (ordered[math.ceil(share * len(ordered)) - 1] * 1000 for share in (0.5, 0.99))
    return _Times(p50, p99, len(ordered))


@click.command()
@click.argument("store", required=False)
@click.option("--store", "url", metavar="URL", help="The same.")
@codec_option
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def doctor(store: str | None, url: str | None, codec: str | None, as_json: bool) -> None:
    """Try the STORE: open it, write to it, read it, and time that.

    What is written is a row of its own, which is removed again. A file of SQLite that does not exist is an error, as
    for the other commands; with ?mode=rwc in its URL it is made.
    """
    if store is not None and url is not None:
        raise click.UsageError("which store? There are two")
    found = anyio.run(_examine, *given_store(url if store is None else store, codec))
    if as_json:
        click.echo(in_json(found, indent=2))
        return
    for name, text in _lines(found):
        click.echo(f"{name:<10} {safe(text)}")


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for a person."""
    opening, instances = found.pop("opening_ms"), found.pop("instances")
    is_whole, problem = found.pop("instances_counted_all"), found.pop("instances_problem")
    lines = [("opens", f"yes, in {opening:.1f} ms"), ("writes", "yes")]
    lines += [(name.replace("_", " "), str(fact)) for name, fact in found.items()]
    if problem is not None:
        return [*lines, ("instances", f"can't be read: {problem}")]
    text = ", ".join(f"{count} {status}" for status, count in instances.items() if count) or "none"
    return [*lines, ("instances", text if is_whole else f"{text}, or more: that took too long")]


async def _examine(url: str, codecs: Codecs | None) -> dict[str, Any]:
    """What `--json` prints."""
    began = time.perf_counter()
    async with aclosing(await open_driver(url)) as driver:
        opening = time.perf_counter() - began
        # What a `doctor` that was killed has left.
        old = PREFIX, PREFIX + (int(time.time()) - ABANDONED_SECONDS).to_bytes(8, "big")
        if await driver.scan(*old, limit=1):
            await _remove(driver, *old)
        scratch = PREFIX + int(time.time()).to_bytes(8, "big") + uuid4().bytes
        try:
            commits, reads = await _try(driver, scratch)
        finally:
            with anyio.CancelScope(shield=True):
                await _remove(driver, scratch, scratch + b"\0")
        found: dict[str, Any] = {"opening_ms": opening * 1000, "commit": commits, "read": reads}
        # Some drivers can tell more of themselves.
        describe: Callable[[], Awaitable[dict[str, str]]] | None = getattr(driver, "describe", None)
        if describe is not None:
            found |= await describe()
        found |= {name: value for name in COUNTERS if isinstance(value := getattr(driver, name, None), int)}
        counts, is_whole, problem = None, False, None
        try:
            counts, is_whole = await _count(driver, codecs)
        except CodecError as error:
            # Nothing is wrong with the store: we were not given the codec of its values.
            problem = str(error)
        return found | {"instances": counts, "instances_counted_all": is_whole, "instances_problem": problem}


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
    return _times(commits), _times(reads)


async def _remove(driver: Driver, begin: bytes, end: bytes) -> None:
    batch = Batch()
    batch.clear_range(begin, end)
    await driver.commit(batch)


async def _count(driver: Driver, codecs: Codecs | None) -> tuple[dict[str, int], bool]:
    """How many instances have each status, and whether these are all."""
    counts = dict.fromkeys((status.value for status in Status), 0)
    is_whole = True
    until = time.perf_counter() + COUNTING_SECONDS
    async with Client(driver, codec=codecs) as client:
        for status in Status:
            cursor: str | None = None
            while True:
                page = await client.list(status=status, limit=PAGE, cursor=cursor)
                counts[status.value] += len(page)
                cursor = page.cursor
                if cursor is None:
                    break
                if time.perf_counter() >= until:
                    is_whole = False
                    break
    return counts, is_whole


# -- Code: does it still fit the instances that are under way, in a store or in a dump? -------------------------------


_finished_option = click.option(
    "--finished", type=click.IntRange(min=0), default=0, metavar="N", help="And N finished ones of each workflow."
)


@click.command()
@click.argument("target", metavar="MODULE:WORKFLOWS")
@_finished_option
@click.option("--dump", type=click.Path(dir_okay=False, path_type=Path), help="What `workflow dump` has written.")
@store_option
@codec_option
@click.option("--json", "as_json", is_flag=True, help="For a program.")
def check(target: str, finished: int, dump: Path | None, store: str | None, codec: str | None, as_json: bool) -> int:
    """Replay what is under way against the code at hand.

    MODULE:WORKFLOWS names a Runtime, a workflow, several, or a function that returns one of these. Nothing is executed,
    and nothing is written. The exit code is 1 if there is an instance that would not go on with this code, or one whose
    workflow a Runtime that was named does not have.
    """
    found = made(target, named(target, "app:runtime"), "workflows")
    runtime = found if isinstance(found, Runtime) else None
    workflows = _workflows(target, found if runtime is None else runtime.workflows)
    handlers = () if runtime is None else runtime.handlers
    source, codecs = _source(dump, store, codec)
    report = anyio.run(lambda: replay_check(source, workflows, finished=finished, codec=codecs, handlers=handlers))
    click.echo(in_json(_plain(report)) if as_json else "\n".join(map(safe, str(report).splitlines())))
    # A runtime is all that will run: nobody takes an instance of a workflow that it does not know.
    left_out = runtime is not None and bool(report.unknown)
    return EXIT_FAILED if left_out or not report.ok else 0


def _source(dump: Path | None, store: str | None, codec: str | None) -> tuple[str | Path, Codecs | None]:
    """The dump or the store that is read, and the codec of its values."""
    if dump is None:
        return given_store(store, codec)
    if store is not None:
        raise click.UsageError("--dump takes the place of a store: give one of the two")
    return dump, given_codec(codec)  # values in a dump are as the store has them


def _workflows(target: str, found: Any) -> list[Workflow[Any, Any]]:
    several = list(cast("Iterable[Any]", found)) if isinstance(found, (list, tuple, set)) else [found]
    if not all(isinstance(flow, Workflow) for flow in several):
        kind = type(several[0]).__name__ if len(several) == 1 else "several things"
        raise click.UsageError(f"{target} is {kind!r}: no workflows, no Runtime, and returns none")
    return several


def _plain(report: ReplayReport) -> dict[str, object]:
    problems = [{"id": problem.pop("instance_id"), **problem} for problem in map(facts, report.problems)]
    return facts(report) | {"problems": problems}


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_finished_option
@store_option
@codec_option
def dump(file: Path, finished: int, store: str | None, codec: str | None) -> None:
    """Write what is under way to FILE, for `workflow check --dump`.

    It has all that is recorded, with inputs and results.
    """
    url, codecs = given_store(store, codec)
    count = anyio.run(lambda: dump_histories(url, file, finished=finished, codec=codecs))
    click.echo(f"{count} {'history' if count == 1 else 'histories'}")
