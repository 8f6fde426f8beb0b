"""Whoever watches sees the last state, whenever it changes: before, during and after each look and each wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from tests.patience import PATIENCE
from tests.runtime.interleaving import Interleaved
from tests.runtime.polling import until
from tests.settings import Setting
from tests.support import open_store
from workflow_sdk import Client, Context, Driver, Handle, InstanceInfo, Status, run_workflow, workflow

pytestmark = pytest.mark.law(9)

Change = Callable[[], Awaitable[object]]


@workflow
async def counts(ctx: Context) -> None:
    """Shows how many messages it has taken."""
    for number in count():
        ctx.progress(number)
        await ctx.listen(f"message {number}", "message")


async def watch(handle: Handle[Any], seen: list[InstanceInfo]) -> None:
    """To the end."""
    async for info in handle.watch():
        seen.append(info)  # noqa: PERF401  # they are looked at before this ends


def check(seen: list[InstanceInfo], last: InstanceInfo) -> None:
    assert seen[-1] == last
    assert last.status is Status.CANCELLED
    versions = [info.version for info in seen]
    assert versions == sorted(versions)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at_once", [1, 2, 3])
async def test_a_change_at_every_call(driver: Driver, at_once: int, after: bool) -> None:
    """So many changes one after the other, each beside a call of the watcher, from this one on."""
    one_at_a_time = anyio.Lock()
    async with Client(driver) as client:
        for first in count(1):
            id = str(first)
            handle = await client.start(counts, id=id)

            async def run(id: str = id) -> None:
                await run_workflow(counts, driver=driver, instance_id=id)

            async def take(handle: Handle[None] = handle, run: Change = run) -> None:
                await handle.send("message")
                await run()

            changes: tuple[Change, ...] = (run, take, handle.cancel)
            left: list[Change] = [*changes[3 - at_once :]]

            async def change(left: list[Change] = left) -> None:
                async with one_at_a_time:
                    if left:
                        await left.pop(0)()

            beside = Beside(driver, dict.fromkeys(range(first, first + at_once), change), after=after)
            seen: list[InstanceInfo] = []
            was_late = False

            async def is_done(left: list[Change] = left, beside: Beside = beside) -> bool:
                return not left or beside.waiting == 2

            with anyio.fail_after(PATIENCE):
                async with Client(beside) as watcher, anyio.create_task_group() as group:
                    group.start_soon(watch, watcher.handle(counts, id), seen)
                    await until(is_done)
                    was_late = len(left) == at_once
                    beside.left.clear()
                    while left:
                        await change()
            check(seen, await handle.info())
            if was_late:
                assert first > 4
                return


class Beside(Interleaved):
    """Counts who waits for a change."""

    waiting = 0

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """As the driver."""
        self.waiting += 1
        try:
            await super().changed(key, since)
        finally:
            self.waiting -= 1


@pytest.mark.parametrize("seed", range(4))
async def test_changes_at_random(driver: Driver, place: Setting, tmp_path: Path, seed: int) -> None:
    """From two handles of the store, with several who watch; one of them stops and begins again."""
    random = Random(seed)
    other = driver if place.store == "memory" else await open_store(place.store, tmp_path)
    stores = [driver, other]
    over = False

    async def give_way() -> None:
        if random.random() < 0.1:
            await anyio.sleep(0.003 * random.random())
        for _ in range(random.randrange(8)):
            await anyio.lowlevel.checkpoint()

    async def watch_again_and_again(handle: Handle[Any], last: list[InstanceInfo]) -> None:
        while not over:
            with anyio.move_on_after(0.01 * random.random()):
                async with aclosing(cast("Any", handle.watch())) as watched:
                    async for info in watched:
                        last[:] = [info]
                        await give_way()
        await watch(handle, last)

    try:
        async with Client(driver) as one, Client(other) as two:
            clients = [one, two]
            handle = await one.start(counts, id="i")
            seen: list[list[InstanceInfo]] = [[] for _ in range(4)]

            async def all_have_seen_it() -> bool:
                info = await handle.info()
                return all(infos and infos[-1] == info for infos in seen)

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as group:
                    for number, client in enumerate([*clients, *clients]):
                        kind = watch if number < 3 else watch_again_and_again
                        group.start_soon(kind, client.handle(counts, "i"), seen[number])
                    for _ in range(20):
                        await give_way()
                        if random.random() < 0.5:
                            await random.choice(clients).handle(counts, "i").send("message")
                        await give_way()
                        await run_workflow(counts, driver=random.choice(stores), instance_id="i")
                        if random.random() < 0.5:
                            await until(all_have_seen_it)
                    over = True
                    await random.choice(clients).handle(counts, "i").cancel()
            last = await handle.info()
            for infos in seen:
                check(infos, last)
    finally:
        if other is not driver:
            await other.aclose()
