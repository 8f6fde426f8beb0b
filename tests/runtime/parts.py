"""Stores and workflows that the tests of the runtime share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from tests.patience import PATIENCE
from tests.runtime.polling import until
from workflow_sdk import Context, Driver, Handle, Status, open_driver, workflow
from workflow_sdk.rows.keys import ROOT
from workflow_sdk.rows.location import unpack

__all__ = ["Log", "Rows", "Stop", "add", "doubles", "naps", "opened", "until_status"]


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Driver]:
    """A driver, as long as it is needed."""
    driver = await open_driver(url)
    try:
        yield driver
    finally:
        await driver.aclose()


async def until_status(handle: Handle[Any], *statuses: Status, seconds: float = PATIENCE) -> None:
    """Return once the instance has one of the statuses."""

    async def has_one() -> bool:
        return (await handle.info()).status in statuses

    await until(has_one, seconds)


class Rows:
    """What a store holds, by what it is for."""

    def __init__(self, rows: list[tuple[bytes, bytes]]) -> None:
        self.keys = [unpack(key[len(ROOT) :]) for key, _ in rows]

    @classmethod
    async def of(cls, driver: Driver) -> Rows:
        """All of them."""
        return cls(await driver.scan(b"", b"\xff"))

    def _all(self, kind: int) -> list[tuple[Any, ...]]:
        return [tuple(key[1:]) for key in self.keys if key[0] == kind]

    @property
    def leases(self) -> list[tuple[Any, ...]]:
        """Who may write: (id,)."""
        return [(key[1],) for key in self.keys if key[0] == 1 and key[2:] == (4, 20)]

    @property
    def alarms(self) -> list[tuple[Any, ...]]:
        """What is due, and when: (time, id)."""
        return sorted(key[1:] for key in self._all(3))

    @property
    def workers(self) -> list[tuple[Any, ...]]:
        """Heartbeats, claims, stamps and signals."""
        return [key for kind in (6, 7, 8, 9) for key in self._all(kind)]

    @property
    def signals(self) -> list[tuple[Any, ...]]:
        """What workers are told, and have not read."""
        return self._all(9)

    @property
    def claimed(self) -> list[tuple[Any, ...]]:
        """(worker, id)."""
        return self._all(7)

    def of_instance(self, id: str) -> list[tuple[Any, ...]]:
        """Every key that names the instance."""
        return [tuple(key) for key in self.keys if id in key]


@dataclass
class Stop:
    """A place where a step waits until it is told to go on."""

    reached: anyio.Event = field(default_factory=anyio.Event)
    go_on: anyio.Event = field(default_factory=anyio.Event)

    async def here(self) -> None:
        """Say that it is reached, and wait."""
        self.reached.set()
        await self.go_on.wait()


class Log(list[Any]):
    """What happened, in order; a step can write to it."""

    def note(self, what: Any) -> Any:
        """A step."""
        self.append(what)
        return what


def add(a: int, b: int) -> int:
    """A step."""
    return a + b


@workflow
async def doubles(ctx: Context, number: int) -> int:
    """Ends at once."""
    return await ctx.step("double", add, number, number)


@workflow
async def naps(ctx: Context, seconds: float) -> str:
    """Sleeps, and ends."""
    await ctx.sleep("nap", seconds)
    return "awake"
