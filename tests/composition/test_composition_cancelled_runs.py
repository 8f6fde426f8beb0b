"""A run of a child that is cancelled by its host, at any call that it makes to the store."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from tests.runtime.looking import Through
from workflow_sdk import Batch, Context, Driver, Status, open_driver, run_workflow, workflow
from workflow_sdk.instance.cleanups import run_cleanups_left
from workflow_sdk.testing import VirtualClock
from workflow_sdk.values import Codec

pytestmark = pytest.mark.law(1)

CALLS_MAX = 300


@workflow
async def never(ctx: Context) -> str:
    return await ctx.listen("never", type=str)


@workflow
async def races(ctx: Context) -> str:
    async def loses(ctx: Context) -> str:
        return await ctx.child("never", never)

    async def wins(ctx: Context) -> str:
        await ctx.sleep("a moment", 60)
        return "won"

    return (await ctx.race("race", {"loses": loses, "wins": wins})).value


@workflow
async def waits(ctx: Context) -> str:
    return await ctx.child("races", races, id="child")


class Cancelling(Through):
    """Cancels whoever makes one of the calls, before it is made."""

    def __init__(self, driver: Driver, number: int, scope: anyio.CancelScope) -> None:
        super().__init__(driver)
        self._left = number
        self._scope = scope
        self.has_come = False

    async def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.has_come = True
            self._scope.cancel()
        if self.has_come:
            await anyio.lowlevel.checkpoint()

    async def get(self, key: bytes, /) -> bytes | None:
        await self._count()
        return await super().get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        await self._count()
        return await super().scan(begin, end, limit=limit, reverse=reverse)

    async def commit(self, batch: Batch, /) -> None:
        await self._count()
        await super().commit(batch)


async def cancelled_at(number: int) -> bool:
    """Whether it came to that call. Whatever was cancelled, the parent has its result in the end."""
    driver, clock = await open_driver("memory://"), VirtualClock()
    assert (await run_workflow(waits, driver=driver, instance_id="parent", clock=clock)).status is Status.WAITING
    await run_workflow(races, driver=driver, instance_id="child", clock=clock)
    clock.advance(60)
    scope = anyio.CancelScope()
    cancelling = Cancelling(driver, number, scope)
    with scope:
        await run_workflow(races, driver=cancelling, instance_id="child", clock=clock)
    if not cancelling.has_come:
        return False
    assert (await run_workflow(races, driver=driver, instance_id="child", clock=clock)).output == "won"
    await run_cleanups_left(driver, Codec(), clock.time)
    lost = await run_workflow(never, driver=driver, instance_id="child/race/loses/never", clock=clock)
    assert lost.status is Status.CANCELLED
    result = await run_workflow(waits, driver=driver, instance_id="parent", clock=clock)
    assert (result.status, result.output) == (Status.COMPLETED, "won"), f"cancelled at call {number}"
    return True


async def test_cancelled_at_any_call() -> None:
    calls = 0
    while await cancelled_at(calls + 1):
        calls += 1
        assert calls < CALLS_MAX
    assert calls > 10
