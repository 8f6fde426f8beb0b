"""Workflows for schedules, and a look at what they have begun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel

from tests.patience import PATIENCE
from tests.runtime.parts import Log
from workflow_sdk import Batch, Client, Context, Driver, Workflow, workflow
from workflow_sdk.features.schedules.rows import SCHEDULES

__all__ = ["BEGAN", "FLOWS", "HOUR", "begun", "hears", "lasts", "log", "moves_on", "reports", "reset", "tick", "until"]

HOUR = 3600.0
BEGAN = datetime(2030, 1, 1, tzinfo=UTC)
"""When a virtual clock starts."""

log = Log()


@workflow
async def reports(ctx: Context, what: str = "all") -> str:
    """Ends at once."""
    await ctx.step("note", log.note, ctx.instance_id)
    return what


@workflow
async def lasts(ctx: Context, seconds: float) -> None:
    """Ends after a while."""
    await ctx.step("note", log.note, ctx.instance_id)
    await ctx.sleep("nap", seconds)


@workflow
async def hears(ctx: Context) -> Any:
    """Ends with a message."""
    await ctx.step("note", log.note, ctx.instance_id)
    return await ctx.listen("end")


FLOWS: list[Workflow[Any, Any]] = [reports, lasts, hears]


def reset() -> None:
    """Forget what was noted."""
    log.clear()


async def until(holds: Callable[[], Awaitable[bool] | bool], seconds: float = PATIENCE) -> None:
    """Return as soon as it holds. A clock that jumps does so meanwhile."""
    with anyio.fail_after(seconds):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await anyio.lowlevel.checkpoint()


async def begun(client: Client, before: datetime | None = None) -> list[str]:
    """The instances there are, by their ids; those of ticks before that time."""
    page = await client.list(limit=1000)
    ids = sorted(info.id for info in page.items)
    if before is None:
        return ids
    return [id for id in ids if datetime.fromisoformat(id.rpartition("/")[2]) < before]


def tick(hours: float, schedule: str = "s") -> str:
    """The instance of a tick, so many hours after the clock has started."""
    when = datetime.fromtimestamp(BEGAN.timestamp() + hours * HOUR, UTC)
    return f"{schedule}/{when.isoformat().removesuffix('+00:00')}Z"


def moves_on(number: int, batch: Batch) -> bool:
    """Whether a commit changes a schedule; to be told to a driver that fails."""
    return any(write[0].startswith(SCHEDULES) for write in batch.writes)


async def put(driver: Driver, key: bytes, value: bytes) -> None:
    """Write one row."""
    batch = Batch()
    batch.set(key, value)
    await driver.commit(batch)
