"""How peers are measured: wall time, and the CPU time of this process, of those it started, and of the peer's server.

A scenario of a peer is a coroutine function from a `Setting` to its figures. Each runs in a process of its own.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

import psutil

__all__ = [
    "STEPS_EACH",
    "WORKFLOWS",
    "Figures",
    "Scenario",
    "Setting",
    "Spent",
    "Step",
    "concurrent_costs",
    "costs",
    "grown",
    "repeated",
    "replay_costs",
    "spent",
]

Figures = dict[str, object]
Spent = tuple[float, float]  # wall and CPU, in seconds
RUNS_SECONDS = 8.0
WORKFLOWS, STEPS_EACH = 500, 5


@dataclass(frozen=True)
class Setting:
    """Where a scenario runs."""

    directory: str
    """For files of its own."""
    url: str = ""
    """Of a database to come, or of the server."""
    admin_url: str = ""
    """Of the server, where it has two."""
    mode: str = ""
    """What is set on a new SQLite database."""
    servers: tuple[int, ...] = ()
    """The processes whose CPU time counts, with all they started."""

    def json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Setting:
        """What another process was told."""
        fields = json.loads(text)
        servers = tuple(fields.pop("servers"))
        return cls(**fields, servers=servers)


Scenario = Callable[[Setting], Awaitable[Figures]]


class Step:
    """The step that does nothing, but for noting when it was run."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def __call__(self) -> int:
        """Note the time."""
        self.times.append(time.perf_counter())
        return 1


def _seconds_of(pid: int) -> float:
    """The CPU time of a tree of processes; what has ended counts with its parent."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(each.cpu_times()[:4])
    return total


def spent(setting: Setting) -> Spent:
    """What has been spent so far."""
    ended = os.times()
    own = time.process_time() + ended.children_user + ended.children_system
    return time.perf_counter(), own + sum(_seconds_of(pid) for pid in setting.servers)


def costs(operations: int, runs: Sequence[Spent]) -> Figures:
    """The medians of what runs have taken."""
    return {
        "operations": operations,
        "runs": len(runs),
        "wall_us_per_operation": round(median(wall for wall, _ in runs) / operations * 1e6, 1),
        "cpu_us_per_operation": round(median(cpu for _, cpu in runs) / operations * 1e6, 1),
    }


async def repeated(
    setting: Setting, run: Callable[[int], Awaitable[object]], runs: int = 3, seconds: float = RUNS_SECONDS
) -> list[Spent]:
    """What each run took. The first warms up, and isn't told; slow ones are fewer, but one is told at least."""
    found: list[Spent] = []
    began = time.perf_counter()
    for number in range(runs + 1):
        if len(found) > 1 and time.perf_counter() - began > seconds:
            break
        gc.collect()
        wall, cpu = spent(setting)
        await run(number)
        wall_after, cpu_after = spent(setting)
        found.append((wall_after - wall, cpu_after - cpu))
    return found[1:]


def concurrent_costs(runs: Sequence[Spent]) -> Figures:
    """What many workflows at once cost, and how fast they were together."""
    together = median(wall for wall, _ in runs)
    figures = costs(WORKFLOWS * STEPS_EACH, runs)
    return {**figures, "workflows": WORKFLOWS, "steps_per_s": round(WORKFLOWS * STEPS_EACH / together)}


def replay_costs(entries: int, runs: Sequence[Spent]) -> Figures:
    """What it costs to come back to the end of a history."""
    cpu = median(cpu for _, cpu in runs)
    return {"entries": entries, **costs(entries, runs), "entries_per_cpu_s": round(entries / cpu)}


def grown(times: Sequence[float], lengths: Sequence[int] = (100, 1_000, 10_000)) -> Figures:
    """What a step costs at lengths of its history: the median of the last tenth, and of fifty at least."""
    found: dict[str, float] = {}
    for length in lengths:
        if length <= len(times):
            last = times[length - max(length // 10, 50) : length]
            gaps = [after - before for before, after in pairwise(last)]
            found[str(length)] = round(median(gaps) * 1e6, 1)
    return {"operations": len(times), "runs": 1, "us_per_step": found}
