"""The process of a scenario, and those that a scenario starts: what a cold start or a restart costs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from statistics import median

from tests.benchmarks.peers.measuring import Figures, Scenario, Setting

__all__ = ["cold_start", "ended", "last_line", "main"]

STARTS = 5
_TELL = "import time; print(time.monotonic())"


async def last_line(*arguments: str) -> str:
    """Run this interpreter, and tell the last line that it printed."""
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{arguments[:3]} ended with {process.returncode}"
    return output.decode().strip().rpartition("\n")[2]


async def cold_start(setting: Setting, package: str, module: str) -> Figures:
    """From the start of a process: the interpreter alone, with the import, until a first workflow is done.

    *module* prints the monotonic time when it is: what it does to end in good order doesn't count.
    """
    bare = await _seconds("-c", _TELL)
    imported = await _seconds("-c", f"import {package}; {_TELL}")
    first = await _seconds("-m", module, "first", setting.json())
    return {
        "operations": 1,
        "runs": STARTS,
        "interpreter_s": round(bare, 3),
        "import_s": round(imported - bare, 3),
        "first_workflow_s": round(first, 3),
    }


async def _seconds(*arguments: str) -> float:
    """Until a new process tells the time."""
    took: list[float] = []
    for _ in range(STARTS + 1):
        began = time.monotonic()
        took.append(float(await last_line(*arguments)) - began)
    # The first time warms up: the database is made, the files are in memory.
    return median(took[1:])


def ended(line: str) -> None:
    """Print a line and be gone at once, as in a crash."""
    print(line, flush=True)
    os._exit(0)


def main(scenarios: Mapping[str, Scenario], commands: Mapping[str, Callable[[Setting], Awaitable[None]]]) -> None:
    """`MODULE NAME SETTING`: print the figures of a scenario; or do what a scenario needs another process for.

    It ends at once: what waits for a month wouldn't, and what a peer does to end in good order isn't measured.
    """
    name, setting = sys.argv[1], Setting.of_json(sys.argv[2])

    async def run() -> None:
        if name in commands:
            await commands[name](setting)
        else:
            ended(json.dumps(await scenarios[name](setting)))

    async def run_or_fail() -> None:
        try:
            await run()
        except Exception:  # noqa: BLE001 - it is told, and nothing that still runs keeps the process
            traceback.print_exc()
            os._exit(1)

    asyncio.run(run_or_fail())
