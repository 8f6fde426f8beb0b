"""What the store says of an instance that waits."""

from __future__ import annotations

import pytest

from tests.support import World
from workflow_sdk import Context, Delivery, Status, send_message, workflow
from workflow_sdk.changes.instances import read_about
from workflow_sdk.rows.instance import WaitRow
from workflow_sdk.rows.keys import WAITS, InstanceKeys


@workflow
async def waiting(ctx: Context) -> list[str]:
    """Waits for two messages, and for a time."""

    async def listen(ctx: Context) -> str:
        return str(await ctx.listen("wait", ["go", "stop"]))

    async def nap(ctx: Context) -> str:
        await ctx.sleep("nap", 3600)
        return "slept"

    both = await ctx.join("both", {"listen": listen, "nap": nap})
    return [both["listen"], both["nap"]]


async def test_every_wait_is_a_row_until_it_is_over(world: World) -> None:
    if world.setting.mode == "live":
        pytest.skip("an instance that waits in memory is not looked at here: its clock would jump")
    keys = InstanceKeys("i")
    await world.once(waiting)
    rows = await world.driver.scan(*keys.range(WAITS))
    assert sorted({WaitRow.unpack(raw).path for _, raw in rows}) == ["both/listen/wait", "both/nap/nap"]
    assert len(rows) == 3
    assert await send_message(world.driver, "i", "other") is Delivery.QUEUED
    assert await send_message(world.driver, "i", "stop", "now") is Delivery.ACCEPTED
    result = await world.once(waiting)
    assert (result.status, result.waiting_for) == (Status.SLEEPING, [])
    rows = await world.driver.scan(*keys.range(WAITS))
    assert [WaitRow.unpack(raw).path for _, raw in rows] == ["both/nap/nap"]
    result = await world.run(waiting)
    assert result.output == ["now", "slept"]
    assert await world.driver.scan(*keys.range(WAITS)) == []
    assert (await read_about(world.driver, keys)).head.alarm is None


async def test_large_outcomes_of_branches_do_not_wait_for_the_join(world: World) -> None:
    sizes: list[int] = []

    class Watched:
        """Notes how many bytes each commit writes."""

        def __getattr__(self, name: str) -> object:
            return getattr(world.driver, name)

        async def commit(self, batch: object) -> None:
            writes = getattr(batch, "writes", [])
            sizes.append(sum(len(getattr(write, "value", b"")) for write in writes))
            await world.driver.commit(batch)  # type: ignore[arg-type]  # what came is what goes on

    @workflow
    async def heavy(ctx: Context) -> int:
        async def branch(ctx: Context, number: int) -> bytes:
            return bytes([number]) * 400_000

        return sum(map(len, await ctx.map("all", branch, range(20))))

    result = await world.run(heavy, driver=Watched())  # type: ignore[arg-type]  # a driver, by way of __getattr__
    assert result.output == 8_000_000
    assert max(sizes) < 3_000_000
