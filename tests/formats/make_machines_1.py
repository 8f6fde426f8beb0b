"""How `machines_1.json`, `machines_1.txt` and `machines_1.database` were made: once, by hand, never by the tests.

    python -m tests.formats.make_machines_1

What is written today in another way gets files of its own, beside these.
"""

from __future__ import annotations

from typing import Any

from tests.formats.files import write
from tests.formats.machines_1 import MENDED, Answer, Said, asks, cell, hub, manifest, sends
from tests.runtime.polling import until
from workflow_sdk import Client, Driver, Runtime
from workflow_sdk.machines import CellStatus
from workflow_sdk.testing import VirtualClock


class Still:
    """A clock that stands still at the beginning."""

    def time(self) -> float:
        """Always the same."""
        return VirtualClock().time()


async def on_the_way(driver: Driver, clock: VirtualClock) -> None:
    """Cells in every state that there is, with effects and messages, and a workflow that waits for an effect."""
    options: dict[str, Any] = {
        "machines": manifest,
        "workflows": [asks],
        "executors": [sends],
        "journal": True,
        "clock": Still(),
    }
    async with Runtime(driver, **options, grace=0) as runtime:
        for key, words in {
            "asks": ["asks"],
            "sends": ["sends"],
            "waits": ["waits"],
            "tells": ["tells"],
            "ends": ["once", "ends"],
            "goes": ["once", "goes"],
            "answered": ["asks"],
            "errs": ["errs", "more"],
        }.items():
            for word in words:
                await runtime.emit(Said(key, word), id=f"{key} {word}")
        await runtime.start(asks, "a workflow asks", id="waiting")
        await runtime.start(asks, "a workflow has asked", id="answered")

        async def is_so() -> bool:
            cells = {one.key: one for one in (await runtime.cells(cell)).items}
            infos = [await runtime.handle(asks, id).info() for id in ("waiting", "answered")]
            return (
                all(len(cells[key].inflight) == 1 for key in ("asks", "sends", "waits", "answered"))
                and cells["ends"].status is CellStatus.COMPLETED
                and "goes" not in cells
                and cells["errs"].status is CellStatus.STUCK
                and (await runtime.cell(hub)).last_sequence == 1
                and all(info.waits for info in infos)
                and bool(await runtime.frames(next(iter(cells["sends"].inflight))))
            )

        await until(is_so)
        (id,) = (await runtime.cell(cell, "answered")).inflight
        await runtime.settle(id, Answer("from outside"))
        (wait,) = (await runtime.handle(asks, "answered").info()).waits
        await runtime.settle(wait.target or "", Answer("to a workflow"))
        assert await runtime.handle(asks, "answered").result()
        await until(lambda: _is_taken(runtime))
        snapshot = await runtime.snapshot(hub)
        await runtime.pin(snapshot.root)


async def _is_taken(client: Client) -> bool:
    return (await client.cell(cell, "answered")).last_sequence == 2


async def others(driver: Driver, clock: VirtualClock) -> None:
    """What nobody has taken yet."""
    async with Client(driver, machines=manifest, clock=Still()) as client:
        await client.emit(Said("asks", "queued"))
        await client.emit(Said("new", "queued"))


if __name__ == "__main__":
    MENDED.clear()
    write("machines_1", on_the_way, others, ("waiting", "answered"))
