"""How `format_1.json`, `format_1.txt` and `format_1.database` were made: once, by hand, never by the tests.

    python -m tests.formats.make_1

What is written today in another way gets files of its own, beside these.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import anyio

from tests.formats.workflows_1 import MENDED, Order, ends, everything, unwinds
from workflow_sdk import Workflow, open_driver, read_history, run_workflow, send_message
from workflow_sdk.rows.wire import unpack_record
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

HERE = Path(__file__).parent
INSTANCES = ("half way", "rolling back", "exhausted", "completed", "failed", "stuck", "sleeping", "crashed")
ORDER = Order("o-1", [("apple", 3)])


async def half_way(driver: Any, clock: VirtualClock) -> None:
    """An instance with every kind of operation, finished and under way."""

    async def go_on() -> None:
        await run_workflow(everything, ORDER, driver=driver, instance_id="half way", clock=clock)

    await go_on()
    for name, payload in [("early", (1, b"2")), ("pair", "only one")]:
        await send_message(driver, "half way", name, payload, clock=clock)
    for _ in range(8):
        await go_on()
        clock.advance(61)
    await send_message(driver, "half way", "bait", "a bait", clock=clock)
    await send_message(driver, "half way", "left over", {"never": "taken"}, clock=clock)
    await go_on()


async def others(driver: Any, clock: VirtualClock) -> None:
    """Instances in other states."""

    async def run(workflow: Workflow[Any, Any], input: Any, id: str) -> None:
        await run_workflow(workflow, input, driver=driver, instance_id=id, clock=clock)

    MENDED.append("refund three of failure")
    for _ in range(2):
        await run(unwinds, None, "rolling back")
        clock.advance(0.2)
    for _ in range(4):
        await run(unwinds, None, "exhausted")
        clock.advance(60)
    for how in ("completed", "failed", "stuck", "sleeping"):
        await run(ends, how, how)
    await send_message(driver, "stuck", "number", "seven", clock=clock)
    with suppress(SimulatedCrash):
        await run_workflow(
            ends, "crashed", driver=FaultyDriver(driver, crash_after=2), instance_id="crashed", clock=clock
        )
    with suppress(SimulatedCrash):
        await run_workflow(
            ends, "crashed", driver=FaultyDriver(driver, crash_after=1), instance_id="crashed", clock=clock
        )


def described(raw: bytes) -> str:
    """The fields of a record, as text. The stamp is no record."""
    return repr(unpack_record(raw)) if raw[:1] == b"\x01" else "no record"


async def make() -> None:
    """Write the files."""
    driver, clock = await open_driver("memory://"), VirtualClock()
    await half_way(driver, clock)
    await others(driver, clock)
    rows = await driver.scan(b"", b"\xff")
    lines = [json.dumps([key.hex(), raw.hex(), described(raw)]) for key, raw in rows]
    (HERE / "format_1.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    histories = [str(await read_history(driver, instance)) for instance in INSTANCES]
    (HERE / "format_1.txt").write_text("\n\n".join(histories) + "\n")
    path = HERE / "format_1.database"
    path.unlink(missing_ok=True)
    driver = await open_driver(f"sqlite:///{path}")
    await half_way(driver, VirtualClock())
    await driver.aclose()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


if __name__ == "__main__":
    with mock.patch("workflow_sdk.operations.types.token_bytes", lambda size: bytes(range(size))):
        anyio.run(make)
