"""Nothing that goes wrong in a task of a runtime is lost: whoever has opened the runtime hears of it, in every host."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import add
from workflow_drivers.memory import MemoryDriver
from workflow_sdk import Context, Runtime, workflow
from workflow_sdk.instance.run import Run
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

pytestmark = [pytest.mark.usefixtures("host"), pytest.mark.every_host]


@workflow
async def adds(ctx: Context) -> int:
    total = 0
    for number in range(10):
        total = await ctx.step(f"add {number}", add, total, number)
    return total


class Panic(BaseException):
    """What the engine does not take for a failure of the run: it passes through, and ends the task."""


def has(error: BaseException, wanted: type[BaseException]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(has(part, wanted) for part in error.exceptions)
    return isinstance(error, wanted)


@pytest.mark.parametrize("commit", [3, 6])
async def test_the_block_of_a_runtime_ends_when_its_store_has_died(commit: int) -> None:
    reached_the_end = False
    with pytest.raises((SimulatedCrash, BaseExceptionGroup)) as caught:  # noqa: PT012  # the block is what ends
        async with Runtime(FaultyDriver(MemoryDriver(), crash_before=commit), workflows=[adds]) as runtime:
            await runtime.start(adds, id="i")
            await anyio.sleep(PATIENCE)
            reached_the_end = True
    assert has(caught.value, SimulatedCrash)
    assert not reached_the_end


async def test_what_leaves_a_task_ends_the_runtime_and_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 0

    async def load(self: Run) -> None:
        nonlocal runs
        runs += 1
        raise Panic("of the engine")

    monkeypatch.setattr(Run, "_load", load)
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012  # the block is what ends
        async with Runtime(MemoryDriver(), workflows=[adds]) as runtime:
            await runtime.start(adds, id="i")
            await anyio.sleep(PATIENCE)
    assert has(caught.value, Panic)
    # Until the task that failed is noticed, which takes some turns of the event loop, it may be claimed again.
    assert runs <= 5, "it is not run again and again"


async def test_who_has_left_the_runtime_is_not_disturbed() -> None:
    """What ends the block is taken back: the task of the caller goes on as if it had not been cancelled."""
    with pytest.raises((SimulatedCrash, BaseExceptionGroup)):  # noqa: PT012  # the block is what ends
        async with Runtime(FaultyDriver(MemoryDriver(), crash_before=4), workflows=[adds]) as runtime:
            await runtime.start(adds, id="i")
            await anyio.sleep(PATIENCE)
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return  # trio
    assert task is None or not task.cancelling()
