"""The files that hold what a format has stored: NAME.json with every row, NAME.txt with histories, NAME.database.

They are written once, by hand, and read by the tests from then on.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import anyio

from workflow_drivers.memory import MemoryDriver
from workflow_sdk import Driver, open_driver, read_history
from workflow_sdk.driver import Batch
from workflow_sdk.rows.wire import pack_record, unpack_record
from workflow_sdk.testing import VirtualClock

HERE = Path(__file__).parent

Scene = Callable[[Driver, VirtualClock], Awaitable[None]]
"""What writes instances into a store."""


class Files:
    """The files of one name, as they were written."""

    def __init__(self, name: str) -> None:
        self._name = name
        found: list[list[str]] = json.loads((HERE / f"{name}.json").read_text())
        self.rows: list[tuple[bytes, bytes, str]] = [
            (bytes.fromhex(key), bytes.fromhex(raw), text) for key, raw, text in found
        ]
        """The key, the value, and the fields of the value as text."""
        self.histories: list[str] = (HERE / f"{name}.txt").read_text().rstrip("\n").split("\n\n")

    async def store(self) -> Driver:
        """A store with everything that was written then."""
        driver, batch = MemoryDriver(), Batch()
        for key, raw, _ in self.rows:
            batch.set(key, raw)
        await driver.commit(batch)
        return driver

    def copy_database(self, path: Path) -> None:
        """Copy the database, as it was written then."""
        shutil.copy(HERE / f"{self._name}.database", path)

    def check_records(self) -> int:
        """Check that every record holds what it held, and would be written the same; return how many there are."""
        records = [(raw, text) for _, raw, text in self.rows if text != _NO_RECORD]
        for raw, text in records:
            fields = unpack_record(raw)
            assert repr(fields) == text
            assert pack_record(fields) == raw
        return len(records)


def later() -> VirtualClock:
    """Some time after the last commit."""
    return VirtualClock(datetime(2030, 1, 1, 1, tzinfo=UTC))


# Writing them.

_NO_RECORD = "no record"


def write(name: str, half_way: Scene, others: Scene, instances: Sequence[str]) -> None:
    """Write the files of one name. The database holds the first scene only."""
    with mock.patch("workflow_sdk.operations.types.token_bytes", lambda size: bytes(range(size))):
        anyio.run(_write, name, half_way, others, instances)


async def _write(name: str, half_way: Scene, others: Scene, instances: Sequence[str]) -> None:
    driver, clock = await open_driver("memory://"), VirtualClock()
    await half_way(driver, clock)
    await others(driver, clock)
    lines = [json.dumps([key.hex(), raw.hex(), _described(raw)]) for key, raw in await driver.scan(b"", b"\xff")]
    (HERE / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    histories = [str(await read_history(driver, instance)) for instance in instances]
    (HERE / f"{name}.txt").write_text("\n\n".join(histories) + "\n")
    path = HERE / f"{name}.database"
    path.unlink(missing_ok=True)
    driver = await open_driver(f"sqlite:///{path}")
    await half_way(driver, VirtualClock())
    await driver.aclose()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _described(raw: bytes) -> str:
    """The fields of a record, as text. A stamp is no record."""
    return repr(unpack_record(raw)) if raw[:1] == b"\x01" else _NO_RECORD
