"""`workflow doctor`: it finds what is wrong, and leaves nothing behind."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest

from tests.cli.line import Line
from tests.cli.shop import fails
from workflow_sdk import Batch, Driver, StorageError, open_driver
from workflow_sdk.cli import doctor
from workflow_sdk.testing import FaultyDriver


async def rows(driver: Driver) -> list[tuple[bytes, bytes]]:
    return await driver.scan(b"", b"\xff")


def test_a_store_that_is_well(line: Line) -> None:
    line("start", "checkout", "--id", "order-1")
    line.run(fails, id="f1")
    before = line.on_store(rows)
    lines = dict(row.split(maxsplit=1) for row in line("doctor").output.splitlines())
    assert list(lines) == ["opens", "writes", "commit", "read", "file", "journal", "size", "instances"]
    assert re.fullmatch(r"yes, in [\d.]+ ms", lines["opens"])
    for what in ("commit", "read"):
        assert re.fullmatch(r"p50 [\d.]+ ms, p99 [\d.]+ ms, of 200", lines[what])
    assert lines["file"] == f"{line.folder}/app.db"
    assert lines["journal"] == "wal, synchronous normal"
    assert re.fullmatch(r"[\d,]+ bytes, and [\d,]+ in the log", lines["size"])
    assert lines["instances"] == "1 pending, 1 failed"
    assert line.on_store(rows) == before


def test_in_json(line: Line) -> None:
    line("start", "checkout", "--id", "order-1")
    found = json.loads(line("doctor", "--json").output)
    assert found["commit"]["count"] == found["read"]["count"] == 200
    assert 0 < found["commit"]["p50_ms"] <= found["commit"]["p99_ms"]
    assert (found["instances"]["pending"], found["instances"]["failed"]) == (1, 0)
    assert (found["instances_counted_all"], found["instances_problem"]) == (True, None)


def test_a_slow_store_is_not_tried_for_long(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TRYING_SECONDS", 0)
    monkeypatch.setattr(doctor, "COUNTING_SECONDS", 0)
    monkeypatch.setattr(doctor, "PAGE", 1)
    line("start", "checkout", "--id", "order-1")
    line("start", "checkout", "--id", "order-2")
    output = line("doctor").output
    assert "of 1\n" in output
    assert output.endswith("instances  1 pending, or more: that took too long\n")


def test_what_was_left_behind_by_one_that_was_killed(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    async def killed(driver: Driver, begin: bytes, end: bytes) -> None:
        """So that the row stays."""

    with monkeypatch.context() as patch:
        patch.setattr(doctor, "_remove", killed)
        line("doctor")
    assert len(line.on_store(rows)) == 1
    line("doctor")
    assert len(line.on_store(rows)) == 1, "it may be the row of one that runs just now"
    monkeypatch.setattr(doctor, "ABANDONED_SECONDS", -10)
    line("doctor")
    assert line.on_store(rows) == []


def test_what_a_driver_tells_of_itself(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_driver

    async def counting(url: str) -> Driver:
        driver: Any = await opened(url)
        driver.conflicts, driver.unknown_results = 3, 0
        return cast("Driver", driver)

    monkeypatch.setattr(doctor, "open_driver", counting)
    output = line("doctor").output
    assert "\nconflicts  3\n" in output
    assert "\nunknown results 0\n" in output


def test_the_store_can_be_named(line: Line) -> None:
    assert "p50" in line("doctor", "memory://").output
    assert "p50" in line("doctor", "--store", "memory://").output
    assert "There are two" in line("doctor", "memory://", "--store", line.store, code=2).stderr


def test_a_store_that_can_not_be_opened(line: Line) -> None:
    line("doctor", f"sqlite:///{line.folder}/none/app.db", code=1)
    line("doctor", "mysql://x", code=2)


def test_a_store_that_can_not_be_written(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_driver

    async def faulty(url: str) -> Driver:
        return FaultyDriver(await opened(url), fail_at=[10])

    monkeypatch.setattr(doctor, "open_driver", faulty)
    line("doctor", code=1)
    assert line.on_store(rows) == []


async def test_a_store_that_loses_what_it_took() -> None:
    class Forgetful:
        async def commit(self, batch: Batch, /) -> None:
            """Nothing."""

        async def get(self, key: bytes, /) -> None:
            return None

    driver: object = Forgetful()
    with pytest.raises(StorageError, match="does not give it back"):
        await doctor._try(driver, b"k")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportPrivateUsage]  # as much of a driver as is used
