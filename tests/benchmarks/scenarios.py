"""What is measured: workflows whose steps do nothing, so that all of the time is the engine's and the store's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from workflow_sdk import Break, Context, Continue, Driver, Status, Workflow, run_workflow, workflow

__all__ = ["SCENARIOS", "Scenario", "nothing", "sequential", "to_the_end"]


async def nothing() -> int:
    """A step that costs nothing itself."""
    return 1


async def echo(value: bytes) -> bytes:
    """A step whose value is as large as one likes."""
    return value


@workflow
async def sequential(ctx: Context, count: int) -> int:
    """Steps, one after the other."""
    for number in range(count):
        await ctx.step(f"step-{number}", nothing)
    return count


@workflow
async def sequential_then_sleep(ctx: Context, count: int) -> int:
    """Steps, and then a wait, so that the history is read again by the next run."""
    for number in range(count):
        await ctx.step(f"step-{number}", nothing)
    await ctx.sleep("pause", 3600)
    return count


@workflow
async def looping(ctx: Context, count: int) -> int:
    """Turns of one step."""

    async def turn(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await ctx.step("step", nothing)
        return Continue(number + 1) if number + 1 < count else Break(count)

    return await ctx.loop("turns", turn, 0)


@workflow
async def joining(ctx: Context, count: int) -> int:
    """Branches of one step."""

    async def branch(ctx: Context) -> int:
        return await ctx.step("step", nothing)

    return len(await ctx.join("all", {f"branch-{number}": branch for number in range(count)}))


@workflow
async def values(ctx: Context, shape: tuple[int, int]) -> int:
    """Steps with values of some size."""
    count, size = shape
    value = b"x" * size
    for number in range(count):
        await ctx.step(f"step-{number}", echo, value)
    return count


@dataclass(frozen=True)
class Scenario:
    """Something to measure."""

    name: str
    operations: int
    run: Callable[[Driver, str], Awaitable[None]]
    prepare: Callable[[Driver, str], Awaitable[None]] | None = None
    """What is done before, and not measured."""


def to_the_end(flow: Workflow[Any, Any], value: object) -> Callable[[Driver, str], Awaitable[None]]:
    """A run that completes."""

    async def run(driver: Driver, instance_id: str) -> None:
        result = await run_workflow(flow, value, driver=driver, instance_id=instance_id)
        assert result.status is Status.COMPLETED, result

    return run


def _until_the_sleep(count: int) -> Callable[[Driver, str], Awaitable[None]]:
    async def run(driver: Driver, instance_id: str) -> None:
        result = await run_workflow(sequential_then_sleep, count, driver=driver, instance_id=instance_id)
        assert result.status is Status.SLEEPING, result

    return run


def _replay(count: int) -> Scenario:
    replayed = _until_the_sleep(count)
    return Scenario(f"replay_{count}", count, replayed, prepare=replayed)


SCENARIOS = [
    Scenario("sequential", 1000, to_the_end(sequential, 1000)),
    Scenario("loop", 10_000, to_the_end(looping, 10_000)),
    _replay(1000),
    _replay(10_000),
    Scenario("join", 1000, to_the_end(joining, 1000)),
    Scenario("join_large", 10_000, to_the_end(joining, 10_000)),
    Scenario("value_1kB", 1000, to_the_end(values, (1000, 1_000))),
    Scenario("value_100kB", 200, to_the_end(values, (200, 100_000))),
]
