"""What calls are cancelled on: a store with a few instances in it, and what must hold of them afterwards."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from tests.laws.cancelling.moments import Cancelled
from tests.laws.model.invariants import check_heads
from tests.patience import PATIENCE
from tests.runtime.polling import until
from tests.support import open_store
from workflow_sdk import Client, Driver, Status, Workflow, run_workflow
from workflow_sdk.driver import Batch
from workflow_sdk.features.schedules.rows import SCHEDULES_SIGNAL
from workflow_sdk.rows.keys import ROOT, Field, InstanceKeys
from workflow_sdk.rows.location import unpack

__all__ = ["Case", "Stage", "open_stage"]

WORKERS = (6, 7, 8, 9)
"""What is stored of workers: heartbeats, claims, stamps and signals."""
ANSWERS = 11
SIGNALS = 10


@dataclass
class Stage:
    """One store, and what was done in it."""

    store: str
    directory: Path
    driver: Driver
    done: Counter[str] = field(default_factory=Counter[str])
    """How often each step was called."""
    outcome: Cancelled = field(default_factory=lambda: Cancelled(False, 0))
    """What became of the call."""
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    """What `prepare` has left for the call."""
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)
    """What `prepare` has opened. `check` may close it early."""

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        """One that runs nothing."""
        async with Client(self.driver) as client:
            yield client

    async def rows(self) -> dict[bytes, bytes]:
        """All rows of the store."""
        return dict(await self.driver.scan(b"", b"\xff"))

    async def parts(self, *which: int) -> list[tuple[Any, ...]]:
        """The keys of some kinds."""
        found = [unpack(key[len(ROOT) :]) for key in await self.rows() if key.startswith(ROOT)]
        return [key for key in found if key[0] in which]

    async def status(self, id: str) -> Status | None:
        """What is stored as the status of an instance; None, if there is none."""
        async with self.client() as client:
            return next((info.status for info in (await client.list()).items if info.id == id), None)

    async def is_free(self, id: str) -> None:
        """Nobody has the instance, whoever comes may run it at once, and nobody is said to have died of it."""
        keys = InstanceKeys(id)
        assert await self.driver.get(keys.lease) is None, "the lease is kept"
        assert await self.driver.get(keys.field(Field.DEATHS)) is None, "it counts as a death"
        check_heads(await self.rows())

    async def no_worker(self) -> None:
        """Nothing is left of a worker."""
        left = await self.parts(*WORKERS)
        assert left == [], f"left of a worker: {left}"

    async def until(self, id: str, *statuses: Status) -> None:
        """Return once the instance has one of these."""

        async def has() -> bool:
            return await self.status(id) in statuses

        await until(has)

    async def run(self, workflow: Workflow[Any, Any], id: str) -> Any:
        """Have it run where it is now, until it waits or ends; its result."""
        return await run_workflow(workflow, driver=self.driver, instance_id=id)

    async def works(self) -> None:
        """The store takes calls as if nothing had happened."""
        batch = Batch()
        batch.set(b"k", b"v")
        with anyio.fail_after(PATIENCE):
            await self.driver.commit(batch)
            assert await self.driver.get(b"k") == b"v"
            assert await self.driver.scan(b"k", b"l") == [(b"k", b"v")]
            batch = Batch()
            batch.check(b"k", b"v")
            batch.clear(b"k")
            await self.driver.commit(batch)

    async def nothing_left(self) -> None:
        """When all instances have ended and are deleted, nothing is left of them."""
        async with self.client() as client:
            for info in (await client.list()).items:
                if not info.status.is_terminal:
                    await client.handle(info.workflow, info.id).cancel()
                await client.delete(info.id)
        left = [
            key
            for key in await self.rows()
            if not (key.startswith(ROOT) and unpack(key[len(ROOT) :])[0] == SIGNALS) and key != SCHEDULES_SIGNAL
        ]
        assert left == [], "rows are left over"


@dataclass(frozen=True)
class Case:
    """A call, and what holds when it was cancelled, at whatever moment."""

    name: str
    call: Callable[[Stage], Awaitable[object]]
    check: Callable[[Stage], Awaitable[None]]
    prepare: Callable[[Stage], Awaitable[None]] | None = None
    beside: Callable[[Stage], Coroutine[Any, Any, None]] | None = None
    """What others do meanwhile. It is ended when the call is over."""
    stores: tuple[str, ...] = ("memory", "sqlite", "fdb")
    is_long: bool = False
    """It has hundreds of moments: at each, it is cancelled in one way only, in turn."""


@asynccontextmanager
async def open_stage(store: str, directory: Path) -> AsyncGenerator[Stage]:
    """An empty store. When it is closed, no thread is left of it."""
    before = _threads()
    driver = await open_store(store, directory)
    stage = Stage(store, directory, driver)
    try:
        yield stage
    finally:
        with anyio.CancelScope(shield=True):
            await stage.opened.aclose()
            await driver.aclose()

    async def have_ended() -> bool:
        return not _threads() - before

    await until(have_ended)


def _threads() -> set[int]:
    """Threads of SQLite's connections. Those that wait for plain functions to run stay."""
    return {
        thread.ident
        for thread in threading.enumerate()
        if thread.ident is not None and "connection_worker" in thread.name
    }
