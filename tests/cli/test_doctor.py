"""`workflow doctor`: it finds what is wrong, and leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.cli.line import Line
from workflow_sdk import Batch, Driver, StorageError, open_driver
from workflow_sdk.cli import doctor
from workflow_sdk.testing import FaultyDriver


async def rows(driver: Driver) -> list[tuple[bytes, bytes]]:
    return await driver.scan(b"", b"\xff")


def test_a_store_that_is_well(line: Line) -> None:
    line("start", "checkout", "--id", "order-1")
    before = line.on_store(rows)
    opens, writes, commit = line("doctor").output.splitlines()
    assert (opens.split()[:2], writes.split()) == (["opens", "yes,"], ["writes", "yes"])
    assert commit.startswith("commit   p50 ")
    assert commit.endswith("of 50")
    assert line.on_store(rows) == before


def test_the_store_can_be_named(line: Line) -> None:
    assert "p50" in line("doctor", "memory://").output


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
        await doctor._commits(driver, b"k")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportPrivateUsage]  # as much of a driver as is used
