"""What an instance does to others goes with its own records, and never in the way of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from tests.patience import PATIENCE
from workflow_sdk import (
    Batch,
    Client,
    Context,
    Driver,
    Status,
    open_driver,
    run_workflow,
    workflow,
)
from workflow_sdk.driver import Append, Set
from workflow_sdk.rows.instance import Head
from workflow_sdk.rows.keys import HISTORY, INBOX, Field, InstanceKeys

pytestmark = pytest.mark.law(1, 7)

TARGET = InstanceKeys("target")


class Watched:
    """A driver that is watched, and slowed down, at its reads and commits."""

    def __init__(self, inside: Driver) -> None:
        self.inside = inside
        self.on_read: Callable[[bytes], Any] | None = None
        self.on_commit: Callable[[Batch], Any] | None = None

    async def get(self, key: bytes, /) -> bytes | None:
        return await self.inside.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        if self.on_read is not None:
            await self.on_read(begin)
        return await self.inside.scan(begin, end, limit=limit, reverse=reverse)

    async def commit(self, batch: Batch, /) -> None:
        if self.on_commit is not None:
            await self.on_commit(batch)
        await self.inside.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        await self.inside.changed(key, since)

    async def aclose(self) -> None:
        await self.inside.aclose()


@workflow
async def hears(ctx: Context) -> Any:
    return await ctx.listen("go")


async def begun() -> Watched:
    """A store with an instance that waits for messages."""
    driver = Watched(await open_driver("memory://"))
    await run_workflow(hears, driver=driver, instance_id="target")
    return driver


@pytest.mark.parametrize("what", ["send", "child"])
async def test_who_loses_while_it_reads_does_nothing_any_more(what: str) -> None:
    reading, decided = anyio.Event(), anyio.Event()

    @workflow
    async def racer(ctx: Context) -> str:
        async def pays(ctx: Context) -> None:
            if what == "send":
                await ctx.send("pay", "target", "go", 100)
            else:
                await ctx.child("pay", "hears", id="kid")

        async def aborts(ctx: Context) -> None:
            await reading.wait()

        winner = (await ctx.race("which", {"pays": pays, "aborts": aborts})).winner
        decided.set()
        return winner

    async def wait(begin: bytes) -> None:
        if begin.startswith((TARGET.space, InstanceKeys("kid").space)):
            reading.set()
            with anyio.move_on_after(0.1):
                await decided.wait()

    driver = await begun()
    driver.on_read = wait
    assert (await run_workflow(racer, driver=driver, instance_id="i")).output == "aborts"
    async with Client(driver) as client:
        assert await client.handle(hears, "target").inbox() == []
        assert [info.id for info in (await client.list()).items if info.id == "kid"] == []


async def test_a_busy_target_does_not_hold_up_what_was_done() -> None:
    """It changes before each commit that reaches it; a step beside that is finished, and paid for."""
    busy = 30
    recorded_at: list[int] = []
    sent: list[int] = []

    async def charge() -> str:
        return "paid"

    @workflow
    async def both(ctx: Context) -> list[Any]:
        async def sends(ctx: Context) -> str:
            return await ctx.send("tell", "target", "go", 1)

        async def pays(ctx: Context) -> str:
            return await ctx.step("charge", charge)

        return list((await ctx.join("all", {"sends": sends, "pays": pays})).values())

    own = InstanceKeys("i").space + HISTORY

    async def change_it(batch: Batch) -> None:
        nonlocal busy
        if any(key.startswith(TARGET.space) for key, _ in batch.checks):
            if busy:
                busy -= 1
                head = TARGET.field(Field.HEAD)
                raw = await driver.inside.get(head)
                assert raw is not None
                moved = Batch()
                before = Head.unpack(raw)
                moved.set(head, replace(before, changes=before.changes + 1).pack())
                await driver.inside.commit(moved)
            else:
                sent.append(sum(isinstance(w, Append) and w.prefix == TARGET.space + INBOX for w in batch.writes))
        elif any(isinstance(w, Set) and w.key.startswith(own) and b"paid" in w.value for w in batch.writes):
            recorded_at.append(busy)

    driver = await begun()
    driver.on_commit = change_it
    with anyio.fail_after(PATIENCE):
        result = await run_workflow(both, driver=driver, instance_id="i")
    assert result.output == ["accepted", "paid"]
    assert sent == [1]
    assert recorded_at
    assert recorded_at[0] >= 27, "it waited until the target stood still"


async def test_an_end_that_a_second_watcher_waits_for() -> None:
    """And the first one can't be read: its end is not tried for ever."""
    started, goes = anyio.Event(), anyio.Event()

    @workflow
    async def kid(ctx: Context) -> str:
        async def slow() -> None:
            started.set()
            await goes.wait()

        await ctx.step("slow", slow)
        return "done"

    @workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.child("kid", "kid", id="kid")

    driver = Watched(await open_driver("memory://"))
    await run_workflow(parent, driver=driver, instance_id="first")
    found: list[Any] = []

    async def run() -> None:
        found.append(await run_workflow(kid, driver=driver, instance_id="kid"))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await started.wait()
            await run_workflow(parent, driver=driver, instance_id="second")
            damage = Batch()
            damage.set(InstanceKeys("first").field(Field.BIRTH), b"\xff damaged")
            await driver.commit(damage)
            goes.set()
    assert found[0].status is Status.STUCK
