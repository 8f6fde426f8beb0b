"""What is measured of Temporal: `python -m tests.benchmarks.peers.temporal_run SCENARIO SETTING`."""

from __future__ import annotations

import asyncio
import os
import time
import uuid

from temporalio.client import Client

from tests.benchmarks.peers import temporal_app as app
from tests.benchmarks.peers.measuring import (
    STEPS_EACH,
    WORKFLOWS,
    Figures,
    Setting,
    concurrent_costs,
    costs,
    grown,
    repeated,
    replay_costs,
)
from tests.benchmarks.peers.processes import cold_start, ended, main
from tests.benchmarks.peers.waits import asked, parked

__all__ = ["COMMANDS", "SCENARIOS"]

MODULE = "tests.benchmarks.peers.temporal_run"
# Of this process alone: what an earlier one left on the server stays there.
QUEUE = f"benchmarks-{os.getpid()}"
STEPS = 200


def _id() -> str:
    """For a workflow of its own."""
    return uuid.uuid4().hex


async def sequential(setting: Setting) -> Figures:
    """Steps, one after the other: activities; and local activities, which are less."""
    async with app.connected(setting, QUEUE) as client:

        async def run(_: int) -> None:
            await client.execute_workflow(app.Sequential.run, STEPS, id=_id(), task_queue=QUEUE)

        async def run_local(_: int) -> None:
            await client.execute_workflow(app.Local.run, STEPS, id=_id(), task_queue=QUEUE)

        figures = costs(STEPS, await repeated(setting, run))
        local = costs(STEPS, await repeated(setting, run_local))
    return {
        **figures,
        "wall_us_of_a_local_activity": local["wall_us_per_operation"],
        "cpu_us_of_a_local_activity": local["cpu_us_per_operation"],
    }


async def join(setting: Setting) -> Figures:
    """Steps side by side."""
    async with app.connected(setting, QUEUE) as client:

        async def run(_: int) -> None:
            await client.execute_workflow(app.Joining.run, 1000, id=_id(), task_queue=QUEUE)

        return costs(1000, await repeated(setting, run))


async def concurrent(setting: Setting) -> Figures:
    """Many workflows at once."""
    async with app.connected(setting, QUEUE) as client:

        async def run(_: int) -> None:
            await asyncio.gather(
                *[
                    client.execute_workflow(app.Sequential.run, STEPS_EACH, id=_id(), task_queue=QUEUE)
                    for _ in range(WORKFLOWS)
                ]
            )

        return concurrent_costs(await repeated(setting, run, runs=2))


async def growth(setting: Setting) -> Figures:
    """Many steps. A history has 51,200 events at most, and a step makes six: ten thousand don't fit."""
    async with app.connected(setting, QUEUE) as client:
        await client.execute_workflow(app.Sequential.run, 1000, id=_id(), task_queue=QUEUE)
    return grown(app.step.times)


async def replay_1000(setting: Setting) -> Figures:
    """A query of a workflow, to workers that have not seen it."""
    client = await Client.connect(setting.url)
    async with app.worker(client, QUEUE):
        handle = await client.start_workflow(app.Resumable.run, 1000, id=_id(), task_queue=QUEUE)
        while len(app.step.times) < 1000:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)

    async def run(_: int) -> None:
        async with app.worker(client, QUEUE):
            assert await handle.query(app.Resumable.steps_done) == 1000

    return replay_costs(1000, await repeated(setting, run))


async def round_trip(setting: Setting) -> Figures:
    """An update of a workflow."""
    async with app.connected(setting, QUEUE) as client:
        handle = await client.start_workflow(app.Answering.run, id=_id(), task_queue=QUEUE)
        figures = await asked(setting, lambda number: handle.execute_update(app.Answering.ask, number))
        await handle.signal(app.Answering.stop)
        await handle.result()
    return figures


async def waiting(setting: Setting) -> Figures:
    """Workflows that wait for a message."""
    async with app.connected(setting, QUEUE) as client:

        async def start(number: int) -> None:
            await client.start_workflow(app.Waiting.run, id=_id(), task_queue=QUEUE)
            while len(app.step.times) <= number:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        return await parked(start)


async def cold(setting: Setting) -> Figures:
    """The first workflow of a process: it connects, works, and calls."""
    return await cold_start(setting, "temporalio.client, temporalio.worker", MODULE)


async def first(setting: Setting) -> None:
    """As short as it gets."""
    async with app.connected(setting, QUEUE) as client:
        assert await client.execute_workflow(app.Sequential.run, 1, id=_id(), task_queue=QUEUE) == 1
        ended(str(time.monotonic()))


SCENARIOS = {
    "sequential": sequential,
    "concurrent": concurrent,
    "join": join,
    "growth": growth,
    "replay_1000": replay_1000,
    "round_trip": round_trip,
    "parked": waiting,
    "cold_start": cold,
}
COMMANDS = {"first": first}

if __name__ == "__main__":
    main(SCENARIOS, COMMANDS)
