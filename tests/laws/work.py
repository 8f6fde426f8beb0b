"""How much is done, counted in lines of ours that are gone through: the same on every machine and under any load.

A loop counts once for each turn, in a comprehension too. What goes round within one call of C (`list.index`, `in` of a
list) is not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import workflow_sdk

__all__ = ["grows_like_a_square", "lines_of"]

OURS = str(Path(workflow_sdk.__file__).parent)
CLOCK = f"{OURS}/testing/"

SMALL, LARGE = 100, 300
MARGIN = 1.2
TRIES = 3


async def lines_of(run: Callable[[], Awaitable[object]]) -> int:
    """How many lines of ours are gone through until `run` has ended."""
    lines = 0

    def local(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
        return local

    def calls(frame: FrameType, event: str, argument: object) -> Any:
        # Event loops and stores take turns by the time on the wall; the virtual clock looks round until all is quiet.
        file = frame.f_code.co_filename
        return local if file.startswith(OURS) and not file.startswith(CLOCK) else None

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        await run()
    finally:
        sys.settrace(before)
    return lines


async def grows_like_a_square(run: Callable[[int], Awaitable[object]]) -> str:
    """What it costs, if three times as much costs clearly more than three times as much; nothing if it does not.

    Who comes first in a race of tasks, and so how often something is tried, is not always the same: it is looked at
    again before it is said.
    """
    await run(3)  # what is done once is done by now: imports, caches
    found: list[str] = []
    for _ in range(TRIES):
        small, large = await lines_of(lambda: run(SMALL)), await lines_of(lambda: run(LARGE))
        if large <= MARGIN * LARGE / SMALL * small:
            return ""
        found.append(f"{small} lines for {SMALL}, {large} for {LARGE}")
    return "; ".join(found)
