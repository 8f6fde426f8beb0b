"""SQLite on every event loop of asyncio: what one of them gives for a timer is not what another gives."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.support import open_store
from workflow_sdk.driver import Batch

pytestmark = [
    pytest.mark.usefixtures("host"),
    pytest.mark.every_host,
    pytest.mark.settings(loop=("asyncio", "uvloop")),
]


async def test_many_who_wait_hear_of_changes_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin to wait while the poller is about to look. uvloop has no timer for a time as near as this."""
    monkeypatch.setattr("workflow_drivers.sqlite.POLL_SECONDS_MIN", 0.0001)
    driver, other = await open_store("sqlite", tmp_path), await open_store("sqlite", tmp_path)
    heard: list[int] = []

    async def wait(number: int) -> None:
        await driver.changed(b"%d" % number, None)
        heard.append(number)

    try:
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(wait, number)
            await anyio.wait_all_tasks_blocked()
            batch = Batch()
            for number in range(10):
                batch.set(b"%d" % number, b"changed")
            await other.commit(batch)
    finally:
        await driver.aclose()
        await other.aclose()
    assert sorted(heard) == list(range(10))
