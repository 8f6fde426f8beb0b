"""The version of an instance: one more with each commit that changes it, and never less."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from tests.patience import PATIENCE
from tests.runtime.interleaving import Interleaved
from tests.runtime.looking import Bench, Through, dump
from tests.runtime.polling import settle, until
from workflow_sdk import (
    Backoff,
    Batch,
    Break,
    Client,
    Context,
    Continue,
    ContinueAsNew,
    Driver,
    Handle,
    LeaseLostError,
    Runtime,
    Status,
    Workflow,
    open_driver,
    run_workflow,
    send_message,
    workflow,
)
from workflow_sdk.driver import Set
from workflow_sdk.rows.instance import Tally
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

NOW = Backoff(initial=0, factor=1, maximum=0, jitter=0)
COMMITS = InstanceKeys("i").field(Field.TALLY)


def nothing() -> None:
    """A step."""


def breaks() -> None:
    """A step that fails."""
    raise ValueError("no")


@workflow
async def child(ctx: Context) -> int:
    """A child."""
    return 1


Scene = Callable[[Context], Awaitable[Any]]


async def step(ctx: Context) -> None:
    await ctx.step(nothing)


async def repeatable(ctx: Context) -> None:
    await ctx.step(nothing, repeatable=True)


async def retried(ctx: Context) -> None:
    await ctx.attempt("a", lambda ctx: ctx.step(breaks, retries=2, backoff=NOW))


async def sleep(ctx: Context) -> None:
    await ctx.sleep("nap", 1)


async def no_sleep(ctx: Context) -> None:
    await ctx.sleep("nap", 0)


async def listen(ctx: Context) -> None:
    await ctx.listen("m")


async def too_late(ctx: Context) -> None:
    await ctx.listen("n", timeout=5, default=None)


async def send(ctx: Context) -> None:
    await ctx.send("s", "other", "m")


async def to_itself(ctx: Context) -> None:
    await ctx.send("s", "i", "n")


async def family(ctx: Context) -> None:
    await ctx.child("c", child, id="c")


async def successor(ctx: Context) -> None:
    await ctx.continue_with("c", child, id="d")


async def task(ctx: Context) -> None:
    await ctx.task("t", timeout=5)


async def turns(ctx: Context) -> None:
    async def body(ctx: Context, turn: int) -> Continue[int] | Break[int]:
        return Continue(turn + 1) if turn < 4 else Break(turn)

    await ctx.loop("l", body, 0, commit_interval=2)


async def join(ctx: Context) -> None:
    await ctx.join("j", {"a": sleep, "b": sleep})


async def shown(ctx: Context) -> None:
    ctx.state["a"] = 1
    ctx.progress(1)
    ctx.reference = "r"
    await ctx.step(nothing)


COUNTS: list[tuple[Scene, int]] = [
    (step, 1),
    (repeatable, 0),
    (retried, 4),
    (sleep, 2),
    (no_sleep, 1),
    (listen, 2),
    (too_late, 2),
    (send, 1),
    (to_itself, 1),
    (family, 2),
    (successor, 1),
    (turns, 3),
    (shown, 1),
]


class Counted(Through):
    """A driver that sees to it that the version of instance "i" grows by one, or stays."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.seen: list[int] = []
        self.watched = True

    async def commit(self, batch: Batch, /) -> None:
        """As the driver."""
        before = await self.version()
        await self.driver.commit(batch)
        if self.watched:
            for write in batch.writes:
                if isinstance(write, Set) and write.key == COMMITS:
                    self.seen.append(Tally.unpack(write.value).commits)
                    assert self.seen[-1] == before + 1, f"{self.seen[-1]} after {before}"

    async def version(self) -> int:
        """What is stored."""
        raw = await self.driver.get(COMMITS)
        return 0 if raw is None else Tally.unpack(raw).commits


@pytest.mark.parametrize(("scene", "count"), COUNTS, ids=lambda part: getattr(part, "__name__", ""))
async def test_how_much_it_grows(driver: Driver, scene: Scene, count: int) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await scene(ctx)

    bench = Bench(Counted(driver), flow)
    async with Client(driver, clock=bench.clock) as client:
        await client.start(child, id="other")
        handle = await client.start(flow, id="i")
        assert (await handle.info()).version == 1
        result = await bench.go()
        for _ in range(5):
            if result.status.is_terminal:
                break
            before = await bench.info()
            if not before.wake_at:
                await send_message(driver, "i", "m", clock=bench.clock)
                assert (await bench.info()).version == before.version, "a message is not taken when it comes"
                if scene is family:
                    await run_workflow(child, driver=driver, instance_id="c", clock=bench.clock)
            result = await bench.go(5)
        assert result.status in (Status.COMPLETED, Status.FAILED)
        assert (await handle.info()).version == 1 + count + 1


async def test_decisions_count(driver: Driver) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        await ctx.step(breaks, retries=0)

    @workflow
    async def waits(ctx: Context) -> None:
        await ctx.listen("m")

    bench = Bench(Counted(driver), fails)
    async with Client(driver, clock=bench.clock) as client:
        handle: Handle[Any] = client.handle("fails", "i")
        await bench.go()
        before = (await handle.info()).version
        await handle.recover()
        assert (await handle.info()).version == before + 1
        await handle.restart_from()
        assert (await handle.info()).version == before + 2
        await handle.cancel()
        assert (await handle.info()).version == before + 3
        await handle.cancel()
        assert (await handle.info()).version == before + 3
        await run_workflow(waits, driver=driver, instance_id="w", clock=bench.clock)
        idle = client.handle("waits", "w")
        before = (await idle.info()).version
        await idle.wake()
        await idle.evict()
        assert (await idle.info()).version == before


async def test_starting_over_counts_once(driver: Driver) -> None:
    @workflow
    async def again(ctx: Context, number: int) -> Any:
        await ctx.step(nothing)
        return ContinueAsNew(number + 1) if number < 3 else number

    bench = Bench(Counted(driver), again, 0)
    assert (await bench.go()).output == 3
    assert (await bench.info()).version == 1 + 4 + 4


async def test_to_be_run_again_counts_nothing(driver: Driver) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        ctx.state["a"] = [1]
        await ctx.join("j", {"a": sleep, "b": listen, "c": task})

    bench = Bench(Counted(driver), flow)
    await bench.go()
    before = await bench.info()
    for crash in (1, 2, None):
        try:
            # Whoever has it dies before or after it is evicted again.
            faulty = FaultyDriver(bench.driver, crash_before=crash)
            await run_workflow(flow, driver=faulty, instance_id="i", clock=bench.clock)
        except (SimulatedCrash, BaseExceptionGroup):
            assert crash is not None
    after = await bench.info()
    assert (after.version, after.waits, after.state) == (before.version, before.waits, before.state)


async def test_cancelled_in_the_middle() -> None:
    """Whenever the instance commits while it is cancelled, restarted, or taken over by another worker."""
    for how in ("cancel", "cancel_rollback", "restart_from", "take over"):
        for number in range(1, 8):
            await in_the_middle(how, number)


async def in_the_middle(how: str, number: int) -> None:
    """Before this call of whoever decides, the instance goes on by a few commits."""
    memory = await open_driver("memory://")
    counted = Counted(memory)
    gates = [anyio.Event() for _ in range(20)]
    keys, lease = InstanceKeys("i"), list[Any]([None])

    @workflow
    async def flow(ctx: Context) -> None:
        for turn, gate in enumerate(gates):
            await ctx.step(f"wait {turn}", gate.wait, rollback=undo)

    async def go_on() -> None:
        before = await counted.version()
        for gate in [gate for gate in gates if not gate.is_set()][:3]:
            gate.set()
        await until(lambda: past(before + 2))

    async def past(version: int) -> bool:
        return await counted.version() > version or await memory.get(keys.lease) != lease[0]

    deciding = Interleaved(counted, dict.fromkeys(range(number, number + 3), go_on))
    async with anyio.create_task_group() as group:
        group.start_soon(run_until_lost, flow, counted)
        await until(lambda: past(0))
        lease[0] = await memory.get(keys.lease)
        async with Client(deciding) as client:
            handle: Handle[Any] = client.handle("flow", "i")
            if how == "take over":
                for gate in gates[:12]:
                    gate.set()
                async with anyio.create_task_group() as taking:
                    taking.start_soon(run_until_lost, flow, deciding)
                    await settle(memory)
                    taking.cancel_scope.cancel()
            elif how == "restart_from":
                await handle.restart_from()
            else:
                await handle.cancel(rollback=how == "cancel_rollback")
                assert (await handle.info()).status in (Status.CANCELLED, Status.ROLLING_BACK)
        group.cancel_scope.cancel()
    assert counted.seen == sorted(set(counted.seen))
    await memory.aclose()


def undo(_: object) -> None:
    """A handler."""


async def run_until_lost(flow: Workflow[None, None], driver: Driver) -> None:
    """Run it, until someone takes it away."""
    with suppress(LeaseLostError):
        await run_workflow(flow, driver=driver, instance_id="i", mode="live")


async def test_with_a_runtime(driver: Driver) -> None:
    counted = Counted(driver)

    @workflow
    async def flow(ctx: Context) -> None:
        for turn in range(5):
            await ctx.listen(f"wait {turn}", "m")

    async with Runtime(counted, workflows=[flow], max_resident=0) as one, Runtime(counted, workflows=[flow]) as two:
        handle = await one.start(flow, id="i")
        for turn in range(5):
            await (one, two)[turn % 2].handle(flow, "i").send("m")
        await handle.result(timeout=PATIENCE)
        assert counted.seen == list(range(1, counted.seen[-1] + 1))
        assert (await handle.info()).version == counted.seen[-1]
    assert await dump(driver)
