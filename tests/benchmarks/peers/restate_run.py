"""What is measured of Restate: `python -m tests.benchmarks.peers.restate_run SCENARIO SETTING`."""

from __future__ import annotations

import asyncio
import time
import uuid
from statistics import median

from tests.benchmarks.peers import restate_app as app
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

MODULE = "tests.benchmarks.peers.restate_run"


def _key() -> str:
    """For a workflow of its own."""
    return uuid.uuid4().hex


async def _steps_done(count: int) -> None:
    # The client gives up a call after five seconds: what takes longer is sent, and waited for.
    while len(app.step.times) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def sequential(setting: Setting) -> Figures:
    """Steps, one after the other."""
    async with app.served(setting) as client:
        return costs(1000, await repeated(setting, lambda _: client.workflow_call(app.sequential, _key(), 1000)))


async def join(setting: Setting) -> Figures:
    """Steps side by side."""
    async with app.served(setting) as client:
        return costs(1000, await repeated(setting, lambda _: client.workflow_call(app.joining, _key(), 1000)))


async def concurrent(setting: Setting) -> Figures:
    """Many workflows at once."""
    async with app.served(setting) as client:

        async def run(_: int) -> None:
            await asyncio.gather(*[client.workflow_call(app.sequential, _key(), STEPS_EACH) for _ in range(WORKFLOWS)])

        return concurrent_costs(await repeated(setting, run))


async def growth(setting: Setting) -> Figures:
    """Many steps."""
    async with app.served(setting) as client:
        await client.workflow_send(app.sequential, _key(), 10_000)
        await _steps_done(10_000)
    return grown(app.step.times)


async def _replay(setting: Setting, count: int, runs: int) -> Figures:
    """Wake workflows that are suspended."""
    async with app.served(setting) as client:
        keys = [_key() for _ in range(runs + 1)]
        for key in keys:
            app.resumed[key] = asyncio.Event()
            await client.workflow_send(app.resumable, key, count)
        await _steps_done(count * len(keys))
        await asyncio.sleep(3)  # then they are suspended

        async def run(number: int) -> None:
            await client.workflow_call(app.resume, keys[number], None)
            await app.resumed[keys[number]].wait()

        return replay_costs(count, await repeated(setting, run, runs))


async def replay_1000(setting: Setting) -> Figures:
    """A workflow that was evicted."""
    return await _replay(setting, 1_000, runs=3)


async def replay_10000(setting: Setting) -> Figures:
    """A longer one."""
    return await _replay(setting, 10_000, runs=1)


async def round_trip(setting: Setting) -> Figures:
    """A message to a workflow, and an answer of it; and the same with what Restate has for entities, an object."""
    async with app.served(setting) as client:
        key, count = _key(), 0

        async def ask(number: int) -> None:
            nonlocal count
            count += 1
            assert await client.workflow_call(app.ask, key, number) == number

        async def ping(number: int) -> None:
            assert await client.object_call(app.pong, key, number) == number

        await client.workflow_send(app.answering, key, None)
        figures = await asked(setting, ask)
        await client.workflow_call(app.stop, key, count)
        entity = await asked(setting, ping)
    return {**figures, "p50_ms_of_an_object": entity["p50_ms"], "p99_ms_of_an_object": entity["p99_ms"]}


async def waiting(setting: Setting) -> Figures:
    """Workflows that wait for a message, in the minute before they are suspended."""
    async with app.served(setting) as client:

        async def start(number: int) -> None:
            await client.workflow_send(app.waiting, _key(), None)
            await _steps_done(number + 1)

        return await parked(start)


async def _objects(setting: Setting, cells: int, each: int) -> Figures:
    """Calls of virtual objects that count them: one after the other for each, and side by side for several."""
    async with app.served(setting) as client:
        keys = [_key() for _ in range(cells)]

        async def one(key: str) -> None:
            for _ in range(each):
                await client.object_call(app.count_up, key, None)

        rates: list[float] = []
        for _ in range(4):
            began = time.perf_counter()
            await asyncio.gather(*[one(key) for key in keys])
            rates.append(cells * each / (time.perf_counter() - began))
    return {"cells": cells, "events_each": each, "runs": 3, "transitions_per_s": round(median(rates[1:]))}


async def cells_1(setting: Setting) -> Figures:
    """One object, and one call after the other."""
    return await _objects(setting, 1, 1000)


async def cells_1000(setting: Setting) -> Figures:
    """Many objects at once."""
    return await _objects(setting, 1000, 5)


async def cold(setting: Setting) -> Figures:
    """The first workflow of a process: it serves, registers, and calls."""
    return await cold_start(setting, "restate", MODULE)


async def first(setting: Setting) -> None:
    """As short as it gets."""
    async with app.served(setting) as client:
        assert await client.workflow_call(app.sequential, _key(), 1) == 1
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
    "cells_1": cells_1,
    "cells_1000": cells_1000,
}
COMMANDS = {"first": first}

if __name__ == "__main__":
    main(SCENARIOS, COMMANDS)
