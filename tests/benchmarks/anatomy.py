"""`python -m tests.benchmarks.anatomy`: what a step costs, part by part, as a table in Markdown.

The engine's own parts are sampled: by CPU time, whose code it is that runs. What SQLite adds is taken apart by leaving
something out: the flush to the disk, the statements, the way to the thread and back. Where valgrind is installed, the
instructions of a step are counted, which no other load disturbs.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import FrameType

from tests.benchmarks.scenarios import sequential
from workflow_sdk import open_driver, run_workflow

__all__ = ["sampled"]

STEPS, ROUNDS = 2000, 150
SAMPLE_SECONDS = 0.001
COMMITS = 1500
COUNTED = 2000

STORE = "the store in memory"
PARTS = (
    ("the value as bytes (codec)", r"workflow_sdk/values/"),
    ("records: name, entry, count of commits", r"workflow_sdk/rows/(wire|entries|instance)\.py"),
    ("keys and names", r"workflow_sdk/(journal/names|rows/(location|keys))\.py|fdb/tuple"),
    (
        "what has changed, as a batch",
        r"workflow_sdk/(journal/(journal|unwritten)|instance/(flushing|staging)|driver)\.py",
    ),
    ("the call: options, checks, place in the scope", r"workflow_sdk/(context|definitions|operations/|rows/)"),
    ("the run around it: halted, clock, turns", r"workflow_sdk/(instance|changes|worker)/"),
    (STORE, r"workflow_drivers/|sortedcontainers"),
    ("event loop", r"asyncio/|anyio/|sniffio/|selectors\.py"),
    ("the workflow and its step", r"tests/benchmarks/"),
)
"""Whose code it is, by its file: the first that fits."""


def _part(frame: FrameType | None) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        for name, pattern in PARTS:
            if re.search(pattern, file):
                return name
        frame = frame.f_back
    return "other"


async def sampled() -> dict[str, float]:
    """Microseconds of a step on the store in memory, by part."""
    found: Counter[str] = Counter()

    def sample(number: int, frame: FrameType | None) -> None:
        found[_part(frame)] += 1

    driver = await open_driver("memory://")
    await run_workflow(sequential, STEPS, driver=driver)
    wall: list[float] = []
    for _ in range(9):
        began = time.perf_counter()
        await run_workflow(sequential, STEPS, driver=driver)
        wall.append((time.perf_counter() - began) / STEPS * 1e6)
    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    for _ in range(ROUNDS):
        await run_workflow(sequential, STEPS, driver=driver)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    await driver.aclose()
    total = found.total()
    return {name: median(wall) * found[name] / total for name, _ in (*PARTS, ("other", "")) if found[name]}


def _commit(directory: Path, synchronous: str) -> Callable[[], None]:
    """One transaction as a step makes it, in a file of its own."""
    connection = sqlite3.connect(directory / f"{synchronous}.db", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("CREATE TABLE IF NOT EXISTS entry (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
    cursor, number = connection.cursor(), 0

    def commit() -> None:
        nonlocal number
        number += 1
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("SELECT value FROM entry WHERE key = ?", (b"lease",)).fetchone()
        for key in (b"name %d" % number, b"entry %d" % number, b"count"):
            cursor.execute(
                "INSERT INTO entry VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, b"v" * 40),
            )
        cursor.execute("COMMIT")

    return commit


def _each(commit: Callable[[], None]) -> float:
    """Microseconds of one call, the median of some."""
    took: list[float] = []
    for _ in range(COMMITS):
        began = time.perf_counter()
        commit()
        took.append(time.perf_counter() - began)
    return median(took) * 1e6


async def _on_sqlite(url: str) -> float:
    driver = await open_driver(url)
    took: list[float] = []
    for _ in range(6):
        began = time.perf_counter()
        await run_workflow(sequential, COMMITS, driver=driver)
        took.append((time.perf_counter() - began) / COMMITS * 1e6)
    await driver.aclose()
    return median(took[1:])


async def sqlite(engine: float) -> dict[str, float]:
    """Microseconds that a step takes on SQLite, and what it consists of; given what the engine takes of it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        normal, full = _each(_commit(directory, "NORMAL")), _each(_commit(directory, "FULL"))
        whole = await _on_sqlite(f"sqlite:///{name}/f.db")
        here = await _on_sqlite(f"sqlite:///{name}/n.db?synchronous=normal")
        away = await _on_sqlite(f"sqlite:///{name}/t.db?synchronous=normal&inline=no")
        return {
            "the engine, as above, without its store": engine,
            "the statements of the transaction": normal,
            "the driver around them: its queue, two turns of the event loop": here - normal - engine,
            "the flush to the disk (synchronous=full)": full - normal,
            "**all**, measured as a whole": whole,
            "where it is made in a thread: the way there and back, and what is cold afterwards": away - here,
        }


def instructions() -> int | None:
    """Machine instructions of a step on the store in memory; None without valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    counts: list[int] = []
    for steps in (COUNTED, 2 * COUNTED):
        command = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m"]
        run = subprocess.run(
            [*command, "tests.benchmarks.anatomy", "run", str(steps)], capture_output=True, text=True, check=True
        )
        match = re.search(r"Collected : (\d+)", run.stderr)
        assert match is not None, run.stderr
        counts.append(int(match[1]))
    return (counts[1] - counts[0]) // COUNTED


async def _run(steps: int) -> None:
    await run_workflow(sequential, steps, driver=await open_driver("memory://"))


def _table(title: str, rows: dict[str, float]) -> None:
    print(f"| {title} | µs |\n|---|---:|")
    for name, micros in rows.items():
        print(f"| {name} | {micros:.1f} |")
    print()


def main() -> None:
    """Print it all."""
    if sys.argv[1:2] == ["run"]:
        asyncio.run(_run(int(sys.argv[2])))
        return
    parts = asyncio.run(sampled())
    engine = sum(micros for name, micros in parts.items() if name != STORE)
    _table("a step in memory", {**parts, "**all**": sum(parts.values())})
    _table("a step on SQLite", asyncio.run(sqlite(engine)))
    counted = instructions()
    print(
        "no valgrind, no count of instructions" if counted is None else f"{counted:,} instructions for a step in memory"
    )


if __name__ == "__main__":
    main()
