"""Two processes share the work on one store. One of them is killed; the other takes over its instances.

python examples/two_workers.py
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from workflow_sdk import Client, Context, Handle, Runtime, workflow


async def render(picture: int) -> int:
    """Do some work; return the process that did it."""
    await asyncio.sleep(0.05)
    return os.getpid()


@workflow
async def thumbnail(ctx: Context, picture: int) -> int:
    return await ctx.step(render, picture)


@workflow
async def album(ctx: Context, pages: int) -> list[int]:
    """Begins in one process, and finishes in the one that is left."""
    done = [await ctx.step("first page", render, 1)]
    await ctx.listen("go on")
    done += [await ctx.step(f"page {number}", render, number) for number in range(2, pages + 1)]
    return done


async def work(store: str) -> None:
    """Run one of the two workers."""
    # Few at a time, so that one worker leaves work to the other; a short lease, so that the takeover comes soon.
    async with Runtime(store, workflows=[thumbnail, album], concurrency=2, lease_ttl=0.5) as runtime:
        print("ready", flush=True)
        await runtime.serve()  # until SIGTERM


def start_worker(store: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, store], stdout=subprocess.PIPE)


def until_ready(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdout is not None, "it is a pipe"
    worker.stdout.readline()


async def until_waiting(handle: Handle[list[int]]) -> int:
    """Wait for the first page, and return the process that did it."""
    while True:
        if (await handle.info()).status == "waiting":
            return int((await handle.history())["first page"].value)
        await asyncio.sleep(0.01)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder)}/work.db"
        workers = [start_worker(store), start_worker(store)]
        try:
            for worker in workers:
                await asyncio.to_thread(until_ready, worker)
            await use(store, workers)
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()


async def use(store: str, workers: list[subprocess.Popen[bytes]]) -> None:
    # A client starts workflows and waits for them; it runs none.
    async with Client(store) as client:
        handles = [await client.start(thumbnail, picture) for picture in range(24)]
        shares = Counter([await handle.result() for handle in handles])
        print(f"{shares.total()} pictures, by {len(shares)} processes")

        handle = await client.start(album, 3, id="holidays")
        begun_by = await until_waiting(handle)
        (killed,) = (worker for worker in workers if worker.pid == begun_by)
        (left,) = (worker for worker in workers if worker is not killed)
        killed.kill()
        print("a process is killed, with an album in its memory")
        await handle.send("go on")
        pages = await handle.result()
        print(f"the album: page 1 by the one that was killed: {pages[0] == killed.pid}")
        print(f"  the others by the one that is left: {pages[1:] == [left.pid] * 2}")

        left.terminate()
        print(f"the one that is left is told to end: exit code {await asyncio.to_thread(left.wait)}")


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]) if len(sys.argv) > 1 else main())
