"""Law 17: whatever author's code raises is a failure of it, recorded; no worker dies of it, and it never runs hot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.laws import undoing
from tests.laws.raising import (
    PLACES,
    RAISED,
    Panic,
    Raise,
    Raised,
    cancel_itself,
    in_body,
    leave,
    leave_plainly,
    panic,
    panic_plainly,
)
from tests.laws.undoing import undo, undone
from tests.patience import PATIENCE
from tests.support import World
from workflow_sdk import Client, Context, Runtime, Status, StepCriticalError, WorkflowFailedError, open_driver, workflow

raised = pytest.mark.parametrize("what", RAISED, ids=str)


@pytest.fixture(autouse=True)
def _nothing_undone() -> None:
    undone.clear()


def skip_what_there_is_not(world: World, what: Raised) -> None:
    """In trio nothing but a scope cancels."""
    if what.only_asyncio and world.setting.backend == "trio":
        pytest.skip("only asyncio has that")


@raised
async def test_a_step_fails_for_good(world: World, what: Raised) -> None:
    """Like a step that raises CriticalError: once, recorded, and for the author to catch."""
    skip_what_there_is_not(world, what)
    calls: list[str] = []

    async def step() -> None:
        calls.append("step")
        await what.raise_()

    caught: list[StepCriticalError] = []

    @workflow
    async def job(ctx: Context) -> str:
        try:
            await ctx.step("bad", step)
        except StepCriticalError as error:
            caught.append(error)
        await ctx.sleep("nap", 1)
        return "went on"

    result = await world.run(job)
    assert (result.status, result.output, calls) == (Status.COMPLETED, "went on", ["step"])
    for error in caught:
        assert (error.path, error.attempts, error.error.type) == ("bad", 1, what.type)
        assert "raising.py" in error.error.traceback
    entry = (await world.history())["bad"]
    assert entry.error is not None
    assert (entry.status, entry.attempts) == ("failed", 1)


@pytest.mark.parametrize("fn", [leave_plainly, panic_plainly])
async def test_so_does_a_plain_one(world: World, fn: Callable[[], object]) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("booked", undoing.name, "hotel", rollback=undo)
        await ctx.step("bad", fn)

    result = await world.run(job)
    assert (result.status, undone) == (Status.ROLLED_BACK, ["hotel"])
    assert result.error is not None
    assert result.error.type == "workflow_sdk.errors.StepCriticalError"
    assert fn.__name__ in result.error.traceback or "bad" in result.error.message


@pytest.mark.settings(store=("sqlite", "fdb"))
@pytest.mark.parametrize("fn", [leave_plainly, panic_plainly])
async def test_so_does_a_transaction(world: World, fn: Callable[[Any], object]) -> None:
    """And the store goes on."""

    @workflow
    async def job(ctx: Context) -> str:
        try:
            await ctx.transact("bad", fn)
        except StepCriticalError as error:
            kind = error.error.type
            return await ctx.step("after", undoing.name, kind)
        return "not reached"

    result = await world.run(job)
    assert result.status is Status.COMPLETED
    assert result.output in ("SystemExit", "tests.laws.raising.Panic")


@raised
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_a_workflow_fails_and_is_undone(
    world: World, what: Raised, place: Callable[[Context, Raise], Awaitable[None]]
) -> None:
    """Wherever in its code it was raised. What is beside it in a join finishes."""
    skip_what_there_is_not(world, what)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("booked", undoing.name, "hotel", rollback=undo)
        await place(ctx, what.raise_)

    result = await world.run(job)
    assert (result.status, undone) == (Status.ROLLED_BACK, ["hotel"])
    assert result.error is not None
    name = what.type.rpartition(".")[2]
    assert result.error.type == what.type if place is in_body else name in result.error.type + result.error.message
    assert (await world.run(job)).status is Status.ROLLED_BACK


@pytest.mark.parametrize("what", [leave, panic, cancel_itself])
async def test_a_handler_is_exhausted_at_once(world: World, what: Raise) -> None:
    """It is not called again and again, and nothing older is undone before it."""
    if what is cancel_itself and world.setting.backend == "trio":
        pytest.skip("only asyncio has that")
    mended = False
    calls: list[str] = []

    async def handler(result: str) -> None:
        calls.append(result)
        if not mended:
            await what()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step("first", undoing.name, "first", rollback=undo)
        await ctx.step("second", undoing.name, "second", rollback=handler)
        raise ValueError("no")

    result = await world.run(job)
    assert (result.status, calls, undone) == (Status.STUCK, ["second"], [])
    mended = True
    async with Client(world.driver, clock=world.clock) as client:
        await client.handle(job, "i").recover()
    result = await world.run(job)
    assert (result.status, calls, undone) == (Status.ROLLED_BACK, ["second", "second"], ["first"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_ctrl_c_is_no_failure(tmp_path: Path) -> None:
    """It ends the process, and the instance goes on in another one."""
    presses = [KeyboardInterrupt()]
    calls: list[str] = []

    async def step() -> str:
        calls.append("step")
        if presses:
            raise presses.pop()
        return "done"

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step("slow", step)

    async def run() -> str:
        async with Runtime(f"sqlite:///{tmp_path}/store.db", workflows=[job], lease_ttl=0.5) as runtime:
            return await (await runtime.start(job, id="i")).result()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run())
    assert asyncio.run(run()) == "done"
    assert calls == ["step", "step"]


@workflow
async def doubles(ctx: Context, number: int) -> int:
    async def double() -> int:
        return 2 * number

    return await ctx.step("double", double)


@raised
@pytest.mark.every_host
async def test_a_runtime_serves_the_others(what: Raised) -> None:
    """It ends them as failed, each after one call, and goes on."""
    calls: list[str] = []

    async def step() -> None:
        calls.append("step")
        await what.raise_()

    @workflow
    async def in_step(ctx: Context) -> None:
        await ctx.step("bad", step)

    @workflow
    async def in_code(ctx: Context) -> None:
        calls.append("code")
        await what.raise_()

    @workflow
    async def in_branch(ctx: Context) -> None:
        async def branch(ctx: Context) -> None:
            calls.append("branch")
            await what.raise_()

        await ctx.join("both", {"a": branch, "b": branch})

    with anyio.fail_after(PATIENCE):
        async with Runtime("memory://", workflows=[in_step, in_code, in_branch, doubles]) as runtime:
            for flow in (in_step, in_code, in_branch):
                with pytest.raises(WorkflowFailedError) as caught:
                    await runtime.run(flow)
                assert caught.value.status == "failed"
            assert await runtime.run(doubles, 21) == 42
    assert calls == ["step", "code", "branch", "branch"]


@pytest.mark.every_host
async def test_an_unwinding_by_hand_is_tried_again_at_leisure() -> None:
    """`GeneratorExit` is how coroutines are closed, and passes. Who raises it takes nobody along."""
    calls: list[float] = []

    @workflow
    async def closes(ctx: Context) -> None:
        async def step() -> None:
            calls.append(anyio.current_time())
            raise GeneratorExit

        async def branch(ctx: Context) -> None:
            await ctx.step("bad", step)

        await ctx.join("both", {"a": branch})

    with anyio.fail_after(PATIENCE):
        async with Runtime("memory://", workflows=[closes, doubles], lease_ttl=1) as runtime:
            await runtime.start(closes)
            while len(calls) < 2:
                assert await runtime.run(doubles, 21) == 42
                await anyio.sleep(0.01)
    assert calls[1] - calls[0] > 0.5


async def test_a_loop_that_is_closed_records_no_failure() -> None:
    """`asyncio.run` cancels every task that there is: that is the host's, and none of the author's."""
    begun = asyncio.Event()
    driver = await open_driver("memory://")

    @workflow
    async def job(ctx: Context) -> None:
        async def step() -> None:
            begun.set()
            await anyio.sleep_forever()

        async def branch(ctx: Context) -> None:
            await ctx.step("endless", step)

        async def waits(ctx: Context) -> None:
            await anyio.sleep_forever()

        await ctx.join("both", {"a": branch, "b": waits})

    async def serve() -> None:
        async with Runtime(driver, workflows=[job], grace=0) as runtime:
            await runtime.start(job, id="i")
            await begun.wait()
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await anyio.sleep_forever()

    before = asyncio.all_tasks()
    task = asyncio.create_task(serve())
    await asyncio.wait([task])
    async with Client(driver) as client:
        info = await client.handle(job, "i").info()
    assert info.status not in (Status.FAILED, Status.STUCK)
    await driver.aclose()


def test_a_panic_is_no_exception() -> None:
    assert not issubclass(Panic, Exception)
