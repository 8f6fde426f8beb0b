"""The workflows, on DBOS Transact: async workflows of async steps, in one process."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from dbos import DBOS, DBOSConfig
from sqlalchemy import Engine, event, make_url

from tests.benchmarks.peers.measuring import Setting, Spent, Step, spent

__all__ = ["answering", "joining", "launched", "passed", "resumable", "sequential", "step", "waiting"]

A_MONTH = 30 * 24 * 3600
step = Step()
passed: list[Spent] = []  # at the first line of `resumable`, and where it begins to wait


@DBOS.step()
async def nothing() -> int:
    """A step that costs nothing itself."""
    return await step()


@DBOS.workflow()
async def sequential(count: int) -> int:
    """Steps, one after the other."""
    for _ in range(count):
        await nothing()
    return count


@DBOS.workflow()
async def joining(count: int) -> int:
    """Steps side by side, started in the same order each time."""
    return len(await asyncio.gather(*[nothing() for _ in range(count)]))


@DBOS.workflow()
async def resumable(count: int, servers: tuple[int, ...]) -> int:
    """Steps, and then a wait."""
    setting = Setting("", servers=servers)
    passed.append(spent(setting))
    for _ in range(count):
        await nothing()
    passed.append(spent(setting))
    await DBOS.recv_async("go", A_MONTH)
    return count


@DBOS.workflow()
async def answering() -> None:
    """Answers what it is sent, each under a key of its own."""
    while (number := await DBOS.recv_async("ask", A_MONTH)) is not None:
        await DBOS.set_event_async(f"answer-{number}", number)


@DBOS.workflow()
async def waiting() -> None:
    """A step, and then a long wait."""
    await nothing()
    await DBOS.recv_async("message", A_MONTH)


@event.listens_for(Engine, "connect")
def _add_subseconds(connection: Any, record: object) -> None:
    """DBOS asks SQLite for milliseconds as only version 3.42 and later has them."""
    if isinstance(connection, sqlite3.Connection) and sqlite3.sqlite_version_info < (3, 42):
        connection.create_function("unixepoch", -1, lambda *how: time.time())


@asynccontextmanager
async def launched(setting: Setting, **options: float) -> AsyncGenerator[None]:
    """DBOS on the database of a setting, which it makes if there is none."""
    url = make_url(setting.url)
    if setting.mode:
        # Journal modes last: what is set on the new file holds for every later connection.
        connection = sqlite3.connect(str(url.database))
        connection.execute(f"PRAGMA journal_mode={setting.mode}")
        connection.close()
    config: DBOSConfig = {"name": "benchmarks", "system_database_url": setting.url, "log_level": "ERROR"}
    DBOS(config={**config, **options})  # type: ignore[typeddict-item,unused-ignore]
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy()
