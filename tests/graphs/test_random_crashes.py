"""Random graphs killed at random moments, or restarted, come to the same: nothing is lost, doubled or left over."""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos import effort
from tests.graphs.crashed import Crash, run_and_kill, run_and_restart

GRAPHS = 500
RESTARTED = 200


async def check(seed: int, *, races: bool = False) -> None:
    """Run a graph once as it is, and then once with deaths on the way."""
    clean, commits = await run_and_kill(seed, [], races=races)
    chance = Random(f"crashes of {seed}")
    crashes = [Crash(chance.randint(1, commits), chance.random() < 0.5) for _ in range(chance.randint(1, 3))]
    killed, _ = await run_and_kill(seed, crashes, races=races)
    # Where firings race, it must have ended, have run nothing twice and left nothing, but may have gone another way.
    assert races or killed == clean, f"graph {seed}, killed at {crashes}"


@pytest.mark.law(1, 21)
async def test_random_graphs_that_are_killed_come_to_the_same() -> None:
    for seed in range(effort(GRAPHS)):
        await check(seed)


@pytest.mark.deep
@pytest.mark.law(1)
async def test_more_random_graphs_that_are_killed_come_to_the_same() -> None:
    for seed in range(effort(GRAPHS), effort(2 * GRAPHS)):
        await check(seed)


@pytest.mark.law(7)
async def test_random_graphs_with_races_that_are_killed_come_to_their_end() -> None:
    for seed in range(effort(GRAPHS)):
        await check(seed, races=True)


@pytest.mark.law(4)
async def test_random_graphs_that_are_restarted_come_to_the_same() -> None:
    for seed in range(effort(RESTARTED)):
        first, again = await run_and_restart(seed, Random(f"restarts of {seed}"))
        assert again == first, f"graph {seed}"
