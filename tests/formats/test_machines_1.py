"""What format 1 stored of machines is read, and gone on with, now and always.

The files beside this one were made by `make_machines_1.py`. They are never edited, only added to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.formats.files import Files, later
from tests.formats.machines_1 import MENDED, Answer, Ask, Said, Words, asks, cell, hub, manifest
from tests.runtime.polling import until
from workflow_sdk import Client, Delivery, Driver, InstanceStateError, Runtime, Status, open_driver, read_history
from workflow_sdk.machines import Cell, CellStatus, PlainEvent

FILES = Files("machines_1")
RECORDS = 110


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    MENDED.clear()
    yield
    MENDED.clear()


def test_every_record_holds_what_it_held() -> None:
    assert FILES.check_records() == RECORDS


async def test_histories_are_printed_as_they_were() -> None:
    driver = await FILES.store()
    assert [str(await read_history(driver, id)) for id in ("waiting", "answered")] == FILES.histories


async def test_cells_are_as_they_were() -> None:
    async with Client(await FILES.store(), machines=manifest) as client:
        found = {one.key: one for one in (await client.cells(cell)).items}
        assert {key: (one.status, one.state and one.state.words) for key, one in found.items()} == {
            "answered": (CellStatus.WAITING, ["asks", "formats/ask@1 ok from outside"]),
            "asks": (CellStatus.WAITING, ["asks"]),
            "ends": (CellStatus.COMPLETED, ["once", "ends"]),
            "errs": (CellStatus.STUCK, None),
            "new": (CellStatus.RUNNING, None),
            "sends": (CellStatus.WAITING, ["sends"]),
            "tells": (CellStatus.WAITING, ["tells"]),
            "waits": (CellStatus.WAITING, ["waits"]),
        }
        assert (await client.cell(hub)).state == Words(["tells tells"])
        (intent,) = found["asks"].inflight.values()
        assert (intent.params, intent.issuer, intent.sequence) == (Ask("something"), "the issuer", 1)
        (id,) = found["sends"].inflight
        assert [frame.value for frame in await client.frames(id)] == [{"half": 1}]
        assert await client.emit(Said("asks", "asks"), id="asks asks") == [Delivery.DUPLICATE]


async def test_the_journal_leads_from_the_snapshot_to_the_cells() -> None:
    async with Client(await FILES.store(), machines=manifest) as client:
        entries = list(await client.journal(cell))
        assert [one.value["word"] for one in entries if one.kind == "event" and one.key == "goes"] == ["once", "goes"]
        (receipt,) = [one for one in entries if one.kind == "receipt"]
        assert len(await client.trace(receipt.intent_id or "")) == 2
        snapshot = await client.snapshot(hub)
        assert (await client.verify_replay(snapshot)).is_equal
        await client.gc()
        assert (await client.verify_replay(snapshot)).is_equal


async def go_on(driver: Driver) -> None:
    """Everything that is under way comes to its end."""
    MENDED.append(True)
    async with Runtime(driver, machines=manifest, workflows=[asks], clock=later()) as runtime:
        for key in ("asks", "sends"):
            (id,) = (await runtime.cell(cell, key)).inflight
            assert await runtime.settle(id, Answer("now")) == Delivery.ACCEPTED
        (wait,) = (await runtime.handle(asks, "waiting").info()).waits
        assert await runtime.settle(wait.target or "", Answer("now")) == Delivery.ACCEPTED
        assert await runtime.handle(asks, "waiting").result() == "ok now a workflow waiting"
        with suppress(InstanceStateError):  # another Python has other code, and so has mended it already
            await runtime.handle(cell, cell.instance_id("errs")).recover()
        await runtime.emit(PlainEvent("formats/Said@1", {"key": "goes", "word": "comes again"}))
        for key, words, sequence in [
            ("asks", {"asks", "queued", "formats/ask@1 ok now"}, 3),
            ("sends", {"sends", "formats/send@1 ok now"}, 2),
            ("waits", {"waits", "timer ok None"}, 2),
            ("errs", {"errs", "more"}, 2),
            ("goes", {"comes again"}, 3),
        ]:
            await until(lambda key=key, words=words: _has(runtime, key, words))  # type: ignore[misc]
            found: Cell[Words] = await runtime.cell(cell, key)
            assert (found.last_sequence, dict(found.inflight)) == (sequence, {})
        await until(lambda: _has(runtime, "new", {"queued"}))
        assert (await runtime.handle(cell, cell.instance_id("ends")).info()).status is Status.COMPLETED


async def _has(client: Client, key: str, words: set[str]) -> bool:
    try:
        found = await client.cell(cell, key)
    except LookupError:
        return False
    state: Any = found.state
    return bool(state is not None and words <= {*state.words})


async def test_everything_goes_on() -> None:
    driver = await FILES.store()
    await go_on(driver)


async def test_a_database_goes_on(tmp_path: Path) -> None:
    FILES.copy_database(tmp_path / "store.db")
    driver = await open_driver(f"sqlite:///{tmp_path}/store.db")
    async with Client(driver, machines=manifest) as client:
        await client.emit(Said("asks", "queued"))
        await client.emit(Said("new", "queued"))
    await go_on(driver)
    await driver.aclose()
