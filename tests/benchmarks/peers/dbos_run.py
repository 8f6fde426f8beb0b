"""What is measured of DBOS Transact: `python -m tests.benchmarks.peers.dbos_run SCENARIO SETTING`."""

from __future__ import annotations

import asyncio
import json
import time

from dbos import DBOS, SetWorkflowID

from tests.benchmarks.peers import dbos_app as app
from tests.benchmarks.peers.measuring import (
    STEPS_EACH,
    WORKFLOWS,
    Figures,
    Setting,
    Spent,
    concurrent_costs,
    costs,
    grown,
    repeated,
    replay_costs,
)
from tests.benchmarks.peers.processes import cold_start, ended, last_line, main
from tests.benchmarks.peers.waits import asked, parked

__all__ = ["COMMANDS", "SCENARIOS"]

MODULE = "tests.benchmarks.peers.dbos_run"


async def sequential(setting: Setting) -> Figures:
    """Steps, one after the other."""
    async with app.launched(setting):
        return costs(1000, await repeated(setting, lambda _: app.sequential(1000)))


async def join(setting: Setting) -> Figures:
    """Steps side by side."""
    async with app.launched(setting):
        return costs(1000, await repeated(setting, lambda _: app.joining(1000)))


async def concurrent(setting: Setting) -> Figures:
    """Many workflows at once."""

    async def one() -> int:
        handle = await DBOS.start_workflow_async(app.sequential, STEPS_EACH)
        return int(await handle.get_result())

    async def run(_: int) -> None:
        await asyncio.gather(*[one() for _ in range(WORKFLOWS)])

    async with app.launched(setting):
        return concurrent_costs(await repeated(setting, run))


async def growth(setting: Setting) -> Figures:
    """Many steps."""
    async with app.launched(setting):
        await app.sequential(10_000)
    return grown(app.step.times)


async def _replay(setting: Setting, count: int, runs: int) -> Figures:
    """Recover a workflow in new processes, each of which then crashes."""
    await last_line("-m", MODULE, f"record_{count}", setting.json())
    found: list[Spent] = []
    for _ in range(runs + 1):
        wall, cpu = json.loads(await last_line("-m", MODULE, "recover", setting.json()))
        found.append((wall, cpu))
    return replay_costs(count, found[1:])


async def replay_1000(setting: Setting) -> Figures:
    """A workflow that was left by a crash."""
    return await _replay(setting, 1_000, runs=3)


async def replay_10000(setting: Setting) -> Figures:
    """A longer one."""
    return await _replay(setting, 10_000, runs=1)


async def _record(setting: Setting, count: int) -> None:
    async with app.launched(setting):
        await DBOS.start_workflow_async(app.resumable, count, setting.servers)
        await _arrival()
        ended("recorded")


async def recover(setting: Setting) -> None:
    """What launching does by itself: the workflow of the crashed process goes on."""
    async with app.launched(setting):
        (wall, cpu), (wall_after, cpu_after) = await _arrival()
        ended(json.dumps([wall_after - wall, cpu_after - cpu]))


async def _arrival() -> list[Spent]:
    # The workflow may be on another thread's event loop.
    while len(app.passed) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)  # what it waits for is recorded too
    return app.passed


async def _asking(setting: Setting, **options: float) -> Figures:
    async with app.launched(setting, **options):
        handle = await DBOS.start_workflow_async(app.answering)

        async def ask(number: int) -> None:
            await DBOS.send_async(handle.workflow_id, number, "ask")
            assert await DBOS.get_event_async(handle.workflow_id, f"answer-{number}") == number

        figures = await asked(setting, ask)
        await DBOS.send_async(handle.workflow_id, None, "ask")
        await handle.get_result()
    return figures


async def round_trip(setting: Setting) -> Figures:
    """A message to a workflow, and an event of it. On SQLite both are polled for, each second unless told otherwise."""
    figures = await _asking(setting)
    if setting.servers:
        return figures
    told = await _asking(setting, notification_listener_polling_interval_sec=0.01)
    return {**figures, "p50_ms_polling_at_10_ms": told["p50_ms"], "p99_ms_polling_at_10_ms": told["p99_ms"]}


async def waiting(setting: Setting) -> Figures:
    """Workflows that wait for a message."""

    async def start(number: int) -> None:
        with SetWorkflowID(f"waiting-{number}"):
            await DBOS.start_workflow_async(app.waiting)
        while len(app.step.times) <= number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async with app.launched(setting):
        return await parked(start)


async def cold(setting: Setting) -> Figures:
    """The first workflow of a process, on a database that is there."""
    return await cold_start(setting, "dbos", MODULE)


async def first(setting: Setting) -> None:
    """As short as it gets."""
    async with app.launched(setting):
        assert await app.sequential(1) == 1
        ended(str(time.monotonic()))


SCENARIOS = {
    "sequential": sequential,
    "concurrent": concurrent,
    "join": join,
    "growth": growth,
    "replay_1000": replay_1000,
    "replay_10000": replay_10000,
    "round_trip": round_trip,
    "parked": waiting,
    "cold_start": cold,
}
COMMANDS = {
    "first": first,
    "record_1000": lambda setting: _record(setting, 1_000),
    "record_10000": lambda setting: _record(setting, 10_000),
    "recover": recover,
}

if __name__ == "__main__":
    main(SCENARIOS, COMMANDS)
