"""A live `run_workflow` does what others ask of its instance: cancel, evict, wake; and it hears at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.parts import Rows
from tests.runtime.polling import until
from tests.support import World
from workflow_sdk import Client, Context, LeaseLostError, RunResult, Status, Workflow, run_workflow, workflow
from workflow_sdk.instance.execution import Mode
from workflow_sdk.rows.keys import InstanceKeys

NEVER = 100_000.0


class Busy:
    """A workflow that is in the middle of a step, or waits for a timer or a message."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.tries = 0
        self.undone: list[str] = []
        self.go_on = anyio.Event()

        @workflow(name="busy")
        async def job(ctx: Context, what: str) -> str:
            await ctx.step("first", lambda: "first", rollback=self.undo)
            if what == "step":
                return await ctx.step("long", self.long)
            if what == "timer":
                await ctx.sleep("nap", NEVER)
                return "awake"
            return await ctx.listen("message", type=str)

        self.job: Workflow[Any, str] = job

    async def undo(self, result: str) -> None:
        self.undone.append(result)

    async def long(self) -> str:
        self.tries += 1
        self.begun.set()
        await self.go_on.wait()
        return "long"


async def until_busy(world: World, busy: Busy, what: str) -> None:
    if what == "step":
        with anyio.fail_after(PATIENCE):
            await busy.begun.wait()
        return

    async def rests() -> bool:
        async with Client(world.driver) as client:
            return (await client.handle(busy.job, "i").info()).status in (Status.SLEEPING, Status.WAITING)

    await until(lambda: there(world, rests))


async def there(world: World, holds: Callable[[], Awaitable[bool]]) -> bool:
    return bool(await world.driver.scan(*InstanceKeys("i").all(), limit=1)) and await holds()


async def told(world: World, busy: Busy, what: str, tell: Any, mode: Mode = "live") -> RunResult[str]:
    """The result of a run that is told something while it is busy with something."""
    results: list[RunResult[str]] = []

    async def run() -> None:
        with anyio.fail_after(PATIENCE):
            results.append(await run_workflow(busy.job, what, driver=world.driver, instance_id="i", mode=mode))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until_busy(world, busy, what)
        async with Client(world.driver) as client:
            await tell(client.handle(busy.job, "i"))
    return results[0]


@pytest.mark.parametrize("what", ["step", "timer", "message"])
async def test_a_cancel_ends_the_run_with_a_result(world: World, what: str) -> None:
    busy = Busy()
    result = await told(world, busy, what, lambda handle: handle.cancel())
    assert result.status is Status.CANCELLED
    assert result.error is not None
    assert result.error.type.endswith("WorkflowCancelledError")
    assert busy.undone == []
    assert (await Rows.of(world.driver)).workers == [], "nothing of the run is left"
    assert await world.driver.get(InstanceKeys("i").lease) is None


async def test_a_cancel_reaches_a_step_in_yield_mode(world: World) -> None:
    result = await told(world, Busy(), "step", lambda handle: handle.cancel(), mode="yield")
    assert result.status is Status.CANCELLED


@pytest.mark.parametrize("what", ["step", "message"])
async def test_a_cancel_with_a_rollback_is_carried_out_by_the_run(world: World, what: str) -> None:
    busy = Busy()
    result = await told(world, busy, what, lambda handle: handle.cancel(rollback=True))
    assert (result.status, busy.undone) == (Status.CANCELLED, ["first"])


@pytest.mark.parametrize(("what", "status"), [("timer", Status.SLEEPING), ("message", Status.WAITING)])
async def test_an_evict_ends_the_run_with_a_result(world: World, what: str, status: Status) -> None:
    busy = Busy()
    result = await told(world, busy, what, lambda handle: handle.evict())
    assert result.status is status
    assert (result.wake_at is not None) is (what == "timer")
    assert result.waiting_for == (["message"] if what == "message" else [])
    assert await world.driver.get(InstanceKeys("i").lease) is None
    assert await world.driver.get(InstanceKeys("i").evicted) is None
    async with Client(world.driver) as client:
        assert (await client.handle(busy.job, "i").info()).status is status


async def test_an_evict_lets_a_step_end(world: World) -> None:
    busy = Busy()

    async def evict(handle: Any) -> None:
        await handle.evict()
        while await world.driver.get(InstanceKeys("i").evicted) is None:  # noqa: ASYNC110  # until it is asked for
            await anyio.sleep(0.001)
        busy.go_on.set()

    result = await told(world, busy, "step", evict)
    assert result.status in (Status.COMPLETED, Status.RUNNING)
    result = await run_workflow(busy.job, "step", driver=world.driver, instance_id="i")
    assert (result.output, busy.tries) == ("long", 1)


async def test_an_evict_cancels_a_step_after_the_time_of_grace(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflow_sdk.worker.alone.GRACE_SECONDS", 0.01)
    busy = Busy()
    result = await told(world, busy, "step", lambda handle: handle.evict())
    assert result.status is Status.RUNNING
    assert result.wake_at is not None
    assert await world.driver.get(InstanceKeys("i").lease) is None
    busy.go_on.set()
    result = await run_workflow(busy.job, "step", driver=world.driver, instance_id="i")
    assert (result.output, busy.tries) == ("long", 2)


async def test_a_wake_leaves_the_run_alone(world: World) -> None:
    async def wake(handle: Any) -> None:
        for _ in range(3):
            await handle.wake()
        await handle.send("message", "here")

    assert (await told(world, Busy(), "message", wake)).output == "here"


async def test_a_restart_is_carried_out_by_the_run(world: World) -> None:
    busy = Busy()

    async def restart(handle: Any) -> None:
        await handle.restart_from("first")

        async def again() -> bool:
            return busy.tries == 2

        await until(again)
        busy.go_on.set()

    assert (await told(world, busy, "step", restart)).output == "long"
    assert busy.tries == 2


async def test_a_run_that_another_run_took_over_ends_in_the_middle_of_a_step(world: World) -> None:
    busy, lost = Busy(), anyio.Event()

    async def first() -> None:
        with pytest.raises(LeaseLostError):
            await run_workflow(busy.job, "step", driver=world.driver, instance_id="i", mode="live")
        lost.set()

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await until_busy(world, busy, "step")
        group.start_soon(
            lambda: run_workflow(busy.job, "step", driver=world.driver, instance_id="i", mode="live"),
        )
        with anyio.fail_after(PATIENCE):
            await lost.wait()
        busy.go_on.set()


@pytest.mark.settings(store="memory")
async def test_orders_reach_it_fast(world: World) -> None:
    """The better ones of several: other programs may keep the machine busy."""
    took: list[float] = []
    for number in range(9):
        busy = Busy()
        asked = [0.0]

        async def tell(handle: Any, number: int = number, asked: list[float] = asked) -> None:
            asked[0] = monotonic()
            await (
                handle.cancel()
                if number % 3 == 0
                else handle.evict()
                if number % 3 == 1
                else handle.send("message", "")
            )

        await told(world, busy, "message", tell)
        took.append(monotonic() - asked[0])
        async with Client(world.driver) as client:
            with_end = client.handle(busy.job, "i")
            if (await with_end.info()).status is Status.WAITING:
                await with_end.cancel()
            await client.delete("i")
    assert sorted(took)[2] < 0.05
