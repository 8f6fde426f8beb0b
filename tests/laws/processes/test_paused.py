"""A worker that is stopped for longer than its lease writes nothing more when it goes on."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.laws.processes.parts import Workers, is_whole, pause
from tests.laws.processes.worker import holds, stores
from tests.ledger import read
from tests.patience import PATIENCE
from tests.runtime.parts import opened
from workflow_sdk import Client, Driver, StorageError
from workflow_sdk.rows.keys import ROOT
from workflow_sdk.rows.location import unpack

pytestmark = pytest.mark.law(10)

STEPS = 60


async def instance_rows(driver: Driver) -> list[tuple[bytes, bytes]]:
    """Everything that is stored of instances."""
    rows = await driver.scan(b"", b"\xff")
    return [row for row in rows if unpack(row[0][len(ROOT) :])[0] == 1]


async def test_a_paused_worker_is_fenced(workers: Workers) -> None:
    workers.hold(STEPS // 2)
    async with Client(workers.url) as client, opened(workers.url) as driver:
        handle = await client.start(stores, (workers.log, STEPS, 10), id="i")
        first = workers.start()
        await workers.lines.reach(8)
        await pause(workers.database, first)
        workers.let_go()
        before = len(workers.lines)
        assert before < STEPS, "it is in the middle of it"
        second = workers.start()
        assert await handle.result(timeout=PATIENCE) == [*range(1, STEPS + 1)]
        rows = await instance_rows(driver)
        first.send_signal(signal.SIGCONT)
        await workers.until_said(first, "was taken over")
        assert await workers.terminate(first) == 0
        assert await instance_rows(driver) == rows, "not one byte"
        assert await read(driver, "stored") == STEPS
        assert await workers.terminate(second) == 0
    counts = Counter(workers.lines())
    assert set(counts) == set(map(str, range(STEPS)))
    assert sum(counts.values()) <= STEPS + 1, "only the step that was under way has run again"
    assert is_whole(workers.database)


@pytest.mark.parametrize("workers", ["synchronous=normal&busy_timeout=0.2"], indirect=True)
async def test_a_worker_paused_in_a_write_is_waited_for_and_named_busy(workers: Workers) -> None:
    go_on = workers.directory / "go on"
    async with Client(workers.url) as client:
        handle = await client.start(holds, (workers.log, str(go_on)), id="i")
        worker = workers.start()
        await workers.lines.reach(1)
        worker.send_signal(signal.SIGSTOP)
        with pytest.raises(StorageError, match=f"can't write '{workers.database}': busy with other processes"):
            await client.start(holds, (workers.log, str(go_on)), id="j")
        assert (await handle.info()).id == "i", "others can read"
        go_on.touch()
        worker.send_signal(signal.SIGCONT)
        assert await handle.result(timeout=PATIENCE) == 1
        assert await client.start(holds, (workers.log, str(go_on)), id="j")
        assert await client.handle(holds, "j").result(timeout=PATIENCE) == 2
    assert is_whole(workers.database)
