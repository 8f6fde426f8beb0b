"""What the tests of composition have in common: whole systems of instances, run to their end, and what is left then."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from tests.patience import PATIENCE
from workflow_sdk import Batch, Client, Driver, Handle, Runtime, Status, Workflow
from workflow_sdk.rows.keys import ROOT
from workflow_sdk.rows.location import unpack
from workflow_sdk.testing import SimulatedCrash, VirtualClock

__all__ = [
    "Counted",
    "ids_of",
    "left_behind",
    "lives_once",
    "rows_by_part",
    "running",
    "survive",
    "until_count",
    "until_input",
    "until_no_cleanups",
    "until_status",
    "until_there",
]

_PARTS = {3: "inbox", 9: "waits", 12: "outside", 7: "takings"}
_ROOTS = {3: "alarms", 7: "claims", 11: "answers", 12: "cleanups"}
_OPEN_TASKS = ((3,), (4,), (5,), (6,), (7,))


def rows_by_part(rows: Iterable[tuple[bytes, bytes]]) -> Counter[str]:
    """How many rows there are of what is to be gone once everything has ended."""
    found: Counter[str] = Counter()
    for key, _ in rows:
        parts = unpack(key[len(ROOT) :])
        kind = parts[0]
        assert isinstance(kind, int), "kinds of rows are numbered"
        part = parts[2] if len(parts) > 2 else None
        if kind == 1 and isinstance(part, int) and part in _PARTS:
            found[_PARTS[part]] += 1
        elif kind == 1 and parts[2:] == (4, 20):
            found["leases"] += 1
        elif kind in _ROOTS:
            found[_ROOTS[kind]] += 1
        elif kind == 13 and parts[1:2] in _OPEN_TASKS:
            found["open tasks"] += 1
    return found


async def left_behind(driver: Driver) -> dict[str, int]:
    """What there should be nothing of once every instance has ended."""
    return dict(rows_by_part(await driver.scan(b"", b"\xff")))


async def ids_of(driver: Driver) -> list[str]:
    """Every instance that was ever started."""
    async with Client(driver) as client:
        return sorted(info.id for info in (await client.list(limit=1000)).items)


async def until_there(driver: Driver, id: str) -> None:
    """Return once there is an instance with this id."""
    with anyio.fail_after(PATIENCE):
        while id not in await ids_of(driver):  # noqa: ASYNC110  # any process may start it
            await anyio.sleep(0.001)


async def until_count(driver: Driver, count: int) -> None:
    """Return once there are so many instances."""
    with anyio.fail_after(PATIENCE):
        while len(await ids_of(driver)) < count:  # noqa: ASYNC110  # any process may start them
            await anyio.sleep(0.001)


async def until_no_cleanups(driver: Driver) -> None:
    """Return once nobody has anything to tell another instance."""
    with anyio.fail_after(PATIENCE):
        while "cleanups" in await left_behind(driver):  # any process may run them
            await anyio.lowlevel.checkpoint()


async def until_input(handle: Handle[Any], value: object) -> None:
    """Return once the instance has begun with this input."""
    with anyio.fail_after(PATIENCE):
        while (await handle.info()).input != value:  # noqa: ASYNC110  # any process may run it
            await anyio.sleep(0.001)


async def until_status(handle: Handle[Any], *statuses: Status) -> None:
    """Return once the instance has one of the statuses."""
    with anyio.fail_after(PATIENCE):
        while (await handle.info()).status not in statuses:  # noqa: ASYNC110  # any process may change it
            await anyio.sleep(0.001)


@asynccontextmanager
async def running(
    driver: Driver, workflows: Sequence[Workflow[Any, Any]], clock: VirtualClock | None = None, **options: Any
) -> AsyncGenerator[Runtime]:
    """A runtime with a clock that jumps; a test in it that has no end fails."""
    with anyio.fail_after(PATIENCE):
        async with Runtime(driver, workflows=workflows, clock=clock or VirtualClock(quiet=10), **options) as runtime:
            yield runtime


async def lives_once(
    driver: Driver,
    workflows: Sequence[Workflow[Any, Any]],
    clock: VirtualClock,
    story: Callable[[Runtime], Awaitable[None]],
    **options: Any,
) -> bool:
    """A runtime and a story in it; False if it died of its store before the end."""
    lives = False
    try:
        async with running(driver, workflows, clock, **options) as runtime:
            await story(runtime)
        lives = True
    except* SimulatedCrash:
        pass
    return lives


async def survive(
    faulty: Driver,
    driver: Driver,
    workflows: Sequence[Workflow[Any, Any]],
    story: Callable[[Runtime], Awaitable[None]],
) -> None:
    """Tell the story; should that process die, another goes on with it."""
    clock = VirtualClock(quiet=10)
    if not await lives_once(faulty, workflows, clock, story):
        assert await lives_once(driver, workflows, clock, story)


class Counted:
    """Hands everything on to a driver. Counts the calls, and the commits by what they write."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.gets = self.scans = self.commits = self.rows = 0

    @property
    def calls(self) -> int:
        """All but the watches."""
        return self.gets + self.scans + self.commits

    async def get(self, key: bytes, /) -> bytes | None:
        """As the driver."""
        self.gets += 1
        return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """As the driver."""
        self.scans += 1
        rows = await self.driver.scan(begin, end, limit=limit, reverse=reverse)
        self.rows += len(rows)
        return rows

    async def commit(self, batch: Batch, /) -> None:
        """As the driver."""
        self.commits += 1
        await self.driver.commit(batch)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        """As the driver."""
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        """As the driver."""
        await self.driver.aclose()
