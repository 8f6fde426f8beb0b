"""Watching an instance: everything that changes is seen, from anywhere, and nobody looks again and again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from tests.patience import PATIENCE
from tests.runtime.looking import Through, dump
from tests.runtime.parts import Stop, opened, until_status
from tests.runtime.polling import settle, until
from tests.settings import Host
from workflow_sdk import (
    Client,
    Context,
    Driver,
    Handle,
    InstanceInfo,
    InstanceNotFoundError,
    Progress,
    Runtime,
    Status,
    StorageError,
    open_driver,
    workflow,
)

ROOT = Path(__file__).parents[2]

stops: list[Stop] = []


@workflow
async def advances(ctx: Context) -> str:
    """Tells how far it is, step by step; each when it is told to."""
    for number, stop in enumerate(stops):
        ctx.progress(number, len(stops))
        await ctx.step(f"step {number}", stop.here)
    await ctx.listen("end")
    return "end"


async def seen(handle: Handle[Any], infos: list[InstanceInfo]) -> None:
    """Everything that is to be seen, to the end."""
    async for info in handle.watch():
        infos.append(info)  # noqa: PERF401  # they are looked at before this ends


async def go_on(driver: Driver, handle: Handle[Any], infos: list[InstanceInfo]) -> None:
    """Let it come to its end, step by step, while somebody looks."""

    async def looks() -> bool:
        return len(infos) > 0

    async def sees_that_it_waits() -> bool:
        return infos[-1].status is Status.WAITING

    await until(looks)
    for stop in stops:
        await stop.reached.wait()
        await settle(driver)
        stop.go_on.set()
    await until(sees_that_it_waits)
    await handle.send("end")


@pytest.mark.parametrize("watcher", ["here", "elsewhere"])
async def test_all_that_changes_is_seen(driver: Driver, watcher: str) -> None:
    stops[:] = [Stop() for _ in range(3)]
    async with Runtime(driver, workflows=[advances]) as runtime, Client(driver) as client:
        handle = await runtime.start(advances, id="i")
        infos: list[InstanceInfo] = []
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(seen, (runtime if watcher == "here" else client).handle(advances, "i"), infos)
                group.start_soon(go_on, driver, handle, infos)
        versions = [info.version for info in infos]
        assert versions == sorted(versions)
        assert [info.status for info in infos][-1] is Status.COMPLETED
        assert [info.status.is_terminal for info in infos].count(True) == 1
        assert infos[-1].output == "end"
        assert infos[-1] == await handle.info()
        assert all(one != other for one, other in pairwise(infos))
        assert Status.WAITING in [info.status for info in infos]
        assert infos[-1].progress == Progress(2, 3)
        # Every step is held up until the one before was stored; that may be seen together with the next.
        assert len({info.progress for info in infos}) >= 2


async def test_what_has_ended_is_seen_once(driver: Driver) -> None:
    stops.clear()
    async with Runtime(driver, workflows=[advances]) as runtime:
        handle = await runtime.start(advances, id="i")
        await handle.send("end")
        await handle.result(timeout=PATIENCE)
        assert [info.status async for info in handle.watch()] == [Status.COMPLETED]
        with pytest.raises(InstanceNotFoundError):
            await anext(runtime.handle(advances, "another").watch())


async def test_stuck_is_no_end(driver: Driver) -> None:
    @workflow
    async def mistakes(ctx: Context) -> None:
        await ctx.sleep("", 1)

    async with Runtime(driver, workflows=[mistakes]) as runtime:
        handle = await runtime.start(mistakes, id="i")
        await until_status(handle, Status.STUCK)
        infos: list[InstanceInfo] = []
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(seen, handle, infos)

                async def looks() -> bool:
                    return len(infos) > 0

                await until(looks)
                await handle.cancel()
        assert [info.status for info in infos] == [Status.STUCK, Status.CANCELLED]


class Quiet(Through):
    """A driver that counts the calls, and can break."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.calls = 0
        self.waiting = 0
        self.broken = anyio.Event()

    async def get(self, key: bytes, /) -> bytes | None:
        """As the driver."""
        self.calls += 1
        return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """As the driver."""
        self.calls += 1
        return await self.driver.scan(begin, end, limit=limit, reverse=reverse)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """As the driver, until it breaks."""
        self.calls += 1
        self.waiting += 1
        try:
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    await self.driver.changed(key, since)
                    group.cancel_scope.cancel()

                group.start_soon(wait)
                await self.broken.wait()
                group.cancel_scope.cancel()
                raise StorageError("the store is gone")
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            self.waiting -= 1


async def test_nobody_looks_again_and_again(host: Host) -> None:
    """Nothing is called while nothing changes; and whoever stops watching leaves nothing behind."""
    stops.clear()
    memory = await open_driver("memory://")
    quiet = Quiet(memory)
    async with Runtime(memory, workflows=[advances]) as runtime, Client(quiet) as client:
        handle = await runtime.start(advances, id="i")
        await until_status(handle, Status.WAITING)
        before = await dump(memory)
        infos: list[InstanceInfo] = []
        async with anyio.create_task_group() as group:
            group.start_soon(seen, client.handle(advances, "i"), infos)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert len(infos) == 1
            assert quiet.waiting
            calls = quiet.calls
            await settle(memory)
            assert quiet.calls == calls
            group.cancel_scope.cancel()
        assert quiet.waiting == 0
        assert await dump(memory) == before
        watched = cast("AsyncGenerator[InstanceInfo]", client.handle(advances, "i").watch())
        assert (await anext(watched)).status is Status.WAITING
        await watched.aclose()
        assert quiet.waiting == 0
        await handle.send("end")
        assert await handle.result(timeout=PATIENCE) == "end"


async def test_the_store_fails(driver: Driver) -> None:
    """Whoever watches is told, as everybody else is."""
    stops.clear()
    quiet = Quiet(driver)
    async with Runtime(driver, workflows=[advances]) as runtime, Client(quiet) as client:
        handle = await runtime.start(advances, id="i")
        await until_status(handle, Status.WAITING)
        watched = client.handle(advances, "i").watch()
        await anext(watched)
        quiet.broken.set()
        with pytest.raises(StorageError, match="the store is gone"), anyio.fail_after(PATIENCE):
            await anext(watched)


async def test_deleted_while_it_is_watched(driver: Driver) -> None:
    stops.clear()
    async with Client(driver) as client:
        handle = await client.start(advances, id="i")
        watched = handle.watch()
        assert (await anext(watched)).status is Status.PENDING
        await handle.cancel()
        await client.delete("i")
        with pytest.raises(InstanceNotFoundError), anyio.fail_after(PATIENCE):
            await anext(watched)


async def test_from_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    watch = (
        "import anyio; from workflow_sdk import Client\n"
        "async def main():\n"
        f"    async with Client({url!r}) as client:\n"
        "        async for info in client.handle('advances', 'i').watch():\n"
        "            print(info.status.value, info.progress and info.progress.done, flush=True)\n"
        "anyio.run(main)\n"
    )
    stops[:] = [Stop()]
    async with opened(url) as driver, Runtime(driver, workflows=[advances]) as runtime:
        handle = await runtime.start(advances, id="i")
        async with await anyio.open_process([sys.executable, "-c", watch], cwd=ROOT, stderr=subprocess.STDOUT) as other:
            assert other.stdout is not None
            with anyio.fail_after(PATIENCE):
                text = (await other.stdout.receive()).decode()
                stops[0].go_on.set()
                await until_status(handle, Status.WAITING)
                while "waiting 0" not in text:
                    text += (await other.stdout.receive()).decode()
                await handle.send("end")
                async for part in other.stdout:
                    text += part.decode()
        assert text.splitlines()[0].startswith("running")
        assert text.splitlines()[-1] == "completed 0"
